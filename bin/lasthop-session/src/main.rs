//! `lasthop-session`: what front-ends of one port say. Started by `lasthop run` for each port; sees the connection of that port's
//! front-end, and the switch by one channel. It passes the guest's memory on and maps none of it.

mod arguments;
mod server;
mod switch;

use lasthop_log::{Lines, Log};
use lasthop_sys::sandbox::Program;
use std::process::ExitCode;
use std::time::Duration;

/// Threads that signal rings' kicks: the one that serves, and the one that lets go of things aside, where a front-end makes that slow.
const MOST_SIGNALLING: u32 = 2;

fn main() -> ExitCode {
    let log = Log::new();
    log.end_with_panics();
    let lines = log.clone();
    tracing_subscriber::fmt().with_ansi(false).event_format(Lines::new()).with_writer(move || lines.clone()).init();
    let arguments = match arguments::Arguments::take(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("lasthop-session: {error}; this program is started by `lasthop run`");
            return ExitCode::from(2);
        }
    };
    let result = run(arguments, &log).inspect_err(|error| tracing::error!("{error}"));
    // What was said last is what matters, if anybody reads it.
    log.finish(Duration::from_millis(100));
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(arguments: arguments::Arguments, log: &Log) -> Result<(), Box<dyn std::error::Error>> {
    // The region for rings in flight is the front-end's file, which it may cut.
    lasthop_guestmem::install_fault_handler();
    // Without, the switch is told by messages what its rings wait for: slower, and no reason not to serve.
    let signals = lasthop_sys::prepare_peer_events(MOST_SIGNALLING);
    let report = Program::SESSION.enter_sandbox()?;
    // Threads made from here on are born inside the sandbox.
    log.start(std::io::stderr())?;
    for left_out in &report.left_out {
        // Said for the switch already, at the level that is seen.
        tracing::debug!("sandbox: going on without {left_out}");
    }
    if let Err(error) = signals {
        tracing::debug!("the switch is woken by messages: {error}");
    }
    server::Server::new(arguments)?.serve()
}
