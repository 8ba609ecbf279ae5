//! The switch's flows, as it tells of them, against what they should be.
//!
//! A control process that comes finds up to 200 000 flows in the switch, and each is judged by as many rules as there are. So it
//! is done part by part ([`Learning::put_right`]), and misses are answered in between. First all flows say where their sources
//! live, for where a flow goes depends on what others say of its destination; then each is compared. Meanwhile flows that have
//! not had their turn do what they did before. A packet that misses is judged by what is known now, and a flow made for it is
//! newer than what the switch has told. Other lists end it: they remove all flows.

use super::stale::{LOOKS, SLICE_MS};
use super::{Decided, FlowUse, Kind, Learning, Track, dropped};
use crate::flows::{Cause, Id, Installed, InstalledRefusal, PAIR_MASK, Pair, Refusal, has};
use crate::{Change, Effects};
use lasthop_conntrack::Nat;
use lasthop_text::MacAddr;

/// What one part of it may take, in slices of what is put right otherwise (`stale.rs`): below a millisecond.
const PART: usize = 2;
/// What it takes to compare a flow, beside the rules that are tried.
const COMPARE: usize = LOOKS / 2;

/// Flows that are to be compared.
#[derive(Debug)]
pub(super) struct Reconcile {
    asked: u64,
    /// When the switch told of them.
    told_ms: u64,
    flows: Vec<FlowUse>,
    /// Those before have had their turn.
    at: usize,
    /// All of them have said where their sources live.
    learned: bool,
    corrections: usize,
    /// When to go on.
    pub next_ms: u64,
}

/// All flows of the switch have been compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconciled {
    /// How many there were.
    pub flows: usize,
    /// And changes that had to be made.
    pub corrections: usize,
}

impl Learning {
    /// All the switch's flows as it answered the request numbered `asked`. Refreshes ages, forgets flows that the
    /// switch has evicted, corrects what differs from what was asked for.
    pub fn statistics(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        self.statistics_part(asked, flows, now_ms, out);
        self.statistics_end(asked, now_ms, out);
    }

    /// As [`Learning::statistics`], for the first answer after [`Learning::attached`]: learns from the flows that an
    /// earlier control process left behind, keeps those that are right and removes those that are not. [`Learning::put_right`]
    /// does it part by part, until there is a [`Learning::reconciled`]; nothing is to be said of a later answer before.
    pub fn reconcile(&mut self, asked: u64, flows: Vec<FlowUse>, now_ms: u64) {
        self.epoch = flows.iter().map(|f| f.spec.epoch).fold(self.epoch, u64::max).saturating_add(1);
        let (told_ms, next_ms) = (now_ms, now_ms);
        self.reconcile = Some(Reconcile { asked, told_ms, flows, at: 0, learned: false, corrections: 0, next_ms });
        self.reconciled = None;
    }

    /// What came of [`Learning::reconcile`], once.
    pub fn reconciled(&mut self) -> Option<Reconciled> {
        self.reconciled.take()
    }

    /// Goes on with a part of [`Learning::reconcile`].
    pub(super) fn reconcile_some(&mut self, now_ms: u64, out: &mut Effects) {
        let Some(mut under_way) = self.reconcile.take() else { return };
        let before = out.changes.len();
        let done = self.reconcile_part(&mut under_way, now_ms, out);
        let changes = out.changes.len() - before;
        under_way.corrections += changes;
        if done {
            let Reconcile { flows, corrections, .. } = under_way;
            self.reconciled = Some(Reconciled { flows: flows.len(), corrections });
            return;
        }
        // Changes of flows take the switch longer than they take us.
        under_way.next_ms = now_ms.saturating_add(if changes == 0 { 0 } else { SLICE_MS });
        self.reconcile = Some(under_way);
    }

