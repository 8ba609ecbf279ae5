//! Where the data plane holds a cache of the flows: this index has all of them, and a packet that misses one is answered by it.
//!
//! A flow that has made room for another there is as right as it was: what makes flows wrong (stations that move, other lists, connections
//! that end) is put right here whether or not the data plane has them at the moment (`stale.rs`). So nothing is judged anew, no list is asked,
//! and what follows is what would follow if the data plane had told of one more packet of the flow
//! (Ram, PhD thesis, 5.2.2: "the corresponding flow rule, which has already been synthesized, can be directly cached").

use super::{Effects, Learning, RESEND_MS, Resume};
use crate::flows::Refusal;
use lasthop_flow::FlowSpec;
use lasthop_frame::FlowKey;

/// What came of misses where the data plane holds a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recalls {
    /// Packets that were judged: by what is learned, and by lists and settings.
    pub judged: u64,
    /// Packets that were answered by a flow that is known, which was sent once more.
    pub recached: u64,
    /// Packets that were answered by a flow that is known and on its way, or was a moment ago: it was sent less than 50 ms before.
    pub under_way: u64,
}

impl Learning {
    /// What came of misses; zeros where the data plane holds all flows.
    pub fn recalls(&self) -> Recalls {
        self.recalls
    }

    /// The data plane holds a cache of the flows.
    pub(super) fn is_cached(&self) -> bool {
        self.limits.data_plane_caches
    }

    /// Counts a refusal whatever has been learned, which may be there.
    pub(super) fn count_refused(&mut self, refusal: Refusal) {
        if self.is_cached() {
            let known = self.flows.refusals.contains_key(&refusal);
            *if known { &mut self.recalls.recached } else { &mut self.recalls.judged } += 1;
        }
    }

    /// Answers a packet by the flow that it would meet if the data plane had all; false if there is none, and it has to be judged.
    pub(super) fn recall(&mut self, miss: u64, key: &FlowKey, now_ms: u64, out: &mut Effects) -> bool {
        if !self.is_cached() {
            return false;
        }
        // A source that could not be learned gets another chance with each packet that comes here.
        let known = self.flows.met_by(key).and_then(|id| Some((id, self.flows.get(id)?.clone())));
        let Some((id, flow)) = known.filter(|(_, flow)| !flow.unlearned) else {
            self.recalls.judged += 1;
            return false;
        };
        self.flows.used(id, now_ms);
        if let Some(pair) = flow.pair() {
            self.refresh_source(&pair, now_ms);
        }
        self.keep_connection(&flow, now_ms, now_ms);
        self.saw_denied(key, &flow.actions, (flow.rule.as_deref(), false), now_ms);
        out.resumes.push(Resume { id: miss, actions: flow.actions.to_vec() });
        if now_ms.saturating_sub(flow.put_ms) < RESEND_MS {
            self.recalls.under_way += 1;
            return true;
        }
        self.recalls.recached += 1;
        let actions = flow.actions.to_vec();
        out.changes.push(super::Change::Put(FlowSpec { key: flow.key, mask: flow.mask, actions, epoch: self.epoch }));
        self.flows.sent(id, now_ms, self.asked);
        true
    }
}
