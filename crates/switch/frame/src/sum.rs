//! The Internet checksum (RFC 1071) in pieces.
//!
//! A partial sum is a `u32` that holds the ones' complement sum of big-endian 16-bit words, not yet inverted. Up to
//! 65 536 of them can be added with plain `+` before they must be [`fold`]ed.

#[cfg(any(test, feature = "pseudo"))]
mod pseudo;
#[cfg(any(test, feature = "pseudo"))]
pub use pseudo::{pseudo_v4, pseudo_v6};

/// Sum over `bytes` as if they began at an even offset; an odd last byte is padded with zero. At most 0xffff.
///
/// Adds native 32-bit words into 64 bits, which compilers vectorise, and swaps once at the end: ones' complement sums
/// do not depend on byte order (RFC 1071 §2(B)). Correct up to 2³² words.
#[inline]
pub fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut acc: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    let mut tail = [0; 4];
    tail[..rest.len()].copy_from_slice(rest);
    acc += u64::from(u32::from_ne_bytes(tail));
    let acc = (acc & 0xffff_ffff) + (acc >> 32);
    let acc = (acc & 0xffff_ffff) + (acc >> 32);
    let acc = (acc & 0xffff) + (acc >> 16);
    u32::from(u16::from_be(fold(acc as u32)))
}

/// Brings a partial sum to 16 bits.
pub fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The sum of two neighbouring pieces, the first of which has `first_len` bytes.
pub fn append(first: u32, first_len: usize, second: u32) -> u32 {
    let second = fold(second);
    let second = if first_len % 2 == 1 { second.swap_bytes() } else { second };
    u32::from(fold(first)) + u32::from(second)
}

/// The checksum field's value for a whole sum. Zero becomes 0xffff, which means the same to every protocol and is not
/// mistaken for "no checksum" by UDP (RFC 768).
#[inline]
pub fn finish(sum: u32) -> u16 {
    match !fold(sum) {
        0 => 0xffff,
        n => n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Word by word, as RFC 1071 says it.
    fn slow(bytes: &[u8]) -> u16 {
        let mut acc = 0u64;
        for pair in bytes.chunks(2) {
            acc += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        while acc > 0xffff {
            acc = (acc & 0xffff) + (acc >> 16);
        }
        acc as u16
    }

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[]), 0);
        assert_eq!(sum(&[0xff; 65_536]), 0xffff);
        assert_eq!(finish(0xffff), 0xffff);
        assert_eq!(finish(0), 0xffff);
    }

    #[test]
    fn pseudo_headers() {
        assert_eq!(
            fold(pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 20)),
            slow(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 6, 0, 20])
        );
        let (a, b) = ([0xfe; 16], [0x13; 16]);
        let flat = [&a[..], &b[..], &[0, 1, 0, 2, 0, 0, 0, 17]].concat();
        assert_eq!(fold(pseudo_v6(a, b, 17, 0x1_0002)), slow(&flat));
    }

    proptest! {
        #[test]
        fn sums_like_the_slow_one(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(sum(&bytes), u32::from(slow(&bytes)));
        }

        #[test]
        fn pieces_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..600), cuts in proptest::collection::vec(0usize..600, 0..6)) {
            let mut cuts: Vec<_> = cuts.into_iter().filter(|c| *c <= bytes.len()).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let (mut acc, mut from) = (0, 0);
            for to in cuts {
                acc = append(acc, from, sum(&bytes[from..to]));
                from = to;
            }
            prop_assert_eq!(fold(acc), slow(&bytes));
        }
    }
}
