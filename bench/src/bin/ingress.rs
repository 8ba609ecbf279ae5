//! Two threads that carry packets to one receiver, beside two that carry to one each: what is lost because the receiver's ring is locked through
//! the copies, and so what copying without its lock could gain at most.
//!
//! `ingress [SIZE] [--packets N] [--rounds N] [--cpus A,B]` plays three ways in turns. In each round a thread fills the ring of its sender first, all threads
//! begin to carry at the same moment, and the time is taken until the last has carried all. Drivers do nothing meanwhile.

use clap::Parser;
use lasthop_flow::{Action, FlowSpec};
use lasthop_forward::{CACHE_ENTRIES, Datapath, Forwarder, PATIENCE_MS, Port};
use lasthop_frame::testutil::Frame;
use lasthop_frame::{FlowKey, FlowMask, VnetHdr};
use lasthop_sys::bind_current_thread;
use lasthop_types::PortId;
use lasthop_virtqueue::driver::{NetConfig, NetDriver};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What the lock of a receiver's ring costs two threads that carry to it.
#[derive(Parser)]
struct Args {
    /// Length of each frame in bytes, without checksum
    #[arg(default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=65_536))]
    size: u32,
    /// Packets of each sender in a round, a power of two
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u16).range(64..=16_384))]
    packets: u16,
    /// How many rounds of each way
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// The CPUs of the two threads
    #[arg(long, default_value = "0,1", value_delimiter = ',')]
    cpus: Vec<usize>,
}

/// A sender and the thread that carries what it sends.
struct Lane {
    driver: NetDriver,
    port: Arc<Port>,
    forwarder: Forwarder,
    frame: Vec<u8>,
}

impl Lane {
    fn fill(&mut self, packets: u16) {
        let header = VnetHdr::default().to_bytes();
        for _ in 0..packets {
            self.driver.send(0, &header, &self.frame).expect("ring").expect("room");
        }
        self.driver.flush(0);
    }

    fn carry(&mut self, packets: u16) {
        let mut left = usize::from(packets);
        while left > 0 {
            let carried = self.forwarder.carry(&self.port, 1, self.forwarder.now_ns()).packets;
            assert!(carried > 0, "{left} packets are left, and nobody takes them");
            left -= carried;
        }
    }
}

/// Lanes and the receivers that they go to, in turns.
struct Way {
    name: &'static str,
    lanes: Vec<Lane>,
    receivers: Vec<(NetDriver, Arc<Port>)>,
    /// Of each round: packets a second, and for which part of the time a receiver's ring was held.
    rounds: Vec<(f64, f64)>,
}

impl Way {
    fn new(name: &'static str, [lanes, receivers]: [u32; 2], args: &Args) -> Self {
        let datapath = Arc::new(Datapath::new(64, PATIENCE_MS).expect("eventfd"));
        let buffer = (args.size + VnetHdr::LEN as u32).next_multiple_of(64);
        // One receiver has room for what both send; what is never used is small.
        let guest = |id, [size, rx_buffer, tx_buffer]: [u32; 3]| {
            let size = size as u16;
            guest(&datapath, id, NetConfig { size, rx_buffer, tx_buffer, in_order: true, ..NetConfig::default() })
        };
        let room = u32::from(args.packets);
        let receivers: Vec<_> = (0..receivers).map(|n| guest(101 + n, [2 * room, buffer, 64])).collect();
        let lane = |n| {
            let (driver, port) = guest(n + 1, [room, 64, buffer]);
            let to = 101 + n % receivers.len() as u32;
            let key = FlowKey { in_port: n + 1, ..FlowKey::default() };
            let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
            let flow = FlowSpec { key, mask, actions: vec![Action::Output(PortId(to))], epoch: 0 };
            datapath.flows().insert(flow, 0).expect("room");
            let frame = Frame::new(n as u8 + 1, to as u8).ether_type(0x88b5).payload(vec![7; args.size as usize - 14]);
            Lane { driver, port, forwarder: Forwarder::new(datapath.clone(), CACHE_ENTRIES), frame: frame.build() }
        };
        let lanes = (0..lanes).map(lane).collect();
        Self { name, lanes, receivers, rounds: Vec::new() }
    }

