//! Many virtual interfaces at once: H. Raj and K. Schwan, *High Performance and Scalable I/O Virtualization via Self-Virtualized Devices*,
//! figures 3 (round trip) and 5 (aggregate throughput).
//!
//! There a guest talks to one of another machine that is virtualized as well, and a driver domain with a bridge is what the card is compared
//! with. So guests here talk to a world outside that sends everything back, one by itself too; the driver domain's place has testpmd between
//! vhost ports and TAP devices. Throughput there is that of TCP one way; here frames come back, 256 of all guests on their way. Without a world
//! outside, guests talk in pairs.

use super::{BRIDGE_ALONE, LEARN, OURS, POLL, Scenario, scenario};
use crate::contender::Contender;
use crate::guests::load::{Act, Setup, Yields};
use crate::switch::uplink::Device;
use crate::work::Work;
use lasthop_loadgen::Pattern;

/// A switch that polls tells what of a round trip is waking up, and waiting for a core that others want.
const CONTENDERS: &[Contender] = &[OURS, POLL, LEARN, Contender::BridgeTap, BRIDGE_ALONE];
const OUTSIDE: &[Contender] = &[OURS, POLL, LEARN, Contender::BridgeTap];

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

const fn outside(ports: usize) -> Setup {
    Setup { outside: Some(Device::Packet), ..setup(ports) }
}

/// Each guest has one packet on its way, to the world outside and back.
const fn outside_time(name: &'static str, title: &'static str, ports: usize) -> Scenario {
    let act = Act { pattern: Pattern::Reflect, window: Some(1), yields: Yields::Times, ..Act::PLAIN };
    scenario(name, title, OUTSIDE, Work::Load(outside(ports), act))
}

/// All guests together have 256 packets on their way: as many as a veth's queue has places.
const fn outside_speed(name: &'static str, title: &'static str, ports: usize) -> Scenario {
    let window = Some(256 / ports as u32);
    let act = Act { pattern: Pattern::Reflect, sizes: "1514", window, yields: Yields::Outside, ..Act::PLAIN };
    scenario(name, title, OUTSIDE, Work::Load(outside(ports), act))
}

/// The same, and a network outside.
pub(super) static TO_OUTSIDE: [Scenario; 12] = [
    outside_time("vifs-out-1-time", "one interface, one 64-byte packet on its way to the network and back", 1),
    outside_speed("vifs-out-1", "one interface, 1514-byte frames to the network and back", 1),
    outside_time(
        "vifs-out-2-time",
        "two interfaces, each has one 64-byte packet on its way to the network and back",
        2,
    ),
    outside_speed("vifs-out-2", "two interfaces, 1514-byte frames to the network and back", 2),
    outside_time(
        "vifs-out-4-time",
        "four interfaces, each has one 64-byte packet on its way to the network and back",
        4,
    ),
    outside_speed("vifs-out-4", "four interfaces, 1514-byte frames to the network and back", 4),
    outside_time(
        "vifs-out-8-time",
        "eight interfaces, each has one 64-byte packet on its way to the network and back",
        8,
    ),
    outside_speed("vifs-out-8", "eight interfaces, 1514-byte frames to the network and back", 8),
    outside_time(
        "vifs-out-16-time",
        "16 interfaces, each has one 64-byte packet on its way to the network and back",
        16,
    ),
    outside_speed("vifs-out-16", "16 interfaces, 1514-byte frames to the network and back", 16),
    outside_time(
        "vifs-out-32-time",
        "32 interfaces, each has one 64-byte packet on its way to the network and back",
        32,
    ),
    outside_speed("vifs-out-32", "32 interfaces, 1514-byte frames to the network and back", 32),
];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_a_peer_that_polls_there_is_a_lasthop_that_does() {
        for s in ALL.iter().chain(&TO_OUTSIDE) {
            let has = |c| s.contenders.contains(&c);
            assert!(has(LEARN) && has(POLL), "{}", s.name);
        }
    }
}
