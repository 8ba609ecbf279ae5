//! Limits of ports: what they may send, get and flood.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn frame(to: u8) -> Vec<u8> {
    Frame::new(1, to).ether_type(0x88b5).payload(vec![7; 986]).build()
}

/// A thousand bytes each, and a limit of as many kilobytes a second.
fn limit(limit: &crate::RateLimiter, frames_a_second: u64) {
    limit.set(1000 * frames_a_second, 0, SECOND / frames_a_second * 10);
}

fn drops(guest: &Guest, from_guest: bool, reason: DropReason) -> u64 {
    let (from, to) = guest.port.totals();
    let drops = if from_guest { from.drops } else { to.drops };
    drops.iter().find(|(r, _)| *r == reason).map_or(0, |(_, packets)| *packets)
}

#[test]
fn what_a_port_may_not_send_yet_waits_in_its_ring() {
    for config in layouts() {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, config, 0);
        let mut b = Guest::new(&datapath, 2, config, 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        limit(&a.port.sends, 1000);
        let (mut came, mut sent, frame) = (0u64, 0u64, frame(2));
        for ms in 0..2000u64 {
            while sent < came + 32 {
                a.send(VnetHdr::default(), &frame);
                sent += 1;
            }
            let outcome = forwarder.carry(&a.port, 1, SECOND + ms * 1_000_000);
            assert!(outcome.until_ns.is_none_or(|until| until > SECOND + ms * 1_000_000), "{outcome:?}");
            came += b.received().len() as u64;
        }
        // Two seconds' worth, what may be made up for, and one burst that was begun before.
        assert!((2000..=2000 + 10 + 64).contains(&came), "{came} frames");
        let from = a.port.totals().0;
        assert!(from.dropped() == 0 && from.held >= 1000, "nothing is lost, and it was held {} times", from.held);
        limit(&a.port.sends, 1_000_000_000);
        while a.driver.unsent(0).unwrap() > 0 {
            forwarder.carry(&a.port, 1, 4 * SECOND);
            came += b.received().len() as u64;
        }
        assert_eq!(came, sent);
    }
}

#[test]
fn what_a_port_may_not_get_counts_as_if_it_had_no_buffers() {
    let (datapath, mut forwarder) = switch();
    let config = NetConfig::default();
    let mut a = Guest::new(&datapath, 1, config, 0);
    let mut b = Guest::new(&datapath, 2, config, 0);
    let mut c = Guest::new(&datapath, 3, config, 0);
    datapath.flows().insert(flow(1, &[2, 3]), 0).unwrap();
    // Nothing for a long time after the first burst.
    b.port.gets.set(1, 0, 1);
    for _ in 0..10 {
        (0..8).for_each(|_| a.send(VnetHdr::default(), &frame(2)));
        while forwarder.carry(&a.port, 1, 0).packets > 0 {}
    }
    assert_eq!((b.received().len(), c.received().len()), (8, 80), "copies for others are not touched");
    assert_eq!(drops(&b, false, DropReason::Rate), 72);
    assert_eq!(drops(&b, false, DropReason::NoBuffers), 0);
}

/// From port 1 to the port whose station it is.
fn to_station(port: u8) -> FlowSpec {
    let mut spec = flow(1, &[u32::from(port)]);
    spec.key.eth_dst.copy_from_slice(&frame(port)[..6]);
    spec.mask.0.eth_dst = [0xff; 6];
    spec
}

/// Three guests with rings of so many entries, the second of which may get nothing more for longer than any test lasts.
fn one_limited(size: u16) -> (Arc<Datapath>, Forwarder, [Guest; 3]) {
    let (datapath, mut forwarder) = switch();
    let config = NetConfig { size, tx_buffer: 70_000, rx_buffer: 70_000, ..NetConfig::default() };
    let mut guests = [1, 2, 3].map(|id| Guest::new(&datapath, id, config, 0));
    for port in [2, 3] {
        datapath.flows().insert(to_station(port), 0).unwrap();
    }
    guests[1].port.gets.set(1, 0, 1);
    guests[0].send(VnetHdr::default(), &frame(2));
    forwarder.carry(&guests[0].port, 1, 0);
    assert_eq!(guests[1].received().len(), 1, "what was begun is done, and paid for");
    (datapath, forwarder, guests)
}

fn large(to: u8) -> Vec<u8> {
    Frame::new(1, to).ether_type(0x88b5).payload(vec![7; 64_000]).build()
}

