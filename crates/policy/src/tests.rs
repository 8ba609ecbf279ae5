//! The learning switch against a switch that only does what it is told, and against the definition of learning.

use super::*;
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::{MacAddr, PortId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

fn key(port: u32, src: MacAddr, dst: MacAddr) -> FlowKey {
    FlowKey { in_port: port, eth_src: src.0, eth_dst: dst.0, eth_type: 0x0800, ..FlowKey::default() }
}

fn tagged(mut key: FlowKey, vid: u16) -> FlowKey {
    (key.vlan_tci, key.vlan_tpid) = (FlowKey::VLAN_PRESENT | vid, 0x8100);
    key
}

/// A switch with a flow table, its ports, and the policy that fills it.
struct Bench {
    policy: Learning,
    limits: Limits,
    now_ms: u64,
    next_id: u64,
    up: BTreeMap<PortId, bool>,
    /// Masked key and mask → flow, last use.
    table: Vec<(FlowSpec, u64)>,
}

impl Bench {
    fn new(limits: Limits, ports: u32) -> Self {
        let mut bench = Self {
            policy: Learning::new(limits.clone()),
            limits,
            now_ms: 1_000_000,
            next_id: 0,
            up: BTreeMap::new(),
            table: Vec::new(),
        };
        for port in 1..=ports {
            bench.port(port, true);
        }
        bench
    }

    fn apply(&mut self, out: Effects) -> Vec<Resume> {
        for change in out.changes {
            match change {
                Change::Put(spec) => {
                    assert_eq!(spec.key, spec.key.masked(&spec.mask), "key not masked");
                    match self.table.iter_mut().find(|(f, _)| f.key == spec.key && f.mask == spec.mask) {
                        Some((f, _)) => *f = spec,
                        None => self.table.push((spec, self.now_ms)),
                    }
                }
                Change::Del(key, mask) => self.table.retain(|(f, _)| f.key != key || f.mask != mask),
            }
        }
        out.resumes
    }

    fn port(&mut self, id: u32, up: bool) {
        let mut out = Effects::default();
        self.policy.port(PortId(id), up, self.now_ms, &mut out);
        self.up.insert(PortId(id), up);
        self.apply(out);
    }

    fn port_gone(&mut self, id: u32) {
        let (id, mut out) = (PortId(id), Effects::default());
        self.up.remove(&id);
        self.table.retain(|(f, _)| f.key.port() != id && !f.actions.contains(&Action::Output(id)));
        self.policy.port_gone(id, self.now_ms, &mut out);
        self.apply(out);
    }

    /// The flows a packet meets.
    fn lookup(&self, key: &FlowKey) -> Vec<&FlowSpec> {
        self.table.iter().map(|(f, _)| f).filter(|f| key.masked(&f.mask) == f.key).collect()
    }

    /// Sends a packet: what happened to it.
    fn packet(&mut self, key: &FlowKey) -> Vec<Action> {
        let now_ms = self.now_ms;
        if let Some((flow, used)) = self.table.iter_mut().find(|(f, _)| key.masked(&f.mask) == f.key) {
            *used = now_ms;
            return flow.actions.clone();
        }
        let mut out = Effects::default();
        self.next_id += 1;
        self.policy.miss(self.next_id, key, now_ms, &mut out);
        let resumes = self.apply(out);
        assert_eq!(resumes.len(), 1, "each miss is answered once");
        assert_eq!(resumes[0].id, self.next_id);
        resumes[0].actions.clone()
    }

    fn dump(&self) -> Vec<FlowUse> {
        self.table.iter().map(|(f, used)| FlowUse { spec: f.clone(), idle_ms: self.now_ms - used }).collect()
    }

    fn poll(&mut self, elapsed_ms: u64) {
        self.now_ms += elapsed_ms;
        let (asked, mut out) = (self.policy.asked(), Effects::default());
        self.policy.statistics(asked, &self.dump(), self.now_ms, &mut out);
        self.policy.tick(self.now_ms, &mut out);
        self.apply(out);
    }

    /// Control was killed: another process takes over what is in the switch.
    fn restart_control(&mut self) {
        self.policy = Learning::new(self.limits.clone());
        self.attach();
    }

    fn restart_switch(&mut self) {
        self.table.clear();
        self.attach();
    }

    fn attach(&mut self) {
        self.policy.attached();
        for (id, up) in self.up.clone() {
            self.port(id.0, up);
        }
        let (asked, mut out) = (self.policy.asked(), Effects::default());
        self.policy.reconcile(asked, &self.dump(), self.now_ms, &mut out);
        self.apply(out);
    }

    fn home(&self, vlan: u16, mac: MacAddr) -> Option<PortId> {
        self.policy.macs(self.now_ms).find(|m| m.mac == mac && m.vlan == vlan).map(|m| m.port)
    }

    /// What a learning switch with this address table does: the definition, without any index.
    fn reference(&self, key: &FlowKey) -> Vec<Action> {
        if !key.src().is_unicast_source() || key.dst().is_link_local() {
            return Vec::new();
        }
        match self.home(key.vlan_tci & 0xfff, key.dst()) {
            Some(port) => vec![Action::Output(port)],
            None => {
                let others = self.up.iter().filter(|(id, up)| **up && **id != key.port());
                others.map(|(id, _)| Action::Output(*id)).collect()
            }
        }
    }

    fn limits_hold(&self) {
        let mut per_port = BTreeMap::<PortId, usize>::new();
        for m in self.policy.macs(self.now_ms) {
            *per_port.entry(m.port).or_default() += 1;
        }
        assert!(self.policy.mac_count() <= self.limits.macs);
        assert!(per_port.values().all(|n| *n <= self.limits.macs_per_port), "{per_port:?}");
        assert!(per_port.keys().all(|p| self.up.contains_key(p)), "address on a port that is gone");
        let ordinary = |f: &&(FlowSpec, u64)| f.0.mask.0.eth_dst == [0xff; 6];
        assert!(self.table.iter().filter(ordinary).count() <= self.limits.flows);
        for port in self.up.keys() {
            let of_port = self.table.iter().filter(ordinary).filter(|(f, _)| f.key.port() == *port).count();
            assert!(of_port <= self.limits.flows_per_port, "{of_port} flows from {port}");
            assert_eq!(self.policy.port_view(*port).unwrap().flows, of_port, "index and switch agree");
            assert_eq!(self.policy.port_view(*port).unwrap().macs, per_port.get(port).copied().unwrap_or(0));
        }
    }

    fn refused(&self, port: u32) -> u64 {
        self.policy.port_view(PortId(port)).map_or(0, |v| v.over_limit + v.moves_refused)
    }
}

fn outputs(ports: &[u32]) -> Vec<Action> {
    ports.iter().map(|p| Action::Output(PortId(*p))).collect()
}

#[test]
fn floods_then_forwards_then_stops_asking() {
    let mut b = Bench::new(Limits::default(), 3);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2, 3]));
    assert_eq!(b.packet(&key(2, mac(2), mac(1))), outputs(&[1]));
    // The flood flow was replaced when its destination spoke.
    let asked = b.next_id;
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    assert_eq!(b.packet(&key(2, mac(2), mac(1))), outputs(&[1]));
    assert_eq!(b.next_id, asked, "known flows do not come to control");
}

