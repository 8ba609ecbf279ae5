//! Parts of a ring whose bounds have been checked once, for a loop over a burst: what is left to do for each entry is to take its
//! number modulo the ring's size, or to compare it with it.
//!
//! A tier above [`PinnedSlice`]'s own words, which check the end for each of them. Worth some 20 instructions for a packet of
//! 64 bytes on split rings.

use crate::copy;
use crate::fill::fill;
use crate::memory::GuestMemory;
use crate::slice::{PinnedSlice, load_flags_first, prefetch_line};
use arrayvec::ArrayVec;
use std::marker::PhantomData;

/// A ring of words, a power of two of them. See [`PinnedSlice::entries`].
#[derive(Clone, Copy, Debug)]
pub struct Entries<'m, T> {
    ptr: *mut T,
    mask: usize,
    memory: PhantomData<&'m GuestMemory>,
}

/// Descriptors: of a ring, or of what is left of one. See [`PinnedSlice::descriptors`].
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'m> {
    ptr: *mut u64,
    count: usize,
    memory: PhantomData<&'m GuestMemory>,
}

impl<const ALIGN: usize> PinnedSlice<ALIGN> {
    /// A ring of `mask + 1` words from `offset` on; `None` if they are not a power of two, not aligned, or not all inside.
    #[inline]
    pub fn entries<T>(&self, offset: usize, mask: usize) -> Option<Entries<'_, T>> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let end = mask.checked_add(1)?.checked_mul(size_of::<T>())?.checked_add(offset)?;
        let fits = end <= self.len && mask & (mask + 1) == 0 && offset.is_multiple_of(align_of::<T>());
        fits.then(|| Entries { ptr: self.ptr.wrapping_add(offset).cast(), mask, memory: PhantomData })
    }

    /// All of it as descriptors.
    #[inline]
    pub fn descriptors(&self) -> Descriptors<'_> {
        const { assert!(align_of::<u64>() <= ALIGN) };
        Descriptors { ptr: self.ptr.cast(), count: self.len / 16, memory: PhantomData }
    }
}

impl Entries<'_, u16> {
    /// Reads the `n`th, modulo their number.
    #[inline(always)]
    pub fn load(&self, n: usize) -> u16 {
        // SAFETY: `n & mask` is one of the words that `PinnedSlice::entries` found inside and aligned.
        u16::from_le(unsafe { self.ptr.add(n & self.mask).read_volatile() })
    }

    /// Reads from the `first` on, modulo their number, up to `most`, the last word or where `each` makes nothing of one, and appends what
    /// it makes to a list. Returns how many.
    #[inline(always)]
    pub fn fill<T: Copy, const N: usize>(
        &self,
        list: &mut ArrayVec<T, N>,
        first: usize,
        most: usize,
        mut each: impl FnMut(u16) -> Option<T>,
    ) -> usize {
        let first = first & self.mask;
        // SAFETY: as above; `n` is less than what is left from the `first` on.
        let word = |n| unsafe { self.ptr.add(first + n).read_volatile() };
        fill(list, most.min(self.mask + 1 - first), |n| each(u16::from_le(word(n))))
    }
}

impl Entries<'_, [u32; 2]> {
    /// Writes the `n`th, modulo their number.
    #[inline(always)]
    pub fn store(&self, n: usize, first: u32, second: u32) {
        let pair = u64::from(first) | u64::from(second) << 32;
        // SAFETY: as above, of eight bytes.
        unsafe { copy::write_8(self.ptr.add(n & self.mask).cast(), pair.to_le()) };
    }

    /// Asks for the line of the `n`th, which is going to be written to.
    #[inline(always)]
    pub fn prefetch_for_write(&self, n: usize) {
        prefetch_line::<0>(self.ptr.wrapping_add(n & self.mask).cast(), true);
    }
}

