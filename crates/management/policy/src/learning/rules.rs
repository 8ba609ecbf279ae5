//! What holds for a port: its access lists, whether it is an uplink, its settings; and what follows when that changes.

use super::{Learning, PortLists, Uplinks};
use crate::flows::Cause;
use crate::membership::Membership;
use crate::{Effects, PortSettings, Rate, Vlans};
use lasthop_types::{DropReason, PortId};
use std::collections::BTreeSet;

impl Learning {
    /// The access lists that hold for a port. To be said before the port is announced with [`Learning::port`]; when it
    /// is said of a port that was, [`Learning::clear_flows`] must follow; or [`Learning::addresses_changed`] where nothing is new of them but
    /// the addresses of a set.
    pub fn set_lists(&mut self, id: PortId, lists: PortLists) {
        let translates = |lists: &PortLists| lists.iter().flatten().any(|(_, list)| !list.translations().is_empty());
        let translated = translates(&lists) || self.lists.get(&id).is_some_and(translates);
        if lists.iter().all(Option::is_none) {
            self.lists.remove(&id);
        } else {
            self.lists.insert(id, lists);
        }
        if translated {
            self.follow_translations();
        }
        self.follow_tracking(id);
    }

    /// Which ports are uplinks. Nothing goes from one uplink to another, known or flooded: two of them may be on one segment,
    /// and a frame that went out by one and came in by the other would go round for ever. Nor does a frame go into or out of
    /// an uplink that does not carry its VLAN. To be said before such a port is announced with [`Learning::port`]. Said later of one
    /// that packets may have come from or gone to, it has all flows removed, as other access lists have; of one that is an uplink no
    /// more, flows that refuse too much are replaced by and by.
    pub fn set_uplinks(&mut self, uplinks: &Uplinks, now_ms: u64, out: &mut Effects) {
        if self.uplinks == *uplinks {
            return;
        }
        let before = std::mem::replace(&mut self.uplinks, uplinks.clone());
        let changed: BTreeSet<_> =
            before.keys().chain(uplinks.keys()).filter(|id| before.get(id) != uplinks.get(id)).collect();
        let ids: BTreeSet<PortId> = changed.into_iter().copied().collect();
        ids.iter().for_each(|id| self.follow_members(*id));
        // Not some at a time: a control that came meanwhile would judge and learn by flows that were made under other rules.
        if ids.iter().any(|id| self.is_in_use(*id)) {
            self.clear_flows(out);
        }
        // Where other VLANs are carried now, or other limits hold, everything is learned anew.
        ids.into_iter().for_each(|id| self.forget_addresses(id, now_ms, out));
        if before.keys().any(|id| !uplinks.contains_key(id)) {
            self.redo_all(Cause::Uplinks, now_ms, out);
        }
    }

    /// What a port is told to do. To be said before it is announced with [`Learning::port`]. Said later of one that packets may have come
    /// from or gone to, it has all flows removed, unless all that changes is what flows do not depend on.
    pub fn set_settings(&mut self, id: PortId, settings: PortSettings, now_ms: u64, out: &mut Effects) {
        let before = self.settings.get(&id).cloned().unwrap_or_default();
        if settings == before {
            return;
        }
        // Rates, shares and quotas are applied elsewhere; flows say no more than that there is one.
        let as_flows_see = |of: &PortSettings| PortSettings {
            rate_from: None,
            rate_to: None,
            min_rate: None,
            storm: of.storm.map(|_| Rate::ANY),
            connections: None,
            nat_ports: None,
            grants: None,
            max_ring: None,
            weight: None,
            priority: None,
            max_cpu: None,
            max_cpu_to: None,
            engine: None,
            tx_batch: None,
            rx_batch: None,
            static_macs: Vec::new(),
            queue_of: None,
            ..of.clone()
        };
        if self.is_in_use(id) && as_flows_see(&settings) != as_flows_see(&before) {
            self.clear_flows(out);
        }
        let cable = settings.link_down != before.link_down;
        let elsewhere = settings.membership() != before.membership() || settings.macs != before.macs;
        if settings.is_default() {
            self.settings.remove(&id);
        } else {
            self.settings.insert(id, settings);
        }
        self.follow_members(id);
        let limit = self.connection_limit(id);
        if let Some(connections) = &mut self.connections {
            connections.limit(id, limit);
        }
        if elsewhere {
            self.forget_addresses(id, now_ms, out);
        }
        let told = self.settings.get(&id).cloned().unwrap_or_default();
        self.set_static_addresses(id, &told, now_ms, out);
        self.follow_snooping();
        if cable {
            self.follow_cables();
        }
    }

    /// Somebody has pulled its cable (`port set --link down`): nothing comes from there and nothing goes there, copies included.
    pub(crate) fn is_pulled(&self, id: PortId) -> bool {
        self.guest_settings(id).is_some_and(|settings| settings.link_down)
    }

    /// Ports that are uplinks.
    pub(crate) fn uplinks(&self) -> &Uplinks {
        &self.uplinks
    }

    /// What a port was told to do.
    pub fn settings(&self, id: PortId) -> Option<&PortSettings> {
        self.settings.get(&id)
    }

    /// What a port is told to do that is no uplink: settings are for those.
    pub(crate) fn guest_settings(&self, id: PortId) -> Option<&PortSettings> {
        self.settings.get(&id).filter(|_| !self.uplinks.contains_key(&id))
    }

    /// How a port takes part in VLANs follows from what it is and what it is told.
    pub(super) fn follow_members(&mut self, id: PortId) {
        let member = match (self.uplinks.get(&id), self.settings.get(&id)) {
            (Some(Some(vlans)), _) => Membership::carrying(vlans.clone()),
            (Some(None), _) | (None, None) => Membership::default(),
            (None, Some(settings)) => settings.membership(),
        };
        if member == Membership::default() {
            self.members.remove(&id);
        } else {
            self.members.insert(id, member);
        }
    }

    /// Whether there may be flows from or to a port. To one that has never been up, they go where an address is said to live there.
    pub(super) fn is_in_use(&self, id: PortId) -> bool {
        self.ports.get(&id).is_some_and(|port| port.was_up)
            || self.flows.count(id) + self.macs.count(id) > 0
            || self.settings.get(&id).is_some_and(|settings| !settings.static_macs.is_empty())
    }

    /// Why nothing goes from one port to the other, whatever it is, if so.
    pub fn apart(&self, from: PortId, to: PortId) -> Option<DropReason> {
        let is_uplink = |port| self.uplinks.contains_key(&port);
        let is_isolated = |port| self.guest_settings(port).is_some_and(|settings| settings.isolated);
        match (is_uplink(from), is_uplink(to)) {
            _ if self.is_pulled(from) || self.is_pulled(to) => Some(DropReason::PortDown),
            _ if self.is_destination(from) || self.is_destination(to) => Some(DropReason::MirrorPort),
            (true, true) => Some(DropReason::BetweenUplinks),
            (false, false) if is_isolated(from) || is_isolated(to) => Some(DropReason::Isolated),
            _ => None,
        }
    }

    /// How a port takes part in VLANs.
    pub(crate) fn member(&self, port: PortId) -> &Membership {
        static ANY: Membership = Membership::ANY;
        self.members.get(&port).unwrap_or(&ANY)
    }

    /// The VLANs that a port is a member of, if not all. Frames of the VLAN with the number go out there without a tag.
    pub fn vlans_of(&self, port: PortId) -> (Option<&Vlans>, u16) {
        let member = self.member(port);
        (member.vlans(), member.untagged())
    }
}
