//! The memory that the switch and the uplink share: one memfd with rings and buffers, made by the uplink.
//!
//! The switch maps it like a guest's. Here it is mapped twice: once as [`GuestMemory`], through which rings and headers are
//! read and written, and once as an `Arena`, through which the kernel moves frames by system calls.

use crate::pair::{FromNetwork, Pair, Slots, ToNetwork};
use crate::room::{Arena, Notes};
use crate::survival::ledger::Ledger;
use crate::survival::probe::{Heard, Sieve};
use crate::survival::progress::{self, Progress};
use lasthop_guestmem::{GuestMemory, RegionSpec};
use lasthop_sys::EventFd;
use lasthop_virtqueue::QueueError;
use lasthop_virtqueue::driver::{DriverRing, RingLayout};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Where the memory lies for the switch, and where we say it lies in our own address space.
pub(crate) const GUEST_BASE: u64 = 0x1000_0000;
const USER_BASE: u64 = 0x7a00_0000_0000;
const PAGE: u64 = 4096;

/// Sizes of rings and buffers.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// Queue pairs.
    pub pairs: u16,
    /// Entries of every ring.
    pub ring: u16,
    /// Bytes of a buffer that the switch fills. 2 KiB, as the papers found: whole Ethernet frames fit, longer packets spread
    /// over several.
    pub buffer: u32,
    /// Bytes of a slot that the device fills: a whole packet, with room in front of it.
    pub slot: u32,
    /// Slots of every pair.
    pub slots: u16,
    /// The device uses the memory itself, so there is a [`Ledger`] of who has what.
    pub ledger: bool,
}

impl MemoryConfig {
    /// For a device that hands over packets of up to 64 KiB. Of a slot only those pages exist that a packet ever reached.
    pub fn whole_packets(pairs: u16) -> Self {
        Self { pairs, ring: 512, buffer: 2048, slot: 68 * 1024, slots: 256, ledger: false }
    }

    /// Bytes of a ring, of a pair's buffers, and of all that a pair has.
    fn bytes(&self) -> (u64, u64, u64) {
        let page = |bytes: u64| bytes.next_multiple_of(PAGE);
        let ring = page(RingLayout::bytes(self.ring, false));
        let buffers = page(u64::from(self.ring) * u64::from(self.buffer));
        (ring, buffers, 2 * ring + buffers + page(u64::from(self.slots) * u64::from(self.slot)))
    }

    /// The memory as it is described to the switch, and how much of it is the pairs'; behind that the ledger is.
    pub(crate) fn region(&self) -> (RegionSpec, u64) {
        let pairs = self.bytes().2 * u64::from(self.pairs);
        let size = pairs + if self.ledger { Ledger::bytes(pairs).next_multiple_of(PAGE) } else { 0 };
        (RegionSpec { guest_addr: GUEST_BASE, user_addr: USER_BASE, size, mmap_offset: 0 }, pairs)
    }

    /// Where a pair has what.
    pub(crate) fn places(&self, pair: u16) -> Places {
        let (ring, buffers, stride) = self.bytes();
        let at = GUEST_BASE + u64::from(pair) * stride;
        let layout = |at| RingLayout { event_idx: true, ..RingLayout::contiguous(at, self.ring, false) };
        let start = GUEST_BASE + 2 * ring + buffers;
        Places {
            to_network: layout(at),
            from_network: layout(at + ring),
            buffers: at + 2 * ring,
            slots: Slots { start, stride, pairs: self.pairs, count: self.slots, len: self.slot, pair },
        }
    }
}

/// Where a pair has what: guest addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub to_network: RingLayout,
    pub from_network: RingLayout,
    /// The first buffer that the switch fills.
    pub buffers: u64,
    pub slots: Slots,
}

