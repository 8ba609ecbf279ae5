//! Giving up rights: what a process of lasthop does once it holds the descriptors it needs.
//!
//! Afterwards it has no file system, no network, no other user's processes and no capability, and any system call
//! that its program has no use for kills it. Steps that the surroundings forbid (a container without the right to make
//! namespaces, a start without root) are left out and named in the [`Report`]; "no new privileges" and the system call
//! filter are never left out.

mod filter;
#[cfg(any(test, feature = "others"))]
mod programs;

use crate::errno::last_errno;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

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

impl Program {
    /// `lasthop-switch`.
    pub const SWITCH: Self =
        Self { user_name: "lasthop-switch", fixed_user: 61_901, calls: &[], ioctls: &[], socket_pairs: &[] };
}

/// Descriptors wanted: a port with 16 queue pairs and many memory regions holds some hundred.
const WANTED_DESCRIPTORS: u64 = 262_144;

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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}, {}", self.user, self.done.join(", "))?;
        if !self.left_out.is_empty() {
            write!(f, "; without {}", self.left_out.join(", "))?;
        }
        Ok(())
    }
}

/// What a process is about to give up.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    program: Program,
}

impl Plan {
    /// The plan of `program`.
    pub fn new(program: Program) -> Self {
        Self { program }
    }

    /// Carries it out for the whole process. Call it from the only thread, after everything that must be opened has
    /// been; threads started later inherit all of it. On an error the process may be half confined: end it.
    pub fn enter(self) -> Result<Report, SandboxError> {
        let threads = threads();
        if threads > 1 {
            return Err(SandboxError::Threads(threads));
        }
        warm_up();
        // SAFETY: getppid has no preconditions.
        let parent = unsafe { libc::getppid() };
        let mut death_signal: libc::c_int = 0;
        // SAFETY: the kernel writes one int to the address, which is that of a live local.
        unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut death_signal) };

        let mut report = Report::default();
        limits(&mut report);
        if rustix::process::geteuid().is_root() {
            namespaces(&mut report);
            note(&mut report, "empty root", empty_root());
            bounding_set(&mut report);
            let (user, group) = user_of(self.program);
            note(&mut report, "own user", become_user(user, group));
        } else {
            report.left_out.push("namespaces, empty root and own user (not started as root)".into());
        }
        no_capabilities().map_err(SandboxError::Capabilities)?;
        report.done.push("no capabilities");
        report.user = rustix::process::geteuid().as_raw();

        // A change of user clears the death signal, and the parent may have died in between.
        // SAFETY: prctl with these arguments touches no memory; getppid has no preconditions.
        let orphaned = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, death_signal);
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::getppid() != parent
        };
        if orphaned {
            return Err(SandboxError::Orphaned);
        }
        // SAFETY: prctl with these arguments touches no memory.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
            return Err(SandboxError::NoNewPrivs(last_errno()));
        }
        report.done.push("no new privileges");
        filter::install(self.program).map_err(|e| SandboxError::Seccomp(e.to_string()))?;
        report.done.push("system call filter");
        Ok(report)
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count())
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

fn check(result: libc::c_int) -> Result<(), Errno> {
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

fn limits(report: &mut Report) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limits are live locals; setrlimit reads them and getrlimit writes one.
    let core = check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) });
    note(report, "no core dumps", core);
    let mut files = none;
    // SAFETY: as above.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut files) == 0 {
            let more = files.rlim_max.max(WANTED_DESCRIPTORS);
            let more = libc::rlimit { rlim_cur: more, rlim_max: more };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &more) < 0 {
                let most = libc::rlimit { rlim_cur: files.rlim_max, rlim_max: files.rlim_max };
                libc::setrlimit(libc::RLIMIT_NOFILE, &most);
            }
        }
    }
}

fn namespaces(report: &mut Report) {
    for (what, flag) in [
        ("own network namespace", libc::CLONE_NEWNET),
        ("own IPC namespace", libc::CLONE_NEWIPC),
        ("own UTS namespace", libc::CLONE_NEWUTS),
        ("own mount namespace", libc::CLONE_NEWNS),
    ] {
        // SAFETY: none of these flags unshares memory or the table of descriptors, so nothing Rust relies on changes.
        note(report, what, check(unsafe { libc::unshare(flag) }));
    }
}

/// Makes an empty directory that no longer has a name the root: nothing is in it and nothing can be made in it.
fn empty_root() -> Result<(), Errno> {
    let mut error = Errno::NOENT;
    let name = format!("lasthop-empty-{}", std::process::id());
    for parent in [PathBuf::from("/run"), std::env::temp_dir(), PathBuf::from("/dev/shm"), PathBuf::from("/")] {
        match nameless_directory(&parent.join(&name)) {
            Ok(directory) => {
                rustix::process::fchdir(&directory)?;
                // SAFETY: the path is a NUL-terminated literal.
                return check(unsafe { libc::chroot(c".".as_ptr()) });
            }
            Err(e) => error = e,
        }
    }
    Err(error)
}

fn nameless_directory(path: &std::path::Path) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdir(path, Mode::empty())?;
    let opened = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    rustix::fs::rmdir(path)?;
    opened
}

fn bounding_set(report: &mut Report) {
    let mut result = Ok(());
    // Numbers beyond the last capability end the loop: PR_CAPBSET_READ fails for them.
    for capability in 0..64 as libc::c_ulong {
        // SAFETY: prctl with these arguments touches no memory.
        match unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability) } {
            0 => {}
            // SAFETY: as above.
            1 => result = result.and(check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability) })),
            _ => break,
        }
    }
    note(report, "empty bounding set", result);
}

/// User and group of `program`: its own in the password file, else fixed numbers.
fn user_of(program: Program) -> (u32, u32) {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find_user(&passwd, program.user_name).unwrap_or((program.fixed_user, program.fixed_user))
}

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

fn become_user(user: u32, group: u32) -> Result<(), Errno> {
    // SAFETY: no group list is read as its length is 0; the other calls take numbers. This is the only thread, so
    // nothing runs on with the old user.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(group, group, group))?;
        check(libc::setresuid(user, user, user))
    }
}

fn no_capabilities() -> Result<(), Errno> {
    /// `struct __user_cap_header_struct` of linux/capability.h.
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    /// `struct __user_cap_data_struct`, of which version 3 has two.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let none = [Data { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: prctl with these arguments touches no memory; capset reads the two structures laid out as it documents.
    unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        match libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }
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
