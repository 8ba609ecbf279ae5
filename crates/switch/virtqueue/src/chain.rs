//! Descriptor chains once they have been checked.

use crate::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, QueueError};
use arrayvec::ArrayVec;
use lasthop_guestmem::{AccessError, GuestMemory, GuestSlice};

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
pub(crate) const MAX_IDLE: usize = 1024;

/// One chain: a piece of memory, or some of those in [`Chains::pieces`].
#[derive(Clone, Copy, Debug)]
pub struct Chain<'m> {
    /// Its memory, if it is one piece: then `first` only counts in a ring that the device writes to.
    piece: GuestSlice<'m>,
    /// Split: index of the head descriptor. Packed: buffer id.
    pub(crate) id: u16,
    /// Ring slots it takes (always 1 in a split ring's available ring).
    pub(crate) slots: u16,
    first: u16,
    count: u16,
    /// Bytes in all its pieces.
    pub len: u32,
    /// A descriptor points the wrong way (device-writable where the device reads, or the reverse), or the chain has too
    /// many pieces: it goes back to the driver unread.
    pub bad: bool,
}

/// Chains and the memory they name. Reused from burst to burst; lives on the stack.
#[derive(Debug)]
pub struct Chains<'m> {
    /// The chains, in the order in which the driver made them available.
    pub list: ArrayVec<Chain<'m>, MAX_CHAINS>,
    pieces: ArrayVec<GuestSlice<'m>, MAX_PIECES>,
    /// Descriptors that were walked and hold nothing, since there are these chains.
    idle: usize,
    /// Of which there may be so many before another chain is walked.
    pub(crate) most_idle: usize,
}

impl Default for Chains<'_> {
    fn default() -> Self {
        Self { list: ArrayVec::new(), pieces: ArrayVec::new(), idle: 0, most_idle: MAX_IDLE }
    }
}

impl<'m> Chains<'m> {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Descriptors that were walked for nothing: they hold no bytes, or their chains go back unread. A driver may make as many as it
    /// likes, and they take time: once there are too many no further chain is walked.
    #[inline]
    pub fn idle(&self) -> usize {
        self.idle
    }

    /// So many that no further chain is walked.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.idle >= self.most_idle
    }

    /// Forgets all chains.
    #[inline]
    pub fn clear(&mut self) {
        self.idle = 0;
        self.make_room();
    }

    /// Forgets all chains but what it took to walk them.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        self.list.clear();
        self.pieces.clear();
    }

    /// The memory of one chain, in order.
    #[inline]
    pub fn pieces<'a>(&'a self, chain: &'a Chain<'m>) -> &'a [GuestSlice<'m>] {
        if chain.count == 1 {
            return std::slice::from_ref(&chain.piece);
        }
        let first = usize::from(chain.first);
        self.pieces.get(first..first + usize::from(chain.count)).unwrap_or(&[])
    }

    /// Asks the processor for the memory of the `n`th chain, if there is one, unless it was walked: that has asked already.
    #[inline]
    pub fn prefetch(&self, n: usize, to_write: bool) {
        if let Some(piece) = self.list.get(n).and_then(Chain::single) {
            piece.prefetch(to_write);
        }
    }

    /// The memory of some chains, that the device writes to, one behind the other.
    #[inline]
    pub(crate) fn span(&self, chains: &[Chain<'m>]) -> &[GuestSlice<'m>] {
        let (Some(first), Some(last)) = (chains.first(), chains.last()) else { return &[] };
        self.pieces.get(usize::from(first.first)..usize::from(last.first) + usize::from(last.count)).unwrap_or(&[])
    }

    /// No room for a chain of any length that drivers build, or enough walked for nothing.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.list.is_full() || self.pieces.len() + LONGEST > MAX_PIECES || self.is_spent()
    }

    /// Starts a chain all of whose descriptors have to point one way. The caller checked `is_full`.
    #[inline]
    pub(crate) fn begin(&mut self, memory: &'m GuestMemory, device_writes: bool) -> ChainBuilder<'_, 'm> {
        ChainBuilder { first: self.pieces.len(), chains: self, memory, device_writes, len: 0, walked: 0, bad: false }
    }

    /// Adds a chain of one buffer, if it is all it seems: one piece of memory that is found at once, pointing the right way. False if it has
    /// to be walked. The caller checked `is_full`, and asks for the memory with [`Chains::prefetch`].
    #[inline]
    pub(crate) fn add_single(
        &mut self,
        memory: &'m GuestMemory,
        descriptor: &Descriptor,
        id: u16,
        device_writes: bool,
    ) -> bool {
        let wanted = if device_writes { DESC_WRITE } else { 0 };
        let flags = descriptor.flags & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT);
        let len = descriptor.len as usize;
        if flags != wanted || len == 0 {
            return false;
        }
        let Some(piece) = memory.near_piece(descriptor.addr, len) else { return false };
        let first = self.pieces.len() as u16;
        let chain = Chain { piece, id, slots: 1, first, count: 1, len: descriptor.len, bad: false };
        if piece.len() != len || self.list.is_full() || device_writes && self.pieces.try_push(piece).is_err() {
            return false;
        }
        let _ = self.list.try_push(chain);
        true
    }
}

impl<'m> Chain<'m> {
    /// Its memory, if it is one piece.
    #[inline]
    pub fn single(&self) -> Option<GuestSlice<'m>> {
        (self.count == 1).then_some(self.piece)
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
            return Err(QueueError::Buffer(AccessError { addr, len: u64::from(len) }));
        }
        loop {
            let piece = self.memory.piece(addr, left).map_err(QueueError::Buffer)?;
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
        Ok((self.memory.slice(addr, len as usize).map_err(QueueError::Buffer)?, len / 16))
    }

    /// Ends the chain, whose id and slots are known now; returns the slots. Of one that breaks the ring nothing is left.
    #[inline]
    pub(crate) fn end(self, walked: Result<(u16, u16), QueueError>) -> Result<u16, QueueError> {
        let Self { chains, first, len, walked: descriptors, bad, .. } = self;
        if bad || walked.is_err() {
            chains.pieces.truncate(first);
        }
        chains.idle += descriptors.saturating_sub(chains.pieces.len() - first);
        let (id, slots) = walked?;
        let piece = chains.pieces.get(first).copied().unwrap_or(GuestSlice::EMPTY);
        let count = (chains.pieces.len() - first) as u16;
        let _ = chains.list.try_push(Chain { piece, id, slots, first: first as u16, count, len, bad });
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
    pub(crate) fn split((addr, rest): (u64, u64)) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next_or_id: (rest >> 48) as u16 }
    }

    /// Packed layout (§2.8.5): address, length, id, flags.
    #[inline]
    pub(crate) fn packed((addr, rest): (u64, u64)) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 48) as u16, next_or_id: (rest >> 32) as u16 }
    }

    /// The two words of a table's entry.
    #[inline]
    pub(crate) fn words(table: &GuestSlice<'_>, index: u32) -> (u64, u64) {
        let at = index as usize * 16;
        if table.is_aligned(8) {
            return (table.load_u64(at), table.load_u64(at + 8));
        }
        // Rings are aligned; an indirect table need not be.
        let mut bytes = [0; 16];
        table.read(at, &mut bytes);
        let word = u128::from_le_bytes(bytes);
        (word as u64, (word >> 64) as u64)
    }
}
