//! Which flow has been unused for longest.

use crate::entry::Flow;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

/// A place in the order of flows by last use, and the newest flow when somebody began to go through them; 0 is before the first.
pub type Position = (u64, u64, u64);

/// Places of newer flows are passed over, so many at a time: tens of microseconds.
const PLACES: usize = 4096;

/// Flows that died otherwise than by [`Lru::pop`] go by and by: so many are looked at with each that comes. More than one, so that they are fewer
/// than those that live, in the long run.
const SWEEP: usize = 4;
/// Flows that may have to be filed again before one goes: 20 µs. The table is locked meanwhile, and a guest can use a hundred thousand
/// flows between one eviction and the next.
const REFILED: usize = 64;

/// Flows by last use and, among equals, by order of filing; put right lazily: workers only store a time in the flow; here
/// a flow that turns out to have been used since it was filed is filed again, so workers never touch a list. Where more flows than
/// [`REFILED`] were used and lie in front, the next one goes although it was used too.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    filed: BTreeMap<(u64, u64), Arc<Flow>>,
    sequence: u64,
    /// The place that was last swept.
    swept: (u64, u64),
}

impl Lru {
    pub(crate) fn insert(&mut self, flow: &Arc<Flow>) {
        self.sequence += 1;
        self.filed.insert((flow.stats.last_used_ms(), self.sequence), Arc::clone(flow));
        for _ in 0..SWEEP {
            let next = self.filed.range((Excluded(self.swept), Unbounded)).next();
            let next = next.map(|(place, flow)| (*place, flow.is_dead()));
            self.swept = next.map_or((0, 0), |(place, _)| place);
            if let Some((place, true)) = next {
                self.filed.remove(&place);
            }
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

    /// Takes the least recently used live flow out, or nearly.
    pub(crate) fn pop(&mut self) -> Option<Arc<Flow>> {
        let mut rounds = REFILED;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlowSpec, WriterId};
    use lasthop_frame::{FlowKey, FlowMask};

    fn filled(n: u32) -> (Lru, Vec<Arc<Flow>>) {
        let mut lru = Lru::default();
        let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
        let spec =
            |in_port| FlowSpec { key: FlowKey { in_port, ..FlowKey::default() }, mask, actions: vec![], epoch: 0 };
        let flows: Vec<_> = (0..n).map(|port| Arc::new(Flow::new(spec(port), Arc::default(), 1))).collect();
        flows.iter().for_each(|flow| lru.insert(flow));
        (lru, flows)
    }

    /// Packets of ten thousand flows between two evictions: the table is not locked for all of them to be filed again.
    #[test]
    fn an_eviction_is_bounded_however_many_flows_are_in_use() {
        let (mut lru, flows) = filled(10_000);
        let writer = WriterId::default();
        flows.iter().for_each(|flow| flow.stats.add(writer, 1, 64, 9));
        let gone = lru.pop().expect("one goes");
        assert!(Arc::ptr_eq(&gone, &flows[REFILED]), "{gone:?}");
        let refiled = lru.filed.range((2, 0)..).count();
        assert_eq!((refiled, lru.filed.len()), (REFILED, 9999));
        // Those that nobody used go first, as long as they are found.
        let (mut lru, flows) = filled(100);
        flows[..REFILED].iter().for_each(|flow| flow.stats.add(writer, 1, 64, 9));
        assert!(Arc::ptr_eq(&lru.pop().expect("one goes"), &flows[REFILED]));
    }

    /// A switch that drops all flows at once does not free them all at the next one that comes, but it does by and by.
    #[test]
    fn dead_flows_go_by_and_by() {
        let (mut lru, flows) = filled(1000);
        flows.iter().for_each(|flow| flow.kill());
        let (_, new) = filled(1000);
        lru.insert(&new[0]);
        assert!(lru.filed.len() > 990, "{}", lru.filed.len());
        new[1..].iter().for_each(|flow| lru.insert(flow));
        assert!(lru.filed.len() <= 1000 + SWEEP, "{}", lru.filed.len());
        assert!(flows.iter().all(|flow| Arc::strong_count(flow) == 1));
    }
}
