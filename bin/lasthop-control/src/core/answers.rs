//! Answers to calls of the API, and why there is none.

use super::Answer;
use lasthop_api::ApiError;

/// Nobody waits any more when this fails.
pub(super) fn give<T>(answer: Answer<T>, value: T) {
    let _ = answer.to.send(Ok(value));
}

pub(super) fn refuse<T>(answer: Answer<T>, error: ApiError) {
    let _ = answer.to.send(Err(error));
}

pub(super) fn no_such_port(name: String) -> ApiError {
    let message = format!("there is no port named {name:?}; `lasthop port list` shows those there are");
    ApiError::NoSuchPort { name, message }
}

pub(crate) fn switch_away() -> ApiError {
    let message = "the switch process is not connected; it is starting or being restarted: try again in a second, \
                   then look at the log of `lasthop run`";
    ApiError::NotAvailable { message: message.into() }
}

/// The switch is connected, and a question to it, or to the supervisor about it, has had no answer in time.
pub(crate) fn switch_silent() -> ApiError {
    let message = "lasthop-switch does not answer, or `lasthop run` does not: stopped by a signal or a debugger, or busy? \
                   `ps -o pid,stat,comm -C lasthop-switch,lasthop-device,lasthop` shows it; nothing replaces a switch where --watchdog is off";
    ApiError::NotAvailable { message: message.into() }
}

/// The supervisor has not answered in time.
pub(crate) fn supervisor_silent() -> ApiError {
    let message = "`lasthop run` does not answer: stopped by a signal or a debugger, or busy? `ps -o pid,stat -C \
                   lasthop` shows it";
    ApiError::NotAvailable { message: message.into() }
}

/// A change was asked for, and who was to make it has not answered in time. He may yet.
pub(crate) fn not_known(see: &str) -> ApiError {
    ApiError::NotAvailable {
        message: format!("no answer in time, so it is not known whether it was done; see `lasthop {see}`"),
    }
}

/// Lists are kept and in force, and the switch has not answered in time.
pub(crate) fn not_confirmed() -> ApiError {
    let message = "the new lists are saved and hold for new flows; the switch has not confirmed that older flows are \
                   gone; see `lasthop acl show`, and the log of `lasthop run`";
    ApiError::NotAvailable { message: message.into() }
}

pub(crate) fn busy() -> ApiError {
    ApiError::Busy { message: "too many requests wait already; try again in a second".into() }
}
