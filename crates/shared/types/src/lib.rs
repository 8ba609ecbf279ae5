//! Words shared by every process of lasthop: port ids, drop reasons and counters.
//!
//! No I/O, no `unsafe`, no dependency on any other crate of the project.

mod counter;
mod drop;
mod line;
#[cfg(any(test, feature = "words"))]
mod words;

pub use counter::{CacheFigures, Counter, DropCounters, PortCounters, PortFigures, PortTotals};
pub use drop::{DROP_REASONS, DropReason};
pub use line::{Level, LogLine};

use serde::{Deserialize, Serialize};

/// Number of a port, given by the supervisor, unique for as long as `lasthop run` lives; 0 is never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortId(pub u32);

impl std::fmt::Display for PortId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What has become of a port's threads, of which it has one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadNews {
    /// The number of the one that there is; 0: there is none.
    pub thread: i32,
    /// Nanoseconds of processor time that those before it have used together.
    pub used_ns: u64,
    /// Why one that is to begin could not be started.
    pub refused: Option<String>,
}

/// Which of `count` equals a ring with this hash falls to: the upper half of a product, as good as a remainder, and cheaper.
pub fn fall_to(hash: u64, count: usize) -> usize {
    ((hash >> 32).wrapping_mul(count as u64) >> 32) as usize
}

/// The hash by which a ring that packets come from, by its index in the device, falls to one of the cores that poll.
pub fn polled_by(port: PortId, queue: u16) -> u64 {
    u64::from(port.0).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(queue) << 62)
}

/// In place of the CPU that polls a port's rings: none does, and its own thread looks after them.
pub const POLLED_NOWHERE: u16 = u16::MAX - 1;

/// Share of a port of which nothing is said: see `lasthop port set --weight`.
pub const DEFAULT_WEIGHT: u32 = 100;

/// Most queue pairs one port may have (virtio-net multi-queue).
pub const MAX_QUEUE_PAIRS: usize = 16;

/// Longest frame carried inside the host, in bytes, without the virtio-net header: a 64 KiB IP packet and its
/// link-layer headers with two VLAN tags.
pub const MAX_FRAME_LEN: usize = 65_535 + 14 + 8;
