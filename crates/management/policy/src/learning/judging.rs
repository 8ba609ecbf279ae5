//! What becomes of a packet: the sender's settings and access list, then where learning sends it, then the receivers'.

use super::mirrors::prepend;
use super::{Learning, refusal};
use crate::acl::{Decision, Direction, List, Scope};
use crate::flows::{PAIR_MASK, PORT_MASK, Pair, VID, Verdict, has};
use crate::guard::{Pretence, pretends};
use crate::membership::{self, Tag};
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
    /// As [`Installed::vlan`].
    pub vlan: u16,
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

/// Why a frame may not enter where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The port is a mirror's destination.
    MirrorPort,
    /// The port is no member of its VLAN.
    Vlan,
    /// It pretends something.
    Pretence(Pretence),
    /// The port's list denies it, which belongs to this VLAN.
    List(u16, DeniedBy),
}

/// A frame as access lists see it: in the VLAN that it belongs to, with its tag or without.
pub(crate) fn inside(key: &FlowKey, vlan: u16) -> FlowKey {
    FlowKey { vlan_tci: key.vlan_tci & !VID | vlan, ..*key }
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

    pub(crate) fn scoped_list(&self, port: PortId, direction: Direction) -> Option<&(Scope, Arc<List>)> {
        self.lists.get(&port)?[direction as usize].as_ref()
    }

    /// What the lists that were asked said of the packets of a flow, for display.
    pub fn decisions(&self, flow: &FlowSpec) -> Vec<(&Scope, Direction, Decision)> {
        let key = &flow.key;
        let mut lists: Vec<&(Scope, Arc<List>)> = Vec::new();
        let mut found = Vec::new();
        let mut looked_at = flow.mask;
        let admitted = self.admit(key, &mut looked_at);
        let (Ok(vlan) | Err(Refused::List(vlan, _))) = admitted else { return found };
        if let Some((scope, list)) = self.scoped_list(key.port(), Direction::FromGuest) {
            found.push((scope, Direction::FromGuest, self.decide(list, &inside(key, vlan))));
        }
        if admitted.is_err() || !has(&flow.mask, &PAIR_MASK) {
            return found;
        }
        let verdict = self.verdict(&Pair::of(key, vlan));
        let outputs = self.outputs(verdict, vlan, key, &mut looked_at);
        for (port, _) in outputs.into_iter().filter(|_| verdict != Verdict::Hairpin) {
            if let Some(scoped) = self.scoped_list(port, Direction::ToGuest)
                && !lists.iter().any(|other| Arc::ptr_eq(&other.1, &scoped.1))
            {
                lists.push(scoped);
                found.push((&scoped.0, Direction::ToGuest, self.decide(&scoped.1, &inside(key, vlan))));
            }
        }
        found
    }

    /// Whether a frame may enter where it comes from, and the VLAN that it belongs to then. By the port's VLANs, its other settings and its
    /// list. Adds to `mask` what it took to know.
    pub(crate) fn admit(&self, key: &FlowKey, mask: &mut FlowMask) -> Result<u16, Refused> {
        let from = key.port();
        if self.is_destination(from) {
            return Err(Refused::MirrorPort);
        }
        let vlan = self.member(from).enters(key, mask).ok_or(Refused::Vlan)?;
        if let Some(settings) = self.guest_settings(from)
            && let Some(pretence) = pretends(settings, key, mask)
        {
            return Err(Refused::Pretence(pretence));
        }
        if let Some(scoped) = self.scoped_list(from, Direction::FromGuest) {
            let decision = self.ask(&scoped.1, &inside(key, vlan), mask);
            if !decision.permits() {
                return Err(Refused::List(vlan, DeniedBy::new(scoped, Direction::FromGuest, decision)));
            }
        }
        Ok(vlan)
    }

    /// The VLAN that it belongs to, if it may enter.
    pub(super) fn may_enter(&self, key: &FlowKey) -> Option<u16> {
        self.admit(key, &mut FlowMask::default()).ok()
    }

    /// The same, of all packets of a flow.
    pub(super) fn all_may_enter(&self, key: &FlowKey, mask: &FlowMask) -> Option<u16> {
        let mut looked_at = *mask;
        self.admit(key, &mut looked_at).ok().filter(|_| looked_at == *mask)
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

    /// Judges by the sender's settings and list, where learning sends it, and the receivers' settings and lists. Adds to `mask`
    /// what it looked at. Mirrors of the sender get a copy, whatever becomes of it.
    fn judge(&self, key: &FlowKey, mask: FlowMask) -> Judged {
        let mut judged = self.judge_uncopied(key, mask);
        let copies = self.copies_from(key.port());
        if !copies.is_empty() {
            prepend(&mut judged.actions, copies);
        }
        judged
    }

    fn judge_uncopied(&self, key: &FlowKey, mut mask: FlowMask) -> Judged {
        let drop = |mask, verdict, vlan, reason, rule| {
            let actions = vec![Action::Drop(reason)];
            Judged { mask, verdict, vlan, actions, rule }
        };
        let vlan = match self.admit(key, &mut mask) {
            Ok(vlan) => vlan,
            Err(Refused::MirrorPort) => return drop(mask, None, 0, DropReason::MirrorPort, None),
            Err(Refused::Vlan) => return drop(mask, None, 0, DropReason::Vlan, None),
            Err(Refused::Pretence(_)) => return drop(mask, None, 0, DropReason::Spoofed, None),
            Err(Refused::List(_, rule)) => return drop(mask, None, 0, DropReason::Acl, Some(rule)),
        };
        let verdict = self.verdict(&Pair::of(key, vlan));
        let mut outputs = self.outputs(verdict, vlan, key, &mut mask);
        if outputs.is_empty() {
            return drop(mask, Some(verdict), vlan, self.why_nowhere(verdict, key.port()), None);
        }
        if verdict != Verdict::Hairpin {
            let rule = self.filter(&inside(key, vlan), &mut mask, &mut outputs);
            if outputs.is_empty() {
                return drop(mask, Some(verdict), vlan, DropReason::Acl, rule);
            }
        }
        // What goes back where it came from does not get there.
        let copies = |to| if verdict == Verdict::Hairpin { &[] } else { self.copies_to(to) };
        let mut actions = membership::actions(outputs, copies);
        if verdict == Verdict::Flood && self.guest_settings(key.port()).is_some_and(|settings| settings.storm.is_some())
        {
            actions.insert(0, Action::LimitFlood);
        }
        Judged { mask, verdict: Some(verdict), vlan, actions, rule: None }
    }

    /// Why learning sends a packet from there nowhere.
    fn why_nowhere(&self, verdict: Verdict, from: PortId) -> DropReason {
        match verdict {
            Verdict::To(port) => self.apart(from, port).unwrap_or(DropReason::Vlan),
            Verdict::Hairpin => DropReason::Vlan,
            Verdict::Flood => {
                let mut others = self.flooded().filter(|to| *to != from).map(|to| self.apart(from, to));
                match others.next() {
                    None => DropReason::NoOtherPort,
                    Some(Some(first)) if others.all(|why| why.is_some()) => first,
                    Some(_) => DropReason::Vlan,
                }
            }
        }
    }

    /// Takes out the ports whose lists do not let it through; the first such list's word.
    fn filter(&self, key: &FlowKey, mask: &mut FlowMask, outputs: &mut Vec<(PortId, Tag)>) -> Option<DeniedBy> {
        // Most ports share a list: it is asked once.
        let mut asked: Vec<(&Arc<List>, bool)> = Vec::new();
        let mut denied = None;
        outputs.retain(|(port, _)| {
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
