//! Giving up rights: what a process of lasthop does once it holds the descriptors it needs.
//!
//! Afterwards it has no file system, no network, no other user's processes and no capability, and any system call
//! that its program has no use for kills it. Steps that the surroundings forbid (a container without the right to make
//! namespaces, a start without root) are left out and named in the [`Report`]; "no new privileges" and the system call
//! filter are never left out.
//!
//! What a process becomes is a [`Confinement`]. Whoever knows the programs makes it (`programs.rs`: the supervisor for the switch,
//! which has no compiler of filters and reads no list of users; the other programs for themselves).

#[cfg(any(test, feature = "programs"))]
mod landlock;
#[cfg(any(test, feature = "programs"))]
mod programs;

#[cfg(any(test, feature = "programs"))]
pub use landlock::nothing_by_name;
#[cfg(any(test, feature = "programs"))]
pub use programs::{Program, empty_directory, give_back_memory, limit, make_handed};

use rustix::io::Errno;
use rustix::process::{chroot, fchdir, geteuid, getppid, parent_process_death_signal, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
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

/// Why the process must not go on.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Namespaces, user and filter are per thread, so a second thread would keep the old rights.
    #[error("{0} threads run already; enter the sandbox before starting any")]
    Threads(usize),
    /// The kernel refused "no new privileges".
    #[error("no_new_privs: {0}")]
    NoNewPrivs(Errno),
    /// The kernel refused the filter.
    #[error("seccomp: {0}; lasthop needs a kernel with CONFIG_SECCOMP_FILTER")]
    Seccomp(Errno),
    /// There is no filter for this machine.
    #[error("no system call filter: {0}")]
    NoFilter(String),
    /// Capabilities could not be given up, though nothing can forbid that.
    #[error("capabilities: {0}")]
    Capabilities(Errno),
    /// The process that started this one has ended meanwhile.
    #[error("the parent process has ended")]
    Orphaned,
}

/// What was done and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The user this process now is.
    pub user: u32,
    /// What holds, each in a few words.
    pub done: Vec<&'static str>,
    /// What was left out, each with its reason.
    pub left_out: Vec<String>,
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
    /// Gives up the whole process's rights. Call it from the only thread, after everything that must be opened has
    /// been; threads started later inherit all of it. On an error the process may be half confined: end it.
    pub fn enter(&self, handed: Handed) -> Result<Report, SandboxError> {
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count());
        if threads > 1 {
            return Err(SandboxError::Threads(threads));
        }
        warm_up();
        crate::sched::one_heap();
        let (parent, death_signal) = (getppid(), parent_process_death_signal().unwrap_or_default());

        let mut report = Report::default();
        if geteuid().is_root() {
            namespaces(&mut report);
            handed.root.into_iter().for_each(|root| note(&mut report, "empty root", become_root(root)));
            note(&mut report, "empty bounding set", empty_bounding_set());
            note(&mut report, "own user", become_user(self.user.0, self.user.1));
        } else {
            report.left_out.push("namespaces, empty root and own user (not started as root)".into());
        }
        no_capabilities().map_err(SandboxError::Capabilities)?;
        report.done.push("no capabilities");
        report.user = geteuid().as_raw();

        // A change of user clears the death signal, and the parent may have died in between.
        let _ = set_parent_process_death_signal(death_signal);
        let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
        if getppid() != parent {
            return Err(SandboxError::Orphaned);
        }
        rustix::thread::set_no_new_privs(true).map_err(SandboxError::NoNewPrivs)?;
        report.done.push("no new privileges");
        handed.rules.into_iter().for_each(|rules| note(&mut report, "nothing by name (Landlock)", obey(rules)));
        self.filters.iter().try_for_each(|filter| install(filter)).map_err(SandboxError::Seccomp)?;
        report.done.push("system call filter");
        Ok(report)
    }
}

/// Lets libraries read what they read from files once and keep: rustix finds the vDSO through the auxiliary vector.
fn warm_up() {
    let _ = rustix::param::page_size();
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let _ = std::time::Instant::now();
    let _ = std::thread::available_parallelism();
}

fn note(report: &mut Report, what: &'static str, result: Result<(), Errno>) {
    match result {
        Ok(()) => report.done.push(what),
        Err(e) => report.left_out.push(format!("{what} ({e})")),
    }
}

fn namespaces(report: &mut Report) {
    for (what, flag) in [
        ("own network namespace", UnshareFlags::NEWNET),
        ("own IPC namespace", UnshareFlags::NEWIPC),
        ("own UTS namespace", UnshareFlags::NEWUTS),
        ("own mount namespace", UnshareFlags::NEWNS),
    ] {
        // SAFETY: none of these flags unshares memory or the table of descriptors, so nothing Rust relies on changes.
        note(report, what, unsafe { rustix::thread::unshare_unsafe(flag) });
    }
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
