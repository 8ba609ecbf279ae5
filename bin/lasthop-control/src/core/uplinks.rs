//! Uplinks: asked of the supervisor, which has them.

use super::{Answer, Command, Core, MAX_QUESTIONS, busy, give, refuse};
use crate::view;
use lasthop_api::{ApiError, UplinkList};
use lasthop_ipc::{ControlToSupervisor, UplinkInfo};

/// What is wanted of uplinks.
#[derive(Debug)]
pub(crate) enum UplinkCall {
    Add { name: String, device: String, driver: Option<String>, queues: u16, nice: i32, gro: bool, spare: bool },
    Del { name: String },
    List,
}

impl Core {
    pub(super) fn uplink_request(&mut self, call: UplinkCall, answer: Answer<UplinkList>) {
        self.uplink_requests.retain(|_, a| !a.is_closed());
        if self.uplink_requests.len() >= MAX_QUESTIONS {
            return refuse(answer, busy());
        }
        self.next_number += 1;
        let request = self.next_number;
        self.uplink_requests.insert(request, answer);
        self.commands.push(Command::Supervisor(match call {
            UplinkCall::Add { name, device, driver, queues, nice, gro, spare } => {
                ControlToSupervisor::UplinkAdd { request, name, device, driver, queues, nice, gro, spare }
            }
            UplinkCall::Del { name } => ControlToSupervisor::UplinkDel { request, name },
            UplinkCall::List => ControlToSupervisor::UplinkList { request },
        }));
    }

    pub(super) fn uplink_reply(&mut self, request: u64, result: Result<Vec<UplinkInfo>, String>) {
        let Some(answer) = self.uplink_requests.remove(&request) else { return };
        match result {
            Ok(uplinks) => {
                let uplinks = uplinks.into_iter().map(|u| {
                    let port = self.infos.get(&u.port);
                    view::uplink(u, port)
                });
                let uplinks = uplinks.collect();
                give(answer, UplinkList { uplinks });
            }
            Err(message) => refuse(answer, ApiError::UplinkRefused { message }),
        }
    }
}
