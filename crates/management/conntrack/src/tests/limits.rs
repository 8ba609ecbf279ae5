//! How many connections there may be, and for how long.

use super::*;

#[test]
fn times_are_those_of_protocol_and_state() {
    let mut net = Net::new();
    let ends = Ends::v4(1, 2);
    net.send(&ends.udp(1));
    assert_eq!(net.only().seconds_left, 30);
    net.pass(29);
    net.send(&ends.back().udp(1));
    assert_eq!(net.only().seconds_left, 30, "the first answer does not make a stream");
    net.send(&ends.udp(1));
    assert_eq!(net.only().seconds_left, 120, "and what comes two seconds after the first packet does");
    assert!(net.only().assured);
    net.pass(121);
    assert!(net.all().is_empty(), "it is gone before anybody takes it out");
    assert_eq!(net.tracker.totals().connections, 1);
    assert_eq!(net.send(&ends.back().udp(1)), "N");
    net.expire();
    assert_eq!((net.tracker.totals().connections, net.tracker.totals().expired), (1, 1));
    net.send(&ends.echo(false, 1));
    net.send(&ends.ip(47).payload([0; 8]).build());
    let left: Vec<_> = net.all().iter().map(|c| (c.original.proto(), c.seconds_left)).collect();
    assert!(left.contains(&(1, 30)) && left.contains(&(47, 600)), "{left:?}");
}

#[test]
fn a_policy_has_its_own_times() {
    let mut net = Net::new();
    net.tracker.set_timeout(3, Class::Udp, 5).expect("there is a third");
    assert_eq!(net.tracker.set_timeout(POLICIES, Class::Udp, 5), None);
    net.action.commit = Some(Commit { policy: 3, ..COMMIT });
    net.send(&Ends::v4(1, 2).udp(1));
    assert_eq!(net.only().seconds_left, 5);
    net.pass(6);
    net.expire();
    assert_eq!(net.tracker.totals().connections, 0);
}

#[test]
fn zones_and_owners_have_limits() {
    let mut net = Net::new();
    net.tracker.limit_zone(0, 3);
    net.tracker.limit_owner(9, 2);
    for port in 0..5 {
        let verdict = net.verdict(&Ends::v4(port, 2).udp(1));
        assert_eq!(verdict.refused, (port >= 3).then_some(Refusal::ZoneLimit), "{port}");
        assert_eq!(verdict.must_drop(), port >= 3);
    }
    assert_eq!(net.tracker.zone(0), ZoneStats { connections: 3, limit: 3 });
    net.action = Action { zone: 1, commit: Some(Commit { owner: 9, ..COMMIT }), ..net.action };
    for port in 0..5 {
        let verdict = net.verdict(&Ends::v4(port, 2).udp(1));
        assert_eq!(verdict.refused, (port >= 2).then_some(Refusal::OwnerLimit), "{port}");
    }
    assert_eq!((net.tracker.owned(9), net.tracker.refused(Refusal::OwnerLimit)), (2, 3));
    // Room comes back with time.
    net.pass(31);
    net.expire();
    assert_eq!((net.tracker.owned(9), net.tracker.zone(0).connections, net.tracker.totals().connections), (0, 0, 0));
    assert_eq!(net.send(&Ends::v4(1, 2).udp(1)), "N");
}

#[test]
fn who_was_answered_does_not_make_room() {
    let net = Net::with(Config { capacity: 50, ..Config::default() });
    for port in 0..50 {
        net.handshake(Ends::v4(port, 80));
        assert_eq!(net.tcp(Ends::v4(port, 80).back(), &seg("A", 501, 101, 5)), "E<");
        assert_eq!(net.tcp(Ends::v4(port, 80), &seg("A", 101, 506, 0)), "E");
    }
    assert!(net.all().iter().all(|c| c.assured));
    assert_eq!(net.verdict(&Ends::v4(1, 2).udp(1)).refused, Some(Refusal::Full));
    assert_eq!(net.tracker.totals().connections, 50);
    // But one that nobody answered does, and one that is closing.
    assert!(net.tracker.remove(&net.all()[7].original, net.now_ms));
    net.send(&Ends::v4(1, 2).udp(1));
    for port in 1..5 {
        // Each time so many are looked at, and the next ones the next time.
        let made_room = (0..8).any(|_| net.verdict(&Ends::v4(port, 3).udp(1)).refused.is_none());
        assert!(made_room, "{:?}", net.tracker.totals());
    }
    let assured = net.all().iter().filter(|c| c.assured).count();
    assert_eq!((net.tracker.totals().connections, assured, net.tracker.totals().evicted), (50, 49, 4));
}

