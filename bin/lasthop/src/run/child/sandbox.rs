//! What the sandbox of a program is made of that maps guest memory, and what can be given up before the program is there: done here, so that it is no
//! code of that program.

use super::OTHER_FD;
use lasthop_log::{DEVICE_VARIABLE, FORMAT_VARIABLE, Format};
use lasthop_sys::sandbox::{GivenUp, Handed, Report, give_up_when_started, make_handed};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use tracing::warn;

/// The only variables of the environment that children see, beside the format of the log. Only control reads `RUST_LOG`; the other children are built without filters of the log.
const ENVIRONMENT: [&str; 3] = ["RUST_LOG", "RUST_BACKTRACE", DEVICE_VARIABLE];

/// An empty root, if we are root, and rules of Landlock, if the kernel has it, as options and further descriptors. A program that is not given one does
/// not know why, so that is said here.
pub(super) fn hand(name: &str, command: &mut Command, others: &mut Vec<OwnedFd>) {
    let mut report = Report::default();
    let Handed { root, rules } = make_handed(&mut report);
    for left_out in report.left_out {
        warn!("sandbox: going on without {left_out} ({name})");
    }
    for (option, made) in [("--root-fd", root), ("--rules-fd", rules)] {
        if let Some(made) = made {
            command.args([option.into(), (OTHER_FD + others.len() as i32).to_string()]);
            others.push(made);
        }
    }
}

/// Of the rights that it is started with it has no more than it needs to go on, and it has one heap. All threads share that: of a ninth glibc opens a file to
/// decide whether it may have its own, and another one before it makes any but the first smaller, as where a thread has ended; and the sandbox
/// ends the process for that. So the heap's lock is one lock of all threads, which those that move packets do not take: what they allocate, a
/// letter or a table that grows, is not by the packet.
pub(super) fn give_up(command: &mut Command) -> io::Result<GivenUp> {
    command.env("MALLOC_ARENA_MAX", "1");
    give_up_when_started(command)
}

/// It has been started.
pub(super) fn say_what_was_not(given_up: &GivenUp, name: &str) {
    for left_out in given_up.report().left_out {
        warn!("sandbox: going on without {left_out} ({name})");
    }
}

/// Whatever child it is, it sees the root directory, our standard error, and little of the environment.
pub(super) fn surround(command: &mut Command) -> io::Result<()> {
    command.current_dir("/").process_group(0).stdin(Stdio::null());
    command.stdout(io::stderr().as_fd().try_clone_to_owned()?).stderr(Stdio::inherit());
    command.env_clear().envs(ENVIRONMENT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
    command.env(FORMAT_VARIABLE, Format::current().name());
    Ok(())
}
