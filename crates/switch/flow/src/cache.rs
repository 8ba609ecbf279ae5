//! The exact-match cache that each worker asks first.

use crate::entry::Flow;
use lasthop_frame::{Depth, FlowKey};
use std::sync::Arc;

/// Remembers which flow keys met. Of one size, one owner, no lock, nothing allocated after [`ExactCache::new`].
///
/// An entry is the key's hash and the flow; the key itself is not stored, because the flow's own mask says whether it
/// matches. So one set of four fits a cache line, a wrong hit is impossible even when hashes collide, and an entry can
/// only be wrong once its flow is dead, which is looked at every time.
#[derive(Debug)]
pub struct ExactCache {
    /// A power of two of them.
    sets: Box<[Set]>,
    /// Flows that had to go because their set was full. Which way of it goes next, too.
    evicted: usize,
}

const WAYS: usize = 4;

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
    /// A cache of at least `entries` entries of 16 bytes each.
    pub fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(WAYS).next_power_of_two();
        Self { sets: (0..sets).map(|_| Set::default()).collect(), evicted: 0 }
    }

    /// The same, unless there is no memory for it.
    pub fn try_new(entries: usize) -> Option<Self> {
        let (count, mut sets) = (entries.div_ceil(WAYS).next_power_of_two(), Vec::new());
        sets.try_reserve_exact(count).ok()?;
        sets.resize_with(count, Set::default);
        Some(Self { sets: sets.into(), evicted: 0 })
    }

    /// How many entries it has.
    #[inline]
    pub fn entries(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// How many flows had to go for want of room, though they live.
    #[inline]
    pub fn evicted(&self) -> u64 {
        self.evicted as u64
    }

    /// Where the flow lies that a key met before. `key` has been extracted to `depth` and `hash` is its
    /// [`hash_key`](crate::hash_key) at that depth.
    #[inline(always)]
    pub fn find(&self, key: &FlowKey, depth: Depth, hash: u64) -> Option<Slot> {
        let index = self.index(hash);
        let way = self.sets.get(index)?.tags.iter().position(|tag| *tag == hash)?;
        let slot = Slot { index, way };
        self.get(slot).filter(|flow| !flow.is_dead() && flow.depth() <= depth && flow.matches(key)).map(|_| slot)
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
            self.evicted = self.evicted.wrapping_add(1);
            self.evicted % WAYS
        });
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
