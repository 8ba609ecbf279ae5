//! What tests look at.

use super::{Buckets, MOST, SPARE};
use crate::entry::Flow;
use std::sync::Arc;

impl Buckets {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Flow>> {
        self.entries.iter().map(|entry| &entry.flow)
    }

    /// Flows in the longest chain.
    #[cfg(test)]
    pub(crate) fn longest(&self) -> usize {
        (0..self.first.len()).map(|bucket| self.chain(bucket).count()).max().unwrap_or_default()
    }

    /// Buckets whose bit is set.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u32 {
        self.taken.iter().map(|bits| bits.count_ones()).sum()
    }

    /// Panics unless each flow is in the chain of its bucket, and the bits of taken buckets are right.
    pub(crate) fn check(&self, hash: impl Fn(&Flow) -> u32) {
        let mut met = vec![false; self.entries.len()];
        for bucket in 0..self.first.len() {
            let taken = self.taken[bucket / 64] >> (bucket % 64) & 1 != 0;
            assert_eq!(taken, self.chain(bucket).count() > 0, "bit of bucket {bucket}");
            for at in self.chain(bucket) {
                assert!(self.bucket(self.entries[at].hash) == bucket && !std::mem::replace(&mut met[at], true));
                assert_eq!(self.entries[at].hash, hash(&self.entries[at].flow));
            }
            assert!(self.chain(bucket).count() <= MOST, "bucket {bucket} has too many");
        }
        assert!(met.iter().all(|met| *met), "in no chain");
        assert!(self.first.len() >= SPARE * self.len(), "too few buckets");
    }
}
