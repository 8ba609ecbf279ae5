//! How much is done in one go, with locks held or on the main thread, whatever guests send (docs/hostile.md, S5).

use super::*;
use crate::{Order, Orders};
use lasthop_guestmem::meter;
use lasthop_virtqueue::BURST;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most bytes that may be moved in one go, with locks held: what it takes to be done with 64 packets of 4 KiB, and one more
/// packet, the longest.
const MOST_BYTES: u64 = 480 << 10;
/// Most segments: what two of the longest packets may become.
const MOST_SEGMENTS: u64 = 2500;

/// However long the packets, and whatever has to be done to them, a burst ends when it has done enough.
#[test]
fn the_work_of_a_burst_is_bounded() {
    for (what, to, size) in
        [("long packets", &[2][..], 1400), ("a flood", &[2, 3, 4], 1400), ("tiny segments", &[2], 33)]
    {
        for plain in [true, false] {
            let (datapath, mut forwarder) = switch();
            let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 66_000, size: 64, ..NetConfig::default() }, 0);
            let config = NetConfig { size: 8192, ..NetConfig::default() };
            let guests: Vec<_> = to.iter().map(|id| Guest::new(&datapath, *id, config, 0)).collect();
            datapath.flows().insert(flow(1, to), 0).unwrap();
            let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2).payload(vec![5; 65_000]);
            let frame = frame.partial_checksum();
            for _ in 0..BURST {
                let header = if plain { VnetHdr::default() } else { frame.vnet(VnetHdr::GSO_TCPV4, size) };
                a.send(header, &frame.build());
            }
            let (mut packets, mut runs) = (0, 0);
            while packets < BURST {
                let before = (meter::moved(), guests.iter().map(|g| g.port.totals().1.segments).sum::<u64>());
                let outcome = forwarder.carry(&a.port, 1, runs * MS);
                let moved = meter::moved() - before.0;
                let segments = guests.iter().map(|g| g.port.totals().1.segments).sum::<u64>() - before.1;
                assert!(moved <= MOST_BYTES, "{what}: {moved} bytes in one go");
                assert!(segments <= MOST_SEGMENTS, "{what}: {segments} segments in one go");
                assert!(
                    packets + outcome.packets == BURST || outcome.more || outcome.short_of_buffers,
                    "{what}: it is to be run again"
                );
                packets += outcome.packets;
                runs += 1;
                assert!(runs < 200, "{what}: it does not come to an end");
            }
        }
    }
}

/// The same for as many receivers as packets are held back for, and more: the queue pairs of one port.
#[test]
fn the_work_of_a_burst_is_bounded_for_any_number_of_receivers() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 66_000, size: 64, ..NetConfig::default() }, 0);
    let b = Guest::new(&datapath, 2, NetConfig { size: 2048, pairs: 16, ..NetConfig::default() }, 0);
    datapath.flows().insert(flow(1, &[2]), 0).unwrap();
    for n in 0..BURST as u16 {
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(n, 2).payload(vec![5; 5000]);
        let frame = frame.partial_checksum();
        a.send(frame.vnet(VnetHdr::GSO_TCPV4, 33), &frame.build());
    }
    let (mut packets, mut runs) = (0, 0);
    while packets < BURST {
        let before = b.port.totals().1.segments;
        packets += forwarder.carry(&a.port, 1, runs * MS).packets;
        let segments = b.port.totals().1.segments - before;
        assert!(segments <= MOST_SEGMENTS, "{segments} segments in one go");
        runs += 1;
        assert!(runs < 200, "it does not come to an end");
    }
    let queues = b.port.queues.iter().filter(|queue| queue.counters.packets.get() > 0).count();
    assert!(queues > 8, "{queues} queues got something");
}