#[test]
fn broadcast_and_multicast_follow_the_ports() {
    let mut b = Bench::new(Limits::default(), 2);
    let all = key(1, mac(1), MacAddr::BROADCAST);
    assert_eq!(b.packet(&all), outputs(&[2]));
    b.port(3, true);
    let asked = b.next_id;
    assert_eq!(b.packet(&all), outputs(&[2, 3]));
    b.port(2, false);
    assert_eq!(b.packet(&all), outputs(&[3]));
    b.port_gone(3);
    assert_eq!(b.packet(&all), []);
    assert_eq!(b.next_id, asked);
    assert_eq!(b.packet(&key(1, mac(1), MacAddr([1, 0, 0x5e, 0, 0, 0xfb]))), []);
}

#[test]
fn refuses_with_one_flow_what_no_station_may_send() {
    let mut b = Bench::new(Limits::default(), 2);
    for n in 0..100 {
        assert_eq!(b.packet(&key(1, MacAddr([0x01 | (n << 1), 9, n, 3, 1, n]), mac(2))), []);
    }
    assert_eq!((b.next_id, b.table.len(), b.policy.mac_count()), (1, 1, 0));
    assert_eq!(b.packet(&key(1, MacAddr([0; 6]), mac(2))), []);
    for n in 0..16 {
        assert_eq!(b.packet(&key(1, mac(1), MacAddr([0x01, 0x80, 0xc2, 0, 0, n]))), []);
        assert_eq!(b.packet(&key(2, mac(2), MacAddr([0x01, 0x80, 0xc2, 0, 0, n]))), []);
    }
    assert_eq!((b.next_id, b.table.len()), (3, 3));
    // The neighbouring block is ordinary multicast.
    assert_eq!(b.packet(&key(1, mac(1), MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x10]))), outputs(&[2]));
}

