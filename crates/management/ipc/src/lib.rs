//! What the supervisor says to control and hears from it. The switch speaks none of it.

mod bounds;
mod engines;
mod near;
mod offload;

pub use bounds::{CpuBound, PortWork};
pub use engines::{EngineChange, EngineInfo, EngineKind};
use lasthop_ipc::RateLimit;
use lasthop_types::PortId;
use lasthop_uplink_ipc::{UplinkCounters, UplinkDevice, UplinkDriver, VlanMac};
pub use near::{Nearness, PlaceNews, PortPlace};
pub use offload::{OffloadFigures, OffloadState, OffloadToSupervisor, SupervisorToOffload};
use serde::{Deserialize, Serialize};

/// What the library in Open vSwitch's programs says first to `lasthop-ovs` (`crates/management/ovs-preload`), up to the number of its version. The library
/// has it in its file, by which one of another version is known.
pub const OVS_HELLO: &str = "lasthop-ovs ";
/// The version that is spoken.
pub const OVS_HELLO_VERSION: u32 = 3;

/// A port as the user asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortConfig {
    /// Given by the supervisor.
    pub id: PortId,
    /// Unique name, 1 to 63 characters of `[A-Za-z0-9._-]`.
    pub name: String,
    /// Path of the vhost-user socket.
    pub path: String,
    /// True when lasthop connects and the front-end listens; false when lasthop listens.
    pub client: bool,
    /// Microseconds and packets for which a guest that sends a stream need not kick; 0: it kicks for each.
    pub tx_batch: (u32, u16),
    /// The same for which a guest that runs is not interrupted again; 0: it is whenever it wants.
    pub rx_batch: (u32, u16),
    /// Who may use it, as somebody wrote it, if not whoever may open the socket.
    pub owner: Option<String>,
}

