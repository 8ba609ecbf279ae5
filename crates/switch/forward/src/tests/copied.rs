//! What it takes to write packets to a guest counts at that guest, whoever sent them.

use super::*;
use crate::Coalesce;
use lasthop_virtqueue::Queue;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

fn frame(from: u8, to: u8) -> Vec<u8> {
    Frame::new(from, to).ether_type(0x88b5).payload([7; 1000]).build()
}

/// To the port whose station it is.
fn known(from: u8, to: u8) -> FlowSpec {
    let mut spec = flow(from.into(), &[to.into()]);
    spec.key.eth_dst.copy_from_slice(&frame(from, to)[..6]);
    spec.mask.0.eth_dst = [0xff; 6];
    spec
}

fn copied_ns(guest: &Guest) -> u64 {
    guest.port.totals().1.busy_ns
}

#[test]
fn each_of_three_receivers_has_what_two_senders_packets_take_there() {
    let (datapath, mut forwarder) = switch();
    let [mut a, mut b, x, y, z] = [1, 2, 3, 4, 5].map(|id| Guest::new(&datapath, id, NetConfig::default(), 0));
    for (from, to) in [(1, 3), (1, 4), (2, 4), (2, 5)] {
        datapath.flows().insert(known(from, to), 0).unwrap();
    }
    // One for each in turns, and runs for each.
    for run in [1, 10] {
        let mut sends = |from: &mut Guest, number: u8, to: [u8; 2]| {
            (0..40).for_each(|n| from.send(VnetHdr::default(), &frame(number, to[n / run % 2])));
            let (before, begun_ns) = ([&x, &y, &z].map(copied_ns), datapath.now_ns());
            assert_eq!(forwarder.carry(&from.port, 1, 0).packets, 40);
            let took_ns = datapath.now_ns() - begun_ns;
            let after = [&x, &y, &z].map(copied_ns);
            let each = [0, 1, 2].map(|n| after[n] - before[n]);
            assert!(each.iter().sum::<u64>() <= took_ns, "{each:?} of {took_ns}");
            each.map(|ns| ns > 0)
        };
        assert_eq!(sends(&mut a, 1, [3, 4]), [true, true, false]);
        assert_eq!(sends(&mut b, 2, [4, 5]), [false, true, true]);
    }
    assert_eq!([&a, &b].map(copied_ns), [0, 0], "nobody sends to them");
    x.port.queues[0].stop();
    let before = copied_ns(&x);
    a.send(VnetHdr::default(), &frame(1, 3));
    forwarder.carry(&a.port, 1, 0);
    assert_eq!((x.port.totals().1.dropped(), copied_ns(&x)), (1, before), "nothing is written to it any more");
}

#[test]
fn a_guest_without_buffers_has_nothing_copied_to_it() {
    let (datapath, mut forwarder) = switch();
    let [mut a, b] = [1, 2].map(|id| Guest::new(&datapath, id, NetConfig::default(), 0));
    datapath.flows().insert(known(1, 2), 0).unwrap();
    let mut before = 0;
    for _ in 0..1000 {
        before = copied_ns(&b);
        a.send(VnetHdr::default(), &frame(1, 2));
        forwarder.carry(&a.port, 1, 0);
        if copied_ns(&b) == before {
            break;
        }
    }
    assert!(b.port.totals().1.packets > 0 && before > 0);
    a.send(VnetHdr::default(), &frame(1, 2));
    forwarder.carry(&a.port, 1, 0);
    assert_eq!(copied_ns(&b), before, "it was visited in vain");
}

/// Those that came before its buffers ended are written to it, though the packet counts as dropped.
#[test]
fn segments_of_a_packet_that_does_not_arrive_whole_count() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 20_000, ..NetConfig::default() }, 0);
    let b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
    datapath.flows().insert(known(1, 2), 0).unwrap();
    let whole = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(5, 6).payload([7; 10_000]).partial_checksum();
    a.send(whole.vnet(VnetHdr::GSO_TCPV4, 1000), &whole.build());
    forwarder.carry(&a.port, 1, 0);
    let got = b.port.totals().1;
    assert!(got.segments > 0 && got.packets == 0 && got.dropped() == 1, "{got:?}");
    assert!(copied_ns(&b) > 0);
}

