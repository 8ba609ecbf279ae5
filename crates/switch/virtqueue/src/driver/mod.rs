//! The driver side of a ring: what a guest's kernel is to the switch, and what our own uplinks, load generator and
//! tests are. It writes ring memory as virtio 1.2 §2.7 and §2.8 ask of a driver, keeps all its bookkeeping in private
//! memory, allocates nothing after [`DriverRing::new`], and does not believe the device either: whatever the device
//! writes is read once and checked.

mod net;
mod packed;
mod split;

pub use net::{NetConfig, NetDriver, NetError, NetQueue, VNET_HDR_LEN};

use crate::{Chains, DESC_NEXT, DESC_WRITE, QueueError, QueueSetup, ReceiveBuffers, feature};
use lasthop_guestmem::{GuestMemory, PinnedSlice};
use packed::PackedDriver;
use split::SplitDriver;
use std::sync::Arc;

/// A piece of a buffer: guest address and bytes.
pub type Piece = (u64, u32);

/// Tables for indirect descriptors, one per ring entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectTables {
    /// Guest address of the first, a multiple of 16.
    pub addr: u64,
    /// Descriptors in each.
    pub entries: u16,
}

/// Where a ring lies and what was negotiated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Entries.
    pub size: u16,
    /// Guest address of the descriptor table or, packed, of the descriptor ring.
    pub desc: u64,
    /// Of the available ring or, packed, of the driver's event suppression.
    pub driver: u64,
    /// Of the used ring or, packed, of the device's event suppression.
    pub device: u64,
    /// VIRTIO_F_RING_PACKED.
    pub packed: bool,
    /// VIRTIO_F_RING_EVENT_IDX.
    pub event_idx: bool,
    /// VIRTIO_F_IN_ORDER.
    pub in_order: bool,
    /// VIRTIO_F_RING_INDIRECT_DESC: buffers of several pieces go into a table if they fit.
    pub indirect: Option<IndirectTables>,
}

/// Parts of a ring that different sides write begin on cache lines of their own.
const LINE: u64 = 64;

impl RingLayout {
    /// The three parts one after another from `base` on, which is a multiple of 64; no feature negotiated.
    pub fn contiguous(base: u64, size: u16, packed: bool) -> Self {
        let n = u64::from(size);
        let driver = base + 16 * n.next_multiple_of(4);
        let device = driver + if packed { LINE } else { (6 + 2 * n).next_multiple_of(LINE) };
        Self { size, desc: base, driver, device, packed, event_idx: false, in_order: false, indirect: None }
    }

    /// Bytes that [`RingLayout::contiguous`] needs, a multiple of 64.
    pub fn bytes(size: u16, packed: bool) -> u64 {
        let device = if packed { LINE } else { (6 + 8 * u64::from(size)).next_multiple_of(LINE) };
        Self::contiguous(0, size, packed).device + device
    }

    /// What the device side has to be told. `base` is what [`DriverRing::base`] gives, `features` all that was negotiated.
    pub fn setup(&self, base: u32, features: u64) -> QueueSetup {
        let own = [
            (feature::PACKED, self.packed),
            (feature::EVENT_IDX, self.event_idx),
            (feature::IN_ORDER, self.in_order),
            (feature::INDIRECT, self.indirect.is_some()),
        ];
        let features = own.iter().filter(|(_, has)| *has).fold(features, |all, (feature, _)| all | feature);
        let &Self { size, desc, driver, device, .. } = self;
        QueueSetup { size, desc, driver, device, base, features }
    }
}

/// The ring has no room for the buffer now (never, if it has no piece at all or more pieces than the ring has entries).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring has no room for the buffer")]
pub struct Full;

