//! What is compared: each scenario's guests, its contenders, and the figures it yields.

use crate::guests::dpdk::{Frames, Guests, Ring};
use crate::guests::vms::Pair;
use crate::stop::{Outcome, failed, pause};
use crate::switch::Switch;
use crate::switch::dpdk_vhost::DpdkVhost;
use crate::switch::lasthop::Ours;
use crate::switch::ovs::{Ovs, Rules};
use lasthop_tests_vm::{Port, scratch};
use serde::Serialize;
use std::time::Duration;

/// Which CPUs are used; nothing that is started here leaves them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cpus {
    /// DPDK guests, and what a switch does besides forwarding.
    pub guests: usize,
    /// The switch's forwarding thread.
    pub switch: usize,
}

impl Cpus {
    /// As a list for people and programs.
    pub fn both(self) -> String {
        format!("{},{}", self.guests.min(self.switch), self.guests.max(self.switch))
    }
}

/// A switch in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// lasthop, a learning switch.
    Lasthop,
    /// Open vSwitch with DPDK.
    Ovs(Rules),
    /// DPDK's vhost library, which copies twice and does nothing else.
    DpdkVhost,
    /// The kernel's bridge with TAP devices.
    LinuxBridge,
}

impl Contender {
    /// All there are.
    pub const ALL: [Self; 6] = [
        Self::Lasthop,
        Self::Ovs(Rules::PortToPort),
        Self::Ovs(Rules::Acl),
        Self::Ovs(Rules::Learning),
        Self::DpdkVhost,
        Self::LinuxBridge,
    ];

    /// For the command line and the files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lasthop => "lasthop",
            Self::Ovs(Rules::PortToPort) => "ovs-flows",
            Self::Ovs(Rules::Acl) => "ovs-acl",
            Self::Ovs(Rules::Learning) => "ovs-learning",
            Self::DpdkVhost => "dpdk-vhost",
            Self::LinuxBridge => "linux-bridge",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Lasthop => "lasthop",
            Self::Ovs(Rules::PortToPort) => "OVS-DPDK, port-to-port flows",
            Self::Ovs(Rules::Acl) => "OVS-DPDK, two ACL rules",
            Self::Ovs(Rules::Learning) => "OVS-DPDK, learning",
            Self::DpdkVhost => "DPDK vhost, no switch",
            Self::LinuxBridge => "Linux bridge + TAP",
        }
    }
}

/// Something measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// What it is.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
}

const LOOP: [Figure; 4] = [
    Figure { name: "packets", unit: "Mpps", more_is_better: true },
    Figure { name: "bytes", unit: "Gbit/s", more_is_better: true },
    Figure { name: "switch busy", unit: "ns/packet", more_is_better: false },
    Figure { name: "switch CPU", unit: "ns/packet", more_is_better: false },
];
const VMS: [Figure; 3] = [
    Figure { name: "TCP stream", unit: "Gbit/s", more_is_better: true },
    Figure { name: "TCP transactions", unit: "1/s", more_is_better: true },
    Figure { name: "ping", unit: "µs", more_is_better: false },
];
const IDLE: [Figure; 1] = [Figure { name: "switch CPU", unit: "% of a CPU", more_is_better: false }];

const LOOP_CONTENDERS: [Contender; 5] = [
    Contender::Lasthop,
    Contender::Ovs(Rules::PortToPort),
    Contender::Ovs(Rules::Acl),
    Contender::Ovs(Rules::Learning),
    Contender::DpdkVhost,
];
const VM_CONTENDERS: [Contender; 3] = [Contender::Lasthop, Contender::LinuxBridge, Contender::Ovs(Rules::PortToPort)];
const IDLE_CONTENDERS: [Contender; 2] = [Contender::Lasthop, Contender::Ovs(Rules::PortToPort)];

/// What the guests are and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// DPDK guests pass packets round.
    Loop(Ring, Frames),
    /// VMs talk TCP and ping.
    Vms,
    /// VMs do nothing.
    Idle,
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// For the command line and file names.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What the guests are and do.
    pub work: Work,
}

