//! The switch's flows, each made of those of Open vSwitch's that its packets would have met one after the other.

use crate::samples::Sampler;
use crate::table::{FlowId, Table};
use lasthop_conntrack::Tuple;
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_ipc::FlowInfo;
use lasthop_tunnel::{TPID, number_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use zerocopy::IntoBytes;

/// Most of them: 90 000 connections have two each, and all take 230 MiB. The switch has room for 200 000, those by which frames go out from here among them.
const MAX_UNIFIED: usize = 180_000;
/// So many go at a time when there is no room for another.
const MADE_ROOM_FOR: usize = 64;
/// Most different masks, fewer than [`lasthop_flow::MAX_MASKS`]: further flows look at all fields.
const MAX_MASKS: usize = 100;

/// A flow of the switch's.
#[derive(Clone, Debug)]
pub(crate) struct Unified {
    pub key: FlowKey,
    pub mask: FlowMask,
    flows: Vec<FlowId>,
    /// What it had carried when that was last shared out.
    packets: u64,
    bytes: u64,
    /// Of connections, or of such as there are none of: it holds as long as these are as they are.
    pub tuples: Vec<Tuple>,
    numbers: Vec<Number>,
    /// Numbers of what is told of packets that it draws.
    samplers: Vec<u32>,
    /// When it was made, or has last carried something that is known of.
    used_ms: u64,
}

impl Unified {
    /// How often so many packets have met a flow of Open vSwitch's: each has met all.
    fn hits(&self, packets: u64) -> u64 {
        packets * self.flows.len() as u64
    }

    /// Adds what it has carried since it was asked last to the flows that it was made of. How many packets that is.
    fn share_out(&mut self, info: &FlowInfo, now_ms: u64, table: &mut Table) -> u64 {
        // One that the switch evicted and was told anew has begun again.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let (packets, bytes) = (since(info.packets, self.packets), since(info.bytes, self.bytes));
        (self.packets, self.bytes) = (info.packets, info.bytes);
        if packets == 0 {
            return 0;
        }
        let used_ms = now_ms.saturating_sub(info.idle_ms);
        for id in &self.flows {
            let Some(flow) = table.get_mut(*id) else { continue };
            flow.carried.packets += packets;
            flow.carried.bytes += bytes;
            flow.carried.used_ms = flow.carried.used_ms.max(used_ms);
        }
        packets
    }
}

/// A number in front of packets: it holds as long as that means what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Number {
    /// Of what comes from this port of the switch's.
    In(u32, u16),
    /// Of what goes to this port of Open vSwitch's.
    Out(u32, u16),
}

/// What the switch does with packets, and why.
#[derive(Debug, Default)]
pub(crate) struct Way {
    pub actions: Vec<Action>,
    /// Open vSwitch's flows that they meet.
    pub flows: Vec<FlowId>,
    /// Tuples of their connections.
    pub tuples: Vec<Tuple>,
    /// Numbers that they are sent out with.
    pub exits: Vec<Number>,
    /// What is to be told of packets that it draws: with the number from [`Registry::next_sampler`] on.
    pub samplers: Vec<Sampler>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    all: BTreeMap<u64, Box<Unified>>,
    by_key: HashMap<(FlowKey, FlowMask), u64>,
    masks: HashMap<FlowMask, usize>,
    by_tuple: HashMap<Tuple, BTreeSet<u64>>,
    by_number: HashMap<Number, BTreeSet<u64>>,
    /// Those of each of the switch's ports, and when they were used; what has been idle for longest is first.
    by_use: BTreeMap<u32, BTreeSet<(u64, u64)>>,
    samplers: HashMap<u32, Sampler>,
    next_sampler: u32,
    last: u64,
    hits: u64,
}

/// A mask of all fields that a packet shows.
fn every_field() -> FlowMask {
    let mut mask = FlowMask::default();
    mask.0.as_mut_bytes().fill(0xff);
    let key = mask.0;
    (mask.0.recirculation, mask.0.reserved, mask.0.ct_zone, mask.0.ct_state, mask.0.ct_mark) = (0, 0, 0, 0, 0);
    mask.0 = FlowKey {
        tunnel_flags: 0,
        tunnel_tos: 0,
        tunnel_ttl: 0,
        tunnel_id: 0,
        tunnel_src: [0; 16],
        tunnel_dst: [0; 16],
        ..mask.0
    };
    debug_assert_ne!(mask.0, key);
    mask
}

