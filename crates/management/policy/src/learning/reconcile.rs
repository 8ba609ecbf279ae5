//! The switch's flows, as it tells of them, against what they should be.

use super::{FlowUse, Judged, Learning};
use crate::flows::{Cause, Id, Installed, InstalledRefusal, PAIR_MASK, Pair, Refusal, has};
use crate::{Change, Effects};
use lasthop_flow::Action;

impl Learning {
    /// All the switch's flows as it answered the request numbered `asked`. Refreshes ages, forgets flows that the
    /// switch has evicted, corrects what differs from what was asked for.
    pub fn statistics(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        self.statistics_part(asked, flows, now_ms, out);
        self.statistics_end(asked, now_ms, out);
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
                self.forget_source(pair.vlan, pair.src, from, now_ms, out);
            }
        }
        // Flows made since the attachment did not know of what has just been learned.
        for id in self.flows.iter().map(|(id, _)| id).collect::<Vec<_>>() {
            self.refresh(id, now_ms, out);
        }
        self.statistics(asked, flows, now_ms, out);
    }

    /// Some of the flows of an answer.
    pub fn statistics_part(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        if asked <= self.cleared {
            return;
        }
        for f in flows {
            let used_ms = now_ms.saturating_sub(f.idle_ms);
            match Refusal::of(&f.spec) {
                None => {
                    if let Some(id) = self.compare_flow(f, asked, used_ms, now_ms, out) {
                        self.flows.seen(id, asked);
                    }
                }
                Some(r) => {
                    let of_port = match r {
                        Refusal::GroupSource(p) | Refusal::ZeroSource(p) => self.has_port(p),
                        Refusal::LinkLocal => true,
                    };
                    if !of_port {
                        out.changes.push(Change::Del(f.spec.key, f.spec.mask));
                    } else if f.spec.actions == r.actions() {
                        let known = InstalledRefusal { used_ms, put_after: 0, seen: asked };
                        let known = self.flows.refusals.entry(r).or_insert(known);
                        (known.used_ms, known.seen) = (known.used_ms.max(used_ms), asked);
                    } else {
                        self.put_refusal(r, used_ms, out);
                    }
                }
            }
        }
    }

    /// The answer is complete: what it did not tell of, and was sent before it was asked for, the switch has evicted.
    pub fn statistics_end(&mut self, asked: u64, now_ms: u64, out: &mut Effects) {
        if asked <= self.cleared {
            return;
        }
        self.flows.refusals.retain(|_, known| known.put_after >= asked || known.seen >= asked);
        self.stale.asked = asked;
        self.redo_all(Cause::Unseen, now_ms, out);
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
            let more = self.flows.counted(id, f.packets);
            let flow = self.flows.get(id)?;
            if let Some(reason) = flow.drops() {
                let why = (reason, flow.rule.as_deref().cloned());
                self.count_denied(key.port(), why, &key, more, used_ms);
            }
            let flow = self.flows.get(id)?;
            // What we sent after asking is newer than the answer.
            if flow.put_after < asked && *f.spec.actions != *flow.actions {
                let rule = flow.rule.as_deref().cloned();
                let judged = Judged { mask, verdict: flow.verdict, actions: flow.actions.to_vec(), rule };
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
        let Judged { verdict, actions, rule, .. } = judged;
        if let [Action::Drop(reason)] = *actions {
            self.count_denied(key.port(), (reason, rule.clone()), &key, f.packets, used_ms);
        }
        let (actions, rule, counted) = (actions.into(), rule.map(Box::new), f.packets);
        Some(self.flows.insert(Installed {
            key,
            mask,
            actions,
            verdict,
            unlearned: false,
            used_ms,
            put_ms: 0,
            put_after: 0,
            seen: asked,
            counted,
            rule,
        }))
    }
}
