//! Giving up rights: what a process of lasthop does once it holds the descriptors it needs.
//!
//! Afterwards it has no file system, no network, no other user's processes and no capability, and any system call
//! that its program has no use for kills it. Steps that the surroundings forbid (a container without the right to make
//! namespaces, a start without root) are left out and named; "no new privileges" and the system call
//! filter are never left out.
//!
//! What a process becomes is a [`Confinement`]. Whoever knows the programs makes it (`programs.rs`: the supervisor for the switch,
//! which has no compiler of filters and reads no list of users; the other programs for themselves).

#[cfg(any(test, feature = "programs"))]
mod before;
#[cfg(any(test, feature = "programs"))]
mod landlock;
#[cfg(any(test, feature = "programs"))]
mod programs;
#[cfg(any(test, feature = "programs"))]
mod report;

#[cfg(any(test, feature = "programs"))]
pub use before::{GivenUp, give_up_when_started};
#[cfg(any(test, feature = "programs"))]
pub use landlock::nothing_by_name;
#[cfg(any(test, feature = "programs"))]
pub use programs::{Program, ProgramError, empty_directory, give_back_memory, limit, make_handed};
#[cfg(any(test, feature = "programs"))]
pub use report::Report;

use rustix::io::Errno;
use rustix::process::{chroot, fchdir, geteuid, parent_process_death_signal, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsRawFd, OwnedFd};

/// One instruction of a system call filter, as the kernel wants it: `struct sock_filter`.
pub type Instruction = (u16, u8, u8, u32);

/// What a process becomes in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// User and group, where it is started as root.
    pub user: (u32, u32),
    /// Filters of system calls, in the order in which they are installed.
    pub filters: Vec<Vec<Instruction>>,
}

/// What a process needs for its sandbox and does not make itself: it is made by whoever starts it, or by itself where its program is not trusted
/// with guest memory. What is not there is left out; why, only [whoever could not make it](make_handed) knows and says.
#[derive(Debug, Default)]
pub struct Handed {
    /// An [empty directory](empty_directory), for a process that is root: all that it sees of files from then on.
    pub root: Option<OwnedFd>,
    /// Rules of Landlock that allow [nothing by name](nothing_by_name).
    pub rules: Option<OwnedFd>,
}

impl Confinement {
    /// Gives up the whole process's rights, but those that can be [given up before the program is there](give_up_when_started). Call it from the only
    /// thread, after everything that must be opened has been: namespaces, user and filter are per thread, and threads started later inherit
    /// all of it. What was left out, each with its reason. An error is a line for the log, and the process may be half
    /// confined: end it.
    pub fn enter(&self, handed: Handed) -> Result<Vec<String>, String> {
        warm_up();
        let (mut left_out, death_signal) = (Vec::new(), parent_process_death_signal().unwrap_or_default());
        let mut or_why =
            |what, result: Result<(), Errno>| left_out.extend(result.err().map(|e| format!("{what} ({e})")));
        if geteuid().is_root() {
            handed.root.into_iter().for_each(|root| or_why("empty root", become_root(root)));
            or_why("own user", become_user(self.user.0, self.user.1));
        }
        no_capabilities().map_err(|e| format!("capabilities: {e}"))?;
        // A change of user clears the death signal. Should the parent have died in between, its end of the channel has gone as well, and the process
        // ends by that.
        let _ = set_parent_process_death_signal(death_signal);
        let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
        rustix::thread::set_no_new_privs(true).map_err(|e| format!("no_new_privs: {e}"))?;
        handed.rules.into_iter().for_each(|rules| or_why("nothing by name (Landlock)", obey(rules)));
        self.filters.iter().try_for_each(|filter| install(filter)).map_err(unfiltered)?;
        Ok(left_out)
    }
}

/// Lets libraries read what they read from files once and keep: rustix finds the vDSO through the auxiliary vector.
fn warm_up() {
    let _ = rustix::param::page_size();
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let _ = std::time::Instant::now();
    let _ = std::thread::available_parallelism();
}

/// The directory, which nobody can put anything into, is all that this process sees of files from now on.
fn become_root(directory: OwnedFd) -> Result<(), Errno> {
    fchdir(&directory)?;
    chroot(".")
}

/// landlock_restrict_self(2); needs "no new privileges".
fn obey(rules: OwnedFd) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0_u32) } {
        0 => Ok(()),
        _ => Err(crate::sched::last_errno()),
    }
}

/// For the calling thread; there is no other.
fn become_user(user: u32, group: u32) -> Result<(), Errno> {
    let (user, group) = (rustix::process::Uid::from_raw(user), rustix::process::Gid::from_raw(group));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)
}

fn no_capabilities() -> Result<(), Errno> {
    let none = CapabilitySet::empty();
    let _ = rustix::thread::clear_ambient_capability_set();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Without a filter no process goes on.
fn unfiltered(e: Errno) -> String {
    format!("seccomp: {e}; lasthop needs a kernel with CONFIG_SECCOMP_FILTER")
}

/// Has this thread, and those it starts, make only the system calls that the filter lets through. "No new privileges" must be set.
fn install(filter: &[Instruction]) -> Result<(), Errno> {
    let one = |&(code, jt, jf, k): &Instruction| libc::sock_filter { code, jt, jf, k };
    let mut filter: Vec<_> = filter.iter().map(one).collect();
    let len = u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel reads `len` instructions and keeps a copy; both live until the call returns.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(crate::sched::last_errno()),
    }
}