#[test]
fn hairpin_goes_back() {
    let mut b = Bench::new(Limits::default(), 2);
    b.packet(&key(1, mac(1), MacAddr::BROADCAST));
    b.packet(&key(1, mac(2), MacAddr::BROADCAST));
    // Sent back where it came from: the switch drops that and counts it as a hairpin.
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[1]));
    assert_eq!(b.packet(&key(2, mac(3), mac(2))), outputs(&[1]));
}

#[test]
fn vlans_are_learned_apart_and_priority_tags_are_no_vlan() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), MacAddr::BROADCAST));
    b.packet(&tagged(key(2, mac(1), MacAddr::BROADCAST), 7));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]));
    assert_eq!(b.packet(&tagged(key(3, mac(3), mac(1)), 7)), outputs(&[2]));
    assert_eq!(b.packet(&tagged(key(3, mac(3), mac(1)), 8)), outputs(&[1, 2]));
    let asked = b.next_id;
    let mut priority = tagged(key(3, mac(3), mac(1)), 0);
    priority.vlan_tci |= 5 << 13;
    assert_eq!(b.packet(&priority), outputs(&[1]));
    assert_eq!(b.next_id, asked, "met the untagged flow");
}

#[test]
fn ageing_counts_from_the_last_packet_even_when_a_flow_carried_it() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(2)));
    b.packet(&key(2, mac(2), mac(1)));
    for _ in 0..60 {
        b.poll(10_000);
        b.packet(&key(1, mac(1), mac(2)));
    }
    assert_eq!(b.home(0, mac(1)), Some(PortId(1)));
    assert_eq!(b.home(0, mac(2)), None, "silent for ten minutes");
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2, 3]), "so it is flooded again");
    for _ in 0..31 {
        b.poll(10_000);
    }
    assert!(b.policy.is_idle() && b.table.is_empty());
}

#[test]
fn a_station_that_moves_is_followed_and_its_flows_too() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(9)));
    b.packet(&key(3, mac(3), mac(1)));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]));
    b.packet(&key(2, mac(1), MacAddr::BROADCAST));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[2]));
    // Speaking at the old port brings it back: the flow there is gone, so the packet comes to control.
    b.packet(&key(1, mac(1), mac(9)));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]));
}

#[test]
fn a_guest_that_fights_for_a_neighbours_address_loses() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(3)));
    for _ in 0..MAX_MOVES {
        b.now_ms += 10;
        b.packet(&key(2, mac(1), MacAddr::BROADCAST));
        b.packet(&key(1, mac(1), mac(3)));
    }
    assert_eq!(b.home(0, mac(1)), Some(PortId(1)));
    let before = b.refused(2);
    assert_eq!(b.packet(&key(2, mac(1), mac(3))), outputs(&[1, 3]), "still forwarded");
    assert_eq!(b.refused(2), before + 1);
    assert_eq!(b.home(0, mac(1)), Some(PortId(1)));
    // Long after, it may move again.
    b.poll(HOLD_MS);
    b.packet(&key(2, mac(1), mac(3)));
    assert_eq!(b.home(0, mac(1)), Some(PortId(2)));
}

