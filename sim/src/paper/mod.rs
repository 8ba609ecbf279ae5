//! The thesis' evaluation (§4.5), played again.

pub mod place;
mod report;
mod values;

use crate::host::Host;
use crate::inputs::Costs;
use crate::setup::{Carrier, Flow, Mechanisms, Setup, Traffic};
use crate::world::World;
pub use report::report;
pub use values::{Kind, Value};

/// Payload of a packet: 64 KB, less the headers.
const BYTES: u32 = 65_226;
const MS: u64 = 1_000_000;
/// Runs for each point.
const RUNS: u64 = 3;

/// Who carries, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Hyper-Switch. Helpers leave when somebody begins to use the other core of their module: the thesis says only that
    /// they go to idle modules, and that others on the same caches are not affected unfairly (§4.3.4).
    HyperSwitch,
    /// … without offloading to idle cores.
    NoOffload,
    /// … with nobody pinned.
    NotPinned,
    /// … with helpers that stay there, as the policy lets them.
    Stays,
    /// … with the transmit timer as figure 4.3 draws it, where all others of these have the policy's.
    Drawn,
    /// Open vSwitch and vhost-net under KVM.
    Kvm,
    /// Open vSwitch and netback in a driver domain under Xen.
    Xen,
}

/// The series of one figure: throughput in Gb/s by the number of guests or pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Who.
    pub system: System,
    /// How many, and how much.
    pub points: Vec<(usize, f64)>,
}

/// Everything that was played.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Figure 4.11 and 4.15: 1 to 16 pairs.
    pub pairs: Vec<Series>,
    /// Figure 4.13, 4.16 and 4.20: 2 to 32 guests.
    pub all: Vec<Series>,
    /// One pair beside a dedicated core.
    pub dedicated: f64,
    /// Figure 4.18: no offload; dedicated core on the node of both, of the receiver, of the sender, of neither.
    pub node: [f64; 5],
    /// Figure 4.19: no offload; dedicated core on the module of the receiver, of the sender, of neither.
    pub module: [f64; 4],
    /// Figure 4.10: transactions a second of Hyper-Switch, KVM and Xen.
    pub transactions: [f64; 3],
}

impl Results {
    /// Plays everything; `progress` is called with what comes next.
    pub fn play(costs: &Costs, seed: u64, mut progress: impl FnMut(&str)) -> Self {
        let paper = Paper { costs, seed };
        use System::*;
        progress("pairs");
        let pairs = [HyperSwitch, Kvm, Xen, NotPinned, NoOffload, Stays, Drawn]
            .map(|system| Series { system, points: (1..=16).map(|n| (n, paper.pairs(system, n))).collect() });
        progress("all to all");
        let all = [HyperSwitch, Kvm, Xen, NotPinned, NoOffload, Drawn]
            .map(|system| Series { system, points: (2..=32).map(|n| (n, paper.all_to_all(system, n))).collect() });
        progress("one pair");
        let one = |guests: [usize; 2], core| paper.one_pair(guests, core);
        let node = [
            one(place::PAIR, None),
            one([31, 29], Some(27)),
            one([23, 29], Some(27)),
            one([31, 21], Some(27)),
            one([23, 21], Some(27)),
        ];
        let module =
            [one(place::PAIR, None), one([31, 29], Some(28)), one([31, 29], Some(30)), one([31, 29], Some(27))];
        Self {
            pairs: pairs.into(),
            all: all.into(),
            dedicated: one(place::PAIR, Some(place::DEDICATED)),
            node,
            module,
            transactions: [HyperSwitch, Kvm, Xen].map(|system| paper.transactions(system)),
        }
    }

    /// A series' throughput.
    pub fn at(series: &[Series], system: System, count: usize) -> f64 {
        let series = series.iter().find(|s| s.system == system);
        series.and_then(|s| s.points.iter().find(|p| p.0 == count)).map_or(f64::NAN, |p| p.1)
    }

    /// The highest of a series, and where.
    pub fn peak(series: &[Series], system: System) -> (usize, f64) {
        let points = series.iter().find(|s| s.system == system).map_or(&[][..], |s| &s.points);
        points.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::NAN))
    }
}

