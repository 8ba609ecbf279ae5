//! Translated addresses: frames in, frames out. Port 1 is a guest whose list translates; port 2 is the network, port 3 a neighbour.

use super::connections::{all, arp, ends, lists};
use super::*;
use crate::{Headers, PortLists};
use lasthop_conntrack::testutil::{Ends, seg};
use lasthop_frame::{Depth, Header, Offload, SNAPSHOT_LEN, extract};
use std::collections::{BTreeMap, BTreeSet};

const SNAT: &str = "stateful\nsnat from 10.0.0.1 -> 10.0.0.50\n";
const DNAT: &str = "stateful\ndnat tcp to 10.0.0.60 port 80 -> 10.0.0.1 port 8080\n";

fn net(of: &[(u32, &str)]) -> Bench {
    let mut b = Bench::new(Limits { connections: 1024, ..Limits::default() }, 3);
    b.load(of.iter().map(|(port, text)| (PortId(*port), lists(text))).collect::<BTreeMap<_, PortLists>>());
    for host in 1..=3u8 {
        b.frame(u32::from(host), &arp(host));
    }
    b
}

/// As what a frame comes to which port; and whether control was asked.
fn sent(b: &mut Bench, port: u32, frame: &[u8]) -> (Vec<(u32, Vec<u8>)>, bool) {
    let (actions, asked) = b.frame(port, frame);
    let (head, payload) = frame.split_at(frame.len().min(SNAPSHOT_LEN));
    let mut header = Header::default();
    header.restart(head.len()).copy_from_slice(head);
    let mut out = Vec::new();
    for action in actions {
        match action {
            Action::Output(to) => out.push((to.0, [header.bytes(), payload].concat())),
            Action::Edit(edit) => edit.apply(&mut header, &mut Offload::None, payload.len()).expect("an edit"),
            Action::Drop(_) => {}
            other => panic!("{other:?}"),
        }
    }
    (out, asked)
}

/// With the Ethernet addresses of these hosts.
fn via(mut frame: Vec<u8>, from: u8, to: u8) -> Vec<u8> {
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from]);
    frame
}

#[track_caller]
fn comes(b: &mut Bench, port: u32, frame: &[u8], to: u32, as_this: &[u8]) -> bool {
    let (out, asked) = sent(b, port, frame);
    assert_eq!(out, [(to, as_this.to_vec())]);
    asked
}

#[track_caller]
fn dropped(b: &mut Bench, port: u32, frame: &[u8]) -> DropReason {
    match *b.frame(port, frame).0 {
        [Action::Drop(reason)] => reason,
        ref other => panic!("{other:?}"),
    }
}

fn both() -> [Ends; 2] {
    [false, true].map(|v6| Ends { v6, ..ends(1, 2, [40_000, 80]) })
}

/// The same ends with another host as source.
fn behind(e: Ends, host: u8) -> Ends {
    Ends { hosts: [host, e.hosts[1]], ..e }
}

#[test]
fn a_guests_source_is_exchanged_and_answers_come_back() {
    for e in both() {
        let text = if e.v6 { "stateful\nsnat from fd00::1 -> fd00::32\n" } else { SNAT };
        let (mut b, outside) = (net(&[(1, text)]), behind(e, 50));
        let out = |frame: Vec<u8>| via(frame, 1, 2);
        // The network takes the neighbour's station for the address's owner.
        let back = |frame: Vec<u8>| via(frame, 2, 3);
        comes(&mut b, 1, &e.tcp(&seg("S", 100, 0, 0)), 2, &out(outside.tcp(&seg("S", 100, 0, 0))));
        let answer = seg("SA", 500, 101, 0);
        comes(&mut b, 2, &back(outside.back().tcp(&answer)), 1, &e.back().tcp(&answer));
        comes(&mut b, 1, &e.tcp(&seg("A", 101, 501, 9)), 2, &out(outside.tcp(&seg("A", 101, 501, 9))));
        let data = seg("PA", 501, 110, 300);
        comes(&mut b, 2, &back(outside.back().tcp(&data)), 1, &e.back().tcp(&data));
        // From now on the switch does it alone.
        assert!(!comes(&mut b, 1, &e.tcp(&data), 2, &out(outside.tcp(&data))));
        assert!(!comes(&mut b, 2, &back(outside.back().tcp(&data)), 1, &e.back().tcp(&data)));
        let view = all(&b)[0];
        assert_eq!((view.flows, view.connection.reply.dst()), (2, e.address(50)));
        // A restarted control finds it in the flows.
        b.restart_control();
        assert!(!comes(&mut b, 2, &back(outside.back().tcp(&data)), 1, &e.back().tcp(&data)));
        assert!(!comes(&mut b, 1, &e.tcp(&data), 2, &out(outside.tcp(&data))));
        let (view, fin) = (all(&b)[0], seg("FA", 900, 110, 0));
        assert_eq!((view.flows, view.connection.original.src(), view.from), (2, e.address(1), Some(PortId(1))));
        assert!(comes(&mut b, 2, &back(outside.back().tcp(&fin)), 1, &e.back().tcp(&fin)), "its end comes to control");
    }
}

