//! The memory that the cable shares with both switches: one memfd, the same for both. Of each direction: the ring that the near switch fills,
//! the ring that the far switch reads, and the buffers that go round through both.

use crate::way::{End, Way};
use lasthop_guestmem::{GuestMemory, MapError, RegionSpec};
use lasthop_sys::EventFd;
use lasthop_virtqueue::QueueError;
use lasthop_virtqueue::driver::{DriverRing, RingLayout};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Entries of each ring, and buffers of each direction: all of a direction's buffers have room in either ring.
pub const RING: u16 = 1024;
/// Bytes of a buffer. A whole Ethernet frame fits; longer packets are spread over several, as in an uplink.
pub const BUFFER: u32 = 2048;
/// Where the memory lies for the switches, and where we say it lies in our own address space.
const GUEST_BASE: u64 = 0x1000_0000;
const USER_BASE: u64 = 0x7a00_0000_0000;
const PAGE: u64 = 4096;

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel refused.
    #[error("no shared memory: {0}")]
    Refused(#[from] Errno),
    /// It could not be mapped.
    #[error("no shared memory: {0}")]
    Map(#[from] MapError),
    /// A ring does not fit where it should.
    #[error("no ring: {0}")]
    Ring(#[from] QueueError),
}

/// The memory's file, and how it is described to a switch.
#[derive(Debug)]
pub struct SharedMemory {
    memfd: OwnedFd,
    region: RegionSpec,
}

impl SharedMemory {
    /// Makes it, and both directions in it: from the first switch to the second, and back. No buffer is shown to a switch yet.
    pub fn new() -> Result<(Self, [Way; 2]), MemoryError> {
        let ring = RingLayout::bytes(RING, false).next_multiple_of(PAGE);
        let buffers = u64::from(RING) * u64::from(BUFFER);
        let stride = 2 * ring + buffers;
        let size = 2 * stride;
        let memfd = lasthop_sys::memfd("lasthop-cable", size)?;
        let region = RegionSpec { guest_addr: GUEST_BASE, user_addr: USER_BASE, size, mmap_offset: 0 };
        let memory = Arc::new(GuestMemory::empty().with_region(region, &memfd)?);
        let end = |at: u64| -> Result<End, MemoryError> {
            let layout = RingLayout { event_idx: true, ..RingLayout::contiguous(at, RING, false) };
            let ring = DriverRing::new(layout, memory.clone())?;
            Ok(End { ring, layout, kick: EventFd::new()?, call: EventFd::new()? })
        };
        let way = |at: u64| -> Result<Way, MemoryError> {
            Ok(Way::new(memory.clone(), [end(at)?, end(at + ring)?], at + 2 * ring))
        };
        let ways = [way(GUEST_BASE)?, way(GUEST_BASE + stride)?];
        Ok((Self { memfd, region }, ways))
    }

    /// The file, and how it is to be described to a switch.
    pub fn region(&self) -> (RegionSpec, BorrowedFd<'_>) {
        (self.region, self.memfd.as_fd())
    }

    /// The address in our own address space, as vhost-user wants it, of a guest address.
    pub fn user_addr(guest_addr: u64) -> u64 {
        guest_addr - GUEST_BASE + USER_BASE
    }
}
