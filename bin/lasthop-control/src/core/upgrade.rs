//! `lasthop upgrade`: the supervisor has newly installed programs take the place of those that run, and says what came of it.

use super::{Answer, Core, MAX_QUESTIONS, busy, give, refuse};
use crate::core::Command;
use lasthop_api::{ApiError, KeptProcess, NewProcess, PortPause, Upgraded};
use lasthop_management_ipc::{self as ipc, ControlToSupervisor, NotReplaced, Processes};
use std::collections::BTreeMap;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Upgrade {
    pub(crate) programs: Option<String>,
    pub(crate) messages: String,
    pub(crate) processes: String,
    pub(crate) all: bool,
    pub(crate) attempt: String,
}

/// Those who wait for what came of it, and the error if nothing did.
pub(super) type Upgrades = BTreeMap<u64, (Answer<Upgraded>, fn(String) -> ApiError)>;

/// By their name in the API.
fn processes(name: &str) -> Result<Processes, ApiError> {
    match name {
        "switch" => Ok(Processes::Switch),
        "sessions" => Ok(Processes::Sessions),
        "uplinks" => Ok(Processes::Uplinks),
        "control" => Ok(Processes::Control),
        "run" => Ok(Processes::Run),
        _ => Err(ApiError::UpgradeRefused {
            message: format!("there are no processes {name:?}; name switch, sessions, uplinks, control or run"),
        }),
    }
}

impl Core {
    pub(super) fn upgrade(&mut self, wanted: Upgrade, answer: Answer<Upgraded>) {
        let Upgrade { programs, messages, processes: name, all, attempt } = wanted;
        let processes = match processes(&name) {
            Ok(processes) => processes,
            Err(e) => return refuse(answer, e),
        };
        let refused = |message| ApiError::UpgradeRefused { message };
        let asked = |request| ControlToSupervisor::Upgrade { request, programs, messages, processes, all, attempt };
        self.ask_to_replace(answer, refused, asked);
    }

    /// Asks the supervisor for something by which processes take the place of others. `refused`: the error, if they do not.
    pub(super) fn ask_to_replace(
        &mut self,
        answer: Answer<Upgraded>,
        refused: fn(String) -> ApiError,
        message: impl FnOnce(u64) -> ControlToSupervisor,
    ) {
        self.upgrades.retain(|_, (answer, _)| !answer.is_closed());
        if self.upgrades.len() >= MAX_QUESTIONS {
            return refuse(answer, busy());
        }
        self.next_number += 1;
        let request = self.next_number;
        self.upgrades.insert(request, (answer, refused));
        self.commands.push(Command::Supervisor(message(request)));
    }

    /// The supervisor has done it, or not.
    pub(super) fn upgrade_reply(&mut self, request: u64, result: Result<ipc::Upgraded, NotReplaced>) {
        let Some((answer, refused)) = self.upgrades.remove(&request) else { return };
        match result {
            Err(NotReplaced::Refused(message)) => refuse(answer, refused(message)),
            Err(NotReplaced::OtherMessages(message)) => refuse(answer, ApiError::OtherMessages { message }),
            Ok(ipc::Upgraded { processes, kept, pauses }) => {
                let microseconds = |nanoseconds: u64| nanoseconds.div_ceil(1000);
                let port = |(id, pause): (_, Option<u64>)| PortPause {
                    port: self.name(id),
                    pause_us: pause.map(microseconds),
                };
                let process =
                    |ipc::NewProcess { process, pid, took }| NewProcess { process, pid, took_us: microseconds(took) };
                let ports = pauses.into_iter().map(port).collect();
                let processes = processes.into_iter().map(process).collect();
                let kept = kept.into_iter().map(|(process, why)| KeptProcess { process, why }).collect();
                give(answer, Upgraded { processes, kept, ports });
            }
        }
    }
}
