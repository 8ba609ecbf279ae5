//! The switches under comparison, started on sockets to which they connect.

pub mod dpdk_vhost;
pub mod lasthop;
pub mod ovs;

use crate::stop::Outcome;

/// Processor time a switch took between two moments, all its processes together, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    /// All of it.
    pub cpu_ns: f64,
    /// Without polls that found nothing, where the switch tells them apart; otherwise all of it.
    pub busy_ns: f64,
}

/// A running switch. Dropping it ends it.
pub trait Switch {
    /// The measurement begins.
    fn begin(&mut self) -> Outcome<()>;

    /// What it has spent since it began; `packets` went through.
    fn spent(&mut self, packets: f64) -> Outcome<Spent>;
}
