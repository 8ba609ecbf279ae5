//! Known content: bytes that both ends can make from a seed, so that a lost, swapped or damaged byte shows.

/// Endless bytes from a seed (splitmix64).
pub struct Content {
    state: u64,
    word: [u8; 8],
    used: usize,
}

impl Content {
    /// The stream that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed, word: [0; 8], used: 8 }
    }

    /// Fills `buf` with the next bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for byte in buf {
            if self.used == 8 {
                self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = self.state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                self.word = (z ^ (z >> 31)).to_le_bytes();
                self.used = 0;
            }
            *byte = self.word[self.used];
            self.used += 1;
        }
    }
}

/// `len` bytes that belong to `seed`.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Content::new(seed).fill(&mut out);
    out
}

/// FNV-1a over 64 bits.
pub fn hash(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Sizes from `min` to `max`: every one up to 256, then each `stride`-th, and always the neighbours of powers of two and
/// of multiples of the usual segment sizes.
pub fn sizes(min: usize, max: usize, stride: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (min..=max.min(256)).collect();
    all.extend((256.max(min)..=max).step_by(stride.max(1)));
    let edges = (8..=16).map(|p| 1 << p).chain([1448, 1460, 1472, 1500, 2896, 8948, 8972, 9000, max]);
    all.extend(edges.flat_map(|e: usize| [e.saturating_sub(1), e, e + 1]).filter(|s| (min..=max).contains(s)));
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_the_same_however_it_is_cut() {
        let whole = bytes(7, 1000);
        let mut cut = vec![0; 1000];
        let mut c = Content::new(7);
        for piece in cut.chunks_mut(13) {
            c.fill(piece);
        }
        assert_eq!(whole, cut);
        assert_ne!(whole, bytes(8, 1000));
        assert_ne!(hash(&whole), hash(&whole[1..]));
    }

    #[test]
    fn sizes_hold_both_ends_and_the_edges() {
        let s = sizes(1, 65_507, 997);
        assert!(s.is_sorted() && s.first() == Some(&1) && s.last() == Some(&65_507));
        for edge in [255, 256, 1472, 1473, 65_506] {
            assert!(s.contains(&edge), "{edge}");
        }
    }
}
