//! Who wants which multicasts (RFC 4541): what ports' guests say in IGMP (RFC 2236, 3376) and MLD (RFC 2710, 3810), and for how long it holds.
//!
//! Groups are known by their Ethernet addresses, as flows are: 32 groups of IPv4 share one. Checksums are not looked at: what a message
//! says holds for the port it came from, and its guest may say what it likes.

use lasthop_conntrack::View;
use lasthop_frame::FlowKey;
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// How long a group is sent to a port after it was last reported there (RFC 3376 §8.4: 2 × 125 s + 10 s), in ms.
pub const MEMBERSHIP_MS: u64 = 260_000;
/// How long a router is taken to be behind a port after it was last heard (RFC 3376 §8.5), in ms.
pub const ROUTER_MS: u64 = 255_000;
/// How long others behind a port have to say that they want a group which somebody there has left (RFC 3376 §8.8: 2 × 1 s), in ms.
pub const LEFT_MS: u64 = 2_000;
/// Most groups of one port: one that reports more gets all of them.
pub const GROUPS_PER_PORT_MAX: usize = 256;
/// Most of all ports together.
pub const GROUPS_MAX: usize = 16_384;

const IGMP: u8 = 2;
const ICMPV6: u8 = 58;
const PIM: u8 = 103;

/// A family of groups: each has its routers and its queriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// Of a group's Ethernet address (RFC 1112 §6.4, RFC 2464 §7).
    pub fn of(group: MacAddr) -> Option<Self> {
        match group.0 {
            [0x01, 0x00, 0x5e, 0..=0x7f, ..] => Some(Self::V4),
            [0x33, 0x33, ..] => Some(Self::V6),
            _ => None,
        }
    }
}

/// Everybody gets these: 224.0.0.0/24 is not always reported, and neither are the groups by which neighbours are found.
pub(crate) fn is_for_all(group: MacAddr) -> bool {
    matches!(group.0, [0x01, 0x00, 0x5e, 0, 0, _] | [0x33, 0x33, 0, 0, 0, _] | [0x33, 0x33, 0xff, ..])
}

/// The group of all hosts, to which general queries go.
pub(crate) fn asks_all(group: MacAddr) -> bool {
    matches!(group.0, [0x01, 0x00, 0x5e, 0, 0, 1] | [0x33, 0x33, 0, 0, 0, 1])
}

/// What a packet is to snooping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// It asks who wants what, or says that a multicast router is there.
    Router,
    /// It says what a guest wants.
    Report,
}

impl Message {
    /// By its key: IGMP, which may be either, MLD or PIM.
    pub fn of(key: &FlowKey) -> Option<Self> {
        Family::of(MacAddr(key.eth_dst)).filter(|_| key.ip_frag == 0 && key.anomalies == 0)?;
        match (key.eth_type, key.ip_proto, key.l4_src) {
            (0x0800, IGMP, _) => Some(Self::Report),
            (0x0800 | 0x86dd, PIM, _) => Some(Self::Router),
            (0x86dd, ICMPV6, 130) => Some(Self::Router),
            (0x86dd, ICMPV6, 131 | 132 | 143) => Some(Self::Report),
            _ => None,
        }
    }
}

/// What a message says of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Joined(MacAddr),
    Left(MacAddr),
    /// More than can be read.
    Everything,
    Router(Family),
}

/// Groups by VLAN, and until when each port wants them.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<(u16, MacAddr), BTreeMap<PortId, u64>>,
    /// Behind which there are routers.
    routers: BTreeMap<(u16, Family, PortId), u64>,
    /// Ports that get all groups, since more than can be remembered was said there.
    everything: BTreeMap<PortId, u64>,
    counts: BTreeMap<PortId, usize>,
}

/// What has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Groups that go to other ports now.
    pub groups: Vec<(u16, MacAddr)>,
    /// All may.
    pub all: bool,
}

/// A group and its ports, or routers, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its VLAN; 0: none.
    pub vlan: u16,
    /// Its Ethernet address; `None`: routers, which get all groups.
    pub group: Option<MacAddr>,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// Ports, and for how many ms each stays.
    pub ports: Vec<(PortId, u64)>,
}

