//! Stateful access lists: packets in, decisions out. Port 1 is a guest with a security group; its neighbours have none.

use super::*;
use crate::acl::{Book, Scope, read};
use crate::{ConnectionCursor, ConnectionFilter, ConnectionView, PortLists};
use lasthop_conntrack::testutil::{Ends, seg};
use std::collections::BTreeMap;

/// What OpenStack means by a security group.
const GROUP: &str = "stateful\ndefault to-guest deny\npermit to-guest tcp to any port 22\n";

pub(super) fn lists(text: &str) -> PortLists {
    let (mut book, lists) = (Book::default(), read(text, None).unwrap());
    lists.sets().into_iter().for_each(|set| drop(book.change_set(set, &[], &[]).unwrap()));
    book.replace(&Scope::Guests, None, &lists).unwrap();
    assert_eq!(Book::from_text(&book.to_text()).unwrap(), book, "they are kept as they are");
    book.of_port("vm1", false)
}

/// Three ports, and these lists of the first.
fn net(text: &str) -> Bench {
    let mut b = Bench::new(Limits { connections: 1024, ..Limits::default() }, 3);
    b.load([(PortId(1), lists(text))].into());
    // Everybody is known: nothing is flooded that is not meant to be.
    for host in 1..=3u8 {
        b.frame(u32::from(host), &arp(host));
    }
    b
}

pub(super) fn arp(host: u8) -> Vec<u8> {
    let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, host, 8, 6];
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, host, 10, 0, 0, host, 0, 0, 0, 0, 0, 0, 10, 0, 0, 99]);
    frame
}

/// From host to host, each at the port of its number.
pub(super) fn ends(from: u8, to: u8, ports: [u16; 2]) -> Ends {
    Ends { v6: false, hosts: [from, to], ports }
}

fn passes(b: &mut Bench, port: u32, frame: &[u8]) -> bool {
    b.frame(port, frame).0.iter().any(|action| matches!(action, Action::Output(_)))
}

/// Passed, by a flow of the switch alone.
fn carried(b: &mut Bench, port: u32, frame: &[u8]) -> bool {
    let (actions, asked) = b.frame(port, frame);
    !asked && matches!(*actions, [Action::Output(_)])
}

fn why(b: &mut Bench, port: u32, frame: &[u8]) -> DropReason {
    match *b.frame(port, frame).0 {
        [Action::Drop(reason)] => reason,
        ref other => panic!("{other:?}"),
    }
}

/// Opens a TCP connection from a host to another, each at the port of its number.
fn handshake(b: &mut Bench, e: Ends) {
    let [from, to] = e.hosts.map(u32::from);
    assert!(passes(b, from, &e.tcp(&seg("S", 100, 0, 0))));
    assert!(passes(b, to, &e.back().tcp(&seg("SA", 500, 101, 0))));
    assert!(passes(b, from, &e.tcp(&seg("A", 101, 501, 0))));
}

pub(super) fn all(b: &Bench) -> Vec<ConnectionView> {
    let (mut all, mut at) = (Vec::new(), Some(ConnectionCursor::default()));
    while let Some(from) = at {
        at = b.policy.connections(from, 4096, &ConnectionFilter::default(), b.now_ms, |view| all.push(view));
    }
    all
}

#[test]
fn stateful_lists_are_kept_and_shown_as_they_were_loaded() {
    let [from, to] = lists(GROUP).map(|list| list.unwrap().1);
    assert!(from.is_stateful() && to.is_stateful() && from.rules().is_empty());
    assert!(from.default() == crate::acl::Action::Permit && to.default() == crate::acl::Action::Deny);
    let only = read("stateful\ndefault deny", Some(crate::acl::Direction::ToGuest)).unwrap();
    assert!(only.clone().take(crate::acl::Direction::FromGuest).is_none());
    assert!(!only.says_nothing());
    let rule = read("deny established tcp to any port 5", None).unwrap();
    let rule = rule.clone().take(crate::acl::Direction::FromGuest).unwrap().rules.remove(0);
    assert_eq!(rule.to_string(), "deny tcp established to any port 5");
    assert_eq!(
        crate::acl::Rule { established: true, ..crate::acl::Rule::any(crate::acl::Action::Permit) }.to_string(),
        "permit any established"
    );
}

