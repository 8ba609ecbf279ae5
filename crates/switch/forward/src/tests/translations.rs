//! Rings whose own memory has been taken back and is being translated anew.

use super::*;
use crate::{Order, Orders};

/// A packet that comes from control waits for such a ring, for half a second at most, and nothing for others waits with it.
#[test]
fn what_control_sends_on_waits_until_the_ring_is_back() {
    let (datapath, mut forwarder) = switch();
    let [mut a, mut b, mut c, mut d] = [1, 2, 3, 4].map(|n| Guest::new(&datapath, n, NetConfig::default(), 0));
    let (mut orders, now_ns, memory) = (Orders::default(), datapath.now_ns(), c.driver.memory().clone());
    let decide = |orders: &mut Orders, forwarder: &mut Forwarder, from: &mut Guest, to: &[u32], now_ns| {
        from.send(VnetHdr::default(), &Frame::new(1, 9).payload([5; 64]).build());
        forwarder.carry(&from.port, 1, now_ns);
        let id = from.port.upcalls.report().unwrap().id;
        let actions = to.iter().map(|to| Action::Output(PortId(*to))).collect();
        orders.push(from.port.id, Order::packet(&from.port, id, actions));
    };
    let round = |orders: &mut Orders, forwarder: &mut Forwarder| {
        let mut done = Vec::new();
        orders.round(forwarder, |port, _| done.push(port.0));
        done
    };
    c.port.queues[0].rest().unwrap();
    decide(&mut orders, &mut forwarder, &mut a, &[3], now_ns);
    decide(&mut orders, &mut forwarder, &mut b, &[4], now_ns);
    assert_eq!(round(&mut orders, &mut forwarder), [2]);
    assert!(!orders.pause().is_zero(), "nobody spins");
    // One that goes to several does not wait.
    decide(&mut orders, &mut forwarder, &mut b, &[3, 4], now_ns);
    assert_eq!(round(&mut orders, &mut forwarder), [2]);
    assert_eq!((c.received().len(), d.received().len()), (0, 2));
    assert_eq!(c.port.totals().1.drops, [(DropReason::NoBuffers, 1)]);
    c.port.queues[0].set_memory(memory).unwrap();
    assert_eq!(round(&mut orders, &mut forwarder), [1]);
    assert_eq!((c.received().len(), orders.pause().is_zero()), (1, true));

    // Somebody waits until all is carried out: it is for everybody that control asks.
    c.port.queues[0].rest().unwrap();
    decide(&mut orders, &mut forwarder, &mut a, &[3], now_ns);
    assert_eq!(round(&mut orders, &mut forwarder), []);
    orders.hurried = true;
    assert_eq!(round(&mut orders, &mut forwarder), [1]);
    orders.hurried = false;
    assert_eq!(c.port.totals().1.drops, [(DropReason::NoBuffers, 2)]);

    // It does not come back.
    c.port.queues[0].rest().unwrap();
    let began = datapath.now_ns();
    decide(&mut orders, &mut forwarder, &mut a, &[3], began);
    while round(&mut orders, &mut forwarder).is_empty() {
        assert!(datapath.now_ns() < began + 20_000_000_000, "it waits for ever");
        std::thread::sleep(orders.pause());
    }
    assert!(datapath.now_ns() >= began + 499_000_000);
    assert_eq!(c.port.totals().1.drops, [(DropReason::NoBuffers, 3)]);
}

/// A guest makes another open as many connections to it as may wait for control, and one more, while its own ring is being translated, for as
/// long as its front-end likes. What the other one sends to somebody else, by a flow that is known, goes on.
#[test]
fn a_sender_s_other_packets_do_not_wait_for_a_ring_that_is_away() {
    for rests in [false, true] {
        let (datapath, mut forwarder) = switch();
        let [mut a, c, mut d] = [1, 3, 4].map(|n| Guest::new(&datapath, n, NetConfig::default(), 0));
        let mask = FlowMask(FlowKey { in_port: u32::MAX, eth_dst: [255; 6], ..FlowKey::default() });
        let mut orders = Orders::default();
        let frame = |to: u8| Frame::new(1, to).payload([5; 64]).build();
        let of = |to: u8, output: u32| FlowSpec {
            key: FlowKey { in_port: 1, eth_dst: frame(to)[..6].try_into().unwrap(), ..FlowKey::default() },
            mask,
            actions: vec![Action::Output(PortId(output))],
            epoch: 0,
        };
        datapath.flows().insert(of(4, 4), 0).unwrap();
        match rests {
            true => c.port.queues[0].rest().unwrap(),
            // It has no buffers left either.
            false => drop(c.port.queues[0].stop()),
        }
        for n in 0..=crate::UPCALL_SLOTS as u8 {
            a.send(VnetHdr::default(), &frame(100 + n));
        }
        a.send(VnetHdr::default(), &frame(4));
        let began = datapath.now_ns();
        let control = |forwarder: &mut Forwarder, a: &Guest, orders: &mut Orders| {
            while let Some(upcall) = a.port.upcalls.report() {
                let to = upcall.key.eth_dst[5];
                let flow = FlowSpec {
                    key: FlowKey { in_port: 1, eth_dst: upcall.key.eth_dst, ..FlowKey::default() },
                    ..of(to, 3)
                };
                orders.push(a.port.id, forwarder.flow_order(flow));
                orders.push(a.port.id, Order::packet(&a.port, upcall.id, vec![Action::Output(PortId(3))]));
            }
            orders.round(forwarder, |_, _| {});
        };
        while d.received().is_empty() {
            let now = datapath.now_ns();
            assert!(now < began + 100_000_000, "rests {rests}: a packet for another waits for longer than 100 ms");
            forwarder.carry(&a.port, 1, now);
            control(&mut forwarder, &a, &mut orders);
        }
        eprintln!("rests {rests}: {:?}", std::time::Duration::from_nanos(datapath.now_ns() - began));
    }
}
