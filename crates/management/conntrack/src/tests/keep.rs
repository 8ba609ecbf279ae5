//! Connections whose packets a data plane carries without asking.

use super::*;

fn peek(net: &Net, frame: &[u8]) -> Verdict {
    let mut key = FlowKey::default();
    net.tracker.peek(&view(frame, &mut key), 0, net.now_ms)
}

#[test]
fn a_look_changes_nothing() {
    let net = Net::new();
    let ends = Ends::v4(1000, 80);
    assert_eq!(peek(&net, &ends.tcp(&seg("S", 100, 0, 0))).state, CtState::NEW.with(CtState::TRACKED));
    assert!(net.all().is_empty());
    net.tcp(ends, &seg("S", 100, 0, 0));
    let before = net.only();
    let answer = ends.back().tcp(&seg("SA", 500, 101, 0));
    assert!(peek(&net, &answer).state.has(CtState::ESTABLISHED.with(CtState::REPLY)));
    assert_eq!(net.only(), before, "nobody has answered yet");
    assert_eq!(peek(&net, &ends.back().tcp(&seg("SA", 500, 999, 0))).refused, Some(Refusal::TcpWindow));
    assert_eq!(net.tracker.refused(Refusal::TcpWindow), 0);
    assert_eq!(net.send(&answer), "E<");
}

#[test]
fn what_ends_is_told_once_with_its_label() {
    let mut net = Net::new();
    net.action.commit = Some(Commit { label: (7 << 64 | 5, u128::MAX), ..COMMIT });
    net.send(&Ends::v4(1, 2).udp(1));
    assert!(net.tracker.ended().is_empty());
    let original = net.only().original;
    net.pass(31);
    net.expire();
    assert_eq!(net.tracker.ended(), [Ended { original, reply: original.inverse().unwrap(), label: 7 << 64 | 5 }]);
    assert!(net.tracker.ended().is_empty());
}

#[test]
fn an_adopted_connection_goes_on_in_both_directions_whatever_its_numbers() {
    let mut net = Net::new();
    let ends = Ends::v4(1000, 80);
    let tuple = Tuple::new([ends.address(1), ends.address(2)], [1000, 80], 6, false, 0);
    assert_eq!(net.tracker.adopt(tuple, &Commit { owner: 3, ..COMMIT }, net.now_ms), Ok(true));
    assert_eq!(net.tracker.adopt(tuple, &COMMIT, net.now_ms), Ok(false));
    assert_eq!(net.tcp(ends.back(), &seg("A", 7000, 123_456, 100)), "E<");
    assert_eq!(net.tcp(ends, &seg("A", 3_000_000_000, 5, 100)), "E");
    assert_eq!((net.only().owner, net.only().state), (3, ProtoState::Tcp(TcpState::Established)));
    net.tracker.relax(&tuple, 0, net.now_ms);
    assert_eq!(net.tcp(ends.back(), &seg("R", 1, 0, 0)), "E<");
    assert_eq!(net.only().state, ProtoState::Tcp(TcpState::Close));
    net.pass(11);
    net.expire();
    assert!(net.all().is_empty());
}

#[test]
fn a_relaxed_connection_is_not_judged_by_windows_and_ends_by_any_rst() {
    let net = Net::new();
    let ends = Ends::v4(1000, 80);
    net.handshake(ends);
    assert_eq!(net.tcp(ends, &seg("A", 9_000_101, 501, 10)), "I", "far outside");
    let tuple = net.only().original;
    net.tracker.relax(&tuple, 0, net.now_ms);
    assert_eq!(net.tcp(ends, &seg("A", 9_000_101, 8_000_501, 10)), "E");
    assert_eq!(net.tcp(ends.back(), &seg("A", 501, 9_000_111, 10)), "E<");
    net.tracker.relax(&tuple, 0, net.now_ms);
    assert_eq!(net.tcp(ends, &seg("R", 19_000_101, 0, 0)), "E");
    assert_eq!(net.only().state, ProtoState::Tcp(TcpState::Close));
}

#[test]
fn a_use_that_was_not_seen_keeps_a_connection() {
    let mut net = Net::new();
    let ends = Ends::v4(1, 2);
    net.send(&ends.udp(1));
    let (tuple, start_ms) = (net.only().original, net.now_ms);
    net.pass(25);
    net.tracker.keep(&tuple, start_ms + 20_000, net.now_ms, net.now_ms);
    assert_eq!(net.only().seconds_left, 25);
    net.tracker.keep(&tuple, start_ms + 20_000, net.now_ms + 40_000, net.now_ms);
    assert_eq!(net.only().seconds_left, 40, "not before the next look");
    net.pass(30);
    net.tracker.keep(&tuple, start_ms + 20_000, net.now_ms + 40_000, net.now_ms);
    assert_eq!(net.only().seconds_left, 10, "idle for longer than its time: no longer than was said");
    net.pass(11);
    assert!(net.all().is_empty());
}

#[test]
fn datagrams_that_pass_unseen_are_a_stream_once_they_go_on_behind_the_first_answer() {
    let mut net = Net::new();
    let ends = Ends::v4(1, 2);
    net.send(&ends.udp(1));
    let (tuple, start_ms) = (net.only().original, net.now_ms);
    net.tracker.keep(&tuple, start_ms + 9000, net.now_ms, net.now_ms);
    assert_eq!((net.only().seconds_left, net.only().assured), (39, false), "nobody has answered");
    net.pass(10);
    assert_eq!(net.send(&ends.back().udp(1)), "E<");
    for (after_ms, left, is_stream) in [(0, 30, false), (1000, 31, false), (2500, 122, true)] {
        net.tracker.keep(&tuple, net.now_ms + after_ms, net.now_ms, net.now_ms);
        let found = net.only();
        assert_eq!((found.seconds_left, found.assured), (left, is_stream), "{after_ms} ms behind the first answer");
    }
    // In whichever direction it is looked up.
    net.pass(20);
    net.tracker.keep(&tuple.inverse().unwrap(), net.now_ms, net.now_ms, net.now_ms);
    assert_eq!(net.only().seconds_left, 120);
}

#[test]
fn echoes_are_one_connection_where_identifiers_do_not_count() {
    for (icmp_ids, connections) in [(true, 2), (false, 1)] {
        let net = Net::with(Config { capacity: 100, icmp_ids, ..Config::default() });
        let ends = Ends::v4(0, 0);
        net.send(&ends.echo(false, 7));
        net.send(&ends.echo(false, 8));
        assert_eq!(net.all().len(), connections);
        assert_eq!(net.send(&ends.back().echo(true, 8)), "E<");
        assert_eq!(net.send(&ends.back().error(&ends.echo(false, 8))), "R<");
    }
}

#[test]
fn an_adopted_association_learns_its_tags() {
    let net = Net::new();
    let ends = Ends::v4(5000, 5001);
    let tuple = Tuple::new([ends.address(1), ends.address(2)], [5000, 5001], 132, false, 0);
    assert_eq!(net.tracker.adopt(tuple, &COMMIT, net.now_ms), Ok(true));
    let data = |tag: u32| {
        let ports = [5000u16, 5001].map(u16::to_be_bytes).concat();
        let chunk = [0, 3, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        ends.ip(132).payload([&ports[..], &tag.to_be_bytes(), &[0; 4], &chunk].concat()).build()
    };
    assert_eq!(net.send(&data(77)), "E");
    assert_eq!(net.send(&data(78)), "I", "the tag is known now");
    assert_eq!(net.send(&data(77)), "E");
}
