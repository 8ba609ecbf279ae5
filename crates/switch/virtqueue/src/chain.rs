//! Descriptor chains once they have been checked.

use crate::{DESC_NEXT, DESC_WRITE, QueueError};
use arrayvec::ArrayVec;
use lasthop_guestmem::{AccessError, GuestMemory, GuestSlice, Tagged};
use std::ops::{Deref, Range};

/// Most chains taken from a guest at once.
pub const BURST: usize = 64;

/// How many chains before its turn the memory of one is asked for: what other cores have written takes as long to come as
/// some packets take to be moved, and all at once would be more than a core can wait for.
pub const PREFETCH: usize = 8;

/// Most chains that one frame may be spread over, or that may be held at once.
pub const MAX_CHAINS: usize = 256;

/// Most pieces of memory in all chains of a burst, and so in one chain. Twice the longest chain that drivers build
/// (1024 descriptors), because a buffer that crosses from one region into another counts twice.
pub const MAX_PIECES: usize = 2048;

/// Longest chain, in descriptors.
const LONGEST: usize = 1024;

/// Most descriptors that are walked in one go and hold nothing, before another chain is begun: empty ones, and those of chains
/// that go back unread. With the chain that is being walked they are twice as many at most.
pub(crate) const MAX_WASTED: usize = 1024;

/// One chain: a piece of memory, or some of those in [`Chains::pieces`]. In two words, because a burst's are written and read for each
/// packet; its number is what the driver knows it by: in a split ring the index of the head descriptor, in a packed one the buffer id.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'m>(pub(crate) Tagged<'m>);

/// In the form of a chain that is not one piece: it goes back to the driver unread.
const BAD: u16 = 1 << 14;
/// The rest of it: how many ring slots it takes, less one. At most [`LONGEST`].
const MORE_SLOTS: u16 = 0x3ff;

/// Chains and the memory they name. Reused from burst to burst; lives on the stack.
#[derive(Debug)]
pub struct Chains<'m> {
    /// The chains, in the order in which the driver made them available.
    pub list: ArrayVec<Chain<'m>, MAX_CHAINS>,
    /// The memory of those that are not one piece, and of nothing else.
    pub pieces: ArrayVec<GuestSlice<'m>, MAX_PIECES>,
    /// Descriptors that were walked and hold nothing, since there are these chains, or the pieces of what was walked in vain, if those are more.
    pub(crate) wasted: usize,
    /// The same of chains behind these, that are not taken yet ([`Ring::ask_ahead`](crate::Ring)).
    pub(crate) ahead: usize,
    /// Of which there may be so many before another chain is walked.
    pub(crate) most: usize,
    /// The next chain stays in its ring until an address of it is translated, which has been asked for.
    pub asked: bool,
}

impl Default for Chains<'_> {
    fn default() -> Self {
        Self { list: ArrayVec::new(), pieces: ArrayVec::new(), wasted: 0, ahead: 0, most: MAX_WASTED, asked: false }
    }
}

impl<'m> Chains<'m> {
    /// Descriptors that were walked for nothing: they hold no bytes, their chains go back unread, or wait for the translation of an address. Of the
    /// latter, and of those that are only looked at ahead of their turn, each page counts. A driver may make as many as it
    /// likes, and they take time: once there are too many no further chain is walked.
    #[inline]
    pub fn wasted(&self) -> usize {
        self.wasted + self.ahead
    }