#[test]
fn a_security_group_lets_in_what_it_permits_and_answers_to_what_the_guest_asks() {
    let mut b = net(GROUP);
    // From the guest: everything, and what comes back.
    let web = ends(1, 2, [40_000, 80]);
    assert_eq!(why(&mut b, 2, &web.back().tcp(&seg("SA", 500, 101, 0))), DropReason::CtInvalid, "nobody has asked");
    handshake(&mut b, web);
    assert!(passes(&mut b, 2, &web.back().tcp(&seg("PA", 501, 101, 100))));
    // Afterwards the switch does it alone, both ways.
    assert!(carried(&mut b, 1, &web.tcp(&seg("A", 101, 601, 0))));
    assert!(carried(&mut b, 2, &web.back().tcp(&seg("A", 601, 101, 100))));
    // To the guest: ssh, and nothing else.
    handshake(&mut b, ends(2, 1, [50_000, 22]));
    assert_eq!(why(&mut b, 2, &ends(2, 1, [50_001, 23]).tcp(&seg("S", 1, 0, 0))), DropReason::Acl);
    assert_eq!(why(&mut b, 2, &ends(2, 1, [50_000, 53]).udp(1)), DropReason::Acl);
    assert_eq!(why(&mut b, 2, &ends(2, 1, [0, 0]).echo(false, 1)), DropReason::Acl);
    // Who has no list is not asked.
    assert!(passes(&mut b, 2, &ends(2, 3, [1, 2]).udp(1)));
    assert_eq!(all(&b).len(), 2);
}

#[test]
fn datagrams_and_echoes_are_answered() {
    let mut b = net(GROUP);
    let dns = ends(1, 2, [40_000, 53]);
    assert_eq!(why(&mut b, 2, &dns.back().udp(9)), DropReason::Acl);
    assert_eq!(why(&mut b, 2, &dns.back().udp(9)), DropReason::Acl);
    // The flow that drops them goes in the moment in which the guest asks.
    assert!(passes(&mut b, 1, &dns.udp(9)));
    assert!(passes(&mut b, 2, &dns.back().udp(9)));
    assert!(carried(&mut b, 1, &dns.udp(9)) && carried(&mut b, 2, &dns.back().udp(9)));
    // Another port of the same server is another matter.
    assert_eq!(why(&mut b, 2, &ends(2, 1, [54, 40_000]).udp(9)), DropReason::Acl);
    assert!(carried(&mut b, 2, &dns.back().udp(9)));
    let ping = ends(1, 2, [0, 0]);
    assert_eq!(why(&mut b, 2, &ping.back().echo(true, 7)), DropReason::CtInvalid);
    assert!(passes(&mut b, 1, &ping.echo(false, 7)) && passes(&mut b, 2, &ping.back().echo(true, 7)));
    assert!(carried(&mut b, 2, &ping.back().echo(true, 7)));
    assert_eq!(why(&mut b, 2, &ping.back().echo(false, 7)), DropReason::Acl);
}

#[test]
fn datagrams_that_go_on_both_ways_are_a_stream_and_one_late_answer_is_none() {
    let mut b = net(GROUP);
    let left = |b: &Bench| (all(b)[0].connection.seconds_left, all(b)[0].connection.assured);
    let talk = ends(1, 2, [40_000, 53]);
    assert!(passes(&mut b, 1, &talk.udp(9)));
    b.poll(5000);
    assert!(passes(&mut b, 2, &talk.back().udp(9)));
    for _ in 0..3 {
        b.poll(5000);
        assert!(!left(&b).1 && left(&b).0 <= 30, "{:?}", left(&b));
    }
    for _ in 0..3 {
        assert!(carried(&mut b, 1, &talk.udp(9)) && carried(&mut b, 2, &talk.back().udp(9)));
        b.poll(5000);
    }
    assert_eq!(left(&b), (115, true));
    // So a pause does not end it.
    (0..10).for_each(|_| b.poll(10_000));
    assert!(passes(&mut b, 2, &talk.back().udp(9)));
}

