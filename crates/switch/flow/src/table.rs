//! The wildcard table: tuple space search, one hash table for each mask (Srinivasan, Suri, Varghese, SIGCOMM '99).

use crate::buckets::{Buckets, MOST};
use crate::entry::Flow;
use crate::hash::{Factors, PARTS, Term, parts};
use crate::lru::{Lru, Position};
use crate::spec::{Action, FlowSpec};
use foldhash::fast::RandomState;
use lasthop_frame::{Depth, FlowKey, FlowMask};
use lasthop_lock::{Lock, SharedLock};
use lasthop_types::PortId;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Most different masks at a time. A lookup tries them one after the other, so this bounds what a packet can cost that
/// no cache knows; a guest cannot add masks, only policy can.
pub const MAX_MASKS: usize = 128;

/// All flows of a switch. Every method may be called from any thread; those that change something take a write lock.
#[derive(Debug, Default)]
pub struct FlowTable {
    pub(crate) inner: SharedLock<Inner>,
    limit: usize,
    depth: AtomicU8,
    /// Long lists of actions, each in the place that its hash says.
    lists: Lock<Vec<Option<Weak<[Action]>>>>,
    hasher: RandomState,
}

/// Flows share a list of so many actions or more, if both have the same. A flood to 500 ports has a list of 8 KB, and a guest may have
/// a hundred thousand such flows.
const LONG: usize = 8;
/// How many lists can be shared: floods of so many ports.
const LISTS: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) factors: Factors,
    /// The terms of a hash for what most masks look at.
    common: Vec<Term>,
    /// Those with most hits first, as of the last [`FlowTable::rank`].
    pub(crate) subtables: Vec<Subtable>,
    lru: Lru,
    len: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Subtable {
    /// The first of the terms that lead from what most masks look at to what this one does. Nearly every mask has one.
    first: Term,
    rest: Vec<Term>,
    pub(crate) flows: Buckets,
    hits: AtomicU64,
    depth: Depth,
    mask: FlowMask,
}

/// Why a flow was not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// Its mask would be one more than [`MAX_MASKS`]: policy has to use fewer combinations of fields.
    #[error("flows use {MAX_MASKS} different masks already")]
    TooManyMasks,
}

/// Answer of [`FlowTable::lookup`].
#[derive(Clone, Debug)]
pub enum Lookup {
    /// Do what this flow says.
    Flow(Arc<Flow>),
    /// No flow matches.
    Miss,
    /// Some flow looks deeper than the key was filled in, because it came after the caller had read
    /// [`FlowTable::depth`]: extract to this depth and ask again.
    Deeper(Depth),
}

