//! Whether the switch is at work in a ring: a word for each, behind what the session process counts.
//!
//! The session process takes an entry away, and has to know when the switch uses it no longer. It could ask, which is a message each way for
//! each page that a guest shares for one use. It reads this word instead, and asks only if the ring is at work for long.
//!
//! Each side writes its own word before it reads the other's, with a sequentially consistent fence between: the switch says that it is at
//! work and then reads entries, the session process clears an entry and then reads whether it is. One of the fences is second in the order
//! of all, and the read behind it sees the other side's write: either the entry is found cleared, or the ring at work. The word is cleared
//! in release order after the last use, and read with an acquire fence behind: all uses come before the acknowledgement.
//!
//! Whoever holds the ring's lock writes its word, so that nobody clears it while another is at work. A switch that is killed at work
//! leaves it set, and its table is never used again: with the switch ends the connection that the table is of.
//! `tests/models` runs both sides in all orders.

use crate::{PinnedSlice, fence};
use std::sync::atomic::Ordering;

/// Rings of a port, at most: twice `MAX_QUEUE_PAIRS`, and room.
pub const RINGS: u64 = 256;

/// Where the word of a ring is, in bytes.
pub fn word_of_ring(ring: u64) -> usize {
    8 * (super::COUNTED + ring % RINGS) as usize
}

/// Whoever has a ring's lock begins to read entries, or has done so and uses them no longer.
pub(crate) fn set_at_work(words: &PinnedSlice<8>, ring: u16, works: bool) {
    words.store_u64_release(word_of_ring(ring.into()), works.into());
    if works {
        fence(Ordering::SeqCst);
    }
}
