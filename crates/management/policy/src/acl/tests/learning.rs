//! Lists beside learning: flows say what both say.

use super::random::{any_frame, members, rule};
use super::*;
use crate::testutil::{Bench, Op, compare};
use crate::{Headers, Limits, Mirrored, PortLists};
use std::collections::BTreeMap;

fn lists(from: &str, to: &str) -> PortLists {
    let one = |text: &str| (!text.is_empty()).then(|| (Scope::Guests, Arc::new(list(text))));
    [one(from), one(to)]
}

fn everywhere(from: &str, to: &str) -> BTreeMap<PortId, PortLists> {
    let both = lists(from, to);
    (1..5).map(|n| (PortId(n), both.clone())).collect()
}

fn to(ports: &[u32]) -> Vec<lasthop_flow::Action> {
    ports.iter().map(|p| lasthop_flow::Action::Output(PortId(*p))).collect()
}

const DROP: [lasthop_flow::Action; 1] = [lasthop_flow::Action::Drop(lasthop_types::DropReason::Acl)];

fn from_port(port: u32, key: FlowKey) -> FlowKey {
    let mut key = FlowKey { in_port: port, ..key };
    key.eth_src[5] = port as u8;
    key
}

#[test]
fn one_flow_drops_a_whole_scan() {
    let mut b = Bench::new(Limits::default(), 2);
    b.load(everywhere("deny tcp to any port 0-1023", ""));
    b.packet(&from_port(2, frame("10.0.0.2", "10.0.0.1", TCP, 9, 2000)));
    let asked = b.next_id;
    for n in 0..1000u32 {
        let host = format!("10.0.{}.{}", n % 7, n % 250);
        assert_eq!(b.packet(&from_port(1, frame("10.0.0.1", &host, TCP, 1000 + n as u16, n as u16))), DROP);
    }
    assert_eq!(b.next_id, asked + 1, "one judgement for a thousand denied packets");
    assert_eq!(b.policy.mac_count(), 1, "what may not enter teaches nothing");
    assert_eq!(b.packet(&from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 9, 1024))), to(&[2]));
}

#[test]
fn receivers_lists_thin_out_a_flood() {
    let mut b = Bench::new(Limits::default(), 4);
    let mut own = everywhere("", "");
    own.insert(PortId(3), lists("", "deny icmp"));
    b.load(own);
    let echo = from_port(1, frame("10.0.0.1", "10.0.0.9", 1, 8, 0));
    let echo = FlowKey { eth_dst: [0xff; 6], ..echo };
    assert_eq!(b.packet(&echo), to(&[2, 4]));
    assert_eq!(b.packet(&FlowKey { ip_proto: UDP, ..echo }), to(&[2, 3, 4]));
    b.port(2, false);
    assert_eq!(b.packet(&echo), to(&[4]));
    b.port(4, false);
    assert_eq!(b.packet(&echo), DROP, "only the port that does not want it is left");
    b.port(3, false);
    let nowhere = [lasthop_flow::Action::Drop(lasthop_types::DropReason::NoOtherPort)];
    assert_eq!(b.packet(&echo), nowhere);
}

/// What was denied, as `lasthop stats` has it: port, rule, packets, milliseconds since the last.
fn denied(b: &Bench) -> Vec<(u32, Option<u32>, u64, u64)> {
    let of = |(port, why, denied): (PortId, &crate::Why, &crate::Denied)| {
        (port.0, why.1.as_ref().and_then(|by| by.rule), denied.packets, b.now_ms - denied.last_ms)
    };
    b.policy.denied().map(of).collect()
}

