//! The fast path of address checks: what a loop over a burst of buffers keeps in registers, one region, and each buffer in two words.
//! [`Window::find`] checks an address against that region; `GuestMemory::piece` is the general way.

use crate::memory::{GuestMemory, Place};
use crate::slice::{GuestSlice, prefetch_two};
use std::marker::PhantomData;

/// One region of a guest's memory, remembered for a loop over a burst: most buffers lie in the region of the one before.
///
/// Worth it where a lookup in [`GuestMemory`] would read the region's three words again for each buffer, because the compiler cannot
/// know that nothing that the loop writes has changed them.
#[derive(Clone, Copy, Debug)]
pub struct Window<'m> {
    place: Place,
    memory: &'m GuestMemory,
}

impl<'m> Window<'m> {
    pub(crate) fn new(memory: &'m GuestMemory, first: Option<Place>) -> Self {
        Self { place: first.unwrap_or_default(), memory }
    }

    /// `len` bytes at a guest physical address and a number of the caller's, if there are any and they all lie in one of the regions
    /// that are found at once, or in a page of translated addresses that may be read or, to WRITE, written to. Remembers that region or
    /// page: ask no other way of the same window.
    #[inline(always)]
    pub fn find<const WRITE: bool>(&mut self, addr: u64, len: u32, id: u16) -> Option<Tagged<'m>> {
        if addr.wrapping_sub(self.place.guest) >= self.place.size {
            // A guest's buffers may alternate between two regions (QEMU has one below and one above 4 GiB), so this is no place to
            // give up.
            self.place = self.memory.near_place(addr).or_else(|| self.memory.page(addr, WRITE).ok())?;
        }
        let offset = addr.wrapping_sub(self.place.guest);
        let fits = u64::from(len).wrapping_sub(1) < self.place.size - offset;
        // SAFETY: `offset + len <= size`, all of which is mapped from `host` on for as long as the memory lives.
        fits.then(|| unsafe { Tagged::new(self.place.host.wrapping_add(offset as usize), len, id) })
    }

    /// An address in the region that is remembered, for [`GuestMemory::window`].
    #[inline]
    pub fn place(&self) -> u64 {
        self.place.guest
    }
}

/// A run of guest memory of up to 4 GiB and a number of the holder's, in two words; or, where there is no such run, a number in its
/// place. Two stores write it, and a register each holds its halves.
#[derive(Clone, Copy, Debug)]
pub struct Tagged<'m> {
    /// Its first byte; of one without memory, the number.
    ptr: *mut u8,
    /// From the lowest bits: length (32), id (16), form (15), and whether there is no memory.
    word: u64,
    memory: PhantomData<&'m GuestMemory>,
}

/// No memory.
const HOLLOW: u64 = 1 << 63;

// SAFETY: as for a slice.
unsafe impl Send for Tagged<'_> {}

impl<'m> Tagged<'m> {
    /// # Safety
    /// `[ptr, ptr + len)` is mapped readable and writable for all of `'m`.
    #[inline(always)]
    unsafe fn new(ptr: *mut u8, len: u32, id: u16) -> Self {
        Self { ptr, word: u64::from(len) | u64::from(id) << 32, memory: PhantomData }
    }

    /// A slice that is not too long.
    pub fn of(slice: GuestSlice<'m>, id: u16) -> Option<Self> {
        let len = u32::try_from(slice.len()).ok()?;
        // SAFETY: the slice's own bytes, mapped as long as it is.
        Some(unsafe { Self::new(slice.as_ptr(), len, id) })
    }

    /// No run of memory, but a number in its place, a length of the caller's meaning, and a form of 15 bits.
    pub fn hollow(number: u64, len: u32, id: u16, form: u16) -> Self {
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(form & 0x7fff) << 48 | HOLLOW;
        Self { ptr: std::ptr::without_provenance_mut(number as usize), word, memory: PhantomData }
    }

    /// The run of memory, if it is one.
    #[inline(always)]
    pub fn slice(&self) -> Option<GuestSlice<'m>> {
        // SAFETY: only `new` makes one that is not hollow, and its caller vouched for the bytes.
        (self.word & HOLLOW == 0).then(|| unsafe { GuestSlice::new(self.ptr, self.len() as usize) })
    }

    /// The number, if there is no memory.
    #[inline]
    pub fn number(&self) -> Option<u64> {
        (self.word & HOLLOW != 0).then_some(self.ptr.addr() as u64)
    }

    /// Bytes.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> u32 {
        self.word as u32
    }

    /// The holder's number.
    #[inline(always)]
    pub fn id(&self) -> u16 {
        (self.word >> 32) as u16
    }

    /// What [`Tagged::hollow`] was given; 0 for a run of memory.
    #[inline(always)]
    pub fn form(&self) -> u16 {
        (self.word >> 48) as u16 & 0x7fff
    }

    /// Asks the processor for the first cache lines, as [`GuestSlice::prefetch`]. Of one without memory it asks for
    /// what does not matter: a prefetch never faults.
    #[inline(always)]
    pub fn prefetch(&self, to_write: bool) {
        prefetch_two(self.ptr, to_write);
    }
}
