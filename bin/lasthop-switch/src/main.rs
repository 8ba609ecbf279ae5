//! `lasthop-switch`: the data plane. Started by `lasthop run`; sees guest memory and the flow table, nothing else.

mod arguments;
mod control;
mod ports;
mod server;

use lasthop_sys::sandbox::Program;
use std::process::ExitCode;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    let arguments = match arguments::Arguments::take(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("lasthop-switch: {error}; this program is started by `lasthop run`");
            return ExitCode::from(2);
        }
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: arguments::Arguments) -> Result<(), Box<dyn std::error::Error>> {
    lasthop_sys::prepare_for_threads()?;
    lasthop_guestmem::install_fault_handler();
    // Threads made from here on are born inside the sandbox.
    let report = Program::SWITCH.enter_sandbox()?;
    for left_out in &report.left_out {
        tracing::warn!("sandbox: {left_out}");
    }
    server::Server::new(arguments)?.serve()
}
