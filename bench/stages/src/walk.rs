//! Guests on our own driver side, with packets in their rings, and a forwarder that takes them on.

use crate::{BURSTS, PACKETS, Stage};
use lasthop_flow::{Action, FlowSpec};
use lasthop_forward::{CACHE_ENTRIES, Datapath, Forwarder, PATIENCE_MS, Port};
use lasthop_frame::testutil::Frame;
use lasthop_frame::testutil::edits::edited;
use lasthop_frame::{Depth, Edit, FlowKey, FlowMask, Part, Set, VnetHdr};
use lasthop_guestmem::{GuestMemory, RegionSpec};
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use lasthop_virtqueue::driver::{NetConfig, NetDriver};
use lasthop_virtqueue::{BURST, Chains};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is sent, and what is known of it. Port 1 sends.
pub struct Traffic {
    /// Sent in turns, each with its header and with what a receiver is to find.
    frames: Vec<(VnetHdr, Vec<u8>, Vec<u8>)>,
    flows: Vec<FlowSpec>,
    receivers: u32,
    packed: bool,
    in_order: bool,
    /// Queue pairs of each guest.
    pairs: u16,
    rx_buffer: u32,
    /// Receive buffers that a packet takes, and frames that it becomes.
    buffers: usize,
    segments: usize,
    /// Each guest's memory is two regions, and its buffers lie in one and the other in turns.
    two_regions: bool,
}

/// One of 64 stations.
fn mac(n: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, n as u8])
}

fn from_port_1() -> FlowKey {
    FlowKey { in_port: u32::MAX, ..FlowKey::default() }
}

fn flow(key: FlowKey, mask: FlowKey, to: impl IntoIterator<Item = u32>) -> FlowSpec {
    let actions = to.into_iter().map(|port| Action::Output(PortId(port))).collect();
    FlowSpec { key, mask: FlowMask(mask), actions, epoch: 0 }
}

/// A frame of this length, with UDP over IPv4 from one of 64 sockets of one station.
fn udp(len: usize, n: usize) -> Vec<u8> {
    let frame = Frame::new(1, 2).ipv4([10, 0, 1, n as u8], [10, 0, 0, 2]).udp(1000 + n as u16, 53);
    frame.payload(vec![7; len - 42]).build()
}

impl Traffic {
    /// Frames of these lengths in turns, of one flow that knows stations only.
    pub fn udp(lens: &[usize]) -> Self {
        let mask = FlowKey { eth_dst: [0xff; 6], eth_src: [0xff; 6], ..from_port_1() };
        let key =
            FlowKey { in_port: 1, eth_dst: [2, 0, 0, 0, 0, 2], eth_src: [2, 0, 0, 0, 0, 1], ..FlowKey::default() };
        Self::new(lens.iter().map(|len| udp(*len, 0)), vec![flow(key, mask, [2])])
    }

    fn new(frames: impl IntoIterator<Item = Vec<u8>>, flows: Vec<FlowSpec>) -> Self {
        let frames = frames.into_iter().map(|frame| (VnetHdr::default(), frame.clone(), frame)).collect();
        Self {
            frames,
            flows,
            receivers: 1,
            packed: false,
            in_order: true,
            pairs: 1,
            rx_buffer: 2048,
            buffers: 1,
            segments: 1,
            two_regions: false,
        }
    }

    /// Seven of 64 bytes, four of 594 and one of 1514 (without checksum).
    pub fn imix() -> Self {
        Self::udp(&[64, 594, 64, 64, 594, 64, 1514, 64, 594, 64, 594, 64])
    }

    /// With packed rings.
    pub fn packed(self) -> Self {
        Self { packed: true, ..self }
    }

    /// Between guests without VIRTIO_F_IN_ORDER: each chain comes back by a used entry of its own.
    pub fn in_any_order(self) -> Self {
        Self { in_order: false, ..self }
    }

    /// Between guests with so many queue pairs, and 64 sockets in turns: one flow that knows stations only.
    pub fn queues(pairs: u16) -> Self {
        let one = Self::udp(&[]);
        Self { pairs, ..Self::new((0..BURST).map(|n| udp(64, n)), one.flows) }
    }

    /// Between guests whose buffers lie in two regions in turns, as they may below and above 4 GiB.
    pub fn in_two_regions(self) -> Self {
        Self { two_regions: true, ..self }
    }