#[test]
fn ports_are_shared_and_run_out() {
    let mut b = net(&[(1, "stateful\nsnat udp -> 10.0.0.50 port 2000-2003\n")]);
    let mut ports = BTreeSet::new();
    for port in 1000..1004 {
        let (out, _) = sent(&mut b, 1, &ends(1, 2, [port, 53]).udp(9));
        let outside = u16::from_be_bytes([out[0].1[34], out[0].1[35]]);
        assert!((2000..2004).contains(&outside) && ports.insert(outside), "{outside} of {ports:?}");
        let expected = via(ends(50, 2, [outside, 53]).udp(9), 1, 2);
        assert_eq!(out, [(2, expected)], "checksums follow");
        comes(&mut b, 2, &via(ends(2, 50, [53, outside]).udp(5), 2, 1), 1, &ends(2, 1, [53, port]).udp(5));
    }
    assert_eq!(dropped(&mut b, 1, &ends(1, 2, [1004, 53]).udp(9)), DropReason::CtLimit);
    comes(
        &mut b,
        1,
        &ends(1, 2, [1004, 53]).tcp(&seg("S", 1, 0, 0)),
        2,
        &ends(1, 2, [1004, 53]).tcp(&seg("S", 1, 0, 0)),
    );
    // When they end their ports are free again.
    b.poll(40_000);
    b.poll(10_000);
    sent(&mut b, 1, &ends(1, 2, [1004, 53]).udp(9)).0.first().expect("a free port");
}

#[test]
fn a_published_service_is_reached_and_answers_for_itself() {
    let mut b = net(&[(1, DNAT)]);
    let (client, inside) = (ends(2, 60, [50_000, 80]), ends(2, 1, [50_000, 8080]));
    let to_guest = |frame: Vec<u8>| via(frame, 2, 1);
    comes(&mut b, 2, &to_guest(client.tcp(&seg("S", 1, 0, 0))), 1, &inside.tcp(&seg("S", 1, 0, 0)));
    comes(&mut b, 1, &inside.back().tcp(&seg("SA", 9, 2, 0)), 2, &via(client.back().tcp(&seg("SA", 9, 2, 0)), 1, 2));
    comes(&mut b, 2, &to_guest(client.tcp(&seg("A", 2, 10, 5))), 1, &inside.tcp(&seg("A", 2, 10, 5)));
    let data = seg("PA", 10, 7, 100);
    comes(&mut b, 1, &inside.back().tcp(&data), 2, &via(client.back().tcp(&data), 1, 2));
    assert!(!comes(&mut b, 1, &inside.back().tcp(&data), 2, &via(client.back().tcp(&data), 1, 2)));
    assert!(!comes(&mut b, 2, &to_guest(client.tcp(&data)), 1, &inside.tcp(&data)));
    b.restart_control();
    assert!(!comes(&mut b, 1, &inside.back().tcp(&data), 2, &via(client.back().tcp(&data), 1, 2)));
    assert_eq!((all(&b).len(), all(&b)[0].from), (1, Some(PortId(2))));
    // Another port of the address is none of its business, and the guest's own connections stay as they are.
    let other = to_guest(ends(2, 60, [50_001, 81]).tcp(&seg("S", 1, 0, 0)));
    comes(&mut b, 2, &other, 1, &other);
    let own = ends(1, 2, [8080, 99]).tcp(&seg("S", 1, 0, 0));
    comes(&mut b, 1, &own, 2, &own);
}