    /// So many that no further chain is walked.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.wasted >= self.most
    }

    /// Forgets all chains but what it took to walk them.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        self.list.clear();
        self.pieces.clear();
    }

    /// The memory of one chain, in order.
    #[inline]
    pub fn pieces(&self, chain: &Chain<'m>) -> Pieces<'_, 'm> {
        match chain.0.slice() {
            Some(piece) => Pieces::One([piece]),
            None => Pieces::Many(chain.range().and_then(|range| self.pieces.get(range)).unwrap_or(&[])),
        }
    }

    /// Asks the processor for the memory of the `n`th chain, if there is one, unless it was walked: that has asked already.
    #[inline]
    pub fn prefetch(&self, n: usize, to_write: bool) {
        if let Some(chain) = self.list.get(n) {
            chain.prefetch(to_write);
        }
    }

    /// Puts the memory of some chains side by side; false if it is too many pieces.
    #[inline]
    pub(crate) fn join(&self, chains: Range<usize>, out: &mut ArrayVec<GuestSlice<'m>, MAX_PIECES>) -> bool {
        out.clear();
        let chains = self.list.get(chains).unwrap_or(&[]);
        chains.iter().all(|chain| out.try_extend_from_slice(&self.pieces(chain)).is_ok())
    }

    /// No room for a chain of any length that drivers build, or enough walked for nothing.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.list.is_full() || self.pieces.len() + LONGEST > MAX_PIECES || self.is_spent()
    }

    /// Starts a chain all of whose descriptors have to point one way. The caller checked `is_full`.
    #[inline]
    pub(crate) fn begin(&mut self, memory: &'m GuestMemory, device_writes: bool) -> ChainBuilder<'_, 'm> {
        ChainBuilder { first: self.pieces.len(), chains: self, memory, device_writes, len: 0, walked: 0, bad: false }
    }
}

impl<'m> Chain<'m> {
    /// Its memory, if it is one piece.
    #[inline(always)]
    pub fn single(&self) -> Option<GuestSlice<'m>> {
        self.0.slice()
    }

    /// Bytes in all its pieces.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> u32 {
        self.0.len()
    }

    /// A descriptor points the wrong way (device-writable where the device reads, or the reverse), or the chain has too
    /// many pieces: it goes back to the driver unread.
    #[inline]
    pub fn is_bad(&self) -> bool {
        self.0.form() & BAD != 0
    }

    /// Asks the processor for its memory, if it is one piece: a chain that was walked has asked already.
    #[inline(always)]
    pub fn prefetch(&self, to_write: bool) {
        self.0.prefetch(to_write);
    }

    /// What the driver knows it by.
    #[inline(always)]
    pub(crate) fn id(&self) -> u16 {
        self.0.id()
    }

    /// Ring slots it takes (always 1 in a split ring's available ring).
    #[inline(always)]
    pub(crate) fn slots(&self) -> u16 {
        (self.0.form() & MORE_SLOTS) + 1
    }

    /// Which pieces are its own, if it is not one.
    fn range(&self) -> Option<Range<usize>> {
        let number = self.0.number()? as usize;
        let (first, count) = (number & 0xffff, number >> 16);
        Some(first..first + count)
    }
}

