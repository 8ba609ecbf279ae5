//! The flows we asked for, indexed by what may make them wrong, so that a change touches only the flows it concerns.

use crate::DeniedBy;
use crate::learning::dropped;
use crate::vlan_mac::VlanMac;
use hashbrown::HashTable;
use lasthop_conntrack::Tuple;
use lasthop_flow::{Action, FlowSpec, hash_key};
use lasthop_frame::{Depth, FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::{DropReason, PortId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Default limit of flows whose packets come from one port. One that talks to one neighbour under an access list may
/// need a flow for each connection; when the table is full, the port with most flows makes room.
pub const FLOWS_PER_PORT_MAX: usize = 131_072;
/// Default limit of all flows; a little below what the switch holds.
pub const FLOWS_MAX: usize = 196_608;
/// Default limit of different masks of flows. The switch takes 128, and tries them one after the other for a packet that
/// its caches do not know. Beyond, a flow gets the narrowest mask in use that is enough, and at last one that looks at
/// everything a rule can name.
pub const MASKS_MAX: usize = 40;

/// Bits of a TCI that are the VLAN id: 0 both for no tag and for a priority tag, so presence need not be looked at.
pub(crate) const VID: u16 = 0x0fff;

/// What learning looks at: one station's packets to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub port: PortId,
    pub vlan: u16,
    pub src: MacAddr,
    pub dst: MacAddr,
}

impl Pair {
    /// Of a packet that belongs to this VLAN, or of a flow whose mask has [`PAIR_MASK`].
    pub fn of(key: &FlowKey, vlan: u16) -> Self {
        Self { port: key.port(), vlan, src: MacAddr(key.eth_src), dst: MacAddr(key.eth_dst) }
    }
}

/// A flow that only drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Refusal {
    GroupSource(PortId),
    ZeroSource(PortId),
    /// Of one port, or of all.
    LinkLocal(Option<PortId>),
}

impl Refusal {
    pub(crate) fn reason(self) -> DropReason {
        match self {
            Self::GroupSource(_) | Self::ZeroSource(_) => DropReason::BadSource,
            Self::LinkLocal(_) => DropReason::LinkLocal,
        }
    }

    /// The port whose packets it refuses, if not those of all.
    pub(crate) fn port(self) -> Option<PortId> {
        match self {
            Self::GroupSource(port) | Self::ZeroSource(port) => Some(port),
            Self::LinkLocal(port) => port,
        }
    }
}

const ONES: [u8; 6] = [0xff; 6];
const GROUP_BIT: [u8; 6] = [1, 0, 0, 0, 0, 0];
const LINK_LOCAL: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];
const LINK_LOCAL_MASK: [u8; 6] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xf0];
pub(crate) const NONE: FlowKey = FlowKey {
    in_port: 0,
    recirculation: 0,
    eth_dst: [0; 6],
    eth_src: [0; 6],
    eth_type: 0,
    vlan_tci: 0,
    vlan_tpid: 0,
    inner_vlan_tpid: 0,
    inner_vlan_tci: 0,
    anomalies: 0,
    ip_src: [0; 16],
    ip_dst: [0; 16],
    ip_proto: 0,
    ip_tos: 0,
    ip_ttl: 0,
    ip_frag: 0,
    l4_src: 0,
    l4_dst: 0,
    tcp_flags: 0,
    reserved: 0,
    ipv6_label: 0,
    arp_sha: [0; 6],
    arp_tha: [0; 6],
    ct_zone: 0,
    ct_state: 0,
    nd_target: [0; 16],
    ct_mark: 0,
    tunnel_flags: 0,
    tunnel_tos: 0,
    tunnel_ttl: 0,
    tunnel_id: 0,
    tunnel_src: [0; 16],
    tunnel_dst: [0; 16],
};
/// Flows of the port, whatever else.
pub(crate) const PORT_MASK: FlowMask = FlowMask(FlowKey { in_port: u32::MAX, ..NONE });
/// What learning needs to know.
pub(crate) const PAIR_MASK: FlowMask =
    FlowMask(FlowKey { in_port: u32::MAX, eth_dst: ONES, eth_src: ONES, vlan_tci: VID, ..NONE });
