//! The flow table a second time, as a list, for tests here and elsewhere (feature `testutil`). Panics when the two
//! disagree: never for real input.

use crate::hash::Factors;
use crate::table::Inner;
use crate::{Action, ExactCache, Flow, FlowSpec, FlowTable, Lookup, hash_key};
use lasthop_frame::FlowKey;
use lasthop_types::PortId;
use std::sync::Arc;

impl FlowTable {
    /// All flows, in no order: for tests, as it may take long.
    pub fn flows(&self) -> Vec<Arc<Flow>> {
        self.inner.read().subtables.iter().flat_map(|s| s.flows.iter()).cloned().collect()
    }
}

/// What a [`FlowTable`] should be, as a list.
#[derive(Default)]
struct Model(Vec<(FlowSpec, u64)>);

impl Model {
    fn insert(&mut self, spec: FlowSpec, now: u64, limit: usize) {
        let key = spec.key.masked(&spec.mask);
        let spec = FlowSpec { key, ..spec };
        if let Some(old) = self.0.iter().position(|(f, _)| f.key == key && f.mask == spec.mask) {
            self.0.remove(old);
        } else if self.0.len() == limit {
            let oldest = (0..limit).min_by_key(|i| self.0[*i].1).unwrap();
            self.0.remove(oldest);
        }
        self.0.push((spec, now));
    }

    fn matching(&self, key: &FlowKey) -> Vec<&FlowSpec> {
        self.0.iter().map(|(f, _)| f).filter(|f| key.masked(&f.mask) == f.key).collect()
    }
}

/// What happens to a table, or to a packet that asks it.
#[derive(Clone, Debug)]
pub enum Step {
    /// A flow is installed.
    Insert(FlowSpec),
    /// The flow with this key and mask is removed, if there is one.
    Remove(FlowSpec),
    /// All flows that name this port are removed.
    RemovePort(u32),
    /// A packet with this key asks the cache, then the table.
    Packet(FlowKey),
    /// The busiest masks are put first.
    Rank,
    /// From now on keys collide that differ only in the parts (of 32 bits) whose bits are set.
    Collide(u64),
}

/// Factors by which keys collide that differ only in the parts whose bits are set.
pub(crate) fn blind(to: u64) -> Factors {
    let mut factors = Factors::default();
    factors.parts.iter_mut().enumerate().filter(|(part, _)| to >> part & 1 != 0).for_each(|(_, f)| *f = 0);
    factors
}

/// Panics unless each flow is where it is looked for.
pub(crate) fn check(inner: &Inner) {
    inner.subtables.iter().for_each(|s| s.flows.check(|flow| inner.factors.hash(&flow.key)));
}

/// Table and cache against the list. Flows here may contradict each other, which control never lets happen, so any live
/// flow that matches is a right answer; none is right only if none matches. `steps` must use fewer masks than
/// [`MAX_MASKS`](crate::MAX_MASKS).
pub fn compare(steps: impl IntoIterator<Item = Step>) {
    // More than one bucket takes.
    const LIMIT: usize = 12;
    let (table, mut model) = (FlowTable::new(LIMIT), Model::default());
    let writer = crate::WriterId::default();
    let mut cache = ExactCache::new(8, 8);
    for (now, step) in steps.into_iter().enumerate() {
        let now = now as u64;
        match step {
            Step::Insert(spec) => {
                table.insert(spec.clone(), now).unwrap();
                model.insert(spec, now, LIMIT);
            }
            Step::Remove(spec) => {
                let key = spec.key.masked(&spec.mask);
                let known = model.0.iter().position(|(f, _)| f.key == key && f.mask == spec.mask);
                assert_eq!(table.remove(&spec.key, &spec.mask).is_some(), known.is_some());
                known.map(|at| model.0.remove(at));
            }
            Step::RemovePort(port) => {
                let before = model.0.len();
                model.0.retain(|(f, _)| {
                    let from = f.mask.0.in_port != 0 && f.key.in_port == port;
                    !from && !f.actions.contains(&Action::Output(PortId(port)))
                });
                assert_eq!(table.remove_port(PortId(port)), before - model.0.len());
            }
            Step::Packet(key) => {
                let depth = table.depth();
                let hash = hash_key(&key, depth);
                let cached = cache.find(&key, depth, hash).and_then(|slot| cache.get(slot)).cloned();
                let found = match table.lookup(&key, depth) {
                    Lookup::Flow(flow) => Some(flow),
                    Lookup::Miss => None,
                    Lookup::Deeper(_) => unreachable!("the depth is the table's"),
                };
                let right = model.matching(&key);
                assert_eq!(found.is_some(), !right.is_empty());
                for flow in cached.iter().chain(&found) {
                    assert!(right.contains(&&flow.spec()), "{:?} among {:?}", flow.spec(), right);
                }
                if let Some(flow) = cached.or(found) {
                    flow.stats.add(writer, 1, 60, now);
                    let used = model.0.iter().position(|(f, _)| *f == flow.spec());
                    // Kept in order of installation among equals by time alone: every step has its own.
                    model.0[used.unwrap()].1 = now;
                    cache.put(hash, flow);
                }
            }
            Step::Rank => table.rank(),
            Step::Collide(parts) => table.inner.write().rehash(blind(parts)),
        }
        assert_eq!(table.flows().len(), model.0.len());
        let (mut cursor, mut met) = (Some((0, 0, 0)), 0);
        while let Some(after) = cursor {
            let (flows, next) = table.flows_after(after, 2);
            (met, cursor) = (met + flows.len(), next);
        }
        assert_eq!(met, model.0.len(), "who goes through them meets each once, as nothing changes meanwhile");
        let depth = model.0.iter().map(|(f, _)| f.mask.depth()).max().unwrap_or_default();
        assert_eq!(table.depth(), depth);
        let mut masks: Vec<_> = model.0.iter().map(|(f, _)| f.mask.0.words()).collect();
        masks.sort();
        masks.dedup();
        let inner = table.inner.read();
        assert_eq!(inner.subtables.len(), masks.len());
        check(&inner);
    }
}