#[test]
fn a_flood_of_addresses_evicts_nobody_and_is_still_forwarded() {
    let limits = Limits { macs: 64, macs_per_port: 16, flows: 256, flows_per_port: 32 };
    let mut b = Bench::new(limits, 3);
    b.packet(&key(2, mac(2), mac(3)));
    b.packet(&key(3, mac(3), mac(2)));
    for n in 0..200u8 {
        let src = MacAddr([2, 0, 0, 0, 7, n]);
        assert_eq!(b.packet(&key(1, src, mac(2))), outputs(&[2]));
        b.limits_hold();
    }
    assert_eq!(b.refused(1), 200 - 16);
    let asked = b.next_id;
    assert_eq!(b.packet(&key(2, mac(2), mac(3))), outputs(&[3]));
    assert_eq!(b.packet(&key(3, mac(3), mac(2))), outputs(&[2]));
    assert_eq!(b.next_id, asked, "the neighbours' flows are untouched");
    // Nor can the flooder take an address that its full port has no room for.
    b.packet(&key(1, mac(2), mac(3)));
    assert_eq!(b.home(0, mac(2)), Some(PortId(2)));
}

#[test]
fn control_comes_back_and_keeps_what_is_right() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(2)));
    b.packet(&key(2, mac(2), mac(1)));
    b.packet(&key(1, mac(1), mac(2)));
    b.packet(&key(3, MacAddr([1; 6]), mac(1)));
    // A flow that contradicts: mac(1) lives at 1.
    let wrong = FlowSpec {
        key: key(3, mac(3), mac(1)).masked(&b.table[0].0.mask),
        mask: b.table[0].0.mask,
        actions: outputs(&[2]),
        epoch: 77,
    };
    let alien = FlowSpec { key: FlowKey::default(), mask: FlowMask::default(), actions: outputs(&[2]), epoch: 0 };
    let right: Vec<_> = b.table.iter().map(|(f, _)| f.clone()).collect();
    let now_ms = b.now_ms;
    b.table.push((wrong.clone(), now_ms));
    b.table.push((alien, now_ms));
    b.restart_control();
    assert!(b.policy.epoch() > 77);
    for f in &right {
        assert!(b.table.iter().any(|(g, _)| g == f), "{f:?} was right");
    }
    assert_eq!(b.table.len(), right.len() + 1);
    let (mended, _) = b.table.iter().find(|(f, _)| f.key == wrong.key).unwrap();
    assert_eq!(mended.actions, outputs(&[1]));
    assert_eq!(b.home(0, mac(2)), Some(PortId(2)));
    let asked = b.next_id;
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    assert_eq!(b.next_id, asked);
}

#[test]
fn the_switch_evicts_and_the_index_learns_of_it() {
    let mut b = Bench::new(Limits::default(), 2);
    b.packet(&key(1, mac(1), mac(2)));
    b.table.clear();
    b.poll(1000);
    assert!(!b.policy.has_flows());
    assert_eq!(b.policy.mac_count(), 1, "what was learned stays");
    // A miss of a flow we believe installed installs it again.
    b.packet(&key(1, mac(1), mac(2)));
    b.table.clear();
    b.now_ms += 1000;
    b.packet(&key(1, mac(1), mac(2)));
    assert_eq!(b.table.len(), 1);
}

#[test]
fn what_was_asked_for_after_the_question_survives_an_old_answer() {
    let mut b = Bench::new(Limits::default(), 2);
    b.packet(&key(1, mac(1), mac(2)));
    let (old, asked) = (b.dump(), b.policy.asked());
    b.packet(&key(2, mac(2), mac(1)));
    let mut out = Effects::default();
    b.policy.statistics(asked, &old, b.now_ms, &mut out);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!(b.policy.flow_count(), 2);
}

#[test]
fn explains_itself() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(2)));
    let name = |p: PortId| format!("vm{p}");
    let e = b.policy.explain(&key(2, mac(2), mac(1)), b.now_ms, name);
    assert_eq!(e.outputs, [PortId(1)]);
    assert_eq!(
        e.lines,
        ["source 52:54:00:00:00:02 is new and would be learned at vm2", "destination 52:54:00:00:00:01 lives at vm1"]
    );
    assert_eq!(b.policy.mac_count(), 1, "asking learns nothing");
    let e = b.policy.explain(&tagged(key(2, mac(2), mac(1)), 5), b.now_ms, name);
    assert!(e.lines[1].contains("in VLAN 5 is unknown: flooded to the 2 other ports"), "{:?}", e.lines);
    let e = b.policy.explain(&key(2, MacAddr([3; 6]), mac(1)), b.now_ms, name);
    assert!(e.outputs.is_empty() && e.lines[0].contains("group address"));
}

