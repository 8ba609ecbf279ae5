//! Stations whose ports go down: VMs that move, stop or flap.

use super::*;

/// A VM that has moved to another port and has not spoken there yet: what goes to it must not end at the port that it has left, and must
/// not miss that either: its guest may be back there, and its packets come before we are told.
#[test]
fn a_station_whose_port_is_down_is_looked_for_everywhere() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(2, mac(2), mac(1)));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    b.port(4, false);
    b.port(2, false);
    let asked = b.next_id;
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[3, 2]), "the flow that there was");
    b.port(4, true);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[3, 4, 2]), "where it is now gets it");
    assert_eq!(b.next_id, asked, "without a miss");
    assert_eq!(b.packet(&key(3, mac(3), mac(2))), outputs(&[1, 4, 2]), "a flow that is new");
    let e = b.policy.explain(&key(1, mac(1), mac(2)), Headers::default(), b.now_ms, |id| format!("p{id}"));
    let said = "destination 52:54:00:00:00:02 lives at p2, which is not up: flooded to the 2 other ports that are up";
    assert_eq!(e.lines[1], said, "{:?}", e.lines);
    // The address is known as before: for whoever writes down what the port has learned, and for the port when it is back.
    assert_eq!(b.home(0, mac(2)), Some(PortId(2)));
    b.port(2, true);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    // It speaks elsewhere: it lives there.
    b.port(2, false);
    b.packet(&key(4, mac(2), mac(1)));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[4]));
}

/// The network behind an uplink is nowhere else, and where somebody says that a station lives it does.
#[test]
fn a_station_behind_an_uplink_and_one_that_is_static_are_not_looked_for() {
    let mut b = Bench::new(Limits::default(), 4);
    b.set_uplinks([(PortId(2), None)].into());
    b.set(3, "static-mac=52:54:00:00:00:03".to_owned().try_into().unwrap());
    b.packet(&key(2, mac(2), mac(1)));
    for port in [2, 3] {
        b.port(port, false);
        assert_eq!(b.packet(&key(1, mac(1), mac(port as u8))), outputs(&[port]));
    }
}

/// A front-end connects to a new switch a moment after the others: what is sent to it passes as soon as it is there.
#[test]
fn whose_port_is_not_up_yet_behind_a_new_switch_has_not_left() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(2, mac(2), mac(1)));
    b.table.clear();
    b.policy.attached();
    [1, 3].iter().for_each(|port| b.port(*port, true));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
}

/// Else a guest could have the flows of all who send to it put again as often as it likes.
#[test]
fn what_goes_to_a_station_whose_port_flaps_is_left_alone() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(2, mac(2), mac(1)));
    b.packet(&key(1, mac(1), mac(2)));
    for _ in 0..MAX_FLAPS / 2 {
        b.port(2, false);
        b.port(2, true);
    }
    b.most_changes = 0;
    b.port(2, false);
    assert_eq!((b.most_changes, b.packet(&key(1, mac(1), mac(2)))), (0, outputs(&[2])));
    b.poll(FLAP_WINDOW_MS);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[3, 2]), "it has been quiet");
}
