//! Packets in, packets out: guests on our own driver side, real rings between, no processes.

use crate::port::feature;
use crate::{CACHE_ENTRIES, Datapath, Forwarder, Order, Outcome, PATIENCE_MS, Port};
use lasthop_flow::{Action, FlowSpec, InsertError};
use lasthop_frame::testutil::Frame;
use lasthop_frame::{FlowKey, FlowMask, VnetHdr};
use lasthop_guestmem::{GuestMemory, PinnedSlice};
use lasthop_types::{CacheFigures, DropReason, PortId};
use lasthop_virtqueue::driver::{NetConfig, NetDriver};
use lasthop_virtqueue::{JOURNAL_BYTES, Journal, Patience};
use std::sync::Arc;

/// The clock is handed in, in nanoseconds.
const MS: u64 = 1_000_000;

mod actions;
mod alloc;
mod copied;
mod dirty;
mod edits;
mod hostile;
mod kept;
mod mirrors;
mod once;
mod rates;
mod restart;
mod runs;
mod shares;
mod translations;
mod wasted;
mod work;

/// A guest on a port.
struct Guest {
    driver: NetDriver,
    port: Arc<Port>,
}

impl Guest {
    fn new(datapath: &Datapath, id: u32, config: NetConfig, features: u64) -> Self {
        Self::connect(datapath, id, NetDriver::new(config).unwrap(), features, None)
    }

    /// A guest that may have been connected before, by a switch that kept this journal.
    fn connect(
        datapath: &Datapath,
        id: u32,
        driver: NetDriver,
        features: u64,
        journal: Option<&Arc<GuestMemory>>,
    ) -> Self {
        let config = *driver.config();
        let port = Arc::new(Port::new(PortId(id), format!("p{id}")));
        for (i, queue) in driver.queues().iter().enumerate() {
            let layout = queue.layout;
            // Those of the driver that are named are taken away.
            let setup = layout.setup(if layout.packed { 0x8000 } else { 0 }, config.features() ^ features);
            if let Some(journal) = journal {
                let place = PinnedSlice::new(journal, (i * JOURNAL_BYTES) as u64, JOURNAL_BYTES).unwrap();
                port.queues[i].set_journal(Journal::new(place));
            }
            port.queues[i].start(&setup, driver.memory().clone()).unwrap();
            port.queues[i].set_enabled(true);
        }
        port.refresh();
        datapath.add_port(port.clone());
        Self { driver, port }
    }

    fn send(&mut self, header: VnetHdr, frame: &[u8]) {
        self.driver.send(0, &header.to_bytes(), frame).unwrap().unwrap();
        self.driver.flush(0);
    }

    fn received(&mut self) -> Vec<(VnetHdr, Vec<u8>)> {
        let mut out = Vec::new();
        loop {
            let mut frame = Vec::new();
            match self.driver.recv(0, &mut frame).unwrap() {
                Some(header) => out.push((VnetHdr::parse(&header), frame)),
                None => return out,
            }
        }
    }
}

/// Orders that are carried out at once.
impl Forwarder {
    fn resume(&mut self, port: &Arc<Port>, id: u32, actions: &[Action]) {
        self.all_of(Order::packet(port, id, actions.to_vec())).unwrap();
    }

    fn install(&mut self, flow: FlowSpec) -> Result<bool, InsertError> {
        let order = self.flow_order(flow);
        self.all_of(order)
    }

    fn all_of(&mut self, mut order: Order) -> Result<bool, InsertError> {
        loop {
            self.carry_out(&mut order, true);
            if let Some(result) = order.result() {
                return result;
            }
        }
    }
}

fn switch() -> (Arc<Datapath>, Forwarder) {
    switch_with(PATIENCE_MS)
}

fn switch_with(patience_ms: Patience) -> (Arc<Datapath>, Forwarder) {
    let datapath = Arc::new(Datapath::new(100, patience_ms).unwrap());
    datapath.set_control_answers(true);
    (datapath.clone(), Forwarder::new(datapath, CACHE_ENTRIES))
}

