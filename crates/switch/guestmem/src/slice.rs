//! A run of guest memory and the only ways to touch it.

use crate::copy::{self, *};
// What is copied from guest to guest is a DMA engine's where there is one: this name goes before that of all in `copy`.
#[cfg(feature = "dma")]
use crate::dma::copy;
use crate::memory::GuestMemory;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// How words are read and written: by one volatile access, as all of ring fields.
macro_rules! words {
    ($word:ty: $load:ident, $store:ident) => {
        /// Reads a little-endian word; 0 beyond the end, or if not aligned.
        #[inline]
        pub fn $load(&self, offset: usize) -> $word {
            // SAFETY: `at` says that it is mapped and aligned.
            self.at::<$word>(offset).map_or(0, |at| <$word>::from_le(unsafe { at.read_volatile() }))
        }

        /// Writes a little-endian word, or none.
        #[inline]
        pub fn $store(&self, offset: usize, value: $word) {
            if let Some(at) = self.at::<$word>(offset) {
                // SAFETY: `at` says that it is mapped and aligned.
                unsafe { at.write_volatile(value.to_le()) };
            }
        }
    };
}

/// Bytes of guest memory, contiguous in our address space. `Copy`, and valid for as long as the memory it borrows.
/// The guest may change the bytes at any time: two reads may differ.
#[derive(Clone, Copy, Debug)]
pub struct GuestSlice<'m> {
    ptr: *mut u8,
    len: usize,
    memory: PhantomData<&'m GuestMemory>,
}

// SAFETY: a slice is only an address range in a mapping that `'m` keeps alive; no access to it is one that the compiler
// takes for race-free (see `copy`), as the guest writes concurrently anyway.
unsafe impl Send for GuestSlice<'_> {}

impl<'m> GuestSlice<'m> {
    /// No bytes of no memory.
    pub const EMPTY: Self = Self { ptr: std::ptr::dangling_mut(), len: 0, memory: PhantomData };

