//! A packet's way through Open vSwitch's flows: which it meets, what becomes of it, and whether one flow of the switch would do the same.

pub(crate) mod front;
mod track;

use crate::meters::Meters;
use crate::samples::Sampler;
use crate::shaping::Shaping;
use crate::table::{FlowId, Table};
use crate::tunnels::{Exit, Tunnels};
use crate::unified::Number;
use lasthop_conntrack::Tuple;
use lasthop_flow::Action;
use lasthop_frame::{Depth, Edit, FlowKey, FlowMask, Header, Offload, ethertype, extract};
use lasthop_ovs_abi::nsh::Nsh;
use lasthop_ovs_abi::{Act, Key, MAX_LABELS, Meta};
use lasthop_tunnel::{TPID, Tunnel, tci_of};
use lasthop_types::{DropReason, PortId};
use std::rc::Rc;
pub(crate) use track::{Tracking, is_kept};
use zerocopy::IntoBytes;

/// Protocol of IPv6 fragments but the first of a packet, as Open vSwitch has them.
const FRAGMENT: u8 = 44;
/// How often a packet is looked up again.
const MAX_LOOKUPS: usize = 16;
/// How many things become of a packet.
const MAX_EFFECTS: usize = 4096;

/// Something that becomes of a packet. Bytes are the frame's first, up to where its payload is as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It goes to this port, cut to so many bytes if it is longer; `tunnel`: with this outer header, if that is a tunnel's.
    Output { port: u32, start: Vec<u8>, rest: Rest, longest: usize, tunnel: Option<Box<Tunnel>> },
    /// It met no flow.
    Miss { key: Key, start: Vec<u8>, rest: Rest },
    /// A flow sends it to Open vSwitch; `acts_of`: its actions are sent along; `egress`: and the outer header that it leaves with.
    Upcall {
        key: Key,
        start: Vec<u8>,
        rest: Rest,
        pid: u32,
        userdata: Option<Vec<u8>>,
        acts_of: Option<FlowId>,
        egress: Option<Box<Tunnel>>,
    },
}

impl Effect {
    /// Bytes of what is made of it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Output { start, rest, longest, .. } => (start.len() + rest.bytes.len()).min(*longest),
            Self::Miss { start, rest, .. } => start.len() + rest.bytes.len(),
            Self::Upcall { start, rest, userdata, .. } => {
                start.len() + rest.bytes.len() + userdata.as_ref().map_or(0, Vec::len)
            }
        }
    }
}

/// What is behind a frame's first bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    pub bytes: Rc<[u8]>,
    /// It was put together of fragments, none of which was longer than this.
    pub fragments: Option<u16>,
}

/// A flow that a packet has met, and what it was then: fragments are a whole packet later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub flow: FlowId,
    pub bytes: u64,
    pub tcp_flags: u8,
}

/// A packet on its way.
#[derive(Debug)]
pub(crate) struct Walk<'a, F> {
    table: &'a Table,
    /// The switch's port of one of Open vSwitch's.
    port_of: F,
    header: Header,
    payload_len: usize,
    pub(crate) key: Key,
    /// What is behind the header, if it has come whole.
    pub rest: Rest,
    /// As it was when it was last looked up.
    looked_up: Key,
    longest: usize,
    /// What a flow has set for the way through a tunnel.
    outer: Option<Box<Tunnel>>,
    /// Bits of the packet as it came that have decided.
    mask: FlowMask,
    tags_moved: bool,
    lookups: usize,
    /// For [`Act::Sample`].
    random: &'a mut u64,
    pub(crate) current: Option<FlowId>,
    /// Ports of tunnels, if there are any.
    pub tunnels: Option<&'a Tunnels>,
    /// Meters, if there are any.
    pub meters: Option<&'a Meters>,
    /// They are noted, and not asked: the packet may have to come this way once more.
    pub spares_meters: bool,
    /// Classes of what goes to ports, if there are any.
    pub shaping: Option<&'a Shaping>,
    /// It has met the meter of a class.
    is_queued: bool,
    /// It goes the long way now, and will not when the number of its outer header is known.
    pub awaits_number: bool,
    /// What is to be told of packets that the switch draws, and the number of the first.
    pub samplers: Vec<Sampler>,
    pub first_sampler: u32,
    /// What the switch would do.
    pub actions: Vec<Action>,
    /// What becomes of it.
    pub effects: Vec<Effect>,
    /// The flows it has met, one for each lookup.
    pub met: Vec<Met>,
    /// [`Walk::actions`] are all that becomes of it.
    pub is_simple: bool,
    /// It met no flow, at first or later.
    pub missed: bool,
    /// All of it is to come here, and no flow follows: it moves a connection on, or may.
    pub comes_whole: bool,
    /// It moves a connection on, and its header is enough to do so: it may go on from where it waits, and no flow follows.
    pub moves: bool,
    /// What tells that a flow of the switch's does not hold any more: the connection with such a tuple changes, begins or ends.
    pub tuples: Vec<Tuple>,
    /// Numbers that it goes out with.
    pub exits: Vec<Number>,
    /// Connections that packets pass unseen of, if they follow a flow of the switch's.
    pub kept: Vec<Tuple>,
    /// Tuples of connections that this packet has changed.
    pub changed: Vec<Tuple>,
    tracking: Tracking<'a>,
}