/// All packets of a window were for it, so nobody looked behind them, and the limit of the sender's patience did not hold.
#[test]
fn a_limited_receiver_does_not_hold_up_what_lies_behind_a_window_for_it() {
    // The last is more than is looked at.
    for (size, before, frame_for_it) in [(256, 100, frame(2)), (64, 20, large(2)), (1024, 600, frame(2))] {
        let (_datapath, mut forwarder, [mut a, b, mut c]) = one_limited(size);
        (0..before).for_each(|_| a.send(VnetHdr::default(), &frame_for_it));
        a.send(VnetHdr::default(), &frame(3));
        let mut now_ns = SECOND;
        while c.received().is_empty() {
            assert!(now_ns < SECOND + 60 * MS, "{before} packets hold up another");
            let outcome = forwarder.carry(&a.port, 1, now_ns);
            now_ns += if outcome.more || outcome.packets > 0 { 1000 } else { 100_000 };
        }
        assert_eq!(drops(&b, false, DropReason::Rate), before, "{before}");
    }
}

#[test]
fn a_limited_receiver_costs_what_its_senders_have_for_others_one_part_in_forty() {
    let (_datapath, mut forwarder, [mut a, _b, mut c]) = one_limited(256);
    let (mut waited_ns, mut came, end_ns) = (0, 0, 6 * SECOND);
    let (mut now_ns, mut since_ns) = (SECOND, None);
    while now_ns < end_ns {
        if since_ns.is_none() {
            (0..100).for_each(|_| a.send(VnetHdr::default(), &frame(2)));
            a.send(VnetHdr::default(), &frame(3));
            since_ns = Some(now_ns);
        }
        let outcome = forwarder.carry(&a.port, 1, now_ns);
        if !c.received().is_empty() {
            came += 1;
            waited_ns += now_ns - since_ns.take().unwrap();
        }
        now_ns += if outcome.more || outcome.packets > 0 { 50_000 } else { 100_000 };
    }
    waited_ns += since_ns.map_or(0, |since_ns| end_ns - since_ns);
    // But for the first wait, and the time that it takes to move them.
    assert!(waited_ns <= (end_ns - SECOND) / 40 + 60 * MS + came * 150_000, "{} ms, {came} came", waited_ns / MS);
}

#[test]
fn who_has_nothing_for_others_waits_for_a_limited_receiver_without_looking_all_the_time() {
    for (packets, frame_for_it) in [(1, frame(2)), (200, frame(2)), (20, large(2))] {
        let (_datapath, mut forwarder, [mut a, b, mut c]) = one_limited(256);
        (0..packets).for_each(|_| a.send(VnetHdr::default(), &frame_for_it));
        let (mut now_ns, mut looks) = (SECOND, 0);
        while now_ns < 61 * SECOND {
            let outcome = forwarder.carry(&a.port, 1, now_ns);
            assert_eq!(outcome.packets, 0, "{packets} packets: it may not go on");
            let until_ns = outcome.until_ns.expect("when it is worth a look");
            assert!(until_ns > now_ns);
            now_ns = until_ns;
            looks += 1;
        }
        assert!(looks <= 60_000, "{packets} packets: {looks} looks in a minute");
        assert_eq!(drops(&b, false, DropReason::Rate), 0, "{packets} packets");
        // What comes for somebody else then is not held up.
        a.send(VnetHdr::default(), &frame(3));
        while c.received().is_empty() {
            assert!(now_ns < 61 * SECOND + 60 * MS, "{packets} packets hold up another");
            forwarder.carry(&a.port, 1, now_ns);
            now_ns += 100_000;
        }
    }
}

/// What is behind the packets that are looked at nobody knows: it waits as long as for a receiver that has no buffers.
#[test]
fn a_full_ring_waits_for_a_limited_receiver_that_takes_a_burst_in_time() {
    for (size, every_ms, waits) in [(256, 40, true), (1024, 40, true), (256, 60, false), (1024, 60, false)] {
        let (datapath, mut forwarder, [mut a, mut b, _c]) = one_limited(size);
        let mut came = 0;
        for ms in 0..20 * every_ms {
            while a.driver.unsent(0).unwrap() < usize::from(size) {
                a.send(VnetHdr::default(), &frame(2));
            }
            // A burst, and nothing more until the next one.
            b.port.gets.set(u64::from(ms % every_ms != 0), 0, 1);
            b.port.gets.charge(1, 1_000_000, datapath.now_ns());
            forwarder.carry(&a.port, 1, SECOND + ms * MS);
            came += b.received().len();
        }
        let dropped = drops(&b, false, DropReason::Rate);
        assert_eq!(dropped == 0, waits, "rings of {size}, {every_ms} ms: {dropped} dropped, {came} came");
        assert_eq!(came, 20 * 64, "rings of {size}, {every_ms} ms");
    }
}

