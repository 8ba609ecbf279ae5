//! What the sandbox of a program is made of that maps guest memory: made here, so that it is no code of that program.

use super::OTHER_FD;
use lasthop_sys::sandbox::{empty_directory, nothing_by_name};
use rustix::process::geteuid;
use std::os::fd::OwnedFd;
use std::process::Command;

/// An empty root, if we are root, and rules of Landlock, if the kernel has it, as options and further descriptors. A program that lacks one says so.
pub(super) fn hand(command: &mut Command, others: &mut Vec<OwnedFd>) {
    let root = geteuid().is_root().then(|| empty_directory().ok()).flatten();
    for (option, made) in [("--root-fd", root), ("--rules-fd", nothing_by_name().ok())] {
        if let Some(made) = made {
            command.args([option.into(), (OTHER_FD + others.len() as i32).to_string()]);
            others.push(made);
        }
    }
}
