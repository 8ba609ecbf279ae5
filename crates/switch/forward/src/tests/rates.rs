//! Limits of ports: what they may send, get and flood.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn frame(to: u8) -> Vec<u8> {
    Frame::new(1, to).ether_type(0x88b5).payload(vec![7; 986]).build()
}

/// A thousand bytes each, and a limit of as many kilobytes a second.
fn limit(limit: &crate::Limit, frames_a_second: u64) {
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
        assert_eq!(a.port.totals().0.dropped(), 0, "nothing is lost");
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
