//! Who takes part in comparisons.

use crate::switch::ovs::Rules;

/// A switch in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// lasthop, a learning switch.
    Lasthop,
    /// The same, its scheduling changed.
    Changed(Change),
    /// The same, a TAP device on a bridge as its uplink.
    Tap,
    /// The same, its uplink without receive aggregation.
    NoGro,
    /// The same, driven by the distribution's Open vSwitch.
    Driven(Rules),
    /// The same, one queue of its uplink for all guests.
    SharedQueue,
    /// Open vSwitch with DPDK.
    Ovs(Rules),
    /// DPDK's vhost library, which copies twice and does nothing else.
    DpdkVhost,
    /// lasthop's switch as a device that polls, with a table of 1024 rules.
    Device,
    /// The kernel's bridge with TAP devices.
    LinuxBridge,
    /// The same behind vhost ports of DPDK's, as a driver domain has it; with nftables where there are rules.
    BridgeTap,
    /// The same with `tc`, whose classes say what goes to whom.
    BridgeTc,
    /// The kernel's bridge with nftables, between veth devices that send everything back.
    BridgeNft,
    /// The kernel's bridge alone, between veth devices that send everything back.
    BridgeAlone,
}

/// What is different in how lasthop schedules its work: one thing each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A core of its own, polled on.
    Poll,
    /// No helpers on idle cores.
    NoHelpers,
    /// Guests kick for every packet.
    NoTransmitBatch,
    /// The transmit timer is started as figure 4.3 of the thesis draws it.
    DrawnTimer,
    /// Guests are interrupted whenever they want to be.
    NoReceiveBatch,
    /// Helpers wait 5 µs for the next packet, however often packets come.
    FixedHysteresis,
    /// Helpers are threads like any others: their work is not abandoned when somebody wants the core.
    NormalHelpers,
    /// Packets do not wait for guests without buffers.
    NoCongestion,
    /// Not known which VMs run and which cores are idle.
    NoView,
}

impl Change {
    /// Arguments of `lasthop run`; `cpu` is the switch's.
    pub fn arguments(self, cpu: usize) -> Vec<String> {
        let poll = cpu.to_string();
        let words: &[&str] = match self {
            Self::Poll => &["--poll", &poll],
            Self::NoHelpers => &["--helpers", "none"],
            Self::NoTransmitBatch => &["--tx-batch", "off"],
            Self::DrawnTimer => &["--tx-timer", "hyper-switch"],
            Self::NoReceiveBatch => &["--rx-batch", "off"],
            Self::FixedHysteresis => &["--hysteresis", "5"],
            Self::NormalHelpers => &["--helper-class", "normal"],
            Self::NoCongestion => &["--congestion", "off"],
            Self::NoView => &["--no-bpf"],
        };
        words.iter().map(ToString::to_string).collect()
    }
}

impl Contender {
    /// All there are.
    pub const ALL: [Self; 28] = [
        Self::Lasthop,
        Self::Changed(Change::Poll),
        Self::Changed(Change::NoHelpers),
        Self::Changed(Change::NoTransmitBatch),
        Self::Changed(Change::DrawnTimer),
        Self::Changed(Change::NoReceiveBatch),
        Self::Changed(Change::FixedHysteresis),
        Self::Changed(Change::NormalHelpers),
        Self::Changed(Change::NoCongestion),
        Self::Changed(Change::NoView),
        Self::Tap,
        Self::NoGro,
        Self::SharedQueue,
        Self::Device,
        Self::Driven(Rules::Learning),
        Self::Driven(Rules::List),
        Self::Ovs(Rules::PortToPort),
        Self::Ovs(Rules::Acl),
        Self::Ovs(Rules::Learning),
        Self::Ovs(Rules::Policed),
        Self::Ovs(Rules::Promised),
        Self::Ovs(Rules::List),
        Self::DpdkVhost,
        Self::LinuxBridge,
        Self::BridgeTap,
        Self::BridgeTc,
        Self::BridgeNft,
        Self::BridgeAlone,
    ];

