//! Hashes of flow keys, from secrets that no guest can know. docs/decisions/flow-hash.md argues why these.

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use lasthop_frame::{Depth, FlowKey, FlowMask};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The "quality" variant, because callers take some low bits (a cache set, a queue) rather than hand the hash to a table
/// that mixes again.
static HASHER: LazyLock<SeedableRandomState> = LazyLock::new(|| {
    let shared = Box::leak(Box::new(SharedSeed::from_u64(secret())));
    SeedableRandomState::with_seed(secret(), shared)
});

/// Hash of the first `depth` of a key; all 64 bits are good. The same in all threads of a process, so it also steers
/// packets of one connection to one queue (if the depth reaches the ports).
#[inline]
pub fn hash_key(key: &FlowKey, depth: Depth) -> u64 {
    // Whole words of a constant number: unrolled, a multiplication for each two.
    match depth {
        Depth::L2 => hash_words(key.words().first_chunk::<{ Depth::L2.words() }>()),
        Depth::L4 => hash_words(key.words().first_chunk::<{ Depth::L4.words() }>()),
        Depth::Full => hash_words(Some(key.words())),
    }
}

#[inline(always)]
fn hash_words<const N: usize>(words: Option<&[u64; N]>) -> u64 {
    let mut hasher = HASHER.build_hasher();
    for word in words.unwrap_or(&[0; N]) {
        hasher.write_u64(*word);
    }
    hasher.finish()
}

/// A number that nobody outside this process knows, another one each time. The standard library takes its key from the
/// kernel's getrandom(2), and SipHash makes as many numbers of it as are asked for.
fn secret() -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: each number is given once, in whatever order.
    KEY.hash_one(COUNT.fetch_add(1, Relaxed))
}

/// A key in numbers of 32 bits.
pub(crate) const PARTS: usize = 2 * Depth::Full.words();

/// The secrets of a flow table: a factor for each part of a key.
///
/// The hash of a masked key is, in short, the sum of its parts times their factors. So parts that are zero cost nothing;
/// what several masks have in common is summed up once; and a hash does not depend on how the sum was divided. Sums have
/// 64 bits, of which the upper 32 are kept: of these any two different keys have any two values with equal probability
/// (multilinear hashing; Lemire and Kaser, "Strongly universal string hashing is fast", 2014).
#[derive(Debug)]
pub(crate) struct Factors {
    pub(crate) parts: [u64; PARTS],
    start: u64,
    /// Odd.
    mix: u32,
}

impl Default for Factors {
    fn default() -> Self {
        Self { parts: std::array::from_fn(|_| secret()), start: secret(), mix: secret() as u32 | 1 }
    }
}

/// A summand: some bits of a part, times its factor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Term {
    factor: u64,
    bits: u32,
    part: u32,
}

impl Term {
    #[inline(always)]
    pub(crate) fn of(&self, key: &[u32; PARTS]) -> u64 {
        let part = key.get(self.part as usize).copied().unwrap_or(0);
        self.factor.wrapping_mul(u64::from(part & self.bits))
    }
}

impl Factors {
    /// The hash of a key that is masked already.
    pub(crate) fn hash(&self, key: &FlowKey) -> u32 {
        let terms = parts(key).iter().zip(&self.parts).map(|(part, factor)| factor.wrapping_mul((*part).into()));
        self.finish(terms.fold(self.start, u64::wrapping_add))
    }

    /// What the sums of all masks have in common that have these terms in common.
    #[inline]
    pub(crate) fn begin(&self, common: &[Term], key: &[u32; PARTS]) -> u64 {
        common.iter().fold(self.start, |sum, term| sum.wrapping_add(term.of(key)))
    }

    /// The hash of a sum; its upper bits are the best.
    #[inline(always)]
    pub(crate) fn finish(&self, sum: u64) -> u32 {
        let sum = (sum >> 32) as u32;
        // Sums of evenly spaced keys are evenly spaced, and would lie close together if factors were unlucky. This takes no two
        // sums to one hash, and spaces them anew.
        (sum ^ sum >> 16).wrapping_mul(self.mix)
    }

    /// The terms that lead from keys masked by `before` to keys masked by `mask`: what is missing, and what is too much.
    pub(crate) fn terms(&self, before: &FlowMask, mask: &FlowMask) -> Vec<Term> {
        let masks = parts(&before.0).iter().zip(parts(&mask.0)).zip(&self.parts);
        let both = masks.zip(0..).flat_map(|(((before, mask), factor), part)| {
            let missing = Term { factor: *factor, bits: mask & !before, part };
            let too_much = Term { factor: factor.wrapping_neg(), bits: before & !mask, part };
            [missing, too_much]
        });
        both.filter(|term| term.bits != 0).collect()
    }
}

#[inline(always)]
pub(crate) fn parts(key: &FlowKey) -> &[u32; PARTS] {
    zerocopy::transmute_ref!(key.words())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromBytes, IntoBytes};

    fn key(seed: u8) -> FlowKey {
        let bytes: Vec<u8> = (0..size_of::<FlowKey>()).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect();
        FlowKey::read_from_bytes(&bytes).unwrap()
    }

    /// Whatever part was made beforehand, for other masks too.
    #[test]
    fn the_sum_may_be_divided_in_any_way() {
        let factors = Factors::default();
        let (key, none) = (key(3), FlowMask::default());
        for mask in [FlowMask(self::key(5)), FlowMask(self::key(150)), none] {
            let hash = |common: &FlowMask, key: &FlowKey| {
                let own = factors.terms(common, &mask);
                let begun = factors.begin(&factors.terms(&none, common), parts(key));
                factors.finish(own.iter().fold(begun, |sum, term| sum.wrapping_add(term.of(parts(key)))))
            };
            let whole = hash(&none, &key);
            assert_eq!(factors.hash(&key.masked(&mask)), whole);
            for common in [FlowMask(self::key(5)), FlowMask(self::key(77)), mask] {
                assert_eq!(hash(&common, &key), whole);
            }
            // Bits that the mask does not have make no difference, each of its own does (but for one in 2^32).
            for bit in 0..32 * PARTS {
                let mut other = key;
                other.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
                let differs = mask.0.as_bytes()[bit / 8] >> (bit % 8) & 1 != 0;
                assert_eq!(hash(&none, &other) != whole, differs, "bit {bit}");
            }
        }
    }

    /// Addresses in a row, and a factor by which their sums follow each other.
    #[test]
    fn sums_that_are_close_together_are_spread() {
        let mut factors = Factors { mix: 0x9e37_79b1, ..Factors::default() };
        factors.parts[0] = 1 << 32;
        let term =
            factors.terms(&FlowMask::default(), &FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() }))[0];
        let hash = |n| {
            factors.finish(factors.start.wrapping_add(term.of(parts(&FlowKey { in_port: n, ..FlowKey::default() }))))
        };
        let upper: std::collections::BTreeSet<_> = (0..4096).map(|n| hash(n) >> 20).collect();
        assert!(upper.len() > 2048, "{} of 4096 places", upper.len());
    }

    #[test]
    fn secrets_differ() {
        let secrets: std::collections::BTreeSet<_> = (0..1000).map(|_| secret()).collect();
        assert_eq!(secrets.len(), 1000);
        assert_ne!(Factors::default().parts, Factors::default().parts);
    }
}
