//! The exact-match cache that each worker asks first.

use crate::entry::Flow;
use lasthop_frame::{Depth, FlowKey};
use lasthop_types::{CacheFigures, Counter};
use std::sync::Arc;

/// Remembers which flow keys met. One owner, no lock, nothing allocated after [`ExactCache::new`]: it grows into address space
/// that it has from the beginning.
///
/// An entry is the key's hash and the flow; the key itself is not stored, because the flow's own mask says whether it
/// matches. So one set of four fits a cache line, a wrong hit is impossible even when hashes collide, and an entry can
/// only be wrong once its flow is dead, which is looked at every time.
#[derive(Debug)]
pub struct ExactCache {
    /// A power of two of them.
    sets: Vec<Set>,
    /// How many flows had to go because their set was full says which way of it goes next, too.
    counters: Arc<CacheFigures<Counter>>,
    /// At so many evictions, as many as there are entries after `since_ns`, the cache is crowded.
    crowded: u64,
    since_ns: u64,
}

const WAYS: usize = 4;
/// See [`ExactCache::grow_if_crowded`].
const PERIOD_NS: u64 = 100_000_000;

/// A place in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    index: usize,
    way: usize,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    tags: [u64; WAYS],
    flows: [Option<Arc<Flow>>; WAYS],
}

impl ExactCache {
    /// A cache of at least `entries` entries of 16 bytes each, with address space for `most`.
    pub fn new(entries: usize, most: usize) -> Self {
        let [count, most] = [entries, most].map(|n| n.div_ceil(WAYS).next_power_of_two());
        let mut sets = Vec::with_capacity(most);
        sets.resize_with(count, Set::default);
        let counters = Arc::<CacheFigures<Counter>>::default();
        counters.entries.add((count * WAYS) as u64);
        Self { sets, counters, crowded: (count * WAYS) as u64, since_ns: 0 }
    }

    /// What it counts, for other threads.
    pub fn counters(&self) -> &Arc<CacheFigures<Counter>> {
        &self.counters
    }

    /// Doubles it, up to what there is room for, when within [`PERIOD_NS`] as many flows had to go as it has entries. An entry whose place
    /// is another one then is met no more, and goes when its old place is needed.
    #[inline]
    pub fn grow_if_crowded(&mut self, now_ns: u64) {
        if self.counters.evicted.get() >= self.crowded {
            self.grow(now_ns);
        }
    }

    #[cold]
    fn grow(&mut self, now_ns: u64) {
        let took_ns = now_ns.saturating_sub(std::mem::replace(&mut self.since_ns, now_ns));
        let larger = 2 * self.sets.len();
        if took_ns < PERIOD_NS && larger <= self.sets.capacity() {
            self.counters.entries.add((self.sets.len() * WAYS) as u64);
            self.sets.resize_with(larger, Set::default);
        }
        self.crowded = self.counters.evicted.get() + self.counters.entries.get();
    }

    /// Where the flow lies that a key met before. `key` has been extracted to `depth` and `hash` is its
    /// [`hash_key`](crate::hash_key) at that depth.
    #[inline(always)]
    pub fn find(&self, key: &FlowKey, depth: Depth, hash: u64) -> Option<Slot> {
        let index = self.index(hash);
        let way = self.sets.get(index)?.tags.iter().position(|tag| *tag == hash)?;
        let slot = Slot { index, way };
        self.get(slot).filter(|flow| !flow.is_dead() && flow.depth() <= depth && flow.matches(key))?;
        self.counters.hits.add(1);
        Some(slot)
    }

    /// What lies there. Good until the next [`ExactCache::put`].
    #[inline]
    pub fn get(&self, slot: Slot) -> Option<&Arc<Flow>> {
        self.sets.get(slot.index)?.flows.get(slot.way)?.as_ref()
    }

    /// Remembers that the key with this hash met this flow; where.
    pub fn put(&mut self, hash: u64, flow: Arc<Flow>) -> Slot {
        let index = self.index(hash);
        let set = &mut self.sets[index];
        let same = set.tags.iter().position(|tag| *tag == hash);
        let way = same.or_else(|| set.flows.iter().position(|f| f.as_ref().is_none_or(|f| f.is_dead())));
        let way = way.unwrap_or_else(|| {
            self.counters.evicted.add(1);
            self.counters.evicted.get() as usize % WAYS
        });
        self.counters.misses.add(1);
        self.counters.used.add(u64::from(set.flows[way].is_none()));
        set.tags[way] = hash;
        set.flows[way] = Some(flow);
        Slot { index, way }
    }

    /// In range, because the number of sets is a power of two.
    fn index(&self, hash: u64) -> usize {
        hash as usize & (self.sets.len() - 1)
    }
}

#[cfg(test)]
mod tests;