    /// # Safety
    /// `[ptr, ptr + len)` is mapped readable and writable for all of `'m`.
    #[inline]
    pub(crate) unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the first byte lies at a multiple of `align` in our address space (and so in the guest's, for powers
    /// of two up to the page size).
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.ptr as usize).is_multiple_of(align)
    }

    /// `len` bytes from `offset` on, or as many of them as there are.
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        Self { ptr: self.ptr.wrapping_add(offset), len: len.min(self.len - offset), memory: PhantomData }
    }

    /// Copies bytes from `offset` on into private memory; returns how many there were.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> usize {
        let from = self.part(offset, out.len());
        // SAFETY: `from` lies in the mapping, `out` in private memory; both are `from.len` bytes at least.
        unsafe { copy::copy(from.ptr, out.as_mut_ptr(), from.len) };
        from.len
    }

    /// The `N` little-endian words from `offset` on, each read once; `None` if there are fewer. They stay in registers where an array of
    /// bytes would not.
    #[inline(always)]
    pub fn read_words<const N: usize>(&self, offset: usize) -> Option<[u64; N]> {
        // SAFETY: inside the mapping.
        let word = |n: usize| u64::from_le(unsafe { copy::read(self.ptr.add(offset + 8 * n)) });
        self.holds_bytes(offset, 8 * N).then(|| std::array::from_fn(word))
    }

    /// As [`GuestSlice::load_u16`] for two bytes that may lie anywhere; `None` beyond the end.
    #[inline(always)]
    pub fn read_u16(&self, offset: usize) -> Option<u16> {
        // SAFETY: inside the mapping.
        self.holds_bytes(offset, 2).then(|| u16::from_le(unsafe { copy::read(self.ptr.add(offset)) }))
    }

    /// As [`GuestSlice::read_u16`] for four.
    #[inline(always)]
    pub fn read_u32(&self, offset: usize) -> Option<u32> {
        // SAFETY: inside the mapping.
        self.holds_bytes(offset, 4).then(|| u32::from_le(unsafe { copy::read(self.ptr.add(offset)) }))
    }

    /// Writes two little-endian words `AT` behind its beginning, or none if they do not fit.
    #[inline(always)]
    pub fn write_words<const AT: usize>(&self, words: [u64; 2]) -> bool {
        let fits = self.holds_bytes(AT, 16);
        if fits {
            // SAFETY: inside the mapping.
            unsafe { copy::write_words::<AT>(self.ptr, words.map(u64::to_le)) };
        }
        fits
    }

    /// Copies the bytes from `offset` on to the same place in `to`, guest to guest; none if it does not reach as far, or `to` not so far
    /// as this.
    #[inline(always)]
    pub fn copy_rest(&self, to: &GuestSlice<'_>, offset: usize) {
        if let Some(len) = self.len.checked_sub(offset)
            && self.len <= to.len
        {
            // SAFETY: both slices lie in live mappings and have at least `offset + len` bytes; `copy` allows overlap.
            unsafe { copy(self.ptr.add(offset), to.ptr.add(offset), len) };
        }
    }

    /// Where it lies in our address space.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Copies private bytes to `offset`; returns how many fitted.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        let to = self.part(offset, bytes.len());
        // SAFETY: as in `read`, the other way round.
        unsafe { copy::copy(bytes.as_ptr(), to.ptr, to.len) };
        to.len
    }

    /// Copies this slice's bytes to the start of `to`, guest to guest; returns how many fitted. The two may overlap:
    /// a guest may have named the same memory twice. Never rounds up.
    #[inline]
    pub fn copy_to(&self, to: &GuestSlice<'_>) -> usize {
        let len = self.len.min(to.len);
        // SAFETY: both slices lie in live mappings and have at least `len` bytes; memmove allows overlap.
        unsafe { copy(self.ptr, to.ptr, len) };
        len
    }

    /// As [`GuestSlice::copy_to`], and returns the ones-complement sum of the bytes moved, as 16-bit words in memory
    /// order starting at the first byte (RFC 1071): each byte is read once, so the sum is of what was written.
    pub fn copy_to_with_sum(&self, to: &GuestSlice<'_>) -> (usize, u16) {
        let len = self.len.min(to.len);
        let mut sum: u64 = 0;
        let mut at = 0;
        while at + 32 <= len {
            // SAFETY: `at + 32 <= len` and both slices have `len` mapped bytes.
            sum = unsafe { copy_32_with_sum(self.ptr.add(at), to.ptr.add(at), sum) };
            at += 32;
        }
        while at + 8 <= len {
            // SAFETY: `at + 8 <= len` and both slices have `len` mapped bytes.
            let word = unsafe {
                let word: u64 = copy::read(self.ptr.add(at));
                copy::write_8(to.ptr.add(at), word);
                word
            };
            let (next, carry) = sum.overflowing_add(word);
            sum = next + u64::from(carry);
            at += 8;
        }
        #[cfg(any(feature = "meter", feature = "dma"))]
        crate::meter::add_summed(at);
        let mut tail = [0u8; 8];
        let left = len - at;
        self.read(at, &mut tail[..left]);
        to.write(at, &tail[..left]);
        let (next, carry) = sum.overflowing_add(u64::from_ne_bytes(tail));
        // Modulo 0xffff is what adding up the carries comes to; 0 and 0xffff are the same ones-complement number.
        (len, ((next + u64::from(carry)) % 0xffff) as u16)
    }

    words!(u16: load_u16, store_u16);
    words!(u64: load_u64, store_u64);

    /// Reads a little-endian word with acquire order: what the driver wrote before it is visible after.
    #[inline]
    pub fn load_u16_acquire(&self, offset: usize) -> u16 {
        // SAFETY: as above, for all of `'m`; the guest's accesses to ring indices are atomic too.
        self.at(offset).map_or(0, |at| u16::from_le(unsafe { AtomicU16::from_ptr(at) }.load(Ordering::Acquire)))
    }

    /// Writes a little-endian word with release order: what we wrote before is visible to whoever sees it.
    #[inline]
    pub fn store_u16_release(&self, offset: usize, value: u16) {
        if let Some(at) = self.at(offset) {
            // SAFETY: as above.
            unsafe { AtomicU16::from_ptr(at) }.store(value.to_le(), Ordering::Release);
        }
    }

    /// Asks the processor to fetch the first cache lines, as far as a header reaches, to read them or `to_write` them.
    #[inline]
    pub fn prefetch(&self, to_write: bool) {
        prefetch_two(self.ptr, to_write);
    }

    #[inline]
    pub(crate) fn holds_bytes(&self, offset: usize, size: usize) -> bool {
        self.len.checked_sub(size).is_some_and(|last| offset <= last)
    }

    /// Where a `T` lies that is wholly inside and aligned.
    #[inline]
    pub(crate) fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let at: *mut T = self.ptr.wrapping_add(offset).cast();
        (self.holds_bytes(offset, size_of::<T>()) && at.is_aligned()).then_some(at)
    }
}

