//! Static addresses, addresses that somebody has forgotten, and cables that are pulled.

use super::*;
use crate::AGEING_MS;

fn told(text: &str) -> PortSettings {
    text.to_owned().try_into().unwrap()
}

fn dropped(reason: DropReason) -> [Action; 1] {
    [Action::Drop(reason)]
}

impl Bench {
    fn flush(&mut self, port: Option<u32>, vlan: Option<u16>) -> usize {
        let (mut gone, mut at) = (0, None);
        loop {
            let mut out = Effects::default();
            let (some, next) = self.policy.flush(at, 2, (port.map(PortId), vlan), self.now_ms, &mut out);
            self.apply(out);
            gone += some;
            assert!(some <= 2);
            match next {
                Some(next) => at = Some(next),
                None => return gone,
            }
        }
    }
}

#[test]
fn a_static_station_is_known_before_it_says_anything_and_neither_ages_nor_moves() {
    let mut b = Bench::new(Limits::default(), 3);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2, 3]));
    b.set(2, told("static-mac=52:54:00:00:00:02"));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]), "the flow that flooded has gone with it");
    b.poll(2 * AGEING_MS);
    b.poll(10_000);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]), "it does not age");
    // It is forwarded from elsewhere, and not learned there.
    assert_eq!(b.packet(&key(3, mac(2), mac(1))), outputs(&[1]));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]), "it does not move");
    assert_eq!(b.policy.port_view(PortId(3)).map(|v| v.moves_refused), Some(1));
    let mut out = Effects::default();
    b.policy.forget_addresses(PortId(2), b.now_ms, &mut out);
    b.apply(out);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]), "it stays where what was learned goes");
    b.set(2, told(""));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2, 3]));
    assert_eq!(b.packet(&key(3, mac(2), mac(1))), outputs(&[1]));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[3]), "it is learned like others");
}

#[test]
fn a_station_that_was_learned_elsewhere_is_static_at_once() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(3, mac(2), MacAddr::BROADCAST));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[3]));
    b.set(2, told("static-mac=52:54:00:00:00:02"));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    assert_eq!(b.policy.port_view(PortId(3)).map(|v| v.macs), Some(0));
    // The first of two that are told to have it; where that port goes, nobody has it until somebody says something.
    b.set(3, told("static-mac=52:54:00:00:00:02"));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    b.port_gone(2);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[3]));
}

/// The limits are for what guests make up.
#[test]
fn static_stations_take_no_room_from_what_is_learned() {
    let mut b = Bench::new(Limits { macs_per_port: 2, ..Limits::default() }, 2);
    b.set(1, told("static-mac=52:54:00:00:00:11,52:54:00:00:00:12,52:54:00:00:00:13"));
    for n in 1..=3 {
        b.packet(&key(1, mac(n), MacAddr::BROADCAST));
    }
    let view = b.policy.port_view(PortId(1)).unwrap();
    assert_eq!((view.macs, view.over_limit, b.policy.mac_count()), (2, 1, 5));
    b.poll(1000);
    for n in 0x11..=0x13 {
        assert_eq!(b.packet(&key(2, mac(20), mac(n))), outputs(&[1]));
    }
}

/// Without a VLAN of its own it is in that of frames without a tag, whatever that is.
#[test]
fn a_static_station_is_in_a_vlan() {
    let mut b = Bench::new(Limits::default(), 3);
    b.set(1, told("vlan=10 static-mac=52:54:00:00:00:01"));
    b.set(2, told("trunk=10:20 static-mac=52:54:00:00:00:02@20"));
    assert_eq!(b.home(10, mac(1)), Some(PortId(1)));
    assert_eq!((b.home(20, mac(2)), b.home(10, mac(2)), b.home(0, mac(2))), (Some(PortId(2)), None, None));
    assert_eq!(b.packet(&tagged(key(3, mac(3), mac(2)), 20)), outputs(&[2]));
    b.set(1, told("vlan=11 static-mac=52:54:00:00:00:01"));
    assert_eq!((b.home(10, mac(1)), b.home(11, mac(1))), (None, Some(PortId(1))));
    let (port, entry) = b.policy.static_mac(11, mac(1)).unwrap();
    assert_eq!((port.0, entry.to_string()), (1, "52:54:00:00:00:01".into()));
}