/// What a device can do wrong with a ring. The ring is of no use afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// More used entries than there are buffers with the device.
    #[error("the device's used index {device} is too far ahead of {driver}")]
    UsedJump {
        /// What the device wrote.
        device: u16,
        /// Where we are.
        driver: u16,
    },
    /// A used entry names no buffer that could exist.
    #[error("the device used buffer {0}, which is beyond the ring")]
    Id(u32),
    /// A used entry names a buffer that the device does not have.
    #[error("the device used buffer {0}, which it did not have")]
    NotOutstanding(u32),
    /// IN_ORDER was negotiated, and the device broke it.
    #[error("the device used buffer {0} before its turn")]
    Order(u32),
    /// More bytes written than there were.
    #[error("the device says it wrote {written} bytes into a buffer of {room}")]
    Length {
        /// What the device says.
        written: u32,
        /// Writable bytes of the buffer.
        room: u32,
    },
}

/// The driver side of one ring. One thread at a time.
#[derive(Debug)]
pub struct DriverRing {
    ring: Either,
    broken: Option<DriverError>,
}

#[derive(Debug)]
enum Either {
    Split(SplitDriver),
    Packed(PackedDriver),
}

macro_rules! either {
    ($self:ident, $ring:ident => $call:expr) => {
        match &mut $self.ring {
            Either::Split($ring) => $call,
            Either::Packed($ring) => $call,
        }
    };
}

impl DriverRing {
    /// Zeroes the ring's memory and starts an empty ring there. Calls are enabled.
    pub fn new(layout: RingLayout, memory: Arc<GuestMemory>) -> Result<Self, QueueError> {
        let ring = if layout.packed {
            Either::Packed(PackedDriver::new(&layout, &memory)?)
        } else {
            Either::Split(SplitDriver::new(&layout, &memory)?)
        };
        Ok(Self { ring, broken: None })
    }

    /// Gives the device a buffer: it reads the pieces of the first list and writes those of the second. It sees nothing
    /// of it before [`DriverRing::publish`]. `token` comes back from [`DriverRing::poll_used`].
    #[inline]
    pub fn add(&mut self, readable: &[Piece], writable: &[Piece], token: u32) -> Result<(), Full> {
        either!(self, r => r.add(readable, writable, token))
    }

    /// Shows the device all that was added, at once; true if it wants to be kicked for it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        either!(self, r => r.publish())
    }

    /// The next buffer that the device is done with: its token and how many bytes of it were written. After an error
    /// every further call returns it again.
    #[inline]
    pub fn poll_used(&mut self) -> Result<Option<(u32, u32)>, DriverError> {
        if let Some(e) = self.broken {
            return Err(e);
        }
        let polled = either!(self, r => r.poll_used());
        if let Err(e) = polled {
            self.broken = Some(e);
        }
        polled
    }

    /// Asks the device to interrupt for the next used buffer. True if one is there already: then there may be no
    /// interrupt for it.
    pub fn enable_calls(&mut self) -> bool {
        either!(self, r => r.enable_calls())
    }

    /// Asks the device not to interrupt: we look by ourselves.
    pub fn disable_calls(&mut self) {
        either!(self, r => r.disable_calls())
    }

    /// Ring entries not in use.
    pub fn free(&self) -> u16 {
        match &self.ring {
            Either::Split(r) => r.free(),
            Either::Packed(r) => r.free(),
        }
    }

    /// Buffers with the device.
    pub fn outstanding(&self) -> u16 {
        match &self.ring {
            Either::Split(r) => r.outstanding(),
            Either::Packed(r) => r.outstanding(),
        }
    }

    /// Buffers added and not yet published.
    pub fn unpublished(&self) -> u16 {
        match &self.ring {
            Either::Split(r) => r.unpublished(),
            Either::Packed(r) => r.unpublished(),
        }
    }

    /// Where a device has to go on, as in SET_VRING_BASE: at the first buffer that it has not used. To be asked when
    /// `poll_used` has come to its end; 0 for a new split ring.
    pub fn base(&self) -> u32 {
        match &self.ring {
            Either::Split(r) => r.base(),
            Either::Packed(r) => r.base(),
        }
    }
}

/// What the driver remembers of a buffer, by split head descriptor or packed buffer id.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    token: u32,
    /// Bytes the device may write.
    room: u32,
    /// Ring entries it takes; 0 when it is not with the device.
    entries: u16,
    /// Split: last descriptor of its chain.
    last: u16,
    /// Next entry of the free list; split: next descriptor of the chain.
    link: u16,
    /// Number of the buffer, counted from the ring's start.
    number: u32,
}