/// A slice together with the memory it lies in, so that it can be kept: what a ring is made of. It begins at a multiple
/// of `ALIGN` in our address space, so its words are read and written by one check of the end alone.
#[derive(Debug)]
pub struct PinnedSlice<const ALIGN: usize = 2> {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    _memory: Arc<GuestMemory>,
}

// SAFETY: as for GuestSlice; the Arc keeps the mapping alive.
unsafe impl<const ALIGN: usize> Send for PinnedSlice<ALIGN> {}
// SAFETY: as above.
unsafe impl<const ALIGN: usize> Sync for PinnedSlice<ALIGN> {}

impl<const ALIGN: usize> PinnedSlice<ALIGN> {
    /// `len` bytes at a guest physical address, in one region. An address that is not aligned is refused like one that is
    /// not there.
    pub fn new(memory: &Arc<GuestMemory>, addr: u64, len: usize) -> Result<Self, crate::AccessError> {
        let slice = memory.slice(addr, len)?;
        if !slice.is_aligned(ALIGN) {
            return Err(crate::AccessError { addr, len: len as u64, asked: None });
        }
        Ok(Self { ptr: slice.ptr, len: slice.len, _memory: memory.clone() })
    }

    /// Where a `T` lies that is wholly inside and aligned.
    #[inline]
    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let last = self.len.checked_sub(size_of::<T>());
        let fits = offset.is_multiple_of(align_of::<T>()) && last.is_some_and(|last| offset <= last);
        fits.then(|| self.ptr.wrapping_add(offset).cast())
    }

    words!(u16: load_u16, store_u16);
    words!(u64: load_u64, store_u64);

    /// Writes a little-endian word with release order: what was written before is visible to whoever sees it.
    #[inline]
    pub fn store_u64_release(&self, offset: usize, value: u64) {
        if let Some(at) = self.at(offset) {
            // SAFETY: `at` says that it is mapped and aligned; the guest's accesses to ring fields are atomic too.
            unsafe { AtomicU64::from_ptr(at) }.store(value.to_le(), Ordering::Release);
        }
    }

    /// The slice.
    #[inline]
    pub fn get(&self) -> GuestSlice<'_> {
        // SAFETY: `new` took it from the memory that `_memory` keeps alive, and the mapping does not move.
        unsafe { GuestSlice::new(self.ptr, self.len) }
    }
}

/// The last four bytes of a descriptor, of which the last two no later than the others, and whatever is read next later than them.
///
/// # Safety
/// `at` is aligned, and mapped for the call.
#[inline(always)]
pub(crate) unsafe fn load_flags_first(at: *mut u32) -> u32 {
    // SAFETY: the caller vouches for it.
    let word = || unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Acquire);
    if cfg!(target_arch = "x86_64") {
        // One load reads all four bytes at one moment, and other processors' stores are seen in their order.
        return u32::from_le(word());
    }
    // Elsewhere nothing is promised of one load that reads what two stores of another size wrote: the flags might be new and
    // the id old. So the flags are read alone, and the rest after them, whose own flags may be newer yet: not counted.
    // SAFETY: as above; the last of two aligned pairs of bytes.
    let flags = u16::from_le(unsafe { AtomicU16::from_ptr(at.cast::<u16>().add(1)) }.load(Ordering::Acquire));
    u32::from_le(word()) & 0xffff | u32::from(flags) << 16
}

