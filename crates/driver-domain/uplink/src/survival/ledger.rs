//! Who has which piece of a UMEM: written into the shared memory, so that the next process knows it when this one dies at any
//! moment. The kernel goes on with the sockets, so what it has must be left to it, and what it does not have must not be lost.
//!
//! A piece is noted as the kernel's, with the place in the ring that it is put into, before it is put there, and struck out
//! when it has been read back from a ring. Whether a note came true is seen by how far the kernel was shown that ring.

use lasthop_guestmem::{AccessError, GuestMemory, GuestSlice, PinnedSlice};
use std::sync::Arc;

/// Bytes for which there is one entry: no buffer and no slot is shorter.
const UNIT: usize = 2048;
/// Bytes of an entry.
const ENTRY: usize = 8;

/// Who has a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This process, or the switch.
    Us,
    /// The kernel, to receive into, if it has seen this entry of the fill ring.
    Fill(u32),
    /// The kernel, to send from, if it has seen this entry of the ring of what is to be sent.
    Send(u32),
}

/// The ledger.
#[derive(Debug)]
pub struct Ledger {
    entries: PinnedSlice<8>,
}

impl Ledger {
    /// Bytes that it needs for so many bytes of memory.
    pub fn bytes(memory: u64) -> u64 {
        memory.div_ceil(UNIT as u64) * ENTRY as u64
    }

    /// The one at `addr` for the `len` bytes that the offsets are of.
    pub fn new(memory: &Arc<GuestMemory>, addr: u64, len: u64) -> Result<Self, AccessError> {
        let bytes = Self::bytes(len) as usize;
        Ok(Self { entries: PinnedSlice::new(memory, addr, bytes)? })
    }

    /// Notes who has the piece that begins in this unit.
    pub fn note(&self, offset: usize, holder: Holder) {
        let value = match holder {
            Holder::Us => 0,
            Holder::Fill(at) => 1 << 32 | u64::from(at),
            Holder::Send(at) => 2 << 32 | u64::from(at),
        };
        self.entries.store_u64(offset / UNIT * ENTRY, value);
    }

    /// Who had it last.
    pub fn holder(&self, offset: usize) -> Holder {
        let slice: GuestSlice<'_> = self.entries.get();
        let value = slice.load_u64(offset / UNIT * ENTRY);
        match value >> 32 {
            1 => Holder::Fill(value as u32),
            2 => Holder::Send(value as u32),
            _ => Holder::Us,
        }
    }

    /// Whether the kernel has it: by the ledger, and by how many entries of its rings it was ever shown.
    pub fn is_held(&self, offset: usize, filled: u32, sent: u32) -> bool {
        let shown = |at: u32, until: u32| until.wrapping_sub(at) as i32 > 0;
        match self.holder(offset) {
            Holder::Us => false,
            Holder::Fill(at) => shown(at, filled),
            Holder::Send(at) => shown(at, sent),
        }
    }
}

/// Notes it if there is a ledger.
pub fn note(ledger: Option<&Ledger>, offset: usize, holder: Holder) {
    if let Some(ledger) = ledger {
        ledger.note(offset, holder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_was_not_shown_it_does_not_have() {
        let memory = Arc::new(GuestMemory::anonymous(1 << 16).unwrap());
        let ledger = Ledger::new(&memory, 4096, 20 * 2048).unwrap();
        assert_eq!(Ledger::bytes(20 * 2048), 160);
        for (unit, holder) in
            [Holder::Us, Holder::Fill(7), Holder::Send(9), Holder::Fill(u32::MAX)].into_iter().enumerate()
        {
            ledger.note(unit * UNIT + 300, holder);
            assert_eq!(ledger.holder(unit * UNIT), holder);
        }
        assert!(!ledger.is_held(0, 100, 100));
        assert!(!ledger.is_held(UNIT, 7, 100) && ledger.is_held(UNIT, 8, 0));
        assert!(!ledger.is_held(2 * UNIT, 100, 9) && ledger.is_held(2 * UNIT + 1, 0, 10));
        // Numbers run over.
        assert!(ledger.is_held(3 * UNIT, 0, 0) && !ledger.is_held(3 * UNIT, u32::MAX, 0));
        ledger.note(UNIT, Holder::Us);
        assert!(!ledger.is_held(UNIT, 8, 0));
        // Beyond its end there is nothing to be noted.
        ledger.note(1 << 20, Holder::Fill(0));
        assert_eq!(ledger.holder(1 << 20), Holder::Us);
    }
}
