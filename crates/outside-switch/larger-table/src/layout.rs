//! Where what lies, in words of 64 bits, in the byte order of the host.
//!
//! | word of the table | what |
//! |---|---|
//! | 0 | [`VERSION`] |
//! | 1 | what hashes begin with: drawn by lot, so that nobody who sends packets knows which of them share a bucket |
//! | 2 | so many places for masks have been used |
//! | from [`MASKS`] on | [`MOST_MASKS`] masks of [`MASK`] words: sequence number, flows that have it, two unused, the mask |
//! | from [`BUCKETS`] on | [`BUCKET_COUNT`] heads of chains: number of a flow and 1; 0 is the end |
//! | from [`FLOWS`] on | [`ENTRIES`] flows of [`FLOW`] words |
//!
//! | word of a flow | what |
//! |---|---|
//! | 0 | sequence number: odd while it is written |
//! | 1 | the next in its chain, as a head |
//! | 2 | bit 0: there is one; bits 8 to 15: place of its mask; bits 32 to 63: bytes of its actions |
//! | 3 | epoch |
//! | 4 to 23 | key |
//! | 24 to 31 | actions, as in the rings |
//!
//! | word of the marks | what |
//! |---|---|
//! | 0 to 4 | walks, those that found a flow, nanoseconds of all, bytes read by them, rules installed by them |
//! | from [`MARKS`] on | for each flow, how often it was found |

use foldhash::quality::FixedState;
use lasthop_frame::FlowKey;
use std::hash::BuildHasher;

/// "lhwalk", and the version of all that stands here.
pub const VERSION: u64 = u64::from_be_bytes(*b"lhwalk\0\x01");
/// Most flows: as many as control has at most.
pub const ENTRIES: usize = 196_608;
/// Most masks: as many as a device's own table may have.
pub const MOST_MASKS: usize = 128;

pub const SEED: usize = 1;
pub const MASKS_USED: usize = 2;
pub const MASKS: usize = 64;
pub const MASK: usize = 4 + KEY;
pub const BUCKETS: usize = 4096;
pub const BUCKET_COUNT: usize = 1 << 18;
pub const FLOWS: usize = BUCKETS + BUCKET_COUNT;
pub const FLOW: usize = 32;
/// Words of a key.
pub const KEY: usize = size_of::<FlowKey>() / 8;
pub const FLOW_KEY: usize = 4;
pub const FLOW_ACTIONS: usize = FLOW_KEY + KEY;
/// Bytes of a flow's actions. A flow that has more is not in the table.
pub const MOST_ACTIONS: usize = (FLOW - FLOW_ACTIONS) * 8;
pub const WORDS: usize = FLOWS + ENTRIES * FLOW;

pub const MARKS: usize = 64;
pub const MARK_WORDS: usize = MARKS + ENTRIES;

/// Bytes of the table's file. Memory is taken up as flows come.
pub const TABLE_BYTES: u64 = WORDS as u64 * 8;
/// Bytes of the marks' file.
pub const MARKS_BYTES: u64 = MARK_WORDS as u64 * 8;

const _: () = assert!(MASKS + MOST_MASKS * MASK <= BUCKETS && FLOW_ACTIONS < FLOW);

/// The bucket of a masked key whose mask has this place.
pub fn bucket(seed: u64, mask: usize, key: &FlowKey) -> usize {
    FixedState::with_seed(seed ^ (mask as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).hash_one(key.words()) as usize
        & (BUCKET_COUNT - 1)
}

/// Where the words of a flow begin.
pub fn flow_at(id: u32) -> Option<usize> {
    let id = id as usize;
    (id < ENTRIES).then_some(FLOWS + id * FLOW)
}

/// Where the words of a mask begin.
pub fn mask_at(place: usize) -> usize {
    MASKS + place * MASK
}
