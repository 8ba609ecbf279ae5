//! Connections of a guest that comes from another lasthop.

use super::*;
use crate::testutil::Bench;
use lasthop_conntrack::Tuple;

fn tcp(e: Ends) -> Tuple {
    let address = |host: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, host];
    Tuple::new(e.hosts.map(address), e.ports, 6, false, 0)
}

fn adopt(b: &mut Bench, e: Ends) -> Result<bool, &'static str> {
    let (original, ends, now_ms) = (tcp(e), e.hosts.map(|host| PortId(u32::from(host))), b.now_ms);
    let mut out = Effects::default();
    let adopted = b.policy.adopt_connection(original, ends, now_ms, &mut out);
    b.carry_out(out);
    adopted
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
    let mut b = net(GROUP);
    assert!(adopt(&mut b, ends(2, 3, [1, 2])).unwrap_err().contains("no stateful access list"));
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
