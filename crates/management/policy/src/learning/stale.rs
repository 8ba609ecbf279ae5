//! Flows that a change has made wrong, put right little by little.
//!
//! One change may concern as many flows as a port may own: a station that moves, a port that comes up, everything that aged.
//! A guest can own 131 072 flows and cause such changes at will, and messages to the switch go in order. So a change is
//! carried out at once for a few flows ([`Limits::at_once`](super::Limits) in each millisecond); what is left is noted as a pass
//! over an index of flows, one for each cause and *owner*, the port that the flows come from, and done in slices
//! ([`Learning::put_right`]), owners in turn. Between slices misses are answered. So the many flows of one port delay
//! neither the first packets of others nor the correction of others' flows.
//!
//! What a flow that waits for its pass does meanwhile: it floods to ports as they were, goes on flooding to a station just
//! learned, or goes to the port that a station has left. It never lets a packet pass that lists or VLANs refuse: where those
//! change all flows go at once. A packet that misses is judged by what is known now.

use super::connections::Connections;
use super::{Effects, Learning};
use crate::flows::{Cause, Id};
use lasthop_types::PortId;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// Between two slices, in ms: 16 000 flows a second, a small part of what the switch installs.
pub(super) const SLICE_MS: u64 = 2;
/// As many flows may be looked at, where that is all, as one is worth that is judged or sent.
pub(super) const LOOKS: usize = 8;
/// Trying so many rules of access lists takes about as long as a look, 2 µs.
const RULES: u64 = 512;

/// A round over the flows that one cause concerns, from one port, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pass {
    /// Those below have been looked at.
    at: Id,
    /// Where it ends; `None`: behind the last.
    until: Option<Id>,
    /// Then it begins anew, and ends here: there was another change when it had come so far.
    again: Id,
}

impl Pass {
    /// There was another change: a whole round from here. Whatever happens meanwhile, each flow gets its turn.
    fn anew(self) -> Self {
        Self { at: self.at, until: None, again: self.at }
    }
}

/// What is still to be done.
#[derive(Debug, Default)]
pub(super) struct Stale {
    passes: BTreeMap<PortId, BTreeMap<Cause, Pass>>,
    /// Whose turn it is.
    next: Option<(PortId, Cause)>,
    next_ms: u64,
    /// What may still be done at once in this millisecond, in looks.
    left: usize,
    left_ms: Option<u64>,
    /// Of [`Cause::Unused`]: since when.
    pub unused_since_ms: u64,
    /// Of [`Cause::Unseen`]: the request.
    pub asked: u64,
    /// What flows have cost that one answer of the switch told of and nobody knew, in looks; and the request.
    unknown: (u64, usize),
}

impl Stale {
    pub fn clear(&mut self) {
        self.passes.clear();
        self.next = None;
    }

    /// What the answer to this request has cost so far.
    pub fn spent_on_unknown(&mut self, asked: u64) -> &mut usize {
        if self.unknown.0 != asked {
            self.unknown = (asked, 0);
        }
        &mut self.unknown.1
    }

    /// The owner and cause whose turn it is: owners in turn, and the causes of each.
    fn turn(&self) -> Option<(PortId, Cause)> {
        let from = self.next.map_or(PortId(0), |(owner, _)| PortId(owner.0.wrapping_add(1)));
        let (owner, passes) = self.passes.range(from..).chain(self.passes.range(..from)).next()?;
        let behind = self.next.and_then(|(_, last)| passes.range((Excluded(last), Unbounded)).next());
        Some((*owner, *behind.or_else(|| passes.first_key_value())?.0))
    }

    fn store(&mut self, owner: PortId, cause: Cause, pass: Pass) {
        self.passes.entry(owner).or_default().insert(cause, pass);
    }
}

impl Learning {
    /// When [`Learning::put_right`] is due; `None` while all flows are right.
    pub fn put_right_ms(&self) -> Option<u64> {
        let passes = (!self.stale.passes.is_empty()).then_some(self.stale.next_ms);
        let connections = self.connections.as_ref().and_then(Connections::due_ms);
        let reconcile = self.reconcile.as_ref().map(|under_way| under_way.next_ms);
        [passes, reconcile, connections, self.ageing.due_ms()].into_iter().flatten().min()
    }

    /// What the rules are worth, in looks, that were tried since [`Learning::rules_compared`] was that.
    pub(super) fn looks_since(&self, compared: u64) -> usize {
        usize::try_from(self.rules_compared().wrapping_sub(compared) / RULES).unwrap_or(usize::MAX)
    }

