//! What a packet is to the connections there are, and what flows may say of it.
//!
//! A flow that lets a connection's packets pass names the connection exactly. A flow that drops may say more, but never of a packet that a connection lets
//! pass, now or later:
//!
//! | denied | flow | why it hides no connection |
//! |---|---|---|
//! | a SYN | as wide as the rules allow, with SYN and no ACK, FIN, RST | a SYN is always judged by rules, whatever there is |
//! | an ICMP request | as wide, of this type | requests are never answers |
//! | anything else between two that have no connection | as wide, of these two addresses | it goes when one of them opens one ([`Kind::Hides`]) |
//! | anything else | of this connection alone | the same |
//! | fragments, errors, what is invalid | none | what they are depends on more than the key |

use super::Learning;
use crate::acl::{Direction, Standing};
use crate::flows::{Installed, TUPLE_MASK, add};
use lasthop_conntrack::Headers;
use lasthop_conntrack::{Refusal, Tuple};
use lasthop_frame::ethertype::{IPV4, IPV6};
use lasthop_frame::proto::{ICMP, ICMPV6, SCTP, TCP, UDP};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::PortId;

pub(super) const FIN: u16 = 1;
pub(super) const SYN: u16 = 2;
pub(super) const RST: u16 = 4;
const ACK: u16 = 16;
/// With one of these a segment comes to control, whatever its connection.
pub(super) const EDGES: u16 = FIN | SYN | RST;
/// Flows that drop packets between two addresses: more are not made, and each packet comes to control.
const MAX_HIDING: usize = 64;
/// There is no such port: not known yet.
pub(super) const NOWHERE: u32 = u32::MAX;

/// What is known of a packet beside its key, and what finding out may change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe<'a> {
    /// None: by the key alone, as of a flow.
    pub headers: Option<Headers<'a>>,
    pub now_ms: u64,
    /// Nothing changes.
    pub peek: bool,
}

impl Probe<'static> {
    /// A look at a flow's packets.
    pub const PEEK: Self = Self { headers: None, now_ms: 0, peek: true };
}

/// A connection as its label says it: its number, the ports where its first packet and its answers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub label: u128,
    pub original: Tuple,
    /// Its first packet as it is delivered: as `original`, unless it is translated.
    pub delivered: Tuple,
    /// The Ethernet address of who opened it, if his IP address is translated: answers go there, whatever address they have.
    pub home: Option<MacAddr>,
    /// Of an ICMP error about a translated packet: its addresses as it is delivered, and those of what it is about.
    pub error: Option<[Tuple; 2]>,
    /// The packet is an answer, or goes with the answers.
    pub reply: bool,
    /// It was judged by lists that do not hold any more.
    pub outdated: bool,
}

impl Known {
    /// Never 0.
    pub fn number(&self) -> u64 {
        number(self.label)
    }

    /// The port where its first packet came from.
    pub fn from(&self) -> u32 {
        ports(self.label)[0]
    }

    /// Its first packet's addresses and ports, for display.
    pub fn tuple(&self) -> String {
        let tuple = &self.original;
        let address = |bytes| super::shown::address(tuple, bytes);
        let ([src, dst], end) = (tuple.ports(), |of, port: u16| format!("{} port {port}", address(of)));
        let proto = match tuple.proto() {
            ICMP | ICMPV6 => return format!("icmp {} to {}", address(tuple.src()), address(tuple.dst())),
            TCP => "tcp".to_owned(),
            UDP => "udp".to_owned(),
            SCTP => "sctp".to_owned(),
            other => format!("protocol {other}"),
        };
        format!("{proto} {} to {}", end(tuple.src(), src), end(tuple.dst(), dst))
    }

    /// What the packet is to look like, if it is translated.
    pub fn rewrite(&self) -> Option<Tuple> {
        match (self.error, self.reply) {
            _ if self.delivered == self.original => None,
            (Some([outer, _]), _) => Some(outer),
            (None, false) => Some(self.delivered),
            (None, true) => self.original.inverse(),
        }
    }

    /// The key of the connection's first packet, as it is sent and as it is delivered; `key` is one of its packets.
    pub fn openers(&self, key: &FlowKey) -> [FlowKey; 2] {
        [self.original, self.delivered].map(|tuple| {
            let mut first = opener(&tuple, self.from(), key, self.reply);
            if let Some(home) = self.home.filter(|_| self.reply) {
                first.eth_src = home.0;
            }
            first
        })
    }

    /// The same with this port for the end that is not known, if one is not.
    pub fn met_at(self, port: u32) -> Self {
        let [from, reply] = ports(self.label).map(|end| if end == NOWHERE { port } else { end });
        Self { label: label(self.number(), from, reply) | self.label & CARRIED, ..self }
    }

