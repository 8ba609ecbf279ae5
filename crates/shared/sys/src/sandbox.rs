//! Giving up rights: what a process of lasthop does once it holds the descriptors it needs.
//!
//! Afterwards it has no file system, no network, no other user's processes and no capability, and any system call
//! that its program has no use for kills it. Steps that the surroundings forbid (a container without the right to make
//! namespaces, a start without root) are left out and named in the [`Report`]; "no new privileges" and the system call
//! filter are never left out.

mod filter;
mod landlock;
mod programs;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::process::{chroot, fchdir, geteuid, getppid, parent_process_death_signal, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A program that gives up its rights: who it becomes, and what it may call beside what every program may.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// User taken when there is one of this name.
    pub user_name: &'static str,
    /// Number of user and group taken when there is no such user: in the range systemd keeps for users without an entry
    /// (61184 to 65519), so that no file on the host belongs to it.
    pub fixed_user: u32,
    /// System calls, whatever their arguments.
    pub calls: &'static [libc::c_long],
    /// Requests of ioctl(2).
    pub ioctls: &'static [libc::c_ulong],
    /// Families of socketpair(2).
    pub socket_pairs: &'static [libc::c_int],
}

/// Descriptors wanted: a port with 16 queue pairs and many memory regions holds some hundred.
const WANTED_DESCRIPTORS: u64 = 262_144;

/// Bytes of private memory that are allowed on a small host and on any. A thread counts with its whole stack, 2 MiB.
const MOST_MEMORY: (u64, u64) = (1 << 30, 8 << 30);

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
    Seccomp(String),
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

impl Program {
    /// `lasthop-switch`.
    pub const SWITCH: Self = Self {
        user_name: "lasthop-switch",
        fixed_user: 61_901,
        // Signals peers' events (`peer_event.rs`); what its operations could do, read(2) and write(2) can.
        calls: &[libc::SYS_io_submit],
        ioctls: &[],
        socket_pairs: &[],
    };

    /// Gives up the whole process's rights. Call it from the only thread, after everything that must be opened has
    /// been; threads started later inherit all of it. On an error the process may be half confined: end it.
    pub fn enter_sandbox(self) -> Result<Report, SandboxError> {
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count());
        if threads > 1 {
            return Err(SandboxError::Threads(threads));
        }
        warm_up();
        crate::sched::few_heaps();
        let (parent, death_signal) = (getppid(), parent_process_death_signal().unwrap_or_default());

        let mut report = Report::default();
        limits(&mut report);
        if geteuid().is_root() {
            namespaces(&mut report);
            note(&mut report, "empty root", empty_root());
            note(&mut report, "empty bounding set", empty_bounding_set());
            let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
            let (user, group) = find_user(&passwd, self.user_name).unwrap_or((self.fixed_user, self.fixed_user));
            note(&mut report, "own user", become_user(user, group));
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
        note(&mut report, "nothing by name (Landlock)", landlock::reach_nothing_by_name());
        filter::install(self).map_err(|e| SandboxError::Seccomp(e.to_string()))?;
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

fn limits(report: &mut Report) {
    let to = |limit| Rlimit { current: limit, maximum: limit };
    note(report, "no core dumps", setrlimit(Resource::Core, to(Some(0))));
    note(report, "memory limit", memory_limit());
    // `None` is no limit.
    let most = getrlimit(Resource::Nofile).maximum;
    if setrlimit(Resource::Nofile, to(most.map(|n| n.max(WANTED_DESCRIPTORS)))).is_err() {
        let _ = setrlimit(Resource::Nofile, to(most));
    }
}

/// Memory of its own: heap, stacks and tables, not what it shares with others, which is bounded where it is mapped. A process that
/// wants more ends, and is replaced, before the host is short of memory. Half of the host's, within what the largest switch
/// has been seen to need and what no host can spare.
fn memory_limit() -> Result<(), Errno> {
    let info = rustix::system::sysinfo();
    let host = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let most = (host / 2).clamp(MOST_MEMORY.0, MOST_MEMORY.1);
    let most = Some(getrlimit(Resource::Data).maximum.map_or(most, |already| already.min(most)));
    setrlimit(Resource::Data, Rlimit { current: most, maximum: most })
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

/// Makes an empty directory that no longer has a name the root: nothing is in it and nothing can be made in it.
fn empty_root() -> Result<(), Errno> {
    let mut error = Errno::NOENT;
    let name = format!("lasthop-empty-{}", std::process::id());
    for parent in [PathBuf::from("/run"), std::env::temp_dir(), PathBuf::from("/dev/shm"), PathBuf::from("/")] {
        match nameless_directory(&parent.join(&name)) {
            Ok(directory) => {
                fchdir(&directory)?;
                return chroot(".");
            }
            Err(e) => error = e,
        }
    }
    Err(error)
}

fn nameless_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdir(path, Mode::empty())?;
    let opened = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    rustix::fs::rmdir(path)?;
    opened
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

/// User and group of this name, unless one of them is root's.
fn find_user(passwd: &str, name: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let (user, group) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        (user != 0 && group != 0).then_some((user, group))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_found_by_its_whole_name_and_is_never_root() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nlasthop-switch2:x:7:7::/:/\nlasthop-switch:x:991:992::/:/\n\
                      broken\nlasthop-control:x:0:0::/:/\n";
        assert_eq!(find_user(passwd, "lasthop-switch"), Some((991, 992)));
        assert_eq!(find_user(passwd, "lasthop-control"), None);
        assert_eq!(find_user(passwd, "broken"), None);
        assert_eq!(find_user("", "x"), None);
    }
}
