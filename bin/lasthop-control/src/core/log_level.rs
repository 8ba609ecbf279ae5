//! Which lines of the log are written: ours, and the supervisor's, which remembers what we were told for the next control.

use super::{Answer, Command, Core, MAX_QUESTIONS, busy, give, refuse};
use lasthop_api::{ApiError, LogLevel, LogLevelList};
use lasthop_log::levels;
use lasthop_management_ipc::ControlToSupervisor;

const RUN: &str = "run";
const CONTROL: &str = "control";

impl Core {
    /// Somebody wants to know, or to have it otherwise.
    pub(super) fn log_level(&mut self, wanted: Vec<LogLevel>, answer: Answer<LogLevelList>) {
        let (mut run, mut control) = (None, None);
        for LogLevel { process, level } in wanted {
            let known = levels::LEVEL_NAMES.contains(&level.as_str()) || level == levels::DEFAULT_LEVEL;
            let place = match process.as_str() {
                RUN => &mut run,
                CONTROL => &mut control,
                _ => {
                    return refuse(answer, bad(format!("{process:?} is told no level; there are {RUN} and {CONTROL}")));
                }
            };
            if !known {
                let names = levels::LEVEL_NAMES.join(", ");
                return refuse(
                    answer,
                    bad(format!("{level:?} is no level; there are {names} and {}", levels::DEFAULT_LEVEL)),
                );
            }
            *place = Some(level);
        }
        self.log_requests.retain(|_, answer| !answer.is_closed());
        if self.log_requests.len() >= MAX_QUESTIONS {
            return refuse(answer, busy());
        }
        self.next_number += 1;
        let request = self.next_number;
        self.log_requests.insert(request, answer);
        self.commands.push(Command::Supervisor(ControlToSupervisor::LogLevel { request, run, control }));
    }

    /// The supervisor says what holds.
    pub(super) fn log_level_is(&mut self, request: Option<u64>, run: String, control: Option<String>) {
        if let Some(level) = control
            && let Err(e) = levels::set_level(&level)
        {
            tracing::warn!("log level {level}: {e}");
        }
        if let Some(answer) = request.and_then(|request| self.log_requests.remove(&request)) {
            let of = |process: &str, level| LogLevel { process: process.into(), level };
            give(answer, LogLevelList { levels: vec![of(RUN, run), of(CONTROL, levels::level())] });
        }
    }
}

fn bad(message: String) -> ApiError {
    ApiError::BadFilter { message }
}