impl FlowTable {
    /// An empty table for at most `limit` flows (at least one).
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), ..Self::default() }
    }

    /// The same list, shared with the flows that have it.
    fn share(&self, actions: &[Action]) -> Arc<[Action]> {
        if actions.len() < LONG {
            return actions.into();
        }
        let place = self.hasher.hash_one(actions) as usize % LISTS;
        let mut lists = self.lists.lock();
        lists.resize(LISTS, None);
        let known = lists[place].as_ref().and_then(Weak::upgrade).filter(|list| **list == *actions);
        known.unwrap_or_else(|| {
            let list = Arc::from(actions);
            lists[place] = Some(Arc::downgrade(&list));
            list
        })
    }

    /// Installs a flow, instead of one with the same key and mask if there is one; that one dies, and its statistics
    /// carry over. When the table is full the least recently used flow dies first.
    ///
    /// The caller sees to it that flows which overlap agree (see the crate's documentation).
    pub fn insert(&self, spec: FlowSpec, now_ms: u64) -> Result<Arc<Flow>, InsertError> {
        let actions = self.share(&spec.actions);
        let flow = Arc::new(Flow::new(spec, actions, now_ms));
        let mut inner = self.inner.write();
        let known = inner.subtables.iter().position(|s| s.mask == flow.mask);
        if known.is_none() && inner.subtables.len() >= MAX_MASKS {
            return Err(InsertError::TooManyMasks);
        }
        if let Some(old) = inner.take(&flow.key, &flow.mask) {
            flow.stats.inherit(&old.stats);
        } else {
            while inner.len >= self.limit {
                let Some(oldest) = inner.lru.pop() else { break };
                inner.take(&oldest.key, &oldest.mask);
            }
        }
        inner.put(&flow);
        self.changed(&mut inner);
        Ok(flow)
    }

    /// Removes the flow with exactly this key (masked or not) and mask.
    pub fn remove(&self, key: &FlowKey, mask: &FlowMask) -> Option<Arc<Flow>> {
        let mut inner = self.inner.write();
        let flow = inner.take(&key.masked(mask), mask)?;
        self.changed(&mut inner);
        Some(flow)
    }

    /// Removes every flow that names this port, as the only one that packets may come from or as one that they go to.
    /// How many there were.
    pub fn remove_port(&self, port: PortId) -> usize {
        let to_it = |action: &Action| matches!(action, Action::Output(to) | Action::Truncated(to, _) | Action::Copy(to) if *to == port);
        self.remove_if(|flow| {
            (flow.mask.0.in_port == u32::MAX && flow.key.in_port == port.0) || flow.actions.iter().any(to_it)
        })
    }

    /// Removes every flow for which `condition` holds. How many there were.
    pub fn remove_if(&self, mut condition: impl FnMut(&Flow) -> bool) -> usize {
        let mut inner = self.inner.write();
        let before = inner.len;
        let mut left = 0;
        for subtable in &mut inner.subtables {
            subtable.flows.retain(|flow| {
                let keep = !condition(flow);
                if !keep {
                    flow.kill();
                }
                keep
            });
            left += subtable.flows.len();
        }
        inner.len = left;
        if left != before {
            self.changed(&mut inner);
        }
        before - left
    }

    /// The flow that a packet meets whose key was extracted to `depth`. What a lookup costs:
    ///
    /// 1. What most masks look at is summed up once, for all of them: ten instructions for each 32 bits of the key.
    /// 2. A mask without such a flow: what it looks at beyond that is added, and a bit says that the bucket is empty. About 30
    ///    instructions, 4 cycles, and a read of a small table. Where the bit is set, one in four to eight times in a full table, the
    ///    hashes in the bucket's chain are compared, too.
    /// 3. The mask that has it: the chain of a bucket, nearly always of one flow and, but by an accident of one draw in very many, of no more than [`MOST`], and the key
    ///    is compared. About 100 instructions, 75 cycles, most of which are the lock's and the reference count's.
    pub fn lookup(&self, key: &FlowKey, depth: Depth) -> Lookup {
        let inner = self.inner.read();
        // Relaxed: it is written with the lock held that is held here.
        if (depth as u8) < self.depth.load(Relaxed) {
            return Lookup::Deeper(self.depth());
        }
        let begun = inner.factors.begin(&inner.common, parts(key));
        for subtable in &inner.subtables {
            let hash = inner.factors.finish(subtable.sum(begun, parts(key)));
            if let Some(flow) = subtable.flows.find(hash, key) {
                // Relaxed: a count, by which only `rank` puts masks in order.
                subtable.hits.fetch_add(1, Relaxed);
                return Lookup::Flow(Arc::clone(flow));
            }
        }
        Lookup::Miss
    }

    /// Puts the masks that are met most often first. To be called now and then, say once a second.
    pub fn rank(&self) {
        let mut inner = self.inner.write();
        inner.subtables.sort_by_key(|s| std::cmp::Reverse(s.hits.load(Relaxed)));
        for subtable in &mut inner.subtables {
            // So that what was busy long ago does not stay first for ever.
            *subtable.hits.get_mut() /= 2;
        }
    }

    /// How deep a key must be extracted for the flows there are. Without a lock.
    #[inline]
    pub fn depth(&self) -> Depth {
        // Relaxed: a thread that reads an old one and looks a packet up is told (`Lookup::Deeper`); one that has the flow in a cache compares
        // its depth.
        match self.depth.load(Relaxed) {
            d if d == Depth::L2 as u8 => Depth::L2,
            d if d == Depth::L4 as u8 => Depth::L4,
            _ => Depth::Full,
        }
    }

    /// Some flows, and where to go on; `None` when these were the last. Looks at no more than `limit`: packets of new flows wait
    /// meanwhile. Begin with `(0, 0, 0)`. A caller that goes on to the end meets every flow that is there all the time, some twice; it ends however
    /// many come meanwhile.
    pub fn flows_after(&self, after: Position, limit: usize) -> (Vec<Arc<Flow>>, Option<Position>) {
        self.inner.read().lru.after(after, limit)
    }

    /// After a change: forgets unused masks and publishes the depth, which is read without a lock.
    fn changed(&self, inner: &mut Inner) {
        if inner.subtables.iter().any(|s| s.flows.len() == 0) {
            inner.subtables.retain(|s| s.flows.len() > 0);
            inner.divide();
        }
        let depth = inner.subtables.iter().map(|s| s.depth).max().unwrap_or_default();
        self.depth.store(depth as u8, Relaxed);
    }
}

