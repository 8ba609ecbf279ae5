//! What the sandbox of a program is made of that maps guest memory: made here, so that it is no code of that program.

use super::OTHER_FD;
use lasthop_sys::sandbox::{Handed, Report, make_handed};
use std::os::fd::OwnedFd;
use std::process::Command;
use tracing::warn;

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
