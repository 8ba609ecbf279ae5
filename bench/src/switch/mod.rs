//! The switches under comparison, started on sockets to which they connect.

pub mod bridge_tap;
pub mod dpdk_vhost;
pub mod driven;
pub mod lasthop;
pub mod ovs;
pub mod tc;
pub mod uplink;

use crate::acl::List;
use lasthop_harness::stop::Outcome;
use uplink::Uplink;

/// Processor time a switch took between two moments, all its processes together, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    /// All of it.
    pub cpu_ns: f64,
    /// Without polls that found nothing, where the switch tells them apart; otherwise all of it.
    pub busy_ns: f64,
    /// On cycles that nobody else wanted.
    pub idle_ns: f64,
}

/// No more than so much goes from one port to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Who sends, by number from 0.
    pub from: usize,
    /// Who receives; nobody else sends to it.
    pub to: usize,
    /// Bytes a second.
    pub bytes: u64,
}

impl Bound {
    /// Bytes that may go at once: a fiftieth of a second, and as much as the longest packets need.
    pub fn burst(self) -> u64 {
        (self.bytes / 50).max(1 << 18)
    }
}

/// A part of what an uplink takes that is one port's whatever the others send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// By number from 0.
    pub port: usize,
    /// What it gets at least while it has packets, in bits a second.
    pub least: u64,
    /// What the uplink takes of all, in bits a second.
    pub whole: u64,
}

/// What a switch is to be besides its ports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// Frames up to 64 KiB go through, also those that are to be cut later.
    pub large: bool,
    /// Queue pairs of each port.
    pub queues: u16,
    /// Guests are behind IOMMUs.
    pub translated: bool,
    /// An access list for everything that enters.
    pub list: Option<&'a List>,
    /// Bounds of what goes to some ports.
    pub police: &'a [Bound],
    /// What a port is to have of the way out.
    pub promise: Option<Promise>,
    /// A way out, beside the ports.
    pub uplink: Option<Uplink<'a>>,
}

/// A running switch. Dropping it ends it.
pub trait Switch {
    /// The measurement begins.
    fn begin(&mut self) -> Outcome<()>;

    /// What it has spent since it began; `packets` went through.
    fn spent(&mut self, packets: f64) -> Outcome<Spent>;

    /// Memory of its own, in KiB: nothing that is shared with guests, and no huge pages.
    fn memory_kib(&self) -> u64;

    /// Processor time so far of the processes and threads that read what front-ends say, in nanoseconds.
    fn told_ns(&self) -> u64 {
        0
    }

    /// All its processes.
    fn pids(&self) -> Vec<u32>;

    /// The process that moves packets.
    fn forwarder(&self) -> u32 {
        self.pids().first().copied().unwrap_or(0)
    }

    /// How often its threads have gone to sleep, which is how often they wake up (proc(5), /proc/PID/task/TID/status). Threads
    /// that have ended are not counted.
    fn wake_ups(&self) -> u64 {
        let tasks = self.pids().into_iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
        let count = |task: std::fs::DirEntry| -> Option<u64> {
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
        };
        tasks.flatten().filter_map(Result::ok).filter_map(count).sum()
    }

    /// Whether it polls: then what a packet costs is its busy time.
    fn polls(&self) -> bool {
        false
    }

    /// Packets from the network so far by the uplink's shared queue, and by those that are kept for ports; nothing where there are no several
    /// queues.
    fn by_queues(&self) -> Option<[u64; 2]> {
        None
    }

    /// The process that does nothing but serve the uplink, if it is one of its own.
    fn uplink(&self) -> Option<u32> {
        None
    }
}
