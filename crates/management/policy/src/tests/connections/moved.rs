//! Connections of a guest that comes from another lasthop.

use super::*;
use crate::testutil::Bench;
use lasthop_conntrack::Tuple;

fn tcp(e: Ends) -> Tuple {
    let address = |host: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, host];
    Tuple::new(e.hosts.map(address), e.ports, 6, false, 0)
}

/// Of host 1, which has come to port 1.
fn adopt(b: &mut Bench, e: Ends) -> Result<bool, &'static str> {
    let (mut out, now_ms) = (Effects::default(), b.now_ms);
    let adopted = b.policy.adopt_connection(tcp(e), PortId(1), e.hosts[0] == 1, now_ms, &mut out);
    b.carry_out(out);
    adopted
}

/// The ports of the only connection.
fn ports(b: &Bench) -> [Option<PortId>; 2] {
    let [view] = &all(b)[..] else { panic!("{:?}", all(b)) };
    [view.from, view.reply]
}

/// Port 1's list and port 2's.
fn two(first: &str, second: &str) -> Bench {
    let mut b = net(first);
    b.load([(PortId(1), lists(first)), (PortId(2), lists(second))].into());
    b
}

const ONLY_ANSWERS: &str =
    "stateful\ndefault from-guest deny\ndefault to-guest deny\npermit to-guest tcp to any port 22\n";

#[test]
fn the_other_end_of_what_the_guest_has_opened_is_who_answers_or_where_it_goes() {
    for guest_first in [false, true] {
        let (mut b, e) = (net(GROUP), ends(1, 2, [40_000, 80]));
        assert_eq!(adopt(&mut b, e), Ok(true));
        assert_eq!(ports(&b), [Some(PortId(1)), None]);
        let answer = e.back().tcp(&seg("A", 700, 300, 10));
        if guest_first {
            assert!(passes(&mut b, 1, &e.tcp(&seg("A", 300, 700, 10))));
        } else {
            assert!(passes(&mut b, 2, &answer));
        }
        assert_eq!(ports(&b), [Some(PortId(1)), Some(PortId(2))], "guest first: {guest_first}");
        assert!(!passes(&mut b, 3, &answer), "another port says the same");
        assert!(passes(&mut b, 2, &answer));
    }
}

#[test]
fn the_other_end_of_what_was_opened_to_the_guest_is_who_says_so_or_where_its_answer_goes() {
    for guest_first in [false, true] {
        let (mut b, e) = (net(ONLY_ANSWERS), ends(2, 1, [40_000, 22]));
        let answer = e.back().tcp(&seg("A", 700, 300, 10));
        assert!(!passes(&mut b, 1, &answer), "it may only answer");
        assert_eq!(adopt(&mut b, e), Ok(true));
        assert_eq!(ports(&b), [None, Some(PortId(1))]);
        if guest_first {
            assert!(passes(&mut b, 1, &answer));
        } else {
            assert!(passes(&mut b, 2, &e.tcp(&seg("A", 300, 700, 10))));
        }
        assert_eq!(ports(&b), [Some(PortId(2)), Some(PortId(1))], "guest first: {guest_first}");
        assert!(carried(&mut b, 1, &answer) || passes(&mut b, 1, &answer));
    }
}

/// A file makes nobody an end whose own lists do not let it be one.
#[test]
fn lists_of_a_neighbour_say_whether_it_may_be_the_other_end() {
    // It may open nothing, and take nothing.
    let mut b = two(ONLY_ANSWERS, "stateful\ndefault from-guest deny\ndefault to-guest deny\n");
    let (opened, asked) = (ends(2, 1, [40_000, 22]), ends(1, 2, [40_001, 80]));
    assert_eq!((adopt(&mut b, opened), adopt(&mut b, asked)), (Ok(true), Ok(true)));
    assert!(!passes(&mut b, 2, &opened.tcp(&seg("A", 300, 700, 10))));
    assert!(!passes(&mut b, 1, &opened.back().tcp(&seg("A", 700, 300, 10))));
    assert!(!passes(&mut b, 2, &asked.back().tcp(&seg("A", 700, 300, 10))));
    // It may open this one, and its list lets in what answers.
    let mut b = two(ONLY_ANSWERS, "stateful\ndefault to-guest deny\n");
    assert_eq!(adopt(&mut b, opened), Ok(true));
    assert!(passes(&mut b, 1, &opened.back().tcp(&seg("A", 700, 300, 10))));
    assert!(passes(&mut b, 2, &opened.tcp(&seg("A", 300, 710, 10))));
    assert_eq!(ports(&b), [Some(PortId(2)), Some(PortId(1))]);
}

/// Its neighbour has known the guest where it was, such as behind an uplink.
#[test]
fn what_other_ports_have_is_theirs() {
    let mut b = two(GROUP, GROUP);
    let e = ends(2, 3, [40_000, 80]);
    handshake(&mut b, e);
    let mut out = Effects::default();
    let known = b.policy.adopt_connection(tcp(e), PortId(1), false, b.now_ms, &mut out);
    assert!(known.unwrap_err().contains("between other ports"), "{known:?}");
}