#[test]
fn each_list_sees_what_its_guest_sends_and_gets() {
    let to_3 = "stateful\ndefault to-guest deny\npermit to-guest tcp from 10.0.0.50 to 10.0.0.3 port 8080\n\
                dnat tcp to 10.0.0.60 port 80 -> 10.0.0.3 port 8080\n";
    let from_1 = format!("{SNAT}default from-guest deny\npermit from-guest tcp from 10.0.0.1 to 10.0.0.60\n");
    let mut b = net(&[(1, &from_1), (3, to_3)]);
    let (e, inside) = (Ends { hosts: [1, 60], ..ends(1, 3, [40_000, 80]) }, ends(50, 3, [40_000, 8080]));
    let (syn, answer) = (seg("S", 1, 0, 0), seg("SA", 7, 2, 0));
    comes(&mut b, 1, &via(e.tcp(&syn), 1, 3), 3, &via(inside.tcp(&syn), 1, 3));
    comes(&mut b, 3, &via(inside.back().tcp(&answer), 3, 1), 1, &via(e.back().tcp(&answer), 3, 1));
    let other = Ends { hosts: [1, 3], ports: [40_000, 8080], ..e };
    assert_eq!(dropped(&mut b, 1, &other.tcp(&syn)), DropReason::Acl, "what it sends is judged as it sends it");
    let mut b = net(&[(1, SNAT), (3, &to_3.replace(".50", ".1"))]);
    assert_eq!(dropped(&mut b, 1, &via(e.tcp(&syn), 1, 3)), DropReason::Acl, "what it gets is judged as it gets it");
    assert!(all(&b).is_empty());
}

#[test]
fn errors_about_translated_packets_find_their_sender() {
    for e in both() {
        let text = if e.v6 { "stateful\nsnat from fd00::1 -> fd00::32\n" } else { SNAT };
        let (mut b, outside) = (net(&[(1, text)]), behind(e, 50));
        let asked = e.udp(9);
        comes(&mut b, 1, &asked, 2, &via(outside.udp(9), 1, 2));
        let error = outside.back().error(&outside.udp(9));
        for _ in 0..2 {
            assert!(comes(&mut b, 2, &via(error.clone(), 2, 3), 1, &e.back().error(&asked)), "each is judged");
        }
        let other = outside.back().error(&Ends { ports: [1, 2], ..outside }.udp(9));
        assert_eq!(dropped(&mut b, 2, &via(other, 2, 1)), DropReason::CtInvalid);
    }
    let mut b = net(&[(1, &DNAT.replace("tcp", "udp"))]);
    let (client, inside) = (ends(2, 60, [50_000, 80]), ends(2, 1, [50_000, 8080]));
    comes(&mut b, 2, &via(client.udp(9), 2, 1), 1, &inside.udp(9));
    comes(&mut b, 1, &inside.back().error(&inside.udp(9)), 2, &via(client.back().error(&client.udp(9)), 1, 2));
}