/// To control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorToControl {
    /// Control's end of a new switch–control channel travels with this message.
    DatapathChannel,
    /// Memory of the table of all flows that a device walks travels with this message, or that of its marks; before `DatapathChannel`.
    LargerTable {
        /// Which.
        marks: bool,
    },
    /// The page in which a device's DMA engine counts travels with this message; before `DatapathChannel`.
    DmaCounters,
    /// All ports as configured; sent at the start and after every change.
    Ports(Vec<PortConfig>),
    /// Answer to `PortAdd`, `PortSet`, `PortDel` or `PortRename`: an error says what is wrong and what to do.
    Reply {
        /// The request's number.
        request: u64,
        /// The port's configuration, or what is wrong.
        result: Result<PortConfig, String>,
    },
    /// A process that may not use the port wanted to: who, in words.
    PeerRefused {
        /// The port.
        port: PortId,
        /// One line.
        reason: String,
    },
    /// A front-end wanted to connect to a port where another is, and was refused: who, in words.
    SecondRefused {
        /// The port.
        port: PortId,
        /// A process.
        who: String,
    },
    /// What keeps front-ends from a port, or that nothing does any more.
    PortFault {
        /// The port.
        port: PortId,
        /// One line: what is wrong; what to do.
        fault: Option<String>,
    },
    /// A socket of the API, which travels with this message, in place of the one that control has.
    ApiSocket {
        /// Its clients may change nothing.
        read_only: bool,
    },
    /// Exit with status 0.
    Shutdown,
    /// Part (at most [`LISTS_PART`] bytes, empty behind the last) of the access lists' text; before `DatapathChannel`.
    Lists(Vec<u8>),
    /// Answer to the last part of `KeepLists`: kept for good, or nothing was changed and why.
    ListsKept(Result<(), String>),
    /// What a port is told to do, as text; empty if nothing. Before `Ports`, for each port that is told something, and after every change.
    Settings {
        /// The port.
        port: PortId,
        /// As `lasthop_policy::PortSettings` reads it.
        text: String,
    },
    /// Which ports are uplinks, each with the VLANs that it carries if not all: 512 bytes, a bit for each id, the lowest of a
    /// byte first; that of id 0 is for frames without a VLAN. Before `Ports`.
    Uplinks(Vec<(PortId, Option<Vec<u8>>)>),
    /// All ports that are interfaces; sent at the start and after every change.
    Devices(Vec<DeviceState>),
    /// Answer to `UplinkAdd`, `UplinkSet`, `UplinkDel` (the uplink it was about) and `UplinkList` (all): an error says what is wrong and
    /// what to do.
    UplinkReply {
        /// The request's number.
        request: u64,
        /// The uplinks, or what is wrong.
        result: Result<Vec<UplinkInfo>, String>,
    },
    /// Addresses learned at this port may be elsewhere now: forget them.
    Forget(PortId),
    /// This uplink carries frames that another one carried before: which stations are to be announced there?
    Announce(PortId),
    /// Answer to `CpuTimes`.
    CpuTimes {
        /// The request's number.
        request: u64,
        /// What has been used so far.
        times: CpuTimes,
        /// And which processes had to be replaced, those first that were last; at most [`MAX_REPLACED`].
        replaced: Vec<Replaced>,
        /// And how the host and the programs are.
        host: HostFacts,
    },
    /// How the bounds of processor time are kept, of all ports that have one for what their guests send, and of all that have one for what is copied to
    /// them. Said after each `Done`, and when one was taken away.
    CpuBounds([Vec<CpuBound>; 2]),
    /// Where VMs run, and their ports' threads, as far as that is followed; what is otherwise is said, in several of these if it is much.
    Places(Vec<PlaceNews>),
    /// All mirrors; before `Ports`, and after every change.
    Mirrors(Vec<MirrorConfig>),
    /// Answer to `MirrorAdd` and `MirrorDel`: an error says what is wrong and what to do.
    MirrorReply {
        /// The request's number.
        request: u64,
        /// What is wrong.
        result: Result<(), String>,
    },
    /// A port has another name, and so have its own access lists and what mirrors say of it. Before `Ports`.
    Renamed {
        /// The port.
        port: PortId,
        /// What it was called.
        from: String,
        /// What it is called now.
        to: String,
    },
    /// Answer to `Upgrade` and `EngineChange`: what came of it, or what is wrong and what to do.
    UpgradeReply {
        /// The request's number.
        request: u64,
        /// What came of it.
        result: Result<Upgraded, NotReplaced>,
    },
    /// Answer to `EngineList`.
    Engines {
        /// The request's number.
        request: u64,
        /// All engines, those of one kind in the order of their CPUs.
        engines: Vec<EngineInfo>,
        /// How they are set, in the order of [`EngineKind::ALL`]: CPUs, `none` or `all`.
        set: [String; 3],
        /// How near ports' threads are kept to their VMs: `off`, `node` or `cache`.
        near: String,
        /// Among how many nodes and caches they can be.
        near_to: u32,
    },
    /// The socket of Open vSwitch's programs, which travels with this message, in place of the one that `lasthop-ovs` has.
    OvsSocket,
    /// Which lines of the log are written. First of all, if control was told something before, and as the answer to `LogLevel`.
    LogLevel {
        /// The request's number, if it is an answer.
        request: Option<u64>,
        /// What the supervisor writes: a level, or what `RUST_LOG` says.
        run: String,
        /// What control is to write, as it was told; `None`: what it does.
        control: Option<String>,
    },
}

/// Processes that newly installed programs can take the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Processes {
    /// The switch.
    Switch,
    /// The ports' session processes.
    Sessions,
    /// Those of uplinks, and of ports that are interfaces.
    Uplinks,
    /// Control, or what decides in its place.
    Control,
    /// `lasthop run` itself.
    Run,
}

/// Most processes that an answer names.
pub const MAX_UPGRADED: usize = 256;

/// What has been replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// At most [`MAX_UPGRADED`].
    pub processes: Vec<NewProcess>,
    /// Processes that go on with the program that they were started with, at most [`MAX_UPGRADED`], and why.
    pub kept: Vec<(String, String)>,
    /// Of a switch: ports that have gone over, and for how many nanoseconds none of a port's packets moved; `None` if it had no rings.
    pub pauses: Vec<(PortId, Option<u64>)>,
}

/// Why nothing has been replaced, or not all: what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotReplaced {
    /// It may be asked for again.
    Refused(String),
    /// The new programs say other messages than those that run: only a new start takes them into use.
    OtherMessages(String),
}

/// A process that has taken the place of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewProcess {
    /// What it is called.
    pub process: String,
    /// Its number.
    pub pid: u32,
    /// From the end of the one before, or the beginning of the change, until it did its work, in nanoseconds.
    pub took: u64,
}

/// A mirror, by the names of its ports, which need not be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorConfig {
    /// Its name.
    pub name: String,
    /// The ports whose packets are copied.
    pub from: Vec<String>,
    /// The port that gets the copies.
    pub to: String,
    /// As `lasthop_policy::Mirrored` reads it.
    pub direction: String,
    /// One of so many packets is copied.
    pub sample: u32,
    /// Copies say whose packets they are.
    pub labelled: bool,
}

