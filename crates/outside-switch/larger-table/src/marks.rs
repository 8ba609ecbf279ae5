//! What the device writes: how often walks have found each flow, and what they took.

use crate::layout::{ENTRIES, MARK_WORDS, MARKS};
use lasthop_sys::SharedWords;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

const WALKS: usize = 0;
const HITS: usize = 1;
const NANOSECONDS: usize = 2;
const BYTES: usize = 3;
const INSTALLED: usize = 4;

/// What walks have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walks {
    /// Walks of the table.
    pub walks: u64,
    /// Those that found a flow.
    pub hits: u64,
    /// Nanoseconds of all.
    pub ns: u64,
    /// Bytes of the table that were read.
    pub bytes: u64,
    /// Rules that were installed for them: less than hits, where several packets waited for one.
    pub installed: u64,
}

/// The marks, mapped by either side. The device writes, one thread; control reads.
#[derive(Debug)]
pub struct Marks(SharedWords);

impl Marks {
    /// Maps them; `INVAL` if the file has another length.
    pub fn map(fd: impl AsFd) -> Result<Self, Errno> {
        SharedWords::map(fd, MARK_WORDS).map(Self)
    }

    /// Counts a walk, and the flow that it found. The device.
    pub fn count(&self, walk: &Walks, found: Option<u32>) {
        let &Walks { walks, hits, ns, bytes, installed } = walk;
        for (word, more) in [(WALKS, walks), (HITS, hits), (NANOSECONDS, ns), (BYTES, bytes), (INSTALLED, installed)] {
            self.add(word, more);
        }
        if let Some(id) = found.filter(|id| (*id as usize) < ENTRIES) {
            self.add(MARKS + id as usize, 1);
        }
    }

    fn add(&self, word: usize, more: u64) {
        if let Some(word) = self.0.get(word) {
            // One writer. Relaxed: nothing is said by one word of another.
            word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
        }
    }

    /// What walks have come to. Any numbers: the device has written them.
    pub fn walks(&self) -> Walks {
        let word = |word| self.word(word);
        Walks {
            walks: word(WALKS),
            hits: word(HITS),
            ns: word(NANOSECONDS),
            bytes: word(BYTES),
            installed: word(INSTALLED),
        }
    }

    /// How often the flow with this number was found, as the device says.
    pub fn of(&self, id: u32) -> u64 {
        if (id as usize) < ENTRIES { self.word(MARKS + id as usize) } else { 0 }
    }

    fn word(&self, word: usize) -> u64 {
        self.0.get(word).map_or(0, |word| word.load(Relaxed))
    }
}