impl Descriptors<'_> {
    /// The `n`th, as little-endian words of 8, 4 and 4 bytes, if there is one: of the last word some bits are tested, which takes
    /// constants of 64 bits in a longer one. The last two bytes are read first, with acquire order: a packed ring's driver writes the
    /// flags, which are there, last.
    #[inline(always)]
    pub fn load(&self, n: usize) -> Option<(u64, u32, u32)> {
        // SAFETY: it is there.
        (n < self.count).then(|| unsafe { self.word(n) })
    }

    /// # Safety
    /// There is an `n`th.
    #[inline(always)]
    unsafe fn word(&self, n: usize) -> (u64, u32, u32) {
        // SAFETY: the `n`th 16 bytes are inside and aligned; the guest's accesses to ring fields are atomic too.
        unsafe {
            let words = self.ptr.add(2 * n).cast::<u32>();
            let last = load_flags_first(words.add(3));
            let first = u64::from_le(words.cast::<u64>().read_volatile());
            (first, u32::from_le(words.add(2).read_volatile()), last)
        }
    }

    /// As [`Entries::fill`], up to the last descriptor; `each` is told how many were read before.
    #[inline(always)]
    pub fn fill<T: Copy, const N: usize>(
        &self,
        list: &mut ArrayVec<T, N>,
        first: usize,
        most: usize,
        mut each: impl FnMut(usize, (u64, u32, u32)) -> Option<T>,
    ) -> usize {
        // SAFETY: `n` is less than what is left from the `first` on.
        fill(list, most.min(self.count.saturating_sub(first)), |n| each(n, unsafe { self.word(first + n) }))
    }

    /// Writes the second word of the `n`th, or none.
    #[inline(always)]
    pub fn store_second(&self, n: usize, word: u64) {
        if n < self.count {
            // SAFETY: as above.
            unsafe { self.ptr.add(2 * n + 1).write_volatile(word.to_le()) };
        }
    }

    /// Writes the second words of some side by side, from the `first` on and the last of them first; none if they are not all there.
    #[inline(always)]
    pub fn store_seconds(&self, first: usize, words: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) {
        if first.checked_add(words.len()).is_some_and(|end| end <= self.count) {
            for (n, word) in words.enumerate().rev() {
                // SAFETY: as above.
                unsafe { self.ptr.add(2 * (first + n) + 1).write_volatile(word.to_le()) };
            }
        }
    }

    /// Asks for the line of the `n`th, which is going to be written to. It may lie anywhere.
    #[inline(always)]
    pub fn prefetch_for_write(&self, n: usize) {
        prefetch_line::<0>(self.ptr.wrapping_add(2 * n).cast(), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// 64 bytes with others behind them that nothing may touch.
    fn pinned() -> (Arc<GuestMemory>, PinnedSlice<16>) {
        let memory = Arc::new(GuestMemory::anonymous(4096).unwrap());
        let slice = PinnedSlice::new(&memory, 0, 64).unwrap();
        (memory, slice)
    }

    #[test]
    fn entries_that_are_not_all_inside_are_none() {
        let (_memory, slice) = pinned();
        assert!(slice.entries::<u16>(0, 31).is_some());
        assert!(slice.entries::<u16>(4, 31).is_none(), "beyond the end");
        assert!(slice.entries::<u16>(1, 7).is_none(), "not aligned");
        assert!(slice.entries::<u16>(0, 30).is_none(), "no power of two");
        assert!(slice.entries::<[u32; 2]>(4, 3).is_some());
        assert!(slice.entries::<[u32; 2]>(4, 7).is_none(), "beyond the end");
        assert!(slice.entries::<u16>(usize::MAX - 1, 1).is_none() && slice.entries::<u16>(0, usize::MAX).is_none());
    }

    /// As many are read as all four allow: what is wanted, what is left of the ring, the room in the list, and the first that nothing is
    /// made of.
    #[test]
    fn a_stretch_of_a_ring_ends_in_front_of_its_end() {
        let (memory, slice) = pinned();
        let whole = memory.slice(0, 64).unwrap();
        (0..32).for_each(|n| whole.store_u16(2 * n, n as u16));
        let ring = slice.entries::<u16>(16, 7).unwrap();
        for (first, most, stop, room) in (0..40).flat_map(|n| (0..10).map(move |m| (n, m, (n + m) % 11, m * n % 10))) {
            let mut list: ArrayVec<u16, 10> = (room..10).map(|_| 99).collect();
            let filled = ring.fill(&mut list, first, most, |word| (usize::from(word) != 8 + stop).then_some(word));
            let at = first % 8;
            let wanted: Vec<_> = (at..8.min(at + most.min(room))).take_while(|n| *n != stop).map(|n| 8 + n).collect();
            assert!(list.iter().skip(10 - room).map(|n| usize::from(*n)).eq(wanted.iter().copied()), "{first} {most}");
            assert_eq!(filled, wanted.len());
        }
    }

    #[test]
    fn a_stretch_of_descriptors_ends_with_the_last() {
        let (memory, slice) = pinned();
        let whole = memory.slice(0, 64).unwrap();
        (0..4).for_each(|n| whole.store_u64(16 * n, n as u64));
        let desc = slice.descriptors();
        for (first, most, wanted) in [(0, 9, 0..4), (1, 2, 1..3), (3, 2, 3..4), (4, 1, 0..0), (usize::MAX, 2, 0..0)] {
            let mut list: ArrayVec<(u64, u64), 8> = ArrayVec::new();
            let filled = desc.fill(&mut list, first, most, |n, (addr, ..)| Some((n as u64, addr)));
            assert_eq!(filled as u64, wanted.end - wanted.start, "{most} from {first} on");
            assert!(list.iter().copied().eq((0..).zip(wanted.clone())), "{list:?}");
        }
    }

    #[test]
    fn numbers_come_round_and_descriptors_do_not() {
        let (memory, slice) = pinned();
        let used = slice.entries::<[u32; 2]>(4, 3).unwrap();
        used.store(5, 1, 2);
        assert_eq!(memory.slice(0, 64).unwrap().load_u64(8), 1 << 32, "the second one lies at 12");
        assert_eq!(slice.entries::<u16>(12, 1).unwrap().load(2), 1);
        let desc = slice.descriptors();
        desc.store_second(4, u64::MAX);
        desc.store_seconds(3, [1, 2].into_iter());
        desc.store_seconds(usize::MAX, [1].into_iter());
        assert_eq!(memory.slice(64, 64).unwrap().load_u64(8), 0, "beyond the end");
        assert_eq!((desc.load(3), desc.load(4), desc.load(usize::MAX)), (Some((0, 0, 0)), None, None));
        desc.store_seconds(2, [8, 9].into_iter());
        assert_eq!((desc.load(2), desc.load(3)), (Some((0, 8, 0)), Some((0, 9, 0))));
    }
}