/// A guest's packets that have to be cut up for everybody wait for control, and then for its answers to be carried out: some at a
/// time, and others' answers do not wait for all of them.
#[test]
fn answers_are_carried_out_a_bursts_worth_at_a_time() {
    const RECEIVERS: u64 = 10;
    for with_flow in [false, true] {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 66_000, size: 64, ..NetConfig::default() }, 0);
        let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
        let config = NetConfig { size: 32768, rx_buffer: 128, ..NetConfig::default() };
        let to: Vec<u32> = (3..3 + RECEIVERS as u32).collect();
        let guests: Vec<_> = to.iter().map(|id| Guest::new(&datapath, *id, config, 0)).collect();
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2).payload(vec![5; 50_000]);
        let frame = frame.partial_checksum();
        (0..6).for_each(|_| a.send(frame.vnet(VnetHdr::GSO_TCPV4, 33), &frame.build()));
        b.send(VnetHdr::default(), &Frame::new(2, 12).payload([9; 46]).build());
        assert_eq!(forwarder.carry(&a.port, 1, 0).packets + forwarder.carry(&b.port, 1, 0).packets, 7);
        let mut orders = Orders::default();
        if with_flow {
            let order = forwarder.flow_order(flow(1, &to));
            orders.push(a.port.id, order);
        }
        while let Some(upcall) = a.port.upcalls.report() {
            orders.push(a.port.id, Order::packet(&a.port, upcall.id, flow(1, &to).actions));
        }
        let id = b.port.upcalls.report().unwrap().id;
        orders.push(b.port.id, Order::packet(&b.port, id, vec![Action::Output(PortId(12))]));
        let (mut rounds, mut done) = (0, Vec::new());
        while !orders.is_empty() {
            let segments = || guests.iter().map(|g| g.port.totals().1.segments).sum::<u64>();
            let before = (meter::moved(), segments());
            orders.round(&mut forwarder, |port, result| done.push((port.0, result.is_ok())));
            let (moved, segments) = (meter::moved() - before.0, segments() - before.1);
            assert!(moved <= MOST_BYTES && segments <= MOST_SEGMENTS, "{moved} bytes, {segments} segments in a round");
            rounds += 1;
            assert!(rounds < 2 || done.contains(&(2, true)), "the other guest's answer does not wait for all of them");
            assert!(rounds < 1000, "it comes to an end");
        }
        assert!(rounds > 20, "{rounds}");
        assert!(done.len() >= 7 && done.iter().all(|(_, ok)| *ok));
        let (from, from_b) = (a.port.totals().0, b.port.totals().0);
        let to: Vec<_> = guests.iter().map(|g| g.port.totals().1).collect();
        let sum = |count: fn(&lasthop_types::PortTotals) -> u64| to.iter().map(count).sum::<u64>();
        let sent = from.packets + from_b.packets + from.replicated;
        assert_eq!(sent, 6 * RECEIVERS + 1);
        assert_eq!(sent, sum(|t| t.packets) + sum(|t| t.dropped()), "each is sent on, or counted");
        assert!(a.port.upcalls.is_empty() && b.port.upcalls.is_empty());
    }
}

/// What control says of flows holds before anything is sent that it says later, whatever waits to be carried out: an answer to one
/// guest may be answered by another, whose packet must not meet an older flow.
#[test]
fn flows_change_before_what_comes_behind_them_is_sent() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let _b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    datapath.flows().insert(to_station(3), 0).unwrap();
    a.send(VnetHdr::default(), &Frame::new(1, 9).payload([5; 64]).build());
    forwarder.carry(&a.port, 1, 0);
    let mut orders = Orders::default();
    orders
        .push(a.port.id, Order::packet(&a.port, a.port.upcalls.report().unwrap().id, vec![Action::Output(PortId(2))]));
    let mut newer = to_station(3);
    newer.actions = vec![Action::Output(PortId(2))];
    let (key, mask) = (newer.key, newer.mask);
    let order = forwarder.flow_order(newer.clone());
    assert_eq!(orders.change(&mut forwarder, a.port.id, &key, &mask, order), Some(Ok(false)));
    assert_eq!(datapath.flows().flows()[0].actions[..], newer.actions[..]);
    let removal = orders.change(&mut forwarder, a.port.id, &key, &mask, Order::removal(key, mask, false));
    assert_eq!((removal, datapath.flows().flows().len()), (Some(Ok(false)), 0));
    // Packets that wait for a flow go before it, and what is said of it later comes later.
    let nine = FlowSpec { actions: vec![Action::Output(PortId(2))], ..to_station(9) };
    let (key, mask) = (nine.key, nine.mask);
    let order = forwarder.flow_order(nine);
    assert_eq!(orders.change(&mut forwarder, a.port.id, &key, &mask, order), None);
    assert_eq!(orders.change(&mut forwarder, a.port.id, &key, &mask, Order::removal(key, mask, false)), None);
    while !orders.is_empty() {
        orders.round(&mut forwarder, |_, _| {});
    }
    assert_eq!((datapath.flows().flows().len(), a.port.upcalls.len()), (0, 0));
}

/// A burst that goes on and on at one receiver holds up what has been decided for it, and not what has been decided for others.
#[test]
fn a_receiver_that_others_are_on_is_waited_for_last() {
    let (datapath, mut forwarder) = switch();
    let [mut a, mut b, c, d] = [1, 2, 3, 4].map(|n| Guest::new(&datapath, n, NetConfig::default(), 0));
    let mut orders = Orders::default();
    for (from, to) in [(&mut a, 3), (&mut b, 4)] {
        from.send(VnetHdr::default(), &Frame::new(1, 9).payload([5; 64]).build());
        forwarder.carry(&from.port, 1, 0);
        let id = from.port.upcalls.report().unwrap().id;
        orders.push(from.port.id, Order::packet(&from.port, id, vec![Action::Output(PortId(to))]));
    }
    let (tell, told) = std::sync::mpsc::channel();
    let (is_on, began) = std::sync::mpsc::channel();
    let queue = c.port.queues[0].clone();
    let other = std::thread::spawn(move || {
        let _on_it = queue.lock();
        is_on.send(()).unwrap();
        // Until what is for others has been done. The time is for a switch that does not get so far.
        let _ = told.recv_timeout(std::time::Duration::from_secs(5));
    });
    began.recv().unwrap();
    let mut done = Vec::new();
    while !orders.is_empty() {
        orders.round(&mut forwarder, |port, _| {
            done.push(port.0);
            let _ = tell.send(());
        });
    }
    other.join().unwrap();
    assert_eq!(done, [2, 1]);
    assert_eq!([c, d].map(|guest| guest.port.totals().1.packets), [1, 1]);
}