    /// 64 pairs of stations take turns, each a flow.
    pub fn stations() -> Self {
        let frame = |n| Frame::between(mac(n), mac(n + 64)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2);
        let mask = FlowKey { eth_dst: [0xff; 6], eth_src: [0xff; 6], ..from_port_1() };
        let key = |n| FlowKey { in_port: 1, eth_dst: mac(n + 64).0, eth_src: mac(n).0, ..FlowKey::default() };
        Self::new(
            (0..BURST).map(|n| frame(n).payload([7; 22]).build()),
            (0..BURST).map(|n| flow(key(n), mask, [2])).collect(),
        )
    }

    /// 64 sockets take turns, and one flow matches all of them.
    pub fn sockets_of_one_flow() -> Self {
        let mask = FlowKey { eth_type: u16::MAX, ip_proto: u8::MAX, l4_dst: u16::MAX, ..from_port_1() };
        let key = FlowKey { in_port: 1, eth_type: 0x800, ip_proto: 17, l4_dst: 53, ..FlowKey::default() };
        Self::new((0..BURST).map(|n| udp(64, n)), vec![flow(key, mask, [2])])
    }

    /// 64 sockets take turns, each a flow.
    pub fn sockets() -> Self {
        let mask = FlowKey {
            eth_dst: [0xff; 6],
            eth_src: [0xff; 6],
            eth_type: u16::MAX,
            ip_src: [0xff; 16],
            ip_dst: [0xff; 16],
            ip_proto: u8::MAX,
            l4_src: u16::MAX,
            l4_dst: u16::MAX,
            ..from_port_1()
        };
        let frames: Vec<_> = (0..BURST).map(|n| udp(64, n)).collect();
        let key = |frame: &Vec<u8>| {
            let mut key = FlowKey { in_port: 1, ..FlowKey::default() };
            lasthop_frame::extract(&mut key, frame, frame.len(), Depth::Full);
            key
        };
        let flows = frames.iter().map(|frame| flow(key(frame), mask, [2])).collect();
        Self::new(frames, flows)
    }

    /// Everything goes to three ports.
    pub fn flood() -> Self {
        let key = FlowKey { in_port: 1, ..FlowKey::default() };
        Self { receivers: 3, ..Self::new([udp(64, 0)], vec![flow(key, from_port_1(), 2..5)]) }
    }

    /// Every frame is edited on its way, as in the reference.
    fn edited(edits: &[Edit]) -> Self {
        let actions: Vec<_> = edits.iter().copied().map(Action::Edit).chain([Action::Output(PortId(2))]).collect();
        let mut traffic = Self::udp(&[64]);
        traffic.flows.iter_mut().for_each(|flow| flow.actions.clone_from(&actions));
        for (_, sent, wanted) in &mut traffic.frames {
            *wanted = edits.iter().fold(sent.clone(), |frame, edit| edited(&frame, edit, None).expect("an edit"));
        }
        traffic
    }

    /// Source address and port are others behind a router.
    pub fn set_nat() -> Self {
        let set = |part, word, value, mask| Edit::Set(Set { part, word, value, mask });
        let address = set(Part::Ipv4, 3, 0xc0a8_0101, u32::MAX);
        Self::edited(&[address, set(Part::Ports, 0, 0x1234_0000, 0xffff_0000), Edit::DecTtl])
    }

    /// A tag comes in front.
    pub fn push_vlan() -> Self {
        Self::edited(&[Edit::PushVlan { tpid: 0x8100, tci: 7 }])
    }

    /// Everything goes to one port, and a copy of it to a mirror's destination.
    pub fn mirror() -> Self {
        let mut mirrored = flow(FlowKey { in_port: 1, ..FlowKey::default() }, from_port_1(), [2]);
        mirrored.actions.insert(0, Action::Copy(PortId(3)));
        Self { receivers: 2, ..Self::new([udp(64, 0)], vec![mirrored]) }
    }

    /// The sender leaves checksums to somebody else, and the receiver wants them whole.
    pub fn checksum(len: usize) -> Self {
        let frame = || Frame::new(1, 2).ipv4([10, 0, 1, 1], [10, 0, 0, 2]).tcp(1000, 80).payload(vec![7; len - 54]);
        let partial = frame().partial_checksum();
        let sent = (partial.vnet(VnetHdr::GSO_NONE, 0), partial.build(), frame().build());
        Self { frames: vec![sent], ..Self::udp(&[]) }
    }

    /// The longest TCP packets there are, and a receiver that takes none longer than 1500 bytes.
    pub fn gso() -> Self {
        let frame = Frame::new(1, 2).ipv4([10, 0, 1, 1], [10, 0, 0, 2]).tcp(1000, 80);
        let frame = frame.partial_checksum().payload(vec![7; 65_495]);
        let segments = 65_495usize.div_ceil(1460);
        let sent = (frame.vnet(VnetHdr::GSO_TCPV4, 1460), frame.build(), Vec::new());
        Self { frames: vec![sent], buffers: segments, segments, ..Self::udp(&[]) }
    }

