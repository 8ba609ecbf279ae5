//! What a guest's own IOMMU says of its I/O addresses (specification, "IOMMU support"), and the table of it that the switch reads.
//!
//! Two stores, both bounded. [`Ranges`](Iotlb::ranges) are what the front-end has said: the oldest that nobody asked for lately goes first
//! when there are too many, and is asked for again. The table holds single pages: those that the switch has asked for, those of rings, and those of short ranges
//! as soon as they are told, where there is room. When a set is full its pages take turns. Neither is ever more than a cache of what the front-end knows, so that to forget too much is always right.

use lasthop_guestmem::translations::{PAGE, PAGES, QUESTIONS, SETS, TABLE_BYTES, WAYS, set_of};
use lasthop_guestmem::{GuestMemory, PinnedSlice, RegionSpec};
use lasthop_sys::{EventFd, memfd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

mod idle;
#[cfg(any(test, feature = "frontend"))]
mod oracle;

#[cfg(any(test, feature = "frontend"))]
pub use oracle::check_translations;

/// Most ranges that are remembered of a port, unless it is told otherwise.
pub const GRANTS: usize = 8192;
/// Most pages that are asked for at a time.
const MOST_ASKED: usize = 1024;
/// A range of no more pages goes into the table as soon as it is told, where there is room: its guest is about to use it.
const AT_ONCE: u64 = 32;
/// How often a ring is looked at that is at work, before the switch is asked: a burst takes some microseconds.
const LOOKS: u32 = 200;
/// Permissions: to read, to write (`VHOST_ACCESS_RO`, `VHOST_ACCESS_WO`).
pub(crate) const READ: u64 = 1;
pub(crate) const WRITE: u64 = 2;

/// Pages side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// First I/O page.
    pub(crate) first: u64,
    /// Last I/O page.
    pub(crate) last: u64,
    /// Guest physical page of the first.
    pub(crate) guest: u64,
    /// In the front-end's own address space, in bytes.
    pub(crate) user: u64,
    pub(crate) permissions: u64,
}

/// What is counted, in the order in which the switch reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) updates: u64,
    pub(crate) invalidations: u64,
    pub(crate) misses: u64,
    pub(crate) refused: u64,
}

/// A page that the front-end has been asked for and has not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) wanted: u64,
    pub(crate) sent: bool,
    /// Which were first: those of rings, then in the order in which they were asked.
    pub(crate) order: u64,
}

/// An entry of the table.
fn entry(tag: u64, guest_page: u64, permissions: u64) -> u64 {
    tag << 38 | guest_page << 2 | permissions
}

/// The number of a page's set.
fn index(page: u64) -> u64 {
    (set_of(page).0 - set_of(0).0) / (8 * WAYS)
}

/// Where an entry lies, in bytes.
fn word(set: u64, way: u64) -> usize {
    (set_of(0).0 + 8 * (set * WAYS + way)) as usize
}

/// The translations of one connection.
#[derive(Debug)]
pub(crate) struct Iotlb {
    words: PinnedSlice<8>,
    /// The table's file.
    file: OwnedFd,
    /// Signalled by the switch when it asks.
    pub(crate) doorbell: EventFd,
    most: usize,
    /// By first page, none overlapping, each with its age.
    ranges: BTreeMap<u64, (Range, u64)>,
    /// First pages by age.
    ages: BTreeMap<u64, u64>,
    next_age: u64,
    /// Whose turn it is to go in each set.
    turns: Vec<u8>,
    asked: BTreeMap<u64, Question>,
    /// Something was taken out of the table since the switch last let go of all that it had read there.
    pub(crate) removed: bool,
    pub(crate) counts: Counts,
}

