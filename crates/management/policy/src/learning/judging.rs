//! What becomes of a packet: the sender's VLANs and access list, then where learning sends it, then the receivers'.

use super::{Learning, refusal};
use crate::acl::{Decision, Direction, List, Scope};
use crate::flows::{PAIR_MASK, PORT_MASK, Pair, Verdict, has};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::{DropReason, PortId};
use std::sync::Arc;

/// What becomes of a packet or of the packets of a flow, and the flow that says so.
pub(crate) struct Judged {
    /// The bits of the packet that it took to know.
    pub mask: FlowMask,
    /// As [`Installed::verdict`].
    pub verdict: Option<Verdict>,
    pub actions: Vec<Action>,
    /// Whose rule it is that drops them, if one does.
    pub rule: Option<DeniedBy>,
}

/// What of an access list denies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeniedBy {
    /// Whose list it is.
    pub scope: Scope,
    /// Which of its lists.
    pub direction: Direction,
    /// Its rule, counted from 1; 0: the default, `None`: the list's mistrust of malformed headers.
    pub rule: Option<u32>,
}

impl DeniedBy {
    fn new((scope, _): &(Scope, Arc<List>), direction: Direction, decision: Decision) -> Self {
        let rule = match decision {
            Decision::Rule(n, _) => Some(u32::try_from(n + 1).unwrap_or(u32::MAX)),
            Decision::Default(_) => Some(0),
            Decision::Malformed => None,
        };
        Self { scope: scope.clone(), direction, rule }
    }
}

impl Learning {
    /// How many rules of access lists have been tried so far. It is what judging takes: whoever has much to judge does as much at a
    /// time as this says that he may.
    pub fn tried(&self) -> u64 {
        self.tried.get()
    }

    fn decide(&self, list: &List, key: &FlowKey) -> Decision {
        self.note_tried(list, list.decide(key))
    }

    /// The same, with what it took to know: see [`List::judge`].
    fn ask(&self, list: &List, key: &FlowKey, mask: &mut FlowMask) -> Decision {
        self.note_tried(list, list.judge(key, mask))
    }

    fn note_tried(&self, list: &List, decision: Decision) -> Decision {
        let rules = match decision {
            Decision::Rule(n, _) => n + 1,
            Decision::Default(_) => list.rules().len(),
            Decision::Malformed => 0,
        };
        self.tried.set(self.tried.get().wrapping_add(rules as u64));
        decision
    }

    pub(crate) fn list(&self, port: PortId, direction: Direction) -> Option<&Arc<List>> {
        self.scoped_list(port, direction).map(|(_, list)| list)
    }

    pub(crate) fn scoped_list(&self, port: PortId, direction: Direction) -> Option<&(Scope, Arc<List>)> {
        self.lists.get(&port)?[direction as usize].as_ref()
    }

    /// What the lists that were asked said of the packets of a flow, for display.
    pub fn decisions(&self, flow: &FlowSpec) -> Vec<(&Scope, Direction, Decision)> {
        let key = &flow.key;
        let mut lists: Vec<&(Scope, Arc<List>)> = Vec::new();
        let mut found = Vec::new();
        let mut looked_at = flow.mask;
        if !self.carries(key.port(), key, &mut looked_at) {
            return found;
        }
        if let Some((scope, list)) = self.scoped_list(key.port(), Direction::FromGuest) {
            let decision = self.decide(list, key);
            found.push((scope, Direction::FromGuest, decision));
            if !decision.permits() {
                return found;
            }
        }
        if !has(&flow.mask, &PAIR_MASK) {
            return found;
        }
        let verdict = self.verdict(&Pair::of(key));
        for port in self.outputs(verdict, key, &mut looked_at).into_iter().filter(|_| verdict != Verdict::Hairpin) {
            if let Some(scoped) = self.scoped_list(port, Direction::ToGuest)
                && !lists.iter().any(|other| Arc::ptr_eq(&other.1, &scoped.1))
            {
                lists.push(scoped);
                found.push((&scoped.0, Direction::ToGuest, self.decide(&scoped.1, key)));
            }
        }
        found
    }

    /// The port that it comes from carries its VLAN, and the list there lets it in.
    pub(super) fn may_enter(&self, key: &FlowKey) -> bool {
        let carried = self.carries(key.port(), key, &mut FlowMask::default());
        carried && self.list(key.port(), Direction::FromGuest).is_none_or(|list| self.decide(list, key).permits())
    }

