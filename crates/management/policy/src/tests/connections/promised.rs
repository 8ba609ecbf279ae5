//! A trace promises nothing that is then dropped for want of room.

use super::*;

/// What is said of a frame, and whether it is to go anywhere.
fn traced(b: &Bench, port: u32, frame: &[u8]) -> (String, bool) {
    let mut key = FlowKey { in_port: port, ..FlowKey::default() };
    lasthop_frame::extract(&mut key, frame, frame.len(), lasthop_frame::Depth::Full);
    let headers = Headers { bytes: frame, frame_len: frame.len() };
    let said = b.policy.explain(&key, headers, b.now_ms, |id| format!("c{id}"));
    (said.lines.join("; "), !said.outputs.is_empty())
}

/// The trace of a frame that is then dropped for want of room.
fn refused(b: &mut Bench, frame: &[u8]) -> String {
    let (said, goes) = traced(b, 1, frame);
    assert_eq!(why(b, 1, frame), DropReason::CtLimit);
    let (port, why, denied) = b.policy.denied().next().expect("no flow counts it, so control does");
    assert_eq!((port, why.0, denied.packets), (PortId(1), DropReason::CtLimit, 1));
    assert!(denied.packet.is_some());
    assert!(!goes, "{said}");
    said
}

#[test]
fn of_a_port_that_has_as_many_connections_as_it_may() {
    let mut b = net(GROUP);
    b.set(1, PortSettings::default().change([("connections", "2")]).unwrap());
    for port in 0..2 {
        let frame = ends(1, 2, [40_000 + port, 53]).udp(9);
        assert!(traced(&b, 1, &frame).1 && passes(&mut b, 1, &frame));
    }
    let said = refused(&mut b, &ends(1, 2, [41_000, 53]).udp(9));
    assert!(
        said.ends_with("it would open a connection, but c1 has 2 of 2 (connections=2): dropped (ct_limit)"),
        "{said}"
    );
    // What is open goes on, and what a list denies is denied by that list.
    assert!(traced(&b, 1, &ends(1, 2, [40_000, 53]).udp(9)).1);
    assert!(!traced(&b, 2, &ends(2, 1, [40_000, 5]).udp(9)).0.contains("but"));
}

#[test]
fn of_a_translation_that_is_used_up() {
    let mut b = net("stateful\nsnat from any -> 10.0.0.77 port 2000-2001\n");
    b.set(1, PortSettings::default().change([("nat-ports", "9")]).unwrap());
    for port in [1000, 2000] {
        let frame = ends(1, 2, [port, 6000]).udp(9);
        let (said, goes) = traced(&b, 1, &frame);
        assert!(goes && passes(&mut b, 1, &frame), "{said}");
        // The port that it names is the one that it gets.
        let of = all(&b).into_iter().find(|view| view.connection.original.ports()[0] == port).unwrap();
        let to = of.connection.reply.ports()[1];
        assert!(said.contains(&format!("10.0.0.77 port {to} to")), "{said}: {to}");
    }
    let said = refused(&mut b, &ends(1, 2, [3000, 6000]).udp(9));
    assert!(
        said.contains("no address and port is free to translate it to (no_translation): dropped (ct_limit)"),
        "{said}"
    );
    assert!(traced(&b, 1, &ends(1, 2, [3000, 6001]).udp(9)).1, "another server is another matter");
}

#[test]
fn of_a_share_of_an_address_that_is_used_up() {
    let mut b = net("stateful\nsnat from any -> 10.0.0.77\n");
    b.set(1, PortSettings::default().change([("nat-ports", "1")]).unwrap());
    assert!(passes(&mut b, 1, &ends(1, 2, [3000, 6000]).udp(9)));
    let said = refused(&mut b, &ends(1, 2, [3001, 6000]).udp(9));
    assert!(
        said.contains("c1 holds 1 port of the translated address towards that server, its share (address_share)"),
        "{said}"
    );
}

#[test]
fn of_a_table_that_nobody_has_memory_for() {
    let mut b = Bench::new(Limits { connections: usize::MAX / 4, ..Limits::default() }, 3);
    b.load([(PortId(1), lists(GROUP))].into());
    (1..=3u8).for_each(|host| drop(b.frame(u32::from(host), &arp(host))));
    let (said, goes) = traced(&b, 1, &ends(1, 2, [1, 2]).udp(9));
    assert!(!goes && said.contains("there is no memory for the table of connections"), "{said}");
}
