//! What is compared: each scenario's guests, its contenders, and the figures it yields.

mod device;
mod grants;
mod interfaces;
mod isolation;
mod minimum;
mod queues;
mod tables;
mod vms;

use crate::acl::{Kind, MASKS};
use crate::contender::{Change, Contender};
use crate::cpus::Cpus;
use crate::distance::Track;
use crate::figure::{
    ATTACK, BY_QUEUES, COST, FLOWS, Figure, GRANTED, IDLE, ISOLATION, LEFT, LOOP, MEMORY, MINIMUM, OUTSIDE, PAYLOADS,
    PLAYED, Shown, THROUGH, TIMES, VMS,
};
use crate::guests::attack;
use crate::guests::bridge;
use crate::guests::dpdk::{Frames, Guests, Ring};
use crate::guests::granted::{self, Sharing};
use crate::guests::isolation as beside;
use crate::guests::load::{Act, Setup, Stage, Yields, memory_per_port};
use crate::guests::minimum as minimum_of;
use crate::guests::outside::{Outside, Place};
use crate::guests::vms::Pair;
use crate::round::Round;
use crate::switch::dpdk_vhost::DpdkVhost;
use crate::switch::driven::Driven;
use crate::switch::lasthop::Ours;
use crate::switch::ovs::{Ovs, Rules};
use crate::switch::uplink::Device;
use crate::switch::{Extras, Switch};
use crate::work::Work;
use lasthop_harness::stop::{Outcome, failed, pause};
use lasthop_harness::{Port, scratch};
use lasthop_loadgen::frame::Vary;
use lasthop_loadgen::{Attack, Pattern};
use std::time::Duration;

const OURS: Contender = Contender::Lasthop;
const FLOW: Contender = Contender::Ovs(Rules::PortToPort);
const RULE: Contender = Contender::Ovs(Rules::Acl);
const LEARN: Contender = Contender::Ovs(Rules::Learning);
const POLICED: Contender = Contender::Ovs(Rules::Policed);
const LIST: Contender = Contender::Ovs(Rules::List);
const DRIVEN_LEARN: Contender = Contender::Driven(Rules::Learning);
const DRIVEN_LIST: Contender = Contender::Driven(Rules::List);
const VHOST: Contender = Contender::DpdkVhost;
const BRIDGE: Contender = Contender::LinuxBridge;
const NFT: Contender = Contender::BridgeNft;
const BRIDGE_ALONE: Contender = Contender::BridgeAlone;
const POLL: Contender = Contender::Changed(Change::Poll);
/// lasthop, and with each mechanism off alone.
const ABLATION: [Contender; 8] = [
    OURS,
    Contender::Changed(Change::NoHelpers),
    Contender::Changed(Change::NoTransmitBatch),
    Contender::Changed(Change::DrawnTimer),
    Contender::Changed(Change::NoReceiveBatch),
    Contender::Changed(Change::FixedHysteresis),
    Contender::Changed(Change::NormalHelpers),
    Contender::Changed(Change::NoView),
];

/// One comparison.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// For the command line and file names; up to the first `-` its group.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What the guests are and do.
    pub work: Work,
    /// Who takes part, lasthop first.
    pub contenders: &'static [Contender],
}

const fn scenario(name: &'static str, title: &'static str, contenders: &'static [Contender], work: Work) -> Scenario {
    Scenario { name, title, work, contenders }
}

const fn dpdk(name: &'static str, title: &'static str, ring: Ring, frames: Frames) -> Scenario {
    scenario(name, title, &[OURS, POLL, FLOW, RULE, LEARN, VHOST], Work::Loop(ring, frames))
}

const fn round(name: &'static str, title: &'static str, packed: bool, sizes: &'static str) -> Scenario {
    let act = Act { pattern: Pattern::Loop, sizes, window: None, ..Act::PLAIN };
    scenario(name, title, &[OURS, FLOW, VHOST], Work::Load(Setup { packed, ..Setup::ROUND }, act))
}

const fn large(name: &'static str, title: &'static str, packed: bool, sizes: &'static str) -> Scenario {
    let act = Act { sizes, window: Some(32), ..Act::PLAIN };
    scenario(name, title, &[OURS, FLOW, VHOST], Work::Load(Setup { packed, large: true, ..Setup::PLAIN }, act))
}

