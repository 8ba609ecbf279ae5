//! What a driver can do wrong with a ring.

use lasthop_guestmem::AccessError;

/// Why a ring cannot be used any further until the driver resets it. The text is what `lasthop port list` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum QueueError {
    #[error("ring size {0} is not allowed (split: a power of two, both: 1 to 32768)")]
    Size(u16),
    #[error("ring memory: {0}")]
    RingMemory(AccessError),
    #[error("ring address {0:#x} is not aligned")]
    Alignment(u64),
    #[error("ring base {0:#x} lies outside the ring")]
    Base(u32),
    #[error("available index {driver} is more than {size} ahead of {device}")]
    AvailableJump { driver: u16, device: u16, size: u16 },
    #[error("descriptor {index} is beyond the table's {entries} entries")]
    DescriptorIndex { index: u32, entries: u32 },
    #[error("descriptor chain is longer than its table (a loop?)")]
    ChainTooLong,
    #[error("buffer: {0}")]
    Buffer(AccessError),
    #[error("the translation of an address has been asked for")]
    Asked,
    #[error("malformed indirect descriptor (table of {0} bytes)")]
    Indirect(u32),
    #[error("guest memory disappeared: its backing file was truncated")]
    MemoryFault,
    #[error("the DMA engine hangs in the middle of a copy; the front-end has to connect anew")]
    Dma,
}

impl QueueError {
    /// Of a buffer's address.
    pub(crate) fn buffer(error: AccessError) -> Self {
        if error.asked == Some(true) { Self::Asked } else { Self::Buffer(error) }
    }
}
