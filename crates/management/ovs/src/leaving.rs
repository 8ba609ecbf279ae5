//! The switch's flows that it was told to take out, until it says what they have carried since they were asked last. Without, Open vSwitch would
//! count nothing of what a short connection sends between its first and its last packet, for whose sake its flows go.

use crate::Datapath;
use crate::unified::Unified;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_ipc::{FlowInfo, FromControl};
use std::collections::{HashMap, VecDeque};

/// So many are remembered at most: the switch says nothing of one that it had thrown out itself, to make room.
const MOST: usize = 65_536;

type Name = (FlowKey, FlowMask);

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// By what they look like, each with its number: there may be several alike, one after the other.
    alike: HashMap<Name, VecDeque<(u64, Unified)>>,
    /// The oldest first. What is not there any more has been told of.
    order: VecDeque<(u64, Name)>,
    last: u64,
}

impl Leaving {
    fn add(&mut self, unified: Unified) {
        while let Some((number, name)) = self.order.front() {
            let waits = self.alike.get(name).and_then(VecDeque::front).is_some_and(|(first, _)| first == number);
            if waits && self.order.len() < MOST {
                break;
            }
            if let (true, name) = (waits, *name) {
                self.take(&name);
            }
            self.order.pop_front();
        }
        self.last += 1;
        let name = (unified.key, unified.mask);
        self.order.push_back((self.last, name));
        self.alike.entry(name).or_default().push_back((self.last, unified));
    }

    fn take(&mut self, name: &Name) -> Option<Unified> {
        let alike = self.alike.get_mut(name)?;
        let first = alike.pop_front();
        if alike.is_empty() {
            self.alike.remove(name);
        }
        first.map(|(_, unified)| unified)
    }
}

impl Datapath {
    /// Has the switch forget one of its flows. False if there is none.
    pub(crate) fn take_back(&mut self, id: u64) -> bool {
        let Some(unified) = self.registry.remove(id, &mut self.table) else { return false };
        let (key, mask) = (unified.key, unified.mask);
        if self.attached {
            self.leaving.add(unified);
        }
        self.tell_switch(FromControl::DelFlow { key, mask, tell: true });
        true
    }

    /// The switch has forgotten one of its flows.
    pub(crate) fn ended(&mut self, info: &FlowInfo) {
        let Some(mut unified) = self.leaving.take(&(info.flow.key, info.flow.mask)) else { return };
        self.registry.share_last(&mut unified, info, self.now_ms, &mut self.table);
        self.connections.keep(&unified.tuples, self.now_ms.saturating_sub(info.idle_ms), self.now_ms);
    }

    /// The switch says nothing more of those that it was told to forget.
    pub(crate) fn forget_leaving(&mut self) {
        self.leaving = Leaving::default();
    }
}
