//! What a ring is started from, and where its parts lie.

use crate::QueueError;
use lasthop_guestmem::{GuestMemory, PinnedSlice};
use std::sync::Arc;

/// How a ring is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// VIRTIO_F_RING_PACKED.
    pub packed: bool,
    /// VIRTIO_F_RING_EVENT_IDX.
    pub event_idx: bool,
    /// VIRTIO_F_IN_ORDER. Used entries are in order whatever was negotiated.
    pub in_order: bool,
    /// VIRTIO_F_RING_INDIRECT_DESC.
    pub indirect: bool,
    /// All negotiated virtio feature bits, for whoever interprets the buffers.
    pub features: u64,
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
