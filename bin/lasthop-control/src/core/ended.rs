//! Flows that have ended, with what they have carried, for a program that exports them. The switch tells of them only while somebody asks, and
//! so long they are kept, a bounded number: who asks too seldom is told how many he has missed.

use super::{Answer, Core, give};
use crate::view;
use lasthop_api::EndedFlows;
use lasthop_ipc::FlowInfo;
use std::collections::VecDeque;

/// So many are kept: some 4 MiB, of half a kilobyte each.
const KEPT: usize = 8192;
/// So long somebody may not ask, in ms, until none are kept any more.
const ASKED_MS: u64 = 120_000;
/// Flows in one answer.
const TOLD: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Ended {
    /// When somebody asked last.
    asked_ms: Option<u64>,
    kept: VecDeque<FlowInfo>,
    /// How many ended before the first that is kept.
    before: u64,
}

impl Ended {
    /// Somebody asks for them.
    pub fn is_asked_for(&self, now_ms: u64) -> bool {
        self.asked_ms.is_some_and(|at| now_ms.saturating_sub(at) < ASKED_MS)
    }

    /// The switch has told of one.
    pub fn keep(&mut self, flow: FlowInfo, now_ms: u64) {
        if !self.is_asked_for(now_ms) {
            return self.forget();
        }
        if self.kept.len() >= KEPT {
            self.kept.pop_front();
            self.before += 1;
        }
        self.kept.push_back(flow);
    }

    /// Nobody asks any more.
    pub fn forget(&mut self) {
        self.before += self.kept.len() as u64;
        (self.kept, self.asked_ms) = (VecDeque::new(), None);
    }

    /// Those behind the one with this number. Who does not give one, or one that another control has given out, hears of those to come.
    fn behind(&mut self, after: Option<u64>, now_ms: u64) -> (Vec<FlowInfo>, EndedFlows) {
        if !self.is_asked_for(now_ms) {
            self.forget();
        }
        let end = self.before + self.kept.len() as u64;
        let anew = self.asked_ms.replace(now_ms).is_none() || after.is_some_and(|after| after > end);
        let after = after.filter(|_| !anew).unwrap_or(end);
        let from = after.max(self.before);
        let skipped = usize::try_from(from - self.before).unwrap_or(usize::MAX);
        let told: Vec<_> = self.kept.iter().skip(skipped).take(TOLD).cloned().collect();
        let next = from + told.len() as u64;
        (told, EndedFlows { flows: Vec::new(), next, more: next < end, missed: from - after, anew })
    }
}

impl Core {
    /// Somebody asks for those behind the one with this number.
    pub(super) fn tell_ended(&mut self, after: Option<u64>, answer: Answer<EndedFlows>, now_ms: u64) {
        let (told, ended) = self.ended.behind(after, now_ms);
        let flows = told.iter().map(|info| view::flow(info, |id| self.name(id))).collect();
        give(answer, EndedFlows { flows, ..ended });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_flow::FlowSpec;
    use lasthop_frame::{FlowKey, FlowMask};

    fn flow(packets: u64) -> FlowInfo {
        let (key, mask) = (FlowKey::default(), FlowMask::default());
        let flow = FlowSpec { key, mask, actions: Vec::new(), epoch: 0 };
        FlowInfo { flow, packets, bytes: 0, idle_ms: 0 }
    }

    fn packets((told, _): &(Vec<FlowInfo>, EndedFlows)) -> Vec<u64> {
        told.iter().map(|info| info.packets).collect()
    }

    #[test]
    fn none_is_told_twice_and_none_is_left_out() {
        let mut ended = Ended::default();
        ended.keep(flow(1), 0);
        let first = ended.behind(None, 10);
        assert!(first.1.anew && first.0.is_empty(), "nobody had asked");
        (0..100).for_each(|n| ended.keep(flow(n), 20));
        let some = ended.behind(Some(first.1.next), 30);
        assert_eq!((packets(&some), some.1.more, some.1.missed), ((0..64).collect(), true, 0));
        let others = ended.behind(Some(some.1.next), 31);
        assert_eq!((packets(&others), others.1.more), ((64..100).collect(), false));
        assert!(ended.behind(Some(others.1.next), 32).0.is_empty());
        // Somebody else has a place of his own.
        assert_eq!(ended.behind(Some(first.1.next), 33).0.len(), 64);
        assert!(!ended.behind(None, 34).1.anew);
    }

    #[test]
    fn who_asks_too_seldom_is_told_how_many_he_has_missed() {
        let mut ended = Ended::default();
        let next = ended.behind(None, 0).1.next;
        (0..KEPT as u64 + 7).for_each(|n| ended.keep(flow(n), 1));
        assert_eq!(ended.kept.len(), KEPT);
        let told = ended.behind(Some(next), 2);
        assert_eq!((told.1.missed, told.0[0].packets, told.1.anew), (7, 7, false));
        // And after two minutes none is kept.
        assert!(!ended.is_asked_for(2 + ASKED_MS));
        ended.keep(flow(1), 2 + ASKED_MS);
        assert!(ended.kept.is_empty());
        assert!(ended.behind(Some(told.1.next), 3 + ASKED_MS).1.anew);
        assert!(ended.behind(Some(u64::MAX), 3 + ASKED_MS).1.anew, "of another control");
    }
}
