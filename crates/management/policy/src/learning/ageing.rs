//! Time passes, and addresses are forgotten: some at a time, for there may be 131 072. Between two slices misses are answered.
//!
//! An address that is forgotten is gone from the table at once, so whatever is judged from then on goes by that. What follows for flows that were made before,
//! those from it and to it, waits as a `NewPlace` for its turn, like flows that wait for their pass (`stale.rs`).

use super::stale::SLICE_MS;
use super::{Effects, FLAP_WINDOW_MS, Learning, Port};
use crate::flows::Cause;
use crate::mactable::{AGEING_MS, Round};
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use std::collections::VecDeque;

/// Addresses whose flows are put right in a slice: half a millisecond.
const NEW_PLACES: usize = 256;
/// Places of the table that are looked at in a slice: as long.
const PLACES: usize = 4096;

/// A station or group is found elsewhere than before, so flows from it and to it are to be put right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewPlace {
    /// This station lives no more at this port.
    Left(u16, MacAddr, PortId),
    /// This station's port is up, or is not any more.
    Elsewhere(u16, MacAddr),
    /// This group goes to other ports now.
    Group(u16, MacAddr),
}

/// What is still to be done.
#[derive(Debug, Default)]
pub(super) struct Ageing {
    new_places: VecDeque<NewPlace>,
    /// The table is being looked through for what is old.
    round: Option<Round>,
    next_ms: u64,
}

impl Ageing {
    /// When the next slice is due; `None` while nothing is to be done.
    pub fn due_ms(&self) -> Option<u64> {
        (!self.new_places.is_empty() || self.round.is_some()).then_some(self.next_ms)
    }
}

impl Learning {
    /// Ageing. Call it after each [`Learning::statistics`], or every few seconds, while [`Learning::is_idle`] is
    /// false.
    pub fn tick(&mut self, now_ms: u64, out: &mut Effects) {
        if self.ageing.round.is_none() {
            self.ageing.round = Some(self.macs.begin_round());
        }
        self.age_some(now_ms, out);
        self.age_connections(now_ms, out);
        self.age_groups(now_ms, out);
        self.redo_all(Cause::Unlearned, now_ms, out);
        if let Some(since_ms) = now_ms.checked_sub(AGEING_MS) {
            self.stale.unused_since_ms = since_ms;
            self.redo_all(Cause::Unused, now_ms, out);
            let unused: Vec<_> =
                self.flows.refusals.iter().filter(|(_, known)| known.used_ms <= since_ms).map(|(r, _)| *r).collect();
            for refusal in unused {
                self.del_refusal(refusal, out);
            }
        }
        let calm = |port: &Port| now_ms.saturating_sub(port.flaps_since_ms) >= FLAP_WINDOW_MS;
        let mut left = Vec::new();
        for (id, port) in self.ports.iter_mut().filter(|(_, port)| port.floods && !port.up && calm(port)) {
            port.floods = false;
            left.push(*id);
        }
        if !left.is_empty() {
            self.refresh_floods(now_ms, out);
        }
        left.into_iter().for_each(|id| self.look_for_stations_of(id, now_ms, out));
    }

    /// A port is up, or is not any more: its stations are looked for there, or everywhere.
    pub(super) fn look_for_stations_of(&mut self, id: PortId, now_ms: u64, out: &mut Effects) {
        if !self.uplinks.contains_key(&id) && self.macs.count(id) > 0 {
            let learned = self.macs.learned_at(id).map(|(vlan, mac)| NewPlace::Elsewhere(vlan, mac));
            self.follow(learned.collect(), now_ms, out);
        }
    }

    /// What lives behind this port may live behind another now: the addresses learned there are forgotten. Static ones stay.
    pub fn forget_addresses(&mut self, id: PortId, now_ms: u64, out: &mut Effects) {
        self.forget_addresses_of(id, now_ms, out);
        if self.has_port(id) {
            self.macs.add_port(id, self.uplinks.contains_key(&id));
        }
    }

    /// The same of one that may have gone.
    pub(super) fn forget_addresses_of(&mut self, id: PortId, now_ms: u64, out: &mut Effects) {
        let left = self.macs.remove_port(id).into_iter().map(|(vlan, mac)| NewPlace::Left(vlan, mac, id));
        self.follow(left.collect(), now_ms, out);
    }

    /// These have changed: what follows from that for flows, some of it at once.
    pub(super) fn follow(&mut self, changed: Vec<NewPlace>, now_ms: u64, out: &mut Effects) {
        if !changed.is_empty() {
            let waits = !self.ageing.new_places.is_empty();
            self.ageing.new_places.extend(changed);
            if !waits {
                self.follow_some(now_ms, out);
            }
        }
    }

    /// Goes on with what is to be done.
    pub(super) fn age_some(&mut self, now_ms: u64, out: &mut Effects) {
        if let Some(mut round) = self.ageing.round.take() {
            let gone = self.macs.age(&mut round, PLACES, now_ms);
            self.ageing.new_places.extend(gone.into_iter().map(|(vlan, mac, port)| NewPlace::Left(vlan, mac, port)));
            if !round.is_over() {
                self.ageing.round = Some(round);
            } else if round.forgot() {
                // There is room for others.
                self.redo_all(Cause::Unlearned, now_ms, out);
            }
        }
        self.follow_some(now_ms, out);
    }

    fn follow_some(&mut self, now_ms: u64, out: &mut Effects) {
        self.ageing.next_ms = now_ms.saturating_add(SLICE_MS);
        for _ in 0..NEW_PLACES {
            match self.ageing.new_places.pop_front() {
                None => return,
                Some(NewPlace::Left(vlan, mac, port)) => {
                    self.forget_source(vlan, mac, port, now_ms, out);
                    self.refresh_destination(vlan, mac, now_ms, out);
                }
                Some(NewPlace::Elsewhere(vlan, mac)) => self.refresh_destination(vlan, mac, now_ms, out),
                Some(NewPlace::Group(vlan, group)) => self.redo_all(Cause::Group(vlan, group), now_ms, out),
            }
        }
    }
}