#[test]
fn what_a_guest_has_opened_elsewhere_is_answered_here() {
    let (mut b, e) = (net(GROUP), ends(1, 2, [40_000, 80]));
    let answer = e.back().tcp(&seg("A", 700, 300, 10));
    assert!(!passes(&mut b, 2, &answer), "nobody knows of it, and the list lets none open that");
    assert_eq!(adopt(&mut b, e), Ok(true));
    assert!(passes(&mut b, 2, &answer) && passes(&mut b, 1, &e.tcp(&seg("A", 300, 710, 10))));
    assert!(carried(&mut b, 2, &e.back().tcp(&seg("A", 710, 310, 10))), "as any that is established");
    assert_eq!(adopt(&mut b, e), Ok(false), "once");
    assert!(!passes(&mut b, 3, &ends(3, 1, [80, 40_000]).tcp(&seg("A", 1, 1, 0))), "from nobody else");
}

#[test]
fn lists_in_force_judge_what_comes() {
    let (mut b, e) = (net(GROUP), ends(2, 1, [40_000, 80]));
    assert_eq!(adopt(&mut b, e), Ok(true));
    assert!(!passes(&mut b, 2, &e.tcp(&seg("A", 300, 700, 10))), "it may have been opened there, and not here");
    assert!(all(&b).is_empty(), "{:?}", all(&b));
}

#[test]
fn where_no_list_asks_about_connections_there_are_none() {
    let mut b = net("default to-guest deny\n");
    assert!(adopt(&mut b, ends(1, 2, [1, 2])).unwrap_err().contains("no stateful access list"));
}

#[test]
fn no_more_are_taken_than_the_port_may_open() {
    let mut b = net(GROUP);
    b.policy.set_settings(
        PortId(1),
        PortSettings { connections: Some(2), ..Default::default() },
        b.now_ms,
        &mut Effects::default(),
    );
    let adopted: Vec<_> = (1..=3).map(|port| adopt(&mut b, ends(1, 2, [port, 80]))).collect();
    assert_eq!(adopted[..2], [Ok(true), Ok(true)]);
    assert!(adopted[2].is_err(), "{adopted:?}");
}

/// Who opened it elsewhere is a name: a port that has it here is another guest's, and may open as many as before.
#[test]
fn what_others_opened_elsewhere_is_charged_to_nobody_else_and_leaves_room() {
    let mut b = net(GROUP);
    for port in [1, 2] {
        let settings = PortSettings { connections: Some(4), ..Default::default() };
        b.policy.set_settings(PortId(port), settings, b.now_ms, &mut Effects::default());
    }
    let adopted: Vec<_> = (1..=3).map(|port| adopt(&mut b, ends(2, 1, [40_000 + port, 80]))).collect();
    assert_eq!(adopted[..2], [Ok(true), Ok(true)]);
    assert!(adopted[2].unwrap_err().contains("half"), "{adopted:?}");
    assert_eq!(adopt(&mut b, ends(1, 2, [50_000, 80])), Ok(true), "the port's own");
    for port in 0..4 {
        assert!(passes(&mut b, 2, &ends(2, 3, [60_000 + port, 22]).tcp(&seg("S", 1, 0, 0))), "{port}");
    }
}

/// A port learns no address from a file that its guest could not have said.
#[test]
fn an_address_that_the_port_may_not_have_is_not_learned() {
    let mut b = net(GROUP);
    let own = MacAddr([2, 0, 0, 0, 0, 9]);
    let station = |b: &mut Bench, mac| b.policy.adopt_station(PortId(1), 0, mac, b.now_ms, &mut Effects::default());
    for (change, allowed) in [("mac=02:00:00:00:00:09", true), ("link=down", false)] {
        let settings = PortSettings::default().change([change.split_once('=').unwrap()]).unwrap();
        b.policy.set_settings(PortId(1), settings, b.now_ms, &mut Effects::default());
        assert!(!station(&mut b, MacAddr([2, 0, 0, 0, 0, 8])), "{change}");
        assert_eq!(station(&mut b, own), allowed, "{change}");
    }
}

#[test]
fn its_addresses_live_here_as_if_they_had_said_something() {
    let mut b = net(GROUP);
    let mut out = Effects::default();
    let station = |last| MacAddr([2, 0, 0, 0, 0, last]);
    assert!(b.policy.adopt_station(PortId(1), 0, station(9), b.now_ms, &mut out));
    assert!(!b.policy.adopt_station(PortId(1), 0, MacAddr::BROADCAST, b.now_ms, &mut out));
    assert!(!b.policy.adopt_station(PortId(1), 5000, station(8), b.now_ms, &mut out));
    assert!(!b.policy.adopt_station(PortId(77), 0, station(8), b.now_ms, &mut out), "there is no such port");
    let lives: Vec<_> = b.policy.macs(b.now_ms).filter(|m| m.port == PortId(1)).map(|m| m.mac).collect();
    assert!(lives.contains(&station(9)), "{lives:?}");
}