#[derive(Clone, Debug)]
enum Op {
    Packet(FlowKey),
    Port(u32, bool),
    PortGone(u32),
    Poll(u64),
    Evict(usize),
    RestartControl,
    RestartSwitch,
}

fn address() -> impl Strategy<Value = MacAddr> {
    prop_oneof![
        8 => (1u8..7).prop_map(mac),
        1 => Just(MacAddr::BROADCAST),
        1 => Just(MacAddr([0; 6])),
        1 => Just(MacAddr([1, 0x80, 0xc2, 0, 0, 3])),
    ]
}

fn packet() -> impl Strategy<Value = FlowKey> {
    (1u32..5, address(), address(), 0u16..3).prop_map(|(port, src, dst, vlan)| {
        let key = key(port, src, dst);
        if vlan == 2 { key } else { tagged(key, vlan) }
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => packet().prop_map(Op::Packet),
        3 => (1u32..5, any::<bool>()).prop_map(|(p, up)| Op::Port(p, up)),
        1 => (1u32..5).prop_map(Op::PortGone),
        2 => prop_oneof![Just(10_000u64), Just(1000), Just(150_000)].prop_map(Op::Poll),
        1 => any::<usize>().prop_map(Op::Evict),
        1 => Just(Op::RestartControl),
        1 => Just(Op::RestartSwitch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens: every packet is treated as a learning switch would, flows that overlap agree, and the
    /// limits hold.
    #[test]
    fn flows_say_what_the_definition_says(
        ops in prop::collection::vec(op(), 1..150),
        probes in prop::collection::vec(packet(), 20),
        small in any::<bool>(),
    ) {
        let limits = if small {
            Limits { macs: 9, macs_per_port: 3, flows: 20, flows_per_port: 8 }
        } else {
            Limits::default()
        };
        let mut b = Bench::new(limits, 4);
        let mut sources = BTreeSet::new();
        for op in ops {
            b.now_ms += 7;
            let mut ticked = false;
            match op {
                Op::Packet(key) => {
                    let known = b.up.contains_key(&key.port());
                    let (refused, vlan) = (b.refused(key.in_port), key.vlan_tci & 0xfff);
                    let hit = !b.lookup(&key).is_empty();
                    let done = b.packet(&key);
                    prop_assert_eq!(done, b.reference(&key), "{:?}", key);
                    if known && key.src().is_unicast_source() && !key.dst().is_link_local() {
                        sources.insert((vlan, key.src()));
                        let home = b.home(vlan, key.src());
                        prop_assert!(
                            hit || home == Some(key.port()) || b.refused(key.in_port) == refused + 1,
                            "neither learned nor refused"
                        );
                    }
                }
                Op::Port(p, up) => b.port(p, up),
                Op::PortGone(p) => b.port_gone(p),
                Op::Poll(ms) => {
                    b.poll(ms);
                    ticked = true;
                }
                Op::Evict(n) => {
                    if !b.table.is_empty() {
                        let n = n % b.table.len();
                        b.table.swap_remove(n);
                    }
                    b.poll(0);
                }
                Op::RestartControl => b.restart_control(),
                Op::RestartSwitch => b.restart_switch(),
            }
            b.limits_hold();
            for probe in &probes {
                for flow in b.lookup(probe) {
                    prop_assert_eq!(&flow.actions, &b.reference(probe), "{:?} meets {:?}", probe, flow);
                }
            }
            for (flow, _) in &b.table {
                // A source that lives elsewhere may keep a flow only until the next tick.
                if ticked && flow.mask.0.eth_dst == [0xff; 6] && flow.mask.0.in_port != 0 {
                    prop_assert_eq!(b.home(flow.key.vlan_tci, flow.key.src()), Some(flow.key.port()));
                }
            }
            for m in b.policy.macs(b.now_ms) {
                prop_assert!(sources.contains(&(m.vlan, m.mac)), "learned what was never sent");
            }
        }
    }
}