/// All there are.
pub const ALL: [Scenario; 6] = [
    Scenario {
        name: "loop-64-split",
        title: "two DPDK guests, 64-byte frames, split rings",
        work: Work::Loop(Ring::Split, Frames::Size(64)),
    },
    Scenario {
        name: "loop-64-packed",
        title: "two DPDK guests, 64-byte frames, packed rings",
        work: Work::Loop(Ring::Packed, Frames::Size(64)),
    },
    Scenario {
        name: "loop-1472-split",
        title: "two DPDK guests, 1472-byte frames, split rings",
        work: Work::Loop(Ring::Split, Frames::Size(1472)),
    },
    Scenario {
        name: "loop-imix-split",
        title: "two DPDK guests, frames of 64, 594 and 1514 bytes (7:4:1), split rings",
        work: Work::Loop(Ring::Split, Frames::Imix),
    },
    Scenario { name: "vms", title: "two Linux VMs (QEMU), virtio-net with TSO", work: Work::Vms },
    Scenario { name: "idle", title: "two Linux VMs (QEMU) that do nothing, 5 s", work: Work::Idle },
];

impl Scenario {
    /// What a measurement yields, in this order.
    pub fn figures(&self) -> &'static [Figure] {
        match self.work {
            Work::Loop(..) => &LOOP,
            Work::Vms => &VMS,
            Work::Idle => &IDLE,
        }
    }

    /// Who takes part, lasthop first.
    pub fn contenders(&self) -> &'static [Contender] {
        match self.work {
            Work::Loop(..) => &LOOP_CONTENDERS,
            Work::Vms => &VM_CONTENDERS,
            Work::Idle => &IDLE_CONTENDERS,
        }
    }

    /// Starts everything, measures once for `seconds`, ends everything.
    pub fn measure(&self, contender: Contender, cpus: Cpus, seconds: u64) -> Outcome<Vec<Option<f64>>> {
        match self.work {
            Work::Loop(ring, frames) => round_and_round(contender, cpus, ring, frames, seconds),
            Work::Vms => Pair::boot(contender, cpus)?.traffic(seconds),
            Work::Idle => Pair::boot(contender, cpus)?.idle(),
        }
    }
}

fn round_and_round(
    contender: Contender,
    cpus: Cpus,
    ring: Ring,
    frames: Frames,
    seconds: u64,
) -> Outcome<Vec<Option<f64>>> {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::connect(name, dir.path()));
    let sockets = [&*ports[0].socket, &*ports[1].socket];
    let mut switch: Box<dyn Switch> = match contender {
        Contender::Lasthop => Box::new(Ours::start(&ports, &cpus.switch.to_string())),
        Contender::Ovs(rules) => Box::new(Ovs::start(cpus.guests, cpus.switch, sockets, rules, false)?),
        Contender::DpdkVhost => Box::new(DpdkVhost::start(cpus.guests, cpus.switch, sockets)?),
        Contender::LinuxBridge => return Err(failed("has no vhost-user ports")),
    };
    let mut guests = Guests::start(cpus.guests, sockets, ring)?;
    guests.circulate(frames)?;
    pause(Duration::from_secs(1))?;
    switch.begin()?;
    let before = guests.count()?;
    pause(Duration::from_secs(seconds))?;
    let after = guests.count()?;
    let (packets, time) = (after.packets - before.packets, (after.at - before.at).as_secs_f64());
    if packets < 1.0 {
        return Err(failed("no packet came round"));
    }
    let spent = switch.spent(packets)?;
    let bits = (after.bytes - before.bytes) * 8.0;
    Ok(vec![
        Some(packets / time / 1e6),
        Some(bits / time / 1e9),
        Some(spent.busy_ns / packets),
        Some(spent.cpu_ns / packets),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasthop_comes_first_everywhere_and_names_are_unique() {
        for s in &ALL {
            assert_eq!(s.contenders()[0], Contender::Lasthop, "{}", s.name);
            assert_eq!(ALL.iter().filter(|o| o.name == s.name).count(), 1, "{}", s.name);
        }
        for c in Contender::ALL {
            assert_eq!(Contender::ALL.iter().filter(|o| o.name() == c.name()).count(), 1, "{}", c.name());
        }
    }
}
