//! The wildcard table: tuple space search, one hash table for each mask (Srinivasan, Suri, Varghese, SIGCOMM '99).

use crate::entry::Flow;
use crate::hash::hash_key;
use crate::lru::{Lru, Position};
use crate::spec::{Action, FlowSpec};
use hashbrown::HashTable;
use lasthop_frame::{Depth, FlowKey, FlowMask};
use lasthop_lock::SharedLock;
use lasthop_types::PortId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Most different masks at a time. A lookup tries them one after the other, so this bounds what a packet can cost that
/// no cache knows; a guest cannot add masks, only policy can.
pub const MAX_MASKS: usize = 128;

/// All flows of a switch. Every method may be called from any thread; those that change something take a write lock.
#[derive(Debug)]
pub struct FlowTable {
    pub(crate) inner: SharedLock<Inner>,
    limit: usize,
    depth: AtomicU8,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// Those with most hits first, as of the last [`FlowTable::rank`].
    pub(crate) subtables: Vec<Subtable>,
    lru: Lru,
    len: usize,
}

#[derive(Debug)]
pub(crate) struct Subtable {
    mask: FlowMask,
    depth: Depth,
    flows: HashTable<Arc<Flow>>,
    hits: AtomicU64,
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
        Self { inner: SharedLock::default(), limit: limit.max(1), depth: AtomicU8::new(Depth::L2 as u8) }
    }

    /// Installs a flow, instead of one with the same key and mask if there is one; that one dies, and its statistics
    /// carry over. When the table is full the least recently used flow dies first.
    ///
    /// The caller sees to it that flows which overlap agree (see the crate's documentation).
    pub fn insert(&self, spec: FlowSpec, now_ms: u64) -> Result<Arc<Flow>, InsertError> {
        let flow = Arc::new(Flow::new(spec, now_ms));
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
        self.remove_if(|flow| {
            (flow.mask.0.in_port == u32::MAX && flow.key.in_port == port.0)
                || flow.actions.contains(&Action::Output(port))
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

    /// The flow that a packet meets whose key was extracted to `depth`.
    pub fn lookup(&self, key: &FlowKey, depth: Depth) -> Lookup {
        let inner = self.inner.read();
        let needed = self.depth();
        if depth < needed {
            return Lookup::Deeper(needed);
        }
        for subtable in &inner.subtables {
            let masked = key.masked(&subtable.mask);
            if let Some(flow) = subtable.flows.find(hash_key(&masked, subtable.depth), |f| f.matches(key)) {
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
        match self.depth.load(Relaxed) {
            d if d == Depth::L2 as u8 => Depth::L2,
            d if d == Depth::L4 as u8 => Depth::L4,
            _ => Depth::Full,
        }
    }

    /// Some flows, and where to go on; `None` when these were the last. Looks at no more than `limit`: packets of new flows wait
    /// meanwhile. Begin with `(0, 0, 0)`. Who goes on to the end meets every flow that is there all the time, some twice; it ends however
    /// many come meanwhile.
    pub fn flows_after(&self, after: Position, limit: usize) -> (Vec<Arc<Flow>>, Option<Position>) {
        self.inner.read().lru.after(after, limit)
    }

    /// All flows, in no order: for tests, as it may take long.
    pub fn flows(&self) -> Vec<Arc<Flow>> {
        self.inner.read().subtables.iter().flat_map(|s| &s.flows).cloned().collect()
    }

    /// After a change: forgets unused masks and publishes the depth, which is read without a lock.
    fn changed(&self, inner: &mut Inner) {
        inner.subtables.retain(|s| !s.flows.is_empty());
        let depth = inner.subtables.iter().map(|s| s.depth).max().unwrap_or_default();
        self.depth.store(depth as u8, Relaxed);
    }
}

impl Inner {
    /// Takes a flow out and kills it. An empty subtable stays until [`FlowTable::changed`].
    fn take(&mut self, key: &FlowKey, mask: &FlowMask) -> Option<Arc<Flow>> {
        let subtable = self.subtables.iter_mut().find(|s| s.mask == *mask)?;
        let hash = hash_key(key, subtable.depth);
        let (flow, _) = subtable.flows.find_entry(hash, |f| f.key == *key).ok()?.remove();
        flow.kill();
        self.len -= 1;
        Some(flow)
    }

    /// Puts a flow in whose key is not there.
    fn put(&mut self, flow: &Arc<Flow>) {
        let at = self.subtables.iter().position(|s| s.mask == flow.mask).unwrap_or_else(|| {
            let (mask, depth) = (flow.mask, flow.depth());
            self.subtables.push(Subtable { mask, depth, flows: HashTable::new(), hits: AtomicU64::new(0) });
            self.subtables.len() - 1
        });
        let Subtable { flows, depth, .. } = &mut self.subtables[at];
        flows.insert_unique(hash_key(&flow.key, *depth), Arc::clone(flow), |f| hash_key(&f.key, *depth));
        self.len += 1;
        self.lru.insert(flow, self.len);
    }
}

#[cfg(test)]
mod tests;
