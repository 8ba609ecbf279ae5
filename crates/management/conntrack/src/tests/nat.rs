//! Address translation.

use super::*;

fn range(first: u8, last: u8, ports: Option<[u16; 2]>) -> Range {
    let ends = Ends::v4(0, 0);
    Range { addresses: Some([ends.address(first), ends.address(last)]), ports, ..Range::default() }
}

#[test]
fn a_source_is_exchanged_and_given_back() {
    let mut net = Net::new();
    net.action.nat = Nat::Source(range(50, 50, None));
    let ends = Ends::v4(1000, 80);
    let verdict = net.verdict(&ends.tcp(&seg("S", 1, 0, 0)));
    assert!(verdict.state.has(CtState::NEW.with(CtState::SRC_NAT)));
    let sent = verdict.rewrite.expect("a translation");
    assert_eq!((sent.src(), sent.dst(), sent.ports()), (ends.address(50), ends.address(2), [1000, 80]));
    let outside = Ends { hosts: [50, 2], ..ends };
    net.action.nat = Nat::Existing;
    let answer = net.verdict(&outside.back().tcp(&seg("SA", 1, 2, 0)));
    assert!(answer.state.has(CtState::ESTABLISHED.with(CtState::REPLY).with(CtState::SRC_NAT)));
    let back = answer.rewrite.expect("a translation");
    assert_eq!((back.src(), back.dst(), back.ports()), (ends.address(2), ends.address(1), [80, 1000]));
    assert_eq!(answer.original.src(), ends.address(1));
    net.action.nat = Nat::None;
    assert_eq!(net.verdict(&ends.tcp(&seg("A", 2, 2, 0))).rewrite, None);
    // What was translated is not known by what it would have been.
    net.action.commit = None;
    assert_eq!(net.tcp(ends.back(), &seg("S", 1, 2, 0)), "N");
}

#[test]
fn a_port_that_is_taken_is_exchanged() {
    let mut net = Net::new();
    net.action.nat = Nat::Source(range(50, 50, Some([2000, 2009])));
    let mut ports = std::collections::BTreeSet::new();
    for host in 100..110 {
        let verdict = net.verdict(&Ends { hosts: [host, 2], ..Ends::v4(2003, 80) }.udp(0));
        assert_eq!(verdict.refused, None);
        let port = verdict.rewrite.expect("a translation").ports()[0];
        assert!((2000..2010).contains(&port) && ports.insert(port), "{port} of {ports:?}");
        assert!(host > 100 || port == 2003, "the first keeps its own");
    }
    let verdict = net.verdict(&Ends { hosts: [110, 2], ..Ends::v4(2003, 80) }.udp(0));
    assert_eq!((verdict.refused, verdict.must_drop()), (Some(Refusal::NoTranslation), true));
    // Towards another server all are free again.
    assert_eq!(net.verdict(&Ends { hosts: [110, 3], ..Ends::v4(2003, 80) }.udp(0)).refused, None);
    assert_eq!(net.tracker.totals().connections, 11);
}

#[test]
fn addresses_are_shared_out_and_persist() {
    let mut net = Net::new();
    let mut persistent = range(50, 53, None);
    persistent.persistent = true;
    let mut of_client = std::collections::BTreeMap::new();
    net.action.nat = Nat::Source(persistent);
    for server in 2..12 {
        for client in 100..120 {
            let verdict = net.verdict(&Ends { hosts: [client, server], ..Ends::v4(7, 8) }.udp(0));
            let address = verdict.rewrite.expect("a translation").src();
            assert_eq!(*of_client.entry(client).or_insert(address), address);
        }
    }
    assert!(of_client.values().collect::<std::collections::BTreeSet<_>>().len() > 1);
}