    /// For the command line and the files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lasthop => "lasthop",
            Self::Changed(Change::Poll) => "lasthop-poll",
            Self::Changed(Change::NoHelpers) => "lasthop-no-helpers",
            Self::Changed(Change::NoTransmitBatch) => "lasthop-no-tx-batch",
            Self::Changed(Change::DrawnTimer) => "lasthop-drawn-timer",
            Self::Changed(Change::NoReceiveBatch) => "lasthop-no-rx-batch",
            Self::Changed(Change::FixedHysteresis) => "lasthop-fixed-hysteresis",
            Self::Changed(Change::NormalHelpers) => "lasthop-normal-helpers",
            Self::Changed(Change::NoCongestion) => "lasthop-no-congestion",
            Self::Changed(Change::NoView) => "lasthop-no-bpf",
            Self::Tap => "lasthop-tap",
            Self::NoGro => "lasthop-no-gro",
            Self::SharedQueue => "lasthop-shared-queue",
            Self::Driven(Rules::Learning) => "driven-learning",
            Self::Driven(_) => "driven-list",
            Self::Ovs(Rules::PortToPort) => "ovs-flows",
            Self::Ovs(Rules::Acl) => "ovs-acl",
            Self::Ovs(Rules::Learning) => "ovs-learning",
            Self::Ovs(Rules::Policed) => "ovs-policed",
            Self::Ovs(Rules::Promised) => "ovs-promised",
            Self::Ovs(Rules::List) => "ovs-list",
            Self::DpdkVhost => "dpdk-vhost",
            Self::Device => "lasthop-device",
            Self::LinuxBridge => "linux-bridge",
            Self::BridgeTap => "bridge-tap",
            Self::BridgeTc => "bridge-tc",
            Self::BridgeNft => "bridge-nft",
            Self::BridgeAlone => "bridge-alone",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Lasthop => "lasthop",
            Self::Changed(Change::Poll) => "lasthop, polling on a core of its own",
            Self::Changed(Change::NoHelpers) => "lasthop without helpers",
            Self::Changed(Change::NoTransmitBatch) => "lasthop without transmit batching",
            Self::Changed(Change::DrawnTimer) => "lasthop, transmit timer as drawn",
            Self::Changed(Change::NoReceiveBatch) => "lasthop without receive batching",
            Self::Changed(Change::FixedHysteresis) => "lasthop, hysteresis always 5 µs",
            Self::Changed(Change::NormalHelpers) => "lasthop, helpers not in the idle class",
            Self::Changed(Change::NoCongestion) => "lasthop, packets do not wait for buffers",
            Self::Changed(Change::NoView) => "lasthop without eBPF",
            Self::Tap => "lasthop, TAP on a bridge",
            Self::NoGro => "lasthop without aggregation",
            Self::SharedQueue => "lasthop, one queue for all",
            Self::Driven(Rules::Learning) => "lasthop under Open vSwitch, learning",
            Self::Driven(_) => "lasthop under Open vSwitch, the same rules",
            Self::Ovs(Rules::PortToPort) => "OVS-DPDK, port-to-port flows",
            Self::Ovs(Rules::Acl) => "OVS-DPDK, two ACL rules",
            Self::Ovs(Rules::Learning) => "OVS-DPDK, learning",
            Self::Ovs(Rules::Policed) => "OVS-DPDK, learning, egress policers",
            Self::Ovs(Rules::Promised) => "OVS-DPDK, learning, two-rate policer",
            Self::Ovs(Rules::List) => "OVS-DPDK, the same rules",
            Self::DpdkVhost => "DPDK vhost, no switch",
            Self::Device => "lasthop, a device",
            Self::LinuxBridge => "Linux bridge + TAP",
            Self::BridgeTap => "Linux bridge + TAP behind DPDK vhost",
            Self::BridgeTc => "Linux bridge + TAP behind DPDK vhost, tc htb",
            Self::BridgeNft => "Linux bridge + nftables, no guests",
            Self::BridgeAlone => "Linux bridge, no guests",
        }
    }
}
