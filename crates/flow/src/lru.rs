//! Which flow has been unused for longest.

use crate::entry::Flow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A heap by last use, put right lazily: workers only store a time in the flow; here a flow that turns out to have been
/// used since it was filed is filed again. Each flow is refiled at most once for each time all others were, so an
/// eviction costs O(log n) on average and workers never touch a list.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    heap: BinaryHeap<Reverse<Filed>>,
    sequence: u64,
}

#[derive(Debug)]
struct Filed {
    last_used_ms: u64,
    /// Order of installation, among equals.
    sequence: u64,
    flow: Arc<Flow>,
}

impl Lru {
    pub(crate) fn insert(&mut self, flow: &Arc<Flow>, live: usize) {
        self.sequence += 1;
        let last_used_ms = flow.stats.last_used_ms();
        self.heap.push(Reverse(Filed { last_used_ms, sequence: self.sequence, flow: Arc::clone(flow) }));
        // Flows that died otherwise stay filed until here.
        if self.heap.len() > 2 * live + 64 {
            self.heap.retain(|Reverse(f)| !f.flow.is_dead());
        }
    }

    /// Takes the least recently used live flow out.
    pub(crate) fn pop(&mut self) -> Option<Arc<Flow>> {
        // Workers go on using flows meanwhile; after one round of all, whichever is oldest on file will do.
        let mut rounds = self.heap.len();
        while let Some(Reverse(filed)) = self.heap.pop() {
            if filed.flow.is_dead() {
                continue;
            }
            let last_used_ms = filed.flow.stats.last_used_ms();
            if last_used_ms == filed.last_used_ms || rounds == 0 {
                return Some(filed.flow);
            }
            rounds -= 1;
            self.heap.push(Reverse(Filed { last_used_ms, ..filed }));
        }
        None
    }
}

impl Ord for Filed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.last_used_ms, self.sequence).cmp(&(other.last_used_ms, other.sequence))
    }
}

impl PartialOrd for Filed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Filed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Filed {}