/// From one port to others, whatever the packet.
fn flow(from: u32, to: &[u32]) -> FlowSpec {
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    let actions = to.iter().map(|p| Action::Output(PortId(*p))).collect();
    FlowSpec { key: FlowKey { in_port: from, ..FlowKey::default() }, mask, actions, epoch: 0 }
}

fn layouts() -> impl Iterator<Item = NetConfig> {
    (0..8).map(|n| NetConfig {
        packed: n & 1 != 0,
        indirect: n & 2 != 0,
        pieces: if n & 2 != 0 { 5 } else { 1 },
        mergeable: n & 4 != 0,
        event_idx: n & 4 == 0,
        tx_buffer: 70_000,
        rx_buffer: 70_000,
        size: 64,
        ..NetConfig::default()
    })
}

#[test]
fn frames_of_all_sizes_arrive_whole_and_in_order() {
    for config in layouts() {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, config, 0);
        let mut b = Guest::new(&datapath, 2, config, 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        let sizes: Vec<usize> = (0..400).map(|n| 1 + n * 163).collect();
        let frames: Vec<_> = sizes
            .iter()
            .map(|n| {
                Frame::new(1, 2)
                    .ether_type(0x88b5)
                    .payload((0..*n).map(|i| (i * 7 + n) as u8).collect::<Vec<_>>())
                    .build()
            })
            .collect();
        let mut got = Vec::new();
        for frame in &frames {
            a.send(VnetHdr::default(), frame);
            assert_eq!(forwarder.carry(&a.port, 1, 0), Outcome { packets: 1, ..Outcome::default() });
            got.extend(b.received().into_iter().map(|(_, f)| f));
        }
        assert_eq!(got.len(), frames.len(), "{config:?}");
        assert!(got == frames, "{config:?}");
        assert_eq!(b.port.totals().1.packets, 400);
    }
}

#[test]
fn a_broadcast_reaches_everybody_else_once_and_the_sums_add_up() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut others: Vec<_> = (2..6).map(|id| Guest::new(&datapath, id, NetConfig::default(), 0)).collect();
    others[3].port.queues[0].stop();
    others[3].port.refresh();
    datapath.flows().insert(flow(1, &[2, 3, 4, 5, 6]), 0).unwrap();
    for n in 0..50u8 {
        a.send(VnetHdr::default(), &Frame::new(1, 255).payload([n; 64]).build());
    }
    forwarder.carry(&a.port, 1, 0);
    for guest in &mut others[..3] {
        assert_eq!(guest.received().len(), 50);
    }
    let from = a.port.totals().0;
    let delivered: u64 = others.iter().map(|g| g.port.totals().1.packets).sum();
    let dropped: u64 = from.dropped() + others.iter().map(|g| g.port.totals().1.dropped()).sum::<u64>();
    assert_eq!(from.packets + from.replicated, delivered + dropped);
    assert_eq!(from.drops, [(DropReason::NoPort, 50)]);
    assert_eq!(others[3].port.totals().1.drops, [(DropReason::PortDown, 50)]);
}

#[test]
fn a_miss_waits_for_control_and_then_goes_where_control_says() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 70_000, ..NetConfig::default() }, 0);
    let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(7, 9).payload(vec![5; 1400]).build();
    a.send(VnetHdr::default(), &frame);
    forwarder.carry(&a.port, 1, 0);
    assert!(datapath.take_missed());
    assert_eq!(a.driver.unsent(0).unwrap(), 0, "the guest has its buffer back");
    let upcall = a.port.upcalls.report().unwrap();
    assert_eq!((upcall.key.l4_dst, upcall.key.eth_dst, upcall.frame_len), (9, [2, 0, 0, 0, 0, 2], frame.len()));
    assert_eq!(upcall.header.bytes(), &frame[..upcall.header.len()]);
    assert!(a.port.upcalls.report().is_none());
    forwarder.resume(&a.port, upcall.id, &[Action::Output(PortId(2))]);
    assert_eq!(b.received(), [(VnetHdr { num_buffers: 1, ..VnetHdr::default() }, frame)]);
    assert!(a.port.upcalls.is_empty());
    forwarder.resume(&a.port, upcall.id, &[Action::Output(PortId(2))]);
    assert_eq!(b.received(), [], "an answer counts once");
}

