//! Mirrors in what becomes of packets: which copies are made, and what their destinations do not get.

use super::{Learning, Refusal};
use crate::label::{LABEL_TPID, Label};
use crate::{Effects, Mirrored};
use lasthop_flow::Action;
use lasthop_frame::{Edit, FlowKey};
use lasthop_types::{DropReason, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// A port that gets copies, and the mirror by which it does.
pub(crate) type CopyTo = (PortId, String);

/// Mirrors whose ports are there, by the ports whose packets are copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrors {
    from_guest: BTreeMap<PortId, Vec<CopyTo>>,
    to_guest: BTreeMap<PortId, Vec<CopyTo>>,
    /// With how many packets there are for each copy.
    destinations: BTreeMap<PortId, u32>,
    /// Of destinations whose copies are labelled, and ports whose packets go there: their places.
    labels: BTreeMap<(PortId, PortId), u16>,
}

impl Mirrors {
    /// A mirror of these ports' packets to another port: of one in `sample`, as others to that port.
    pub fn add(&mut self, name: &str, from: &[PortId], to: PortId, which: Mirrored, sample: u32) {
        self.destinations.insert(to, sample);
        for port in from {
            let copy = (to, name.to_owned());
            if which.of_sent() {
                self.from_guest.entry(*port).or_default().push(copy.clone());
            }
            if which.of_received() {
                self.to_guest.entry(*port).or_default().push(copy);
            }
        }
    }

    /// Copies to `to` of packets of such a port say so, with this place of it. Another mirror to `to` would confuse them.
    pub fn label(&mut self, to: PortId, places: impl IntoIterator<Item = (PortId, u16)>) {
        self.labels.extend(places.into_iter().map(|(port, place)| ((to, port), place)));
    }

    /// Nothing is mirrored.
    pub fn is_empty(&self) -> bool {
        self.destinations.is_empty()
    }

    /// The same without copies of what such ports send, or to such ports.
    fn without(&self, pulled: impl Fn(PortId) -> bool) -> Self {
        let left = |copies: &BTreeMap<PortId, Vec<CopyTo>>| -> BTreeMap<PortId, Vec<CopyTo>> {
            let there = copies.iter().filter(|(port, _)| !pulled(**port));
            let to = |copies: &Vec<CopyTo>| copies.iter().filter(|(to, _)| !pulled(*to)).cloned().collect::<Vec<_>>();
            there.map(|(port, copies)| (*port, to(copies))).filter(|(_, to)| !to.is_empty()).collect()
        };
        let (from_guest, to_guest) = (left(&self.from_guest), left(&self.to_guest));
        Self { from_guest, to_guest, destinations: self.destinations.clone(), labels: self.labels.clone() }
    }

    /// Ports for which something else holds than before.
    fn changed(&self, before: &Self) -> BTreeSet<PortId> {
        let differ = |a: &BTreeMap<_, Vec<_>>, b: &BTreeMap<PortId, Vec<CopyTo>>| -> BTreeSet<PortId> {
            a.keys().chain(b.keys()).filter(|id| a.get(id) != b.get(id)).copied().collect()
        };
        let mut changed = differ(&self.from_guest, &before.from_guest);
        changed.extend(differ(&self.to_guest, &before.to_guest));
        let sampled = |of: &Self, id: &PortId| of.destinations.get(id).copied();
        let all = self.destinations.keys().chain(before.destinations.keys());
        let other = all.filter(|id| sampled(self, id) != sampled(before, id)).copied();
        changed.extend(other);
        let labelled = self.labels.keys().chain(before.labels.keys());
        let other = labelled.filter(|ports| self.labels.get(ports) != before.labels.get(ports));
        changed.extend(other.map(|(_, port)| *port));
        changed
    }
}

impl Learning {
    /// What is mirrored from now on. Said of ports that packets may have come from or gone to, it has all flows removed.
    pub fn set_mirrors(&mut self, mirrors: Mirrors, now_ms: u64, out: &mut Effects) {
        self.wanted_mirrors = mirrors;
        let mirrors = self.wanted_mirrors.without(|id| self.is_pulled(id));
        let changed = mirrors.changed(&self.mirrors);
        if changed.is_empty() {
            return;
        }
        // One flow refuses link-local addresses for the whole switch, until what comes to some port is copied.
        let by_port = mirrors.from_guest.is_empty() != self.mirrors.from_guest.is_empty();
        let before = std::mem::replace(&mut self.mirrors, mirrors);
        if changed.iter().any(|id| self.is_in_use(*id)) || by_port && self.has_flows() {
            self.clear_flows(out);
        }
        let [is, was] =
            [&self.mirrors, &before].map(|mirrors| mirrors.destinations.keys().copied().collect::<BTreeSet<_>>());
        let turned: Vec<_> = is.symmetric_difference(&was).copied().collect();
        turned.into_iter().for_each(|id| self.forget_addresses(id, now_ms, out));
    }

    /// A cable was pulled or plugged in, and all flows that go by it are gone.
    pub(super) fn follow_cables(&mut self) {
        self.mirrors = self.wanted_mirrors.without(|id| self.is_pulled(id));
    }

