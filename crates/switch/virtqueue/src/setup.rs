//! What a ring is started from, and where its parts lie.

use crate::QueueError;
use lasthop_guestmem::{GuestMemory, PinnedSlice};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Negotiated features that change a ring (virtio 1.2, §6).
#[allow(missing_docs)]
pub mod feature {
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PACKED: u64 = 1 << 34;
    /// Used entries are in order whatever was negotiated.
    pub const IN_ORDER: u64 = 1 << 35;
}

/// How a ring is to be started, as a session process asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSetup {
    /// Entries.
    pub size: u16,
    /// Guest physical address of the descriptor table or, packed, of the descriptor ring.
    pub desc: u64,
    /// Of the available ring or, packed, of the driver's event suppression.
    pub driver: u64,
    /// Of the used ring or, packed, of the device's event suppression.
    pub device: u64,
    /// From where on, as in SET_VRING_BASE.
    pub base: u32,
    /// All negotiated virtio feature bits: those of the ring, and those for whoever interprets the buffers.
    pub features: u64,
}

impl QueueSetup {
    pub(crate) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }
}

/// A part of a ring, aligned as the specification has it (§2.7, §2.8.10).
pub(crate) fn part<const ALIGN: usize>(
    memory: &Arc<GuestMemory>,
    addr: u64,
    len: usize,
) -> Result<PinnedSlice<ALIGN>, QueueError> {
    if !addr.is_multiple_of(ALIGN as u64) {
        return Err(QueueError::Alignment(addr));
    }
    PinnedSlice::new(memory, addr, len).map_err(QueueError::RingMemory)
}