    /// The ports where packets of the packet's direction, and of the other one, come from.
    pub fn ports(&self) -> [u32; 2] {
        let [from, reply] = ports(self.label);
        if self.reply { [reply, from] } else { [from, reply] }
    }
}

/// The data plane has carried some of its packets.
pub(super) const CARRIED: u128 = 1 << 127;

pub(super) fn label(number: u64, from: u32, reply: u32) -> u128 {
    u128::from(from) | u128::from(reply) << 32 | u128::from(number) << 64
}

/// A connection's number, which is never 0.
pub(super) fn number(label: u128) -> u64 {
    ((label & !CARRIED) >> 64) as u64
}

/// Where a connection's first packet comes from, and where its answers do.
pub(super) fn ports(label: u128) -> [u32; 2] {
    [label as u32, (label >> 32) as u32]
}

/// What a packet is to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Track {
    /// Nothing: it is not IP, or neighbour discovery, or nobody asks.
    None,
    /// It would open one; or it is one of a connection that nobody has answered.
    New(Option<Known>),
    /// As [`Track::New`], but a connection with its addresses is between other ports.
    Taken,
    /// The same, but nobody has answered that connection: if the packet passes, it takes its place. So nobody keeps others from answers by
    /// opening their connections before them.
    Displaces(Known),
    /// One of a connection that was answered.
    Established(Known),
    /// An ICMP error about a packet of a connection.
    Related(Known),
    /// Of no connection, and cannot open one.
    Invalid(Refusal),
}

impl Track {
    /// If it passes it may open a connection.
    pub fn opens(&self) -> bool {
        matches!(self, Self::New(None) | Self::Taken | Self::Displaces(_))
    }

    pub fn known(&self) -> Option<Known> {
        match self {
            Self::New(known) => *known,
            Self::Established(known) | Self::Related(known) => Some(*known),
            Self::None | Self::Taken | Self::Displaces(_) | Self::Invalid(_) => None,
        }
    }

    /// The same of a connection of which more is known.
    fn of(self, known: Known) -> Self {
        match self {
            Self::New(_) => Self::New(Some(known)),
            Self::Established(_) => Self::Established(known),
            Self::Related(_) => Self::Related(known),
            other => other,
        }
    }
}

/// What a flow has to do with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing.
    Plain,
    /// The packet is to be shown to the tracker; if it likes it, there may be a flow.
    Tracked,
    /// Its packets are those of the connection with this number.
    Connection(u64),
    /// It drops packets between these two, as long as neither opens a connection to the other.
    Hides(Tuple),
    /// There is to be none.
    Never,
}

impl Kind {
    /// The connection's number, or 0, and the pair that it hides: as of [`Installed`].
    pub fn of_flow(self) -> (u64, Option<Tuple>) {
        match self {
            Self::Connection(number) => (number, None),
            Self::Hides(pair) => (0, Some(pair)),
            Self::Plain | Self::Tracked | Self::Never => (0, None),
        }
    }

    pub fn of_installed(flow: &Installed) -> Self {
        match (flow.connection, flow.hides) {
            (0, Some(pair)) => Self::Hides(pair),
            (0, None) => Self::Plain,
            (number, _) => Self::Connection(number),
        }
    }
}

fn is_ip(key: &FlowKey) -> bool {
    matches!(key.eth_type, IPV4 | IPV6) && key.anomalies == 0
}

fn is_icmp(key: &FlowKey) -> bool {
    key.ip_proto == if key.eth_type == IPV6 { ICMPV6 } else { ICMP }
}

/// Neighbour discovery and multicast listener messages have no connections (as the tracker says, too).
fn is_untracked(key: &FlowKey) -> bool {
    key.eth_type == IPV6
        && key.ip_proto == ICMPV6
        && key.ip_frag & FlowKey::FRAG_LATER == 0
        && matches!(key.l4_src, 130..=137 | 143)
}

pub(super) fn is_syn(key: &FlowKey) -> bool {
    key.ip_proto == TCP && key.tcp_flags & (EDGES | ACK) == SYN && key.ip_frag & FlowKey::FRAG_LATER == 0
}

/// The tuple of a packet, as far as a key says it: echoes without their identifier.
pub(crate) fn tuple(key: &FlowKey, zone: u16) -> Tuple {
    let ports = if is_icmp(key) { [0, key.l4_src << 8 | key.l4_dst & 0xff] } else { [key.l4_src, key.l4_dst] };
    Tuple::new([key.ip_src, key.ip_dst], ports, key.ip_proto, key.eth_type == IPV6, zone)
}

/// Whether a packet may open a connection, whatever there is: it is no answer, and no segment out of the middle.
fn begins(key: &FlowKey, zone: u16) -> bool {
    let opens = match key.ip_proto {
        TCP => is_syn(key),
        SCTP => false,
        _ => lasthop_conntrack::opens(&tuple(key, zone)),
    };
    opens && key.ip_frag == 0
}

