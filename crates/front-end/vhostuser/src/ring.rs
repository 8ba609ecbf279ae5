//! One vring as the front-end has described it, and its state (specification, "Ring states");
//! docs/architecture.md has a picture of them.
//!
//! | state | NUM, ADDR, BASE with a new value | KICK | memory changes | GET_VRING_BASE, resets |
//! |---|---|---|---|---|
//! | Stopped | taken | Running, Waiting or Failed | – | – |
//! | Waiting | taken, tried again | tried again | tried again | Stopped |
//! | Running | refused | new kick descriptor | addresses looked up again: Running or Failed | Stopped |
//! | Failed | taken, tried again | tried again | tried again | Stopped |
//!
//! Where the guest's IOMMU translates, a ring also waits for its pages to be told. An invalidation that covers a running ring has it *rest*: it stays Running, the
//! switch has a dummy in its place, and it goes on when its pages are told again; it becomes Failed if the front-end refuses them.
//!
//! "Resets" are RESET_OWNER, RESET_DEVICE, SET_STATUS 0 and the end of the connection. Whether a ring is enabled is kept
//! beside its state, as the specification asks: QEMU enables rings before it describes them. BASE must come before KICK;
//! the other order would start the ring at a place it then leaves.
//!
//! The specification starts a ring at the first kick rather than at SET_VRING_KICK. Starting at the message is what
//! back-ends do that resume after a restart: packets may wait whose kick went to the process before.

use crate::message::VringAddr;
use lasthop_sys::{Foreign, PeerEvent};
use lasthop_virtqueue::QueueSetup;

/// What a ring is doing. See the table in the module's source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingState {
    /// Nothing is processed.
    #[default]
    Stopped,
    /// Kicked, but size, addresses or memory are missing.
    Waiting,
    /// Started.
    Running,
    /// What the front-end described is no ring, or the guest broke it.
    Failed,
}

/// What a front-end has said about one ring.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// SET_VRING_NUM; 0 before.
    pub(crate) size: u16,
    /// SET_VRING_ADDR.
    pub(crate) addr: Option<VringAddr>,
    /// SET_VRING_BASE, or where it stopped.
    pub(crate) base: u32,
    /// SET_VRING_ENABLE.
    pub(crate) enabled: bool,
    pub(crate) state: RingState,
    /// How it was started.
    pub(crate) setup: Option<QueueSetup>,
    /// It runs, and its memory has been revoked: it goes on when that is translated again.
    pub(crate) resting: bool,
    /// How often its guest was heard to fill it since it has started or gone on.
    pub(crate) fills: u8,
    /// SET_VRING_KICK of a ring that packets go to, to hear that its guest has filled it. The switch has found that it is an eventfd.
    pub(crate) kick: Option<Foreign>,
    /// SET_VRING_KICK of a ring that packets come from, to wake it ourselves.
    pub(crate) wake: Option<PeerEvent>,
    /// SET_VRING_CALL, to tell another switch of it.
    pub(crate) call: Option<Foreign>,
    /// SET_VRING_ERR, to tell another switch of it.
    pub(crate) err: Option<Foreign>,
}

/// Where a packed ring goes on, from SET_VRING_BASE's number: bits 0 to 15 say where the device takes, 16 to 31 where
/// it uses, each an index with its wrap counter. What was taken and not used is taken again, so the latter counts. DPDK's
/// virtio-user and front-ends built on the `vhost` crate send only the lower half.
pub(crate) fn packed_base(base: u32) -> u32 {
    let used = if base >> 16 == 0 { base & 0xffff } else { base >> 16 };
    used << 16 | used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_rings_resume_where_they_used() {
        assert_eq!(packed_base(0x8000_8000), 0x8000_8000, "QEMU at first start");
        assert_eq!(packed_base(0x0000_8000), 0x8000_8000, "virtio-user at first start");
        assert_eq!(packed_base(0x8003_8007), 0x8003_8003, "four in flight");
        assert_eq!(packed_base(0x0000_0005), 0x0005_0005);
    }
}
