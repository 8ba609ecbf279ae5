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
