//! The data plane as a process: `lasthop-switch`, and what `lasthop-device` is but for what a device counts. Started by `lasthop run`; sees
//! guest memory and the flow table, nothing else.

mod arguments;
mod control;
mod ports;
mod server;
mod unsent;

use arguments::Arguments;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::io::{Write, stderr};
use std::process::{ExitCode, abort};

/// What the program of this name does, from the first thing in `main` to its end: it is the data plane. `inside` is done once, in the sandbox, before
/// the data plane begins: a thread that it starts is confined like all others.
pub fn start(name: &str, inside: impl FnOnce()) -> ExitCode {
    end_with_panics();
    let (status, line) = match Arguments::take(&std::env::args().collect::<Vec<_>>()) {
        Err(error) => (2, format!("{name}: {error}; this program is started by `lasthop run`")),
        Ok(arguments) => match run(arguments, inside) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (1, format!("ERROR {name}: {error}")),
        },
    };
    last_words(&line);
    ExitCode::from(status)
}

fn run(mut arguments: Arguments, inside: impl FnOnce()) -> Result<(), Box<dyn Error>> {
    let (confinement, settings) = arguments.first_message()?;
    lasthop_guestmem::install_fault_handler();
    lasthop_sys::prepare_peer_events(lasthop_sys::SIGNALLING_THREADS)?;
    // As many silent ports can be waited for, and with this kernel twice as many.
    let watches = lasthop_sys::Watches::new(if settings.idle_us == 0 { 16 } else { 2048 });
    // Threads made from here on are born inside the sandbox.
    let left_out = confinement.enter(std::mem::take(&mut arguments.handed))?;
    inside();
    server::Server::new(arguments, settings, left_out, watches)?.serve()
}

/// A thread that panics takes the process with it, for others wait for what it did; whoever started the process starts another.
fn end_with_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let (thread, what) = (std::thread::current(), panic.to_string().replace('\n', " "));
        last_words(&format!("ERROR thread {} {what}; ending", thread.name().unwrap_or_default()));
        abort();
    }));
}

/// Writes a line to standard error, which is the log's, when there is nobody left who would. Whoever reads it may have stopped: it is
/// not waited for.
fn last_words(line: &str) {
    let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    if poll(&mut [PollFd::new(&stderr(), PollFlags::OUT)], Some(&limit)) == Ok(1) {
        let _ = stderr().write_all(format!("{line}\n").as_bytes());
    }
}
