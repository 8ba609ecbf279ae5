//! The switches under comparison, started on sockets to which they connect.

pub mod dpdk_vhost;
pub mod lasthop;
pub mod ovs;

use crate::acl::List;
use crate::stop::Outcome;

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

/// What a switch is to be besides its ports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// Frames up to 64 KiB go through, also those that are to be cut later.
    pub large: bool,
    /// Queue pairs of each port.
    pub queues: u16,
    /// An access list for everything that enters.
    pub list: Option<&'a List>,
}

/// A running switch. Dropping it ends it.
pub trait Switch {
    /// The measurement begins.
    fn begin(&mut self) -> Outcome<()>;

    /// What it has spent since it began; `packets` went through.
    fn spent(&mut self, packets: f64) -> Outcome<Spent>;

    /// Memory of its own, in KiB: nothing that is shared with guests, and no huge pages.
    fn memory_kib(&self) -> u64;
}
