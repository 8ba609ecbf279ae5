//! The switch's flows, as it tells of them, against what they should be.

use super::{FlowUse, Judged, Learning};
use crate::flows::{Id, Installed, PAIR_MASK, Pair, Refusal, has};
use crate::{Change, Effects};
use std::collections::HashSet;

impl Learning {
    /// All the switch's flows as it answered the request numbered `asked`. Refreshes ages, forgets flows that the
    /// switch has evicted, corrects what differs from what was asked for.
    pub fn statistics(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        self.compare(asked, flows, now_ms, out);
    }

    /// As [`Learning::statistics`], for the first answer after [`Learning::attached`]: learns from the flows that an
    /// earlier control process left behind, keeps those that are right and removes those that are not.
    pub fn reconcile(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        self.epoch = flows.iter().map(|f| f.spec.epoch).fold(self.epoch, u64::max).saturating_add(1);
        for f in flows.iter().filter(|f| !f.spec.actions.is_empty() && has(&f.spec.mask, &PAIR_MASK)) {
            let pair = Pair::of(&f.spec.key);
            let ordinary = pair.src.is_unicast_source() && !pair.dst.is_link_local();
            // A flow that drops what may not enter says nothing of where its source lives.
            if !ordinary || !self.all_may_enter(&f.spec.key, &f.spec.mask) {
                continue;
            }
            let seen_ms = now_ms.saturating_sub(f.idle_ms);
            if let Some(from) = self.macs.adopt(pair.vlan, pair.src, pair.port, seen_ms) {
                self.forget_source(pair.vlan, pair.src, from, out);
            }
        }
        // Flows made since the attachment did not know of what has just been learned.
        for id in self.flows.iter().map(|(id, _)| id).collect::<Vec<_>>() {
            self.refresh(id, now_ms, out);
        }
        self.compare(asked, flows, now_ms, out);
    }

    fn compare(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        if asked <= self.cleared {
            return;
        }
        let mut seen_refusals = HashSet::new();
        let mut seen_flows = HashSet::new();
        for f in flows {
            let used_ms = now_ms.saturating_sub(f.idle_ms);
            match Refusal::of(&f.spec) {
                None => {
                    seen_flows.extend(self.compare_flow(f, asked, used_ms, now_ms, out));
                }
                Some(r) => {
                    seen_refusals.insert(r);
                    let of_port = match r {
                        Refusal::GroupSource(p) | Refusal::ZeroSource(p) => self.has_port(p),
                        Refusal::LinkLocal => true,
                    };
                    if !of_port {
                        out.changes.push(Change::Del(f.spec.key, f.spec.mask));
                    } else if f.spec.actions == r.actions() {
                        let entry = self.flows.refusals.entry(r).or_insert((used_ms, 0));
                        entry.0 = entry.0.max(used_ms);
                    } else {
                        self.put_refusal(r, used_ms, out);
                    }
                }
            }
        }
        let evicted: Vec<_> = self
            .flows
            .iter()
            .filter(|(id, f)| f.put_after < asked && !seen_flows.contains(id))
            .map(|(id, _)| id)
            .collect();
        for id in evicted {
            self.flows.remove(id);
        }
        self.flows.refusals.retain(|r, (_, put_after)| *put_after >= asked || seen_refusals.contains(r));
    }

    /// Compares one of the switch's flows with what it should be; its place in the index, if it may stay.
    fn compare_flow(&mut self, f: &FlowUse, asked: u64, used_ms: u64, now_ms: u64, out: &mut Effects) -> Option<Id> {
        let (key, mask) = (f.spec.key, f.spec.mask);
        if has(&mask, &PAIR_MASK) && self.all_may_enter(&key, &mask) {
            let pair = Pair::of(&key);
            self.macs.refresh(pair.vlan, pair.src, pair.port, used_ms);
        }
        if let Some(id) = self.flows.find(&key, &mask) {
            self.flows.used(id, used_ms);
            let flow = self.flows.get(id)?;
            // What we sent after asking is newer than the answer.
            if flow.put_after < asked && *f.spec.actions != *flow.actions {
                let judged = Judged { mask, verdict: flow.verdict, actions: flow.actions.to_vec() };
                let unlearned = flow.unlearned;
                return Some(self.put_flow(key, mask, judged, unlearned, used_ms, now_ms, out));
            }
            return Some(id);
        }
        let right = self.judge_flow(&key, &mask).filter(|judged| match judged.verdict {
            Some(_) => self.lives_at(&Pair::of(&key)),
            None => self.has_port(key.port()),
        });
        let Some(judged) = right else {
            out.changes.push(Change::Del(key, mask));
            return None;
        };
        self.make_room(key.port(), out);
        if f.spec.actions != judged.actions {
            return Some(self.put_flow(key, mask, judged, false, used_ms, now_ms, out));
        }
        let Judged { verdict, actions, .. } = judged;
        let actions = actions.into();
        Some(self.flows.insert(Installed {
            key,
            mask,
            actions,
            verdict,
            unlearned: false,
            used_ms,
            put_ms: 0,
            put_after: 0,
        }))
    }
}
