//! The one hash function over flow keys.

use foldhash::quality::RandomState;
use lasthop_frame::{Depth, FlowKey};
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

/// Seeded anew by every process, because guests choose what is hashed. The "quality" variant, because callers take some
/// low bits (a cache set, a queue) rather than hand the hash to a table that mixes again.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);

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

#[inline]
fn hash_words<const N: usize>(words: Option<&[u64; N]>) -> u64 {
    let mut hasher = SEED.build_hasher();
    words.into_iter().flatten().for_each(|word| hasher.write_u64(*word));
    hasher.finish()
}