impl Groups {
    /// A message has come in a VLAN from a port, which may be a router's or not.
    pub fn hear(
        &mut self,
        (vlan, port, may_ask): (u16, PortId, bool),
        key: &FlowKey,
        view: &View<'_>,
        now_ms: u64,
    ) -> Changed {
        let mut changed = Changed::default();
        for said in read(key, view) {
            match said {
                Said::Router(_) if !may_ask => {}
                Said::Router(family) => {
                    let until = now_ms.saturating_add(ROUTER_MS);
                    changed.all |= self.routers.insert((vlan, family, port), until).is_none();
                }
                Said::Everything => {
                    changed.all |= self.everything.insert(port, now_ms.saturating_add(MEMBERSHIP_MS)).is_none();
                }
                Said::Joined(group) => self.join(vlan, group, port, now_ms, &mut changed),
                Said::Left(group) => {
                    if let Some(until) = self.members.get_mut(&(vlan, group)).and_then(|ports| ports.get_mut(&port)) {
                        *until = (*until).min(now_ms.saturating_add(LEFT_MS));
                    }
                }
            }
        }
        changed
    }

    fn join(&mut self, vlan: u16, group: MacAddr, port: PortId, now_ms: u64, changed: &mut Changed) {
        if is_for_all(group) {
            return;
        }
        let until = now_ms.saturating_add(MEMBERSHIP_MS);
        if let Some(known) = self.members.get_mut(&(vlan, group)).and_then(|ports| ports.get_mut(&port)) {
            *known = until;
            return;
        }
        let (of_port, all) = (self.counts.get(&port).copied().unwrap_or(0), self.counts.values().sum::<usize>());
        if of_port >= GROUPS_PER_PORT_MAX || all >= GROUPS_MAX {
            changed.all |= self.everything.insert(port, until).is_none();
            return;
        }
        self.members.entry((vlan, group)).or_default().insert(port, until);
        *self.counts.entry(port).or_default() += 1;
        changed.groups.push((vlan, group));
    }

    /// Whether a port wants the group of a packet. `report`: it says who wants it, which only routers are told (RFC 4541 §2.1.1).
    pub fn wants(&self, vlan: u16, family: Family, group: MacAddr, port: PortId, report: bool) -> bool {
        let all = (vlan, family, PortId(0))..=(vlan, family, PortId(u32::MAX));
        // Where nobody asks, nobody reports what it wants.
        if self.routers.range(all).next().is_none() || self.routers.contains_key(&(vlan, family, port)) {
            return true;
        }
        let is_member = || self.members.get(&(vlan, group)).is_some_and(|ports| ports.contains_key(&port));
        !report && (is_for_all(group) || self.everything.contains_key(&port) || is_member())
    }

    /// Whether there is a router behind the port.
    pub fn is_router(&self, vlan: u16, family: Family, port: PortId) -> bool {
        self.routers.contains_key(&(vlan, family, port))
    }

    /// Forgets what has not been said for long.
    pub fn expire(&mut self, now_ms: u64) -> Changed {
        self.forget(|_, until| until <= now_ms)
    }

    /// Forgets a port.
    pub fn port_gone(&mut self, port: PortId) -> Changed {
        self.forget(|of, _| of == port)
    }

    fn forget(&mut self, goes: impl Fn(PortId, u64) -> bool) -> Changed {
        let mut changed = Changed::default();
        let before = self.routers.len() + self.everything.len();
        self.routers.retain(|(.., port), until| !goes(*port, *until));
        self.everything.retain(|port, until| !goes(*port, *until));
        changed.all = self.routers.len() + self.everything.len() < before;
        let counts = &mut self.counts;
        self.members.retain(|group, ports| {
            let before = ports.len();
            ports.retain(|port, until| {
                let gone = goes(*port, *until);
                if gone && let Some(n) = counts.get_mut(port) {
                    *n = n.saturating_sub(1);
                }
                !gone
            });
            if ports.len() < before {
                changed.groups.push(*group);
            }
            !ports.is_empty()
        });
        counts.retain(|_, n| *n > 0);
        changed
    }