/// Circular links: with IN_ORDER they stay as they are and entries are taken and freed round and round.
fn slots(size: u16) -> Box<[Slot]> {
    (0..size).map(|i| Slot { link: if i + 1 == size { 0 } else { i + 1 }, ..Slot::default() }).collect()
}

/// A ring part, checked to be aligned on our side too, and zeroed.
fn part(memory: &Arc<GuestMemory>, addr: u64, len: usize, align: usize) -> Result<PinnedSlice, QueueError> {
    let part = PinnedSlice::new(memory, addr, len).map_err(QueueError::RingMemory)?;
    if !part.get().is_aligned(align) {
        return Err(QueueError::Alignment(addr));
    }
    let zeroes = [0; 64];
    let mut at = 0;
    while at < len {
        at += part.get().part(at, len - at).write(0, &zeroes);
    }
    Ok(part)
}

/// The indirect tables of a ring.
#[derive(Debug)]
struct Tables {
    memory: PinnedSlice,
    addr: u64,
    entries: u16,
}

impl Tables {
    fn new(layout: &RingLayout, memory: &Arc<GuestMemory>) -> Result<Option<Self>, QueueError> {
        let Some(IndirectTables { addr, entries }) = layout.indirect else { return Ok(None) };
        let len = usize::from(layout.size) * usize::from(entries) * 16;
        Ok(Some(Self { memory: part(memory, addr, len, 16)?, addr, entries }))
    }

    /// Writes a buffer's pieces to table `index`; returns the table's address.
    #[inline]
    fn fill(&self, index: u16, readable: &[Piece], writable: &[Piece], packed: bool) -> u64 {
        let first = usize::from(index) * usize::from(self.entries) * 16;
        let (table, count) = (self.memory.get(), readable.len() + writable.len());
        for (i, (piece, write)) in pieces(readable, writable).enumerate() {
            let mut flags = if write { DESC_WRITE } else { 0 };
            let word = if packed {
                // §2.8.7: of the flags in a packed table only WRITE counts, and so does its order.
                word(piece.1, 0, flags)
            } else {
                if i + 1 < count {
                    flags |= DESC_NEXT;
                }
                word(piece.1, flags, if i + 1 < count { i as u16 + 1 } else { 0 })
            };
            table.store_u64(first + 16 * i, piece.0);
            table.store_u64(first + 16 * i + 8, word);
        }
        self.addr + first as u64
    }
}

/// The second half of a descriptor. Split: length, flags, next. Packed: length, id, flags.
#[inline]
fn word(len: u32, low: u16, high: u16) -> u64 {
    u64::from(len) | u64::from(low) << 32 | u64::from(high) << 48
}

/// All pieces, the readable ones first as §2.7.4.2 and §2.8.6 ask, and whether the device may write.
#[inline]
fn pieces<'p>(readable: &'p [Piece], writable: &'p [Piece]) -> impl Iterator<Item = (Piece, bool)> + 'p {
    readable.iter().map(|p| (*p, false)).chain(writable.iter().map(|p| (*p, true)))
}

/// Bytes the device may write.
#[inline]
fn room(writable: &[Piece]) -> u32 {
    writable.iter().fold(0, |sum, p| sum.saturating_add(p.1))
}

/// Whether a buffer of so many pieces goes into an indirect table.
#[inline]
fn indirect(tables: &Option<Tables>, count: usize) -> Option<&Tables> {
    tables.as_ref().filter(|t| count > 1 && count <= usize::from(t.entries))
}

/// IN_ORDER: used entries that the device skipped (§2.7.9): buffers up to this number are used, the last with the
/// length given, the others entirely.
#[derive(Clone, Copy, Debug)]
struct Batch {
    last: u32,
    len: u32,
}

impl<'m> ReceiveBuffers<'m> {
    /// The chains handed out last, alone.
    pub fn into_chains(mut self) -> Chains<'m> {
        self.chains.list.truncate(self.end);
        self.chains.list.drain(..self.first);
        self.chains
    }
}