/// They are of the receiver's rate: without that, packets that are never whole would go past it, and the receiver's bound of processor time would be
/// made up for by its other senders.
#[test]
fn segments_of_a_packet_that_does_not_arrive_whole_are_charged_to_the_rate() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 20_000, ..NetConfig::default() }, 0);
    let b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
    datapath.flows().insert(known(1, 2), 0).unwrap();
    let whole = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(5, 6).payload([7; 10_000]).partial_checksum();
    b.port.gets.set(1000, 0, 0);
    a.send(whole.vnet(VnetHdr::GSO_TCPV4, 1000), &whole.build());
    forwarder.carry(&a.port, 1, datapath.now_ns());
    let got = b.port.totals().1;
    assert!(got.segments > 0 && got.packets == 0, "{got:?}");
    let now_ns = datapath.now_ns();
    let until_ns = b.port.gets.until(now_ns).expect("it has got something");
    // A kilobyte a second, and a segment has one at least.
    let owed = (until_ns - now_ns) as f64 / 1e9;
    assert!((0.9..12.0).contains(&owed), "{owed} s for {} segments", got.segments);
}

#[test]
fn packets_that_control_lets_go_on_count_as_well() {
    let (datapath, mut forwarder) = switch();
    let [mut a, b] = [1, 2].map(|id| Guest::new(&datapath, id, NetConfig::default(), 0));
    a.send(VnetHdr::default(), &frame(1, 2));
    forwarder.carry(&a.port, 1, 0);
    assert_eq!(copied_ns(&b), 0, "it waits");
    let (upcall, begun_ns) = (a.port.upcalls.report().unwrap(), datapath.now_ns());
    forwarder.resume(&a.port, upcall.id, &[Action::Output(PortId(2))]);
    let took_ns = datapath.now_ns() - begun_ns;
    assert!((1..=took_ns).contains(&copied_ns(&b)), "{} of {took_ns}", copied_ns(&b));
}

/// Another sender's packets, which are on that one's account.
#[test]
fn to_wait_for_a_receivers_ring_is_not_to_copy() {
    let (datapath, mut forwarder) = switch();
    let [mut a, b] = [1, 2].map(|id| Guest::new(&datapath, id, NetConfig::default(), 0));
    datapath.flows().insert(known(1, 2), 0).unwrap();
    a.send(VnetHdr::default(), &frame(1, 2));
    let (locked, wait) = channel();
    let (let_go_ns, end_ns) = std::thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let held = b.port.queues[0].lock();
            locked.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let now_ns = datapath.now_ns();
            drop(held);
            now_ns
        });
        wait.recv().unwrap();
        assert_eq!(forwarder.carry(&a.port, 1, 0).packets, 1);
        let end_ns = datapath.now_ns();
        (holder.join().unwrap(), end_ns)
    });
    let copied_ns = copied_ns(&b);
    assert!(copied_ns <= end_ns - let_go_ns, "{copied_ns}, and only {} since it was let go", end_ns - let_go_ns);
}

/// What has been counted when the guest is to be interrupted.
#[derive(Debug, Default)]
struct Counted(AtomicU64);

impl Coalesce for Counted {
    fn interrupts_now(&self, _: &Arc<Port>, queue: &Queue, _: u32, wanted: bool) -> bool {
        self.0.store(queue.counters.busy_ns.get(), Relaxed);
        wanted
    }

    fn look(&self, _: &Port, _: bool) -> bool {
        false
    }
}

#[test]
fn an_interrupt_is_no_copy() {
    let (datapath, mut forwarder) = switch();
    let [mut a, b] = [1, 2].map(|id| Guest::new(&datapath, id, NetConfig::default(), 0));
    datapath.flows().insert(known(1, 2), 0).unwrap();
    let counted = Arc::new(Counted::default());
    b.port.set_coalescing(counted.clone());
    a.send(VnetHdr::default(), &frame(1, 2));
    forwarder.carry(&a.port, 1, 0);
    assert!(copied_ns(&b) > 0);
    assert_eq!(counted.0.load(Relaxed), copied_ns(&b));
}
