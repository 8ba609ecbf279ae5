//! The packet path alone: two guests on our own driver side and one forwarder, all on one thread.
//!
//! `walk [SIZE] [PACKED] [BURSTS] [TIMED]` prints the CPU nanoseconds the forwarder takes for a packet. The
//! drivers' own work is not counted, but they share the caches, as guests on the same core would.

use lasthop_flow::{Action, FlowSpec};
use lasthop_forward::{Datapath, Forwarder, PATIENCE_MS, Port};
use lasthop_frame::testutil::Frame;
use lasthop_frame::{FlowKey, FlowMask, VnetHdr};
use lasthop_types::PortId;
use lasthop_virtqueue::driver::{NetConfig, NetDriver};
use lasthop_virtqueue::{BURST, QueueSetup};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default: usize| args.next().map_or(default, |a| a.parse().expect("a number"));
    let size = number(64);
    let packed = number(0) != 0;
    let bursts = number(50_000);
    // For instruction counters, under which the clock does not work.
    let timed = number(1) != 0;
    let now = || if timed { cpu_ns() } else { 0 };
    let config = NetConfig { packed, size: 1024, in_order: true, ..NetConfig::default() };
    let datapath = Arc::new(Datapath::new(100, PATIENCE_MS).expect("eventfd"));
    let (mut a, from) = guest(&datapath, 1, config);
    let (mut b, _to) = guest(&datapath, 2, config);
    let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2).payload(vec![7; size - 42]).build();
    let l2 = FlowKey { in_port: u32::MAX, eth_dst: [0xff; 6], eth_src: [0xff; 6], ..FlowKey::default() };
    let key = FlowKey { in_port: 1, eth_dst: [2, 0, 0, 0, 0, 2], eth_src: [2, 0, 0, 0, 0, 1], ..FlowKey::default() };
    let flow = FlowSpec { key, mask: FlowMask(l2), actions: vec![Action::Output(PortId(2))], epoch: 0 };
    datapath.flows().insert(flow, 0).expect("room");

    let mut forwarder = Forwarder::new(datapath.clone());
    let header = VnetHdr::default().to_bytes();
    let (mut busy, mut packets, mut received) = (0, 0, 0);
    for _ in 0..bursts {
        for _ in 0..BURST {
            a.send(0, &header, &frame).expect("ring").expect("room");
        }
        a.flush(0);
        let start = now();
        packets += forwarder.carry(&from, 1, 0).packets;
        busy += now() - start;
        while b.recv_with(0, |_| received += 1).expect("ring") {}
    }
    assert_eq!(packets, received, "packets were lost");
    println!("{:.1} ns a packet, {size} B, {}", busy as f64 / packets as f64, if packed { "packed" } else { "split" });
}

fn guest(datapath: &Datapath, id: u32, config: NetConfig) -> (NetDriver, Arc<Port>) {
    let driver = NetDriver::new(config).expect("memory");
    let port = Arc::new(Port::new(PortId(id), format!("p{id}")));
    for (queue, device) in driver.queues().iter().zip(port.queues.iter()) {
        let layout = queue.layout;
        let setup = QueueSetup {
            size: layout.size,
            desc: layout.desc,
            driver: layout.driver,
            device: layout.device,
            base: if layout.packed { 0x8000 } else { 0 },
            packed: layout.packed,
            event_idx: layout.event_idx,
            in_order: layout.in_order,
            indirect: layout.indirect.is_some(),
            features: config.features(),
        };
        device.start(&setup, driver.memory().clone()).expect("ring");
        device.set_enabled(true);
    }
    port.refresh();
    datapath.add_port(port.clone());
    (driver, port)
}

fn cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
