//! The one hash function over flow keys.

use foldhash::quality::RandomState;
use lasthop_frame::{Depth, FlowKey};
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;
use zerocopy::IntoBytes;

/// Seeded anew by every process, because guests choose what is hashed. The "quality" variant, because callers take some
/// low bits (a cache set, a queue) rather than hand the hash to a table that mixes again.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// Hash of the first `depth` of a key; all 64 bits are good. The same in all threads of a process, so it also steers
/// packets of one connection to one queue (if the depth reaches the ports).
#[inline]
pub fn hash_key(key: &FlowKey, depth: Depth) -> u64 {
    let mut hasher = SEED.build_hasher();
    // Constant lengths let the compiler unroll.
    match depth {
        Depth::L2 => hasher.write(&key.as_bytes()[..Depth::L2.len()]),
        Depth::L4 => hasher.write(&key.as_bytes()[..Depth::L4.len()]),
        Depth::Full => hasher.write(key.as_bytes()),
    }
    hasher.finish()
}
