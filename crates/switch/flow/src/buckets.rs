//! The flows of one mask by the hashes of their keys.

use crate::entry::Flow;
use lasthop_frame::FlowKey;
use std::sync::Arc;

#[cfg(any(test, feature = "testutil"))]
mod check;

/// Most flows of one bucket. There are at least four buckets for each flow, so more than this meet by chance in one of 100 000 full
/// tables; else somebody knows something about the table's secrets, which are drawn anew in either case.
pub(crate) const MOST: usize = 8;

/// Buckets for each flow, at least.
const SPARE: usize = 4;
const NONE: u32 = u32::MAX;

/// A hash table of chains, with a bit for each bucket that says whether there is any flow in it: a lookup in vain, which is what a
/// packet does to most masks, nearly always reads that bit and nothing else. A bucket whose last flow goes has its bit
/// cleared.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    /// By how many bits a hash is shifted to leave the number of its word of bits.
    shift: u32,
    /// A power of two of words, a bit for each bucket.
    taken: Box<[u64]>,
    /// Where in `entries` the chain of each bucket begins.
    first: Box<[u32]>,
    /// In no order. 32 bits number more flows than there is memory for.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    hash: u32,
    flow: Arc<Flow>,
    next: u32,
}

impl Buckets {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The flow with this hash that a packet with this key meets.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u32, key: &FlowKey) -> Option<&Arc<Flow>> {
        if self.taken.get(self.word(hash)).is_none_or(|bits| bits >> (hash % 64) & 1 == 0) {
            return None;
        }
        let mut at = self.first.get(self.bucket(hash));
        while let Some(entry) = at.and_then(|at| self.entries.get(*at as usize)) {
            if entry.hash == hash && meets(&entry.flow, key) {
                return Some(&entry.flow);
            }
            at = Some(&entry.next);
        }
        None
    }

    /// Puts a flow in that is not there; how many there are in its bucket now.
    pub(crate) fn insert(&mut self, hash: u32, flow: Arc<Flow>) -> usize {
        self.entries.push(Entry { hash, flow, next: NONE });
        if self.entries.len() * SPARE > self.first.len() {
            self.lay_out();
        } else {
            self.link(self.entries.len() - 1);
        }
        self.chain(self.bucket(hash)).count()
    }

    /// Takes the flow with this hash out for which `condition` holds.
    pub(crate) fn remove(&mut self, hash: u32, condition: impl Fn(&Flow) -> bool) -> Option<Arc<Flow>> {
        let found = |at: &usize| self.entries[*at].hash == hash && condition(&self.entries[*at].flow);
        let at = self.chain(self.bucket(hash)).find(found)?;
        self.unlink(at);
        let last = self.entries.len() - 1;
        if at != last {
            // The last one moves to its place.
            self.unlink(last);
            self.entries.swap(at, last);
            self.link(at);
        }
        self.entries.pop().map(|entry| entry.flow)
    }

    /// Keeps the flows for which `condition` holds.
    pub(crate) fn retain(&mut self, mut condition: impl FnMut(&Flow) -> bool) {
        let before = self.entries.len();
        self.entries.retain(|entry| condition(&entry.flow));
        if self.entries.len() != before {
            self.lay_out();
        }
    }

    /// All flows have other hashes now.
    pub(crate) fn rehash(&mut self, hash: impl Fn(&Flow) -> u32) {
        self.entries.iter_mut().for_each(|entry| entry.hash = hash(&entry.flow));
        self.lay_out();
    }

    /// Makes all chains anew, with buckets enough for twice as many flows.
    fn lay_out(&mut self) {
        let words = (self.entries.len() * 2 * SPARE).div_ceil(64).next_power_of_two();
        self.shift = 32 - words.ilog2();
        self.taken = vec![0; words].into();
        self.first = vec![NONE; words * 64].into();
        (0..self.entries.len()).for_each(|at| self.link(at));
    }

    /// Which 64 buckets a hash belongs to, by its upper bits. The lower six say which of them.
    #[inline(always)]
    fn word(&self, hash: u32) -> usize {
        (u64::from(hash) >> self.shift) as usize
    }

    #[inline(always)]
    fn bucket(&self, hash: u32) -> usize {
        self.word(hash) * 64 + (hash % 64) as usize
    }

    /// The places of a bucket's flows.
    fn chain(&self, bucket: usize) -> impl Iterator<Item = usize> {
        let place = |at: u32| (at != NONE).then_some(at as usize);
        std::iter::successors(self.first.get(bucket).copied().and_then(place), move |at| place(self.entries[*at].next))
    }

    /// Puts the entry at a place in front of its bucket's chain.
    fn link(&mut self, at: usize) {
        let bucket = self.bucket(self.entries[at].hash);
        self.entries[at].next = std::mem::replace(&mut self.first[bucket], at as u32);
        self.taken[bucket / 64] |= 1 << (bucket % 64);
    }

    /// Takes the entry at a place out of its chain.
    fn unlink(&mut self, at: usize) {
        let (bucket, next) = (self.bucket(self.entries[at].hash), self.entries[at].next);
        let before = self.chain(bucket).find(|before| self.entries[*before].next == at as u32);
        match before {
            Some(before) => self.entries[before].next = next,
            None => self.first[bucket] = next,
        }
        if self.first[bucket] == NONE {
            self.taken[bucket / 64] &= !(1 << (bucket % 64));
        }
    }
}

/// [`Flow::matches`]. Not inlined: the loop around it, which nearly always ends with its first flow, would read the whole key beforehand.
#[inline(never)]
fn meets(flow: &Flow, key: &FlowKey) -> bool {
    flow.matches(key)
}