#[test]
fn packets_that_wait_for_a_flow_go_before_those_that_meet_it() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    for n in 0..5u8 {
        // The fourth is for somebody else.
        a.send(VnetHdr::default(), &Frame::new(1, if n == 3 { 9 } else { 2 }).payload([n; 64]).build());
    }
    forwarder.carry(&a.port, 1, 0);
    let first = a.port.upcalls.report().unwrap();
    forwarder.install(to_station(2)).unwrap();
    a.send(VnetHdr::default(), &Frame::new(1, 2).payload([5; 64]).build());
    forwarder.carry(&a.port, 1, 0);
    let got: Vec<u8> = b.received().iter().map(|(_, f)| f[f.len() - 1]).collect();
    assert_eq!(got, [0, 1, 2, 4, 5]);
    forwarder.resume(&a.port, first.id, &[Action::Output(PortId(2))]);
    assert_eq!(b.received(), [], "control's own answer comes too late");
    assert_eq!(a.port.upcalls.report().unwrap().key.eth_dst[5], 9);
}

#[test]
fn a_flood_of_new_flows_fills_only_the_senders_own_ring() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    for n in 0..100u8 {
        a.send(VnetHdr::default(), &Frame::new(n, 200).payload([n; 64]).build());
    }
    let outcome = forwarder.carry(&a.port, 1, 0);
    assert_eq!(outcome, Outcome { packets: crate::UPCALL_SLOTS, stalled: true, ..Outcome::default() });
    assert_eq!(forwarder.carry(&a.port, 1, 0), Outcome { packets: 0, stalled: true, ..Outcome::default() });
    // Each answer makes room for one more, in order, until all have come through.
    let mut sources = Vec::new();
    while let Some(upcall) = a.port.upcalls.report() {
        sources.push(upcall.key.eth_src[5]);
        forwarder.resume(&a.port, upcall.id, &[]);
        forwarder.carry(&a.port, 1, 0);
    }
    assert_eq!(sources, (0..100).collect::<Vec<u8>>());
    let from = a.port.totals().0;
    assert_eq!((from.packets, from.missed), (100, 100));
    assert_eq!(
        from.drops.iter().find(|(r, _)| *r == DropReason::Policy).unwrap().1 + drops(&a, DropReason::BadSource),
        100
    );
}

fn drops(guest: &Guest, reason: DropReason) -> u64 {
    guest.port.totals().0.drops.iter().find(|(r, _)| *r == reason).map_or(0, |(_, n)| *n)
}

#[test]
fn without_control_known_flows_go_on() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    let known = FlowKey { in_port: 1, eth_dst: [2, 0, 0, 0, 0, 2], ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, eth_dst: [0xff; 6], ..FlowKey::default() });
    datapath
        .flows()
        .insert(FlowSpec { key: known, mask, actions: vec![Action::Output(PortId(2))], epoch: 0 }, 0)
        .unwrap();
    datapath.set_control_answers(false);
    for n in 0..60u8 {
        a.send(VnetHdr::default(), &Frame::new(1, 100 + n).build());
        a.send(VnetHdr::default(), &Frame::new(1, 2).payload([n; 64]).build());
        forwarder.carry(&a.port, 1, 0);
    }
    assert_eq!(b.received().len(), 60);
    let waiting = crate::UPCALL_SLOTS as u64;
    assert_eq!(drops(&a, DropReason::MissQueueFull), 60 - waiting);
    assert_eq!(forwarder.expire(&a.port, 1), crate::UPCALL_SLOTS);
    assert_eq!(drops(&a, DropReason::MissTimeout), waiting);
}