/// And everything that an access list or a port's settings may look at.
pub(crate) const EXACT_MASK: FlowMask = FlowMask(FlowKey {
    eth_type: u16::MAX,
    vlan_tci: u16::MAX,
    inner_vlan_tci: VID,
    anomalies: u16::MAX,
    ip_src: [0xff; 16],
    ip_dst: [0xff; 16],
    ip_proto: u8::MAX,
    ip_frag: u8::MAX,
    l4_src: u16::MAX,
    l4_dst: u16::MAX,
    arp_sha: ONES,
    arp_tha: ONES,
    nd_target: [0xff; 16],
    ..PAIR_MASK.0
});
/// What names a connection's packets in one direction, in a VLAN: no fragment, nothing malformed.
pub(crate) const TUPLE_MASK: FlowMask = FlowMask(FlowKey {
    eth_type: u16::MAX,
    anomalies: u16::MAX,
    ip_src: [0xff; 16],
    ip_dst: [0xff; 16],
    ip_proto: u8::MAX,
    ip_frag: u8::MAX,
    l4_src: u16::MAX,
    l4_dst: u16::MAX,
    ..NONE
});
const GROUP_SOURCE_MASK: FlowMask = FlowMask(FlowKey { in_port: u32::MAX, eth_src: GROUP_BIT, ..NONE });
const ZERO_SOURCE_MASK: FlowMask = FlowMask(FlowKey { in_port: u32::MAX, eth_src: ONES, ..NONE });
const LINK_LOCAL_DST_MASK: FlowMask = FlowMask(FlowKey { eth_dst: LINK_LOCAL_MASK, ..NONE });
const LINK_LOCAL_AT_PORT_MASK: FlowMask = FlowMask(FlowKey { in_port: u32::MAX, eth_dst: LINK_LOCAL_MASK, ..NONE });

/// Every bit of `part` is in `whole`.
pub(crate) fn has(whole: &FlowMask, part: &FlowMask) -> bool {
    part.0.words().iter().zip(whole.0.words()).all(|(p, w)| p & !w == 0)
}

fn hash(key: &FlowKey) -> u64 {
    hash_key(key, Depth::Full)
}

/// Adds the bits of `part`.
pub(crate) fn add(whole: &mut FlowMask, part: &FlowMask) {
    let words: [u64; 20] = std::array::from_fn(|i| whole.0.words()[i] | part.0.words()[i]);
    whole.0 = zerocopy::transmute!(words);
}

fn bits(mask: &FlowMask) -> u32 {
    mask.0.words().iter().map(|w| w.count_ones()).sum()
}

impl Refusal {
    pub fn key_mask(self) -> (FlowKey, FlowMask) {
        match self {
            Self::GroupSource(port) => (FlowKey { in_port: port.0, eth_src: GROUP_BIT, ..NONE }, GROUP_SOURCE_MASK),
            Self::ZeroSource(port) => (FlowKey { in_port: port.0, ..NONE }, ZERO_SOURCE_MASK),
            Self::LinkLocal(None) => (FlowKey { eth_dst: LINK_LOCAL, ..NONE }, LINK_LOCAL_DST_MASK),
            Self::LinkLocal(Some(port)) => {
                (FlowKey { in_port: port.0, eth_dst: LINK_LOCAL, ..NONE }, LINK_LOCAL_AT_PORT_MASK)
            }
        }
    }

    /// The refusal that this flow is, if it is one.
    pub fn of(spec: &FlowSpec) -> Option<Self> {
        let refusal = match spec.mask {
            GROUP_SOURCE_MASK => Self::GroupSource(spec.key.port()),
            ZERO_SOURCE_MASK => Self::ZeroSource(spec.key.port()),
            LINK_LOCAL_DST_MASK => Self::LinkLocal(None),
            LINK_LOCAL_AT_PORT_MASK => Self::LinkLocal(Some(spec.key.port())),
            _ => return None,
        };
        (refusal.key_mask().0 == spec.key).then_some(refusal)
    }
}

