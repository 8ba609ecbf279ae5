//! Hosts of today: many guests, bursts with heavy tails, and each mechanism switched off alone.

mod report;

use crate::host::Host;
use crate::inputs::Costs;
use crate::setup::{Bursts, Carrier, Mechanisms, Setup, Traffic};
use crate::stats::Account;
use crate::world::World;
pub use report::report;

const MS: u64 = 1_000_000;

/// A host, how many guests live on it, and what they do.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Short name.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// The machine.
    pub host: Host,
    /// How many.
    pub guests: usize,
    /// Traffic.
    pub bursts: Bursts,
    /// What is measured; a tenth of it before is not.
    pub measure_ns: u64,
}

/// Bursts of 60 packets on average, 2.5 µs apart; each guest talks to four others.
const BURSTS: Bursts =
    Bursts { packets: 60.0, gap_ns: 2_500.0, silence_ns: 20_000_000.0, peers: 4, compute: 0.02, compute_ns: 500_000.0 };

/// What is played.
pub const SCENES: [Scene; 3] = [
    Scene {
        name: "cores-128",
        title: "128 cores, 1000 VMs, cores to spare",
        host: Host::CORES_128,
        guests: 1000,
        bursts: BURSTS,
        measure_ns: 300 * MS,
    },
    Scene {
        name: "cores-128-full",
        title: "128 cores, 1000 VMs that want nearly all of them",
        host: Host::CORES_128,
        guests: 1000,
        bursts: Bursts { compute: 0.075, ..BURSTS },
        measure_ns: 300 * MS,
    },
    Scene {
        name: "cores-1024",
        title: "1024 cores, 1000 VMs, each sends five times as often",
        host: Host::CORES_1024,
        guests: 1000,
        bursts: Bursts { silence_ns: 4_000_000.0, compute: 0.3, ..BURSTS },
        measure_ns: 60 * MS,
    },
];

/// Everything on, then each mechanism off alone, then one on that the policy does not have.
pub const ABLATIONS: [(&str, Mechanisms); 15] = {
    const ALL: Mechanisms = Mechanisms::ALL;
    [
        ("everything on", ALL),
        ("transmit batching off", Mechanisms { transmit_batching: false, ..ALL }),
        ("receive batching off", Mechanisms { receive_batching: false, ..ALL }),
        ("VM state unknown", Mechanisms { vm_state: false, ..ALL }),
        ("preemptive copy off", Mechanisms { preemptive_copy: false, ..ALL }),
        ("helpers off", Mechanisms { helpers: false, ..ALL }),
        ("hysteresis off", Mechanisms { hysteresis: false, ..ALL }),
        ("hysteresis fixed at 5 µs", Mechanisms { adaptive: false, ..ALL }),
        ("caches ignored", Mechanisms { cache: false, ..ALL }),
        ("back-off off", Mechanisms { back_off: false, ..ALL }),
        ("work before blocking off", Mechanisms { before_blocking: false, ..ALL }),
        ("what if: way for siblings", Mechanisms { give_way: true, ..ALL }),
        ("what if: transmit timer as drawn", Mechanisms { drawn_timer: true, ..ALL }),
        ("what if: helpers look at all rings", Mechanisms { watch_all: true, ..ALL }),
        ("what if: 320 KiB before help is asked", Mechanisms { whole_burst: true, ..ALL }),
    ]
};

/// What came of one run, for each second unless said otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What is switched off.
    pub name: &'static str,
    /// Packets received, millions.
    pub mpps: f64,
    /// Bits received, 10⁹.
    pub gbps: f64,
    /// From the sender's ring to the receiver's stack, in µs: half of all are faster.
    pub p50_us: f64,
    /// … 99 of 100 are.
    pub p99_us: f64,
    /// Time of the switch at normal priority for each packet, ns.
    pub normal_ns: f64,
    /// Time of helpers that did something for each packet, ns.
    pub idle_ns: f64,
    /// Time of helpers that looked in vain for each packet, ns.
    pub polling_ns: f64,
    /// Kicks for each packet.
    pub kicks: f64,
    /// Interrupts for each packet.
    pub interrupts: f64,
    /// Threads of the switch and helpers woken for each packet.
    pub wakes: f64,
    /// Part of the packets that helpers copied.
    pub by_helpers: f64,
    /// Helpers whose core was wanted, thousands.
    pub taken_away: f64,
    /// Packets dropped, of those sent.
    pub dropped: f64,
    /// Cores' time that guests had for themselves, of all.
    pub guests: f64,
}

/// Plays a scene with some mechanisms.
pub fn play(scene: &Scene, costs: &Costs, name: &'static str, mechanisms: Mechanisms, seed: u64) -> Row {
    let setup = Setup {
        host: scene.host,
        costs: costs.clone(),
        carrier: Carrier::Lasthop,
        mechanisms,
        guests: vec![None; scene.guests],
        services: Vec::new(),
        dedicated: None,
        traffic: Traffic::Bursts(scene.bursts),
        variation: 0.1,
        warm_up_ns: scene.measure_ns / 10,
        measure_ns: scene.measure_ns,
        seed,
    };
    let mut world = World::new(setup);
    world.run();
    let stats = &world.stats;
    let (seconds, packets) = (scene.measure_ns as f64 / 1e9, stats.packets.max(1) as f64);
    let each = |n: u64| n as f64 / packets;
    Row {
        name,
        mpps: packets / seconds / 1e6,
        gbps: stats.bytes as f64 * 8.0 / seconds / 1e9,
        p50_us: stats.latency.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: stats.latency.value_at_quantile(0.99) as f64 / 1e3,
        normal_ns: each(stats.time(Account::Normal)),
        idle_ns: each(stats.time(Account::Idle)),
        polling_ns: each(stats.time(Account::Polling)),
        kicks: each(stats.kicks),
        interrupts: each(stats.interrupts),
        wakes: each(stats.thread_wakes + stats.helper_wakes),
        by_helpers: each(stats.copied_by_helpers),
        taken_away: stats.taken_away as f64 / seconds / 1e3,
        dropped: stats.dropped as f64 / stats.sent.max(1) as f64,
        guests: stats.time(Account::Guest) as f64 / (scene.measure_ns as f64 * scene.host.cores as f64),
    }
}