    /// True when all is done.
    fn reconcile_part(&mut self, under_way: &mut Reconcile, now_ms: u64, out: &mut Effects) -> bool {
        let Reconcile { asked, told_ms, ref flows, ref mut at, ref mut learned, .. } = *under_way;
        let (compared, changes, begin) = (self.rules_compared(), out.changes.len(), *at);
        let part = self.limits.at_once.max(1) * LOOKS * PART;
        let is_over = |policy: &Self, done: usize, cost: usize, out: &Effects| {
            let looks = done * cost + policy.looks_since(compared);
            looks >= part || out.changes.len() - changes >= policy.limits.at_once.max(1)
        };
        if !*learned {
            while let Some(f) = flows.get(*at) {
                if is_over(self, *at - begin, 1, out) {
                    return false;
                }
                self.adopt(f, told_ms, now_ms, out);
                *at += 1;
            }
            (*at, *learned) = (0, true);
            return false;
        }
        while asked > self.cleared
            && let Some(f) = flows.get(*at)
        {
            if is_over(self, *at - begin, COMPARE, out) {
                return false;
            }
            self.statistic(asked, f, told_ms, now_ms, out);
            *at += 1;
        }
        self.statistics_end(asked, now_ms, out);
        true
    }

    /// Learns from a flow that an earlier control process left behind.
    fn adopt(&mut self, f: &FlowUse, told_ms: u64, now_ms: u64, out: &mut Effects) {
        self.take_over(&f.spec, now_ms, out);
        if f.spec.actions.is_empty() || !has(&f.spec.mask, &PAIR_MASK) {
            return;
        }
        let key = &f.spec.key;
        let ordinary = MacAddr(key.eth_src).is_unicast_source() && !MacAddr(key.eth_dst).is_link_local();
        // A flow that drops what may not enter says nothing of where its source lives.
        let vlan = if ordinary { self.all_may_enter(key, &f.spec.mask) } else { None };
        let Some(vlan) = vlan else { return };
        let pair = Pair::of(key, vlan);
        let place = |policy: &Self| policy.macs.get(pair.vlan, pair.src).map(|e| e.port);
        let (before, seen_ms) = (place(self), told_ms.saturating_sub(f.idle_ms));
        if let Some(from) = self.macs.adopt(pair.vlan, pair.src, pair.port, seen_ms) {
            self.forget_source(pair.vlan, pair.src, from, now_ms, out);
        }
        if place(self) != before {
            // Flows made since the attachment did not know of it.
            self.refresh_destination(pair.vlan, pair.src, now_ms, out);
        }
    }

    /// Some of the flows of an answer.
    pub fn statistics_part(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        if asked <= self.cleared {
            return;
        }
        let room = self.limits.at_once.max(1) * LOOKS * PART;
        for f in flows {
            let (compared, spent) = (self.rules_compared(), self.stale.spent_on_unknown(asked));
            // To judge a flow that is not known may take as long as there are rules. A guest can bring many about: of those that are
            // removed while the switch is asked. What is too much is removed, and judged with the next packet.
            if *spent >= room && self.flows.find(&f.spec.key, &f.spec.mask).is_none() && Refusal::of(&f.spec).is_none()
            {
                out.changes.push(Change::Del(f.spec.key, f.spec.mask));
                continue;
            }
            self.statistic(asked, f, now_ms, now_ms, out);
            *self.stale.spent_on_unknown(asked) += self.looks_since(compared);
        }
    }

    /// One of the switch's flows, which it told of at `told_ms`.
    fn statistic(&mut self, asked: u64, f: &FlowUse, told_ms: u64, now_ms: u64, out: &mut Effects) {
        let used_ms = told_ms.saturating_sub(f.idle_ms);
        let Some(r) = Refusal::of(&f.spec) else {
            if let Some(id) = self.compare_flow(f, asked, used_ms, now_ms, out) {
                self.flows.seen(id, asked);
            }
            return;
        };
        let of_port = r.port().is_none_or(|port| self.has_port(port));
        if !of_port || self.placed(r, &f.spec.key) != r {
            out.changes.push(Change::Del(f.spec.key, f.spec.mask));
        } else if f.spec.actions == self.refuse(r) {
            let known = InstalledRefusal { used_ms, put_after: 0, seen: asked };
            let known = self.flows.refusals.entry(r).or_insert(known);
            (known.used_ms, known.seen) = (known.used_ms.max(used_ms), asked);
        } else {
            self.put_refusal(r, used_ms, out);
        }
    }