/// Takes a flow out of what it is found by.
fn unlist<K: Hash + Eq>(index: &mut HashMap<K, BTreeSet<u64>>, by: &[K], id: u64) {
    for key in by {
        let Some(ids) = index.get_mut(key) else { continue };
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

/// Takes a flow out of its port's by their use.
fn unlist_use(by_use: &mut BTreeMap<u32, BTreeSet<(u64, u64)>>, unified: &Unified, id: u64) {
    let port = unified.key.in_port;
    let Some(ids) = by_use.get_mut(&port) else { return };
    ids.remove(&(unified.used_ms, id));
    if ids.is_empty() {
        by_use.remove(&port);
    }
}

impl Registry {
    /// An empty one, whose samplers have numbers from here on.
    pub fn numbered_from(next_sampler: u32) -> Self {
        Self { next_sampler, ..Self::default() }
    }

    /// The number of the first sampler of the flow that is put next.
    pub fn next_sampler(&self) -> u32 {
        self.next_sampler
    }

    /// What is to be told of packets that were drawn with this number.
    pub fn sampler(&self, number: u32) -> Option<&Sampler> {
        self.samplers.get(&number)
    }

    /// Notes that a packet with this key, of the bits of `mask`, goes this way; what the switch is to be told. `None`: there
    /// is no room before some have been forgotten.
    pub fn put(&mut self, key: &FlowKey, mask: FlowMask, way: Way, table: &mut Table, now_ms: u64) -> Option<FlowSpec> {
        let Way { actions, flows, tuples, exits: mut numbers, samplers } = way;
        let many = self.masks.len() >= MAX_MASKS && !self.masks.contains_key(&mask);
        let mask = if many { every_field() } else { mask };
        let key = key.masked(&mask);
        let id = match self.by_key.get(&(key, mask)) {
            Some(id) => *id,
            None if self.all.len() >= MAX_UNIFIED => return None,
            None => {
                self.last += 1;
                self.by_key.insert((key, mask), self.last);
                *self.masks.entry(mask).or_default() += 1;
                self.last
            }
        };
        let before = self.all.get(&id);
        let (packets, bytes) = before.map_or((0, 0), |before| (before.packets, before.bytes));
        for flow in before.map(|before| before.flows.clone()).unwrap_or_default() {
            table.get_mut(flow).map(|flow| flow.unified.remove(&id));
        }
        for flow in &flows {
            table.get_mut(*flow).map(|flow| flow.unified.insert(id));
        }
        if let Some(before) = before {
            unlist(&mut self.by_tuple, &before.tuples, id);
            unlist(&mut self.by_number, &before.numbers, id);
            before.samplers.iter().for_each(|number| drop(self.samplers.remove(number)));
            unlist_use(&mut self.by_use, before, id);
        }
        let samplers = samplers.into_iter().map(|sampler| {
            let number = self.next_sampler;
            self.next_sampler = number.wrapping_add(1);
            self.samplers.insert(number, sampler);
            number
        });
        let samplers = samplers.collect();
        for tuple in &tuples {
            self.by_tuple.entry(*tuple).or_default().insert(id);
        }
        if key.vlan_tpid == TPID {
            numbers.push(Number::In(key.in_port, number_of(key.vlan_tci)));
        }
        for number in &numbers {
            self.by_number.entry(*number).or_default().insert(id);
        }
        self.by_use.entry(key.in_port).or_default().insert((now_ms, id));
        let used_ms = now_ms;
        let unified = Unified { key, mask, flows, packets, bytes, tuples, numbers, samplers, used_ms };
        self.all.insert(id, unified.into());
        Some(FlowSpec { key, mask, actions, epoch: 0 })
    }

    /// Those that hold as long as these are as they are.
    pub fn of_tuples(&self, tuples: &[Tuple]) -> BTreeSet<u64> {
        tuples.iter().filter_map(|tuple| self.by_tuple.get(tuple)).flatten().copied().collect()
    }

    /// There are some that hold by connections.
    pub fn tracks(&self) -> bool {
        !self.by_tuple.is_empty()
    }

    /// Another takes room that has to be made.
    pub fn is_full(&self) -> bool {
        self.all.len() >= MAX_UNIFIED
    }

    pub fn get(&self, id: u64) -> Option<&Unified> {
        self.all.get(&id).map(Box::as_ref)
    }

    /// Takes one out.
    pub fn remove(&mut self, id: u64, table: &mut Table) -> Option<Unified> {
        let unified = self.all.remove(&id)?;
        self.by_key.remove(&(unified.key, unified.mask));
        unlist(&mut self.by_tuple, &unified.tuples, id);
        unlist(&mut self.by_number, &unified.numbers, id);
        unified.samplers.iter().for_each(|number| drop(self.samplers.remove(number)));
        unlist_use(&mut self.by_use, &unified, id);
        if let Some(n) = self.masks.get_mut(&unified.mask) {
            *n -= 1;
            if *n == 0 {
                self.masks.remove(&unified.mask);
            }
        }
        for flow in &unified.flows {
            table.get_mut(*flow).map(|flow| flow.unified.remove(&id));
        }
        Some(*unified)
    }

    /// The few that have been idle for longest of a port, or if it has less than an equal part of all, of the port with most: a guest that makes many loses its own, and not everybody's.
    pub fn idlest(&self, in_port: u32) -> Vec<u64> {
        let own = self.by_use.get(&in_port).filter(|own| own.len() * self.by_use.len() >= self.all.len());
        let some = own.or_else(|| self.by_use.values().max_by_key(|of| of.len()));
        some.into_iter().flatten().take(MADE_ROOM_FOR).map(|(_, id)| *id).collect()
    }

    /// Those that hold by this number.
    pub fn of_number(&self, number: Number) -> BTreeSet<u64> {
        self.by_number.get(&number).cloned().unwrap_or_default()
    }

    /// Takes all out.
    pub fn clear(&mut self, table: &mut Table) {
        while let Some(id) = self.all.keys().next().copied() {
            self.remove(id, table);
        }
    }

    /// The switch says what one of them has carried: what is new is added to the flows it was made of. The tuples of its connections.
    pub fn share(&mut self, info: &FlowInfo, now_ms: u64, table: &mut Table) -> &[Tuple] {
        let id = self.by_key.get(&(info.flow.key, info.flow.mask)).copied().unwrap_or_default();
        let Some(unified) = self.all.get_mut(&id) else { return &[] };
        let packets = unified.share_out(info, now_ms, table);
        if packets > 0 {
            self.hits += unified.hits(packets);
            unlist_use(&mut self.by_use, unified, id);
            unified.used_ms = now_ms.saturating_sub(info.idle_ms);
            self.by_use.entry(unified.key.in_port).or_default().insert((unified.used_ms, id));
        }
        &unified.tuples
    }

    /// As [`Registry::share`], of one that is not here any more.
    pub fn share_last(&mut self, unified: &mut Unified, info: &FlowInfo, now_ms: u64, table: &mut Table) {
        let packets = unified.share_out(info, now_ms, table);
        self.hits += unified.hits(packets);
    }

    /// How often packets that the switch has carried by them would have met a flow of Open vSwitch's.
    pub fn hits(&self) -> u64 {
        self.hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_room(registry: &mut Registry, in_port: u32, table: &mut Table) -> Vec<Unified> {
        registry.idlest(in_port).into_iter().filter_map(|id| registry.remove(id, table)).collect()
    }

    #[test]
    fn a_port_that_makes_too_many_loses_its_own() {
        let (mut registry, mut table) = (Registry::default(), Table::default());
        let mask = FlowMask(FlowKey { in_port: u32::MAX, l4_src: u16::MAX, l4_dst: u16::MAX, ..FlowKey::default() });
        let mut put = |registry: &mut Registry, in_port: u32, n: usize| {
            let key = FlowKey { in_port, l4_src: n as u16, l4_dst: (n >> 16) as u16, ..FlowKey::default() };
            registry.put(&key, mask, Way::default(), &mut table, 5).is_some()
        };
        assert!(put(&mut registry, 1, 0));
        let most = (0..).take_while(|n| put(&mut registry, 2, *n)).count();
        assert_eq!(most, MAX_UNIFIED - 1);
        let made = most - MADE_ROOM_FOR;
        for needs in [2, 1, 3] {
            let gone = make_room(&mut registry, needs, &mut Table::default());
            assert_eq!(gone.len(), MADE_ROOM_FOR);
            assert!(gone.iter().all(|unified| unified.key.in_port == 2), "of the port with most");
        }
        assert!(put(&mut registry, 2, made));
    }

    #[test]
    fn what_has_been_idle_for_longest_goes_first() {
        let (mut registry, mut table) = (Registry::default(), Table::default());
        let mask = FlowMask(FlowKey { in_port: u32::MAX, l4_src: u16::MAX, ..FlowKey::default() });
        let key = |l4_src: u16| FlowKey { in_port: 1, l4_src, ..FlowKey::default() };
        let many = MADE_ROOM_FOR as u16 * 2;
        for n in 0..many {
            let way = Way { actions: Vec::new(), ..Way::default() };
            let flow = registry.put(&key(n), mask, way, &mut table, 1000 + u64::from(n)).expect("there is room");
            // The first half is in use, the second is not.
            if n < many / 2 {
                let info = FlowInfo { flow, packets: 3, bytes: 180, idle_ms: 10 };
                registry.share(&info, 9000, &mut table);
                registry.share(&info, 99_000, &mut table);
            }
        }
        let gone = make_room(&mut registry, 1, &mut table);
        assert_eq!(gone.iter().map(|of| of.key.l4_src).collect::<Vec<_>>(), (many / 2..many).collect::<Vec<_>>());
        // One that is made anew was used now; one that has carried nothing since is the next.
        registry.put(&key(0), mask, Way::default(), &mut table, 10_000);
        assert_eq!(registry.get(registry.idlest(1)[0]).map(|of| of.key.l4_src), Some(1));
        let left = make_room(&mut registry, 1, &mut table);
        assert_eq!((left.len(), registry.by_use.len()), (MADE_ROOM_FOR, 0));
    }
}