/// Where learning sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// To every other port that is up.
    Flood,
    /// To every other port that is up, and to this one, which is not: the station was there, and may be again before we are told.
    Sought(PortId),
    /// To one port.
    To(PortId),
    /// Back, which drops it: the destination lives where the packet comes from.
    Hairpin,
}

impl Verdict {
    /// It goes wherever nobody is known to be elsewhere.
    pub fn floods(self) -> bool {
        matches!(self, Self::Flood | Self::Sought(_))
    }
}

/// Names a flow of the index, for as long as it is there.
pub(crate) type Id = u32;

/// Why flows may be wrong, or of no more use: what [`crate::learning`] puts right flow by flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The set of ports that floods reach changed.
    Floods,
    /// A port is an uplink no more, or isolated no more.
    Uplinks,
    /// This station was learned, moved or was forgotten.
    To(u16, MacAddr),
    /// This group goes to other ports now.
    Group(u16, MacAddr),
    /// This station has left the port that the flows come from.
    From(u16, MacAddr),
    /// Their sources get a new chance to be learned.
    Unlearned,
    /// No packet has met them for long.
    Unused,
    /// The switch has evicted them, if it did not tell of them when it was asked last.
    Unseen,
    /// The port that they come from was removed, and the switch has removed them with it.
    Gone,
    /// The connection with this number has ended, or is about to.
    Ended(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Installed {
    /// Masked.
    pub key: FlowKey,
    pub mask: FlowMask,
    pub actions: Box<[Action]>,
    /// Where learning sends its packets; `None` when they are dropped before that, whatever their addresses.
    pub verdict: Option<Verdict>,
    /// The VLAN that they belong to, if learning has a say.
    pub vlan: u16,
    /// Its source lives elsewhere or nowhere as far as we know.
    pub unlearned: bool,
    pub used_ms: u64,
    /// When we last sent it, and after how many requests for statistics.
    pub put_ms: u64,
    pub put_after: u64,
    /// The last request for statistics in whose answer it was.
    pub seen: u64,
    /// Packets that the switch had counted then.
    pub counted: u64,
    /// Whose rule it is that drops its packets, if one does.
    pub rule: Option<Box<DeniedBy>>,
    /// Number of the connection whose packets these are; 0: of none.
    pub connection: u64,
    /// It drops packets between these two, and goes when one of them opens a connection to the other.
    pub hides: Option<Tuple>,
    /// Where its packets go, instead of to their destination: to who opened their connection, whose address is translated.
    pub home: Option<MacAddr>,
}

/// A flow that only drops, as we know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstalledRefusal {
    pub used_ms: u64,
    /// As [`Installed::put_after`] and [`Installed::seen`].
    pub put_after: u64,
    pub seen: u64,
}

impl Installed {
    pub fn port(&self) -> PortId {
        self.key.port()
    }

    /// Why it drops its packets, if it does.
    pub fn drops(&self) -> Option<DropReason> {
        dropped(&self.actions)
    }

    /// What learning knows it by, if learning has a say.
    pub fn pair(&self) -> Option<Pair> {
        self.verdict
            .map(|_| Pair { dst: self.home.unwrap_or(MacAddr(self.key.eth_dst)), ..Pair::of(&self.key, self.vlan) })
    }
}

