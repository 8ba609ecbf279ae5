//! Moving bytes: exactly as many as asked for, source and destination may overlap.
//!
//! Guest memory changes while we look at it, and two of our threads may be in the same bytes at once, because a guest may
//! name them twice. To the compiler a plain load or store, and `ptr::copy` as well, promise that nothing of the kind
//! happens: it may load twice what was written once, or replace two copies, guest to private memory and from there to a
//! receiver, by one from the guest, after the private one has been judged. So no such access is made here. Guest memory is
//! outside of every Rust allocation, like a device's registers, and is touched only in ways that the compiler takes as they
//! stand: volatile words (`std::ptr::read_volatile` describes this use), inline assembly, and a call of a function of which
//! it does not know which one it is. docs/decisions/shared-bytes.md has the reasons and what the others cost.

use std::ffi::c_void;

/// Copies `len` bytes; either side may be guest memory. All loads come before the first store, so overlapping ranges are as
/// right as with memmove.
///
/// # Safety
/// Both ranges are mapped for `len` bytes, `from` readable and `to` writable, until this returns. Others may write to
/// either meanwhile if it is guest memory: the result is then any mixture.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(feature = "meter")]
    crate::meter::add(len);
    // SAFETY: the caller vouches for the ranges.
    unsafe { block::copy(from, to, len) };
}

/// memmove, called in such a way that the compiler does not know what is called: it knows too much of memmove.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn far(from: *const u8, to: *mut u8, len: usize) {
    static MEMMOVE: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void = libc::memmove;
    // SAFETY: it is a static of ours. Volatile: the compiler has to take what it finds there.
    let memmove = unsafe { (&raw const MEMMOVE).read_volatile() };
    // SAFETY: the caller vouches for the ranges; memmove allows overlap.
    unsafe { memmove(to.cast(), from.cast(), len) };
}

/// A value that lies anywhere.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// Reads a value once, wherever it lies.
///
/// # Safety
/// So many bytes are mapped and readable; any are a `T`.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(from: *const u8) -> T {
    // SAFETY: the caller vouches for the bytes; the type needs no alignment.
    unsafe { from.cast::<Unaligned<T>>().read_volatile().0 }
}

#[cfg(target_arch = "x86_64")]
mod block {
    //! The widest registers that every x86-64 has, and one instruction for each load and store.

    use std::arch::asm;

    /// Up to this many bytes are moved inline. A header and a small frame fit; above, memmove's own choices win.
    const INLINE: usize = 256;

