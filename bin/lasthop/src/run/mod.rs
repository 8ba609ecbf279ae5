//! `lasthop run`: the supervisor. It owns the sockets and the list of ports, starts the switch and control, and
//! restarts whichever dies. One thread, no policy, and no guest memory.

mod args;

pub use args::RunArgs;
use std::process::ExitCode;

/// Runs until SIGTERM. Status 0 after a clean end, 1 when something failed, 2 when the arguments make no sense; then
/// one line on stderr says what is wrong and what to do.
pub fn run(_args: RunArgs) -> ExitCode {
    ExitCode::FAILURE
}
