//! `lasthop-session`: what front-ends of one port say. Started by `lasthop run` for each port; sees the connection of that port's
//! front-end, and the switch by one channel. It passes the guest's memory on and maps none of it.

mod arguments;
mod server;
mod switch;

use lasthop_log::{Level, Log};
use lasthop_sys::sandbox::Program;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

/// Threads that signal rings' kicks: the one that serves, and the one that lets go of things aside, where a front-end makes that slow.
const MOST_SIGNALLING: u32 = 2;

fn main() -> ExitCode {
    // There are many of these processes, with hardly anything to say: no library makes the lines, and the thread that writes them is started with
    // the first.
    let log = Log::new();
    log.end_with_panics();
    let arguments = match arguments::Arguments::take(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("lasthop-session: {error}; this program is started by `lasthop run`");
            return ExitCode::from(2);
        }
    };
    let port = arguments.port.clone();
    let result = run(arguments, &log).inspect_err(|error| say(&log, Level::ERROR, &port, error));
    // What was said last is what matters, if anybody reads it.
    log.finish(Duration::from_millis(100));
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Has a line written to the log.
fn say(log: &Log, level: Level, port: &str, what: impl Display) {
    log.say(level, &format!("session process: {what}"), &[("port", port)]);
}

fn run(arguments: arguments::Arguments, log: &Log) -> Result<(), Box<dyn std::error::Error>> {
    // The region for rings in flight is the front-end's file, which it may cut.
    lasthop_guestmem::install_fault_handler();
    // Without, the switch is told by messages what its rings wait for: slower, and no reason not to serve.
    let signals = lasthop_sys::prepare_peer_events(MOST_SIGNALLING);
    // What is left out is said for the switch already.
    Program::SESSION.enter_sandbox()?;
    // Its thread is born inside the sandbox.
    log.start_when_needed();
    if let Err(error) = signals {
        say(
            log,
            Level::INFO,
            &arguments.port,
            format_args!("the switch is told by messages what rings wait for, which is slower: {error}"),
        );
    }
    server::Server::new(arguments, log.clone())?.serve()
}