/// Of a full table, all answered, owner 1 has most: who has few finds room at its cost, a 64th of all at most, and nobody else does.
#[test]
fn who_has_most_makes_room_for_who_has_few() {
    let mut net = Net::with(Config { capacity: 640, ..Config::default() });
    let open = |net: &mut Net, owner: u16, port: u16| {
        net.action.commit = Some(Commit { owner, ..COMMIT });
        let ends = Ends { hosts: [owner as u8, 99], ..Ends::v4(port, 80) };
        let room = net.verdict(&ends.tcp(&seg("S", 100, 0, 0))).refused.is_none();
        if room {
            net.tcp(ends.back(), &seg("SA", 500, 101, 0));
            net.tcp(ends, &seg("A", 101, 501, 0));
            net.tcp(ends.back(), &seg("A", 501, 101, 5));
            net.tcp(ends, &seg("A", 101, 506, 0));
        }
        room
    };
    let owned = |net: &Net| [1, 2, 3].map(|owner| net.tracker.owned(owner));
    (0..600).for_each(|port| assert!(open(&mut net, 1, port)));
    (0..40).for_each(|port| assert!(open(&mut net, 2, port)));
    assert!(net.all().iter().all(|c| c.assured));
    assert!(!open(&mut net, 1, 600) && !open(&mut net, 2, 40), "they have more than a 64th");
    let found = (0..20).filter(|port| open(&mut net, 3, *port)).count();
    assert_eq!((found, owned(&net), net.tracker.totals().evicted), (10, [590, 40, 10], 10));
}

/// As many as there may be, in many shards, and each is found; then all go, in small steps.
#[test]
fn a_full_table_finds_all_and_empties_in_steps() {
    let mut net = Net::with(Config { capacity: 20_000, ..Config::default() });
    let frame = |n: u32| Ends { hosts: [1 + (n / 5000) as u8, 99], ..Ends::v4((n % 5000) as u16, 7) };
    for n in 0..20_000 {
        assert_eq!(net.verdict(&frame(n).udp(0)).refused, None, "{n}");
    }
    assert_eq!(net.tracker.totals().connections, 20_000);
    for n in 0..20_000 {
        assert_eq!(net.send(&frame(n).back().udp(0)), "E<", "{n}");
    }
    assert_eq!(net.all().len(), 20_000);
    net.pass(20);
    for n in 0..10_000 {
        net.send(&frame(n).udp(0));
    }
    // Those from which nothing came go; the others have been filed anew.
    net.pass(40);
    net.expire();
    assert_eq!(net.all().len(), 10_000);
    assert_eq!(net.tracker.totals().connections, 10_000);
    net.pass(200);
    let mut steps = 0;
    while net.tracker.expire(net.now_ms, 100) {
        steps += 1;
    }
    assert!((100..200).contains(&steps), "{steps} steps");
    assert_eq!(net.tracker.totals().connections, 0);
}

/// Places are used again, and what is left of their last tenants is not found.
#[test]
fn tenants_change() {
    let mut net = Net::with(Config { capacity: 30, ..Config::default() });
    for round in 0..200 {
        for n in 0..30 {
            assert_eq!(net.verdict(&Ends::v4(round, n).udp(0)).refused, None);
        }
        assert_eq!(net.send(&Ends::v4(round.wrapping_sub(1), 3).back().udp(0)), "N");
        net.pass(40);
    }
}
