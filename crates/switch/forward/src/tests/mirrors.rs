//! Copies for mirrors: exact, one of each packet, and never at the packet's cost.

use super::*;
use lasthop_frame::Edit;

const PUSH: Action = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 7 });

fn to(port: u32) -> Action {
    Action::Output(PortId(port))
}

fn copy(port: u32) -> Action {
    Action::Copy(PortId(port))
}

fn doing(actions: &[Action]) -> FlowSpec {
    FlowSpec { actions: actions.to_vec(), ..flow(1, &[]) }
}

fn frame(n: usize) -> Vec<u8> {
    Frame::new(1, 2).ether_type(0x88b5).payload(vec![n as u8; 60 + n]).build()
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat()
}

fn frames(guest: &mut Guest) -> Vec<Vec<u8>> {
    guest.received().into_iter().map(|(_, frame)| frame).collect()
}

fn lost(guest: &Guest, reason: DropReason) -> u64 {
    guest.port.totals().1.drops.iter().find(|(r, _)| *r == reason).map_or(0, |(_, n)| *n)
}

/// What came in and what became more is what went out and what was dropped.
fn adds_up(sender: &Guest, others: &[&Guest]) {
    let from = sender.port.totals().0;
    let out: u64 = others.iter().map(|g| g.port.totals().1).map(|to| to.packets + to.dropped()).sum();
    assert_eq!(from.packets + from.replicated, out + from.dropped());
}

#[test]
fn a_copy_is_of_the_packet_as_it_is_at_that_point() {
    for config in layouts() {
        for resumed in [false, true] {
            let (datapath, mut forwarder) = switch();
            let mut a = Guest::new(&datapath, 1, config, 0);
            let [mut b, mut m, mut n] = [2, 3, 4].map(|id| Guest::new(&datapath, id, config, 0));
            let actions = [copy(3), PUSH, copy(4), to(2)];
            if !resumed {
                datapath.flows().insert(doing(&actions), 0).unwrap();
            }
            for len in [0, 1, 50, 130, 1500, 60_000] {
                let frame = Frame::new(1, 2).ether_type(0x88b5).payload(vec![9; len]).build();
                a.send(VnetHdr::default(), &frame);
                forwarder.carry(&a.port, 1, 0);
                while let Some(upcall) = a.port.upcalls.report() {
                    forwarder.resume(&a.port, upcall.id, &actions);
                }
                assert!(frames(&mut m) == [frame.clone()], "{len} bytes, {config:?}");
                assert!(frames(&mut n) == [tagged(&frame)], "{len} bytes, {config:?}");
                assert!(frames(&mut b) == [tagged(&frame)], "{len} bytes, {config:?}");
            }
            assert_eq!((a.port.totals().0.packets, a.port.totals().0.replicated), (6, 12));
            adds_up(&a, &[&b, &m, &n]);
        }
    }
}

/// A packet that is only copied is dropped, under the flow's reason or the general one.
#[test]
fn what_is_dropped_is_copied_all_the_same() {
    for (actions, reason) in [
        (vec![copy(3), Action::Drop(DropReason::Acl)], DropReason::Acl),
        (vec![copy(3)], DropReason::Policy),
        (vec![copy(3), to(1)], DropReason::Hairpin),
        (vec![copy(3), to(9)], DropReason::NoPort),
    ] {
        for resumed in [false, true] {
            let (datapath, mut forwarder) = switch();
            let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
            let mut m = Guest::new(&datapath, 3, NetConfig::default(), 0);
            if !resumed {
                datapath.flows().insert(doing(&actions), 0).unwrap();
            }
            a.send(VnetHdr::default(), &frame(1));
            forwarder.carry(&a.port, 1, 0);
            if let Some(upcall) = a.port.upcalls.report() {
                forwarder.resume(&a.port, upcall.id, &actions);
            }
            assert_eq!(frames(&mut m), [frame(1)], "{actions:?}");
            assert_eq!(a.port.totals().0.drops, [(reason, 1)], "{actions:?}");
            assert_eq!(a.driver.unsent(0).unwrap(), 0);
            adds_up(&a, &[&m]);
        }
    }
}

