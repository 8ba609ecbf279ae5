//! What a driver can do wrong with a ring.

use lasthop_guestmem::AccessError;

/// The ring cannot be used any further until the driver resets it. The text is what `lasthop port list` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Ring size 0, above 32768, or not a power of two for a split ring.
    #[error("ring size {0} is not allowed (split: a power of two, both: 1 to 32768)")]
    Size(u16),
    /// A part of the ring is not in guest memory.
    #[error("ring memory: {0}")]
    RingMemory(AccessError),
    /// A part of the ring is not aligned as virtio asks.
    #[error("ring address {0:#x} is not aligned")]
    Alignment(u64),
    /// The base given at the start lies outside the ring.
    #[error("ring base {0:#x} lies outside the ring")]
    Base(u32),
    /// The driver's index is further ahead than the ring is long.
    #[error("available index {driver} is more than {size} ahead of {device}")]
    AvailableJump {
        /// What the driver wrote.
        driver: u16,
        /// Where we are.
        device: u16,
        /// Ring size.
        size: u16,
    },
    /// A descriptor index beyond its table.
    #[error("descriptor {index} is beyond the table's {entries} entries")]
    DescriptorIndex {
        /// The index.
        index: u32,
        /// Entries in the table.
        entries: u32,
    },
    /// More descriptors in one chain than the table has (a loop), or than [`crate::MAX_PIECES`].
    #[error("descriptor chain is longer than its table (a loop?)")]
    ChainTooLong,
    /// A buffer that is not in guest memory.
    #[error("buffer: {0}")]
    Buffer(AccessError),
    /// An indirect descriptor that was not negotiated, is nested, goes on with `next`, or whose table has an odd length.
    #[error("malformed indirect descriptor (table of {0} bytes)")]
    Indirect(u32),
    /// The file under guest memory was truncated.
    #[error("guest memory disappeared: its backing file was truncated")]
    MemoryFault,
}