/// The papers' server.
pub struct Paper<'a> {
    /// What things cost on it.
    pub costs: &'a Costs,
    /// Chance.
    pub seed: u64,
}

impl Paper<'_> {
    fn setup(&self, system: System, guests: usize, traffic: Traffic) -> Setup {
        let pinned = |cores: &[usize], n: usize| cores.iter().take(n).copied().map(Some).collect::<Vec<_>>();
        let (carrier, places, services) = match system {
            System::HyperSwitch | System::NoOffload | System::Stays | System::Drawn => {
                (Carrier::HyperSwitch, pinned(&place::HYPER_SWITCH, guests), Vec::new())
            }
            System::NotPinned => (Carrier::HyperSwitch, vec![None; guests], Vec::new()),
            System::Kvm => {
                (Carrier::Vhost, pinned(&place::VHOST_GUESTS, guests), pinned(&place::VHOST_THREADS, guests))
            }
            System::Xen => {
                (Carrier::Netback, pinned(&place::NETBACK_GUESTS, guests), pinned(&place::NETBACK_THREADS, 8))
            }
        };
        // The prototype had a fixed hysteresis and no back-off.
        let (helpers, give_way) = (system != System::NoOffload, system != System::Stays);
        let drawn_timer = system == System::Drawn;
        let set = Mechanisms { adaptive: false, back_off: false, drawn_timer, ..Mechanisms::ALL };
        let mechanisms = Mechanisms { helpers, give_way, ..set };
        Setup {
            host: Host::PAPER,
            costs: self.costs.clone(),
            carrier,
            mechanisms,
            guests: places,
            services,
            dedicated: None,
            traffic,
            variation: 0.1,
            warm_up_ns: 10 * MS,
            measure_ns: 80 * MS,
            seed: self.seed,
        }
    }

    /// Gb/s, the mean of [`RUNS`] runs with a seed each: in some set-ups who falls into step with whom is chance.
    fn throughput(setup: Setup) -> f64 {
        let once = |n| Self::once(Setup { seed: setup.seed.wrapping_add(n), ..setup.clone() });
        (0..RUNS).map(once).sum::<f64>() / RUNS as f64
    }

    fn once(setup: Setup) -> f64 {
        let seconds = setup.measure_ns as f64 / 1e9;
        let mut world = World::new(setup);
        world.run();
        world.stats.bytes as f64 * 8.0 / 1e9 / seconds
    }

    /// `n` pairs, one way (figure 4.11).
    pub fn pairs(&self, system: System, n: usize) -> f64 {
        let flows = (0..n).map(|p| Flow { from: 2 * p, to: 2 * p + 1, window: 16 }).collect();
        Self::throughput(self.setup(system, 2 * n, Traffic::Streams { flows, bytes: BYTES }))
    }

    /// `n` guests, each to all others (figure 4.13).
    pub fn all_to_all(&self, system: System, n: usize) -> f64 {
        let others = |from| (0..n).filter(move |to| *to != from).map(move |to| Flow { from, to, window: 8 });
        let flows = (0..n).flat_map(others).collect();
        Self::throughput(self.setup(system, n, Traffic::Streams { flows, bytes: BYTES }))
    }

    /// One pair with these cores and, unless nothing is offloaded, a dedicated core (figures 4.18 and 4.19).
    pub fn one_pair(&self, guests: [usize; 2], dedicated: Option<usize>) -> f64 {
        let flows = vec![Flow { from: 0, to: 1, window: 16 }];
        let mut setup = self.setup(System::NoOffload, 2, Traffic::Streams { flows, bytes: BYTES });
        setup.guests = guests.map(Some).into();
        setup.dedicated = dedicated;
        Self::throughput(setup)
    }

    /// Transactions a second of one pair (figure 4.10).
    pub fn transactions(&self, system: System) -> f64 {
        let mut setup =
            self.setup(system, 2, Traffic::Transactions { flows: vec![Flow { from: 0, to: 1, window: 1 }] });
        setup.guests = place::PAIR.map(Some).into();
        if !setup.services.is_empty() {
            setup.services = place::PAIR_THREADS.map(Some).into();
        }
        let seconds = setup.measure_ns as f64 / 1e9;
        let mut world = World::new(setup);
        world.run();
        world.stats.transactions as f64 / seconds
    }
}