    /// The answer is complete: what it did not tell of, and was sent before it was asked for, the switch has evicted.
    pub fn statistics_end(&mut self, asked: u64, now_ms: u64, out: &mut Effects) {
        if asked <= self.cleared {
            return;
        }
        if self.is_cached() {
            return;
        }
        self.flows.refusals.retain(|_, known| known.put_after >= asked || known.seen >= asked);
        self.stale.asked = asked;
        self.redo_all(Cause::Unseen, now_ms, out);
    }

    /// Compares one of the switch's flows with what it should be; its place in the index, if it may stay.
    fn compare_flow(&mut self, f: &FlowUse, asked: u64, used_ms: u64, now_ms: u64, out: &mut Effects) -> Option<Id> {
        if let Some(id) = self.flows.find(&f.spec.key, &f.spec.mask) {
            return self.compare_known(id, f, asked, used_ms, now_ms, out);
        }
        let (key, mask) = (f.spec.key, f.spec.mask);
        if has(&mask, &PAIR_MASK)
            && let Some(vlan) = self.all_may_enter(&key, &mask)
        {
            self.refresh_source(&Pair::of(&key, vlan), used_ms);
        }
        let right = self.decide_flow(&key, &mask).filter(|decided| match decided.verdict {
            Some(_) => self.lives_at(&Pair::of(&key, decided.vlan)),
            None => self.has_port(key.port()),
        });
        let Some(decided) = right else {
            out.changes.push(Change::Del(key, mask));
            return None;
        };
        self.make_room(key.port(), out);
        if f.spec.actions != decided.actions {
            return Some(self.put_flow(key, mask, decided, false, used_ms, now_ms, out));
        }
        let Decided { verdict, vlan, actions, rule, kind, home, .. } = decided;
        let (connection, hides) = kind.of_flow();
        if let Some(reason) = dropped(&actions) {
            self.count_denied(key.port(), (reason, rule.clone()), &key, f.packets, used_ms);
        }
        let (actions, rule, counted) = (actions.into(), rule.map(Box::new), f.packets);
        Some(self.flows.insert(Installed {
            key,
            mask,
            actions,
            verdict,
            vlan,
            unlearned: false,
            used_ms,
            put_ms: 0,
            put_after: 0,
            seen: asked,
            counted,
            rule,
            connection,
            hides,
            home,
        }))
    }

    /// The same, of a flow that we know: what it may do was judged when it was made, or when that changed.
    fn compare_known(
        &mut self,
        id: Id,
        f: &FlowUse,
        asked: u64,
        used_ms: u64,
        now_ms: u64,
        out: &mut Effects,
    ) -> Option<Id> {
        let (key, mask) = (f.spec.key, f.spec.mask);
        // A source that may not enter is not there.
        if let Some(pair) = self.flows.get(id)?.pair() {
            self.refresh_source(&pair, used_ms);
        }
        self.flows.used(id, used_ms);
        if let Some(flow) = self.flows.get(id) {
            self.keep_connection(flow, used_ms, now_ms);
        }
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
            let decided = Decided {
                mask,
                verdict: flow.verdict,
                vlan: flow.vlan,
                actions: flow.actions.to_vec(),
                rule,
                track: Track::None,
                kind: Kind::of_installed(flow),
                home: flow.home,
                nat: Nat::None,
            };
            let unlearned = flow.unlearned;
            return Some(self.put_flow(key, mask, decided, unlearned, used_ms, now_ms, out));
        }
        Some(id)
    }

    pub(super) fn refresh_source(&mut self, pair: &Pair, used_ms: u64) {
        self.macs.refresh(pair.vlan, pair.src, pair.port, used_ms);
    }
}