const fn flows(name: &'static str, title: &'static str, flows: u32) -> Scenario {
    let act = Act { flows, ..Act::PLAIN };
    scenario(name, title, &[OURS, RULE, LEARN], Work::Load(Setup::PLAIN, act))
}

const fn acl(name: &'static str, title: &'static str, rules: usize, flows: u32) -> Scenario {
    let act = Act { flows, ..Act::PLAIN };
    let contenders: &[Contender] = if flows == 1 { &[OURS, LIST, NFT] } else { &[OURS, LIST] };
    scenario(name, title, contenders, Work::Load(Setup { rules, ..Setup::PLAIN }, act))
}

/// Each packet is answered, so that all belong to connections that are established.
const fn stateful(name: &'static str, title: &'static str, rules: usize, flows: u32) -> Scenario {
    let contenders: &[Contender] = if flows == 1 { &[OURS, LIST, NFT] } else { &[OURS, LIST] };
    let act = Act { flows, settle_ms: Some(if flows == 1 { 300 } else { 3000 }), ..ESTABLISHED };
    scenario(name, title, contenders, Work::Load(Setup { rules, kind: Kind::Stateful, ..Setup::PLAIN }, act))
}

/// 50 000 flows each way, an entry each.
const fn masks(name: &'static str, title: &'static str, masks: usize) -> Scenario {
    let act = Act { flows: 50_000, settle_ms: Some(5000), ..Act::PLAIN };
    scenario(name, title, &[OURS, LIST], Work::Load(Setup { rules: masks, kind: Kind::Masks, ..Setup::PLAIN }, act))
}

const fn connections(name: &'static str, title: &'static str, rules: usize) -> Scenario {
    let setup = Setup { rules, kind: Kind::Stateful, ..Setup::PLAIN };
    scenario(name, title, &[OURS, LIST], Work::Load(setup, NEW_CONNECTIONS))
}

/// What Open vSwitch decides, over our switch and over its own.
const fn driven(name: &'static str, rules: Rules, like: Scenario) -> Scenario {
    let contenders: &[Contender] =
        if matches!(rules, Rules::List) { &[OURS, DRIVEN_LIST, LIST] } else { &[OURS, DRIVEN_LEARN, LEARN] };
    Scenario { name, contenders, ..like }
}

const fn ports(name: &'static str, title: &'static str, pattern: Pattern) -> Scenario {
    let act = Act { pattern, ..Act::PLAIN };
    scenario(name, title, &[OURS, LEARN], Work::Load(Setup { ports: 4, ..Setup::PLAIN }, act))
}

const fn pairs(name: &'static str, title: &'static str, pairs: usize) -> Scenario {
    scenario(
        name,
        title,
        &[OURS, FLOW],
        Work::Load(Setup { ports: 2 * pairs, spread: true, ..Setup::PLAIN }, Act::PLAIN),
    )
}

const fn latency(name: &'static str, title: &'static str, rate: Option<f64>) -> Scenario {
    let pattern = if rate.is_some() { Pattern::Echo } else { Pattern::PingPong };
    let act = Act { pattern, rate, window: None, yields: Yields::Times, ..Act::PLAIN };
    scenario(name, title, &[OURS, POLL, FLOW, VHOST], Work::Load(Setup::PLAIN, act))
}

const fn cpu(name: &'static str, title: &'static str, rate: f64) -> Scenario {
    let act = Act { pattern: Pattern::OneWay, rate: Some(rate), window: None, yields: Yields::Cost, ..Act::PLAIN };
    scenario(name, title, &[OURS, FLOW], Work::Load(Setup { sleep: true, ..Setup::PLAIN }, act))
}

const fn shared(name: &'static str, title: &'static str, contenders: &'static [Contender], rate: f64) -> Scenario {
    let act = Act { pattern: Pattern::OneWay, rate: Some(rate), window: None, yields: Yields::Left, ..Act::PLAIN };
    scenario(name, title, contenders, Work::Load(Setup { sleep: true, crowd: true, ..Setup::PLAIN }, act))
}

