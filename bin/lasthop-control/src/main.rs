//! `lasthop-control`: learns addresses, answers the switch's misses, serves the local API. Started by `lasthop run`.

use lasthop_control::Descriptors;
use lasthop_sys::Log;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

const USAGE: &str = "lasthop-control is started by `lasthop run`; \
                     arguments: --supervisor-fd N --api-fd N [--host-view-fd N] [--read-api-fd N] [--pulse-fd N], open descriptors";

fn main() -> ExitCode {
    let Some(descriptors) = Descriptors::take(std::env::args().skip(1), |_, _| false) else {
        eprintln!("lasthop-control: {USAGE}");
        return ExitCode::from(2);
    };
    // The library of the API warns of every client that has seen enough before the end (`lasthop port list | head`).
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,zlink_core=error"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_ansi(false);
    let log = Log::new();
    log.end_with_panics();
    let lines = log.clone();
    logs.with_writer(move || lines.clone()).init();
    let result = run(descriptors, &log);
    // What was said last is what matters, if anybody reads it.
    log.finish(Duration::from_millis(100));
    result
}

fn run(descriptors: Descriptors, log: &Log) -> ExitCode {
    match sandbox::enter() {
        Ok(report) => tracing::info!("sandbox: {report}"),
        Err(e) => {
            tracing::error!("sandbox: {e}");
            return ExitCode::FAILURE;
        }
    }
    if let Err(e) = log.start(std::io::stderr()) {
        tracing::error!("no thread for the log: {e}");
        return ExitCode::FAILURE;
    }
    match lasthop_control::run(descriptors) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e}");
            ExitCode::FAILURE
        }
    }
}

mod sandbox {
    //! Where this process gives up its rights.

    use lasthop_sys::sandbox::{Program, Report, SandboxError};

    /// Called once, before anything is read from anybody.
    pub(super) fn enter() -> Result<Report, SandboxError> {
        Program::CONTROL.enter_sandbox()
    }
}