    /// Jumbo frames, for which a receiver joins buffers that hold 1500 bytes and the headers.
    pub fn joined_buffers() -> Self {
        Self { rx_buffer: 1526, buffers: 9014usize.div_ceil(1526 - VnetHdr::LEN), ..Self::udp(&[9014]) }
    }
}

/// A forwarder and a sender's ring full of packets, the first burst of which has gone: their flows are in the cache.
pub struct Walk {
    forwarder: Forwarder,
    from: Arc<Port>,
    sender: NetDriver,
    receivers: Vec<NetDriver>,
    traffic: Traffic,
    packets: usize,
}

impl Walk {
    /// With this traffic.
    pub fn new(traffic: Traffic) -> Box<Self> {
        let datapath = Arc::new(Datapath::new(1000, PATIENCE_MS).expect("eventfd"));
        let most = PACKETS + BURST;
        let longest = traffic.frames.iter().map(|(_, frame, _)| frame.len()).max().expect("a frame");
        let config = |entries: usize| NetConfig {
            packed: traffic.packed,
            in_order: traffic.in_order,
            pairs: traffic.pairs,
            size: entries.next_power_of_two() as u16,
            rx_buffer: traffic.rx_buffer,
            alternate: traffic.two_regions,
            ..NetConfig::default()
        };
        let tx_buffer = (VnetHdr::LEN + longest).next_multiple_of(64) as u32;
        let (mut sender, from) = guest(&datapath, 1, NetConfig { tx_buffer, rx_buffer: 64, ..config(most) });
        let rx = NetConfig { tx_buffer: 64, ..config(most * traffic.buffers) };
        let receivers = (0..traffic.receivers).map(|i| guest(&datapath, 2 + i, rx).0).collect();
        for flow in &traffic.flows {
            datapath.flows().insert(flow.clone(), 0).expect("room");
        }
        for (header, frame, _) in traffic.frames.iter().cycle().take(most) {
            sender.send(0, &header.to_bytes(), frame).expect("ring").expect("room");
        }
        sender.flush(0);
        let mut forwarder = Forwarder::new(datapath, CACHE_ENTRIES);
        let packets = burst(&mut forwarder, &from);
        Box::new(Self { forwarder, from, sender, receivers, traffic, packets })
    }
}

/// 64 packets, in so many goes as they are worth.
#[inline]
fn burst(forwarder: &mut Forwarder, from: &Port) -> usize {
    let mut packets = 0;
    while packets < BURST {
        let outcome = forwarder.carry(from, 1, 0);
        packets += outcome.packets;
        if !outcome.more {
            break;
        }
    }
    packets
}

impl Stage for Walk {
    #[inline]
    fn run(&mut self) {
        for _ in 0..BURSTS {
            self.packets += burst(&mut self.forwarder, &self.from);
        }
    }

    fn check(mut self: Box<Self>) {
        assert_eq!(self.packets, PACKETS + BURST, "packets taken");
        assert_eq!(self.sender.unsent(0).expect("ring"), 0, "buffers not given back");
        let Traffic { frames, segments, pairs, .. } = &self.traffic;
        for receiver in &mut self.receivers {
            let mut got = Vec::new();
            if *pairs > 1 {
                check_queues(receiver, *pairs, frames.iter().map(|(_, _, wanted)| wanted));
                continue;
            }
            for (_, sent, wanted) in frames.iter().cycle().take(PACKETS + BURST) {
                let mut len = 0;
                for _ in 0..*segments {
                    got.clear();
                    assert!(receiver.recv(0, &mut got).expect("ring").is_some(), "a frame is missing");
                    len += got.len();
                }
                // Each segment repeats 54 bytes of headers.
                assert_eq!(len, if *segments > 1 { sent.len() + 54 * (segments - 1) } else { wanted.len() });
                assert!(*segments > 1 || got == *wanted, "a frame has changed");
            }
            got.clear();
            assert!(receiver.recv(0, &mut got).expect("ring").is_none(), "a frame too many");
        }
    }
}

/// Each of the frames, which were sent in turns, came as often, on one queue, and each queue got some.
fn check_queues<'a>(receiver: &mut NetDriver, pairs: u16, wanted: impl Iterator<Item = &'a Vec<u8>>) {
    let wanted: Vec<_> = wanted.collect();
    let mut seen = BTreeMap::new();
    for queue in 0..pairs {
        let (mut got, before) = (Vec::new(), seen.len());
        while receiver.recv(queue, &mut got).expect("ring").is_some() {
            let (came_by, times) = seen.entry(std::mem::take(&mut got)).or_insert((queue, 0));
            assert_eq!(*came_by, queue, "a connection changes its queue");
            *times += 1;
        }
        assert!(seen.len() > before, "queue {queue} got nothing");
    }
    let times = (PACKETS + BURST) / wanted.len();
    assert!(wanted.iter().all(|frame| seen.remove(*frame).is_some_and(|(_, n)| n == times)), "frames are missing");
    assert!(seen.is_empty(), "frames too many");
}

