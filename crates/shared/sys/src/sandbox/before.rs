//! Rights that can be given up before the program is there: whoever starts a program that maps guest memory does it for that, between fork and
//! exec, so that it is no code of the program.

use super::Report;
use crate::SharedWords;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, capabilities, set_capabilities};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Its name in a report, and what it is.
type Step = (&'static str, fn() -> Result<(), Errno>);

/// Each can be left out.
const STEPS: [Step; 5] = [
    ("own network namespace", || unshare(UnshareFlags::NEWNET)),
    ("own IPC namespace", || unshare(UnshareFlags::NEWIPC)),
    ("own UTS namespace", || unshare(UnshareFlags::NEWUTS)),
    ("own mount namespace", || unshare(UnshareFlags::NEWNS)),
    ("empty bounding set", empty_bounding_set),
];

/// What a process that is root still needs for the rest of its way into the sandbox: to take its root, and to become another user.
const STILL_NEEDED: CapabilitySet = CapabilitySet::SYS_CHROOT.union(CapabilitySet::SETUID).union(CapabilitySet::SETGID);

/// What is left out where nothing of it can be done.
pub(super) const NOT_ROOT: &str = "namespaces, empty root and own user (not started as root)";

/// The steps for this process, which is root.
pub(super) fn give_up(report: &mut Report) {
    STEPS.iter().for_each(|(what, step)| report.note(what, step()));
}

/// How the steps went for a process that was started.
#[derive(Debug)]
pub struct GivenUp(Arc<SharedWords>);

/// Takes the steps for the process that `command` starts, if we are root; of our rights it has no more than it needs to go on. To be asked for after
/// all else that needs rights there.
pub fn give_up_when_started(command: &mut Command) -> io::Result<GivenUp> {
    let memory = memfd_create("lasthop-steps", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, STEPS.len() as u64 * 8)?;
    let all = Arc::new(SharedWords::map(&memory, STEPS.len())?);
    let theirs = all.clone();
    // Zero: not done.
    let say = move |n: usize, result: Result<(), Errno>| {
        let said = result.map_or_else(|e| e.raw_os_error() as u64, |()| u64::MAX);
        theirs.get(n).into_iter().for_each(|word| word.store(said, Relaxed));
    };
    let prepare = move || {
        if geteuid().is_root() {
            // Over exec root keeps what is in the bounding set or can be inherited.
            let inherits = capabilities(None).and_then(|own| {
                set_capabilities(None, CapabilitySets { inheritable: own.permitted & STILL_NEEDED, ..own })
            });
            for (n, (_, step)) in STEPS.iter().enumerate() {
                let is_last = n + 1 == STEPS.len();
                say(n, if is_last { inherits.and_then(|()| step()) } else { step() });
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it makes system calls and writes to memory that both processes have mapped, and neither
    // allocates nor locks.
    unsafe { command.pre_exec(prepare) };
    Ok(GivenUp(all))
}

impl GivenUp {
    /// Once the process is there.
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        if !geteuid().is_root() {
            report.left_out.push(NOT_ROOT.into());
        }
        for ((what, _), word) in STEPS.iter().zip(self.0.iter()) {
            match word.load(Relaxed) {
                0 => {}
                u64::MAX => report.note(what, Ok(())),
                errno => report.note(what, Err(Errno::from_raw_os_error(errno as i32))),
            }
        }
        report
    }
}

fn unshare(flag: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: none of the flags above unshares memory or the table of descriptors, so nothing Rust relies on changes.
    unsafe { rustix::thread::unshare_unsafe(flag) }
}

fn empty_bounding_set() -> Result<(), Errno> {
    let mut result = Ok(());
    for capability in (0..64).map(|n| CapabilitySet::from_bits_retain(1 << n)) {
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) => result = result.and(rustix::thread::remove_capability_from_bounding_set(capability)),
            Ok(false) => {}
            // Beyond the last capability.
            Err(_) => break,
        }
    }
    result
}
