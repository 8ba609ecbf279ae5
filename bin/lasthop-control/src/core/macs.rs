//! `lasthop mac del|flush`: addresses that are to be forgotten. Those that are to stay (`mac add`) are settings of their ports.

use super::{Answer, Core, Unconfirmed, give, no_such_port, refuse};
use crate::{lines::Lines, view};
use lasthop_api::{ApiError, Group, Mac, MacFlushed, Member};
use lasthop_policy::{Effects, GroupView, MacView};
use lasthop_text::MacAddr;
use lasthop_text::parse_mac;
use lasthop_types::PortId;
use std::collections::{BTreeMap, BTreeSet};

/// What is wanted of addresses.
#[derive(Debug)]
pub(crate) enum MacCall {
    Del { mac: String, vlan: Option<u16>, answer: Answer<Forgotten> },
    Groups { answer: Answer<Lines<Group>> },
    Flush { port: Option<String>, vlan: Option<u16>, answer: Answer<MacFlushed> },
}

/// Addresses that are forgotten at a time: about a millisecond.
const ADDRESSES: usize = 512;

/// All addresses of a port or VLAN are to go. There may be 131 000, so it is done some at a time, and misses are answered in between.
#[derive(Debug)]
pub(super) struct Flush {
    /// The last one that was looked at.
    at: Option<(u16, MacAddr)>,
    of: (Option<PortId>, Option<u16>),
    /// How many have gone.
    macs: u64,
    answer: Answer<MacFlushed>,
}

/// An address that is to go.
#[derive(Debug)]
pub(crate) struct Forgotten {
    /// As it was.
    pub mac: Mac,
    /// Of a static one, which has not gone: how its port was told it. That port has to be told otherwise.
    pub told: Option<String>,
}

impl Core {
    pub(super) fn mac_call(&mut self, call: MacCall, now_ms: u64) {
        match call {
            MacCall::Del { mac, vlan, answer } => match self.known_mac(&mac, vlan, now_ms) {
                Err(e) => refuse(answer, e),
                Ok(found) => self.forget_mac(&found, answer, now_ms),
            },
            MacCall::Groups { answer } => {
                let groups = self.policy.groups(now_ms);
                let ports: BTreeSet<PortId> =
                    groups.iter().flat_map(|g| g.ports.iter().map(|(port, _)| *port)).collect();
                let names: BTreeMap<_, _> = ports.into_iter().map(|port| (port, self.name(port))).collect();
                let line = move |g: GroupView| {
                    let name = |port| names.get(&port).cloned().unwrap_or_default();
                    let member = |(port, for_ms)| Member { port: name(port), for_ms };
                    let members = g.ports.into_iter().map(member).collect();
                    Group { vlan: g.vlan, group: g.group.map(|of| of.to_string()), family: g.family.into(), members }
                };
                give(answer, Lines::new(groups.len(), groups.into_iter().map(line)));
            }
            MacCall::Flush { port, vlan, answer } => {
                let id = port.map(|name| self.find(&name).ok_or(name)).transpose();
                let id = match (id, check(vlan)) {
                    (_, Err(e)) => return refuse(answer, e),
                    (Ok(id), Ok(())) => id,
                    (Err(name), _) => return refuse(answer, no_such_port(name)),
                };
                self.flushes.push_back(Flush { at: None, of: (id, vlan), macs: 0, answer });
            }
        }
    }

    /// Forgets some more of those that are to go.
    pub(super) fn flush_some(&mut self, now_ms: u64, out: &mut Effects) {
        let Some(mut flush) = self.flushes.pop_front() else { return };
        let (some, next) = self.policy.flush(flush.at, ADDRESSES, flush.of, now_ms, out);
        (flush.macs, flush.at) = (flush.macs + some as u64, next);
        if next.is_some() {
            // Those who ask have turns.
            return self.flushes.push_back(flush);
        }
        self.carry_out(std::mem::take(out), now_ms);
        self.when_confirmed(Unconfirmed::Flushed(MacFlushed { macs: flush.macs }, flush.answer), now_ms);
    }

    /// The one address that is meant.
    fn known_mac(&self, text: &str, vlan: Option<u16>, now_ms: u64) -> Result<MacView, ApiError> {
        let bad = |message| ApiError::BadFilter { message };
        check(vlan)?;
        let mac = parse_mac(text)
            .map_err(|_| bad(format!("{text:?} is no Ethernet address; write one such as 52:54:00:12:34:56")))?;
        let meant = |m: &MacView| m.mac == mac && vlan.is_none_or(|vlan| vlan == m.vlan);
        let found: Vec<_> = self.policy.macs(now_ms).filter(meant).collect();
        match &found[..] {
            [one] => Ok(one.clone()),
            [] => {
                let at = vlan.map_or_else(String::new, |vlan| format!(" in VLAN {vlan}"));
                Err(bad(format!("{mac} is not known{at}; `lasthop mac list` shows what is")))
            }
            several => {
                let vlans: Vec<_> = several.iter().take(8).map(|m| m.vlan.to_string()).collect();
                let vlans = vlans.join(", ");
                Err(bad(format!("{mac} is known in VLANs {vlans}; say with --vlan which is meant (0: without a VLAN)")))
            }
        }
    }

    fn forget_mac(&mut self, found: &MacView, answer: Answer<Forgotten>, now_ms: u64) {
        let mac = view::mac(found, self.name(found.port));
        if let Some((_, entry)) = self.policy.static_mac(found.vlan, found.mac) {
            return give(answer, Forgotten { mac, told: Some(entry.to_string()) });
        }
        let mut out = Effects::default();
        self.policy.forget_mac(found.vlan, found.mac, now_ms, &mut out);
        self.carry_out(out, now_ms);
        self.when_confirmed(Unconfirmed::Forgotten(Forgotten { mac, told: None }, answer), now_ms);
    }
}

fn check(vlan: Option<u16>) -> Result<(), ApiError> {
    match vlan.filter(|vlan| *vlan > 4094) {
        None => Ok(()),
        Some(vlan) => Err(ApiError::BadFilter {
            message: format!("{vlan} is not a VLAN id; use 1 to 4094, or 0 for addresses without a VLAN"),
        }),
    }
}