/// Whoever waits for a receiver that others are on gets there, although there is always something else to do.
#[test]
fn a_receiver_that_others_are_on_is_waited_for_in_the_end() {
    let (datapath, mut forwarder) = switch();
    let [mut a, mut b, c] = [1, 2, 3].map(|n| Guest::new(&datapath, n, NetConfig::default(), 0));
    let mut orders = Orders::default();
    // More than a thousand rounds have time for.
    let endless = vec![Action::Drop(DropReason::Policy); 1_000_000];
    for (from, actions) in [(&mut a, endless), (&mut b, vec![Action::Output(PortId(3))])] {
        from.send(VnetHdr::default(), &Frame::new(1, 9).payload([5; 64]).build());
        forwarder.carry(&from.port, 1, 0);
        let id = from.port.upcalls.report().unwrap().id;
        orders.push(from.port.id, Order::packet(&from.port, id, actions));
    }
    let (is_on, began) = std::sync::mpsc::channel();
    let (rounds, queue) = (Arc::new(AtomicUsize::new(0)), c.port.queues[0].clone());
    let other = {
        let rounds = rounds.clone();
        std::thread::spawn(move || {
            let _on_it = queue.lock();
            is_on.send(()).unwrap();
            // Until the rounds stand still, for that is waited for; or are over.
            let (mut seen, mut still) = (0, 0);
            while still < 20 && seen < 1000 {
                std::thread::sleep(std::time::Duration::from_millis(5));
                let now = rounds.load(Relaxed);
                still = if now == seen { still + 1 } else { 0 };
                seen = now;
            }
        })
    };
    began.recv().unwrap();
    let (mut done, mut turns) = (false, 0);
    while !done && turns < 1000 {
        turns += 1;
        orders.round(&mut forwarder, |port, _| done |= port == b.port.id);
        rounds.store(turns, Relaxed);
    }
    other.join().unwrap();
    assert!(done && turns < 100, "{turns} rounds");
    assert_eq!(c.port.totals().1.packets, 1);
    assert_eq!(orders.len(), 1, "the other goes on");
}

/// A port that goes in the middle of it loses nothing but what had not been sent on, and that is counted.
#[test]
fn a_port_that_goes_takes_its_answers_along() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 66_000, size: 64, ..NetConfig::default() }, 0);
    let b = Guest::new(&datapath, 2, NetConfig { size: 8192, ..NetConfig::default() }, 0);
    let frame = Frame::new(1, 2).payload(vec![5; 60_000]).build();
    for _ in 0..3 {
        a.send(VnetHdr::default(), &frame);
    }
    forwarder.carry(&a.port, 1, 0);
    let mut orders = Orders::default();
    while let Some(upcall) = a.port.upcalls.report() {
        orders.push(a.port.id, Order::packet(&a.port, upcall.id, vec![Action::Output(PortId(2)); 4]));
    }
    orders.round(&mut forwarder, |_, _| {});
    assert_eq!(orders.len(), 2);
    orders.forget(a.port.id);
    assert!(orders.is_empty());
    assert_eq!(forwarder.expire(&a.port, u64::MAX), 1, "the one that was not begun with");
    let (from, to) = (a.port.totals().0, b.port.totals().1);
    assert!(to.packets > 4);
    assert_eq!(from.packets + from.replicated, to.packets + from.dropped() + to.dropped());
    assert!(a.port.upcalls.is_empty());
}

/// What most guests send is one burst: 64 packets, as long as a page.
#[test]
fn ordinary_bursts_are_not_cut() {
    for len in [60, 1514, 4096 + 14] {
        let (datapath, mut forwarder) = switch();
        let config = NetConfig { tx_buffer: 9000, rx_buffer: 9000, ..NetConfig::default() };
        let mut a = Guest::new(&datapath, 1, config, 0);
        let _b = Guest::new(&datapath, 2, config, 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        for _ in 0..BURST {
            a.send(VnetHdr::default(), &Frame::new(1, 2).payload(vec![3; len - 14]).build());
        }
        assert_eq!(forwarder.carry(&a.port, 1, 0).packets, BURST, "{len} bytes");
    }
}
