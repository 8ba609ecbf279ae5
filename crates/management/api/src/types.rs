//! What travels.

use crate::cpu_bound::CpuBound;
use crate::near::Place;
use crate::translation::Translation;
use serde::{Deserialize, Serialize};
use std::fmt;
use zlink::introspect::{self, CustomType};

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Path of its vhost-user socket.
    pub path: String,
    /// Whether lasthop connects (and the front-end listens).
    pub client: bool,
    /// When its guest has to kick while it sends a stream.
    pub tx_batch: Batching,
    /// When it is interrupted while it runs.
    pub rx_batch: Batching,
    /// The user, and perhaps the group, that alone may use it, as `USER` or `USER:GROUP`; none: whoever may open the socket.
    pub owner: Option<String>,
    /// What it is told to do, by names and values as of `lasthop port set`; empty: nothing.
    pub settings: Vec<Field>,
    /// It is an uplink's; then there is no socket, and `uplink_list` says more.
    pub uplink: bool,
    /// The interface that it is; none for one with a socket.
    pub device: Option<String>,
    /// How that is used: `tap`, `af_packet` or `af_xdp`; none before it was opened for the first time.
    pub driver: Option<String>,
    /// How that is: `up`, `no-carrier`, `down` or `missing`.
    pub link: Option<String>,
    /// `waiting` (no front-end), `connected` (its driver is not ready), `up`, `broken`, or `starting` while the switch
    /// process has not reported the port. One that is an interface may be `no-carrier`, `down`, or `waiting` for it.
    pub state: String,
    /// Why it is broken.
    pub error: Option<String>,
    /// Why the last connection ended, or what was last refused; what was last wrong with the interface.
    pub last_error: Option<String>,
    /// How long ago that was, in ms, if it is known.
    #[serde(default)]
    pub last_error_age_ms: Option<u64>,
    /// What keeps packets from passing although a front-end is connected, and what to do about it, as far as it is known.
    pub note: Option<String>,
    /// MTU in bytes that the front-end announced; 0 if it did not.
    pub mtu: u16,
    /// Negotiated virtio features, in hexadecimal.
    pub features: String,
    /// Negotiated vhost-user protocol features, in hexadecimal.
    pub protocol_features: String,
    /// Guest memory mapped, in bytes.
    pub memory_bytes: u64,
    /// Guest memory regions.
    pub memory_regions: u32,
    /// If its guest's own IOMMU translates addresses: what is known of them.
    pub translation: Option<Translation>,
    /// Its rings.
    pub queues: Vec<Queue>,
    /// Packets taken from the guest.
    pub from_guest: Totals,
    /// Packets delivered to the guest.
    pub to_guest: Totals,
    /// Packets taken from the guest that wait for control.
    pub waiting: u64,
    /// Processor time of the port's own thread and of those before it, in nanoseconds, since the switch process started; none
    /// until it has had one.
    pub cpu_ns: Option<u64>,
    /// Nanoseconds on the clock in which packets were written to its guest's buffers, whoever sent them.
    #[serde(default)]
    pub copied_ns: u64,
    /// How its bound of processor time (`max-cpu`) is kept; none without one, and for the first second.
    #[serde(default)]
    pub cpu_bound: Option<CpuBound>,
    /// The same of what may be taken to copy packets to its guest (`max-cpu-to`).
    #[serde(default)]
    pub copy_bound: Option<CpuBound>,
    /// Where its VM runs, and where its thread may; none for an interface, on a host with nothing to be near to, and with `--near off`.
    #[serde(default)]
    pub place: Option<Place>,
    /// What the VM does: `running` (on a core, or preempted there) or `blocked`; none if that is not known.
    pub vm: Option<String>,
    /// Core on which one of its threads last began to run, if it is running.
    pub vm_cpu: Option<u32>,
    /// Addresses learned there.
    pub macs: u64,
    /// Most addresses that may be learned there.
    pub mac_limit: u64,
    /// Flows whose packets come from there.
    pub flows: u64,
    /// Packets whose source was not learned because of the limit.
    pub sources_over_limit: u64,
    /// Addresses that moved here from another port.
    pub moves: u64,
    /// Packets whose source is held at another port because it moved too often.
    pub moves_refused: u64,
    /// The last address of these.
    #[serde(default)]
    pub refused_mac: Option<RefusedMac>,
}

