//! The guest's record of what it has granted (PhD section 3.5.2): a hash table whose sets are a cache line of eight words each,
//! a page's number and how many of its buffers are in use in a word.

const WAYS: usize = 8;
/// Bits of a word that count uses; the page's number and one stands above them.
const COUNT_BITS: u32 = 16;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Set([u64; WAYS]);

/// What came of wanting a page granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is granted already.
    Held,
    /// It has to be granted.
    New,
    /// It has to be granted, and the grant of this page be revoked before.
    Instead(u64),
    /// All pages of its set are in use: it cannot be granted now.
    Full,
}

/// The pages that are granted, for one use of them: for reading, or for writing too.
#[derive(Debug)]
pub struct Track {
    sets: Vec<Set>,
}

impl Track {
    /// Room for so many pages, rounded up to whole sets.
    pub fn new(pages: usize) -> Self {
        Self { sets: vec![Set([0; WAYS]); pages.div_ceil(WAYS).max(1)] }
    }

    fn set(&mut self, page: u64) -> &mut [u64; WAYS] {
        // Fibonacci hashing; neighbours go to different sets.
        let hash = page.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (u128::from(hash) * self.sets.len() as u128) >> 64;
        &mut self.sets[at as usize].0
    }

    fn find(&mut self, page: u64) -> Option<&mut u64> {
        self.set(page).iter_mut().find(|word| **word >> COUNT_BITS == page + 1)
    }

    /// One buffer more of a page is in use.
    pub fn take(&mut self, page: u64) -> Taken {
        if let Some(word) = self.find(page) {
            if *word & COUNT == COUNT {
                return Taken::Full;
            }
            *word += 1;
            return Taken::Held;
        }
        let set = self.set(page);
        let place = set.iter().position(|word| *word == 0).or_else(|| set.iter().position(|word| word & COUNT == 0));
        let Some(place) = place else { return Taken::Full };
        let before = std::mem::replace(&mut set[place], (page + 1) << COUNT_BITS | 1);
        if before == 0 { Taken::New } else { Taken::Instead((before >> COUNT_BITS) - 1) }
    }

    /// One buffer less of a page is in use; whether that was the last. The page stays granted.
    pub fn put(&mut self, page: u64) -> bool {
        let Some(word) = self.find(page).filter(|word| **word & COUNT > 0) else { return false };
        *word -= 1;
        *word & COUNT == 0
    }

    /// Whether a page is granted.
    pub fn holds(&mut self, page: u64) -> bool {
        self.find(page).is_some()
    }

    /// A page that is not in use is granted no longer.
    pub fn forget(&mut self, page: u64) {
        if let Some(word) = self.find(page).filter(|word| **word & COUNT == 0) {
            *word = 0;
        }
    }

    /// All pages that are not in use are granted no longer; which these were.
    pub fn drain(&mut self) -> Vec<u64> {
        let words = self.sets.iter_mut().flat_map(|set| &mut set.0);
        let idle = words.filter(|word| **word != 0 && **word & COUNT == 0);
        idle.map(|word| (std::mem::take(word) >> COUNT_BITS) - 1).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_set_is_a_cache_line() {
        assert_eq!((size_of::<Set>(), align_of::<Set>()), (64, 64));
    }

    #[test]
    fn an_idle_page_makes_room_and_one_in_use_does_not() {
        let mut track = Track::new(8);
        (0..8).for_each(|page| assert_eq!(track.take(page), Taken::New));
        assert_eq!((track.take(3), track.take(8)), (Taken::Held, Taken::Full));
        assert!(!track.put(3) && track.put(3));
        assert_eq!(track.take(8), Taken::Instead(3));
        assert!(!track.holds(3) && track.holds(8) && !track.put(3));
        track.forget(8);
        assert!(track.holds(8), "in use");
        assert!(track.put(8));
        assert_eq!((track.drain(), track.holds(8)), (vec![8], false));
    }

    /// Against a map without bounds: nothing that is in use is ever lost, and what the answers say adds up.
    #[test]
    fn answers_agree_with_a_map() {
        let (mut track, mut map) = (Track::new(64), HashMap::<u64, u32>::new());
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let page = (state >> 33) % 200;
            if state >> 62 < 2 {
                match track.take(page) {
                    Taken::Held => *map.get_mut(&page).expect("granted") += 1,
                    Taken::New => assert_eq!(map.insert(page, 1), None),
                    Taken::Instead(old) => {
                        assert_eq!((map.remove(&old), map.insert(page, 1)), (Some(0), None));
                    }
                    Taken::Full => assert!(!map.contains_key(&page)),
                }
            } else if let Some(count) = map.get_mut(&page).filter(|count| **count > 0) {
                *count -= 1;
                assert_eq!(track.put(page), *count == 0);
            }
        }
        let mut idle: Vec<u64> = map.iter().filter(|(_, count)| **count == 0).map(|(page, _)| *page).collect();
        let mut drained = track.drain();
        idle.sort_unstable();
        drained.sort_unstable();
        assert_eq!(drained, idle);
    }
}