    fn held_ns(&self) -> u64 {
        self.receivers.iter().map(|(_, port)| port.totals().1.busy_ns).sum()
    }

    fn round(&mut self, packets: u16, cpus: &[usize]) {
        let (before_ns, threads, ready) = (self.held_ns(), self.lanes.len(), &AtomicUsize::new(0));
        let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
            let carries = move |(lane, cpu): (&mut Lane, usize)| {
                bind_current_thread(cpu).expect("a CPU of this machine");
                lane.fill(packets);
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < threads {
                    std::hint::spin_loop();
                }
                let begun = Instant::now();
                lane.carry(packets);
                (begun, Instant::now())
            };
            let lanes = self.lanes.iter_mut().zip(cpus.iter().copied());
            let threads: Vec<_> = lanes.map(|lane| scope.spawn(move || carries(lane))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread that carries")).collect()
        });
        let begun = times.iter().map(|(begun, _)| *begun).min();
        let end = times.iter().map(|(_, end)| *end).max();
        let took = end.zip(begun).map_or(0.0, |(end, begun)| (end - begun).as_secs_f64());
        let (sent, held) = (threads * usize::from(packets), (self.held_ns() - before_ns) as f64 / 1e9);
        self.rounds.push((sent as f64 / took, held / self.receivers.len() as f64 / took));
        let mut received = 0;
        for (driver, _) in &mut self.receivers {
            while driver.recv_with(0, |_| received += 1).expect("ring") {}
        }
        assert_eq!(received, sent, "packets were lost");
    }

    /// The best round, and the one in the middle.
    fn best_and_median(&mut self) -> [(f64, f64); 2] {
        self.rounds.sort_by(|a, b| b.0.total_cmp(&a.0));
        [0, self.rounds.len() / 2].map(|n| self.rounds.get(n).copied().unwrap_or_default())
    }
}

fn guest(datapath: &Datapath, id: u32, config: NetConfig) -> (NetDriver, Arc<Port>) {
    let driver = NetDriver::new(config).expect("memory");
    let port = Arc::new(Port::new(PortId(id), format!("p{id}")));
    for (queue, device) in driver.queues().iter().zip(port.queues.iter()) {
        device.start(&queue.layout.setup(0, config.features()), driver.memory().clone()).expect("ring");
        device.set_enabled(true);
    }
    port.refresh();
    datapath.add_port(port.clone());
    (driver, port)
}

fn main() {
    let args = Args::parse();
    assert!(args.cpus.len() == 2 && args.packets.is_power_of_two(), "two CPUs, and packets that are a power of two");
    let mut ways = [
        Way::new("one thread, one receiver", [1, 1], &args),
        Way::new("two threads, a receiver each", [2, 2], &args),
        Way::new("two threads, one receiver", [2, 1], &args),
    ];
    for _ in 0..args.rounds {
        ways.iter_mut().for_each(|way| way.round(args.packets, &args.cpus));
    }
    let figures = ways.each_mut().map(Way::best_and_median);
    for (way, figures) in ways.iter().zip(figures) {
        let [best, median] = figures.map(|(rate, held)| {
            let gbit = rate * f64::from(args.size) * 8.0 / 1e9;
            format!("{:.3} million a second, {gbit:.1} Gbit/s, ring held {:.0} % of the time", rate / 1e6, held * 100.0)
        });
        println!("{} B, {}: best {best}; median {median}", args.size, way.name);
    }
    let [_, each, one] = figures;
    let [best, median] = [0, 1].map(|n| each[n].0 / one[n].0);
    println!("{} B: a receiver each is {best:.2} times one receiver (best), {median:.2} (median)", args.size);
}