/// Asks the processor for the cache line that lies `BEHIND` bytes behind `at`, to read it or `to_write` to it.
#[inline(always)]
pub(crate) fn prefetch_line<const BEHIND: usize>(at: *const u8, to_write: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetch never faults, whatever the address; SSE is always there, and a processor without PREFETCHW takes it
    // for a no-operation.
    unsafe {
        use std::arch::asm;
        if to_write {
            asm!("prefetchw [{} + {}]", in(reg) at, const BEHIND, options(nostack, preserves_flags, readonly));
        } else {
            asm!("prefetcht0 [{} + {}]", in(reg) at, const BEHIND, options(nostack, preserves_flags, readonly));
        }
    };
    // Elsewhere nobody has measured what it is worth.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, to_write);
}

/// As [`prefetch_line`] for the line that `at` lies in and the next, as far as a header reaches.
#[inline(always)]
pub(crate) fn prefetch_two(at: *const u8, to_write: bool) {
    // A line with nothing but the 12 bytes of a virtio-net header mostly stays as it is.
    let first_to_write = to_write && at as usize % 64 != 64 - 12;
    prefetch_line::<0>(at, first_to_write);
    prefetch_line::<64>(at, to_write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference_sum(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_ne_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn copies_are_exact_and_never_round_up(bytes in proptest::collection::vec(any::<u8>(), 0..200), shift in 0usize..9) {
            let m = GuestMemory::anonymous(4096).unwrap();
            let from = m.slice(shift as u64, bytes.len()).unwrap();
            from.write(0, &bytes);
            let to = m.slice(1024, bytes.len()).unwrap();
            m.slice(1024, 1024).unwrap().write(0, &[0xee; 1024]);
            let (n, sum) = from.copy_to_with_sum(&to);
            prop_assert_eq!(n, bytes.len());
            // 0 and 0xffff are the same ones-complement number.
            prop_assert_eq!(sum % 0xffff, reference_sum(&bytes) % 0xffff);
            let mut out = vec![0; bytes.len() + 1];
            m.slice(1024, 1024).unwrap().read(0, &mut out);
            prop_assert_eq!(&out[..bytes.len()], &bytes[..]);
            prop_assert_eq!(out[bytes.len()], 0xee);
        }
    }

    /// Words of which each sum carries, of every length.
    #[test]
    fn sums_that_carry_all_the_time() {
        let m = GuestMemory::anonymous(4096).unwrap();
        for len in 0..200 {
            for fill in [0xff, 0xfe, 0x80, 0x01] {
                let bytes = vec![fill; len];
                let from = m.slice(1, len).unwrap();
                from.write(0, &bytes);
                let (n, sum) = from.copy_to_with_sum(&m.slice(1024, len).unwrap());
                assert_eq!((n, sum % 0xffff), (len, reference_sum(&bytes) % 0xffff), "{len} bytes of {fill:#x}");
            }
        }
    }

    #[test]
    fn words_beyond_the_end_or_misaligned_are_never_touched() {
        let m = GuestMemory::anonymous(4096).unwrap();
        let s = m.slice(0, 8).unwrap();
        s.store_u64(0, 0x0102_0304_0506_0708);
        assert_eq!(s.load_u16(0), 0x0708);
        assert_eq!(s.load_u16(7), 0);
        assert_eq!(s.load_u16(1), 0);
        assert_eq!(s.load_u64(8), 0);
        s.store_u16(8, 0xffff);
        assert_eq!(m.slice(8, 2).unwrap().load_u16(0), 0);
        m.slice(4, 12).unwrap().store_u64(0, 0x1112_1314_1516_1718);
        assert_eq!(m.slice(8, 8).unwrap().load_u16(0), 0, "not aligned");
    }
}