/// The memory of a chain, in order.
#[derive(Clone, Copy, Debug)]
pub enum Pieces<'a, 'm> {
    /// It is one piece.
    One([GuestSlice<'m>; 1]),
    /// It is several, or none.
    Many(&'a [GuestSlice<'m>]),
}

impl<'m> Deref for Pieces<'_, 'm> {
    type Target = [GuestSlice<'m>];

    #[inline]
    fn deref(&self) -> &[GuestSlice<'m>] {
        match self {
            Self::One(piece) => piece,
            Self::Many(pieces) => pieces,
        }
    }
}

/// A chain in the making.
#[derive(Debug)]
pub(crate) struct ChainBuilder<'c, 'm> {
    chains: &'c mut Chains<'m>,
    memory: &'m GuestMemory,
    pub(crate) device_writes: bool,
    first: usize,
    len: u32,
    walked: usize,
    bad: bool,
}

impl<'m> ChainBuilder<'_, 'm> {
    /// Adds one descriptor's buffer.
    #[inline]
    pub(crate) fn add(&mut self, descriptor: &Descriptor) -> Result<(), QueueError> {
        let &Descriptor { mut addr, len, flags, .. } = descriptor;
        self.walked += 1;
        let sum = self.len.checked_add(len);
        self.len = sum.unwrap_or(self.len);
        self.bad |= sum.is_none() || (flags & DESC_WRITE != 0) != self.device_writes;
        let mut left = len as usize;
        if addr.checked_add(u64::from(len)).is_none() {
            return Err(QueueError::Buffer(AccessError { addr, len: u64::from(len), asked: None }));
        }
        loop {
            let piece = self.memory.piece_for(addr, left, self.device_writes).map_err(QueueError::buffer)?;
            if !piece.is_empty() && !self.bad && self.chains.pieces.try_push(piece).is_err() {
                self.bad = true;
            }
            if self.bad {
                // Nobody will look at its memory, which may lie in hundreds of regions more.
                return Ok(());
            }
            piece.prefetch(self.device_writes);
            left -= piece.len();
            addr += piece.len() as u64;
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// The table that an indirect descriptor names, and its entries; `allowed` says whether there may be one at this place.
    pub(crate) fn table(&self, descriptor: &Descriptor, allowed: bool) -> Result<(GuestSlice<'m>, u32), QueueError> {
        let &Descriptor { addr, len, flags, .. } = descriptor;
        if !allowed || flags & DESC_NEXT != 0 || len == 0 || !len.is_multiple_of(16) {
            return Err(QueueError::Indirect(len));
        }
        Ok((self.memory.slice_for(addr, len as usize, false).map_err(QueueError::buffer)?, len / 16))
    }

    /// Ends the chain, whose id and slots are known now; returns the slots. Of one that breaks the ring nothing is left.
    #[inline]
    pub(crate) fn end(self, walked: Result<(u16, u16), QueueError>) -> Result<u16, QueueError> {
        let Self { chains, first, len, walked: descriptors, bad, .. } = self;
        let pieces = chains.pieces.len() - first;
        if bad || walked.is_err() {
            chains.pieces.truncate(first);
        }
        chains.wasted += descriptors.max(pieces) - (chains.pieces.len() - first);
        let (id, slots) = walked?;
        let chain = match chains.pieces.get(first..).unwrap_or(&[]) {
            [piece] if slots == 1 && !bad => Tagged::of(*piece, id),
            _ => None,
        };
        let several = || {
            let number = first as u64 | ((chains.pieces.len() - first) as u64) << 16;
            let form = (slots.wrapping_sub(1) & MORE_SLOTS) | if bad { BAD } else { 0 };
            Tagged::hollow(number, len, id, form)
        };
        let chain = Chain(chain.unwrap_or_else(several));
        let _ = chains.list.try_push(chain);
        Ok(slots)
    }
}

/// A descriptor, split or packed, as it was read: once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    /// Split: next descriptor. Packed: buffer id.
    pub(crate) next_or_id: u16,
}

impl Descriptor {
    /// Split layout (§2.7.5): address, length, flags, next.
    #[inline]
    pub(crate) fn split((addr, len, last): (u64, u32, u32)) -> Self {
        Self { addr, len, flags: last as u16, next_or_id: (last >> 16) as u16 }
    }

    /// Packed layout (§2.8.5): address, length, id, flags.
    #[inline]
    pub(crate) fn packed((addr, len, last): (u64, u32, u32)) -> Self {
        Self { addr, len, flags: (last >> 16) as u16, next_or_id: last as u16 }
    }

    /// The three words of a table's entry.
    #[inline]
    pub(crate) fn words(table: &GuestSlice<'_>, index: u32) -> (u64, u32, u32) {
        let at = index as usize * 16;
        let (addr, rest) = if table.is_aligned(8) {
            (table.load_u64(at), table.load_u64(at + 8))
        } else {
            // Rings are aligned; an indirect table need not be.
            let mut bytes = [0; 16];
            table.read(at, &mut bytes);
            let word = u128::from_le_bytes(bytes);
            (word as u64, (word >> 64) as u64)
        };
        (addr, rest as u32, (rest >> 32) as u32)
    }
}