#[test]
fn large_packets_are_cut_for_a_receiver_that_cannot_take_them() {
    for (packed, mergeable) in [(false, true), (true, true), (false, false), (true, false)] {
        let (datapath, mut forwarder) = switch();
        let sender = NetConfig { tx_buffer: 70_000, packed, ..NetConfig::default() };
        let mut a = Guest::new(&datapath, 1, sender, 0);
        let mut b = Guest::new(&datapath, 2, NetConfig { packed, mergeable, ..NetConfig::default() }, 0);
        let tso = feature::GUEST_CSUM | feature::GUEST_TSO4;
        let big =
            NetConfig { packed, mergeable, rx_buffer: if mergeable { 2048 } else { 70_000 }, ..NetConfig::default() };
        let mut c = Guest::new(&datapath, 3, big, tso);
        datapath.flows().insert(flow(1, &[2, 3]), 0).unwrap();
        let payload: Vec<u8> = (0..60_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let whole = Frame::new(1, 2)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .tcp(1000, 2000)
            .payload(payload.clone())
            .partial_checksum();
        let header = whole.vnet(VnetHdr::GSO_TCPV4, 1448);
        a.send(header, &whole.build());
        forwarder.carry(&a.port, 1, 0);

        let segments = b.received();
        assert_eq!(segments.len(), 60_000usize.div_ceil(1448));
        let mut seen = Vec::new();
        for (vnet, frame) in &segments {
            assert_eq!((vnet.flags, vnet.gso_type, vnet.num_buffers), (0, 0, 1));
            let parsed = etherparse::PacketHeaders::from_ethernet_slice(frame).unwrap();
            let Some(etherparse::NetHeaders::Ipv4(ip, _)) = &parsed.net else { panic!("not IPv4") };
            let Some(etherparse::TransportHeader::Tcp(tcp)) = &parsed.transport else { panic!("not TCP") };
            assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(ip, parsed.payload.slice()).unwrap());
            seen.extend_from_slice(parsed.payload.slice());
        }
        assert!(seen == payload);
        let [(vnet, frame)] = &c.received()[..] else { panic!("one packet for the one who can") };
        assert_eq!((vnet.gso_type, vnet.gso_size, vnet.flags), (VnetHdr::GSO_TCPV4, 1448, VnetHdr::F_NEEDS_CSUM));
        assert!(*frame == whole.build());
        let to = b.port.totals().1;
        assert_eq!((to.packets, to.segments), (1, segments.len() as u64));
    }
}

#[test]
fn checksums_are_completed_for_a_receiver_that_wants_them() {
    for len in [0usize, 1, 100, 101, 1399, 1400] {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig { pieces: 3, indirect: true, ..NetConfig::default() }, 0);
        let mut b = Guest::new(&datapath, 2, NetConfig { rx_buffer: 333, ..NetConfig::default() }, 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        let payload: Vec<u8> = (0..len).map(|i| (i * 131) as u8).collect();
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(5, 6).payload(payload);
        let partial = frame.clone().partial_checksum();
        a.send(partial.vnet(VnetHdr::GSO_NONE, 0), &partial.build());
        forwarder.carry(&a.port, 1, 0);
        let [(vnet, got)] = &b.received()[..] else { panic!("one frame") };
        assert_eq!(vnet.flags, 0);
        assert_eq!(*got, frame.build(), "{len} bytes");
    }
}

/// From port 1 to a station, whose last byte is the port it goes to.
fn to_station(port: u8) -> FlowSpec {
    let mask = FlowMask(FlowKey { in_port: u32::MAX, eth_dst: [0xff; 6], ..FlowKey::default() });
    let key = FlowKey { in_port: 1, eth_dst: [2, 0, 0, 0, 0, port], ..FlowKey::default() };
    FlowSpec { key, mask, actions: vec![Action::Output(PortId(u32::from(port)))], epoch: 0 }
}