/// The receiver takes four at a time: packets wait for it as they do without a mirror, and each is copied once however often it is tried.
#[test]
fn a_packet_that_waits_for_its_receiver_is_copied_once() {
    let sampled = vec![Action::Sample(u32::MAX, 1), copy(3), to(2)];
    for actions in [vec![copy(3), to(2)], sampled, vec![copy(3), PUSH, copy(3), to(2)]] {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
        let mut b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
        let mut m = Guest::new(&datapath, 3, NetConfig::default(), 0);
        datapath.flows().insert(doing(&actions), 0).unwrap();
        let sent: Vec<_> = (0..10).map(frame).collect();
        sent.iter().for_each(|frame| a.send(VnetHdr::default(), frame));
        let (mut got, mut copies) = (Vec::new(), Vec::new());
        // Twice in vain for each time that the receiver makes room.
        for look in 0..9 {
            forwarder.carry(&a.port, 1, (100 + look / 3) * MS);
            copies.extend(frames(&mut m));
            if look % 3 == 2 {
                got.extend(frames(&mut b));
            }
        }
        let edited = actions.contains(&PUSH);
        let expected: Vec<_> = sent.iter().map(|f| if edited { tagged(f) } else { f.clone() }).collect();
        assert_eq!(got, expected);
        let per_packet = if edited { 2 } else { 1 };
        assert_eq!(copies.len(), per_packet * sent.len(), "each packet is copied once by each action");
        assert_eq!(copies.iter().filter(|f| sent.contains(f)).count(), sent.len());
        let (from, to) = (a.port.totals().0, b.port.totals().1);
        assert_eq!((from.packets, from.dropped(), to.packets, to.dropped()), (10, 0, 10, 0));
        adds_up(&a, &[&b, &m]);
    }
}

/// The same while its flow goes and the packet asks control anew.
#[test]
fn a_packet_that_waits_is_copied_once_even_if_control_is_asked_meanwhile() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
    let mut m = Guest::new(&datapath, 3, NetConfig::default(), 0);
    let actions = [copy(3), to(2)];
    datapath.flows().insert(doing(&actions), 0).unwrap();
    (0..6).for_each(|n| a.send(VnetHdr::default(), &frame(n)));
    forwarder.carry(&a.port, 1, 100 * MS);
    assert_eq!(frames(&mut m).len(), 6);
    datapath.flows().remove_if(|_| true);
    a.send(VnetHdr::default(), &frame(6));
    let mut got = frames(&mut b);
    forwarder.carry(&a.port, 1, 101 * MS);
    let mut asked = 0;
    while let Some(upcall) = a.port.upcalls.report() {
        forwarder.resume(&a.port, upcall.id, &actions);
        got.extend(frames(&mut b));
        asked += 1;
    }
    assert_eq!(asked, 3, "two that waited, and one that is new");
    assert_eq!(frames(&mut m), [frame(6)], "those that waited have been copied before");
    assert_eq!(got, (0..7).map(frame).collect::<Vec<_>>());
    adds_up(&a, &[&b, &m]);
}

/// What a destination cannot take is lost there, under a reason of its own, and costs the packet neither its place nor a wait.
#[test]
fn a_destination_that_takes_nothing_costs_the_packets_nothing() {
    for down in [false, true] {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
        let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
        let m = Guest::new(&datapath, 3, NetConfig { size: 4, ..NetConfig::default() }, 0);
        if down {
            m.port.queues[0].stop();
            m.port.refresh();
        }
        datapath.flows().insert(doing(&[copy(3), to(2)]), 0).unwrap();
        for round in 0..10 {
            (0..20).for_each(|n| a.send(VnetHdr::default(), &frame(n)));
            let outcome = forwarder.carry(&a.port, 1, (100 + round) * MS);
            assert_eq!(outcome, Outcome { packets: 20, copied: outcome.copied, ..Outcome::default() });
            assert_eq!(frames(&mut b), (0..20).map(frame).collect::<Vec<_>>());
        }
        let taken = if down { 0 } else { 4 };
        assert_eq!(lost(&m, DropReason::MirrorCopy), 200 - taken);
        assert_eq!((m.port.totals().1.packets, m.port.totals().1.dropped()), (taken, 200 - taken));
        assert_eq!(a.port.totals().0.dropped(), 0);
        adds_up(&a, &[&b, &m]);
    }
}

/// A destination that was removed takes nothing either; its flows go with it.
#[test]
fn a_destination_that_is_gone_costs_the_packets_nothing() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    for resumed in [false, true] {
        if !resumed {
            datapath.flows().insert(doing(&[copy(3), to(2)]), 0).unwrap();
        }
        a.send(VnetHdr::default(), &frame(1));
        forwarder.carry(&a.port, 1, 0);
        if let Some(upcall) = a.port.upcalls.report() {
            forwarder.resume(&a.port, upcall.id, &[copy(3), to(2)]);
        }
        assert_eq!(frames(&mut b), [frame(1)]);
        assert_eq!(datapath.flows().remove_port(PortId(3)), usize::from(!resumed));
    }
    assert_eq!((a.port.totals().0.dropped(), a.port.totals().0.replicated), (0, 0), "there is nobody to lose a copy");
    adds_up(&a, &[&b]);
}

