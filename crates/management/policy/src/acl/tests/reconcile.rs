//! A control process that comes compares the flows there are part by part, whatever happens meanwhile.

use super::learning::op;
use super::random::any_frame;
use super::*;
use crate::testutil::{Bench, Op};
use crate::{Effects, FlowUse, Learning, Limits, PortLists};
use std::collections::BTreeMap;

/// A list with so many rules that match nothing here.
fn rules(n: u32) -> BTreeMap<PortId, PortLists> {
    let text: String = (0..n).map(|n| format!("deny udp from 192.168.{}.{} to any\n", n >> 8, n & 255)).collect();
    let both: PortLists = [Some((Scope::Guests, Arc::new(list(&text)))), None];
    (1..=3).map(|port| (PortId(port), both.clone())).collect()
}

/// A station of port 1 to another of port 2, and back.
fn between(station: u32, other: u32) -> [FlowKey; 2] {
    let mac = |port: u8, n: u32| [0x52, 0x54, port, 0, (n >> 8) as u8, n as u8];
    let there = frame("10.0.0.1", "10.0.0.2", TCP, 7, 9);
    let there = FlowKey { eth_src: mac(1, station), eth_dst: mac(2, other), ..there };
    [there, FlowKey { in_port: 2, eth_src: there.eth_dst, eth_dst: there.eth_src, ..there }]
}

/// A switch that has flows between 64 stations of port 1 and 16 of port 2, behind so many rules.
fn full(n: u32) -> Bench {
    let mut b = Bench::new(Limits::default(), 3);
    b.load(rules(n));
    for pair in 0..1024 {
        let [there, back] = between(pair / 16, pair % 16);
        b.packet(&back);
        b.packet(&there);
    }
    assert_eq!(b.table.len(), 2048);
    b
}

/// A new control: it has been told of the switch's flows, and has compared none of them yet.
fn new_control(b: &mut Bench) {
    b.parts = Some(0);
    b.policy = Learning::new(b.limits.clone());
    b.attach();
}

/// One part of what there is to do: how many rules it tried.
fn part(b: &mut Bench) -> u64 {
    let compared = b.policy.rules_compared();
    let mut out = Effects::default();
    b.policy.put_right(b.now_ms, &mut out);
    assert!(b.carry_out(out).is_empty());
    b.policy.rules_compared() - compared
}

/// A part tries no more than this, however many there are: about a millisecond.
const RULES_A_PART: u64 = 300_000;

#[test]
fn a_part_tries_a_bounded_number_of_rules_and_a_miss_its_own() {
    let mut b = full(5000);
    let before = b.table.clone();
    new_control(&mut b);
    let (mut parts, mut most) = (0, 0);
    while b.policy.put_right_ms().is_some() {
        most = most.max(part(&mut b));
        parts += 1;
        if parts % 20 == 7 {
            // Somebody's first packet in between is answered at once, and right.
            let compared = b.policy.rules_compared();
            let [_, back] = between(70 + parts, 3);
            assert_eq!(b.packet(&FlowKey { in_port: 3, eth_src: [0x52, 0x54, 3, 0, 0, parts as u8], ..back }).len(), 2);
            assert!(b.policy.rules_compared() - compared <= 10_000, "by its sender's list");
        }
    }
    assert!(parts > 50 && most <= RULES_A_PART, "{parts} parts, up to {most} rules in each");
    let reconciled = b.policy.reconciled().unwrap();
    assert_eq!((reconciled.flows, reconciled.corrections), (2048, 0));
    assert!(before.iter().all(|(flow, _)| b.table.iter().any(|(f, _)| f.key == flow.key && f.actions == flow.actions)));
    assert_eq!(b.policy.reconciled(), None, "it is said once");
}

/// What the switch has is looked at every minute: that is not judged again.
#[test]
fn known_flows_are_not_judged_again() {
    let mut b = full(1000);
    let compared = b.policy.rules_compared();
    b.poll(1000);
    assert_eq!(b.policy.rules_compared() - compared, 0);
    assert_eq!(b.policy.flow_count(), 2048);
}

/// A change of floods, or a station that moves, judges no more at a time either.
#[test]
fn many_rules_make_slices_smaller() {
    let mut b = full(20_000);
    b.now_ms += 1;
    b.parts = Some(0);
    let [_, back] = between(1, 3);
    let compared = b.policy.rules_compared();
    // The station that 64 flows go to moves.
    b.packet(&FlowKey { in_port: 3, ..back });
    let mut most = b.policy.rules_compared() - compared;
    while b.policy.put_right_ms().is_some() {
        most = most.max(part(&mut b));
    }
    assert!(most <= RULES_A_PART, "{most} rules at a time");
    b.agrees(&b.lookup(&between(1, 3)[0])[0].actions, &between(1, 3)[0]);
}

/// A change of uplinks judged all flows in one go.
#[test]
fn uplinks_that_change_have_no_flow_judged_at_once() {
    let mut b = full(5000);
    b.parts = Some(0);
    let compared = b.policy.rules_compared();
    // One more, which nothing has come from or gone to yet, has no say in flows that are there.
    b.set_uplinks([(PortId(9), None)].into());
    assert_eq!((b.table.len(), b.policy.rules_compared()), (2048, compared));
    // Other VLANs of one that was in use: no flow is left that it does not carry now.
    b.set_uplinks([(PortId(2), Some("10".parse().unwrap())), (PortId(9), None)].into());
    assert_eq!((b.table.len(), b.policy.rules_compared()), (0, compared));
    let [there, back] = between(5, 5);
    for packet in [there, back] {
        let done = b.packet(&packet);
        b.agrees(&done, &packet);
    }
}