#[test]
fn what_was_learned_is_flushed_by_port_and_by_vlan() {
    let mut b = Bench::new(Limits::default(), 3);
    b.set(1, told("static-mac=52:54:00:00:00:09"));
    let learn = |b: &mut Bench| {
        b.packet(&key(1, mac(1), MacAddr::BROADCAST));
        b.packet(&key(2, mac(2), MacAddr::BROADCAST));
        b.packet(&tagged(key(2, mac(2), MacAddr::BROADCAST), 5));
    };
    learn(&mut b);
    assert_eq!(b.packet(&key(3, mac(3), mac(2))), outputs(&[2]));
    assert_eq!(b.flush(Some(2), Some(0)), 1);
    assert_eq!(b.packet(&key(3, mac(3), mac(2))), outputs(&[1, 2]), "the flow went with the address");
    assert_eq!(b.packet(&tagged(key(3, mac(3), mac(2)), 5)), outputs(&[2]), "of another VLAN");
    learn(&mut b);
    assert_eq!(b.flush(Some(2), None), 2);
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]), "of another port");
    learn(&mut b);
    assert_eq!(b.flush(None, Some(5)), 2);
    assert_eq!(b.flush(None, None), 3);
    assert_eq!(b.packet(&key(3, mac(3), mac(9))), outputs(&[1]), "a static one stays");
    assert_eq!(b.flush(None, None), 1);
    assert_eq!(b.policy.mac_count(), 1);
}

/// However many there are, and however many flows: who has asked waits, and first packets do not.
#[test]
fn a_full_table_is_flushed_in_steps() {
    let mut b = Bench::new(Limits::default(), 2);
    let station = |n: u32| MacAddr([2, 0, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
    for n in 0..3000 {
        b.packet(&key(1, station(n), mac(2)));
    }
    (b.most_changes, b.now_ms) = (0, b.now_ms + 10_000);
    let (mut at, mut gone, mut out) = (None, 0, Effects::default());
    for step in 1.. {
        let (some, next) = b.policy.flush(at, 100, (None, None), b.now_ms, &mut out);
        (gone, at) = (gone + some, next);
        assert_eq!(gone, step * 100);
        if at.is_none() || gone == 3000 {
            break;
        }
    }
    assert!(out.changes.len() <= b.limits.at_once, "{} at once", out.changes.len());
    assert_eq!(b.policy.mac_count(), 0);
    b.apply(out);
    assert!(b.table.is_empty(), "and the flows follow");
}

#[test]
fn nothing_passes_where_a_cable_is_pulled() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(2, mac(2), MacAddr::BROADCAST));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    b.set(2, told("link=down"));
    assert!(b.table.is_empty(), "its flows have gone");
    for _ in 0..2 {
        assert_eq!(b.packet(&key(1, mac(1), mac(2))), dropped(DropReason::PortDown));
        assert_eq!(b.packet(&key(1, mac(1), MacAddr::BROADCAST)), outputs(&[3]));
        assert_eq!(b.packet(&key(2, mac(2), mac(1))), dropped(DropReason::PortDown));
    }
    // What it sends teaches nothing.
    b.packet(&key(2, mac(3), mac(1)));
    assert_eq!(b.home(0, mac(3)), None);
    b.set(3, told("link=down"));
    assert_eq!(b.packet(&key(1, mac(1), MacAddr::BROADCAST)), dropped(DropReason::PortDown));
    b.set(2, told(""));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    assert_eq!(b.packet(&key(2, mac(2), mac(1))), outputs(&[1]));
}

/// Neither as mirrored nor as destination.
#[test]
fn nothing_is_copied_where_a_cable_is_pulled() {
    let copies = |b: &mut Bench| b.packet(&key(1, mac(1), mac(2))).first() == Some(&Action::Copy(PortId(3)));
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(2, mac(2), MacAddr::BROADCAST));
    b.mirror(vec![(vec![1], 3, Mirrored::Both)]);
    assert!(copies(&mut b));
    for port in [1, 3] {
        b.set(port, told("link=down"));
        assert!(!copies(&mut b), "{port}");
        let group = MacAddr([3; 6]);
        let actions = b.packet(&key(1, group, mac(2)));
        assert!(matches!(actions[..], [Action::Drop(_)]), "{port}: {actions:?}");
        assert_eq!(
            b.packet(&key(3, mac(5), mac(1))),
            dropped(if port == 1 { DropReason::MirrorPort } else { DropReason::PortDown })
        );
        b.set(port, told(""));
        assert!(copies(&mut b), "{port}");
    }
}

fn station(port: u32, n: u16) -> MacAddr {
    let [high, low] = n.to_be_bytes();
    MacAddr([2, port as u8, 0, 0, high, low])
}

/// Four ports with as many stations as each may have, which have sent something to all.
fn many_stations() -> Learning {
    let (mut policy, mut out) = (Learning::default(), Effects::default());
    (1..=4).for_each(|port| policy.port(PortId(port), true, 0, &mut out));
    for (port, n) in (1..=4).flat_map(|port| (0..4096).map(move |n| (port, n))) {
        policy.miss(0, &key(port, station(port, n), MacAddr::BROADCAST), 0, &mut out);
    }
    assert_eq!(policy.mac_count(), 16_384);
    policy
}