/// The two addresses of a tuple, in this order, and the protocol.
pub(super) fn pair(tuple: &Tuple) -> Tuple {
    Tuple::new([tuple.src(), tuple.dst()], [0, 0], tuple.proto(), tuple.is_v6(), tuple.zone())
}

/// The same two the other way round.
pub(super) fn turned(pair: &Tuple) -> Tuple {
    Tuple::new([pair.dst(), pair.src()], [0, 0], pair.proto(), pair.is_v6(), pair.zone())
}

/// The key of a connection's first packet, as a packet of it shows: `reply` says whether that goes the other way.
pub(super) fn opener(original: &Tuple, from: u32, key: &FlowKey, reply: bool) -> FlowKey {
    let [src, dst] = original.ports();
    let icmp = original.proto() == if original.is_v6() { ICMPV6 } else { ICMP };
    let (l4_src, l4_dst) = if icmp { (dst >> 8, dst & 0xff) } else { (src, dst) };
    let (eth_src, eth_dst) = if reply { (key.eth_dst, key.eth_src) } else { (key.eth_src, key.eth_dst) };
    FlowKey {
        in_port: from,
        eth_src,
        eth_dst,
        eth_type: if original.is_v6() { IPV6 } else { IPV4 },
        vlan_tci: key.vlan_tci,
        vlan_tpid: key.vlan_tpid,
        ip_src: original.src(),
        ip_dst: original.dst(),
        ip_proto: original.proto(),
        l4_src,
        l4_dst,
        ..FlowKey::default()
    }
}

impl Learning {
    /// Some list of the port asks about connections, in whichever direction: packets open them one way and are answered the other.
    pub(crate) fn tracks(&self, port: PortId) -> bool {
        self.lists.get(&port).is_some_and(|lists| lists.iter().flatten().any(|(_, list)| list.tracks()))
    }

    /// Whether these are one port. All uplinks are: what one does not carry any more another does.
    pub(super) fn is_same(&self, a: u32, b: u32) -> bool {
        let is_uplink = |port| self.uplinks.contains_key(&PortId(port));
        a == b || is_uplink(a) && is_uplink(b)
    }

    /// What a packet is to the connections there are.
    pub(crate) fn track(&self, key: &FlowKey, vlan: u16, probe: &Probe<'_>) -> Track {
        if !is_ip(key) || is_untracked(key) {
            return Track::None;
        }
        // Without memory for a table nothing passes a list that asks: untranslated, or as if it were new, it must not.
        let Some(connections) = &self.connections else { return Track::Invalid(Refusal::Full) };
        let found = match probe.headers {
            Some(headers) => connections.look(&headers.view(key), vlan, probe.now_ms),
            None => connections.recall(&tuple(key, vlan)),
        };
        let track = match found {
            Track::Invalid(refusal) => {
                // Another port's packets cannot be invalid to this connection.
                let of = connections.recall(&tuple(key, vlan)).known();
                let other = of.is_some_and(|known| !self.is_same(key.in_port, known.ports()[0]));
                return if other && key.ip_frag == 0 { Track::Taken } else { Track::Invalid(refusal) };
            }
            track => track,
        };
        let Some(known) = track.known() else { return track };
        let [here, _] = known.ports();
        let met = if here == NOWHERE { known.met_at(key.in_port) } else { known };
        // What was flooded may be answered from where the lists let it go, and what a guest has brought along goes on with whom they let open it.
        let is_end = if here == NOWHERE { self.may_open(&met, key, vlan) } else { self.is_same(key.in_port, here) };
        // The lists in force let nobody open it any more.
        let is_over = here == NOWHERE && known.outdated && !self.may_open(&known, key, vlan);
        if !is_end && !is_over {
            return match (track, connections.recall(&known.original)) {
                (Track::Related(_), _) => Track::Invalid(Refusal::Unrelated),
                (_, Track::New(Some(_))) if begins(key, vlan) => Track::Displaces(known),
                _ => Track::Taken,
            };
        }
        let (known, track) = (met, track.of(met));
        if is_syn(key) {
            return Track::New(Some(known));
        }
        if known.outdated && !matches!(track, Track::New(_)) && !self.may_open(&known, key, vlan) {
            if !probe.peek {
                connections.end(&known.original, probe.now_ms);
            }
            // As if there had never been any.
            return match track {
                Track::Related(_) => Track::Invalid(Refusal::Unrelated),
                _ => Track::New(None),
            };
        }
        track
    }

    /// Whether the lists in force let this connection open; `key` is one of its packets.
    fn may_open(&self, known: &Known, key: &FlowKey, vlan: u16) -> bool {
        self.lists_let_open(&known.openers(key), vlan, ports(known.label)[1])
    }