#[test]
fn what_a_rule_denied_is_counted_while_its_flows_come_and_go() {
    let mut b = Bench::new(Limits::default(), 3);
    let mut both = everywhere("deny icmp\ndefault deny", "");
    both.insert(PortId(3), lists("", "deny tcp"));
    b.load(both);
    let echo = from_port(1, frame("10.0.0.1", "10.0.0.2", 1, 8, 0));
    assert_eq!(b.packet(&echo), DROP);
    b.packet(&from_port(2, frame("10.0.0.2", "10.0.0.1", TCP, 9, 80)));
    assert_eq!(denied(&b), [], "the switch has not been asked");
    b.hits = 3;
    b.poll(1000);
    assert_eq!(denied(&b), [(1, Some(1), 3, 1000), (2, Some(0), 3, 1000)]);
    assert_eq!(b.policy.denied().next().unwrap().2.packet, Some(echo));
    b.hits = 5;
    b.poll(1000);
    assert_eq!(denied(&b)[0], (1, Some(1), 5, 2000), "two more, and not five");
    // The flow is evicted, and comes again: the switch counts from 0.
    b.table.clear();
    b.poll(1000);
    assert_eq!(denied(&b)[0], (1, Some(1), 5, 3000));
    b.packet(&echo);
    b.hits = 1;
    b.poll(0);
    assert_eq!(denied(&b)[0], (1, Some(1), 6, 0));
    // Control is started anew: it counts what the flows that are there have carried.
    b.restart_control();
    assert_eq!(denied(&b), [(1, Some(1), 1, 0)]);
    assert_eq!(b.policy.denied().next().unwrap().2.packet, None, "it has seen none, and makes none up");
    // The switch is replaced: its counters begin anew, and what it dropped is in none of them.
    b.restart_switch();
    assert_eq!(denied(&b), []);
    b.packet(&echo);
    b.hits = 2;
    b.poll(0);
    assert_eq!(denied(&b), [(1, Some(1), 2, 0)]);
    // Flows go for another reason, a mirror that comes and goes: the same rules hold.
    for mirrors in [vec![(vec![2], 3, Mirrored::FromGuest)], vec![]] {
        b.mirror(mirrors);
        assert!(b.table.is_empty(), "all flows were removed");
        assert_eq!(denied(&b), [(1, Some(1), 2, 0)]);
    }
    // A receiver's list.
    b.packet(&from_port(3, frame("10.0.0.3", "10.0.0.1", TCP, 9, 80)));
    let to_3 = FlowKey { eth_dst: [0x52, 0x54, 0, 0, 0, 3], ..from_port(1, frame("10.0.0.1", "10.0.0.3", TCP, 9, 80)) };
    b.load(BTreeMap::from([(PortId(3), lists("", "permit udp\ndeny tcp"))]));
    assert_eq!(denied(&b), [], "other lists count anew");
    b.packet(&from_port(3, frame("10.0.0.3", "10.0.0.1", TCP, 9, 80)));
    assert_eq!(b.packet(&to_3), DROP);
    b.poll(0);
    let (port, why, _) = b.policy.denied().next().unwrap();
    let by = why.1.as_ref().unwrap();
    assert_eq!((port.0, by.direction, by.rule), (1, Direction::ToGuest, Some(2)));
    b.port_gone(1);
    assert_eq!(denied(&b), []);
}

/// Three settings may be at work at one port: `spoofed` alone does not say which.
#[test]
fn what_is_spoofed_is_counted_by_setting() {
    let mut b = Bench::new(Limits::default(), 2);
    b.set(1, "mac=52:54:00:00:00:01 addr=10.0.0.1 no-dhcp-server=on".to_owned().try_into().unwrap());
    let udp = |src: &str, ports: (u16, u16)| from_port(1, frame(src, "10.0.0.2", UDP, ports.0, ports.1));
    let other = FlowKey { eth_src: [0x52, 0x54, 0, 0, 0, 4], ..udp("10.0.0.1", (1, 2)) };
    let spoofed = [lasthop_flow::Action::Drop(lasthop_types::DropReason::Spoofed)];
    for packet in [other, udp("10.0.0.4", (1, 2)), udp("10.0.0.1", (67, 68))] {
        assert_eq!(b.packet(&packet), spoofed);
    }
    let settings = |b: &Bench| b.policy.denied().map(|(_, why, d)| (why.2, d.packets)).collect::<Vec<_>>();
    b.hits = 3;
    b.poll(1000);
    assert_eq!(settings(&b), [(Some("addr"), 3), (Some("mac"), 3), (Some("no-dhcp-server"), 3)]);
    assert_eq!(b.policy.denied().nth(1).unwrap().2.packet, Some(other));
    // And of flows that an earlier control made.
    b.restart_control();
    assert_eq!(settings(&b), [(Some("addr"), 3), (Some("mac"), 3), (Some("no-dhcp-server"), 3)]);
}