    /// Nothing is known.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.routers.is_empty() && self.everything.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Routers by VLAN and family, then groups.
    pub fn views(&self, now_ms: u64) -> Vec<GroupView> {
        let name = |family| if family == Family::V4 { "IPv4" } else { "IPv6" };
        let mut routers: BTreeMap<(u16, Family), Vec<(PortId, u64)>> = BTreeMap::new();
        for ((vlan, family, port), until) in &self.routers {
            routers.entry((*vlan, *family)).or_default().push((*port, until.saturating_sub(now_ms)));
        }
        let routers = routers.into_iter().map(|((vlan, family), ports)| GroupView {
            vlan,
            group: None,
            family: name(family),
            ports,
        });
        let groups = self.members.iter().map(|((vlan, group), ports)| GroupView {
            vlan: *vlan,
            group: Some(*group),
            family: name(Family::of(*group).unwrap_or(Family::V4)),
            ports: ports.iter().map(|(port, until)| (*port, until.saturating_sub(now_ms))).collect(),
        });
        routers.chain(groups).collect()
    }
}

fn v4_group(address: &[u8]) -> Option<MacAddr> {
    match address {
        [224..=239, b, c, d] => Some(MacAddr([0x01, 0x00, 0x5e, b & 0x7f, *c, *d])),
        _ => None,
    }
}

fn v6_group(address: &[u8]) -> Option<MacAddr> {
    match address {
        [0xff, .., a, b, c, d] => Some(MacAddr([0x33, 0x33, *a, *b, *c, *d])),
        _ => None,
    }
}

/// What a message says.
fn read(key: &FlowKey, view: &View<'_>) -> Vec<Said> {
    let (bytes, one) = (view.transport, |said: Option<Said>| said.into_iter().collect());
    let v4 = |bytes: &[u8]| bytes.get(4..8).and_then(v4_group);
    let v6 = |bytes: &[u8]| bytes.get(8..24).and_then(v6_group);
    match (key.ip_proto, bytes.first()) {
        // From 0.0.0.0 a switch asks that is no router (RFC 4541 §2.1.1).
        (IGMP, Some(0x11)) => one((key.ip_src != [0; 16]).then_some(Said::Router(Family::V4))),
        (IGMP, Some(0x12 | 0x16)) => one(v4(bytes).map(Said::Joined)),
        (IGMP, Some(0x17)) => one(v4(bytes).map(Said::Left)),
        (IGMP, Some(0x22)) => records(view, 4, v4_group),
        (ICMPV6, Some(130)) => one((key.ip_src != [0; 16]).then_some(Said::Router(Family::V6))),
        (ICMPV6, Some(131)) => one(v6(bytes).map(Said::Joined)),
        (ICMPV6, Some(132)) => one(v6(bytes).map(Said::Left)),
        (ICMPV6, Some(143)) => records(view, 16, v6_group),
        // A hello (RFC 7761 §4.9), or its forerunner.
        (PIM, Some(0x20)) => one(Family::of(MacAddr(key.eth_dst)).map(Said::Router)),
        _ => Vec::new(),
    }
}

/// Records of IGMPv3 (RFC 3376 §4.2) or MLDv2 (RFC 3810 §5.2), whose addresses have so many bytes.
fn records(view: &View<'_>, length: usize, group: impl Fn(&[u8]) -> Option<MacAddr>) -> Vec<Said> {
    let word = |at: usize| view.transport.get(at..)?.first_chunk().map(|b| usize::from(u16::from_be_bytes(*b)));
    let (mut said, mut at) = (Vec::new(), 8);
    for _ in 0..word(6).unwrap_or(0) {
        let record = view.transport.get(at..at + 4 + length);
        let (Some([kind, aux, _, _, address @ ..]), Some(sources)) = (record, word(at + 2)) else {
            // The rest is cut off, or lies behind what control is shown of a packet.
            said.push(Said::Everything);
            break;
        };
        let wants_none = sources == 0;
        said.extend(group(address).and_then(|group| match kind {
            1 | 3 if wants_none => Some(Said::Left(group)),
            1..=5 => Some(Said::Joined(group)),
            // It wants fewer senders.
            _ => None,
        }));
        at += 4 + length + sources * length + usize::from(*aux) * 4;
    }
    said
}
