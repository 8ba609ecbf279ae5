//! What the supervisor says to the switch and hears from it.

use lasthop_sys::sandbox::Confinement;
use lasthop_types::{LogLine, MAX_QUEUE_PAIRS, PortId, ThreadNews};
use serde::{Deserialize, Serialize};

/// A limit of a port; the default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// A second; 0: any number.
    pub bytes: u64,
    /// A second; 0: any number.
    pub packets: u64,
    /// Nanoseconds' worth that may be made up for.
    pub burst_ns: u64,
}

/// What a port may do and how its packets are moved, from when it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLimits {
    /// What it may send, get and flood.
    pub rates: [RateLimit; 3],
    /// Its share of a thread that looks after several ports' rings, and of a receiver that is short of buffers: beside those of all others.
    pub weight: u32,
    /// The CPU on which its rings are polled, if cores poll, and that one does; else any that does. `POLLED_NOWHERE`: its own thread has them.
    pub poll_cpu: u16,
    /// Microseconds and packets that are gathered before its guest kicks in a stream, and before it is interrupted while it runs; 0: none.
    pub batches: [(u32, u16); 2],
    /// For whose packets alone each of its queues is that lead to it, by the pair's number; 0: for those of all that have none.
    pub kept_for: [u32; MAX_QUEUE_PAIRS],
}

/// How the switch moves packets, as `lasthop run` was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchSettings {
    /// Cores that get a helper; none of those that poll.
    pub helpers: Vec<usize>,
    /// Cores that do nothing but poll.
    pub poll: Vec<usize>,
    /// Microseconds that helpers look for more before they sleep: at least, at most.
    pub hysteresis_us: (u32, u32),
    /// Helpers are threads like any others.
    pub not_idle: bool,
    /// Threads of ports may be in the control groups of their VMs.
    pub cgroup_accounting: bool,
    /// The transmit timer is started as the thesis' figure 4.3 draws it.
    pub drawn_timer: bool,
    /// Microseconds without work after which a port's thread ends; 0: it stays.
    pub idle_us: u32,
    /// Milliseconds that packets wait for receivers without buffers: alone, and with others behind them.
    pub patience_ms: (u32, u32),
    /// Most memory that one front-end may have mapped, in bytes.
    pub max_guest_memory: u64,
    /// Flows it holds, at least one; beyond, the least recently used goes.
    pub max_flows: usize,
}

/// To the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorToSwitch {
    /// What it becomes in its sandbox, and how it works: the first message, and only that.
    Start(Confinement, SwitchSettings),
    /// A port with this number and name comes into being; answered by nothing. Sent for every port after a restart too.
    AddPort(PortId, String),
    /// The port and its connection go away.
    DelPort(PortId),
    /// A front-end is connected: the switch's end of a new channel to the port's session process, which has the vhost-user
    /// socket, travels with this message; it replaces one the port still has. The VM behind it has that slot in the host view, if
    /// it is watched.
    Connection(PortId, Option<u32>),
    /// The switch's end of new rings to control travels with this message.
    ControlChannel,
    /// What it may do. Until it is told so: anything, and nothing is gathered.
    Limits(PortId, PortLimits),
    /// Finish the current bursts and exit with status 0.
    Shutdown,
}

/// From the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwitchToSupervisor {
    /// Sandboxed and serving.
    Ready,
    /// The port's connection ended (or was refused); where lasthop connects, connect again.
    ConnectionClosed {
        /// Which port.
        port: PortId,
        /// One line for the log.
        reason: String,
    },
    /// What has become of the port's threads.
    Thread(PortId, ThreadNews),
    /// Control has written what cannot be into the rings, which is not read any further: it has to be replaced. What it was, for the log.
    ControlBroke(String),
    /// A line for the log: the switch writes none itself.
    Log(LogLine),
}
