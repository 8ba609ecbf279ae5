//! Whether what was taken out of the table is used no more. The switch's side, and why this is enough, is in
//! `crates/switch/guestmem/src/translations/at_work.rs`.

use lasthop_guestmem::translations::word_of_ring;
use lasthop_guestmem::{PinnedSlice, fence};
use std::sync::atomic::Ordering;

/// Whether the switch is at work in none of these rings, or has been seen to have ended since: entries that were taken away before are
/// used no more. A ring that is at work is looked at `looks` times.
pub fn is_idle(words: &PinnedSlice<8>, rings: usize, looks: u32) -> bool {
    fence(Ordering::SeqCst);
    let idle = (0..rings as u64).all(|ring| {
        (0..looks).any(|look| {
            if look > 0 {
                std::hint::spin_loop();
            }
            words.load_u64(word_of_ring(ring)) == 0
        })
    });
    // What the switch did in the rings came before it cleared their words.
    fence(Ordering::Acquire);
    idle
}
