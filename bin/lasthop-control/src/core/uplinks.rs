//! Uplinks: asked of the supervisor, which has them.

use super::{Answer, Command, Core, MAX_QUESTIONS, Unconfirmed, busy, give, refuse};
use crate::view;
use lasthop_api::{ApiError, UplinkList};
use lasthop_ipc::PortState;
use lasthop_management_ipc::{ControlToSupervisor, UplinkConfig, UplinkInfo};
use lasthop_types::PortId;
use lasthop_uplink_ipc::MACS_PART;
use std::collections::BTreeMap;

/// What is wanted of uplinks.
#[derive(Debug)]
pub(crate) enum UplinkCall {
    Add(UplinkConfig),
    Set { name: String, vlans: Option<String> },
    Del { name: String },
    List,
}

/// A question to the supervisor.
#[derive(Debug)]
pub(super) struct UplinkRequest {
    answer: Answer<UplinkList>,
    /// It is answered when the switch goes by it.
    in_force: bool,
}

impl Core {
    pub(super) fn uplink_request(&mut self, call: UplinkCall, answer: Answer<UplinkList>) {
        self.uplink_requests.retain(|_, r| !r.answer.is_closed());
        let of_asker = self.uplink_requests.values().filter(|r| r.answer.asker == answer.asker).count();
        if of_asker >= MAX_QUESTIONS || !self.has_room_for(answer.asker) {
            return refuse(answer, busy());
        }
        self.next_number += 1;
        let request = self.next_number;
        let in_force = matches!(call, UplinkCall::Set { .. });
        self.uplink_requests.insert(request, UplinkRequest { answer, in_force });
        self.commands.push(Command::Supervisor(match call {
            UplinkCall::Add(uplink) => ControlToSupervisor::UplinkAdd { request, uplink },
            UplinkCall::Set { name, vlans } => ControlToSupervisor::UplinkSet { request, name, vlans },
            UplinkCall::Del { name } => ControlToSupervisor::UplinkDel { request, name },
            UplinkCall::List => ControlToSupervisor::UplinkList { request },
        }));
    }

    pub(super) fn uplink_reply(&mut self, request: u64, result: Result<Vec<UplinkInfo>, String>, now_ms: u64) {
        let Some(UplinkRequest { answer, in_force }) = self.uplink_requests.remove(&request) else { return };
        match result {
            Ok(uplinks) => {
                let uplinks = uplinks.into_iter().map(|u| {
                    let vlans = self.uplinks.get(&u.device.port).and_then(Option::as_ref);
                    let port = self.infos.get(&u.device.port);
                    let name = |id| self.name(PortId(id));
                    view::uplink(u, port, vlans, &name)
                });
                let list = UplinkList { uplinks: uplinks.collect() };
                if in_force {
                    // What follows from it has been sent before.
                    self.when_confirmed(Unconfirmed::Uplinks(list, answer), now_ms);
                } else {
                    give(answer, list);
                }
            }
            Err(message) => refuse(answer, ApiError::UplinkRefused { message }),
        }
    }

    /// Says who lives at ports that are up and are not uplinks, in the VLANs that this uplink carries. A VM that has left may
    /// be elsewhere by now.
    pub(super) fn announce(&mut self, uplink: PortId, now_ms: u64) {
        let is_up = |port: &PortId| self.infos.get(port).is_some_and(|info| info.state() == PortState::Up);
        let (vlans, _) = self.policy.vlans_of(uplink);
        let macs = self.policy.macs(now_ms).filter(|mac| {
            let carried = vlans.is_none_or(|vlans| vlans.contains(mac.vlan));
            carried && !self.uplinks.contains_key(&mac.port) && is_up(&mac.port)
        });
        // Every port's first station, then every port's second: nobody waits for a guest that has thousands.
        let mut seen = BTreeMap::<PortId, usize>::new();
        let mut macs: Vec<_> = macs
            .map(|mac| {
                let turn = seen.entry(mac.port).or_default();
                *turn += 1;
                (*turn, (mac.vlan, mac.mac))
            })
            .collect();
        macs.sort_by_key(|(turn, _)| *turn);
        for part in macs.chunks(MACS_PART) {
            let macs = part.iter().map(|(_, station)| *station).collect();
            self.commands.push(Command::Supervisor(ControlToSupervisor::Announce { uplink, macs }));
        }
    }
}
