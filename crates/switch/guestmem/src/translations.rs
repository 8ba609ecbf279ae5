//! I/O addresses: a guest behind an IOMMU of its own names its buffers by them, and says for each page what it means.
//!
//! The port's session process hears that (vhost-user, "IOTLB"), and keeps a table of it in a file that both map. A page is one word, a set
//! of pages one cache line: the thesis' table of grants (PhD 3.5.2), with the guest physical page in place of its counter. A word is read
//! once, without a lock, and what it says is checked as any guest physical address is: a table that is wrong, by mistake or by intent, gives
//! its own guest's memory to its own guest. A page that is not in the table is asked for in the words before the sets, and waits.

use crate::memory::GuestMemory;
use crate::region::{MapError, RegionSpec};
use crate::slice::PinnedSlice;
use lasthop_sys::PeerEvent;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod at_work;

pub use at_work::{RINGS, word_of_ring};

/// Bytes of a page: what an entry translates.
pub const PAGE: u64 = 4096;
/// Pages of an address space: I/O addresses and guest physical addresses have 48 bits.
pub const PAGES: u64 = 1 << 36;
/// Entries of a set. An entry is, from the lowest bits: may be read, may be written (vhost-user's permissions), guest physical page (36
/// bits), tag (26). One with neither permission says what the front-end has refused: its page is the last to read, the last but one to write. It may stand
/// beside the entry of the same page that permits the other. A word without page and permissions is no entry.
pub const WAYS: u64 = 8;
/// Sets.
pub const SETS: u64 = 1024;
/// Words in which pages are asked for: the page's number, modulo this, is the word's. It holds the same as an entry does, but for the tag,
/// which is a number that grows: what is wanted first has the lowest.
pub const QUESTIONS: u64 = 64;
/// Numbers that the session process counts: ranges known, pages asked for and not answered, updates, invalidations, pages asked for in all,
/// pages refused.
pub const COUNTS: usize = 6;
/// Words of questions, and of what the session process counts.
const COUNTED: u64 = 128;
/// Words before the first set: those, then a word for each ring, whether the switch is at work in it.
const BEFORE: u64 = COUNTED + RINGS;
/// Bytes of the table's file.
pub const TABLE_BYTES: u64 = 8 * (BEFORE + SETS * WAYS);

/// Where the set of an I/O page begins, in bytes from the table's beginning, and the tag of its entry there.
#[inline]
pub fn set_of(page: u64) -> (u64, u64) {
    let set = (page ^ page >> 10 ^ page >> 20 ^ page >> 30) % SETS;
    (8 * (BEFORE + set * WAYS), page / SETS)
}

/// A table, as the switch reads it.
#[derive(Debug)]
pub struct Translations {
    words: PinnedSlice<8>,
    doorbell: PeerEvent,
    asked: AtomicU64,
}

impl Translations {
    /// Maps a table. `doorbell` is signalled when a page is asked for.
    pub fn map(file: impl AsFd, doorbell: PeerEvent) -> Result<Self, MapError> {
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: TABLE_BYTES, mmap_offset: 0 };
        let memory = Arc::new(GuestMemory::empty().with_region(spec, file)?);
        let words = PinnedSlice::new(&memory, 0, TABLE_BYTES as usize).map_err(|_| MapError::Empty(0))?;
        Ok(Self { words, doorbell, asked: AtomicU64::default() })
    }

    /// Whoever has a ring's lock begins to read entries, or has done so and uses them no longer.
    pub fn set_at_work(&self, ring: u16, works: bool) {
        at_work::set_at_work(&self.words, ring, works);
    }

    /// What the session process counts.
    pub fn counts(&self) -> [u64; COUNTS] {
        std::array::from_fn(|n| self.words.load_u64(8 * (QUESTIONS as usize + n)))
    }

    /// How often a page has been asked for that was not a moment before.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// The guest physical address of the page that an I/O address is in, if it may be read, or written to. Otherwise whether it has been
    /// asked for.
    pub(crate) fn find(&self, addr: u64, to_write: bool) -> Result<u64, bool> {
        let (page, wanted) = (addr / PAGE, 1 << u64::from(to_write));
        if page >= PAGES {
            return Err(false);
        }
        let ((set, tag), refused) = (set_of(page), 4 * (PAGES - wanted));
        let mut entries = (0..WAYS).map(|way| self.words.load_u64((set + 8 * way) as usize));
        match entries.find(|word| word >> 38 == tag && (word & wanted != 0 || word % (4 * PAGES) == refused)) {
            Some(word) if word & wanted != 0 => Ok(word / 4 % PAGES * PAGE),
            Some(_) => Err(false),
            None => {
                let (at, question) = ((page % QUESTIONS * 8) as usize, (page * 4) | wanted);
                if self.words.load_u64(at) % (4 * PAGES) != question {
                    let order = self.asked.fetch_add(1, Ordering::Relaxed) << 38;
                    self.words.store_u64_release(at, order | question);
                    self.doorbell.signal();
                }
                Err(true)
            }
        }
    }
}