/// A ring full of packets that are only taken out of it.
pub struct Take {
    port: Arc<Port>,
    _sender: NetDriver,
    taken: usize,
}

impl Take {
    /// From this layout.
    pub fn new(packed: bool) -> Box<Self> {
        let datapath = Datapath::new(1, PATIENCE_MS).expect("eventfd");
        let config = NetConfig { packed, in_order: true, size: PACKETS as u16, ..NetConfig::default() };
        let (mut sender, port) = guest(&datapath, 1, config);
        for _ in 0..PACKETS {
            sender.send(0, &VnetHdr::default().to_bytes(), &udp(64, 0)).expect("ring").expect("room");
        }
        sender.flush(0);
        Box::new(Self { port, _sender: sender, taken: 0 })
    }
}

impl Stage for Take {
    #[inline]
    fn run(&mut self) {
        let mut guard = self.port.queues[1].lock();
        let started = guard.started().expect("started");
        let memory = started.memory.clone();
        for _ in 0..BURSTS {
            let mut chains = Chains::default();
            started.ring.pop(&memory, &mut chains, BURST).expect("ring");
            self.taken += std::hint::black_box(&chains).list.len();
        }
    }

    fn check(self: Box<Self>) {
        assert_eq!(self.taken, PACKETS, "chains taken");
    }
}

fn guest(datapath: &Datapath, id: u32, config: NetConfig) -> (NetDriver, Arc<Port>) {
    let driver = NetDriver::new(config).expect("memory");
    let memory = if config.alternate { two_regions(&driver) } else { driver.memory().clone() };
    let port = Arc::new(Port::new(PortId(id), format!("p{id}")));
    for (queue, device) in driver.queues().iter().zip(port.queues.iter()) {
        let base = if config.packed { 0x8000 } else { 0 };
        device.start(&queue.layout.setup(base, config.features()), memory.clone()).expect("ring");
        device.set_enabled(true);
    }
    port.refresh();
    datapath.add_port(port.clone());
    (driver, port)
}

/// The guest's memory as two regions, with a border in the middle of the longer of its two queues' buffers.
fn two_regions(driver: &NetDriver) -> Arc<GuestMemory> {
    let (whole, file) = driver.region();
    let NetConfig { rx_buffer, tx_buffer, size, .. } = *driver.config();
    let queue = &driver.queues()[usize::from(tx_buffer > rx_buffer)];
    let border = queue.buffer(u32::from(size / 2)) - whole.guest_addr;
    let first = RegionSpec { size: border, ..whole };
    let second = RegionSpec {
        guest_addr: whole.guest_addr + border,
        user_addr: whole.user_addr + border,
        size: whole.size - border,
        mmap_offset: border,
    };
    let memory = GuestMemory::empty().with_region(first, file).and_then(|memory| memory.with_region(second, file));
    Arc::new(memory.expect("two regions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrives(traffic: Traffic) {
        let mut walk = Walk::new(traffic);
        walk.run();
        walk.check();
    }

    #[test]
    fn every_packet_of_every_kind_arrives() {
        arrives(Traffic::udp(&[60]));
        arrives(Traffic::udp(&[64]));
        arrives(Traffic::udp(&[64]).packed());
        arrives(Traffic::udp(&[64]).in_any_order());
        arrives(Traffic::queues(4));
        arrives(Traffic::udp(&[1472]));
        arrives(Traffic::imix());
        arrives(Traffic::stations());
        arrives(Traffic::sockets_of_one_flow());
        arrives(Traffic::sockets());
        arrives(Traffic::flood());
        arrives(Traffic::set_nat());
        arrives(Traffic::push_vlan());
        arrives(Traffic::mirror());
        arrives(Traffic::checksum(1514));
        arrives(Traffic::gso());
        arrives(Traffic::joined_buffers());
    }

    #[test]
    #[should_panic(expected = "packets taken")]
    fn packets_without_a_flow_are_noticed() {
        let walk = Walk::new(Traffic { flows: Vec::new(), ..Traffic::udp(&[64]) });
        walk.check();
    }

    #[test]
    fn a_ring_is_emptied() {
        for packed in [false, true] {
            let mut take = Take::new(packed);
            take.run();
            take.check();
        }
    }
}
