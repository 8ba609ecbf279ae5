//! What becomes of a packet: the sender's settings and access list, then where learning sends it, then the receivers'.

use super::mirrors::prepend;
use super::nat::{Passage, home};
use super::tracking::{Kind, Probe, Track};
use super::{Learning, refusal};
use crate::acl::{Decision, Direction, List, Scope, Standing, Translation};
use crate::flows::{PAIR_MASK, PORT_MASK, Pair, VID, Verdict, has};
use crate::guard::{Pretence, pretends};
use crate::membership::{self, Tag};
use lasthop_conntrack::{Nat, Refusal};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::{DropReason, PortId};
use std::sync::Arc;

/// What becomes of a packet or of the packets of a flow, and the flow that says so.
pub(crate) struct Decided {
    /// The bits of the packet that it took to know.
    pub mask: FlowMask,
    /// As [`Installed::verdict`].
    pub verdict: Option<Verdict>,
    /// As [`Installed::vlan`].
    pub vlan: u16,
    pub actions: Vec<Action>,
    /// Whose rule it is that drops them, if one does.
    pub rule: Option<DeniedBy>,
    /// What the packet is to connections.
    pub track: Track,
    /// What the flow has to do with them.
    pub kind: Kind,
    /// As [`Installed::home`](crate::flows::Installed).
    pub home: Option<MacAddr>,
    /// How its connection is translated if it opens one.
    pub nat: Nat,
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
            Decision::Malformed | Decision::Connection | Decision::Invalid | Decision::Basic => None,
        };
        Self { scope: scope.clone(), direction, rule }
    }
}

/// Why a frame may not enter where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The port's cable is pulled.
    Pulled,
    /// The port is a mirror's destination.
    MirrorPort,
    /// The port is no member of its VLAN.
    Vlan,
    /// It pretends something.
    Pretence(Pretence),
    /// The port's list denies it, which belongs to this VLAN.
    List(u16, Box<DeniedByList>),
}

/// A list's word that a packet may not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeniedByList {
    pub by: DeniedBy,
    pub decision: Decision,
    /// What the packet is to connections, if a list that asked that denied it.
    pub asked: Option<Track>,
}

impl DeniedByList {
    fn reason(&self) -> DropReason {
        if self.decision == Decision::Invalid { DropReason::CtInvalid } else { DropReason::Acl }
    }
}

/// A frame as access lists see it: in the VLAN that it belongs to, with its tag or without.
pub(crate) fn inside(key: &FlowKey, vlan: u16) -> FlowKey {
    FlowKey { vlan_tci: key.vlan_tci & !VID | vlan, ..*key }
}

impl Learning {
    /// How many rules and translations of access lists have been tried so far. It is what judging takes: whoever has much to judge does as much at a
    /// time as this says that he may.
    pub fn rules_compared(&self) -> u64 {
        self.rules_compared.get()
    }

    /// What a list says, with what it took to know: see [`List::check`].
    pub(super) fn ask(
        &self,
        list: &List,
        key: &FlowKey,
        standing: Standing,
        direction: Direction,
        mask: &mut FlowMask,
    ) -> Decision {
        let decision = list.check(key, standing, direction, mask);
        self.note_rules_compared(match decision {
            Decision::Rule(n, _) => n + 1,
            Decision::Default(_) | Decision::Basic => list.rules().len(),
            Decision::Malformed | Decision::Connection | Decision::Invalid => 0,
        });
        decision
    }