#[test]
fn however_many_rules_deny_what_is_kept_is_bounded() {
    let mut b = Bench::new(Limits::default(), 2);
    let text: String = (0..500).map(|port| format!("deny udp to any port {port}\n")).collect();
    b.load(everywhere(&text, ""));
    for port in 0..500 {
        assert_eq!(b.packet(&from_port(1, frame("10.0.0.1", "10.0.0.2", UDP, 9, port))), DROP);
    }
    b.hits = 1;
    b.poll(0);
    let all = denied(&b);
    assert!(all.len() <= 65, "{}", all.len());
    assert_eq!(all.iter().map(|d| d.2).sum::<u64>(), b.table.len() as u64, "none is lost");
}

#[test]
fn a_change_of_lists_leaves_no_old_flow() {
    let mut b = Bench::new(Limits::default(), 2);
    b.packet(&from_port(2, frame("10.0.0.2", "10.0.0.1", TCP, 80, 9)));
    let web = FlowKey { eth_dst: [0x52, 0x54, 0, 0, 0, 2], ..from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 9, 80)) };
    assert_eq!(b.packet(&web), to(&[2]));
    let (old, asked) = (b.dump(), b.policy.asked());
    b.load(everywhere("", "deny tcp to any port 80"));
    assert!(b.table.is_empty());
    // An answer that was on its way does not bring back what was removed.
    let mut out = crate::Effects::default();
    b.policy.statistics(asked, &old, b.now_ms, &mut out);
    assert!(out.is_empty() && b.policy.flow_count() == 0, "{out:?}");
    assert_eq!(b.packet(&web), DROP);
    assert_eq!(b.policy.mac_count(), 2, "what was learned is kept");
    b.load(BTreeMap::new());
    assert_eq!(b.packet(&web), to(&[2]));
    assert_eq!(b.table[0].0.mask.depth(), lasthop_frame::Depth::L2, "without lists flows are shallow again");
}

#[test]
fn a_port_that_was_never_announced_gets_nothing_past_the_lists() {
    let mut b = Bench::new(Limits::default(), 2);
    b.load(everywhere("deny tcp", ""));
    assert_eq!(b.packet(&from_port(9, frame("10.0.0.1", "10.0.0.2", UDP, 9, 80))), []);
    assert_eq!(b.table.len(), 0);
}

#[test]
fn trace_names_the_rule() {
    let mut b = Bench::new(Limits::default(), 3);
    let own = BTreeMap::from([
        (PortId(1), lists("permit udp\ndeny tcp to any port 80\n", "")),
        (PortId(2), lists("", "default deny\npermit tcp to any port 22")),
    ]);
    b.load(own);
    let name = |p: PortId| format!("vm{p}");
    let explain = |key: FlowKey| b.policy.explain(&key, Headers::default(), b.now_ms, name);
    let web = explain(from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 9, 80)));
    assert_eq!(web.lines, ["guests access list, from-guest at vm1: rule 2 decides: deny tcp to any port 80"]);
    assert!(web.outputs.is_empty());
    let other = explain(from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 9, 81)));
    assert_eq!(other.outputs, [PortId(3)]);
    assert_eq!(
        [&other.lines[0], other.lines.last().unwrap()],
        [
            "guests access list, from-guest at vm1: none of 2 rules matches, its default is permit",
            "guests access list, to-guest at vm2: its one rule does not match, its default is deny"
        ]
    );
}