/// The memory of a process that has ended, and what it has [noted](crate::survival::progress).
#[derive(Debug)]
pub struct KeptMemory {
    /// What it shared with the switch.
    pub memory: OwnedFd,
    /// What it did not.
    pub notes: OwnedFd,
}

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel refused.
    #[error("no shared memory: {0}")]
    Refused(#[from] Errno),
    /// It could not be mapped.
    #[error("no shared memory: {0}")]
    Map(#[from] lasthop_guestmem::MapError),
    /// A ring does not fit where it should.
    #[error("no ring: {0}")]
    Ring(#[from] QueueError),
}

/// One ring, for the connection: where it lies and how both sides wake each other.
#[derive(Debug)]
pub struct RingEnd {
    /// Where it lies.
    pub layout: RingLayout,
    /// We signal it when the switch is to look.
    pub kick: EventFd,
    /// The switch signals it when we are to look.
    pub call: EventFd,
}

/// The memory, and what the switch has to be told of it.
#[derive(Debug)]
pub struct SharedMemory {
    memfd: OwnedFd,
    notes: OwnedFd,
    region: RegionSpec,
    /// As virtio numbers them: `2n` is written by the switch, `2n + 1` read.
    pub rings: Vec<RingEnd>,
    /// Who has which piece, if the device uses the memory itself.
    pub ledger: Option<Arc<Ledger>>,
}

impl SharedMemory {
    /// Makes the memory and the queue pairs in it, their rings empty but for the buffers that the switch may fill. `kept`: the
    /// memory of a process that has ended; its rings are begun anew, and if the device has frames in it they stay empty until
    /// [`Pair::claim`]. Probes that come in go to `heard`.
    pub fn new(
        config: MemoryConfig,
        heard: &Arc<Heard>,
        kept: Option<KeptMemory>,
    ) -> Result<(Self, Vec<Pair>), MemoryError> {
        let (region, frames) = config.region();
        let (is_kept, total) = (kept.is_some(), region.size);
        let KeptMemory { memory: memfd, notes } = match kept {
            Some(kept) => kept,
            None => KeptMemory {
                memory: lasthop_sys::memfd("lasthop-uplink", total)?,
                notes: progress::create(config.pairs)?,
            },
        };
        let memory = Arc::new(GuestMemory::empty().with_region(region, &memfd)?);
        let arena = Arc::new(Arena::map(memfd.as_fd(), usize::try_from(total).unwrap_or(usize::MAX))?);
        let ledger = config.ledger.then(|| Ledger::new(&memory, GUEST_BASE + frames, frames).map(Arc::new));
        let ledger = ledger.transpose().map_err(|_| Errno::INVAL)?;
        let (mut rings, mut pairs) = (Vec::new(), Vec::new());
        for n in 0..config.pairs {
            let places = config.places(n);
            let mut ring = |layout| -> Result<(DriverRing, EventFd, EventFd), MemoryError> {
                let (kick, call) = (EventFd::new()?, EventFd::new()?);
                rings.push(RingEnd { layout, kick: kick.try_clone()?, call: call.try_clone()? });
                Ok((DriverRing::new(layout, memory.clone())?, kick, call))
            };
            let (receive, transmit) = (ring(places.to_network)?, ring(places.from_network)?);
            pairs.push(Pair {
                memory: memory.clone(),
                arena: arena.clone(),
                to_network: ToNetwork::new(receive, places.buffers, config.buffer, config.ring),
                from_network: FromNetwork::new(transmit, places.from_network, places.slots),
                sieve: Sieve::new(heard.clone()),
                progress: Progress::new(Notes::map(notes.as_fd(), n)?),
            });
        }
        if !is_kept || !config.ledger {
            pairs.iter_mut().for_each(|pair: &mut Pair| pair.claim(|_| false));
        }
        Ok((Self { memfd, notes, region, rings, ledger }, pairs))
    }

    /// What the next process takes over, as [`KeptMemory`] has it.
    pub fn to_keep(&self) -> [BorrowedFd<'_>; 2] {
        [self.memfd.as_fd(), self.notes.as_fd()]
    }

    /// The memory's file, and how it is to be described to the switch.
    pub fn region(&self) -> (RegionSpec, BorrowedFd<'_>) {
        (self.region, self.memfd.as_fd())
    }

    /// The address in our own address space, as vhost-user wants it, of a guest address.
    pub fn user_addr(&self, guest_addr: u64) -> u64 {
        guest_addr - GUEST_BASE + USER_BASE
    }
}