#[test]
fn packets_of_a_burst_never_follow_the_one_before_to_a_wrong_port() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut guests: Vec<_> =
        [2, 3].map(|id| Guest::new(&datapath, id, NetConfig { size: 8, ..NetConfig::default() }, 0)).into();
    for port in [1, 2, 3, 4] {
        datapath.flows().insert(to_station(port), 0).unwrap();
    }
    // In pairs: to 2, back to 1, to 2, to a port that is not there, to 3, which soon is full, to 2.
    for (n, to) in (0u8..).zip([2, 2, 1, 1, 2, 2, 4, 4, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 3, 3, 2, 2]) {
        a.send(VnetHdr::default(), &Frame::new(1, to).payload([n; 64]).build());
    }
    for now in [0, 1, 50, 51] {
        forwarder.carry(&a.port, 1, now * MS);
    }
    for (guest, expected) in guests.iter_mut().zip([vec![0, 1, 4, 5, 18, 21, 22], (8..16).collect()]) {
        let got: Vec<u8> = guest.received().iter().map(|(_, f)| f[f.len() - 1]).collect();
        assert_eq!(got, expected);
    }
    assert_eq!((drops(&a, DropReason::Hairpin), drops(&a, DropReason::NoPort)), (2, 2));
    assert_eq!(a.driver.unsent(0).unwrap(), 0);
}

#[test]
fn connections_spread_over_the_receivers_queues_and_each_stays_in_one() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { pairs: 4, ..NetConfig::default() }, 0);
    datapath.flows().insert(to_station(2), 0).unwrap();
    let mut queue_of = std::collections::BTreeMap::new();
    for round in 0..3u8 {
        for port in 0..60 {
            let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ttl(64 - round).tcp(1000 + port, 80);
            a.send(VnetHdr::default(), &frame.payload([round; 20]).build());
        }
        forwarder.carry(&a.port, 1, 0);
        for pair in 0..4 {
            let mut frame = Vec::new();
            while b.driver.recv(pair, &mut frame).unwrap().is_some() {
                let port = u16::from_be_bytes([frame[34], frame[35]]);
                assert_eq!(*queue_of.entry(port).or_insert(pair), pair, "connection {port} moved");
                frame.clear();
            }
        }
    }
    assert_eq!(queue_of.len(), 60);
    for pair in 0..4 {
        assert!(queue_of.values().filter(|q| **q == pair).count() > 3, "queue {pair} of {queue_of:?}");
    }
}

#[test]
fn bad_frames_are_dropped_under_their_names() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 70_000, ..NetConfig::default() }, 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { rx_buffer: 256, mergeable: false, ..NetConfig::default() }, 0);
    datapath.flows().insert(flow(1, &[2]), 0).unwrap();
    let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(5, 6).payload([0; 40]).build();
    a.send(VnetHdr::default(), &[]);
    a.send(VnetHdr::default(), &frame[..13]);
    a.send(VnetHdr::default(), &vec![0; 65_535 + 23]);
    a.send(VnetHdr { flags: 1, csum_start: 60_000, csum_offset: 0, ..VnetHdr::default() }, &frame);
    a.send(
        VnetHdr { flags: 1, gso_type: 1, gso_size: 0, csum_start: 34, csum_offset: 6, ..VnetHdr::default() },
        &frame,
    );
    a.send(VnetHdr::default(), &[frame.clone(), vec![0; 300]].concat());
    a.send(VnetHdr::default(), &frame);
    forwarder.carry(&a.port, 1, 0);
    assert_eq!(b.received().len(), 1);
    let (from, to) = (a.port.totals().0, b.port.totals().1);
    assert_eq!(from.drops, [(DropReason::TooShort, 2), (DropReason::TooLong, 1), (DropReason::BadOffload, 2)]);
    assert_eq!(to.drops, [(DropReason::BufferTooSmall, 1)]);
    assert_eq!(from.packets, 7);
    assert_eq!(a.driver.unsent(0).unwrap(), 0, "every buffer went back");
}