#[test]
fn a_control_that_comes_takes_for_answered_what_flows_of_both_directions_show() {
    let mut b = net(GROUP);
    let asked = ends(1, 2, [40_000, 53]);
    let found = |b: &Bench| all(b).iter().map(|v| (v.connection.replied, v.connection.assured)).collect::<Vec<_>>();
    assert!(passes(&mut b, 1, &asked.udp(9)));
    b.restart_control();
    assert_eq!(found(&b), [(false, false)]);
    assert_eq!(all(&b)[0].connection.seconds_left, 30);
    assert!(passes(&mut b, 2, &asked.back().udp(9)));
    // The switch tells of them in any order.
    for _ in 0..2 {
        b.table.reverse();
        b.restart_control();
        assert_eq!((found(&b), all(&b)[0].flows), (vec![(true, true)], 2));
        assert!(carried(&mut b, 1, &asked.udp(9)) && carried(&mut b, 2, &asked.back().udp(9)));
    }
    // No list lets anybody open it that way: it was answered, though the flow of what the guest sent is gone.
    b.table.retain(|(flow, _)| flow.key.in_port == 2);
    b.restart_control();
    assert_eq!(found(&b), [(true, false)]);
    // A ping's connection gives way in a full table, whoever has answered.
    let mut b = net(GROUP);
    let ping = ends(1, 2, [0, 0]);
    assert!(passes(&mut b, 1, &ping.echo(false, 7)) && passes(&mut b, 2, &ping.back().echo(true, 7)));
    b.restart_control();
    assert_eq!(found(&b), [(true, false)]);
}

#[test]
fn errors_about_connections_pass_and_others_do_not() {
    let mut b = net(GROUP);
    let dns = ends(1, 2, [40_000, 53]);
    let asked = dns.udp(9);
    assert_eq!(why(&mut b, 2, &dns.back().error(&asked)), DropReason::CtInvalid);
    assert!(passes(&mut b, 1, &asked));
    assert!(passes(&mut b, 2, &dns.back().error(&asked)));
    assert_eq!(why(&mut b, 2, &dns.back().error(&ends(1, 2, [40_001, 53]).udp(9))), DropReason::CtInvalid);
    assert_eq!(why(&mut b, 3, &dns.back().error(&asked)), DropReason::CtInvalid, "from a port that was not asked");
}

/// The frame as the guest at port 3 sends it who has nothing of its own but its Ethernet address.
fn forged(mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    frame
}

#[test]
fn a_neighbour_with_forged_addresses_gets_nothing_through_a_connection() {
    let mut b = net(GROUP);
    let dns = ends(1, 2, [40_000, 53]);
    assert!(passes(&mut b, 1, &dns.udp(9)) && passes(&mut b, 2, &dns.back().udp(9)));
    assert_eq!(why(&mut b, 3, &forged(dns.back().udp(9))), DropReason::Acl, "judged as one that opens a connection");
    let web = ends(1, 2, [40_000, 80]);
    handshake(&mut b, web);
    assert_eq!(why(&mut b, 3, &forged(web.back().tcp(&seg("A", 501, 101, 10)))), DropReason::Acl);
    assert_eq!(why(&mut b, 3, &forged(web.back().tcp(&seg("R", 501, 0, 0)))), DropReason::Acl);
    assert!(passes(&mut b, 1, &web.tcp(&seg("A", 101, 501, 10))), "it lives on");
    assert!(passes(&mut b, 2, &web.back().tcp(&seg("A", 501, 111, 10))));
    // Where rules let the forger open a connection its packets pass, but they are none of the other's.
    let ssh = ends(2, 1, [50_000, 22]);
    handshake(&mut b, ssh);
    assert!(passes(&mut b, 3, &forged(ssh.tcp(&seg("R", 101, 0, 0)))));
    assert!(passes(&mut b, 2, &ssh.tcp(&seg("A", 101, 501, 10))));
    assert_eq!(all(&b).len(), 3);
}

