//! The supervisor's part in finding two uplinks on one segment: it makes the tokens, hears which came in where, and keeps
//! all but one of a segment from the switch.

use super::segments;
use super::supervisor::Supervisor;
use super::uplink::Uplink;
use lasthop_management_ipc::SupervisorToControl;
use lasthop_types::PortId;
use lasthop_uplink_ipc::Token;
use rustix::rand::{GetRandomFlags, getrandom};
use std::time::Instant;
use tracing::debug;

/// Random bytes of the kernel's.
pub(super) fn token() -> Token {
    let mut token = Token::default();
    // So few bytes come whole, once there is any entropy at all, which is long before anybody starts programs.
    let _ = getrandom(&mut token, GetRandomFlags::empty());
    token
}

impl Supervisor {
    /// Sends probes, if that is due, and blocks and unblocks uplinks.
    pub(super) fn step_segments(&mut self, now: Instant) {
        let Some(segments) = &mut self.segments else { return };
        let mut heard = Vec::new();
        for (id, uplink) in &mut self.uplinks {
            heard.extend(uplink.take_heard().into_iter().map(|probe| (*id, probe)));
        }
        let vlans = |id| self.uplinks.get(&id).and_then(|uplink: &Uplink| uplink.spec.vlans.as_ref());
        for (by, (token, vlan)) in heard {
            // What comes on a VLAN says nothing of uplinks that do not carry it.
            let both_carry =
                |sender| [by, sender].into_iter().all(|id| vlans(id).is_none_or(|vlans| vlans.contains(vlan)));
            segments.heard(by, &token, |sender| match vlan {
                0 => 1,
                _ if both_carry(sender) => vlans(sender).map_or(1, segments::turns),
                _ => 0,
            });
        }
        // A guest's device is no way to the network: one that leads there all the same is like a VM that bridges two of its cards.
        let there = self.uplinks.iter().filter(|(_, uplink)| !uplink.is_leaving() && !uplink.spec.guest);
        segments.set(there.map(|(id, uplink)| (*id, uplink.is_ready() && uplink.has_carrier())), now);
        let instance = segments.instance();
        for (id, token) in segments.probe(now, token) {
            if let Some(uplink) = self.uplinks.get_mut(&id) {
                uplink.probe(instance, token, segments.rounds());
            }
        }
        let vlans = |id| self.uplinks.get(&id).and_then(|uplink| uplink.spec.vlans.as_ref());
        let blocked = segments.blocked(|a, b| match (vlans(a), vlans(b)) {
            (Some(a), Some(b)) => a.overlaps(b),
            _ => true,
        });
        let (mut moved, mut replacing) = (Vec::new(), Vec::new());
        let ids: Vec<u32> = self.uplinks.keys().copied().collect();
        for id in ids {
            let other = blocked.get(&id).and_then(|other| self.uplinks.get(other)).map(|u| u.spec.name.clone());
            let Some(uplink) = self.uplinks.get_mut(&id).filter(|uplink| !uplink.is_leaving()) else { continue };
            let before = uplink.behind().cloned();
            let carried = uplink.carries();
            if uplink.set_behind(other.as_deref(), now) {
                replacing.extend(blocked.get(&id).filter(|_| carried));
                // What was learned where frames do not come in any more would lead nowhere.
                moved.extend(if other.is_some() {
                    Some(PortId(id))
                } else {
                    before.and_then(|name| self.port_of(&name))
                });
            }
        }
        for port in moved {
            self.control.send(SupervisorToControl::Forget(port), None);
        }
        for id in replacing {
            self.uplinks.get_mut(id).into_iter().for_each(Uplink::replaces);
        }
    }

    /// Has the network told where stations are whose frames another uplink carried before. Not while that one may still bring
    /// such a frame in: the stations would seem to be outside.
    pub(super) fn step_announcements(&mut self, now: Instant) {
        let alone = !self.uplinks.values().any(Uplink::is_leaving_switch);
        for (id, uplink) in &mut self.uplinks {
            if uplink.is_to_announce(alone, now) {
                debug!("uplink {}: tells the network which stations are behind it now", uplink.spec.name);
                self.control.send(SupervisorToControl::Announce(PortId(*id)), None);
            }
        }
    }

    fn port_of(&self, uplink: &str) -> Option<PortId> {
        self.uplinks.values().find(|u| u.spec.name == uplink).map(|u| u.config.id)
    }

    /// An uplink's process has become ready.
    pub(super) fn stand_by(&mut self, id: u32, now: Instant) {
        let no_rival = |u: &Uplink| u.is_leaving() || u.spec.guest;
        let guest = self.uplinks.get(&id).is_some_and(|u| u.spec.guest);
        let alone = guest || self.segments.is_none() || self.uplinks.range(..id).all(|(_, u)| no_rival(u));
        if let Some(uplink) = self.uplinks.get_mut(&id) {
            uplink.stand_by(alone, now);
        }
    }
}