const fn outside(name: &'static str, title: &'static str, device: Device, sizes: &'static str) -> Scenario {
    let contenders: &[Contender] =
        if let Device::Xdp = device { &[OURS, Contender::NoGro, FLOW] } else { &[OURS, FLOW] };
    let act = Act { pattern: Pattern::Reflect, sizes, yields: Yields::Outside, ..Act::PLAIN };
    scenario(name, title, contenders, Work::Load(Setup { ports: 1, outside: Some(device), ..Setup::PLAIN }, act))
}

const fn attack(name: &'static str, title: &'static str, attack: Attack) -> Scenario {
    scenario(name, title, &[OURS, LEARN], Work::Attack(attack, 0))
}

const fn granted(name: &'static str, title: &'static str, sharing: Sharing) -> Scenario {
    scenario(name, title, &[OURS, VHOST], Work::Granted(sharing))
}

/// Packets at a fixed rate to a guest that sleeps; what each mechanism is worth.
const SLOW: Act = Act { pattern: Pattern::OneWay, rate: Some(1e5), window: None, yields: Yields::Cost, ..Act::PLAIN };
const ECHO: Act = Act { pattern: Pattern::Echo, yields: Yields::Times, ..SLOW };
const QUEUES: Act = Act { flows: 64, ..Act::PLAIN };
const NEW_FLOWS: Act = Act {
    pattern: Pattern::OneWay,
    window: Some(64),
    flows: 4000,
    once: Some(Vary::Mac),
    yields: Yields::Flows,
    ..Act::PLAIN
};
/// Each packet from another address or port.
const NEW_CONNECTIONS: Act = Act { flows: 10_000, once: Some(Vary::Tuple), ..NEW_FLOWS };
/// Each packet is answered, and so all are of connections that are established.
const ESTABLISHED: Act = Act { pattern: Pattern::Echo, flows: 10_000, settle_ms: Some(3000), ..Act::PLAIN };
/// What one new flow costs, and how long its first packet is on its way while nothing else is.
const ONE_NEW_FLOW: Act = Act { window: Some(1), ..NEW_FLOWS };
const RULES: Setup = Setup { rules: 1000, ..Setup::PLAIN };

