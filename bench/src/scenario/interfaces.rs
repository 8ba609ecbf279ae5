//! Many virtual interfaces at once: H. Raj and K. Schwan, *High Performance and Scalable I/O Virtualization via Self-Virtualized Devices*,
//! figures 3 (round trip) and 5 (aggregate throughput).

use super::{BRIDGE_ALONE, LEARN, OURS, POLL, Scenario, scenario};
use crate::guests::load::{Act, Setup, Yields};
use crate::work::Work;
use lasthop_loadgen::Pattern;

/// A switch that polls tells what of a round trip is waking up, and waiting for a core that others want.
const CONTENDERS: &[crate::contender::Contender] = &[OURS, POLL, LEARN, BRIDGE_ALONE];

const fn setup(ports: usize) -> Setup {
    Setup { ports, short: true, ..Setup::PLAIN }
}

/// Each pair of guests has one packet on its way, there and back.
const fn time(name: &'static str, title: &'static str, ports: usize) -> Scenario {
    let act = Act { pattern: Pattern::PingPong, window: None, yields: Yields::Times, ..Act::PLAIN };
    scenario(name, title, CONTENDERS, Work::Load(setup(ports), act))
}

/// Each guest has 64 packets on their way.
const fn speed(name: &'static str, title: &'static str, ports: usize) -> Scenario {
    scenario(name, title, CONTENDERS, Work::Load(setup(ports), Act { window: Some(64), ..Act::PLAIN }))
}

/// By number of interfaces.
pub(super) static ALL: [Scenario; 10] = [
    time("vifs-2-time", "two interfaces, each pair has one 64-byte packet on its way, there and back", 2),
    speed("vifs-2", "two interfaces, 64-byte frames both ways between each pair", 2),
    time("vifs-4-time", "four interfaces, each pair has one 64-byte packet on its way, there and back", 4),
    speed("vifs-4", "four interfaces, 64-byte frames both ways between each pair", 4),
    time("vifs-8-time", "eight interfaces, each pair has one 64-byte packet on its way, there and back", 8),
    speed("vifs-8", "eight interfaces, 64-byte frames both ways between each pair", 8),
    time("vifs-16-time", "16 interfaces, each pair has one 64-byte packet on its way, there and back", 16),
    speed("vifs-16", "16 interfaces, 64-byte frames both ways between each pair", 16),
    time("vifs-32-time", "32 interfaces, each pair has one 64-byte packet on its way, there and back", 32),
    speed("vifs-32", "32 interfaces, 64-byte frames both ways between each pair", 32),
];