impl Iotlb {
    /// An empty one.
    pub(crate) fn new(most: usize) -> Result<Self, Errno> {
        let file = memfd("lasthop-iotlb", TABLE_BYTES)?;
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: TABLE_BYTES, mmap_offset: 0 };
        let memory = GuestMemory::empty().with_region(spec, &file).map_err(|_| Errno::NOMEM)?;
        let words = PinnedSlice::new(&Arc::new(memory), 0, TABLE_BYTES as usize).map_err(|_| Errno::NOMEM)?;
        let (ranges, ages, asked) = Default::default();
        let (doorbell, turns) = (EventFd::new()?, vec![0; SETS as usize]);
        let counts = Counts::default();
        Ok(Self { words, file, doorbell, most, ranges, ages, next_age: 0, turns, asked, removed: false, counts })
    }

    /// For a switch: the table's file and the doorbell.
    pub(crate) fn descriptors(&self) -> Result<[OwnedFd; 2], Errno> {
        Ok([rustix::io::fcntl_dupfd_cloexec(&self.file, 0)?, self.doorbell.try_clone()?.into()])
    }

    /// The pages of these bytes: first and last. A size of 0, and one that wraps, go to the end of the address space.
    pub(crate) fn pages(addr: u64, size: u64) -> (u64, u64) {
        (addr / PAGE, addr.saturating_add(size.wrapping_sub(1)) / PAGE)
    }

    /// The front-end says what these pages mean. True if some of them meant something before.
    pub(crate) fn update(&mut self, range: Range) -> bool {
        self.counts.updates += 1;
        // QEMU tells some pages twice.
        if self.find(range.first).is_some_and(|(known, _)| known == range) {
            return false;
        }
        let replaced = self.forget(range.first, range.last);
        self.make_room(self.most - 1);
        let age = self.age();
        self.ages.insert(age, range.first);
        self.ranges.insert(range.first, (range, age));
        if range.last - range.first < AT_ONCE && range.permissions != 0 {
            for page in range.first..=range.last {
                self.put_where_room(page, range.guest + (page - range.first), range.permissions);
            }
        }
        self.write_counts();
        replaced
    }

    /// Whether what was taken away before is used no more in any of these rings, as far as can be seen without asking the switch.
    pub(crate) fn is_idle(&self, rings: usize) -> bool {
        idle::is_idle(&self.words, rings, LOOKS)
    }

    /// How many ranges are remembered, 1 at least.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most.max(1);
        self.make_room(self.most);
        self.write_counts();
    }

    /// Those that nobody wanted for longest go, until there are no more than so many.
    fn make_room(&mut self, most: usize) {
        while self.ranges.len() > most
            && let Some((_, first)) = self.ages.pop_first()
            && let Some((oldest, _)) = self.ranges.remove(&first)
        {
            self.clear(oldest.first, oldest.last);
        }
    }

    fn age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age
    }

    /// These pages mean nothing any more, nor does what was said together with them. True if there was something.
    pub(crate) fn forget(&mut self, first: u64, last: u64) -> bool {
        let before = self.ranges.len();
        self.clear(first, last);
        // Ranges do not overlap: the last that begins before the end, and those before it, until one ends too early.
        while let Some((_, &(range, age))) = self.ranges.range(..=last).next_back()
            && range.last >= first
        {
            self.ranges.remove(&range.first);
            self.ages.remove(&age);
            self.clear(range.first, range.last);
        }
        self.ranges.len() != before
    }

    /// All ranges.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.values().map(|(range, _)| *range)
    }

    fn find(&self, page: u64) -> Option<(Range, u64)> {
        self.ranges.range(..=page).next_back().map(|(_, found)| *found).filter(|(range, _)| range.last >= page)
    }

    /// Whether all these pages are known and may be used like that.
    pub(crate) fn covers(&self, (first, last): (u64, u64), wanted: u64) -> bool {
        self.missing((first, last), wanted).is_none()
    }

    /// The first of these pages that is not known, or may not be used like that.
    pub(crate) fn missing(&self, (first, last): (u64, u64), wanted: u64) -> Option<u64> {
        let mut page = first;
        while page <= last {
            match self.find(page) {
                Some((range, _)) if range.permissions & wanted == wanted => page = range.last.checked_add(1)?,
                _ => return Some(page),
            }
        }
        None
    }

    /// Of pages that are all known, the first that lies elsewhere in the guest's memory than behind the page before it.
    pub(crate) fn apart(&self, (first, last): (u64, u64)) -> Option<u64> {
        let (mut page, mut behind) = (first, None);
        while page <= last {
            let (range, _) = self.find(page)?;
            let guest = range.guest + (page - range.first);
            if behind.is_some_and(|behind| behind != guest) {
                return Some(page);
            }
            behind = Some(range.guest + (range.last - range.first) + 1);
            page = range.last.checked_add(1)?;
        }
        None
    }

    /// Puts a page into the table if it is known and may be used like that.
    pub(crate) fn show_page(&mut self, page: u64, wanted: u64) -> bool {
        let Some((range, age)) = self.find(page).filter(|(range, _)| range.permissions & wanted == wanted) else {
            return false;
        };
        // Somebody wants it: it is young again.
        self.ages.remove(&age);
        let age = self.age();
        self.ages.insert(age, range.first);
        self.ranges.insert(range.first, (range, age));
        self.put(page, range.guest + (page - range.first), range.permissions);
        true
    }

    /// The front-end has said that there is no such page for that use: whoever asks for it learns that. What it may be used for otherwise stays.
    pub(crate) fn refuse(&mut self, page: u64, wanted: u64) {
        self.counts.refused += 1;
        let known = self.find(page).map_or(0, |(range, _)| range.permissions);
        if page < PAGES {
            let (set, tag) = (index(page), set_of(page).1);
            for one in [READ, WRITE].into_iter().filter(|one| wanted & !known & one != 0) {
                let refusal = entry(tag, PAGES - one, 0);
                let way = (0..WAYS).find(|way| self.words.load_u64(word(set, *way)) == refusal);
                let way = way.unwrap_or_else(|| self.free_way(set));
                self.words.store_u64_release(word(set, way), refusal);
            }
        }
        self.write_counts();
    }

    /// As [`Iotlb::put`], but no other page has to go.
    fn put_where_room(&mut self, page: u64, guest: u64, permissions: u64) {
        let set = index(page);
        if (0..WAYS).any(|way| self.words.load_u64(word(set, way)) == 0) {
            self.put(page, guest, permissions);
        }
    }

    fn put(&mut self, page: u64, guest: u64, permissions: u64) {
        if page >= PAGES {
            return;
        }
        let (set, tag) = (index(page), set_of(page).1);
        let here = (0..WAYS).find(|way| {
            let known = self.words.load_u64(word(set, *way));
            known >> 38 == tag && known & (READ | WRITE) != 0
        });
        let way = here.unwrap_or_else(|| self.free_way(set));
        self.words.store_u64_release(word(set, way), entry(tag, guest, permissions));
        // What was refused before and is granted now.
        for one in [READ, WRITE].into_iter().filter(|one| permissions & one != 0) {
            let refusal = entry(tag, PAGES - one, 0);
            let ways = (0..WAYS).filter(|way| self.words.load_u64(word(set, *way)) == refusal);
            ways.for_each(|way| self.words.store_u64_release(word(set, way), 0));
        }
    }

    /// A place in a set: one that is free, or else that of an entry whose turn it is to go.
    fn free_way(&mut self, set: u64) -> u64 {
        if let Some(free) = (0..WAYS).find(|way| self.words.load_u64(word(set, *way)) == 0) {
            return free;
        }
        self.removed = true;
        self.turns.get_mut(set as usize).map_or(0, |turn| {
            *turn = turn.wrapping_add(1);
            u64::from(*turn) % WAYS
        })
    }

    /// Takes pages out of the table.
    fn clear(&mut self, first: u64, last: u64) {
        if last.saturating_sub(first) < SETS {
            (first..=last).filter(|page| *page < PAGES).for_each(|page| self.clear_set(index(page), page, page));
        } else {
            (0..SETS).for_each(|set| self.clear_set(set, first, last));
        }
    }

    fn clear_set(&mut self, set: u64, first: u64, last: u64) {
        for way in 0..WAYS {
            let at = word(set, way);
            let entry = self.words.load_u64(at);
            let tag = entry >> 38;
            // The tag is all of the page's number but for what the set says.
            let page = tag * SETS + (set ^ tag ^ tag >> 10 ^ tag >> 20) % SETS;
            if entry != 0 && (first..=last).contains(&page) {
                self.words.store_u64_release(at, 0);
                self.removed = true;
            }
        }
    }

    /// Pages that the switch asks for, and how it wants to use them, the most urgent first.
    pub(crate) fn questions(&self) -> Vec<(u64, u64)> {
        let mut words: Vec<_> = (0..QUESTIONS).map(|n| self.words.load_u64(8 * n as usize)).collect();
        words.retain(|word| *word != 0);
        words.sort_unstable();
        words.into_iter().map(|word| (word / 4 % PAGES, word % 4)).collect()
    }

    /// The front-end is to be asked for a page; true if it was not before.
    pub(crate) fn ask(&mut self, page: u64, wanted: u64, is_ring: bool) -> bool {
        match self.asked.get(&page) {
            Some(question) if question.wanted & wanted == wanted => return false,
            None if self.asked.len() >= MOST_ASKED => return false,
            _ => {}
        }
        self.counts.misses += 1;
        let order = if is_ring { 0 } else { self.counts.misses };
        self.asked.insert(page, Question { wanted, sent: false, order });
        self.write_counts();
        true
    }

    /// The most urgent question that was not sent.
    pub(crate) fn next_question(&mut self) -> Option<(u64, &mut Question)> {
        let unsent = self.asked.iter_mut().filter(|(_, question)| !question.sent);
        unsent.min_by_key(|(_, question)| question.order).map(|(page, question)| (*page, question))
    }

    /// Questions that are open.
    pub(crate) fn asked(&mut self) -> &mut BTreeMap<u64, Question> {
        &mut self.asked
    }

    /// A page has been answered: the switch may ask again.
    pub(crate) fn answered(&mut self, page: u64) {
        self.asked.remove(&page);
        let at = 8 * (page % QUESTIONS) as usize;
        if self.words.load_u64(at) / 4 % PAGES == page {
            self.words.store_u64_release(at, 0);
        }
        self.write_counts();
    }

    /// Shows the switch what is counted, and how much there is.
    pub(crate) fn write_counts(&self) {
        let Counts { updates, invalidations, misses, refused } = self.counts;
        let counts = [self.ranges.len() as u64, self.asked.len() as u64, updates, invalidations, misses, refused];
        for (n, count) in (QUESTIONS..).zip(counts) {
            self.words.store_u64(8 * n as usize, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_switch_finds_what_was_said_and_nothing_else(words in proptest::collection::vec(any::<u64>(), 1..400)) {
            let mut words = words.into_iter();
            check_translations(words.len() / 2, || words.next().unwrap_or(0));
        }
    }

    #[test]
    fn pages_of_bytes_at_the_end_of_all_addresses() {
        assert_eq!(Iotlb::pages(0x1000, 0x1000), (1, 1));
        assert_eq!(Iotlb::pages(0x1fff, 2), (1, 2));
        assert_eq!(Iotlb::pages(0xfef0_0000, 0xffff_ffff_0110_0000), (0xfef00, u64::MAX >> 12), "it ends at 2^64");
        assert_eq!(Iotlb::pages(0, 0), (0, u64::MAX >> 12), "2^64 bytes");
        assert_eq!(Iotlb::pages(0x5000, u64::MAX), (5, u64::MAX >> 12), "it wraps");
    }

    /// 100 000 pages, as a guest with lazy invalidation may leave behind, are no more than so many.
    #[test]
    fn the_oldest_that_nobody_wants_go_first() {
        let mut iotlb = Iotlb::new(1000).unwrap();
        let page = |n| Range { first: n, last: n, guest: n % 8, user: 0, permissions: READ };
        for n in 0..100_000 {
            iotlb.update(page(n));
            // One is wanted now and then.
            assert!(iotlb.show_page(0, READ), "at {n}");
        }
        assert_eq!(iotlb.ranges().count(), 1000);
        assert!(iotlb.covers((99_001, 99_999), READ) && !iotlb.covers((99_000, 99_000), READ));
        iotlb.forget(0, u64::MAX >> 12);
        assert_eq!((iotlb.ranges().count(), iotlb.ages.len()), (0, 0));
        assert!((0..SETS * WAYS).all(|n| iotlb.words.load_u64(word(n / WAYS, n % WAYS)) == 0), "no entry is left");
    }
}