#[test]
fn packets_wait_a_little_for_a_receiver_without_buffers_and_then_no_more() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
    datapath.flows().insert(flow(1, &[2]), 0).unwrap();
    for n in 0..10u8 {
        a.send(VnetHdr::default(), &Frame::new(1, 2).payload([n; 64]).build());
    }
    let short = |packets| Outcome { packets, short_of_buffers: true, ..Outcome::default() };
    assert_eq!(forwarder.carry(&a.port, 1, 100 * MS), short(4));
    assert_eq!(forwarder.carry(&a.port, 1, 101 * MS), short(0));
    let last = |frames: Vec<(VnetHdr, Vec<u8>)>| frames.iter().map(|(_, f)| f[f.len() - 1]).collect::<Vec<_>>();
    assert_eq!(last(b.received()), [0, 1, 2, 3]);
    assert_eq!(forwarder.carry(&a.port, 1, 102 * MS), short(4), "it has buffers again, and nothing is lost");
    assert_eq!(forwarder.carry(&a.port, 1, 110 * MS), short(0));
    let outcome = forwarder.carry(&a.port, 1, 111 * MS);
    assert_eq!(outcome, Outcome { packets: 2, ..Outcome::default() }, "patience has an end, whatever went before");
    assert_eq!(last(b.received()), [4, 5, 6, 7]);
    let (from, to) = (a.port.totals().0, b.port.totals().1);
    assert_eq!((from.packets, to.packets, to.drops), (10, 8, vec![(DropReason::NoBuffers, 2)]));
    assert_eq!(a.driver.unsent(0).unwrap(), 0, "every buffer went back");
    assert_eq!(datapath.flows().flows()[0].stats.packets(), 10, "each counted once");
}

#[test]
fn without_patience_packets_do_not_wait_for_buffers() {
    let (datapath, mut forwarder) = switch_with(Patience { pace: 0, overtaken: 0, ..PATIENCE_MS });
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
    datapath.flows().insert(flow(1, &[2]), 0).unwrap();
    for now_ms in [0, 100] {
        for n in 0..10u8 {
            a.send(VnetHdr::default(), &Frame::new(1, 2).payload([n; 64]).build());
        }
        assert_eq!(forwarder.carry(&a.port, 1, now_ms * MS), Outcome { packets: 10, ..Outcome::default() });
        assert_eq!(b.received().len(), 4);
    }
    assert_eq!(b.port.totals().1.drops, [(DropReason::NoBuffers, 12)]);
}

#[test]
fn packets_for_others_overtake_those_that_wait_but_are_completed_in_order() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut slow = Guest::new(&datapath, 2, NetConfig { size: 2, ..NetConfig::default() }, 0);
    let mut other = Guest::new(&datapath, 3, NetConfig::default(), 0);
    for port in [2, 3] {
        datapath.flows().insert(to_station(port), 0).unwrap();
    }
    for n in 0..20u8 {
        a.send(VnetHdr::default(), &Frame::new(1, 2 + n % 2).payload([n; 64]).build());
    }
    let last = |frames: Vec<(VnetHdr, Vec<u8>)>| frames.iter().map(|(_, f)| f[f.len() - 1]).collect::<Vec<_>>();
    assert_eq!(
        forwarder.carry(&a.port, 1, 5 * MS),
        Outcome { packets: 4, short_of_buffers: true, ..Outcome::default() }
    );
    assert_eq!(last(other.received()), [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]);
    assert_eq!(last(slow.received()), [0, 2]);
    assert_eq!(forwarder.carry(&a.port, 1, 6 * MS).packets, 4);
    assert_eq!(last(slow.received()), [4, 6]);
    assert_eq!(forwarder.carry(&a.port, 1, 7 * MS).packets, 4);
    assert_eq!(forwarder.carry(&a.port, 1, 7 * MS).packets, 0);
    assert_eq!(forwarder.carry(&a.port, 1, 8 * MS).packets, 8, "less patience with others behind");
    assert_eq!(last(slow.received()), [8, 10]);
    assert_eq!(other.received(), []);
    let (from, to) = (a.port.totals().0, slow.port.totals().1);
    assert_eq!((from.packets, to.packets, to.dropped()), (20, 6, 4));
    assert_eq!(a.driver.unsent(0).unwrap(), 0);
}