/// An address that a port's packets have as their source, and that lives at another port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct RefusedMac {
    /// The address.
    pub mac: String,
    /// Its VLAN; 0 without one.
    pub vlan: u16,
    /// Name of the port where it lives now; null if it is not known any more.
    pub lives_at: Option<String>,
    /// Milliseconds since control last saw such a packet.
    pub age_ms: u64,
}

/// For how long, or for how many packets, a guest that sends a stream need not kick, or one that runs is not interrupted again, whatever
/// comes first. With a 0 each packet counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Batching {
    /// Microseconds.
    pub us: u32,
    /// Packets.
    pub packets: u16,
}

/// A ring. Even numbers carry packets to the guest, odd ones from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Queue {
    /// Its number.
    pub index: u16,
    /// Entries.
    pub size: u16,
    /// Packed layout.
    pub packed: bool,
    /// Started and enabled.
    pub enabled: bool,
    /// Why it stopped.
    pub error: Option<String>,
}

/// Counters of one direction of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Totals {
    /// Packets; one of 64 KiB counts once.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the guest: deliveries beyond the first that packets with several destinations caused.
    pub replicated: u64,
    /// From the guest: packets that met no flow and were handed to control.
    pub missed: u64,
    /// To the guest: frames written because a packet had to be cut up.
    pub segments: u64,
    /// To the guest: checksums completed.
    pub checksums: u64,
    /// Kicks received or interrupts sent.
    pub notifications: u64,
    /// From the guest: nanoseconds in which the switch was busy with its packets. To the guest: as a port's `copied_ns`.
    pub busy_ns: u64,
    /// From the guest: how often a queue was not read, because the port had sent all that `rate-from` lets it.
    pub held: u64,
    /// Packets not delivered, by reason; only reasons that occurred.
    pub drops: Vec<Drops>,
}

/// Packets not delivered for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Drops {
    /// Name of the reason.
    pub reason: String,
    /// How many.
    pub packets: u64,
}

/// A flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Flow {
    /// What a packet must look like; fields that are not named do not matter.
    pub fields: Vec<Field>,
    /// Names of the ports it goes to; empty drops it.
    pub outputs: Vec<String>,
    /// What is done with it, in order: names of ports, `push_vlan(ID)`, `pop_vlan`, `drop(REASON)`. What comes behind a change of the
    /// packet gets it changed.
    pub actions: Vec<String>,
    /// Packets that met it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Milliseconds since the last one.
    pub idle_ms: u64,
    /// Policy epoch in which it was computed.
    pub epoch: u64,
}

/// A field of a packet or a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its value, in a flow followed by `/mask` when only some bits matter.
    pub value: String,
}

/// Answer to `PortAdd`, `PortSet`, `PortRename`, `PortDel` and `MacAdd`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct PortChanged {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Path of its vhost-user socket.
    pub path: String,
    /// Whether lasthop connects.
    pub client: bool,
    /// What it is told to do now, by names and values; after `PortDel`, what was forgotten with it.
    pub settings: Vec<Field>,
}

/// Some of the ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct PortPage {
    /// These.
    pub ports: Vec<Port>,
    /// How many there are in all.
    pub total: u64,
}

/// Some of the flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct FlowPage {
    /// These.
    pub flows: Vec<Flow>,
    /// How many there are in all.
    pub total: u64,
}

/// Figures of the whole switch, as control sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct SwitchStats {
    /// The switch process is connected.
    pub switch_connected: bool,
    /// Ports.
    pub ports: u64,
    /// Learned addresses.
    pub macs: u64,
    /// Flows that should be in the switch.
    pub flows: u64,
    /// Different masks of these: a packet that no cache knows is looked for under each in turn.
    pub masks: u64,
    /// Flows that are flooded from an uplink and leave out another uplink that is up: nothing goes from one to another.
    pub floods_left_out: u64,
    /// Policy epoch.
    pub epoch: u64,
    /// Misses answered since control started.
    pub misses: u64,
    /// Flows sent to the switch since control started.
    pub flows_put: u64,
    /// Flows withdrawn since control started.
    pub flows_deleted: u64,
    /// Messages from the switch that made no sense.
    pub malformed: u64,
    /// Milliseconds since control started.
    pub uptime_ms: u64,
    /// Processor time of all processes.
    pub cpu: CpuTimes,
    /// What ports counted that were removed, since the switch started; as of the last list of ports.
    pub removed_from_guest: Totals,
    /// The same, to their guests.
    pub removed_to_guest: Totals,
    /// What the flow caches of the switch's threads have done; as of the last list of ports.
    pub caches: Caches,
    /// Packets that flows dropped, by port and by rule or reason.
    pub denied: Vec<Denied>,
    /// Whom floods do not reach by VLANs, isolation and access lists: of a sample of the flows there are.
    pub left_out: Vec<LeftOut>,
    /// Processes and how often each had to be replaced, those first that were replaced last.
    pub replaced: Vec<Replaced>,
    /// Where Open vSwitch decides: its ports that are interfaces of the host. None where the learning switch decides.
    pub open_vswitch: Option<Vec<String>>,
    /// Where Open vSwitch decides: whether it is there. None where the learning switch decides.
    pub deciders: Option<crate::OpenVswitch>,
    /// How the host and the programs are.
    #[serde(default)]
    pub host: Host,
    /// Where the data plane is a device with a small table: what became of packets that missed it.
    pub device: Option<crate::DeviceTable>,
}