#[test]
fn a_destination_is_exchanged() {
    for (v6, ends) in [(false, Ends::v4(1000, 80)), (true, Ends::v6(1000, 80))] {
        let mut net = Net::new();
        let server = ends.address(70);
        let range = Range { addresses: Some([server; 2]), ports: Some([8080; 2]), ..Range::default() };
        net.action.nat = Nat::Destination(range);
        let verdict = net.verdict(&ends.udp(0));
        let sent = verdict.rewrite.expect("a translation");
        assert_eq!((sent.src(), sent.dst(), sent.ports()), (ends.address(1), server, [1000, 8080]));
        assert!(verdict.state.has(CtState::DST_NAT) && !verdict.state.has(CtState::SRC_NAT));
        let from_server = Ends { v6, hosts: [70, 1], ports: [8080, 1000] };
        let back = net.verdict(&from_server.udp(0)).rewrite.expect("a translation");
        assert_eq!((back.src(), back.dst(), back.ports()), (ends.address(2), ends.address(1), [80, 1000]));
        // An error about what reached the server.
        let reached = Ends { v6, hosts: [1, 70], ports: [1000, 8080] }.udp(0);
        let error = net.verdict(&Ends { v6, hosts: [9, 1], ..ends }.error(&reached));
        assert!(error.state.has(CtState::RELATED.with(CtState::REPLY).with(CtState::DST_NAT)));
        let (outer, inner) = (error.rewrite.expect("outer"), error.rewrite_inner.expect("inner"));
        assert_eq!((outer.src(), outer.dst()), (ends.address(2), ends.address(1)));
        assert_eq!((inner.src(), inner.dst(), inner.ports()), (ends.address(1), ends.address(2), [1000, 80]));
    }
}

#[test]
fn an_error_finds_the_sender_behind_his_translation() {
    let mut net = Net::new();
    net.action.nat = Nat::Source(range(50, 50, Some([4000, 4000])));
    let ends = Ends::v4(1000, 80);
    net.send(&ends.udp(0));
    let outside = Ends { hosts: [50, 2], ports: [4000, 80], ..ends };
    let error = net.verdict(&Ends { hosts: [9, 50], ..ends }.error(&outside.udp(0)));
    let (outer, inner) = (error.rewrite.expect("outer"), error.rewrite_inner.expect("inner"));
    assert_eq!((outer.src(), outer.dst()), (ends.address(9), ends.address(1)));
    assert_eq!((inner.src(), inner.dst(), inner.ports()), (ends.address(1), ends.address(2), [1000, 80]));
}

/// An error that had been translated was of no connection when it was looked up once more, as where a rule commits what is related.
#[test]
fn an_error_that_was_translated_is_still_of_its_connection() {
    let mut net = Net::new();
    net.action.nat = Nat::Destination(range(70, 70, None));
    let ends = Ends::v4(1000, 80);
    net.send(&ends.udp(0));
    net.action = Action { nat: Nat::Existing, ..Action::default() };
    net.send(&Ends { hosts: [70, 1], ..ends }.back().udp(0));
    // About an answer, from a router on the client's side, as it goes on to the server; and about what the client sent, as it goes on to the client.
    let to_server = (Ends { hosts: [9, 70], ..ends }, Ends { hosts: [70, 1], ports: [80, 1000], ..ends });
    let to_client = (Ends { hosts: [9, 1], ..ends }, Ends { hosts: [1, 2], ..ends });
    for ((router, about), reply) in [(to_server, CtState(0)), (to_client, CtState::REPLY)] {
        let frame = router.error(&about.udp(0));
        assert_eq!(net.verdict(&frame).refused, Some(Refusal::Unrelated), "nobody has said that it was translated");
        let mut key = FlowKey::default();
        let mut view = view(&frame, &mut key);
        view.was = net.tracker.before_translation(&view, 0, net.now_ms);
        let verdict = net.tracker.process(&view, &net.action, net.now_ms);
        let related = CtState::TRACKED.with(CtState::RELATED).with(reply).with(CtState::DST_NAT);
        assert_eq!((verdict.state, verdict.refused), (related, None));
        // What nobody translated is what it was.
        let other = router.error(&Ends { ports: [5, 6], ..about }.udp(0));
        let view = crate::testutil::view(&other, &mut key);
        assert_eq!(net.tracker.before_translation(&view, 0, net.now_ms), None);
    }
}

