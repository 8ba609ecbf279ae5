//! Runs of bytes whose number is known beforehand: for drivers, which read and write headers of their own. The switch does without.

use crate::GuestSlice;
use crate::copy;

#[cfg(target_arch = "x86_64")]
mod write {
    //! Stores that the compiler takes as they stand (docs/decisions/shared-bytes.md).

    use std::arch::asm;
    pub(super) use std::arch::x86_64::__m128i as Widest;

    /// # Safety
    /// 16 bytes are mapped and writable.
    #[inline(always)]
    pub(super) unsafe fn widest(to: *mut u8, value: Widest) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { asm!("movups [{}], {}", in(reg) to, in(xmm_reg) value, options(nostack, preserves_flags)) };
    }

    /// # Safety
    /// Four bytes are mapped and writable.
    #[inline(always)]
    pub(super) unsafe fn four(to: *mut u8, value: u32) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { asm!("mov [{}], {:e}", in(reg) to, in(reg) value, options(nostack, preserves_flags)) };
    }

    /// # Safety
    /// Two bytes are mapped and writable.
    #[inline(always)]
    pub(super) unsafe fn two(to: *mut u8, value: u16) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { asm!("mov [{}], {:x}", in(reg) to, in(reg) value, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod write {
    //! One way to store a word, whatever its size.

    pub(super) use crate::copy::{write_8 as widest, write_8 as four, write_8 as two};
    pub(super) type Widest = u128;
}

use write::Widest;

impl GuestSlice<'_> {
    /// The `N` bytes from `offset` on, read once; `None` if there are fewer. For a number of bytes known beforehand.
    #[inline]
    pub fn read_array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        // SAFETY: inside the mapping.
        self.holds_bytes(offset, N).then(|| unsafe { read_array(self.as_ptr().add(offset)) })
    }

    /// Writes `N` bytes at `offset`, or none if they do not fit. For a number of bytes known beforehand.
    #[inline]
    pub fn write_array<const N: usize>(&self, offset: usize, bytes: &[u8; N]) -> bool {
        let fits = self.holds_bytes(offset, N);
        if fits {
            // SAFETY: inside the mapping.
            unsafe { write_array(self.as_ptr().add(offset), bytes) };
        }
        fits
    }
}

/// Reads `N` bytes, each once. For a number known beforehand: the loops are gone then.
///
/// # Safety
/// So many bytes are mapped and readable.
#[inline(always)]
unsafe fn read_array<const N: usize>(from: *const u8) -> [u8; N] {
    let mut out = [0; N];
    let mut at = 0;
    macro_rules! words {
        ($word:ty) => {
            while at + size_of::<$word>() <= N {
                // SAFETY: inside the range that the caller vouches for, and inside `out`, which is private.
                unsafe { out.as_mut_ptr().add(at).cast::<$word>().write_unaligned(copy::read(from.add(at))) };
                at += size_of::<$word>();
            }
        };
    }
    words!(Widest);
    words!(u64);
    words!(u32);
    words!(u16);
    words!(u8);
    out
}

/// Writes `N` bytes. For a number known beforehand.
///
/// # Safety
/// So many bytes are mapped and writable.
#[inline(always)]
unsafe fn write_array<const N: usize>(to: *mut u8, bytes: &[u8; N]) {
    let mut at = 0;
    macro_rules! words {
        ($word:ty, $write:expr) => {
            while at + size_of::<$word>() <= N {
                // SAFETY: inside the range that the caller vouches for, and inside `bytes`, which are private.
                unsafe { $write(to.add(at), bytes.as_ptr().add(at).cast::<$word>().read_unaligned()) };
                at += size_of::<$word>();
            }
        };
    }
    words!(Widest, write::widest);
    words!(u64, copy::write_8);
    words!(u32, write::four);
    words!(u16, write::two);
    if at < N {
        // SAFETY: as above; a byte needs no alignment.
        unsafe { to.add(at).write_volatile(bytes[at]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array_is_exact<const N: usize>() {
        let bytes: Vec<u8> = (1..=100).collect();
        for shift in 0..17 {
            // SAFETY: all of it lies in `bytes`.
            let read: [u8; N] = unsafe { read_array(bytes.as_ptr().add(shift)) };
            assert_eq!(read[..], bytes[shift..shift + N]);
            let mut out = vec![0; 120];
            // SAFETY: all of it lies in `out`.
            unsafe { write_array(out.as_mut_ptr().add(shift), &read) };
            assert_eq!(out[shift..shift + N], read);
            assert!(out[..shift].iter().chain(&out[shift + N..]).all(|b| *b == 0), "{N} bytes at {shift}");
        }
    }

    #[test]
    fn arrays_are_exact() {
        array_is_exact::<0>();
        array_is_exact::<1>();
        array_is_exact::<7>();
        array_is_exact::<12>();
        array_is_exact::<15>();
        array_is_exact::<31>();
        array_is_exact::<52>();
        array_is_exact::<64>();
    }
}
