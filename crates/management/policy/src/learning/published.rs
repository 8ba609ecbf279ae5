//! A copy of all flows that somebody else keeps, and looks flows up in where the data plane's cache has none: what is to be done to it, and what is to
//! be remembered of flows that were found there.

use super::Learning;
use crate::flows::Id;
use lasthop_flow::FlowSpec;

/// What is to be done to a copy of the flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// First: all flows go.
    pub all_gone: bool,
    /// Then: the flow of this number is this one, or there is none.
    pub flows: Vec<(u32, Option<FlowSpec>)>,
}

impl Learning {
    /// From now on what becomes of flows is noted, beginning with those that there are.
    pub fn publish(&mut self) {
        self.flows.changed = Some((true, self.flows.some(0, usize::MAX, |_| true).0));
    }

    /// What has become of flows since this was last asked. Flows whose source lives elsewhere are not among them: with each packet of theirs it is
    /// tried again to learn it.
    pub fn published(&mut self) -> Published {
        let Some((all_gone, changed)) = &mut self.flows.changed else { return Published::default() };
        let (all_gone, changed) = (std::mem::take(all_gone), std::mem::take(changed));
        let flow = |id: Id| {
            let flow = self.flows.get(id).filter(|flow| !flow.unlearned)?;
            Some(FlowSpec { key: flow.key, mask: flow.mask, actions: flow.actions.to_vec(), epoch: self.epoch })
        };
        Published { all_gone, flows: changed.into_iter().map(|id| (id, flow(id))).collect() }
    }

    /// A packet has met the flow of this number in the copy, not long ago: what follows is what would follow if it had come here. What it carried
    /// the data plane counts.
    pub fn found_in_copy(&mut self, id: u32, now_ms: u64) {
        let Some(flow) = self.flows.get(id).cloned() else { return };
        self.flows.used(id, now_ms);
        if let Some(pair) = flow.pair() {
            self.refresh_source(&pair, now_ms);
        }
        self.keep_connection(&flow, now_ms, now_ms);
    }
}
