//! `lasthop upgrade`: the supervisor has another switch take over, and says what came of it.

use super::{Answer, Core, MAX_QUESTIONS, busy, give, refuse};
use crate::core::Command;
use lasthop_api::{ApiError, PortPause, Upgraded};
use lasthop_management_ipc as ipc;

impl Core {
    pub(super) fn upgrade(&mut self, programs: Option<String>, messages: String, answer: Answer<Upgraded>) {
        self.upgrades.retain(|_, answer| !answer.is_closed());
        if self.upgrades.len() >= MAX_QUESTIONS {
            return refuse(answer, busy());
        }
        self.next_number += 1;
        let request = self.next_number;
        self.upgrades.insert(request, answer);
        self.commands.push(Command::Supervisor(ipc::ControlToSupervisor::Upgrade { request, programs, messages }));
    }

    /// The supervisor has done it, or not.
    pub(super) fn upgrade_reply(&mut self, request: u64, result: Result<ipc::Upgraded, String>) {
        let Some(answer) = self.upgrades.remove(&request) else { return };
        match result {
            Err(message) => refuse(answer, ApiError::UpgradeRefused { message }),
            Ok(ipc::Upgraded { switch, pauses }) => {
                let port = |(id, pause): (_, Option<u64>)| PortPause {
                    port: self.name(id),
                    pause_us: pause.map(|nanoseconds| nanoseconds.div_ceil(1000)),
                };
                let ports = pauses.into_iter().map(port).collect();
                give(answer, Upgraded { switch_pid: switch, ports });
            }
        }
    }
}