/// Puts everything right, and looks after each slice whether a packet from port 4 to a station of this port, which was forgotten, is answered as
/// it is to be: the slices, and most changes of one.
fn put_right(policy: &mut Learning, to: u32, now_ms: u64, answered: &[Action]) -> (usize, usize) {
    let (mut slices, mut most) = (0, 0);
    while policy.put_right_ms().is_some() {
        let (before, mut out) = (policy.mac_count(), Effects::default());
        policy.put_right(now_ms, &mut out);
        assert!(before - policy.mac_count() <= 4096, "{} at once", before - policy.mac_count());
        (slices, most) = (slices + 1, most.max(out.changes.len()));
        let mut out = Effects::default();
        policy.miss(7, &key(4, mac(1), station(to, slices as u16 % 4096)), now_ms, &mut out);
        assert_eq!(out.resumes[0].actions, answered, "after {slices} slices");
    }
    (slices, most)
}

/// All were forgotten in one go, and what followed for each was done in the same go: tens of milliseconds in which nobody was answered.
#[test]
fn many_addresses_age_some_at_a_time() {
    let (mut policy, mut out) = (many_stations(), Effects::default());
    policy.tick(AGEING_MS, &mut out);
    assert_eq!(policy.mac_count(), 12_288, "the first 4096 at once");
    let (slices, most) = put_right(&mut policy, 1, AGEING_MS, &outputs(&[1, 2, 3]));
    assert_eq!(policy.mac_count(), 1, "all but the one that has sent something since");
    let at_once = Limits::default().at_once;
    assert!(slices >= 16_384 / 256 && most <= 4 * at_once, "{slices} slices of up to {most} changes");
    let mut out = Effects::default();
    policy.tick(2 * AGEING_MS, &mut out);
    put_right(&mut policy, 1, 2 * AGEING_MS, &outputs(&[1, 2, 3]));
}

/// What a port holds beyond its share, since there are more ports, goes in the same way: what was not seen for longest.
#[test]
fn shares_that_become_smaller_are_kept_to_by_and_by() {
    let limits = Limits { macs: 16_384, ..Limits::default() };
    let (mut policy, mut out) = (Learning::new(limits), Effects::default());
    (1..=4).for_each(|port| policy.port(PortId(port), true, 0, &mut out));
    for n in 0..4096 {
        policy.miss(0, &key(1, station(1, n), MacAddr::BROADCAST), 1000 + u64::from(n), &mut out);
    }
    (5..=8).for_each(|port| policy.port(PortId(port), true, 6000, &mut out));
    policy.tick(6000, &mut out);
    while policy.put_right_ms().is_some() {
        policy.put_right(6000, &mut out);
    }
    let kept: Vec<_> = policy.macs(6000).map(|view| view.mac).collect();
    assert_eq!(kept, (2048..4096).map(|n| station(1, n)).collect::<Vec<_>>());
}

#[test]
fn the_many_addresses_of_a_port_that_goes_are_forgotten_at_once_and_their_flows_by_and_by() {
    let (mut policy, mut out) = (many_stations(), Effects::default());
    for n in 0..4096 {
        policy.miss(0, &key(1, station(1, 0), station(3, n)), 0, &mut out);
    }
    let mut out = Effects::default();
    policy.port_gone(PortId(3), 1, &mut out);
    assert_eq!(policy.mac_count(), 12_288);
    assert!(out.changes.len() <= 4 * Limits::default().at_once, "{} changes", out.changes.len());
    let (slices, _) = put_right(&mut policy, 3, 1, &outputs(&[1, 2]));
    assert!(slices >= 4096 / 256, "{slices}");
    let to_3 =
        |change: &Change| matches!(change, Change::Put(flow) if flow.actions.contains(&Action::Output(PortId(3))));
    assert!(!out.changes.iter().any(to_3));
}

/// A flow goes to a station that somebody says lives at a port, before that port was ever up. What the port is told later holds for it.
#[test]
fn what_a_port_is_told_holds_for_a_static_station_that_was_never_up() {
    let station = "static-mac=52:54:00:00:00:02";
    let met = |tell: &dyn Fn(&mut Bench)| {
        let mut b = Bench::new(Limits::default(), 1);
        [4, 5].into_iter().for_each(|port| b.port(port, true));
        b.port(2, false);
        b.set(2, told(station));
        assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
        tell(&mut b);
        b.port(2, true);
        (b.packet(&key(1, mac(1), mac(2))), b.packet(&key(1, mac(9), mac(2))))
    };
    for setting in ["isolated=on", "link=down", "vlan=10"] {
        let (stale, fresh) = met(&|b| b.set(2, told(&format!("{station} {setting}"))));
        assert_eq!(stale, fresh, "{setting}");
        assert_ne!(stale, outputs(&[2]), "{setting}");
    }
    let (stale, fresh) = met(&|b| b.mirror(vec![(vec![2], 5, crate::Mirrored::ToGuest)]));
    assert_eq!(stale, fresh);
    assert!(stale.contains(&Action::Copy(PortId(5))), "{stale:?}");
}