#[derive(Debug, Default)]
pub(crate) struct FlowIndex {
    slots: Vec<Option<Installed>>,
    free: Vec<Id>,
    by_match: HashTable<Id>,
    by_source: BTreeSet<(PortId, VlanMac, Id)>,
    by_dst: BTreeSet<(VlanMac, PortId, Id)>,
    by_port: BTreeSet<(PortId, Id)>,
    floods: BTreeSet<(PortId, Id)>,
    unlearned: BTreeSet<(PortId, Id)>,
    by_use: BTreeSet<(PortId, u64, Id)>,
    counts: BTreeMap<PortId, usize>,
    masks: HashTable<(FlowMask, usize)>,
    drops: usize,
    by_connection: BTreeSet<(u64, PortId, Id)>,
    hiding: HashMap<Tuple, Vec<Id>>,
    /// Where somebody keeps a copy of all: whether all have gone, and those that have come, changed or gone since.
    pub changed: Option<(bool, Vec<Id>)>,
    pub refusals: BTreeMap<Refusal, InstalledRefusal>,
}

impl FlowIndex {
    pub fn len(&self) -> usize {
        self.by_match.len()
    }

    pub fn count(&self, port: PortId) -> usize {
        self.counts.get(&port).copied().unwrap_or(0)
    }

    /// How many are of sources that live elsewhere.
    #[cfg(test)]
    pub fn unlearned(&self) -> usize {
        self.unlearned.len()
    }

    /// How many flows of packets from this port are flooded.
    pub fn floods_of(&self, port: PortId) -> usize {
        self.floods.range((port, 0)..=(port, Id::MAX)).count()
    }

    pub fn get(&self, id: Id) -> Option<&Installed> {
        self.slots.get(id as usize)?.as_ref()
    }

    /// Of so many flows from this number on those of which this holds, and where to go on unless these were the last.
    pub fn some(&self, from: Id, many: usize, holds: impl Fn(&Installed) -> bool) -> (Vec<Id>, Option<Id>) {
        let (from, until) = (from as usize, (from as usize).saturating_add(many));
        let flows = self.slots.iter().enumerate().take(until).skip(from);
        let held = flows.filter(|(_, flow)| flow.as_ref().is_some_and(&holds)).map(|(id, _)| id as Id).collect();
        (held, (until < self.slots.len()).then_some(until as Id))
    }

    /// The flow with this masked key and mask.
    pub fn find(&self, key: &FlowKey, mask: &FlowMask) -> Option<Id> {
        let same = |id: &Id| self.get(*id).is_some_and(|f| f.key == *key && f.mask == *mask);
        self.by_match.find(hash(key), same).copied()
    }

    /// A flow that packets with this key meet; those that overlap agree. A step for each mask.
    pub fn met_by(&self, key: &FlowKey) -> Option<Id> {
        self.masks.iter().find_map(|(mask, _)| self.find(&key.masked(mask), mask))
    }

    /// The flow was sent once more, after so many requests for statistics.
    pub fn sent(&mut self, id: Id, now_ms: u64, asked: u64) {
        if let Some(flow) = self.slots.get_mut(id as usize).and_then(Option::as_mut) {
            (flow.put_ms, flow.put_after) = (now_ms, asked);
        }
    }

    /// The mask that a flow gets which needs at least this one: itself while there are few, else one in use.
    pub fn settle(&self, mask: &FlowMask, limit: usize) -> FlowMask {
        if self.masks.len() < limit || self.masks.find(hash(&mask.0), |(m, _)| m == mask).is_some() {
            return *mask;
        }
        // What looks at TCP flags has an exact mask of its own.
        let flags = mask.0.tcp_flags;
        let exact = FlowMask(FlowKey { tcp_flags: flags, ..EXACT_MASK.0 });
        let enough = self.masks.iter().map(|(m, _)| m).filter(|m| has(m, mask) && has(&exact, m));
        enough.min_by_key(|m| (bits(m), m.0.words())).copied().unwrap_or(exact)
    }

    /// How many flows carry the connection with this number.
    pub fn of_connection(&self, number: u64) -> usize {
        self.by_connection.range((number, PortId(0), 0)..=(number, PortId(u32::MAX), Id::MAX)).count()
    }

    /// Flows that drop packets between these two.
    pub fn hiding(&self, pair: &Tuple) -> &[Id] {
        self.hiding.get(pair).map_or(&[], Vec::as_slice)
    }