#[test]
fn flows_come_with_the_connection_and_go_with_it() {
    let mut b = net(GROUP);
    let web = ends(1, 2, [40_000, 80]);
    let of_web = |b: &Bench| b.table.iter().filter(|(f, _)| f.mask.0.tcp_flags != 0).count();
    assert!(passes(&mut b, 1, &web.tcp(&seg("S", 100, 0, 0))));
    assert!(passes(&mut b, 2, &web.back().tcp(&seg("SA", 500, 101, 0))));
    assert_eq!(of_web(&b), 0, "nothing is said of it before it is established");
    assert!(passes(&mut b, 1, &web.tcp(&seg("A", 101, 501, 0))));
    assert!(passes(&mut b, 2, &web.back().tcp(&seg("A", 501, 101, 10))));
    assert_eq!((of_web(&b), all(&b)[0].flows), (2, 2));
    // Half closed, it is carried on.
    assert!(b.frame(1, &web.tcp(&seg("FA", 101, 511, 0))).1, "what ends it is seen");
    assert!(carried(&mut b, 2, &web.back().tcp(&seg("A", 70_511, 102, 10))), "whatever was not seen before");
    assert!(passes(&mut b, 2, &web.back().tcp(&seg("FA", 90_521, 102, 0))));
    assert_eq!(of_web(&b), 0);
    assert!(passes(&mut b, 1, &web.tcp(&seg("A", 102, 90_522, 0))), "the last acknowledgement");
    // The same by a RST.
    let other = ends(1, 2, [40_001, 80]);
    handshake(&mut b, other);
    assert_eq!(of_web(&b), 1);
    assert!(passes(&mut b, 2, &other.back().tcp(&seg("R", 99_501, 0, 0))));
    assert_eq!(of_web(&b), 0);
    b.poll(11_000);
    assert_eq!(why(&mut b, 2, &other.back().tcp(&seg("A", 99_501, 102, 10))), DropReason::Acl);
}

#[test]
fn an_idle_connection_ends_and_one_in_use_does_not() {
    let mut b = net(GROUP);
    let (used, idle) = (ends(1, 2, [40_000, 53]), ends(1, 2, [40_001, 53]));
    for e in [used, idle] {
        assert!(passes(&mut b, 1, &e.udp(9)) && passes(&mut b, 2, &e.back().udp(9)));
    }
    for _ in 0..12 {
        b.poll(10_000);
        assert!(carried(&mut b, 2, &used.back().udp(9)), "{:?}", all(&b));
    }
    assert_eq!(all(&b).len(), 1);
    assert!(b.table.iter().all(|(f, _)| f.key.l4_dst != 40_001), "its flows have gone with it");
    assert_eq!(why(&mut b, 2, &idle.back().udp(9)), DropReason::Acl);
}

#[test]
fn other_lists_judge_what_is_open() {
    let mut b = net(GROUP);
    let (ssh, web) = (ends(2, 1, [50_000, 22]), ends(1, 2, [40_000, 80]));
    handshake(&mut b, ssh);
    handshake(&mut b, web);
    // The way to the guest is closed. What the guest has opened goes on, in whichever direction the next packet comes.
    b.load([(PortId(1), lists("stateful\ndefault to-guest deny\n"))].into());
    assert!(passes(&mut b, 2, &web.back().tcp(&seg("A", 501, 101, 10))));
    assert_eq!(why(&mut b, 1, &ssh.back().tcp(&seg("SA", 501, 101, 10))), DropReason::CtInvalid);
    assert_eq!(why(&mut b, 2, &ssh.tcp(&seg("A", 101, 501, 10))), DropReason::Acl);
    assert_eq!(all(&b).len(), 1);
    // And now that the guest asks nobody any more.
    b.load(
        [(PortId(1), lists("stateful\ndefault deny\npermit to-guest tcp to any port 22\ndefault from-guest deny\n"))]
            .into(),
    );
    assert_eq!(why(&mut b, 2, &web.back().tcp(&seg("A", 511, 101, 10))), DropReason::Acl);
    assert!(all(&b).is_empty());
    b.load(BTreeMap::new());
    assert!(passes(&mut b, 2, &web.back().tcp(&seg("A", 511, 101, 10))));
}