/// Those that are not in a file of their own, those of a group together.
static OTHERS: [Scenario; 97] = [
    dpdk("loop-64-split", "two DPDK guests, 64-byte frames, split rings", Ring::Split, Frames::Size(64)),
    dpdk("loop-64-packed", "two DPDK guests, 64-byte frames, packed rings", Ring::Packed, Frames::Size(64)),
    dpdk("loop-1472-split", "two DPDK guests, 1472-byte frames, split rings", Ring::Split, Frames::Size(1472)),
    scenario(
        "loop-imix-split",
        "two DPDK guests, frames of 64, 594 and 1514 bytes (7:4:1), split rings",
        &[OURS, FLOW, VHOST],
        Work::Loop(Ring::Split, Frames::Imix),
    ),
    round("size-64-split", "64-byte frames go round, split rings", false, "64"),
    round("size-256-split", "256-byte frames go round, split rings", false, "256"),
    round("size-512-split", "512-byte frames go round, split rings", false, "512"),
    round("size-1024-split", "1024-byte frames go round, split rings", false, "1024"),
    round("size-1514-split", "1514-byte frames go round, split rings", false, "1514"),
    round("size-imix-split", "frames of 64, 594 and 1514 bytes (7:4:1) go round, split rings", false, "imix"),
    round("size-64-packed", "64-byte frames go round, packed rings", true, "64"),
    round("size-256-packed", "256-byte frames go round, packed rings", true, "256"),
    round("size-512-packed", "512-byte frames go round, packed rings", true, "512"),
    round("size-1024-packed", "1024-byte frames go round, packed rings", true, "1024"),
    round("size-1514-packed", "1514-byte frames go round, packed rings", true, "1514"),
    round("size-imix-packed", "frames of 64, 594 and 1514 bytes (7:4:1) go round, packed rings", true, "imix"),
    large("size-9000-split", "9000-byte frames both ways, split rings", false, "9000"),
    large("size-gso-split", "64 KiB GSO packets both ways, split rings", false, "gso"),
    large("size-9000-packed", "9000-byte frames both ways, packed rings", true, "9000"),
    large("size-gso-packed", "64 KiB GSO packets both ways, packed rings", true, "gso"),
    flows("flows-1", "64-byte frames both ways, one flow each way", 1),
    flows("flows-1k", "64-byte frames both ways, 1000 flows each way", 1000),
    flows("flows-100k", "64-byte frames both ways, 100 000 flows each way", 100_000),
    flows("flows-1m", "64-byte frames both ways, a million flows each way", 1_000_000),
    acl("acl-1", "64-byte frames both ways, one access rule, one flow each way", 1, 1),
    acl("acl-1-flows", "64-byte frames both ways, one access rule, 100 000 flows each way", 1, 100_000),
    acl("acl-100", "64-byte frames both ways, 100 access rules, one flow each way", 100, 1),
    acl("acl-100-flows", "64-byte frames both ways, 100 access rules, 100 000 flows each way", 100, 100_000),
    acl("acl-971", "64-byte frames both ways, 971 access rules, one flow each way", 971, 1),
    acl("acl-1000", "64-byte frames both ways, 1000 access rules, one flow each way", 1000, 1),
    acl("acl-1000-flows", "64-byte frames both ways, 1000 access rules, 100 000 flows each way", 1000, 100_000),
    stateful("stateful-1", "64-byte frames there and back, a stateful list of one rule, one connection", 1, 1),
    stateful(
        "stateful-1-flows",
        "64-byte frames there and back, a stateful list of one rule, 10 000 connections",
        1,
        10_000,
    ),
    stateful("stateful-971", "64-byte frames there and back, a stateful list of 971 rules, one connection", 971, 1),
    stateful(
        "stateful-971-flows",
        "64-byte frames there and back, a stateful list of 971 rules, 10 000 connections",
        971,
        10_000,
    ),
    connections("new-connections", "10 000 packets, each opens a connection, a stateful list of one rule", 1),
    connections("new-connections-971", "10 000 packets, each opens a connection, a stateful list of 971 rules", 971),
    masks("masks-1", "64-byte frames both ways, 50 000 flows each way, all of one mask", 1),
    masks("masks-30", "64-byte frames both ways, 50 000 flows each way, of 30 masks", MASKS),
    ports("ports-pairs", "four guests, two pairs, 64-byte frames one way", Pattern::OneWay),
    ports("ports-incast", "four guests, three send to one, 64-byte frames", Pattern::Incast),
    ports("ports-all", "four guests, all to all, 64-byte frames", Pattern::AllToAll),
    ports("ports-broadcast", "four guests, one to all by broadcast, 64-byte frames", Pattern::Broadcast),
    pairs("pairs-1", "64-byte frames both ways, one pair of guests on a CPU, the switch on all others", 1),
    pairs("pairs-2", "64-byte frames both ways, two pairs of guests on a CPU each, the switch on all others", 2),
    pairs("pairs-3", "64-byte frames both ways, three pairs of guests on a CPU each, the switch on all others", 3),
    pairs("pairs-4", "64-byte frames both ways, four pairs of guests on a CPU each, the switch on all others", 4),
    pairs("pairs-5", "64-byte frames both ways, five pairs of guests on a CPU each, the switch on all others", 5),
    pairs("pairs-6", "64-byte frames both ways, six pairs of guests on a CPU each, the switch on all others", 6),
    pairs("pairs-7", "64-byte frames both ways, seven pairs of guests on a CPU each, the switch on all others", 7),
    scenario(
        "queues-2",
        "two guests with two queue pairs, 64 flows each way, 64-byte frames",
        &[OURS, FLOW, VHOST],
        Work::Load(Setup { queues: 2, ..Setup::PLAIN }, QUEUES),
    ),
    latency("latency-one", "there and back, one 64-byte packet at a time", None),
    latency("latency-1k", "there and back, 1000 packets a second", Some(1e3)),
    latency("latency-100k", "there and back, 100 000 packets a second", Some(1e5)),
    latency("latency-1m", "there and back, a million packets a second", Some(1e6)),
    cpu("cpu-1k", "1000 packets a second to a guest that sleeps", 1e3),
    cpu("cpu-10k", "10 000 packets a second to a guest that sleeps", 1e4),
    cpu("cpu-100k", "100 000 packets a second to a guest that sleeps", 1e5),
    cpu("cpu-1m", "a million packets a second to a guest that sleeps", 1e6),
    shared("shared-idle", "spinning programs on both CPUs, a packet a second", &[OURS, FLOW], 1.0),
    shared("shared-100k", "spinning programs on both CPUs, 100 000 packets a second", &[OURS, FLOW], 1e5),
    scenario(
        "mechanisms-cost",
        "100 000 packets a second to a guest that sleeps, each mechanism off alone",
        &ABLATION,
        Work::Load(Setup { sleep: true, ..Setup::PLAIN }, SLOW),
    ),
    scenario(
        "mechanisms-latency",
        "there and back, 100 000 packets a second, each mechanism off alone",
        &ABLATION,
        Work::Load(Setup::PLAIN, ECHO),
    ),
    scenario(
        "mechanisms-incast",
        "four guests, three send to one, 64-byte frames, packets wait for buffers or do not",
        &[OURS, Contender::Changed(Change::NoCongestion)],
        Work::Load(Setup { ports: 4, ..Setup::PLAIN }, Act { pattern: Pattern::Incast, ..Act::PLAIN }),
    ),
    shared("mechanisms-shared", "spinning programs on both CPUs, each mechanism off alone", &ABLATION, 1e5),
    scenario(
        "setup-flows",
        "4000 packets, each from another MAC address, 64 on their way",
        &[OURS, LEARN],
        Work::Load(Setup::PLAIN, NEW_FLOWS),
    ),
    scenario(
        "setup-flows-1000",
        "4000 packets, each from another MAC address, 64 on their way, behind 1000 access rules",
        &[OURS, LEARN],
        Work::Load(RULES, NEW_FLOWS),
    ),
    scenario(
        "setup-one",
        "4000 packets, each from another MAC address, one at a time",
        &[OURS, LEARN],
        Work::Load(Setup::PLAIN, ONE_NEW_FLOW),
    ),
    scenario(
        "setup-one-1000",
        "4000 packets, each from another MAC address, one at a time, behind 1000 access rules",
        &[OURS, LEARN],
        Work::Load(RULES, ONE_NEW_FLOW),
    ),
    scenario("setup-ports", "memory of 34 ports less that of two", &[OURS, LEARN], Work::Memory),
    driven(
        "driven-learning",
        Rules::Learning,
        flows("", "64-byte frames both ways, 1000 flows each way, a learning bridge", 1000),
    ),
    driven(
        "driven-971",
        Rules::List,
        acl("", "64-byte frames both ways, 971 access rules, 1000 flows each way", 971, 1000),
    ),
    driven(
        "driven-stateful",
        Rules::List,
        stateful("", "64-byte frames there and back, a stateful list of 971 rules, 10 000 connections", 971, 10_000),
    ),
    driven(
        "driven-connections",
        Rules::List,
        connections("", "10 000 packets, each opens a connection, a stateful list of 971 rules", 971),
    ),
    driven(
        "driven-setup",
        Rules::Learning,
        scenario(
            "",
            "4000 packets, each from another MAC address, 64 on their way, a learning bridge",
            &[],
            Work::Load(Setup::PLAIN, NEW_FLOWS),
        ),
    ),
    driven(
        "driven-setup-one",
        Rules::Learning,
        scenario(
            "",
            "4000 packets, each from another MAC address, one at a time, a learning bridge",
            &[],
            Work::Load(Setup::PLAIN, ONE_NEW_FLOW),
        ),
    ),
    outside("outside-xdp-64", "64-byte frames to the network and back, AF_XDP", Device::Xdp, "64"),
    outside("outside-xdp-1514", "1514-byte frames to the network and back, AF_XDP", Device::Xdp, "1514"),
    outside("outside-packet-64", "64-byte frames to the network and back, AF_PACKET", Device::Packet, "64"),
    outside("outside-packet-1514", "1514-byte frames to the network and back, AF_PACKET", Device::Packet, "1514"),
    granted("iommu-none", "two Linux VMs (QEMU), all memory shared for good", Sharing::Good),
    granted("iommu-bounce", "two Linux VMs (QEMU) with bounce buffers", Sharing::Bounce),
    granted("iommu-pass", "two Linux VMs (QEMU) behind IOMMUs that map all memory", Sharing::PassThrough),
    granted("iommu-lazy", "two Linux VMs (QEMU) behind IOMMUs, mappings taken back together", Sharing::Lazy),
    granted("iommu-strict", "two Linux VMs (QEMU) behind IOMMUs, each mapping for one use", Sharing::Strict),
    scenario("idle", "two Linux VMs (QEMU) that do nothing, 5 s", &[OURS, FLOW], Work::Idle),
    attack(
        "attack-trickle",
        "two guests talk; a third takes a packet a millisecond, and one of them sends to it",
        Attack::Trickle,
    ),
    attack("attack-segments", "two guests talk; 64 KiB packets are cut into 2037 for a third", Attack::Segments),
    attack("attack-flap", "two guests talk; a third owns all the flows it can, and goes down and up", Attack::Flap),
    attack("attack-scan", "two guests talk; a third sends random frames", Attack::Scan),
    scenario(
        "attack-headers",
        "two guests talk behind 971 access rules; a third sends random headers about which these rules are",
        &[OURS, LEARN],
        Work::Attack(Attack::Headers, 971),
    ),
    attack("attack-storm", "two guests talk; a third sends 64-byte broadcasts", Attack::Storm),
    attack("attack-storm-large", "two guests talk; a third sends 64 KiB broadcasts", Attack::LargeStorm),
    attack(
        "attack-incast",
        "two guests talk; a third gets more than it takes, and one of them sends to it",
        Attack::Incast,
    ),
    attack("attack-all", "two guests talk; all attacks at once", Attack::All),
    attack(
        "frontend-call",
        "two guests talk; a third's call descriptors block, and one of them sends to it",
        Attack::Call,
    ),
    scenario(
        "frontend-regions",
        "two guests talk; a third's front-end has 256 TiB mapped",
        &[OURS],
        Work::Attack(Attack::Regions, 0),
    ),
];

