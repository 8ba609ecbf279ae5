//! `lasthop run`: the supervisor.

use crate::RunArgs;
use std::process::ExitCode;

/// Runs until SIGTERM.
pub fn run(_args: RunArgs) -> ExitCode {
    eprintln!("lasthop: `run` is not part of this build; build lasthop from a newer source");
    ExitCode::FAILURE
}