#[test]
fn without_memory_for_a_table_nothing_new_passes_and_it_is_known() {
    let mut b = Bench::new(Limits { connections: usize::MAX / 4, ..Limits::default() }, 3);
    assert!(!b.policy.lacks_connections(), "nobody asks");
    b.load([(PortId(1), lists(GROUP))].into());
    assert!(b.policy.lacks_connections() && b.policy.connection_stats().is_none());
    (1..=3u8).for_each(|host| drop(b.frame(u32::from(host), &arp(host))));
    let (ssh, web) = (ends(2, 1, [50_000, 22]), ends(2, 1, [40_000, 80]));
    assert!(!passes(&mut b, 2, &web.tcp(&seg("S", 100, 0, 0))));
    assert!(!passes(&mut b, 2, &ssh.tcp(&seg("S", 100, 0, 0))));
    b.load(BTreeMap::new());
    assert!(!b.policy.lacks_connections());
    assert!(passes(&mut b, 2, &web.tcp(&seg("S", 100, 0, 0))));
}

#[test]
fn another_control_takes_over_what_is_established() {
    let mut b = net(GROUP);
    let (ssh, web, dns) = (ends(2, 1, [50_000, 22]), ends(1, 2, [40_000, 80]), ends(1, 3, [40_000, 53]));
    for e in [ssh, web] {
        handshake(&mut b, e);
        let back = u32::from(e.hosts[1]);
        assert!(passes(&mut b, back, &e.back().tcp(&seg("A", 501, 101, 10))));
    }
    assert!(passes(&mut b, 1, &dns.udp(9)) && passes(&mut b, 3, &dns.back().udp(9)));
    let before = b.table.len();
    b.restart_control();
    assert_eq!(all(&b).len(), 3);
    assert_eq!(b.table.len(), before, "no flow went");
    for e in [ssh, web] {
        let [from, to] = e.hosts.map(u32::from);
        assert!(carried(&mut b, from, &e.tcp(&seg("A", 7101, 5501, 10))));
        assert!(carried(&mut b, to, &e.back().tcp(&seg("A", 5501, 7111, 10))));
        assert!(passes(&mut b, to, &e.back().tcp(&seg("R", 9501, 0, 0))));
    }
    assert!(carried(&mut b, 3, &dns.back().udp(9)));
    // What stands in the switch and no list would let open goes.
    b.restart_control();
    let mut closed = b.lists.clone();
    closed.insert(PortId(1), lists("stateful\ndefault to-guest deny\ndefault from-guest deny\n"));
    b.policy = Learning::new(b.limits.clone());
    b.lists = closed;
    b.attach();
    assert!(all(&b).is_empty());
    assert_eq!(why(&mut b, 3, &dns.back().udp(9)), DropReason::Acl);
}

#[test]
fn a_port_opens_no_more_than_it_may() {
    let mut b = net(GROUP);
    b.set(1, PortSettings::default().change([("connections", "3")]).unwrap());
    for port in 0..3 {
        assert!(passes(&mut b, 1, &ends(1, 2, [40_000 + port, 53]).udp(9)));
    }
    assert_eq!(why(&mut b, 1, &ends(1, 2, [41_000, 53]).udp(9)), DropReason::CtLimit);
    handshake(&mut b, ends(2, 1, [50_000, 22]));
    b.set(1, PortSettings::default());
    assert!(passes(&mut b, 1, &ends(1, 2, [41_000, 53]).udp(9)));
    b.port_gone(1);
    assert!(all(&b).is_empty(), "what it opened and what it answered");
}

