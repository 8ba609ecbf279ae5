//! The packet path alone: two guests on our own driver side and one forwarder, all on one thread.
//!
//! `walk [SIZE] [--packed] [--ring N] [--sockets N] [--bursts N]` prints the cycles the forwarder takes for a packet, in bursts of 64. The
//! drivers' own work is not counted, but they share the caches, as guests on the same core would.

use clap::Parser;
use lasthop_bench_stages::Cycles;
use lasthop_flow::{Action, FlowSpec};
use lasthop_forward::{CACHE_ENTRIES, Datapath, Forwarder, PATIENCE_MS, Port};
use lasthop_frame::testutil::Frame;
use lasthop_frame::{Depth, FlowKey, FlowMask, VnetHdr, extract};
use lasthop_types::PortId;
use lasthop_virtqueue::BURST;
use lasthop_virtqueue::driver::{NetConfig, NetDriver};
use std::sync::Arc;

/// The packet path alone, in cycles of the processor's counter.
#[derive(Parser)]
struct Args {
    /// Length of each frame in bytes, without checksum
    #[arg(default_value_t = 64, value_parser = clap::value_parser!(u16).range(42..=2036))]
    size: u16,
    /// Packed rings instead of split ones
    #[arg(long)]
    packed: bool,
    /// Entries of each ring, a power of two
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(BURST as i64..=32768))]
    ring: u16,
    /// So many UDP sockets send in turns, a flow of addresses and ports each; 0: one, and a flow of its station
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=50_000))]
    sockets: u16,
    /// How many bursts of 64 are measured
    #[arg(long, default_value_t = 50_000)]
    bursts: usize,
}

fn main() {
    let Args { size, packed, ring, sockets, bursts } = Args::parse();
    let config = NetConfig { packed, size: ring, in_order: true, ..NetConfig::default() };
    let datapath = Arc::new(Datapath::new(65_536, PATIENCE_MS).expect("eventfd"));
    let (mut a, from) = guest(&datapath, 1, config);
    let (mut b, _to) = guest(&datapath, 2, config);
    let frame = |n: u16| {
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(n, 2);
        frame.payload(vec![7; usize::from(size) - 42]).build()
    };
    let frames: Vec<_> = (0..sockets.max(1)).map(frame).collect();
    let mut mask = FlowKey { in_port: u32::MAX, eth_dst: [0xff; 6], eth_src: [0xff; 6], ..FlowKey::default() };
    if sockets > 0 {
        mask = FlowKey { eth_type: u16::MAX, ip_proto: u8::MAX, l4_src: u16::MAX, l4_dst: u16::MAX, ..mask };
    }
    for frame in &frames {
        let mut key = FlowKey { in_port: 1, ..FlowKey::default() };
        extract(&mut key, frame, frame.len(), Depth::L4);
        let flow = FlowSpec { key, mask: FlowMask(mask), actions: vec![Action::Output(PortId(2))], epoch: 0 };
        datapath.flows().insert(flow, 0).expect("room");
    }

    let mut forwarder = Forwarder::new(datapath.clone(), CACHE_ENTRIES);
    let header = VnetHdr::default().to_bytes();
    let (mut packets, mut received) = (0, 0);
    let mut cycles = Cycles::new(BURST);
    let mut next = frames.iter().cycle();
    for _ in 0..bursts {
        for frame in (0..BURST).filter_map(|_| next.next()) {
            a.send(0, &header, frame).expect("ring").expect("room");
        }
        a.flush(0);
        packets += cycles.measure(|| forwarder.carry(&from, 1, 0)).packets;
        while b.recv_with(0, |_| received += 1).expect("ring") {}
    }
    assert_eq!(packets, bursts * BURST, "not every burst was carried in one go");
    assert_eq!(packets, received, "packets were lost");
    let layout = if packed { "packed" } else { "split" };
    println!("{cycles}, {size} B, {layout}, ring of {ring}, {sockets} sockets");
}

fn guest(datapath: &Datapath, id: u32, config: NetConfig) -> (NetDriver, Arc<Port>) {
    let driver = NetDriver::new(config).expect("memory");
    let port = Arc::new(Port::new(PortId(id), format!("p{id}")));
    for (queue, device) in driver.queues().iter().zip(port.queues.iter()) {
        let base = if queue.layout.packed { 0x8000 } else { 0 };
        let setup = queue.layout.setup(base, config.features());
        device.start(&setup, driver.memory().clone()).expect("ring");
        device.set_enabled(true);
    }
    port.refresh();
    datapath.add_port(port.clone());
    (driver, port)
}
