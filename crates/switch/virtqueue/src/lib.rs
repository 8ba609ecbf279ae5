//! Virtqueues: split and packed rings (virtio 1.2 §2.7 and §2.8), the device side and the driver side.
//!
//! The device side is what the switch is to a guest; the driver side is what an uplink process (or a test) is to the
//! switch. Everything a driver writes is read once, checked, and never trusted again (design rule 3).

mod chain;
#[cfg(feature = "dma")]
mod dma;
#[cfg(any(test, feature = "driver"))]
pub mod driver;
mod error;
mod journal;
mod packed;
mod patience;
mod position;
mod queue;
mod receive_buffers;
mod ring;
mod setup;
mod shares;
mod split;

pub use chain::{BURST, Chain, Chains, MAX_CHAINS, MAX_PIECES, PREFETCH, Pieces};
pub use error::QueueError;
pub use journal::{JOURNAL_BYTES, Journal};
pub use patience::{Ahead, Patience, SenderPatience, Shortage};
pub use queue::{Queue, QueueGuard, QueueStatus, StartedQueue};
pub use receive_buffers::{ReceiveBuffers, Reserved};
pub use ring::Ring;
pub use setup::{QueueSetup, feature};
pub use shares::{AHEAD, Shares, cost};

/// The set of the `n`th of a burst's packets alone. A burst has as many as a word has bits, so sets of them are words.
#[inline]
pub const fn bit(n: usize) -> u64 {
    1 << (n & 63)
}

/// Descriptor flag: another descriptor follows (split: at `next`; packed: in the next slot).
pub const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes, the driver reads.
pub const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer holds a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;
