//! Rings whose own memory has been taken back and is being translated anew.

use super::*;
use crate::{Order, Orders};
use lasthop_guestmem::translations::{TABLE_BYTES, Translations, set_of};
use lasthop_guestmem::{RegionSpec, meter};
use lasthop_sys::{EventFd, Foreign, PeerEvent, memfd};
use lasthop_virtqueue::{QueueSetup, feature};

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

/// I/O address of buffers.
const LONG: u64 = 1 << 32;

/// The table of a guest's translations.
struct Table(GuestMemory);

impl Table {
    fn tell(&self, page: u64, guest: u64) {
        let words = self.0.slice(0, TABLE_BYTES as usize).unwrap();
        let (set, tag) = set_of(page);
        let free = (0..8).map(|way| set as usize + 8 * way).find(|at| words.load_u64(*at) == 0).expect("room");
        words.store_u64(free, tag << 38 | guest << 2 | 3);
    }
}

/// Has a guest's first ring start anew with translated addresses, and as many buffers of so many pages, of which all are known but the last.
fn translated(guest: &Guest, buffers: u16, pages: u64) -> Table {
    let bytes = 32 << 20;
    let physical = GuestMemory::anonymous(bytes).unwrap();
    let file = memfd("table", TABLE_BYTES).unwrap();
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: TABLE_BYTES, mmap_offset: 0 };
    let table = Table(GuestMemory::empty().with_region(spec, &file).unwrap());
    (0..64).for_each(|page| table.tell(page, page));
    (0..pages - 1).for_each(|n| table.tell(LONG / 4096 + n, 100 + n));
    let whole = physical.slice(0, bytes as usize).unwrap();
    let ring = feature::INDIRECT | feature::EVENT_IDX | feature::PACKED | feature::IN_ORDER;
    let features = guest.driver.config().features() & !ring;
    let setup = QueueSetup { size: 64, desc: 0, driver: 0x1000, device: 0x2000, base: 0, features };
    for i in 0..usize::from(buffers) {
        whole.store_u64(16 * i, LONG);
        whole.store_u64(16 * i + 8, (pages * 4096) | (2 << 32));
        whole.store_u16(0x1004 + 2 * i, i as u16);
    }
    whole.store_u16(0x1002, buffers);
    let doorbell: std::os::fd::OwnedFd = EventFd::new().unwrap().into();
    let translations = Translations::map(&file, PeerEvent::new(Foreign::from(doorbell)).unwrap()).unwrap();
    let queue = &guest.port.queues[0];
    queue.stop();
    queue.start(&setup, Arc::new(physical.translated_by(Some(Arc::new(translations))))).unwrap();
    queue.set_enabled(true);
    guest.port.refresh();
    table
}

/// A packet waits for a receiver of that kind. It is looked at now and then, and the packet comes when the last page is known.
#[test]
fn a_receiver_whose_buffers_wait_for_their_last_page_is_left_alone_for_a_while() {
    for pages in [300, 2000] {
        let (datapath, mut forwarder) = switch();
        let [mut a, b] = [1, 2].map(|n| Guest::new(&datapath, n, NetConfig::default(), 0));
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        let table = translated(&b, 33, pages);
        a.send(VnetHdr::default(), &Frame::new(1, 2).payload([5; 64]).build());
        let mut carry = |now_ns: u64| {
            let before = meter::looked_up();
            let outcome = forwarder.carry(&a.port, 1, now_ns);
            (meter::looked_up() - before > pages, outcome.short_of_buffers)
        };
        assert_eq!(carry(MS), (true, true));
        assert_eq!(carry(MS + 100_000), (false, true), "it is left alone");
        assert_eq!(carry(100 * MS), (true, true));
        table.tell(LONG / 4096 + pages - 1, 99);
        assert_eq!(carry(100 * MS + 100_000), (false, true), "and so it is when its page has come");
        assert_eq!(carry(200 * MS), (true, false));
        let to = b.port.totals().1;
        assert_eq!((to.packets, to.drops), (1, vec![]));
    }
}

/// One of a sender's packets in each burst is for a guest whose buffers are of thousands of pages, all known but the last. What the sender
/// has for others goes on as if that guest had no buffers at all.
#[test]
fn a_receiver_whose_buffers_wait_for_their_last_page_costs_its_senders_little() {
    let rate = |hostile: bool, pages: u64| {
        let (datapath, mut forwarder) = switch();
        let [mut a, b, mut d] = [1, 2, 4].map(|n| Guest::new(&datapath, n, NetConfig::default(), 0));
        let mask = FlowMask(FlowKey { in_port: u32::MAX, eth_dst: [255; 6], ..FlowKey::default() });
        let frame = |to: u8| Frame::new(1, to).payload([5; 64]).build();
        for to in [2, 4] {
            let key = FlowKey { in_port: 1, eth_dst: frame(to)[..6].try_into().unwrap(), ..FlowKey::default() };
            let flow = FlowSpec { key, mask, actions: vec![Action::Output(PortId(to.into()))], epoch: 0 };
            datapath.flows().insert(flow, 0).unwrap();
        }
        let _table = translated(&b, if hostile { 33 } else { 0 }, pages);
        let (began, mut got, mut n) = (datapath.now_ns(), 0, 0u64);
        while datapath.now_ns() < began + 500 * MS {
            for _ in 0..32 {
                let to = frame(if n % 64 == 0 { 2 } else { 4 });
                if a.driver.send(0, &VnetHdr::default().to_bytes(), &to).unwrap().is_err() {
                    break;
                }
                n += 1;
            }
            a.driver.flush(0);
            forwarder.carry(&a.port, 1, datapath.now_ns());
            got += d.received().len();
        }
        got
    };
    let (empty, short, long) = (rate(false, 1), rate(true, 1), rate(true, 2048));
    eprintln!(
        "in 0.5 s {empty} packets beside a guest without buffers, {short} beside one that waits for a page each, {long} beside this one"
    );
    assert!(long * 2 > short);
}
