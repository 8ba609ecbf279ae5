//! `lasthop-switch`: the data plane. Started by `lasthop run`; sees guest memory and the flow table, nothing else.

mod arguments;
mod control;
mod ports;
mod server;
mod unsent;

use lasthop_sys::Log;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let log = Log::new();
    log.end_with_panics();
    let lines = log.clone();
    tracing_subscriber::fmt().with_writer(move || lines.clone()).with_ansi(false).with_target(false).init();
    let arguments = match arguments::Arguments::take(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("lasthop-switch: {error}; this program is started by `lasthop run`");
            return ExitCode::from(2);
        }
    };
    let result = run(arguments, &log).inspect_err(|error| tracing::error!("{error}"));
    // What was said last is what matters, if anybody reads it.
    log.finish(Duration::from_millis(100));
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(mut arguments: arguments::Arguments, log: &Log) -> Result<(), Box<dyn std::error::Error>> {
    let (confinement, settings) = arguments.first_message()?;
    lasthop_guestmem::install_fault_handler();
    lasthop_sys::prepare_peer_events()?;
    // Threads made from here on are born inside the sandbox.
    let report = confinement.enter()?;
    log.start(std::io::stderr())?;
    for left_out in &report.left_out {
        tracing::warn!("sandbox: going on without {left_out}");
    }
    server::Server::new(arguments, settings)?.serve()
}