    /// The same, of all packets of a flow.
    pub(super) fn all_may_enter(&self, key: &FlowKey, mask: &FlowMask) -> bool {
        let mut looked_at = *mask;
        let list = self.list(key.port(), Direction::FromGuest);
        self.carries(key.port(), key, &mut looked_at)
            && list.is_none_or(|list| self.ask(list, key, &mut looked_at).permits())
            && looked_at == *mask
    }

    /// What becomes of a packet that [`Learning::may_enter`] or not, and the widest flow that says so.
    pub(super) fn judge_anew(&self, key: &FlowKey, enters: bool) -> Judged {
        // A flow for what may not enter need not know who sends it to whom.
        self.judge(key, if enters { PAIR_MASK } else { PORT_MASK })
    }

    /// What becomes of all packets of a flow; `None` if the flow does not say enough of them.
    pub(super) fn judge_flow(&self, key: &FlowKey, mask: &FlowMask) -> Option<Judged> {
        if !has(mask, &PORT_MASK) {
            return None;
        }
        let judged = self.judge(key, *mask);
        let refused = has(mask, &PAIR_MASK) && refusal(key).is_some();
        let enough = judged.verdict.is_none() || has(mask, &PAIR_MASK);
        (judged.mask == *mask && enough && !refused).then_some(judged)
    }

    /// Judges by the sender's VLANs and list, where learning sends it, and the receivers' VLANs and lists. Adds to `mask`
    /// what it looked at.
    fn judge(&self, key: &FlowKey, mut mask: FlowMask) -> Judged {
        let from = key.port();
        let drop = |mask, verdict, reason, rule| Judged { mask, verdict, actions: vec![Action::Drop(reason)], rule };
        if !self.carries(from, key, &mut mask) {
            return drop(mask, None, DropReason::Vlan, None);
        }
        if let Some(scoped) = self.scoped_list(from, Direction::FromGuest) {
            let decision = self.ask(&scoped.1, key, &mut mask);
            if !decision.permits() {
                let rule = DeniedBy::new(scoped, Direction::FromGuest, decision);
                return drop(mask, None, DropReason::Acl, Some(rule));
            }
        }
        let verdict = self.verdict(&Pair::of(key));
        let mut outputs = self.outputs(verdict, key, &mut mask);
        if outputs.is_empty() {
            return drop(mask, Some(verdict), self.why_nowhere(verdict, from), None);
        }
        if verdict != Verdict::Hairpin {
            let rule = self.filter(key, &mut mask, &mut outputs);
            if outputs.is_empty() {
                return drop(mask, Some(verdict), DropReason::Acl, rule);
            }
        }
        Judged { mask, verdict: Some(verdict), actions: outputs.into_iter().map(Action::Output).collect(), rule: None }
    }

    /// Why learning sends a packet from there nowhere.
    fn why_nowhere(&self, verdict: Verdict, from: PortId) -> DropReason {
        let apart = |to: PortId| self.is_between_uplinks(from, to);
        match verdict {
            Verdict::To(port) if apart(port) => DropReason::BetweenUplinks,
            Verdict::To(_) | Verdict::Hairpin => DropReason::Vlan,
            Verdict::Flood => {
                let mut others = self.flooded().filter(|to| *to != from).peekable();
                if others.peek().is_none() {
                    DropReason::NoOtherPort
                } else if others.all(apart) {
                    DropReason::BetweenUplinks
                } else {
                    DropReason::Vlan
                }
            }
        }
    }

    /// Takes out the ports whose lists do not let it through; the first such list's word.
    fn filter(&self, key: &FlowKey, mask: &mut FlowMask, outputs: &mut Vec<PortId>) -> Option<DeniedBy> {
        // Most ports share a list: it is asked once.
        let mut asked: Vec<(&Arc<List>, bool)> = Vec::new();
        let mut denied = None;
        outputs.retain(|port| {
            let Some(scoped) = self.scoped_list(*port, Direction::ToGuest) else { return true };
            if let Some((_, permits)) = asked.iter().find(|(l, _)| Arc::ptr_eq(l, &scoped.1)) {
                return *permits;
            }
            let decision = self.ask(&scoped.1, key, mask);
            if denied.is_none() && !decision.permits() {
                denied = Some(DeniedBy::new(scoped, Direction::ToGuest, decision));
            }
            asked.push((&scoped.1, decision.permits()));
            decision.permits()
        });
        denied
    }
}