#[test]
fn echoes_of_two_behind_one_address_are_told_apart() {
    let mut net = Net::new();
    net.action.nat = Nat::Source(range(50, 50, None));
    let id = |host| {
        let verdict = net.verdict(&Ends { hosts: [host, 2], ..Ends::v4(0, 0) }.echo(false, 5000));
        verdict.rewrite.expect("a translation").ports()[0]
    };
    let (first, second) = (id(100), id(101));
    assert_eq!(first, 5000);
    assert_ne!(second, first);
    let back =
        net.verdict(&Ends { hosts: [2, 50], ..Ends::v4(0, 0) }.echo(true, second)).rewrite.expect("a translation");
    assert_eq!((back.dst(), back.ports()[0]), (Ends::v4(0, 0).address(101), 5000));
}

#[test]
fn answers_that_would_be_anothers_are_refused() {
    let mut net = Net::new();
    net.action.nat = Nat::Destination(range(70, 70, None));
    assert_eq!(net.verdict(&Ends::v4(1000, 80).udp(0)).refused, None);
    net.action.nat = Nat::None;
    let direct = net.verdict(&Ends { hosts: [1, 70], ..Ends::v4(1000, 80) }.udp(0));
    assert_eq!((direct.refused, direct.must_drop()), (Some(Refusal::Clash), true));
    assert_eq!((net.tracker.totals().connections, net.tracker.zone(0).connections), (1, 1));
}

#[test]
fn both_ends_are_exchanged_at_once_and_taken_over_as_they_were() {
    let mut net = Net::new();
    net.action.nat = Nat::Both(range(50, 50, Some([2000, 2000])), range(60, 60, Some([8080, 8080])));
    let ends = Ends::v4(1000, 80);
    let packet = ends.udp(3);
    let mut key = FlowKey::default();
    let original = net.tracker.peek(&view(&packet, &mut key), 0, net.now_ms).original;
    let planned = net.tracker.plan(&net.action.nat, &original).expect("a plan");
    let verdict = net.verdict(&packet);
    assert!(verdict.state.has(CtState::NEW.with(CtState::SRC_NAT).with(CtState::DST_NAT)));
    assert_eq!(verdict.rewrite, Some(planned));
    let (hosts, ports) = ([planned.src(), planned.dst()], planned.ports());
    assert_eq!((hosts, ports), ([ends.address(50), ends.address(60)], [2000, 8080]));
    let answer = Ends { hosts: [60, 50], ports: [8080, 2000], ..ends }.udp(3);
    let looked = net.tracker.peek(&view(&answer, &mut key), 0, net.now_ms);
    assert_eq!(looked.rewrite, original.inverse());
    // Another tracker that is told of it does the same.
    let other = Net::new();
    let commit = Commit { label: (9, u128::MAX), ..Commit::default() };
    let nat = Nat::exactly(&original, &planned);
    assert_eq!(other.tracker.adopt_translated(original, &nat, &commit, net.now_ms), Ok(true));
    let there = other.tracker.get(&original, net.now_ms).expect("a connection");
    assert_eq!((there.reply.inverse(), there.replied), (Some(planned), true));
    assert!(other.tracker.remove(&there.reply, net.now_ms));
    let ended = other.tracker.ended();
    assert_eq!((ended[0].original, ended[0].reply), (original, there.reply));
    assert_eq!(Nat::exactly(&original, &original), Nat::None);
}

#[test]
fn echoes_without_identifiers_share_no_address() {
    let mut net = Net::with(Config { icmp_ids: false, ..Config::default() });
    net.action.nat = Nat::Source(range(50, 51, None));
    let ping = |host| Ends { hosts: [host, 2], ..Ends::v4(0, 0) }.echo(false, 7);
    let seen: Vec<_> = [1, 3].map(|host| net.verdict(&ping(host)).rewrite.expect("a translation")).into();
    assert_ne!(seen[0].src(), seen[1].src());
    assert_eq!(seen[0].ports(), [0, 0x800]);
    assert_eq!(net.verdict(&ping(4)).refused, Some(Refusal::NoTranslation));
}

#[test]
fn nobody_is_translated_to_who_he_speaks_to() {
    let mut net = Net::new();
    net.action.nat = Nat::Both(range(2, 2, Some([80, 80])), range(1, 1, Some([1000, 1000])));
    assert_eq!(net.verdict(&Ends::v4(1000, 80).udp(1)).refused, Some(Refusal::NoTranslation));
}