#[test]
fn other_lists_end_it_and_what_they_deny_is_denied() {
    let mut b = full(100);
    let [there, back] = between(5, 5);
    new_control(&mut b);
    part(&mut b);
    b.load(BTreeMap::from([(PortId(1), [Some((Scope::Guests, Arc::new(list("deny tcp")))), None])]));
    assert!(b.table.is_empty(), "no old flow is left");
    while b.policy.put_right_ms().is_some() {
        part(&mut b);
    }
    // What the switch had told of before does not come back.
    assert!(b.table.is_empty() && b.policy.flow_count() == 0);
    assert!(b.policy.reconciled().is_some());
    assert_eq!(b.packet(&there), [lasthop_flow::Action::Drop(lasthop_types::DropReason::Acl)]);
    // And in the middle of comparing.
    b.load(rules(100));
    b.parts = None;
    b.packet(&back);
    b.packet(&there);
    let old: Vec<FlowUse> = b.dump();
    new_control(&mut b);
    part(&mut b);
    b.load(BTreeMap::new());
    b.parts = None;
    b.apply(Effects::default());
    assert!(b.table.is_empty() && !old.is_empty());
}

#[test]
fn a_port_that_goes_in_the_middle_takes_its_flows_with_it() {
    let mut b = full(5000);
    new_control(&mut b);
    for _ in 0..10 {
        part(&mut b);
    }
    b.port_gone(2);
    b.parts = None;
    b.apply(Effects::default());
    assert!(b.table.iter().all(|(f, _)| f.key.in_port == 1), "and what goes there floods");
    for (flow, _) in &b.table {
        b.agrees(&flow.actions, &flow.key);
    }
    assert_eq!(b.policy.flow_count(), b.table.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Between any two parts of it packets come, ports come and go, lists change, and control or the switch is killed again: in the
    /// end every flow says what the lists and learning say.
    #[test]
    fn whatever_happens_in_the_middle(
        before in prop::collection::vec(op(), 1..60),
        meanwhile in prop::collection::vec((op(), 0usize..3), 0..40),
        probes in prop::collection::vec((1u32..5, any_frame()), 20),
    ) {
        let limits = Limits { flows: 200, flows_per_port: 80, at_once: 2, masks: 5, ..Limits::default() };
        let mut b = Bench::new(limits, 4);
        before.into_iter().for_each(|op| happen(&mut b, op));
        new_control(&mut b);
        for (op, parts) in meanwhile {
            b.parts = Some(parts);
            b.now_ms += 7;
            happen(&mut b, op);
        }
        b.parts = None;
        b.apply(Effects::default());
        for (in_port, key) in probes {
            let probe = FlowKey { in_port, ..key };
            for flow in b.lookup(&probe) {
                b.agrees(&flow.actions, &probe);
            }
            let done = b.packet(&probe);
            b.agrees(&done, &probe);
        }
        for (flow, _) in &b.table {
            let ordinary = !MacAddr(flow.key.eth_src).is_zero() && flow.mask.0.eth_dst == [0xff; 6];
            if ordinary {
                b.agrees(&flow.actions, &flow.key);
            }
        }
    }
}

fn happen(b: &mut Bench, op: Op) {
    match op {
        Op::Packet(key) => drop(b.packet(&key)),
        Op::Port(port, up) => b.port(port, up),
        Op::PortGone(port) => b.port_gone(port),
        Op::Load(lists) => b.load(lists),
        Op::Uplinks(uplinks) => b.set_uplinks(uplinks),
        Op::Set(port, settings) => b.set(port, settings),
        Op::Poll(ms) => b.now_ms += ms,
        Op::Evict(n) if !b.table.is_empty() => drop(b.table.swap_remove(n % b.table.len())),
        Op::Evict(_) => {}
        Op::RestartControl => b.restart_control(),
        Op::Mirror(mirrors) => b.mirror(mirrors),
        Op::Members(set, add, del) => drop(b.change_set(set, &add, &del)),
        Op::RestartSwitch => b.restart_switch(),
    }
}

/// Control removes a guest's oldest flow for each new one; an answer that was on its way tells of all of them.
#[test]
fn unknown_flows_in_an_answer_cost_a_bounded_number_of_rules() {
    let mut b = full(5000);
    let uses: Vec<_> = b.table.iter().map(|(spec, _)| FlowUse { spec: spec.clone(), idle_ms: 0, packets: 1 }).collect();
    // One that knows the lists and the stations, and none of the flows.
    new_control(&mut b);
    while b.policy.put_right_ms().is_some() {
        part(&mut b);
    }
    let other: Vec<_> = uses
        .iter()
        .cloned()
        .map(|mut f| {
            f.spec.key.l4_src = 4711;
            f
        })
        .collect();
    let (compared, asked) = (b.policy.rules_compared(), b.policy.asked());
    let mut out = Effects::default();
    other.chunks(100).for_each(|part| b.policy.statistics_part(asked, part, b.now_ms, &mut out));
    let compared = b.policy.rules_compared() - compared;
    assert!(compared <= RULES_A_PART, "{compared} rules for {} flows", other.len());
    let removed = out.changes.iter().filter(|change| matches!(change, crate::Change::Del(..))).count();
    assert!(removed >= other.len() - 200 && removed <= other.len(), "{removed}");
    // Those that are known are looked at all the same.
    let mut out = Effects::default();
    b.policy.statistics_part(asked, &uses, b.now_ms, &mut out);
    assert!(out.changes.is_empty(), "{}", out.changes.len());
}
