//! `lasthop-ovs`: takes `lasthop-control`'s place where Open vSwitch decides. Started by `lasthop run --control ovs`.

mod client;
mod server;

use lasthop_control::Descriptors;
use lasthop_sys::Log;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

const USAGE: &str = "lasthop-ovs is started by `lasthop run --control ovs`; arguments: --supervisor-fd N --api-fd N --ovs-fd N --frames-fd N \
                     [--host-view-fd N] [--read-api-fd N] [--pulse-fd N], open descriptors";

fn main() -> ExitCode {
    let (mut ovs, mut frames) = (None, None);
    let descriptors = Descriptors::take(std::env::args().skip(1), |name, fd| {
        match name {
            "--ovs-fd" => ovs = Some(fd),
            "--frames-fd" => frames = Some(fd),
            _ => return false,
        }
        true
    });
    let (Some(descriptors), Some(own)) = (descriptors, ovs.zip(frames)) else {
        eprintln!("lasthop-ovs: {USAGE}");
        return ExitCode::from(2);
    };
    // As in lasthop-control.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,zlink_core=error"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_ansi(false);
    let log = Log::new();
    log.end_with_panics();
    let lines = log.clone();
    logs.with_writer(move || lines.clone()).init();
    let result = run(descriptors, own, &log);
    log.finish(Duration::from_millis(100));
    result
}

fn run(descriptors: Descriptors, (ovs, frames): (OwnedFd, OwnedFd), log: &Log) -> ExitCode {
    match lasthop_sys::sandbox::Program::OVS.enter_sandbox() {
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
    match lasthop_control::run_with(descriptors, || server::Server::new(ovs, frames).map(Some)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e}");
            ExitCode::FAILURE
        }
    }
}
