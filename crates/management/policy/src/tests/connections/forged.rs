//! A neighbour that forges addresses: it neither becomes the peer of somebody else's connection, nor keeps others from answers.

use super::*;
use crate::Mirrored;

const PASSED: &str = "stateful\ndefault to-guest deny\npermit to-guest udp\n";

/// The frame goes to nobody who is known: it is flooded.
fn flooded(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0x99]);
    forged(frame)
}

/// Ports 1 to 4, of which those named have the group.
fn four(group: &[u32]) -> Bench {
    let mut b = Bench::new(Limits { connections: 1024, ..Limits::default() }, 4);
    b.load(group.iter().map(|port| (PortId(*port), lists(GROUP))).collect());
    for host in 1..=4u8 {
        b.frame(u32::from(host), &arp(host));
    }
    b
}

/// Host 3 floods what looks like an answer of host 2's to host 1; host 1 then asks host 2.
#[test]
fn what_was_flooded_past_a_guest_is_not_answered_by_it() {
    let dns = ends(1, 2, [40_000, 53]);
    let mut accomplice = four(&[1, 3]);
    accomplice.load([(PortId(1), lists(GROUP)), (PortId(3), lists(GROUP)), (PortId(2), lists(PASSED))].into());
    for mut b in [four(&[1]), accomplice] {
        assert!(passes(&mut b, 3, &flooded(dns.back().udp(9))));
        assert!(passes(&mut b, 1, &dns.udp(9)));
        assert!(passes(&mut b, 2, &dns.back().udp(9)), "the real answer");
        for _ in 0..2 {
            assert_eq!(why(&mut b, 3, &forged(dns.back().udp(9))), DropReason::Acl);
        }
    }
    let (web, mut b) = (ends(1, 2, [40_000, 80]), four(&[1]));
    assert!(passes(&mut b, 3, &flooded(web.back().tcp(&seg("S", 500, 0, 0)))));
    assert!(passes(&mut b, 1, &web.tcp(&seg("S", 100, 0, 0))));
    assert!(passes(&mut b, 2, &web.back().tcp(&seg("SA", 500, 101, 0))));
    assert_eq!(why(&mut b, 3, &forged(web.back().tcp(&seg("SA", 500, 101, 0)))), DropReason::Acl);
    assert_eq!(why(&mut b, 3, &forged(web.back().tcp(&seg("PA", 501, 101, 10)))), DropReason::Acl);
}

/// Host 3 opens host 1's connections before host 1 does.
#[test]
fn a_connection_that_nobody_has_answered_gives_way() {
    let mut b = four(&[1, 2, 3]);
    let (dns, web) = (ends(1, 4, [40_000, 53]), ends(1, 4, [40_000, 80]));
    assert!(passes(&mut b, 3, &forged(dns.udp(9))));
    assert!(passes(&mut b, 1, &dns.udp(9)) && passes(&mut b, 4, &dns.back().udp(9)));
    for _ in 0..20 {
        b.poll(10_000);
        assert!(passes(&mut b, 3, &forged(dns.udp(9))), "it is judged as one that opens a connection");
        assert!(carried(&mut b, 1, &dns.udp(9)) && passes(&mut b, 4, &dns.back().udp(9)), "an answered one stays");
    }
    assert!(passes(&mut b, 3, &forged(web.tcp(&seg("S", 500, 0, 0)))));
    assert!(passes(&mut b, 1, &web.tcp(&seg("S", 100, 0, 0))));
    assert!(passes(&mut b, 4, &web.back().tcp(&seg("SA", 500, 101, 0))));
}

/// What is denied takes nobody's place.
#[test]
fn a_denied_packet_displaces_nothing() {
    let mut b = four(&[1, 2]);
    let dns = ends(1, 4, [40_000, 53]);
    assert!(passes(&mut b, 1, &dns.udp(9)));
    b.load([(PortId(1), lists(GROUP)), (PortId(3), lists("stateful\ndefault from-guest deny\n"))].into());
    assert!(passes(&mut b, 1, &dns.udp(9)));
    assert_eq!(why(&mut b, 3, &forged(dns.udp(9))), DropReason::Acl);
    assert!(passes(&mut b, 4, &dns.back().udp(9)));
}

/// A number is given to one port at a time, also while the connections of one that was removed are being ended.
#[test]
fn ports_do_not_share_a_limit() {
    let mut b = Bench::new(Limits { connections: 65_536, ..Limits::default() }, 3);
    b.load((1..=3).map(|port| (PortId(port), lists(GROUP))).collect());
    for host in 1..=3u8 {
        b.frame(u32::from(host), &arp(host));
    }
    let syn = |from, to, port| ends(from, to, [port, 22]).tcp(&seg("S", 1, 0, 0));
    assert!(passes(&mut b, 1, &syn(1, 3, 1000)) && passes(&mut b, 2, &syn(2, 3, 1000)));
    b.parts = Some(1);
    b.port_gone(1);
    assert!((0..5).all(|n| passes(&mut b, 3, &syn(3, 2, 2000 + n))));
    let owned = b.policy.connection_stats().unwrap().ports;
    assert_eq!(owned.iter().map(|(port, owned, _)| (port.0, *owned)).collect::<Vec<_>>(), [(2, 1), (3, 5)]);
    b.parts = None;
}

#[test]
fn what_is_over_a_limit_is_mirrored_as_all_that_is_dropped() {
    let mut b = four(&[1]);
    b.mirror(vec![(vec![1], 4, Mirrored::FromGuest)]);
    b.set(1, PortSettings::default().change([("connections", "1")]).unwrap());
    let copy = Action::Copy(PortId(4));
    assert_eq!(b.frame(1, &ends(1, 2, [40_000, 53]).udp(9)).0, [copy, Action::Output(PortId(2))]);
    assert_eq!(b.frame(1, &ends(1, 2, [40_001, 53]).udp(9)).0, [copy, Action::Drop(DropReason::CtLimit)]);
}