#[test]
fn fragments_and_echoes_are_translated_and_what_cannot_be_is_dropped() {
    let mut b = net(&[(1, SNAT)]);
    let (ping, outside) = (ends(1, 2, [0, 0]), ends(50, 2, [0, 0]));
    comes(&mut b, 1, &ping.echo(false, 7), 2, &via(outside.echo(false, 7), 1, 2));
    comes(&mut b, 2, &via(outside.back().echo(true, 7), 2, 1), 1, &ping.back().echo(true, 7));
    assert!(!comes(&mut b, 2, &via(outside.back().echo(true, 7), 2, 1), 1, &ping.back().echo(true, 7)));
    let e = ends(1, 2, [1000, 53]);
    // A later fragment has nothing but addresses.
    let fragment = |e: Ends, offset: u16| {
        let mut frame = e.udp(64);
        frame[18..22].copy_from_slice(&[0, 7, (offset >> 8) as u8 | 0x20 & !((offset > 0) as u8 * 0x20), offset as u8]);
        frame[24..26].fill(0);
        if offset > 0 {
            frame[34..].fill(0xaa);
        }
        let sum = lasthop_frame::sum::finish(lasthop_frame::sum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let out = behind(e, 50);
    comes(&mut b, 1, &fragment(e, 0), 2, &via(fragment(out, 0), 1, 2));
    comes(&mut b, 1, &fragment(e, 9), 2, &via(fragment(out, 9), 1, 2));
    assert_eq!(dropped(&mut b, 1, &ends(1, 2, [5, 6]).tcp(&seg("SR", 1, 0, 0))), DropReason::CtInvalid);
    // A connection of a neighbour has the same addresses.
    let (mut b, forged) = (net(&[(1, SNAT), (3, "stateful\n")]), |e: Ends| via(e.udp(9), 3, 2));
    comes(&mut b, 3, &forged(e), 2, &forged(e));
    comes(&mut b, 2, &via(e.back().udp(9), 2, 3), 3, &via(e.back().udp(9), 2, 3));
    assert_eq!(dropped(&mut b, 1, &e.udp(9)), DropReason::CtInvalid);
}

#[test]
fn what_is_exempt_stays_and_no_wide_flow_hides_what_is_translated() {
    let exempt = "stateful\nsnat to 10.0.0.3 -> none\nsnat from 10.0.0.1 -> 10.0.0.50\n";
    let mut b = net(&[(1, exempt)]);
    let near = ends(1, 3, [1, 2]).udp(9);
    comes(&mut b, 1, &near, 3, &near);
    // The station at port 3 has no list, and a flow that carries what the network sends it; but not what belongs to port 1.
    let plain = ends(2, 3, [9, 9]).udp(9);
    comes(&mut b, 2, &plain, 3, &plain);
    assert!(!comes(&mut b, 2, &ends(2, 3, [9, 10]).udp(9), 3, &ends(2, 3, [9, 10]).udp(9)));
    let e = ends(1, 2, [1000, 53]);
    comes(&mut b, 1, &e.udp(9), 2, &via(behind(e, 50).udp(9), 1, 2));
    comes(&mut b, 2, &via(behind(e, 50).back().udp(9), 2, 3), 1, &e.back().udp(9));
    // A rule of a receiver that denies the address inside does not hide that it is another one outside.
    let deny = "default to-guest permit\ndeny to-guest udp from 10.0.0.1\n";
    let mut b = net(&[(1, exempt), (2, deny)]);
    comes(&mut b, 1, &e.udp(9), 2, &via(behind(e, 50).udp(9), 1, 2));
}

#[test]
fn the_trace_names_the_translation() {
    let mut b = net(&[(1, SNAT)]);
    let e = ends(1, 2, [1000, 53]);
    let explain = |b: &Bench, port: u32, frame: &[u8]| {
        let mut key = FlowKey { in_port: port, ..FlowKey::default() };
        extract(&mut key, frame, frame.len(), Depth::Full);
        let headers = Headers { bytes: frame, frame_len: frame.len() };
        b.policy.explain(&key, headers, b.now_ms, |id| format!("vm{id}"))
    };
    let said = explain(&b, 1, &e.udp(9));
    let line = "guests access list, snat 1 at vm1 decides (snat from 10.0.0.1 -> 10.0.0.50): it goes on as 10.0.0.50 port 1000 to 10.0.0.2 port 53";
    assert!(said.lines.iter().any(|of| of == line), "{said:#?}");
    comes(&mut b, 1, &e.udp(9), 2, &via(behind(e, 50).udp(9), 1, 2));
    let said = explain(&b, 2, &via(behind(e, 50).back().udp(9), 2, 3));
    let line = "its connection is translated: it goes on as 10.0.0.2 port 53 to 10.0.0.1 port 1000, to the station 02:00:00:00:00:01";
    assert!(said.lines.iter().any(|of| of == line), "{said:#?}");
    assert_eq!(said.outputs, [PortId(1)]);
}

#[test]
fn what_nobody_asked_for_holds_no_port_of_a_translated_address() {
    let mut b = net(&[(1, "stateful\nsnat udp from 10.0.0.1 -> 10.0.0.50 port 2000-2003\n")]);
    for port in 2000..2004 {
        let frame = ends(2, 50, [53, port]).udp(9);
        assert_eq!(dropped(&mut b, 2, &via(frame.clone(), 2, 1)), DropReason::CtInvalid);
        let near = via(frame, 2, 3);
        comes(&mut b, 2, &near, 3, &near);
        assert!(!comes(&mut b, 2, &near, 3, &near), "there is a flow");
    }
    assert!(all(&b).is_empty(), "{:?}", all(&b));
    for port in 1000..1004 {
        let (out, _) = sent(&mut b, 1, &ends(1, 2, [port, 53]).udp(9));
        let outside = u16::from_be_bytes([out[0].1[34], out[0].1[35]]);
        comes(&mut b, 2, &via(ends(2, 50, [53, outside]).udp(5), 2, 3), 1, &ends(2, 1, [53, port]).udp(5));
    }
    let refused = b.policy.connection_stats().expect("a tracker").refused;
    assert!(refused.iter().any(|(name, _)| *name == "unasked"), "{refused:?}");
    // What a line publishes is asked for, be it at its own address.
    let mut b = net(&[(1, "stateful\nsnat from 10.0.0.1 -> 10.0.0.50\ndnat udp to 10.0.0.50 port 53 -> 10.0.0.50\n")]);
    let frame = via(ends(2, 50, [5000, 53]).udp(9), 2, 1);
    comes(&mut b, 2, &frame, 1, &frame);
    assert_eq!(all(&b).len(), 1);
}

#[test]
fn no_port_takes_all_of_a_shared_address() {
    let text = "stateful\nsnat udp -> 10.0.0.50 port 2000-2007\n";
    let mut b = net(&[(1, text), (3, text)]);
    let mut opens = |b: &mut Bench, host: u8, ports: [u16; 2]| {
        let frame = ends(host, 2, ports).udp(9);
        let (actions, _) = b.frame(u32::from(host), &frame);
        !matches!(*actions, [Action::Drop(DropReason::CtLimit)])
    };
    let opened = |b: &mut Bench, host, server, opens: &mut dyn FnMut(&mut Bench, u8, [u16; 2]) -> bool| {
        (1000..1008).filter(|port| opens(b, host, [*port, server])).count()
    };
    assert_eq!([opened(&mut b, 1, 53, &mut opens), opened(&mut b, 3, 53, &mut opens)], [2, 2], "a quarter each");
    assert_eq!(opened(&mut b, 1, 54, &mut opens), 2, "of another server's all are free");
    let refused = b.policy.connection_stats().expect("a tracker").refused;
    assert!(refused.contains(&("address_share", 18)), "{refused:?}");
    b.set(1, PortSettings::default().change([("nat-ports", "5")]).unwrap());
    assert_eq!(opened(&mut b, 1, 53, &mut opens), 5);
    b.poll(40_000);
    b.poll(10_000);
    assert_eq!(opened(&mut b, 3, 53, &mut opens), 2, "they are free again");
    // One alone may have all, and one that takes the address without being translated has a share, too.
    let mut b = net(&[(1, text), (3, "stateful\n")]);
    assert_eq!(opened(&mut b, 1, 53, &mut opens), 8);
    b.set(3, PortSettings::default().change([("nat-ports", "1")]).unwrap());
    let forged = |port| via(ends(50, 2, [port, 99]).udp(9), 3, 2);
    comes(&mut b, 3, &forged(1), 2, &forged(1));
    assert_eq!(dropped(&mut b, 3, &forged(2)), DropReason::CtLimit);
}

#[test]
fn a_shared_lists_translations_are_tried_once_for_all_ports_and_count_as_rules() {
    const LINES: u64 = 1000;
    let line = |n: u64| format!("dnat tcp to 10.9.{}.{} port 80 -> 10.0.0.1 port 8080\n", n / 250, n % 250);
    let list = lists(&(0..LINES).fold("stateful\n".to_owned(), |text, n| text + &line(n)));
    // What a flood to so many ports compares, where that many of them have the list.
    let compared = |ports: u32, with: u32| {
        let mut b = Bench::new(Limits { connections: 1024, ..Limits::default() }, ports);
        b.load((2..2 + with).map(|port| (PortId(port), list.clone())).collect());
        let before = b.policy.rules_compared();
        let (out, _) = sent(&mut b, 1, &via(ends(1, 2, [40_000, 53]).udp(9), 1, 99));
        assert_eq!(out.len(), ports as usize - 1, "flooded");
        b.policy.rules_compared() - before
    };
    let one = compared(12, 1);
    assert!(one >= LINES, "{one}: they are counted");
    assert_eq!(compared(12, 11), one, "they are tried once");
}

#[test]
fn answers_find_who_opened_the_connection_when_his_address_is_forgotten() {
    let mut b = net(&[(1, SNAT)]);
    let (e, outside) = (ends(1, 2, [40_000, 80]), ends(50, 2, [40_000, 80]));
    let back = |frame: Vec<u8>| via(frame, 2, 3);
    sent(&mut b, 1, &e.tcp(&seg("S", 100, 0, 0)));
    sent(&mut b, 2, &back(outside.back().tcp(&seg("SA", 500, 101, 0))));
    sent(&mut b, 1, &e.tcp(&seg("A", 101, 501, 9)));
    for _ in 0..4 {
        b.poll(100_000);
    }
    assert_eq!((b.policy.mac_count(), all(&b)[0].flows), (0, 0), "all but the connection is forgotten");
    let data = seg("PA", 501, 110, 300);
    comes(&mut b, 2, &back(outside.back().tcp(&data)), 1, &e.back().tcp(&data));
    assert!(!comes(&mut b, 2, &back(outside.back().tcp(&data)), 1, &e.back().tcp(&data)));
}

/// How many new connections control manages in a second, with what it takes to judge, remember and answer. Printed, not asserted:
/// `cargo test -p lasthop-policy -- --ignored --nocapture figures_of_new`.
#[test]
#[ignore = "prints figures"]
fn figures_of_new_connections() {
    const MANY: u32 = 40_000;
    for (name, text) in
        [("without translation", "stateful\n"), ("snat", "stateful\nsnat -> 10.0.0.50-10.0.0.59 port 1024-65535\n")]
    {
        let text = text.replace("snat ->", "snat any ->");
        let best = (0..5).map(|_| {
            let mut b = net(&[(1, &text)]);
            b.policy = Learning::default();
            b.attach();
            (1..=3u8).for_each(|host| drop(b.frame(u32::from(host), &arp(host))));
            let frames: Vec<_> =
                (0..MANY).map(|n| ends(1, 2 + (n / 20_000) as u8, [1024 + (n % 20_000) as u16, 53]).udp(9)).collect();
            let keys = frames.iter().map(|frame| {
                let mut key = FlowKey { in_port: 1, ..FlowKey::default() };
                extract(&mut key, frame, frame.len(), Depth::Full);
                key
            });
            let packets: Vec<_> = frames.iter().zip(keys).collect();
            let begin = std::time::Instant::now();
            let mut out = crate::Effects::default();
            for (n, (frame, key)) in packets.iter().enumerate() {
                b.policy.packet(n as u64, key, Headers { bytes: frame, frame_len: frame.len() }, b.now_ms, &mut out);
            }
            let took = begin.elapsed();
            assert_eq!((out.resumes.len(), b.policy.connection_count()), (MANY as usize, MANY as usize));
            took
        });
        let best = best.min().expect("five rounds");
        println!("{name}: {:.0} new connections a second, best of five rounds", f64::from(MANY) / best.as_secs_f64());
    }
}
