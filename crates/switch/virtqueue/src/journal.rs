//! What is known of a ring when the switch was killed in the middle of it: 16 bytes in memory that outlives the process.
//!
//! Guest memory does not say which burst was being delivered and would be a second time: it is noted before its first packet
//! is published anywhere, and if the note still stands at the next start, its chains are completed only. Nor does it say
//! where a packed ring stands, and QEMU (7.2) only knows the position it last got from GET_VRING_BASE.

use crate::position::Position;
use lasthop_guestmem::PinnedSlice;

/// Bytes of one ring's record.
pub const JOURNAL_BYTES: usize = 16;

/// First word: bits 0 to 15 the base the ring was started from, 16 to 31 its position, the top one that they are valid.
const VALID: u64 = 1 << 63;
/// Second word: bits 0 to 15 where the open burst begins, 16 to 31 its chains, 32 to 47 slots and 48 to 62 chains that
/// are being shown to the driver, the top one that it is open.
const OPEN: u64 = 1 << 63;

/// A ring's record. Two plain stores a burst; the process is killed between instructions, never within one.
#[derive(Debug)]
pub struct Journal(PinnedSlice);

/// A burst that was not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenBurst {
    pub(crate) begin: u16,
    /// Chains that may have been delivered.
    pub(crate) chains: u16,
    /// Of those, or else, the ones about to be marked used, and their slots.
    pub(crate) shown: u16,
    pub(crate) slots: u16,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) base: Position,
    pub(crate) position: Position,
    pub(crate) open: Option<OpenBurst>,
}

impl Journal {
    /// A record at 16 bytes of memory that is ours alone, 8-byte aligned.
    pub fn new(place: PinnedSlice) -> Self {
        Self(place)
    }

    /// What was noted last; `None` if nothing ever was.
    pub(crate) fn read(&self) -> Option<Record> {
        let place = self.0.get();
        let (first, second) = (place.load_u64(0), place.load_u64(8));
        let open = (second & OPEN != 0).then_some(OpenBurst {
            begin: second as u16,
            chains: (second >> 16) as u16,
            slots: (second >> 32) as u16,
            shown: (second >> 48) as u16 & 0x7fff,
        });
        (first & VALID != 0).then_some(Record {
            base: Position::from_bits(first as u16),
            position: Position::from_bits((first >> 16) as u16),
            open,
        })
    }

    /// The ring stands at `position` with nothing open; it was started from `base`.
    #[inline]
    pub(crate) fn close(&self, base: u16, position: u16) {
        let place = self.0.get();
        place.store_u64(0, u64::from(base) | u64::from(position) << 16 | VALID);
        place.store_u64(8, 0);
    }

    /// As if nothing had ever been noted.
    pub(crate) fn forget(&self) {
        let place = self.0.get();
        place.store_u64(0, 0);
        place.store_u64(8, 0);
    }

    /// From here on, until `close`, the burst may have been delivered.
    #[inline]
    pub(crate) fn open(&self, burst: OpenBurst) {
        let OpenBurst { begin, chains, slots, shown } = burst;
        let word = u64::from(begin) | u64::from(chains) << 16 | u64::from(slots) << 32 | u64::from(shown) << 48 | OPEN;
        self.0.get().store_u64(8, word);
    }
}

#[cfg(test)]
mod tests;