#[test]
fn what_a_guest_needs_to_be_in_a_network_passes_unless_a_rule_says_otherwise() {
    let mut b = net("stateful\ndefault deny\npermit from-guest tcp\npermit to-guest tcp\n");
    let neighbour = |kind: u8| {
        let e = Ends { v6: true, ..ends(2, 1, [0, 0]) };
        e.icmp(kind, 0, &[0; 20])
    };
    let mut request = arp(2);
    request[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    assert!(passes(&mut b, 2, &request) && passes(&mut b, 1, &arp(1)));
    assert!(passes(&mut b, 2, &neighbour(135)) && passes(&mut b, 2, &neighbour(134)));
    assert_eq!(why(&mut b, 2, &neighbour(133)), DropReason::Acl, "a router's business");
    let (ask, answer) = (ends(1, 2, [68, 67]), ends(2, 1, [67, 68]));
    assert!(passes(&mut b, 2, &answer.udp(300)) && passes(&mut b, 1, &ask.udp(300)));
    assert_eq!(why(&mut b, 1, &ends(1, 2, [67, 68]).udp(300)), DropReason::Acl, "it is no server");
    let mut b = net("stateful\ndefault deny\ndeny to-guest arp\n");
    assert_eq!(why(&mut b, 2, &request), DropReason::Acl);
    assert!(passes(&mut b, 1, &arp(1)));
}

#[test]
fn rules_may_ask_for_established_connections() {
    let mut b = net("default to-guest deny\npermit to-guest established\npermit to-guest arp\n");
    let dns = ends(1, 2, [40_000, 53]);
    assert_eq!(why(&mut b, 2, &dns.back().udp(9)), DropReason::Acl);
    assert!(passes(&mut b, 1, &dns.udp(9)) && passes(&mut b, 2, &dns.back().udp(9)));
    assert!(passes(&mut b, 2, &dns.back().error(&dns.udp(9))));
    assert_eq!(why(&mut b, 2, &dns.back().error(&ends(1, 2, [1, 53]).udp(9))), DropReason::Acl);
}

#[test]
fn both_ends_lists_share_one_connection() {
    let mut b = net(GROUP);
    b.load([(PortId(1), lists(GROUP)), (PortId(2), lists(GROUP))].into());
    handshake(&mut b, ends(1, 2, [40_000, 22]));
    assert_eq!(all(&b).len(), 1);
    assert_eq!(why(&mut b, 1, &ends(1, 2, [40_000, 80]).tcp(&seg("S", 1, 0, 0))), DropReason::Acl);
    assert_eq!(all(&b).len(), 1, "what one of them denies opens nothing");
}

#[test]
fn a_scan_costs_few_flows_and_never_hides_an_answer() {
    let mut b = net(GROUP);
    for port in 1..2000 {
        b.frame(2, &ends(2, 1, [50_000, 2000 + port]).tcp(&seg("S", 1, 0, 0)));
        b.frame(2, &ends(2, 1, [50_000, 2000 + port]).udp(1));
    }
    assert!(b.table.len() < 60, "{}", b.table.len());
    let dns = ends(1, 2, [2100, 50_000]);
    assert!(passes(&mut b, 1, &dns.udp(1)) && passes(&mut b, 2, &dns.back().udp(1)));
    handshake(&mut b, ends(1, 2, [2100, 50_000]));
    for port in 1..200 {
        b.frame(2, &ends(2, 1, [50_000, 2000 + port]).udp(1));
    }
    assert!(passes(&mut b, 2, &dns.back().udp(1)));
    assert!(b.table.len() < 200, "{}", b.table.len());
}

#[test]
fn a_trace_says_what_a_connection_decides_and_changes_nothing() {
    let mut b = net(GROUP);
    let dns = ends(1, 2, [40_000, 53]);
    let explain = |b: &Bench, port: u32, frame: &[u8]| {
        let mut key = FlowKey { in_port: port, ..FlowKey::default() };
        lasthop_frame::extract(&mut key, frame, frame.len(), lasthop_frame::Depth::Full);
        let headers = Headers { bytes: frame, frame_len: frame.len() };
        b.policy.explain(&key, headers, b.now_ms, |id| format!("p{id}")).lines.join("; ")
    };
    assert!(explain(&b, 1, &dns.udp(9)).contains("it would open a connection"));
    assert!(explain(&b, 2, &dns.back().error(&dns.udp(9))).contains("can open none (unrelated)"));
    assert!(all(&b).is_empty());
    assert!(passes(&mut b, 1, &dns.udp(9)));
    assert!(
        explain(&b, 1, &dns.udp(9))
            .contains("udp 10.0.0.1 port 40000 to 10.0.0.2 port 53, which nobody has answered yet")
    );
    let answer = explain(&b, 2, &dns.back().udp(9));
    assert!(
        answer.contains("belongs to the established connection") && answer.contains("no rule is asked"),
        "{answer}"
    );
    assert!(!all(&b)[0].connection.replied);
    assert!(explain(&b, 3, &dns.back().udp(9)).contains("of other ports"));
}

mod forged;
mod model;
mod moved;
mod promised;

#[test]
fn a_connection_goes_on_or_ends_as_the_set_that_let_it_open_says() {
    let mut b = net("stateful\ndefault to-guest deny\npermit to-guest tcp from @admins to any port 22");
    let admins = |hosts: &[u8]| {
        hosts.iter().map(|n| crate::acl::read_member(&format!("10.0.0.{n}")).unwrap()).collect::<Vec<_>>()
    };
    let (second, third) = (ends(2, 1, [40_000, 22]), ends(3, 1, [40_001, 22]));
    assert!(!passes(&mut b, 2, &second.tcp(&seg("S", 100, 0, 0))), "the set is empty");
    b.change_set("admins", &admins(&[2, 3]), &[]);
    handshake(&mut b, second);
    handshake(&mut b, third);
    let data = |seq| seg("A", seq, 501, 10);
    for (port, e) in [(2, second), (3, third)] {
        assert!(passes(&mut b, port, &e.tcp(&data(101))));
        assert!(carried(&mut b, port, &e.tcp(&data(111))), "established: a flow of the switch carries it");
        passes(&mut b, 1, &e.back().tcp(&seg("A", 501, 121, 10)));
        assert!(carried(&mut b, 1, &e.back().tcp(&seg("A", 511, 121, 10))));
    }
    let gone = b.change_set("admins", &[], &admins(&[3]));
    assert_eq!(gone, 2, "both directions of the one that 10.0.0.3 opened");
    assert!(carried(&mut b, 2, &second.tcp(&data(121))), "the other never came to control");
    assert_eq!(why(&mut b, 3, &third.tcp(&data(121))), DropReason::Acl);
}

/// Two mirrors of one sender to one destination are one copy: the copy of what a receiver gets is not taken for the second.
#[test]
fn a_connection_refused_for_want_of_room_is_not_copied_as_received() {
    let mut b = net("stateful\n");
    [4, 5].into_iter().for_each(|port| b.port(port, true));
    b.set(1, "connections=1".to_owned().try_into().unwrap());
    let (mut mirrors, mut out) = (crate::Mirrors::default(), Effects::default());
    mirrors.add("a", &[PortId(1)], PortId(4), crate::Mirrored::FromGuest, 1);
    mirrors.add("b", &[PortId(1), PortId(3)], PortId(4), crate::Mirrored::FromGuest, 1);
    mirrors.add("c", &[PortId(2)], PortId(5), crate::Mirrored::ToGuest, 1);
    b.policy.set_mirrors(mirrors, b.now_ms, &mut out);
    b.apply(out);
    let first = b.frame(1, &ends(1, 2, [1000, 80]).tcp(&seg("S", 1, 0, 0))).0;
    assert!(first.contains(&Action::Copy(PortId(5))), "{first:?}");
    let refused = b.frame(1, &ends(1, 2, [1001, 80]).tcp(&seg("S", 1, 0, 0))).0;
    assert_eq!(refused, [Action::Copy(PortId(4)), Action::Drop(DropReason::CtLimit)]);
}