/// How the host and the programs are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Host {
    /// Version of `lasthop run`.
    pub version: String,
    /// Version of the process that decides: lasthop-control, or lasthop-ovs.
    pub control_version: String,
    /// Why it is not known what VMs and cores do, if it was to be.
    pub vms_unknown: Option<String>,
    /// Why there are no helpers, if there were to be.
    pub no_helpers: Option<String>,
    /// Processes that run a program whose file has been removed or replaced since they were started, named as in `replaced`; `run` is
    /// `lasthop run` itself. 32 entries at most.
    pub outdated: Vec<String>,
    /// What is wrong with the state directory, so that the next start or the next command fails: for each, what, and behind a semicolon what to do.
    /// 4 entries at most.
    pub state_faults: Vec<String>,
    /// Flows in the kernel or a card, if `lasthop run` has `--hw-offload`.
    pub offload: Option<Offload>,
}

/// Flows that the kernel's classifier flower, or a card by it, carries past lasthop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Offload {
    /// Who carries them: none (the card if it can, else the kernel), skip_sw (the card alone), skip_hw (the kernel alone).
    pub policy: String,
    /// The process that sees to it is there; without it no flow is in the kernel or a card for long.
    pub running: bool,
    /// Ports whose flows may be there: those with driver=tc whose interface is there.
    pub ports: u64,
    /// Flows that are there now.
    pub flows: u64,
    /// Those of them that a card carries out.
    pub in_hardware: u64,
    /// Packets that passed lasthop by, as last looked at, since that process began. The kernel counts one that is yet to be cut up as its parts.
    pub packets: u64,
    /// Their bytes; those that the kernel itself carries it counts without the Ethernet header.
    pub bytes: u64,
    /// Flows that stayed in lasthop, by reason, since that process began.
    pub stayed: Vec<Stayed>,
}

/// Flows that stayed in lasthop for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Stayed {
    /// One word.
    pub reason: String,
    /// The same as part of a sentence.
    pub why: String,
    /// How many.
    pub flows: u64,
}

/// The flow caches of all threads of the switch that there are now, since each began. A cache grows while more flows are in use than it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Caches {
    /// Places for flows in all of them.
    pub entries: u64,
    /// Places that have been filled.
    pub used: u64,
    /// Lookups that found their flow in a cache. A packet that is of the same flow as the one before is not looked up.
    pub hits: u64,
    /// Lookups that found it in the table that all threads share, and put it into the cache.
    pub misses: u64,
    /// Flows that had to leave a cache for want of room, though they lived.
    pub evicted: u64,
}

/// How often a process ended that was not asked to, since `lasthop run` started. Another took its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Replaced {
    /// `switch`, `control` (also for lasthop-ovs in its place), `uplink NAME`, or `port NAME` of one that is an interface.
    pub process: String,
    /// How often.
    pub times: u64,
    /// Milliseconds since the last time; null: never.
    pub age_ms: Option<u64>,
    /// Why it ended then: what was wrong with it, or its status.
    pub why: Option<String>,
}

/// Packets from one port that flows dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Denied {
    /// Name of the port they came from.
    pub port: String,
    /// How many: by a rule, since the lists hold that there are.
    pub packets: u64,
    /// The drop reason.
    pub reason: String,
    /// Of an access list: the port whose list it is, null for the general one.
    pub list: Option<String>,
    /// Of an access list: from-guest or to-guest.
    pub direction: Option<String>,
    /// Its rule, counted from 1; 0 is the default, null the list's mistrust of malformed headers.
    pub rule: Option<u32>,
    /// The rule, as `acl show` has it.
    pub text: Option<String>,
    /// Of `spoofed`: the port's setting that does not allow it, null if its headers cannot be read.
    pub setting: Option<String>,
    /// Milliseconds since the last one.
    pub age_ms: u64,
    /// The last one that control saw. Later ones may differ in what the flow made for it does not look at. Null: none since control
    /// was started.
    pub packet: Option<String>,
}