/// A limited receiver that takes a burst now and then, and somebody who keeps a ring full for it, with little for others in it: they hold up the
/// little for as long as its turn takes to come, and then for one part in forty.
#[test]
fn a_trickle_does_not_hold_up_what_seldom_comes_for_others() {
    let (datapath, mut forwarder, [mut a, mut b, mut c]) = one_limited(1024);
    let (mut sent, mut still_ms, mut came) = (0, 0, 0);
    for ms in 0..60_000 {
        while a.driver.unsent(0).unwrap() < 1024 {
            sent += 1;
            a.send(VnetHdr::default(), &frame(if sent % 1000 == 0 { 3 } else { 2 }));
        }
        b.port.gets.set(u64::from(ms % 40 != 0), 0, 1);
        b.port.gets.charge(1, 1_000_000, datapath.now_ns());
        still_ms += u64::from(forwarder.carry(&a.port, 1, SECOND + ms * MS).packets == 0);
        came += c.received().len();
        b.received();
    }
    // A thousand take 16 bursts, one each 40 ms.
    assert!(still_ms <= 60_000 / 40 + 700 && came > 2000, "{still_ms} ms of a minute, {came} came");
}

/// What lies behind the window of a limited receiver is looked at, too: its flow is not known for good while packets that missed it wait.
#[test]
fn packets_that_wait_for_control_are_not_overtaken_behind_a_window_for_a_limited_receiver() {
    let (datapath, mut forwarder, [mut a, mut b, _c]) = one_limited(256);
    let last_bytes = |guest: &mut Guest| guest.received().iter().map(|(_, f)| f[f.len() - 1]).collect::<Vec<_>>();
    let numbered = |to, n: u8| Frame::new(1, to).ether_type(0x88b5).payload(vec![n; 64]).build();
    a.send(VnetHdr::default(), &numbered(4, 1));
    forwarder.carry(&a.port, 1, SECOND);
    let first = a.port.upcalls.report().unwrap();
    // The flow comes before the packet has gone, as it may where both happen at the same time.
    let mut spec = to_station(4);
    spec.actions = vec![Action::Output(PortId(2))];
    datapath.flows().insert(spec, 0).unwrap();
    (0..64).for_each(|_| a.send(VnetHdr::default(), &numbered(2, 0)));
    a.send(VnetHdr::default(), &numbered(4, 2));
    forwarder.carry(&a.port, 1, SECOND);
    assert_eq!(last_bytes(&mut b), [], "it may get nothing");
    b.port.gets.set(0, 0, 0);
    for ms in 0..3 {
        forwarder.carry(&a.port, 1, SECOND + ms * MS);
    }
    assert_eq!(last_bytes(&mut b), [0; 64], "those of the other flow wait");
    forwarder.resume(&a.port, first.id, &[Action::Output(PortId(2))]);
    forwarder.carry(&a.port, 1, SECOND + 4 * MS);
    assert_eq!(last_bytes(&mut b), [1, 2]);
}

#[test]
fn what_a_port_may_not_flood_is_dropped() {
    for resumed in [false, true] {
        let (datapath, mut forwarder) = switch();
        let config = NetConfig::default();
        let mut a = Guest::new(&datapath, 1, config, 0);
        let mut others: Vec<_> = (2..4).map(|id| Guest::new(&datapath, id, config, 0)).collect();
        let outputs = [Action::LimitFlood, Action::Output(PortId(2)), Action::Output(PortId(3))];
        if !resumed {
            datapath.flows().insert(FlowSpec { actions: outputs.to_vec(), ..flow(1, &[]) }, 0).unwrap();
        }
        a.port.floods.set(0, 1, 5 * SECOND);
        for _ in 0..20 {
            a.send(VnetHdr::default(), &frame(0xff));
        }
        while forwarder.carry(&a.port, 1, datapath.now_ns()).packets > 0 {}
        while let Some(upcall) = a.port.upcalls.report() {
            forwarder.resume(&a.port, upcall.id, &outputs);
        }
        // Five seconds' worth, and the one that reaches it.
        let came: Vec<_> = others.iter_mut().map(|guest| guest.received().len()).collect();
        assert!(came == [6, 6] || came == [7, 7], "{came:?}");
        let from = a.port.totals().0;
        assert_eq!(drops(&a, true, DropReason::Storm), 20 - came[0] as u64);
        assert_eq!((from.packets, from.replicated), (20, came[0] as u64));
    }
}