    /// The port gets copies and nothing else.
    pub(crate) fn is_destination(&self, port: PortId) -> bool {
        self.mirrors.destinations.contains_key(&port)
    }

    /// Copies of what is sent by that port's guest.
    pub(crate) fn copies_from(&self, port: PortId) -> &[CopyTo] {
        self.mirrors.from_guest.get(&port).map_or(&[], Vec::as_slice)
    }

    /// Copies of what is sent to that port's guest.
    pub(crate) fn copies_to(&self, port: PortId) -> &[CopyTo] {
        self.mirrors.to_guest.get(&port).map_or(&[], Vec::as_slice)
    }

    /// The flow that refuses it: one for each port where some port's packets are copied, for flows that overlap must agree.
    pub(super) fn placed(&self, refusal: Refusal, key: &FlowKey) -> Refusal {
        match refusal {
            Refusal::LinkLocal(_) => Refusal::LinkLocal((!self.mirrors.from_guest.is_empty()).then_some(key.port())),
            of_port => of_port,
        }
    }

    /// What a flow that refuses packets does: they are copied as they came.
    pub(super) fn refuse(&self, refusal: Refusal) -> Vec<Action> {
        let mut actions = vec![Action::Drop(refusal.reason())];
        if let Some(port) = refusal.port() {
            prepend(&mut actions, self.copies_from(port));
            self.finish_copies(port, &mut actions);
        }
        actions
    }

    /// One of how many packets is copied there.
    pub(crate) fn sampled(&self, to: PortId) -> u32 {
        self.mirrors.destinations.get(&to).copied().unwrap_or(1)
    }

    /// Makes the copies of a packet from `from` what their destinations want: some only, or labelled.
    pub(super) fn finish_copies(&self, from: PortId, actions: &mut Vec<Action>) {
        self.sample(actions);
        self.label(from, actions);
    }

    /// A tag goes in front of each copy that is to have a label, and off again.
    fn label(&self, from: PortId, actions: &mut Vec<Action>) {
        if self.mirrors.labels.is_empty() {
            return;
        }
        let all = std::mem::take(actions);
        let hairpin = matches!(all[..], [.., Action::Output(to)] if to == from).then_some(DropReason::Hairpin);
        let why = dropped(&all).or(hairpin);
        for (n, action) in all.iter().enumerate() {
            let label = match action {
                Action::Copy(to) => self.label_of(from, *to, all.get(n..).unwrap_or_default(), why),
                _ => None,
            };
            if let Some(label) = label {
                actions.push(Action::Edit(Edit::PushVlan { tpid: LABEL_TPID, tci: label.tci() }));
                actions.push(*action);
                actions.push(Action::Edit(Edit::PopVlan));
            } else {
                actions.push(*action);
            }
        }
    }

    /// The label of a copy for `to`, which is the first of these actions: of what `from` sends, or of what is sent to the next port.
    fn label_of(&self, from: PortId, to: PortId, actions: &[Action], dropped: Option<DropReason>) -> Option<Label> {
        let place = |port| self.mirrors.labels.get(&(to, port)).copied();
        if self.copies_from(from).iter().any(|(other, _)| *other == to) {
            return Some(Label { place: place(from)?, to_guest: false, dropped });
        }
        let next =
            actions.iter().find_map(|action| if let Action::Output(port) = action { Some(*port) } else { None })?;
        Some(Label { place: place(next)?, to_guest: true, dropped: None })
    }

    /// Copies for destinations that want some only are made by chance.
    fn sample(&self, actions: &mut Vec<Action>) {
        if self.mirrors.destinations.values().all(|sample| *sample == 1) {
            return;
        }
        for action in std::mem::take(actions) {
            if let Action::Copy(to) = action
                && let sample @ 2.. = self.sampled(to)
            {
                actions.push(Action::Sample(((1 << 32) / u64::from(sample) - 1) as u32, 1));
            }
            actions.push(action);
        }
    }
}

/// Copies are made first, of packets as they came: one for each destination, however many mirrors want it.
pub(super) fn prepend(actions: &mut Vec<Action>, copies: &[CopyTo]) {
    let mut first = Vec::with_capacity(copies.len() + actions.len());
    copies.iter().for_each(|(to, _)| copy(&mut first, *to));
    for action in actions.drain(..) {
        match action {
            Action::Copy(to) => copy(&mut first, to),
            other => first.push(other),
        }
    }
    *actions = first;
}

/// Adds a copy, if there is none.
pub(crate) fn copy(actions: &mut Vec<Action>, to: PortId) {
    if !actions.contains(&Action::Copy(to)) {
        actions.push(Action::Copy(to));
    }
}

/// Why these actions drop a packet, if that is all they do beside copying it.
pub(crate) fn dropped(actions: &[Action]) -> Option<DropReason> {
    let copies = |action: &Action| {
        // What labels a copy is no change of the packet.
        matches!(action, Action::Copy(_) | Action::Sample(_, 1) | Action::Edit(Edit::PushVlan { .. } | Edit::PopVlan))
    };
    match actions {
        [before @ .., Action::Drop(reason)] if before.iter().all(copies) => Some(*reason),
        _ => None,
    }
}