/// Most entries of a list of processes that were replaced.
pub const MAX_REPLACED: usize = 32;

/// A process that ends and is started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// `switch`, `control`, `uplink NAME`, or `port NAME` of one that is an interface.
    pub process: String,
    /// How often.
    pub times: u64,
    /// How many milliseconds ago it ended last, and why.
    pub last: Option<(u64, String)>,
}

/// Most entries of a list of processes whose program was replaced.
pub const MAX_OUTDATED: usize = 32;

/// What the supervisor knows of the host, and of the programs that run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The supervisor's version.
    pub version: String,
    /// Why it is not known what VMs and cores do, if it was to be.
    pub vms_unknown: Option<String>,
    /// Why no thread of the switch can be lifted out of the idle class, if so: then there are no helpers.
    pub no_helpers: Option<String>,
    /// Processes that run a program whose file has been removed or replaced since they were started, named as in [`Replaced`], and `run`, which
    /// is the supervisor; at most [`MAX_OUTDATED`].
    pub outdated: Vec<String>,
    /// What is wrong with the state directory: for each, what, and behind a semicolon what to do. One for each of its three files and one
    /// for the directory, at most.
    pub state_faults: Vec<String>,
    /// Flows in the kernel or a card, where there are to be some.
    pub offload: Option<Box<OffloadState>>,
}

/// Processor time, in nanoseconds, that the processes which run now have used since each was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// Ports' own threads; a port without one is not named.
    pub ports: Vec<(PortId, u64)>,
    /// Helpers' threads, and pollers'.
    pub helpers_ns: u64,
    /// The first thread of the switch.
    pub main_ns: u64,
    /// The whole switch: these and threads that have ended.
    pub switch_ns: u64,
    /// Control.
    pub control_ns: u64,
    /// All processes of uplinks.
    pub uplinks_ns: u64,
    /// All ports' session processes.
    pub sessions_ns: u64,
    /// The supervisor itself.
    pub supervisor_ns: u64,
}

/// An uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkInfo {
    /// Its name, which is that of its port.
    pub name: String,
    /// Its port and its interface.
    pub device: DeviceState,
    /// It is a guest's port, not an uplink.
    pub guest: bool,
    /// Its processes' priority.
    pub nice: i32,
    /// Without receive aggregation of its own.
    pub no_gro: bool,
    /// Whether its process runs and has opened the device.
    pub running: bool,
    /// It is new, and listens whether it is on another one's segment before it carries frames.
    pub probing: bool,
    /// The device as it was last opened.
    pub about: Option<UplinkDevice>,
    /// Its process.
    pub pid: Option<u32>,
    /// How often the process was started again.
    pub restarts: u64,
    /// Whether a second process stands by to take over; `None` if none is wanted.
    pub spare: Option<bool>,
    /// The uplink on the same segment that carries the frames, so that this one must not.
    pub blocked_by: Option<String>,
    /// What it has carried, all its processes together, as last heard.
    pub counters: UplinkCounters,
}

/// What is to be shown of every port that is an interface. Nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Its port.
    pub port: PortId,
    /// The interface.
    pub device: String,
    /// How it is used; none before it was opened for the first time.
    pub driver: Option<UplinkDriver>,
    /// How it is.
    pub link: LinkState,
    /// What was last wrong with it.
    pub last_error: Option<String>,
}

/// How an interface is, as the kernel says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkState {
    /// Up, with a carrier; or nobody knows.
    #[default]
    Up,
    /// Up, and the cable is pulled or the other end is down.
    NoCarrier,
    /// Set down.
    Down,
    /// There is no such interface.
    Missing,
}

impl LinkState {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::NoCarrier => "no-carrier",
            Self::Down => "down",
            Self::Missing => "missing",
        }
    }
}

/// Longest part of the text of access lists, in bytes.
pub const LISTS_PART: usize = 32 * 1024;

/// An uplink as somebody wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkConfig {
    /// Its name.
    pub name: String,
    /// Its interface.
    pub device: String,
    /// How to use it; chosen by the uplink if not given.
    pub driver: Option<String>,
    /// Queue pairs.
    pub queues: u16,
    /// Its processes' priority, as of nice(1).
    pub nice: i32,
    /// Receive aggregation, where the uplink would do it.
    pub gro: bool,
    /// Whether a second process is to stand by.
    pub spare: bool,
    /// The VLANs that it carries, as people write them, if not all.
    pub vlans: Option<String>,
    /// It is a guest's port: a device of the host's, or a container's.
    pub guest: bool,
    /// What that is told to do.
    pub settings: Settings,
}

