//! Multicasts go where they are wanted (`port set --snooping`), as far as is known.

use super::ageing::NewPlace;
use super::{Headers, Learning};
use crate::Effects;
use crate::flows::{Cause, add};
use crate::snooping::{Changed, Family, GroupView, Message, asks_all};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::PortId;

/// What tells packets that say who wants what from others.
const KIND: FlowMask = FlowMask(FlowKey { eth_type: u16::MAX, ip_proto: u8::MAX, ..crate::flows::NONE });
/// Of ICMPv6 its type, too.
const TYPE: FlowMask = FlowMask(FlowKey { l4_src: u16::MAX, ..crate::flows::NONE });
/// Whether it is whole: a fragment says nothing, and no whole packet is to be judged by its flow.
const WHOLE: FlowMask = FlowMask(FlowKey { ip_frag: u8::MAX, anomalies: u16::MAX, ..crate::flows::NONE });

impl Learning {
    /// A packet that says who wants what comes to control each time.
    pub(super) fn is_overheard(&self, key: &FlowKey) -> bool {
        self.snoops && Message::of(key).is_some()
    }

    /// Takes in what such a packet says, which may enter from its port in this VLAN. A port with `snooping` is a guest that listens: that it
    /// asks as a router does would end floods to others without anybody being asked.
    pub(super) fn overhear(&mut self, key: &FlowKey, vlan: u16, headers: Headers<'_>, now_ms: u64, out: &mut Effects) {
        if self.is_overheard(key) {
            let may_ask = !self.guest_settings(key.port()).is_some_and(|of| of.snooping);
            let changed = self.groups.hear((vlan, key.port(), may_ask), key, &headers.view(key), now_ms);
            self.follow_groups(changed, now_ms, out);
        }
    }

    pub(super) fn age_groups(&mut self, now_ms: u64, out: &mut Effects) {
        let changed = self.groups.expire(now_ms);
        if changed.all {
            self.redo_all(Cause::Floods, now_ms, out);
        } else {
            let groups = changed.groups.into_iter().map(|(vlan, group)| NewPlace::Group(vlan, group));
            self.follow(groups.collect(), now_ms, out);
        }
    }

    pub(super) fn follow_groups(&mut self, changed: Changed, now_ms: u64, out: &mut Effects) {
        if changed.all {
            return self.redo_all(Cause::Floods, now_ms, out);
        }
        for (vlan, group) in changed.groups {
            self.redo_all(Cause::Group(vlan, group), now_ms, out);
        }
    }

    /// Some port is told to get only what it wants, or none is any more. All flows that go by it are gone.
    pub(super) fn follow_snooping(&mut self) {
        self.snoops = self.settings.iter().any(|(id, of)| of.snooping && !self.uplinks.contains_key(id));
        if !self.snoops {
            self.groups.clear();
        }
    }

    /// Whether a flood goes to this port, as far as it is a multicast. Adds to `mask` what it took to know.
    pub(crate) fn wants(&self, to: PortId, vlan: u16, key: &FlowKey, mask: &mut FlowMask) -> bool {
        let Some(family) = Family::of(MacAddr(key.eth_dst)).filter(|_| self.snoops) else { return true };
        add(mask, &KIND);
        if (key.eth_type, key.ip_proto) == (0x86dd, 58) {
            add(mask, &TYPE);
        }
        if matches!((key.eth_type, key.ip_proto), (0x0800, 2 | 103) | (0x86dd, 58 | 103)) {
            add(mask, &WHOLE);
        }
        let report = matches!(Message::of(key), Some(Message::Report));
        // Of IGMP the key does not tell: what comes from a router, or goes to all hosts, asks.
        let report = report && !asks_all(MacAddr(key.eth_dst)) && !self.groups.is_router(vlan, family, key.port());
        !self.guest_settings(to).is_some_and(|of| of.snooping)
            || self.groups.wants(vlan, family, MacAddr(key.eth_dst), to, report)
    }

    /// A multicast that no other port wants which could get it.
    pub(super) fn is_unwanted(&self, from: PortId, vlan: u16, key: &FlowKey) -> bool {
        let could = |to: &PortId| {
            let carries = || self.member(*to).leaves(vlan, key, &mut FlowMask::default()).is_some();
            *to != from && self.apart(from, *to).is_none() && carries()
        };
        self.snoops && self.flooded().any(|to| could(&to))
    }

    /// Routers and groups that are known.
    pub fn groups(&self, now_ms: u64) -> Vec<GroupView> {
        self.groups.views(now_ms)
    }
}