    /// Which of a list's translations holds for a packet's connection, with what it took to know: see [`List::translation`].
    pub(super) fn ask_translation<'a>(
        &self,
        list: &'a List,
        key: &FlowKey,
        mask: &mut FlowMask,
    ) -> Option<(usize, &'a Translation)> {
        let found = list.translation(key, mask);
        self.note_rules_compared(found.map_or(list.translations().len(), |(n, _)| n + 1));
        found
    }

    fn note_rules_compared(&self, rules: usize) {
        self.rules_compared.set(self.rules_compared.get().wrapping_add(rules as u64));
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
        let admitted = self.admit(key, &mut looked_at, &Probe::PEEK);
        let (Ok((vlan, _)) | Err(Refused::List(vlan, _))) = admitted else { return found };
        let track = self.track(key, vlan, &Probe::PEEK);
        let decide = |list: &List, key: &FlowKey, direction, to| {
            let standing = self.standing(&track, key, vlan, to);
            self.ask(list, &inside(key, vlan), standing, direction, &mut FlowMask::default())
        };
        if let Some((scope, list)) = self.scoped_list(key.port(), Direction::FromGuest) {
            found.push((scope, Direction::FromGuest, decide(list, key, Direction::FromGuest, None)));
        }
        if admitted.is_err() || !has(&flow.mask, &PAIR_MASK) {
            return found;
        }
        let verdict = self.way(key, vlan, &track);
        let mut outputs = self.outputs(verdict, vlan, key, &mut looked_at);
        let passage = self.passage(key, vlan, &track, &Probe::PEEK, &mut outputs, &mut looked_at);
        let delivered = passage.map_or(*key, |passage| passage.delivered);
        for (port, _) in outputs.into_iter().filter(|_| verdict != Verdict::Hairpin) {
            if let Some(scoped) = self.scoped_list(port, Direction::ToGuest)
                && !lists.iter().any(|other| Arc::ptr_eq(&other.1, &scoped.1))
            {
                lists.push(scoped);
                found.push((
                    &scoped.0,
                    Direction::ToGuest,
                    decide(&scoped.1, &delivered, Direction::ToGuest, Some(port)),
                ));
            }
        }
        found
    }

    /// Whether a frame may enter where it comes from, and the VLAN that it belongs to then. By the port's VLANs, its other settings and its
    /// list. Adds to `mask` what it took to know, but for what it is to connections.
    pub(crate) fn admit(&self, key: &FlowKey, mask: &mut FlowMask, probe: &Probe<'_>) -> Result<(u16, Track), Refused> {
        let from = key.port();
        if self.is_pulled(from) {
            return Err(Refused::Pulled);
        }
        if self.is_destination(from) {
            return Err(Refused::MirrorPort);
        }
        let vlan = self.member(from).enters(key, mask).ok_or(Refused::Vlan)?;
        if let Some(settings) = self.guest_settings(from)
            && let Some(pretence) = pretends(settings, key, mask)
        {
            return Err(Refused::Pretence(pretence));
        }
        let track = self.track(key, vlan, probe);
        if let Some(scoped) = self.scoped_list(from, Direction::FromGuest) {
            let standing = self.standing(&track, key, vlan, None);
            let decision = self.ask(&scoped.1, &inside(key, vlan), standing, Direction::FromGuest, mask);
            if !decision.permits() {
                let by = DeniedBy::new(scoped, Direction::FromGuest, decision);
                let asked = scoped.1.tracks().then_some(track);
                return Err(Refused::List(vlan, Box::new(DeniedByList { by, decision, asked })));
            }
        }
        Ok((vlan, track))
    }

    /// The VLAN that it belongs to, if it may enter.
    pub(super) fn may_enter(&self, key: &FlowKey, probe: &Probe<'_>) -> Option<u16> {
        self.admit(key, &mut FlowMask::default(), probe).ok().map(|(vlan, _)| vlan)
    }

    /// The same, of all packets of a flow.
    pub(super) fn all_may_enter(&self, key: &FlowKey, mask: &FlowMask) -> Option<u16> {
        let mut looked_at = *mask;
        let (vlan, _) = self.admit(key, &mut looked_at, &Probe::PEEK).ok()?;
        (looked_at == *mask).then_some(vlan)
    }

    /// What becomes of a packet that [`Learning::may_enter`] or not, and the widest flow that says so.
    pub(super) fn decide_anew(&self, key: &FlowKey, enters: bool, probe: &Probe<'_>) -> Decided {
        // A flow for what may not enter need not know who sends it to whom.
        self.decide(key, if enters { PAIR_MASK } else { PORT_MASK }, probe)
    }

    /// What becomes of all packets of a flow; `None` if the flow does not say enough of them, or there should be none.
    pub(super) fn decide_flow(&self, key: &FlowKey, mask: &FlowMask) -> Option<Decided> {
        if !has(mask, &PORT_MASK) {
            return None;
        }
        let mut decided = self.decide(key, *mask, &Probe::PEEK);
        let refused = has(mask, &PAIR_MASK) && refusal(key).is_some();
        let enough = decided.verdict.is_none() || has(mask, &PAIR_MASK);
        decided.kind = match (decided.kind, decided.track.known()) {
            (Kind::Never, _) | (Kind::Tracked, None) => return None,
            (Kind::Tracked, Some(known)) => Kind::Connection(known.number()),
            (kind, _) => kind,
        };
        (decided.mask == *mask && enough && !refused).then_some(decided)
    }

    /// Judges by the sender's settings and list, where learning sends it, and the receivers' settings and lists. Adds to `mask`
    /// what it looked at. Mirrors of the sender get a copy, whatever becomes of it.
    fn decide(&self, key: &FlowKey, mask: FlowMask, probe: &Probe<'_>) -> Decided {
        let mut decided = self.decide_uncopied(key, mask, probe);
        if decided.verdict.is_some() && self.is_overheard(key) {
            decided.kind = Kind::Never;
        }
        let copies = self.copies_from(key.port());
        if !copies.is_empty() {
            prepend(&mut decided.actions, copies);
        }
        self.finish_copies(key.port(), &mut decided.actions);
        decided
    }

    fn decide_uncopied(&self, key: &FlowKey, mut mask: FlowMask, probe: &Probe<'_>) -> Decided {
        let drop = |mask, verdict, vlan, reason| {
            let actions = vec![Action::Drop(reason)];
            Decided {
                mask,
                verdict,
                vlan,
                actions,
                rule: None,
                track: Track::None,
                kind: Kind::Plain,
                home: None,
                nat: Nat::None,
            }
        };
        let (vlan, track) = match self.admit(key, &mut mask, probe) {
            Ok(admitted) => admitted,
            Err(Refused::Pulled) => return drop(mask, None, 0, DropReason::PortDown),
            Err(Refused::MirrorPort) => return drop(mask, None, 0, DropReason::MirrorPort),
            Err(Refused::Vlan) => return drop(mask, None, 0, DropReason::Vlan),
            Err(Refused::Pretence(_)) => return drop(mask, None, 0, DropReason::Spoofed),
            Err(Refused::List(vlan, denied)) => return self.by_list(key, vlan, mask, None, *denied),
        };
        let (home, verdict) = (home(&track), self.way(key, vlan, &track));
        let comes_back = self.is_outside(key, &mut mask);
        let mut outputs = self.outputs(verdict, vlan, key, &mut mask);
        if outputs.is_empty() {
            return Decided { home, ..drop(mask, Some(verdict), vlan, self.why_nowhere(verdict, vlan, key)) };
        }
        let (mut kind, mut passage) = (Kind::Plain, Passage::unchanged(key));
        if verdict != Verdict::Hairpin {
            passage = match self.passage(key, vlan, &track, probe, &mut outputs, &mut mask) {
                Ok(passage) => passage,
                Err(reason) => {
                    return Decided { kind: Kind::Never, track, ..drop(mask, Some(verdict), vlan, reason) };
                }
            };
            let tracked = comes_back
                || passage.is_translated()
                || self.tracks(key.port())
                || outputs.iter().any(|(to, _)| self.tracks(*to));
            let denied = self.filter(&inside(&passage.delivered, vlan), &track, &mut mask, &mut outputs);
            if outputs.is_empty()
                && let Some(denied) = denied
            {
                return Decided { home, ..self.by_list(key, vlan, mask, Some(verdict), denied) };
            }
            if comes_back && self.is_unasked(&track, &passage) {
                outputs.retain(|(to, _)| self.takes_unasked(key.port(), *to));
                if outputs.is_empty() {
                    let kind = self.denied_kind(key, vlan, &mut mask, &track);
                    let track = Track::Invalid(Refusal::Unasked);
                    return Decided { kind, track, home, ..drop(mask, Some(verdict), vlan, DropReason::CtInvalid) };
                }
                kind = self.unasked_kind(key, vlan, &mut mask);
            } else if tracked {
                kind = self.permitted_kind(key, &mut mask, &track);
            }
        }
        // What goes back where it came from does not get there.
        let copies = |to| if verdict == Verdict::Hairpin { &[] } else { self.copies_to(to) };
        let mut actions = passage.edits;
        actions.extend(membership::actions(outputs, copies));
        if verdict.floods() && self.guest_settings(key.port()).is_some_and(|settings| settings.storm.is_some()) {
            actions.insert(0, Action::LimitFlood);
        }
        Decided { mask, verdict: Some(verdict), vlan, actions, rule: None, track, kind, home, nat: passage.nat }
    }

    /// Where learning sends a packet; one of a translated connection to who opened it, where nothing is known of his station any more.
    pub(crate) fn way(&self, key: &FlowKey, vlan: u16, track: &Track) -> Verdict {
        let home = home(track);
        let verdict = self.verdict(&Pair { dst: home.unwrap_or(MacAddr(key.eth_dst)), ..Pair::of(key, vlan) });
        let opener = || home.and(track.known()).map(|known| PortId(known.from())).filter(|port| self.has_port(*port));
        match verdict {
            Verdict::Flood | Verdict::Sought(_) => {
                opener().filter(|port| *port != key.port()).map_or(verdict, Verdict::To)
            }
            verdict => verdict,
        }
    }

    /// Whether a packet to a translated address is of no connection, and of no service that is published there. It opens none: else it would hold a port of
    /// that address.
    pub(crate) fn is_unasked(&self, track: &Track, passage: &Passage) -> bool {
        track.opens() && !passage.is_translated()
    }

    /// Whether one such passes from one port to another: lists that ask about connections could not know its answer.
    pub(crate) fn takes_unasked(&self, from: PortId, to: PortId) -> bool {
        !self.tracks(from) && !self.tracks(to)
    }

    /// A list has denied it.
    fn by_list(
        &self,
        key: &FlowKey,
        vlan: u16,
        mut mask: FlowMask,
        verdict: Option<Verdict>,
        denied: DeniedByList,
    ) -> Decided {
        let kind = match &denied.asked {
            Some(track) if denied.decision != Decision::Malformed => self.denied_kind(key, vlan, &mut mask, track),
            _ => Kind::Plain,
        };
        let (actions, track) = (vec![Action::Drop(denied.reason())], denied.asked.unwrap_or(Track::None));
        // The VLAN means something to learning only.
        let vlan = if verdict.is_some() { vlan } else { 0 };
        Decided { mask, verdict, vlan, actions, rule: Some(denied.by), track, kind, home: None, nat: Nat::None }
    }

    /// Why learning sends a packet from there nowhere.
    fn why_nowhere(&self, verdict: Verdict, vlan: u16, key: &FlowKey) -> DropReason {
        let from = key.port();
        match verdict {
            Verdict::To(port) => self.apart(from, port).unwrap_or(DropReason::Vlan),
            Verdict::Hairpin => DropReason::Vlan,
            Verdict::Flood | Verdict::Sought(_) if self.is_unwanted(from, vlan, key) => DropReason::NoOtherPort,
            Verdict::Flood | Verdict::Sought(_) => {
                let mut others = self.flooded().filter(|to| *to != from).map(|to| self.apart(from, to));
                match others.next() {
                    None => DropReason::NoOtherPort,
                    Some(Some(first)) if others.all(|why| why.is_some()) => first,
                    Some(_) => DropReason::Vlan,
                }
            }
        }
    }

    /// Takes out the ports whose lists do not let it through; the first such list's word. If any of those that did not asked about connections, so
    /// does that word.
    fn filter(
        &self,
        key: &FlowKey,
        track: &Track,
        mask: &mut FlowMask,
        outputs: &mut Vec<(PortId, Tag)>,
    ) -> Option<DeniedByList> {
        // Most ports share a list: it is asked once.
        let mut asked: Vec<(&Arc<List>, Standing, bool)> = Vec::new();
        let (mut denied, mut tracks) = (None, false);
        outputs.retain(|(port, _)| {
            let Some(scoped) = self.scoped_list(*port, Direction::ToGuest) else { return true };
            let standing = self.standing(track, key, key.vlan_tci & VID, Some(*port));
            let same = |(list, s, _): &&(&Arc<List>, Standing, bool)| Arc::ptr_eq(list, &scoped.1) && *s == standing;
            if let Some((.., permits)) = asked.iter().find(same) {
                return *permits;
            }
            let decision = self.ask(&scoped.1, key, standing, Direction::ToGuest, mask);
            asked.push((&scoped.1, standing, decision.permits()));
            if !decision.permits() {
                tracks |= scoped.1.tracks();
                denied.get_or_insert_with(|| (DeniedBy::new(scoped, Direction::ToGuest, decision), decision));
            }
            decision.permits()
        });
        let (by, decision) = denied?;
        Some(DeniedByList { by, decision, asked: tracks.then_some(*track) })
    }
}
