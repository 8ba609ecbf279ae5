//! Moving bytes: exactly as many as asked for, source and destination may overlap.

/// Up to this many bytes are moved inline. A header and a small frame fit; above, memmove's own choices win.
const INLINE: usize = 256;

/// Copies `len` bytes. All loads come before the first store, so overlapping ranges are as right as with memmove.
///
/// # Safety
/// Both ranges are mapped for `len` bytes, `from` readable and `to` writable, until this returns. Others may write to
/// either meanwhile: the result is then any mixture, as between any two processes that share memory.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(feature = "meter")]
    crate::meter::add(len);
    // Two blocks, from the start and up to the end, cover every length between one block and two: nothing is rounded up.
    macro_rules! two {
        ($block:ty) => {{
            let size = size_of::<$block>();
            // SAFETY: `size <= len <= 2 * size`, so both blocks lie inside the ranges the caller vouches for.
            unsafe {
                let first = from.cast::<$block>().read_unaligned();
                let last = from.add(len - size).cast::<$block>().read_unaligned();
                to.cast::<$block>().write_unaligned(first);
                to.add(len - size).cast::<$block>().write_unaligned(last);
            }
        }};
    }
    match len {
        65..=128 => two!([u64; 8]),
        33..=64 => two!([u64; 4]),
        129..=INLINE => two!([u64; 16]),
        17..=32 => two!([u64; 2]),
        8..=16 => two!(u64),
        4..=7 => two!(u32),
        2..=3 => two!(u16),
        // SAFETY: the caller vouches for the ranges; memmove allows overlap.
        _ => unsafe { std::ptr::copy(from, to, len) },
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn every_length_and_overlap_is_as_memmove() {
        for len in 0..600 {
            for (from, to) in [(0, 700), (0, 1), (3, 0), (0, len / 2), (len / 2, 0)] {
                let mut bytes: Vec<u8> = (0..2000u32).map(|i| (i * 7 / 3) as u8).collect();
                let mut expected = bytes.clone();
                expected.copy_within(from..from + len, to);
                let start = bytes.as_mut_ptr();
                // SAFETY: both ranges lie in `bytes`.
                unsafe { copy(start.add(from), start.add(to), len) };
                assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
            }
        }
    }
}