/// A legacy guest's header has ten bytes, so what lies where others have their frame is not its frame: packets that look
/// the same there are not taken for repetitions.
#[test]
fn a_short_header_is_not_mistaken_for_a_long_one() {
    let (datapath, mut forwarder) = switch();
    let config = NetConfig { mergeable: false, ..NetConfig::default() };
    let mut legacy = Guest::new(&datapath, 1, config, feature::VERSION_1);
    let mut b = Guest::new(&datapath, 2, config, 0);
    let mut c = Guest::new(&datapath, 3, config, 0);
    let to = |last: u8, port: u32| FlowSpec {
        key: FlowKey { eth_dst: [2, 0, 0, 0, 0, last], ..FlowKey::default() },
        mask: FlowMask(FlowKey { eth_dst: [0xff; 6], ..FlowKey::default() }),
        ..flow(1, &[port])
    };
    datapath.flows().insert(to(2, 2), 0).unwrap();
    datapath.flows().insert(to(0, 3), 0).unwrap();
    let first = Frame::new(1, 2).ether_type(0x88b5).payload(vec![7; 100]).build();
    // To somebody else, and two bytes further on it begins like the first.
    let mut second = vec![2, 0, 0, 0, 0, 0];
    second[2..].copy_from_slice(&first[..4]);
    second.extend(&first[4..]);
    let there: [u8; 6] = second[..6].try_into().unwrap();
    datapath.flows().insert(FlowSpec { key: FlowKey { eth_dst: there, ..FlowKey::default() }, ..to(0, 3) }, 0).unwrap();
    for frame in [&first, &second] {
        // The driver writes twelve bytes in front: the last two are the frame's first.
        let vnet = VnetHdr { num_buffers: u16::from_le_bytes([frame[0], frame[1]]), ..VnetHdr::default() };
        legacy.driver.send(0, &vnet.to_bytes(), &frame[2..]).unwrap().unwrap();
    }
    legacy.driver.flush(0);
    assert_eq!(forwarder.carry(&legacy.port, 1, 0).packets, 2);
    assert_eq!(b.received().into_iter().map(|(_, frame)| frame).collect::<Vec<_>>(), [first]);
    assert_eq!(c.received().into_iter().map(|(_, frame)| frame).collect::<Vec<_>>(), [second]);
}

/// Only who still keeps a ring may silence its guest: otherwise somebody else waits for the kick.
#[test]
fn a_guest_is_asked_not_to_kick_only_if_that_still_holds() {
    for config in layouts() {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, config, 0);
        let mut kicks = |forwarder: &mut Forwarder, still: bool| {
            assert!(!forwarder.rearm_notifications(&a.port, 1, 0, || true), "nothing there yet");
            forwarder.disable_notifications(&a.port, 1, false, || still);
            a.driver.queues()[1].kick.drain();
            a.send(VnetHdr::default(), &[0; 60]);
            while forwarder.carry(&a.port, 1, 0).packets > 0 {}
            a.driver.queues()[1].kick.drain()
        };
        assert!(kicks(&mut forwarder, false));
        // On a split ring with EVENT_IDX there is no word for it but to let the index fall behind.
        assert!(config.event_idx && !config.packed || !kicks(&mut forwarder, true));
    }
}