    /// # Safety
    /// As [`super::copy`].
    #[inline(always)]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // Two blocks, from the start and up to the end, cover every length between one block and two: nothing is rounded up.
        // SAFETY: each block is of `size` bytes with `size <= len <= 2 * size`, so both lie inside the ranges the caller vouches
        // for, and so do those of `far`.
        unsafe {
            match len {
                33..=64 => two_32(from, to, len),
                65..=128 => two_64(from, to, len),
                129..=INLINE => two_128(from, to, len),
                17..=32 => two_16(from, to, len),
                8..=16 => two_8(from, to, len),
                4..=7 => two_4(from, to, len),
                2..=3 => two_2(from, to, len),
                _ => super::far(from, to, len),
            }
        }
    }

    /// Two blocks of so many vector registers: all loads, then all stores.
    macro_rules! vectors {
        ($name:ident: $($first:ident $at:literal)*; $($last:ident $back:literal)*) => {
            /// # Safety
            /// As [`super::copy`], for one to two times as many bytes as the name says.
            #[inline(always)]
            unsafe fn $name(from: *const u8, to: *mut u8, len: usize) {
                // SAFETY: the caller vouches for the ranges.
                unsafe {
                    asm!(
                        $(concat!("movups {", stringify!($first), "}, [{from} + ", $at, "]"),)*
                        $(concat!("movups {", stringify!($last), "}, [{from} + {len} - ", $back, "]"),)*
                        $(concat!("movups [{to} + ", $at, "], {", stringify!($first), "}"),)*
                        $(concat!("movups [{to} + {len} - ", $back, "], {", stringify!($last), "}"),)*
                        from = in(reg) from, to = in(reg) to, len = in(reg) len,
                        $($first = out(xmm_reg) _,)* $($last = out(xmm_reg) _,)*
                        options(nostack, preserves_flags)
                    );
                }
            }
        };
    }

    vectors!(two_16: a 0; b 16);
    vectors!(two_32: a 0 b 16; c 32 d 16);
    vectors!(two_64: a 0 b 16 c 32 d 48; e 64 f 48 g 32 h 16);
    vectors!(two_128: a 0 b 16 c 32 d 48 e 64 f 80 g 96 h 112; i 128 j 112 k 96 l 80 m 64 n 48 o 32 p 16);

    /// Two blocks of a general register.
    macro_rules! registers {
        ($name:ident: $word:ty, $form:literal) => {
            /// # Safety
            /// As [`super::copy`], for one to two times as many bytes as the name says.
            #[inline(always)]
            unsafe fn $name(from: *const u8, to: *mut u8, len: usize) {
                // SAFETY: the caller vouches for the ranges.
                unsafe {
                    asm!(
                        concat!("mov {a", $form, "}, [{from}]"),
                        concat!("mov {b", $form, "}, [{from} + {len} - {size}]"),
                        concat!("mov [{to}], {a", $form, "}"),
                        concat!("mov [{to} + {len} - {size}], {b", $form, "}"),
                        from = in(reg) from, to = in(reg) to, len = in(reg) len, size = const size_of::<$word>(),
                        a = out(reg) _, b = out(reg) _,
                        options(nostack, preserves_flags)
                    );
                }
            }
        };
    }

    registers!(two_8: u64, "");
    registers!(two_4: u32, ":e");
    registers!(two_2: u16, ":x");

    /// # Safety
    /// Eight bytes are mapped and writable.
    #[inline(always)]
    pub(crate) unsafe fn write_8(to: *mut u8, value: u64) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { asm!("mov [{}], {}", in(reg) to, in(reg) value, options(nostack, preserves_flags)) };
    }

    /// Copies 32 bytes and adds them to a ones-complement sum of 64 bits (RFC 1071): the carry goes from word to word and at
    /// the end to the lowest bit. That does not carry again: what an addition leaves behind when it carries is below all ones.
    ///
    /// # Safety
    /// As [`super::copy`], for 32 bytes.
    #[inline(always)]
    pub(crate) unsafe fn copy_32_with_sum(from: *const u8, to: *mut u8, mut sum: u64) -> u64 {
        // SAFETY: the caller vouches for the ranges.
        unsafe {
            asm!(
                "mov {a}, [{from}]",
                "mov {b}, [{from} + 8]",
                "mov {c}, [{from} + 16]",
                "mov {d}, [{from} + 24]",
                "mov [{to}], {a}",
                "mov [{to} + 8], {b}",
                "mov [{to} + 16], {c}",
                "mov [{to} + 24], {d}",
                "add {sum}, {a}",
                "adc {sum}, {b}",
                "adc {sum}, {c}",
                "adc {sum}, {d}",
                "adc {sum}, 0",
                from = in(reg) from, to = in(reg) to, sum = inout(reg) sum,
                a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
                options(nostack)
            );
        }
        sum
    }

    /// # Safety
    /// 16 bytes are mapped and writable, `AT` behind `to`.
    #[inline(always)]
    pub(crate) unsafe fn write_words<const AT: usize>(to: *mut u8, [first, second]: [u64; 2]) {
        // SAFETY: the caller vouches for the bytes.
        unsafe {
            asm!("mov [{to} + {at}], {first}", "mov [{to} + {at} + 8], {second}", to = in(reg) to, at = const AT,
                first = in(reg) first, second = in(reg) second, options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod block {
    //! For processors whose own instructions nobody has measured yet: memmove for runs of bytes, however short, and one way to store a
    //! word, whatever its size.

    pub(super) use super::far as copy;
    use super::{Unaligned, read};

    /// # Safety
    /// So many bytes are mapped and writable.
    #[inline(always)]
    pub(crate) unsafe fn write<T: Copy>(to: *mut u8, value: T) {
        // SAFETY: the caller vouches for the bytes; the type needs no alignment.
        unsafe { to.cast::<Unaligned<T>>().write_volatile(Unaligned(value)) }
    }
    pub(crate) use self::write as write_8;

    /// # Safety
    /// 16 bytes are mapped and writable, `AT` behind `to`.
    #[inline(always)]
    pub(crate) unsafe fn write_words<const AT: usize>(to: *mut u8, words: [u64; 2]) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write(to.add(AT), words) }
    }

    /// Copies 32 bytes and adds them to a ones-complement sum of 64 bits (RFC 1071).
    ///
    /// # Safety
    /// As [`super::copy`], for 32 bytes.
    #[inline(always)]
    pub(crate) unsafe fn copy_32_with_sum(from: *const u8, to: *mut u8, sum: u64) -> u64 {
        // SAFETY: the caller vouches for the ranges.
        let words = unsafe { read::<[u64; 4]>(from) };
        // SAFETY: as above.
        unsafe { write(to, words) };
        words.iter().fold(sum, |sum, word| {
            let (sum, carry) = sum.overflowing_add(*word);
            sum + u64::from(carry)
        })
    }
}

pub(crate) use block::{copy_32_with_sum, write_8, write_words};

#[cfg(test)]
mod tests {
    use super::*;

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
