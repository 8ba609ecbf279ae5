//! What a program that decides does around its event loop: the log, the sandbox, and the status that it ends with.

use crate::ControlError;
use lasthop_log::{Log, levels};
use lasthop_sys::sandbox::Program;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

/// Serves in the sandbox of `program`. To be called by `main` once it has its descriptors, before anything is read from anybody.
pub fn run_program(program: Program, serve: impl FnOnce() -> Result<(), ControlError>) -> ExitCode {
    let log = Log::new();
    log.end_with_panics();
    levels::begin(&log);
    let result = confined(&program, &log, serve).inspect_err(|error| tracing::error!("{error}"));
    // What was said last is what matters, if anybody reads it.
    log.finish(Duration::from_millis(100));
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn confined(
    program: &Program,
    log: &Log,
    serve: impl FnOnce() -> Result<(), ControlError>,
) -> Result<(), Box<dyn Error>> {
    let report = program.enter_sandbox().map_err(|e| format!("sandbox: {e}"))?;
    tracing::info!("sandbox: {report}");
    log.start(std::io::stderr()).map_err(|e| format!("no thread for the log: {e}"))?;
    lasthop_sys::prepare_to_drop_aside().map_err(|e| format!("no thread for what clients send: {e}"))?;
    Ok(serve()?)
}