/// Ports that the floods of one port do not reach, for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct LeftOut {
    /// Name of the port they come from.
    pub port: String,
    /// Their VLAN; 0: none.
    pub vlan: u16,
    /// As of a drop: `vlan`, `isolated` or `acl`.
    pub reason: String,
    /// Names of some ports that are up and not reached.
    pub to: Vec<String>,
    /// How many such ports there are.
    pub ports: u64,
    /// More of the first.
    pub why: String,
}

/// Processor time, in nanoseconds, that the processes which run now have used since each was started. The parts are read
/// together and add up to `total_ns`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct CpuTimes {
    /// The threads of all ports.
    pub ports_ns: u64,
    /// Helpers' threads, and pollers'.
    pub helpers_ns: u64,
    /// The first thread of the switch, which talks to session processes and control.
    pub main_ns: u64,
    /// The rest of the switch: threads that have ended, and what running threads have used since the kernel's last tick.
    pub other_ns: u64,
    /// `lasthop-control`.
    pub control_ns: u64,
    /// All processes of uplinks.
    pub uplinks_ns: u64,
    /// All ports' session processes.
    pub sessions_ns: u64,
    /// `lasthop run` itself.
    pub supervisor_ns: u64,
    /// All of these.
    pub total_ns: u64,
}

impl CpuTimes {
    /// The parts, by the names that all commands have for them, in nanoseconds.
    pub fn parts(&self) -> [(&'static str, u64); 8] {
        [
            ("ports", self.ports_ns),
            ("helpers", self.helpers_ns),
            ("main", self.main_ns),
            ("other", self.other_ns),
            ("control", self.control_ns),
            ("uplinks", self.uplinks_ns),
            ("sessions", self.sessions_ns),
            ("supervisor", self.supervisor_ns),
        ]
    }
}

/// Errors; `message` says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, zlink::ReplyError, introspect::ReplyError)]
#[zlink(interface = "org.lasthop.Switch")]
pub enum ApiError {
    /// There is no port of this name.
    NoSuchPort {
        /// The name.
        name: String,
        /// What to do.
        message: String,
    },
    /// The port cannot be made or removed.
    PortRefused {
        /// Why, and what to do.
        message: String,
    },
    /// The uplink cannot be made or removed.
    UplinkRefused {
        /// Why, and what to do.
        message: String,
    },
    /// The mirror cannot be made or removed.
    MirrorRefused {
        /// Why, and what to do.
        message: String,
    },
    /// No other switch takes over; the one before goes on.
    UpgradeRefused {
        /// Why, and what to do.
        message: String,
    },
    /// The new programs say other messages than those that run: nothing takes over before lasthop is started anew.
    OtherMessages {
        /// Why, and what to do.
        message: String,
    },
    /// Engines cannot be like this, or no switch with them takes over; they are as before.
    EngineRefused {
        /// Why, and what to do.
        message: String,
    },
    /// The process that would have to answer is not there or does not answer.
    NotAvailable {
        /// Which, and what to do.
        message: String,
    },
    /// The frame to trace is not a frame.
    BadFrame {
        /// What is wrong with it.
        message: String,
    },
    /// No connection can be what was asked for.
    BadFilter {
        /// What is wrong, and what to write.
        message: String,
    },
    /// Access lists cannot be changed like this; nothing was changed.
    BadRules {
        /// Where, what is wrong, and what is expected.
        message: String,
    },
    /// Only root may change anything.
    ReadOnly {
        /// What to do.
        message: String,
    },
    /// Too many requests wait already.
    Busy {
        /// What to do.
        message: String,
    },
}

impl ApiError {
    /// What is wrong and what to do.
    pub fn message(&self) -> &str {
        match self {
            Self::NoSuchPort { message, .. }
            | Self::PortRefused { message }
            | Self::UplinkRefused { message }
            | Self::MirrorRefused { message }
            | Self::UpgradeRefused { message }
            | Self::OtherMessages { message }
            | Self::EngineRefused { message }
            | Self::NotAvailable { message }
            | Self::BadFrame { message }
            | Self::BadFilter { message }
            | Self::BadRules { message }
            | Self::ReadOnly { message }
            | Self::Busy { message } => message,
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for ApiError {}