impl<'a, F: Fn(u32) -> Option<PortId>> Walk<'a, F> {
    /// Of a frame that begins with `start`, [`SNAPSHOT_LEN`](lasthop_frame::SNAPSHOT_LEN) bytes or all that it has.
    pub fn new(
        (table, tracking): (&'a Table, Tracking<'a>),
        port_of: F,
        random: &'a mut u64,
        metadata: Key,
        (start, frame_len): (&[u8], usize),
    ) -> Self {
        let mut header = Header::default();
        let room = header.restart(start.len());
        let len = room.len();
        room.copy_from_slice(start.get(..len).unwrap_or_default());
        let mut walk = Self {
            table,
            port_of,
            header,
            payload_len: frame_len.saturating_sub(len),
            rest: Rest::default(),
            key: metadata,
            looked_up: metadata,
            longest: usize::MAX,
            outer: None,
            tunnels: None,
            meters: None,
            spares_meters: false,
            shaping: None,
            is_queued: false,
            awaits_number: false,
            samplers: Vec::new(),
            first_sampler: 0,
            mask: FlowMask::default(),
            tags_moved: false,
            lookups: 0,
            random,
            current: None,
            actions: Vec::new(),
            effects: Vec::new(),
            met: Vec::new(),
            is_simple: true,
            missed: false,
            comes_whole: false,
            moves: false,
            tuples: Vec::new(),
            exits: Vec::new(),
            kept: Vec::new(),
            changed: Vec::new(),
            tracking,
        };
        walk.extract();
        walk.looked_up = walk.key;
        walk
    }

    /// The mask of the one flow.
    pub fn mask(&self) -> FlowMask {
        let mut mask = self.mask;
        mask.0.in_port = u32::MAX;
        if mask.depth() > Depth::L2 {
            mask.0.anomalies = u16::MAX;
        }
        mask
    }

    fn len(&self) -> usize {
        self.header.len() + self.payload_len
    }

    fn extract(&mut self) {
        let (bytes, key) = (self.header.bytes(), &mut self.key.packet);
        extract(key, bytes, bytes.len() + self.payload_len, Depth::Full);
        key.anomalies = 0;
        // The switch tells what the first fragment holds.
        if key.eth_type == ethertype::IPV6 && key.ip_frag & FlowKey::FRAG_LATER != 0 {
            key.ip_proto = FRAGMENT;
        }
        self.extract_front();
    }

    /// Takes the number in front of it out, which is no part of it: what comes first with a packet of a tunnel.
    pub fn take_number_out(&mut self) {
        self.run(&[Act::PopVlan]);
        self.looked_up = self.key;
    }

    /// Looks it up, and does what the flow says.
    pub fn look_up(&mut self) {
        self.lookups += 1;
        if self.lookups > MAX_LOOKUPS {
            return self.is_simple = false;
        }
        self.looked_up = self.key;
        let Some((id, flow)) = self.table.lookup(&self.key).and_then(|id| Some((id, self.table.get(id)?))) else {
            (self.is_simple, self.missed) = (false, true);
            let (key, start, rest) = (self.key, self.header.bytes().to_vec(), self.rest.clone());
            return self.effects.push(Effect::Miss { key, start, rest });
        };
        self.met.push(Met { flow: id, bytes: self.len() as u64, tcp_flags: self.key.packet.tcp_flags as u8 });
        self.current = Some(id);
        self.matters(&flow.mask.packet);
        // The switch tells no labels apart, and no network service headers.
        self.is_simple &= flow.mask.mpls == [0; MAX_LABELS] && flow.mask.nsh == Nsh::default();
        let acts = flow.acts.clone();
        self.run(&acts);
    }