/// What a port is told to do: names and values, as people write them.
pub type Settings = Vec<(String, String)>;

/// From control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlToSupervisor {
    /// Serving the local API.
    Ready,
    /// Make a port.
    PortAdd {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
        /// Its socket's path.
        path: String,
        /// Whether lasthop connects.
        client: bool,
        /// As of [`PortConfig::tx_batch`], if not that of all ports.
        tx_batch: Option<(u32, u16)>,
        /// As of [`PortConfig::owner`].
        owner: Option<String>,
        /// What it is told to do.
        settings: Settings,
    },
    /// Tell a port to do something else; what is not named stays as it is.
    PortSet {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
        /// What changes.
        settings: Settings,
    },
    /// This interface's port lets no more through, whatever its own settings say; `None`: as these say. Holds until it is said otherwise or the port is removed.
    Limit {
        /// Its name.
        name: String,
        /// What may come from there.
        from: Option<RateLimit>,
        /// What may go there.
        to: Option<RateLimit>,
    },
    /// Remove a port.
    PortDel {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
    },
    /// Part (as of `Lists`) of the text of all access lists, to be kept over restarts instead of what was kept before.
    KeepLists(Vec<u8>),
    /// Make an uplink and its port.
    UplinkAdd {
        /// Echoed in the reply.
        request: u64,
        /// What it is to be.
        uplink: UplinkConfig,
    },
    /// Change the VLANs that an uplink carries.
    UplinkSet {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
        /// The VLANs, as people write them, if not all.
        vlans: Option<String>,
    },
    /// Remove an uplink and its port.
    UplinkDel {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
    },
    /// All uplinks.
    UplinkList {
        /// Echoed in the reply.
        request: u64,
    },
    /// What processor time has been used so far?
    CpuTimes {
        /// Echoed in the reply.
        request: u64,
    },
    /// What ports have done so far for whose packets there is a bound of processor time, and what was copied so far to those that have one for that. Said
    /// each second as long as there are such ports.
    Done([Vec<PortWork>; 2]),
    /// Announce these, at most [`MACS_PART`](lasthop_uplink_ipc::MACS_PART), at this uplink. There may be more such messages.
    Announce {
        /// The uplink's port.
        uplink: PortId,
        /// Who lives at ports that are not uplinks.
        macs: Vec<VlanMac>,
    },
    /// The addresses behind each port that has a queue of its own at an uplink, at most
    /// [`OWNED_STATIONS`](lasthop_uplink_ipc::OWNED_STATIONS) of each. Said again when they are others.
    Owners(Vec<(PortId, Vec<VlanMac>)>),
    /// Nothing that was sent to this uplink has been taken, though there was something all the time. Said again as long as it
    /// goes on.
    TakesNothing {
        /// The uplink's port.
        uplink: PortId,
        /// For how long at least, in milliseconds.
        for_ms: u64,
    },
    /// Make a mirror.
    MirrorAdd {
        /// Echoed in the reply.
        request: u64,
        /// What it is to be.
        mirror: MirrorConfig,
    },
    /// Remove a mirror.
    MirrorDel {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
    },
    /// Have newly installed programs take the place of those that run.
    Upgrade {
        /// Echoed in the reply.
        request: u64,
        /// Where they are, if not in the place of those that run.
        programs: Option<String>,
        /// What they say to each other.
        messages: String,
        /// Which are to be replaced.
        processes: Processes,
        /// Those whose program is the same file, too.
        all: bool,
        /// The same when the same is asked once more, because the answer has not come.
        attempt: String,
    },
    /// Have ports' work done on other CPUs, or by others: another switch takes over. Answered by `UpgradeReply`.
    EngineChange {
        /// Echoed in the reply.
        request: u64,
        /// What is to become of them.
        change: EngineChange,
        /// As of `Upgrade`.
        attempt: String,
    },
    /// All engines.
    EngineList {
        /// Echoed in the reply.
        request: u64,
    },
    /// Call a port something else; all that goes by its name goes by the new one.
    PortRename {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
        /// What it is to be called.
        to: String,
    },
    /// Write lines of the log from these levels on. What is not named stays as it is.
    LogLevel {
        /// Echoed in the reply.
        request: u64,
        /// The supervisor, and through it the switch.
        run: Option<String>,
        /// Control, also the next one.
        control: Option<String>,
    },
}
