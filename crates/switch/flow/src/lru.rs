//! Which flow has been unused for longest.

use crate::entry::Flow;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

/// A place in the order of flows by last use, and the newest flow when somebody began to go through them; 0 is before the first.
pub type Position = (u64, u64, u64);

/// Places of newer flows are passed over, so many at a time: tens of microseconds.
const PLACES: usize = 4096;

/// Flows by last use and, among equals, by order of filing; put right lazily: workers only store a time in the flow; here
/// a flow that turns out to have been used since it was filed is filed again. Each flow is refiled at most once for each
/// time all others were, so an eviction costs O(log n) on average and workers never touch a list.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    filed: BTreeMap<(u64, u64), Arc<Flow>>,
    sequence: u64,
}

impl Lru {
    pub(crate) fn insert(&mut self, flow: &Arc<Flow>, live: usize) {
        self.sequence += 1;
        self.filed.insert((flow.stats.last_used_ms(), self.sequence), Arc::clone(flow));
        // Flows that died otherwise stay filed until here.
        if self.filed.len() > 2 * live + 64 {
            self.filed.retain(|_, flow| !flow.is_dead());
        }
    }

    /// At most `limit` live flows behind `after`, and where to go on, unless these were all. A flow that is filed again goes further
    /// back, so a walk that goes on from there meets every flow that stays, some of them twice. Flows that came after the walk
    /// began are passed over: else a guest that makes new ones as fast as others are looked at would keep it from ever ending.
    pub(crate) fn after(&self, (ms, sequence, newest): Position, limit: usize) -> (Vec<Arc<Flow>>, Option<Position>) {
        let newest = if (ms, sequence) == (0, 0) { self.sequence } else { newest };
        let mut flows = Vec::new();
        let (mut last, mut looked_at) = ((ms, sequence), 0);
        for (n, (place, flow)) in self.filed.range((Excluded(last), Unbounded)).enumerate() {
            if n == PLACES || looked_at == limit {
                return (flows, Some((last.0, last.1, newest)));
            }
            last = *place;
            if place.1 <= newest {
                looked_at += 1;
                flows.extend((!flow.is_dead()).then(|| Arc::clone(flow)));
            }
        }
        (flows, None)
    }

    /// Takes the least recently used live flow out.
    pub(crate) fn pop(&mut self) -> Option<Arc<Flow>> {
        // Workers go on using flows meanwhile; after one round of all, whichever is oldest on file will do.
        let mut rounds = self.filed.len();
        while let Some(((filed_ms, sequence), flow)) = self.filed.pop_first() {
            let last_used_ms = flow.stats.last_used_ms();
            if !flow.is_dead() && (last_used_ms == filed_ms || rounds == 0) {
                return Some(flow);
            }
            if !flow.is_dead() {
                rounds -= 1;
                self.filed.insert((last_used_ms, sequence), flow);
            }
        }
        None
    }
}