    /// These bits of the packet have decided: as it is now, which may be other bits of it as it came.
    fn matters(&mut self, bits: &FlowKey) {
        let mut own = FlowKey { recirculation: 0, ct_zone: 0, ct_state: 0, ct_mark: 0, ..*bits };
        if own.ip_proto != 0 {
            // Whether it is a later fragment is part of what protocol it is told to have.
            own.ip_frag = FlowKey::FRAG_ANY | FlowKey::FRAG_LATER;
        }
        let all = self.mask.0.as_mut_bytes().iter_mut();
        all.zip(own.as_bytes()).for_each(|(to, from)| *to |= from);
        if self.tags_moved {
            let tags = &mut self.mask.0;
            (tags.vlan_tci, tags.vlan_tpid) = (u16::MAX, u16::MAX);
            (tags.inner_vlan_tci, tags.inner_vlan_tpid) = (u16::MAX, u16::MAX);
        }
    }

    /// Does what a list says. False: the packet is dropped, and what is behind is not done.
    pub fn run(&mut self, acts: &[Act]) -> bool {
        for (n, act) in acts.iter().enumerate() {
            let is_last = n + 1 == acts.len();
            if self.effects.len() >= MAX_EFFECTS {
                self.is_simple = false;
                return false;
            }
            match act {
                Act::Output(port) => self.output(*port),
                Act::Userspace { pid, userdata, actions, egress } => {
                    self.send_up(*pid, userdata.clone(), *actions, *egress);
                }
                Act::Set(sets) if !sets.iter().all(|set| self.edit(Edit::Set(*set))) => return false,
                Act::Ct(ct) if !self.track(ct) => return false,
                Act::Meter(id) if !self.meter((*id).into()) => return false,
                Act::Front(front) if !self.front(front) => return false,
                Act::Set(_) | Act::Ct(_) | Act::Meter(_) | Act::Front(_) => {}
                Act::SetTunnel(tunnel) => self.outer = Some(tunnel.clone()),
                Act::SetMeta { meta, value, mask } => self.set_meta(*meta, *value, *mask),
                Act::PushVlan { tpid, tci } => {
                    self.tags_moved = true;
                    if !self.edit(Edit::PushVlan { tpid: *tpid, tci: *tci }) {
                        return false;
                    }
                }
                Act::PopVlan => {
                    self.tags_moved = true;
                    // Behind a third tag lies what the original key does not tell, and no mask of it can name.
                    self.is_simple &= !matches!(self.key.packet.eth_type, 0x8100 | 0x88a8);
                    if !self.edit(Edit::PopVlan) {
                        return false;
                    }
                }
                Act::Recirculate(id) => {
                    let again = |walk: &mut Self| {
                        walk.key.packet.recirculation = *id;
                        walk.look_up();
                    };
                    if is_last { again(self) } else { self.with_copy(again) }
                }
                Act::Hash(basis) => self.hash(*basis),
                Act::CtClear => self.key.clear_connection(),
                Act::Truncate(len) => self.longest = *len as usize,
                Act::Sample(probability, acts) => self.sample(*probability, acts),
                Act::Clone(acts) => self.with_copy(|walk| {
                    let _ = walk.run(acts);
                }),
                Act::CheckLength(len, longer, other) => {
                    self.is_simple = false;
                    let acts = if self.checked_length() > usize::from(*len) { longer } else { other };
                    if is_last {
                        return self.run(acts);
                    }
                    self.with_copy(|walk| {
                        let _ = walk.run(acts);
                    });
                }
            }
        }
        true
    }

    /// What its length is compared with: of one that was put together of fragments, the longest of these, as it goes out.
    fn checked_length(&self) -> usize {
        self.rest
            .fragments
            .map_or(self.len(), |longest| front::in_front_of_ip(self.header.bytes()) + usize::from(longest))
    }

    /// The outer header that it leaves with by this port.
    pub(crate) fn egress(&self, port: Option<u32>) -> Option<Box<Tunnel>> {
        let is_tunnel = |port: &u32| self.tunnels.is_some_and(|tunnels| tunnels.get(*port).is_some());
        port.filter(is_tunnel).and_then(|_| self.outer.clone())
    }

    fn send_up(&mut self, pid: u32, userdata: Option<Vec<u8>>, actions: bool, egress: Option<u32>) {
        self.is_simple = false;
        let (acts_of, egress) = (self.current.filter(|_| actions), self.egress(egress));
        let (key, start, rest) = (self.looked_up, self.header.bytes().to_vec(), self.rest.clone());
        self.effects.push(Effect::Upcall { key, start, rest, pid, userdata, acts_of, egress });
    }

    fn set_meta(&mut self, meta: Meta, value: u32, mask: u32) {
        let field = match meta {
            Meta::Priority => &mut self.key.priority,
            Meta::Mark => &mut self.key.mark,
        };
        *field = *field & !mask | value & mask;
    }