#[test]
fn a_set_that_changes_takes_the_flows_it_concerns_and_no_others() {
    let mut b = Bench::new(Limits::default(), 3);
    b.sets.change_set("web", &[prefix("10.0.0.9")], &[]).unwrap();
    b.load([(PortId(2), lists("", "default deny\npermit tcp from @web"))].into());
    let to_2 = |b: &mut Bench, src: &str| b.packet(&from_port(1, frame(src, "10.0.0.2", TCP, 9, 80)));
    // Everybody is known, and there are flows that have nothing to do with the set.
    let mut back = from_port(2, frame("10.0.0.2", "10.0.0.1", TCP, 9, 80));
    back.eth_dst[5] = 1;
    assert_eq!(b.packet(&back), to(&[1, 3]));
    let mut third = from_port(1, frame("172.16.0.1", "10.0.0.1", TCP, 9, 80));
    third.eth_dst[5] = 3;
    assert_eq!(b.packet(&third), to(&[3]), "2 does not want it");
    assert_eq!(
        (to_2(&mut b, "10.0.0.1"), to_2(&mut b, "10.0.0.9"), to_2(&mut b, "192.168.0.1")),
        (DROP.to_vec(), to(&[2]), DROP.to_vec())
    );
    let flows = b.table.len();
    assert_eq!(b.change_set("web", &[prefix("10.0.0.1")], &[]), 1, "the flow of 10.0.0.1, and no other");
    assert_eq!(b.table.len(), flows - 1);
    assert_eq!(
        (to_2(&mut b, "10.0.0.1"), to_2(&mut b, "10.0.0.9"), to_2(&mut b, "192.168.0.1")),
        (to(&[2]), to(&[2]), DROP.to_vec())
    );
    assert_eq!(b.change_set("other", &[prefix("10.0.0.0/8")], &[]), 0, "nobody names it");
    b.change_set("web", &[prefix("10.0.0.0/8")], &[prefix("10.0.0.1")]);
    assert_eq!(to_2(&mut b, "10.0.0.1"), to(&[2]), "still in it, by the prefix");
    b.change_set("web", &[], &[prefix("10.0.0.0/8")]);
    assert_eq!((to_2(&mut b, "10.0.0.1"), to_2(&mut b, "10.0.0.9")), (DROP.to_vec(), to(&[2])));
}

#[test]
fn a_change_that_concerns_many_flows_takes_all_in_one_message() {
    let mut b = Bench::new(Limits::default(), 2);
    b.load(everywhere("default deny\npermit tcp from @web\ndeny tcp from 10.0.0.0/32 to any port 1", ""));
    for n in 0..5000u32 {
        b.packet(&from_port(
            1,
            FlowKey {
                ip_src: u128::from(0x0a00_0000 + n * 256).to_be_bytes(),
                ..frame("10.0.0.1", "10.0.0.2", TCP, n as u16, 1)
            },
        ));
    }
    b.change_set("web", &[prefix("10.0.0.1")], &[]);
    assert_eq!(b.packet(&from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 7, 1))), to(&[2]));
}

fn text() -> impl Strategy<Value = String> {
    let default = prop_oneof![Just("default permit"), Just("default deny")];
    let rules = prop::collection::vec(rule(), 0..8);
    prop_oneof![1 => Just(String::new()), 2 => (default, rules).prop_map(|(d, r)| format!("{d}\n{}", r.join("\n")))]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let packet = (1u32..5, any_frame()).prop_map(|(in_port, key)| Op::Packet(FlowKey { in_port, ..key }));
    let load = prop::collection::vec((1u32..5, text(), text()), 0..4)
        .prop_map(|all| Op::Load(all.iter().map(|(p, from, to)| (PortId(*p), lists(from, to))).collect()));
    prop_oneof![
        30 => packet,
        2 => load,
        4 => (prop_oneof![Just("a"), Just("b")], members(), members()).prop_map(|(set, add, del)| Op::Members(set, add, del)),
        3 => (1u32..5, any::<bool>()).prop_map(|(p, up)| Op::Port(p, up)),
        1 => (1u32..5).prop_map(Op::PortGone),
        2 => prop_oneof![Just(10_000u64), Just(150_000)].prop_map(Op::Poll),
        1 => any::<usize>().prop_map(Op::Evict),
        1 => Just(Op::RestartControl),
        1 => Just(Op::RestartSwitch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever is loaded, learned, restarted or forgotten: flows say what the lists and learning say.
    #[test]
    fn flows_say_what_lists_and_learning_say(
        ops in prop::collection::vec(op(), 1..120),
        probes in prop::collection::vec((1u32..5, any_frame()), 20),
        small in any::<bool>(),
    ) {
        let probes: Vec<_> = probes.into_iter().map(|(in_port, key)| FlowKey { in_port, ..key }).collect();
        compare(ops, &probes, small);
    }
}