    /// Puts some more flows right, at most as many as [`Limits::at_once`](super::Limits), fewer where many rules are tried for each; and
    /// goes on with [`Learning::reconcile`]. It takes some milliseconds at most.
    pub fn put_right(&mut self, now_ms: u64, out: &mut Effects) {
        self.redo_some(now_ms, out);
        self.age_some(now_ms, out);
        self.reconcile_some(now_ms, out);
        self.connections_some(now_ms, out);
    }

    fn redo_some(&mut self, now_ms: u64, out: &mut Effects) {
        self.stale.next_ms = now_ms.saturating_add(SLICE_MS);
        let mut slice = self.limits.at_once.max(1) * LOOKS;
        while slice > 0
            && let Some((owner, cause)) = self.stale.turn()
        {
            self.stale.next = Some((owner, cause));
            let Some(passes) = self.stale.passes.get_mut(&owner) else { return };
            let Some(pass) = passes.remove(&cause) else { return };
            if passes.is_empty() {
                self.stale.passes.remove(&owner);
            }
            // No more than a share of the slice, so that others get theirs.
            let mut share = slice.min((slice / 4).max(LOOKS));
            let before = share;
            let rest = self.go_on(pass, cause, owner, &mut share, now_ms, out);
            slice = slice.saturating_sub((before - share).max(1));
            if let Some(rest) = rest {
                self.stale.store(owner, cause, rest);
            }
        }
    }

    /// Puts right what `cause` has made wrong of all owners.
    pub(super) fn redo_all(&mut self, cause: Cause, now_ms: u64, out: &mut Effects) {
        let owners = self.flows.owners(cause);
        if !owners.is_empty() {
            self.epoch += 1;
            self.redo(cause, &owners, now_ms, out);
        }
    }

    /// The same of these owners: some flows at once, the others when their turn comes.
    pub(super) fn redo(&mut self, cause: Cause, owners: &[PortId], now_ms: u64, out: &mut Effects) {
        if self.stale.left_ms != Some(now_ms) {
            (self.stale.left_ms, self.stale.left) = (Some(now_ms), self.limits.at_once * LOOKS);
        }
        for (n, owner) in owners.iter().enumerate() {
            let under_way = self.stale.passes.get(owner).and_then(|passes| passes.get(&cause));
            if let Some(pass) = under_way.copied() {
                self.stale.store(*owner, cause, pass.anew());
                continue;
            }
            let mut share = self.stale.left / (owners.len() - n);
            let before = share;
            let rest = self.go_on(Pass::default(), cause, *owner, &mut share, now_ms, out);
            self.stale.left -= before - share;
            if let Some(rest) = rest {
                if self.stale.passes.is_empty() {
                    self.stale.next_ms = now_ms.saturating_add(SLICE_MS);
                }
                self.stale.store(*owner, cause, rest);
            }
        }
    }

    /// Goes on with a pass until `share`, in looks, is used up; `None` when it is done.
    fn go_on(
        &mut self,
        mut pass: Pass,
        cause: Cause,
        owner: PortId,
        share: &mut usize,
        now_ms: u64,
        out: &mut Effects,
    ) -> Option<Pass> {
        loop {
            let next = self.flows.next(cause, owner, pass.at).filter(|id| pass.until.is_none_or(|until| *id < until));
            let Some(id) = next.filter(|id| self.is_concerned(cause, *id)) else {
                if pass.again == 0 {
                    return None;
                }
                pass = Pass { at: 0, until: Some(pass.again), again: 0 };
                continue;
            };
            let cost = if matches!(cause, Cause::Unseen | Cause::Gone) { 1 } else { LOOKS };
            if *share < cost {
                return Some(pass);
            }
            let compared = self.rules_compared();
            *share -= cost;
            pass.at = id.saturating_add(1);
            match cause {
                _ if !self.has_port(owner) => drop(self.flows.remove(id)),
                Cause::Floods | Cause::Uplinks | Cause::Group(..) => self.decide_again(id, now_ms, out),
                Cause::To(..) => self.refresh(id, now_ms, out),
                Cause::From(..) | Cause::Unlearned | Cause::Unused | Cause::Ended(_) => self.del_flow(id, out),
                Cause::Unseen => {
                    let asked = self.stale.asked;
                    if self.flows.get(id).is_some_and(|flow| flow.put_after < asked && flow.seen < asked) {
                        self.flows.remove(id);
                    }
                }
                // There is one with that number again.
                Cause::Gone => self.del_flow(id, out),
            }
            *share = share.saturating_sub(self.looks_since(compared));
        }
    }

    /// Of unused flows the one that comes next may have been used since: then all others have been, too.
    fn is_concerned(&self, cause: Cause, id: Id) -> bool {
        let since_ms = self.stale.unused_since_ms;
        cause != Cause::Unused || self.flows.get(id).is_some_and(|flow| flow.used_ms <= since_ms)
    }
}