impl Inner {
    /// Takes a flow out and kills it. An empty subtable stays until [`FlowTable::changed`].
    fn take(&mut self, key: &FlowKey, mask: &FlowMask) -> Option<Arc<Flow>> {
        let subtable = self.subtables.iter_mut().find(|s| s.mask == *mask)?;
        let flow = subtable.flows.remove(self.factors.hash(key), |f| f.key == *key)?;
        flow.kill();
        self.len -= 1;
        Some(flow)
    }

    /// Puts a flow in whose key is not there.
    fn put(&mut self, flow: &Arc<Flow>) {
        let at = self.subtables.iter().position(|s| s.mask == flow.mask).unwrap_or_else(|| {
            self.subtables.push(Subtable { mask: flow.mask, depth: flow.depth(), ..Subtable::default() });
            self.divide();
            self.subtables.len() - 1
        });
        if self.subtables[at].flows.insert(self.factors.hash(&flow.key), Arc::clone(flow)) > MOST {
            self.rehash(Factors::default());
        }
        self.len += 1;
        self.lru.insert(flow);
    }

    /// Draws lots anew: which hashes the flows have, and so which of them share a bucket, tells nothing of how it was before. All
    /// lookups wait meanwhile.
    pub(crate) fn rehash(&mut self, factors: Factors) {
        self.factors = factors;
        self.divide();
        for subtable in &mut self.subtables {
            subtable.flows.rehash(|flow| self.factors.hash(&flow.key));
        }
    }

    /// Decides anew, after masks have come or gone, which terms of the hashes are made once for all masks: those of the parts that more
    /// than half of the masks look at in the same way. The hashes stay the same.
    fn divide(&mut self) {
        let masks = || self.subtables.iter().map(|s| parts(&s.mask.0));
        let mask: [u32; PARTS] = std::array::from_fn(|part| majority(masks().map(|mask| mask[part])));
        let mask = FlowMask(zerocopy::transmute!(mask));
        self.common = self.factors.terms(&FlowMask::default(), &mask);
        for subtable in &mut self.subtables {
            let mut own = self.factors.terms(&mask, &subtable.mask).into_iter();
            subtable.first = own.next().unwrap_or_default();
            subtable.rest = own.collect();
        }
    }
}

impl Subtable {
    /// The whole sum for a key, given what it has in common with most masks.
    #[inline(always)]
    fn sum(&self, begun: u64, key: &[u32; PARTS]) -> u64 {
        let sum = begun.wrapping_add(self.first.of(key));
        self.rest.iter().fold(sum, |sum, term| sum.wrapping_add(term.of(key)))
    }
}

/// What more than half of the numbers are; 0 if there is no such number (the vote of Boyer and Moore).
fn majority(numbers: impl ExactSizeIterator<Item = u32> + Clone) -> u32 {
    let (candidate, _) = numbers.clone().fold((0, 0), |(candidate, votes), number| match votes {
        0 => (number, 1),
        _ if number == candidate => (candidate, votes + 1),
        _ => (candidate, votes - 1),
    });
    let all = numbers.len();
    if numbers.filter(|number| *number == candidate).count() * 2 > all { candidate } else { 0 }
}

#[cfg(test)]
mod tests;