/// Its limit counts: copies beyond it are lost, as from a receiver without buffers, and the packets are not held up.
#[test]
fn a_destinations_rate_counts() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    let mut m = Guest::new(&datapath, 3, NetConfig::default(), 0);
    m.port.gets.set(0, 1, 0);
    datapath.flows().insert(doing(&[copy(3), to(2)]), 0).unwrap();
    for n in 0..10 {
        a.send(VnetHdr::default(), &frame(n));
        let outcome = forwarder.carry(&a.port, 1, 0);
        assert_eq!(outcome, Outcome { packets: 1, copied: outcome.copied, ..Outcome::default() });
    }
    assert_eq!((frames(&mut b).len(), frames(&mut m).len()), (10, 1));
    assert_eq!(lost(&m, DropReason::Rate), 9);
    adds_up(&a, &[&b, &m]);
}

/// A port may get a packet and a copy of it: both come, and a full ring costs the copy only.
#[test]
fn the_receiver_may_be_the_destination_as_well() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
    datapath.flows().insert(doing(&[copy(2), to(2)]), 0).unwrap();
    let mut got = 0;
    (0..6).for_each(|n| a.send(VnetHdr::default(), &frame(n)));
    for now in 100..110 {
        forwarder.carry(&a.port, 1, now * MS);
        got += frames(&mut b).len();
    }
    let (from, to) = (a.port.totals().0, b.port.totals().1);
    assert_eq!((from.packets, from.dropped(), got as u64), (6, 0, to.packets));
    assert_eq!(to.packets + lost(&b, DropReason::MirrorCopy), 12);
    assert_eq!(to.dropped(), lost(&b, DropReason::MirrorCopy), "no packet is lost");
    adds_up(&a, &[&b]);
}

/// A packet that is not cut for its receiver is cut for a destination that cannot take it whole; the packet waits for its receiver as a whole.
#[test]
fn a_large_packet_is_cut_for_the_destination_only() {
    let (datapath, mut forwarder) = switch();
    let large = NetConfig { tx_buffer: 70_000, rx_buffer: 70_000, ..NetConfig::default() };
    let mut a = Guest::new(&datapath, 1, large, 0);
    let mut b = Guest::new(&datapath, 2, large, feature::GUEST_CSUM | feature::GUEST_TSO4);
    let mut m = Guest::new(&datapath, 3, NetConfig { rx_buffer: 2048, size: 64, ..NetConfig::default() }, 0);
    datapath.flows().insert(doing(&[copy(3), to(2)]), 0).unwrap();
    let payload: Vec<u8> = (0..60_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let whole = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(5, 6).payload(payload.clone());
    let whole = whole.partial_checksum();
    for round in 0..2 {
        a.send(whole.vnet(VnetHdr::GSO_TCPV4, 1448), &whole.build());
        forwarder.carry(&a.port, 1, 0);
        assert!(frames(&mut b) == [whole.build()]);
        if round == 0 {
            let segments = frames(&mut m);
            assert_eq!(segments.len(), payload.len().div_ceil(1448));
            assert!(segments.iter().flat_map(|f| &f[54..]).eq(payload.iter()));
            // The next one finds too few buffers.
            (0..30).for_each(|_| a.send(VnetHdr::default(), &frame(1)));
            forwarder.carry(&a.port, 1, 0);
            b.received();
        }
    }
    assert_eq!(
        lost(&m, DropReason::MirrorCopy) + lost(&m, DropReason::NoBuffers),
        1,
        "counts once, with some segments there"
    );
    adds_up(&a, &[&b, &m]);
}

/// Many copies and outputs of bursts of one sender, more receivers than a plan has room for.
#[test]
fn floods_with_copies_and_more_receivers_than_a_plan_holds() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut others: Vec<_> =
        (2..72).map(|id| Guest::new(&datapath, id, NetConfig { size: 16, ..NetConfig::default() }, 0)).collect();
    let all: Vec<_> = (2..72).map(|id| if id % 2 == 0 { copy(id) } else { to(id) }).collect();
    datapath.flows().insert(doing(&all), 0).unwrap();
    (0..10).for_each(|n| a.send(VnetHdr::default(), &frame(n)));
    while forwarder.carry(&a.port, 1, 0).packets > 0 {}
    for guest in &mut others {
        assert_eq!(frames(guest), (0..10).map(frame).collect::<Vec<_>>(), "port {}", guest.port.id);
    }
    adds_up(&a, &others.iter().collect::<Vec<_>>());
}
