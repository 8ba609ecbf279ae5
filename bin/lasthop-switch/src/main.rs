//! `lasthop-switch`: the data plane. Started by `lasthop run`; sees guest memory and the flow table, nothing else.

mod arguments;
mod control;
mod ports;
mod server;

use lasthop_sys::sandbox::{Plan, Program};
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
    let threads = match &arguments.cpus {
        Some(cpus) => {
            cpus.bind_current_thread()?;
            cpus.len()
        }
        None => lasthop_sys::CpuList::allowed()?.len(),
    };
    lasthop_guestmem::install_fault_handler();
    // Threads made from here on are born inside the sandbox.
    let report = Plan::new(Program::SWITCH).enter()?;
    for left_out in &report.left_out {
        tracing::warn!("sandbox: {left_out}");
    }
    let config = lasthop_schedule::WorkersConfig { threads, spin: arguments.spin };
    server::Server::new(arguments.supervisor, arguments.journal, config)?.serve()
}