    /// False: the packet goes no further. One that is only looked at passes: the switch is to judge those that follow its flow.
    fn meter(&mut self, id: u64) -> bool {
        let Tracking { now_ms, only_looks, .. } = self.tracking;
        let Some((meters, slot)) = self.meters.and_then(|meters| Some((meters, meters.slot(id)?))) else { return true };
        self.actions.push(Action::Meter(slot));
        only_looks || self.spares_meters || meters.admit(id, self.len(), now_ms)
    }

    /// What the switch meters, draws or sends with a number, it does for flows only.
    pub fn needs_flow(&self) -> bool {
        let is_meter = |action: &Action| matches!(action, Action::Meter(_));
        !self.exits.is_empty() || !self.samplers.is_empty() || self.actions.iter().any(is_meter)
    }

    fn output(&mut self, port: u32) {
        let (start, longest) = (self.header.bytes().to_vec(), std::mem::replace(&mut self.longest, usize::MAX));
        if self.key.bare != 0 {
            // There is no port for packets without an Ethernet header.
            return;
        }
        // What the meter drops in the switch goes nowhere else, either.
        self.is_simple &= !self.is_queued;
        if let Some(class) = self.shaping.and_then(|shaping| shaping.meter(port, self.key.priority)) {
            self.is_queued = true;
            if !self.meter(class) {
                return;
            }
        }
        let exit = self.tunnels.and_then(|tunnels| tunnels.exit(port, self.outer.as_deref()));
        let tunnel = self.outer.clone().filter(|_| exit.is_some());
        self.effects.push(Effect::Output { port, start, rest: self.rest.clone(), longest, tunnel });
        // The switch sends nothing back to where it came from.
        self.is_simple &= port != self.key.packet.in_port;
        let cut = u16::try_from(longest).ok();
        self.is_simple &= cut.is_none() || exit.is_none();
        let output =
            (self.port_of)(port).map(|port| cut.map_or(Action::Output(port), |to| Action::Truncated(port, to)));
        match exit {
            None => self.actions.extend(output),
            Some(Exit::Number(number)) => {
                self.mask.0.anomalies = u16::MAX;
                self.exits.push(Number::Out(port, number));
                let tag = Edit::PushVlan { tpid: TPID, tci: tci_of(number) };
                self.actions.push(Action::Edit(tag));
                self.actions.extend(output);
                self.actions.push(Action::Edit(Edit::PopVlan));
            }
            Some(Exit::Unnumbered) => (self.is_simple, self.awaits_number) = (false, true),
            Some(Exit::Nowhere) => {}
        }
    }

    fn edit(&mut self, edit: Edit) -> bool {
        // Whether it can be done depends on what is wrong with the packet: no other is to follow its flow.
        self.mask.0.anomalies = u16::MAX;
        self.actions.push(Action::Edit(edit));
        let done = edit.apply(&mut self.header, &mut Offload::default(), self.payload_len).is_ok();
        if done {
            self.extract();
        } else {
            self.actions.push(Action::Drop(DropReason::BadAction));
        }
        done
    }

    /// What is done to the packet does not stay.
    pub(crate) fn with_copy(&mut self, what: impl FnOnce(&mut Self)) {
        self.is_simple = false;
        let kept = (self.header.clone(), self.key, self.looked_up, self.longest, self.current, self.outer.clone());
        let rest = (self.payload_len, self.rest.clone());
        what(self);
        (self.header, self.key, self.looked_up, self.longest, self.current, self.outer) = kept;
        (self.payload_len, self.rest) = rest;
    }

    /// The hash of addresses and ports: whichever it is, a connection's packets have the same.
    fn hash(&mut self, basis: u32) {
        let key = self.key.packet;
        let fields = FlowKey {
            ip_src: [0xff; 16],
            ip_dst: [0xff; 16],
            ip_proto: 0xff,
            l4_src: u16::MAX,
            l4_dst: u16::MAX,
            eth_type: u16::MAX,
            ..FlowKey::default()
        };
        self.matters(&fields);
        let bytes = key.masked(&FlowMask(fields));
        let hash = bytes.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(basis), |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        // 0 says that there is none.
        self.key.dp_hash = ((hash >> 32) as u32 ^ hash as u32).max(1);
    }

    pub(crate) fn next_random(&mut self) -> u32 {
        // xorshift64 (Marsaglia 2003).
        *self.random ^= *self.random << 13;
        *self.random ^= *self.random >> 7;
        *self.random ^= *self.random << 17;
        (*self.random >> 32) as u32
    }
}