/// All there are, those of a group together.
pub fn all() -> impl Iterator<Item = &'static Scenario> {
    OTHERS
        .iter()
        .chain(&vms::ALL)
        .chain(&tables::ALL)
        .chain(&grants::ALL)
        .chain(&device::ALL)
        .chain(&interfaces::ALL)
        .chain(&interfaces::TO_OUTSIDE)
        .chain(&queues::ALL)
        .chain(&isolation::ALL)
        .chain(&minimum::ALL)
}

/// What `--scenario` takes: names, and of each group what its names begin with.
pub fn names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for s in all() {
        for name in [s.group(), s.name] {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

impl Scenario {
    /// What comes before the first `-` of its name.
    pub fn group(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// Which of its rounds is shown and judged.
    pub fn shows(&self) -> Shown {
        if let Work::Attack(..) | Work::Isolation(_) | Work::Minimum(_) = self.work {
            Shown::Median
        } else {
            Shown::Best
        }
    }

    /// What a measurement yields, in this order.
    pub fn figures(&self) -> &'static [Figure] {
        match self.work {
            Work::Loop(..) => &LOOP,
            Work::Vms => &VMS,
            Work::Payloads => &PAYLOADS,
            Work::Granted(_) => &GRANTED,
            Work::Idle => &IDLE,
            Work::Memory => &MEMORY,
            Work::Outside(_) => &OUTSIDE,
            Work::Attack(..) => &ATTACK,
            Work::Isolation(_) => &ISOLATION,
            Work::Minimum(_) => &MINIMUM,
            Work::Load(_, act) => match act.yields {
                Yields::Speed => &LOOP,
                Yields::Times => &TIMES,
                Yields::Cost => &COST,
                Yields::Left => &LEFT,
                Yields::Outside => &THROUGH,
                Yields::Flows => &FLOWS,
                Yields::Granted => &PLAYED,
                Yields::Queues => &BY_QUEUES,
            },
        }
    }

    /// Whether both can be played on the same switch, one after the other: not where flows have to be new.
    pub fn shares_with(&self, other: &Self) -> bool {
        match (self.work, other.work) {
            (Work::Load(_, x), Work::Load(_, y)) if x.once.is_some() || y.once.is_some() => false,
            (Work::Load(a, _), Work::Load(b, _)) => {
                // A bridge has no stage.
                let staged = |s: &Self| s.contenders.iter().filter(|c| ![NFT, BRIDGE_ALONE].contains(c));
                a == b && staged(self).eq(staged(other))
            }
            _ => false,
        }
    }

    /// Measures once. `stage` is what an earlier scenario of the same setup has left, and what this one leaves.
    pub fn measure(&self, contender: Contender, cpus: Cpus, seconds: u64, stage: &mut Option<Stage>) -> Outcome<Round> {
        let figures = match self.work {
            Work::Loop(ring, frames) => return round_and_round(contender, cpus, ring, frames, seconds),
            Work::Load(setup, _) if contender == NFT => return bridge::measure(cpus, setup.list().as_ref(), seconds),
            Work::Load(setup, act) if contender == BRIDGE_ALONE => {
                return bridge::pairs(cpus, setup.ports, act.yields, seconds);
            }
            Work::Load(setup, act) => {
                // After a failure everything starts anew.
                let mut here = match stage.take() {
                    Some(stage) => stage,
                    None => Stage::set(contender, cpus, setup)?,
                };
                let round = here.play(act, seconds as f64)?;
                *stage = Some(here);
                return Ok(round);
            }
            Work::Attack(attack, rules) => return attack::measure(contender, cpus, attack, rules, seconds as f64),
            Work::Isolation(what) => return beside::measure(contender, cpus, what, seconds as f64),
            Work::Minimum(what) => return minimum_of::measure(contender, cpus, what, seconds as f64),
            Work::Memory => memory_per_port(contender, cpus, 2, 34),
            Work::Vms => Pair::boot(contender, cpus)?.traffic(seconds),
            Work::Payloads => Pair::boot(contender, cpus)?.payloads(seconds),
            Work::Granted(sharing) => granted::measure(contender, cpus, sharing, seconds),
            Work::Idle => Pair::boot(contender, cpus)?.idle(),
            Work::Outside(place) => {
                let device = match contender {
                    Contender::Tap => Device::Tap,
                    Contender::NoGro => Device::XdpNoGro,
                    _ => place.device,
                };
                Outside::start(contender, cpus, Place { device, ..place })?.traffic(seconds)
            }
        };
        // Here guests and switch share both CPUs, or nothing is timed.
        Ok(Round::new(figures?, Vec::new()))
    }
}

fn round_and_round(contender: Contender, cpus: Cpus, ring: Ring, frames: Frames, seconds: u64) -> Outcome<Round> {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::connect(name, dir.path()));
    let sockets = [&*ports[0].socket, &*ports[1].socket];
    let mut switch: Box<dyn Switch> = match contender {
        Contender::Lasthop => Box::new(Ours::start(&ports, &cpus.switch.to_string(), Extras::default(), None)?),
        Contender::Changed(change) => {
            Box::new(Ours::start(&ports, &cpus.switch.to_string(), Extras::default(), Some(change))?)
        }
        Contender::Driven(rules) => Box::new(Driven::start(&ports, cpus.switch, rules, Extras::default())?),
        Contender::Ovs(rules) => Box::new(Ovs::start(cpus.guests, &[cpus.switch], &sockets, rules, Extras::default())?),
        Contender::DpdkVhost => Box::new(DpdkVhost::start(cpus.guests, cpus.switch, &sockets, Extras::default())?),
        _ => return Err(failed("has no such ports")),
    };
    let mut guests = Guests::start(cpus.guests, sockets, ring)?;
    guests.circulate(frames)?;
    pause(Duration::from_secs(1))?;
    let track = Track::new(cpus, true);
    switch.begin()?;
    track.begin();
    let before = guests.count()?;
    pause(Duration::from_secs(seconds))?;
    let after = guests.count()?;
    let trips = track.end();
    let (packets, time) = (after.packets - before.packets, (after.at - before.at).as_secs_f64());
    if packets < 1.0 {
        return Err(failed("no packet came round"));
    }
    let spent = switch.spent(packets)?;
    let bits = (after.bytes - before.bytes) * 8.0;
    let figures = [packets / time / 1e6, bits / time / 1e9, spent.busy_ns / packets, spent.cpu_ns / packets];
    Ok(Round::new(figures.map(Some).to_vec(), trips))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasthop_comes_first_everywhere_and_names_are_unique() {
        for s in all() {
            assert_eq!(s.contenders[0], Contender::Lasthop, "{}", s.name);
            assert_eq!(all().filter(|o| o.name == s.name).count(), 1, "{}", s.name);
        }
        for c in Contender::ALL {
            assert_eq!(Contender::ALL.iter().filter(|o| o.name() == c.name()).count(), 1, "{}", c.name());
        }
    }
}
