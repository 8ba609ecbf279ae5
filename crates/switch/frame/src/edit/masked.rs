//! Sets out of whole headers and their masks, as Open vSwitch has them.

use super::{Part, Set};

impl Set {
    /// What sets the bits of `mask` in a header to those of `value`: both begin with the header's first byte, in the order of the wire, and end
    /// where they like.
    pub fn masked<'a>(part: Part, value: &'a [u8], mask: &'a [u8]) -> impl Iterator<Item = Self> + 'a {
        let word = |bytes: &[u8], n: usize| {
            (4 * n..4 * n + 4).fold(0, |word, at| word << 8 | u32::from(bytes.get(at).copied().unwrap_or(0)))
        };
        let words = 0..mask.len().min(4 * 256).div_ceil(4);
        let sets = words.map(move |n| Self { part, word: n as u8, value: word(value, n), mask: word(mask, n) });
        sets.filter(|set| set.mask != 0)
    }
}