    /// Whether the lists in force let a packet open a connection that is this as it is sent and as it is delivered, and goes to a port, if it is known
    /// where.
    pub(super) fn lists_let_open(&self, [sent, delivered]: &[FlowKey; 2], vlan: u16, to: u32) -> bool {
        let permits = |port: u32, key: &FlowKey, direction| {
            self.scoped_list(PortId(port), direction).is_none_or(|scoped| {
                let key = super::inside(key, vlan);
                self.ask(&scoped.1, &key, Standing::New, direction, &mut FlowMask::default()).permits()
            })
        };
        permits(sent.in_port, sent, Direction::FromGuest)
            && (to == NOWHERE || permits(to, delivered, Direction::ToGuest))
    }

    /// What a list is told of it: that of the port where it comes from, or where it would go. A connection lets packets pass to its other end alone.
    /// Where that end is not known yet, it is any port that the lists let be it. `key` is the packet as it came.
    pub(crate) fn standing(&self, track: &Track, key: &FlowKey, vlan: u16, to: Option<PortId>) -> Standing {
        match track {
            Track::None | Track::New(_) | Track::Taken | Track::Displaces(_) => Standing::New,
            Track::Invalid(_) => Standing::Invalid,
            Track::Established(known) | Track::Related(known) => match to {
                Some(to) if known.ports()[1] == NOWHERE => {
                    let lets = self.may_open(&known.met_at(to.0), key, vlan);
                    if lets { Standing::Established } else { Standing::New }
                }
                Some(to) if !self.is_same(known.ports()[1], to.0) => Standing::New,
                _ => Standing::Established,
            },
        }
    }

    /// The flow of a packet that passes, where a list asked about connections.
    pub(super) fn permitted_kind(&self, key: &FlowKey, mask: &mut FlowMask, track: &Track) -> Kind {
        match track {
            Track::None => untracked(key, mask),
            Track::New(_) | Track::Displaces(_) | Track::Established(_) => {
                add(mask, &TUPLE_MASK);
                mask.0.tcp_flags |= if key.ip_proto == TCP { EDGES } else { 0 };
                Kind::Tracked
            }
            Track::Taken | Track::Related(_) | Track::Invalid(_) => Kind::Never,
        }
    }

    /// The flow of a packet to a translated address that nobody asked for, and that passes without a connection: until one begins between the two.
    pub(super) fn unasked_kind(&self, key: &FlowKey, vlan: u16, mask: &mut FlowMask) -> Kind {
        let between = pair(&tuple(key, vlan));
        if key.ip_frag != 0 || self.flows.hiding(&between).len() >= MAX_HIDING {
            return Kind::Never;
        }
        add(mask, &TUPLE_MASK);
        Kind::Hides(between)
    }

    /// The flow of a packet that a list which asks about connections denies.
    pub(super) fn denied_kind(&self, key: &FlowKey, vlan: u16, mask: &mut FlowMask, track: &Track) -> Kind {
        match track {
            Track::None => return untracked(key, mask),
            // It is one of a connection all the same.
            Track::New(Some(_)) | Track::Established(_) | Track::Related(_) | Track::Invalid(_) => return Kind::Never,
            Track::New(None) | Track::Taken | Track::Displaces(_) if key.ip_frag != 0 => return Kind::Never,
            Track::New(None) | Track::Taken | Track::Displaces(_) => {}
        }
        let FlowMask(m) = mask;
        (m.eth_type, m.ip_proto, m.ip_frag) = (u16::MAX, u8::MAX, u8::MAX);
        m.anomalies |= TUPLE_MASK.0.anomalies;
        if is_syn(key) {
            m.tcp_flags |= EDGES | ACK;
            return Kind::Plain;
        }
        if is_icmp(key) {
            m.l4_src = u16::MAX;
            return Kind::Plain;
        }
        let between = pair(&tuple(key, vlan));
        if self.flows.hiding(&between).len() >= MAX_HIDING {
            return Kind::Never;
        }
        (m.ip_src, m.ip_dst) = ([0xff; 16], [0xff; 16]);
        if self.connections.as_ref().is_some_and(|connections| connections.are_between(&between)) {
            add(mask, &TUPLE_MASK);
        }
        Kind::Hides(between)
    }
}

/// The flow of packets that have no connections, where others have.
fn untracked(key: &FlowKey, mask: &mut FlowMask) -> Kind {
    let FlowMask(m) = mask;
    (m.eth_type, m.anomalies) = (u16::MAX, m.anomalies | TUPLE_MASK.0.anomalies);
    if is_ip(key) {
        (m.ip_proto, m.ip_frag, m.l4_src) = (u8::MAX, u8::MAX, u16::MAX);
    }
    Kind::Plain
}