    /// How many drop their packets.
    pub fn drops(&self) -> usize {
        self.drops
    }

    /// How many different masks there are.
    pub fn masks(&self) -> usize {
        self.masks.len()
    }

    /// Inserts or replaces.
    pub fn insert(&mut self, mut flow: Installed) -> Id {
        if let Some(old) = self.find(&flow.key, &flow.mask).and_then(|id| self.remove(id)) {
            // The switch goes on counting.
            flow.counted = old.counted;
        }
        self.drops += usize::from(flow.drops().is_some());
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // As many as flows, of which there are less than 2^32.
            (self.slots.len() - 1) as Id
        });
        if let Some(pair) = flow.pair() {
            self.by_source.insert((pair.port, VlanMac::new(pair.vlan, pair.src), id));
            self.by_dst.insert((VlanMac::new(pair.vlan, pair.dst), pair.port, id));
        }
        if flow.verdict.is_some_and(Verdict::floods) {
            self.floods.insert((flow.port(), id));
        }
        if flow.unlearned {
            self.unlearned.insert((flow.port(), id));
        }
        if flow.connection != 0 {
            self.by_connection.insert((flow.connection, flow.port(), id));
        }
        if let Some(pair) = flow.hides {
            self.hiding.entry(pair).or_default().push(id);
        }
        self.by_port.insert((flow.port(), id));
        self.by_use.insert((flow.port(), flow.used_ms, id));
        *self.counts.entry(flow.port()).or_insert(0) += 1;
        let mask = flow.mask;
        let known = self.masks.entry(hash(&mask.0), |(m, _)| *m == mask, |(m, _)| hash(&m.0));
        known.or_insert((mask, 0)).get_mut().1 += 1;
        let slots = &mut self.slots;
        let hashed = hash(&flow.key);
        if let Some(slot) = slots.get_mut(id as usize) {
            *slot = Some(flow);
        }
        self.changed.iter_mut().for_each(|(_, changed)| changed.push(id));
        let rehash = |id: &Id| slots.get(*id as usize).and_then(Option::as_ref).map_or(0, |f| hash(&f.key));
        self.by_match.insert_unique(hashed, id, rehash);
        id
    }

    pub fn remove(&mut self, id: Id) -> Option<Installed> {
        let flow = self.slots.get_mut(id as usize)?.take()?;
        self.free.push(id);
        self.changed.iter_mut().for_each(|(_, changed)| changed.push(id));
        self.drops -= usize::from(flow.drops().is_some());
        if let Ok(entry) = self.by_match.find_entry(hash(&flow.key), |other| *other == id) {
            entry.remove();
        }
        if let Some(pair) = flow.pair() {
            self.by_source.remove(&(pair.port, VlanMac::new(pair.vlan, pair.src), id));
            self.by_dst.remove(&(VlanMac::new(pair.vlan, pair.dst), pair.port, id));
        }
        if flow.connection != 0 {
            self.by_connection.remove(&(flow.connection, flow.port(), id));
        }
        if let Some(pair) = flow.hides
            && let Some(ids) = self.hiding.get_mut(&pair)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.hiding.remove(&pair);
            }
        }
        self.by_port.remove(&(flow.port(), id));
        self.floods.remove(&(flow.port(), id));
        self.unlearned.remove(&(flow.port(), id));
        self.by_use.remove(&(flow.port(), flow.used_ms, id));
        if let Some(n) = self.counts.get_mut(&flow.port()) {
            *n -= 1;
            if *n == 0 {
                self.counts.remove(&flow.port());
            }
        }
        if let Ok(mut entry) = self.masks.find_entry(hash(&flow.mask.0), |(m, _)| *m == flow.mask) {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
        Some(flow)
    }

    /// The flow was used at `used_ms`.
    pub fn used(&mut self, id: Id, used_ms: u64) {
        if let Some(flow) = self.slots.get_mut(id as usize).and_then(Option::as_mut)
            && flow.used_ms < used_ms
        {
            self.by_use.remove(&(flow.port(), flow.used_ms, id));
            flow.used_ms = used_ms;
            self.by_use.insert((flow.port(), used_ms, id));
        }
    }

    /// The flow is in the answer to this request for statistics.
    pub fn seen(&mut self, id: Id, asked: u64) {
        if let Some(flow) = self.slots.get_mut(id as usize).and_then(Option::as_mut) {
            flow.seen = asked;
        }
    }

    /// The switch has counted so many packets of the flow: how many more than when it last said so.
    pub fn counted(&mut self, id: Id, packets: u64) -> u64 {
        let Some(flow) = self.slots.get_mut(id as usize).and_then(Option::as_mut) else { return 0 };
        // Fewer: it was evicted meanwhile and put again, and counts from 0.
        packets.checked_sub(std::mem::replace(&mut flow.counted, packets)).unwrap_or(packets)
    }

    /// Of the flows from `owner` that `cause` concerns, the first whose number is not below `at`.
    pub fn next(&self, cause: Cause, owner: PortId, at: Id) -> Option<Id> {
        let first = |set: &BTreeSet<(PortId, Id)>| set.range((owner, at)..=(owner, Id::MAX)).next().map(|e| e.1);
        match cause {
            Cause::To(vlan, dst) | Cause::Group(vlan, dst) => {
                let to = VlanMac::new(vlan, dst);
                self.by_dst.range((to, owner, at)..=(to, owner, Id::MAX)).next().map(|e| e.2)
            }
            Cause::From(vlan, src) => {
                let from = VlanMac::new(vlan, src);
                self.by_source.range((owner, from, at)..=(owner, from, Id::MAX)).next().map(|e| e.2)
            }
            Cause::Ended(number) => {
                self.by_connection.range((number, owner, at)..=(number, owner, Id::MAX)).next().map(|e| e.2)
            }
            Cause::Floods => first(&self.floods),
            Cause::Unlearned => first(&self.unlearned),
            Cause::Uplinks | Cause::Unseen | Cause::Gone => first(&self.by_port),
            // From the one that has not been used for longest on: its number does not matter.
            Cause::Unused => self.oldest_of(owner),
        }
    }

    /// Ports from which there are flows that `cause` concerns: a step for each, however many flows they have.
    pub fn owners(&self, cause: Cause) -> Vec<PortId> {
        let mut from = Some(PortId(0));
        let next = || {
            let port = from?;
            let found = match cause {
                Cause::To(vlan, dst) | Cause::Group(vlan, dst) => {
                    let to = VlanMac::new(vlan, dst);
                    self.by_dst.range((to, port, 0)..=(to, PortId(u32::MAX), Id::MAX)).next().map(|e| e.1)
                }
                Cause::Ended(number) => {
                    let all = (number, port, 0)..=(number, PortId(u32::MAX), Id::MAX);
                    self.by_connection.range(all).next().map(|e| e.1)
                }
                Cause::Floods => self.floods.range((port, 0)..).next().map(|e| e.0),
                Cause::Unlearned => self.unlearned.range((port, 0)..).next().map(|e| e.0),
                _ => self.by_port.range((port, 0)..).next().map(|e| e.0),
            }?;
            from = found.0.checked_add(1).map(PortId);
            Some(found)
        };
        std::iter::from_fn(next).collect()
    }

    /// The flow from `port` that has not been used for the longest time.
    pub fn oldest_of(&self, port: PortId) -> Option<Id> {
        self.by_use.range((port, 0, 0)..).next().filter(|e| e.0 == port).map(|e| e.2)
    }

    /// The port with most flows.
    pub fn greediest(&self) -> Option<PortId> {
        self.counts.iter().max_by_key(|(_, n)| **n).map(|(p, _)| *p)
    }

    pub fn clear(&mut self) {
        let changed = self.changed.is_some().then(|| (true, Vec::new()));
        *self = Self { changed, ..Self::default() };
    }
}
