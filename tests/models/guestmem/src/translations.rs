//! In place of the table of translations: what says whether the switch is at work in a ring is the production source, and there is one
//! entry.

#[path = "../../../../crates/switch/guestmem/src/translations/at_work.rs"]
mod at_work;

use crate::{AccessError, GuestMemory, PinnedSlice};
use std::sync::Arc;

pub use at_work::{RINGS, word_of_ring};

/// Nothing comes before the rings' words.
const COUNTED: u64 = 0;
/// So many rings have a word here. The entry is behind them.
const MODELLED: usize = 2;

/// A table of one entry.
#[derive(Debug)]
pub struct Translations {
    words: PinnedSlice<8>,
}

impl Translations {
    /// One whose entry is cleared.
    pub fn new() -> Result<Self, AccessError> {
        let bytes = 8 * (MODELLED + 1);
        Ok(Self { words: PinnedSlice::new(&Arc::new(GuestMemory::new(bytes, 0)), 0, bytes)? })
    }

    /// As the real one.
    pub fn set_at_work(&self, ring: u16, works: bool) {
        at_work::set_at_work(&self.words, ring, works);
    }

    /// As the real one: nothing is ever asked for here.
    pub fn asked(&self) -> u64 {
        0
    }

    /// What both sides share.
    pub fn words(&self) -> &PinnedSlice<8> {
        &self.words
    }

    /// The entry, read as the real one is.
    pub fn entry(&self) -> u64 {
        self.words.load_u64(8 * MODELLED)
    }

    /// The session process writes the entry.
    pub fn set_entry(&self, entry: u64) {
        self.words.store_u64_release(8 * MODELLED, entry);
    }
}
