//! The programs that enter the sandbox, and what each becomes there. Behind the feature `programs`: the switch is told.

mod filter;

use super::before::{NOT_ROOT, give_up};
use super::{Confinement, Handed, Report, nothing_by_name, unfiltered};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, geteuid, getrlimit, prlimit, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities, set_no_new_privs};
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

/// Why a program must not go on.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Namespaces, user and filter are per thread, so a second thread would keep the old rights.
    #[error("{0} threads run already; enter the sandbox before starting any")]
    Threads(usize),
    /// There is no filter for this machine.
    #[error("no system call filter: {0}")]
    NoFilter(String),
    /// A step that cannot be left out has failed.
    #[error("{0}")]
    Step(String),
}

/// Descriptors wanted: a port with 16 queue pairs and many memory regions holds some hundred.
const WANTED_DESCRIPTORS: u64 = 262_144;

/// Bytes of private memory that are allowed on a small host and on any. A thread counts with its whole stack, 2 MiB, one of a port with 256 KiB.
const MOST_MEMORY: (u64, u64) = (1 << 30, 8 << 30);

impl Program {
    /// `lasthop-switch`.
    pub const SWITCH: Self = Self {
        user_name: "lasthop-switch",
        fixed_user: 61_901,
        // Signals peers' events (`peer_event.rs`), and waits for ports that are silent (`watches.rs`); what its operations could do, read(2) and write(2) can.
        calls: &[libc::SYS_io_submit, libc::SYS_io_getevents],
        ioctls: &[],
        socket_pairs: &[],
    };

    /// `lasthop-control`: serves its API on a listening socket it inherited.
    pub const CONTROL: Self = Self {
        user_name: "lasthop-control",
        fixed_user: 61_902,
        calls: &[libc::SYS_accept4, libc::SYS_getsockname, libc::SYS_getpeername],
        ioctls: &[],
        socket_pairs: &[libc::AF_UNIX],
    };

    /// `lasthop-ovs`: the same, and clients on another listening socket.
    pub const OVS: Self = Self { user_name: "lasthop-ovs", fixed_user: 61_904, ..Self::CONTROL };

    /// `lasthop-uplink`: packets in batches over sockets it opened before, how many wait there, and the end of a TAP device that it made.
    pub const UPLINK: Self = Self {
        user_name: "lasthop-uplink",
        fixed_user: 61_903,
        calls: &[libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_getsockname],
        ioctls: &[libc::TUNSETPERSIST, libc::TIOCOUTQ],
        socket_pairs: &[],
    };

    /// `lasthop-session`: bytes and descriptors over sockets it is given; it signals eventfds as the switch does, and waits for none in that way.
    pub const SESSION: Self =
        Self { user_name: "lasthop-session", fixed_user: 61_905, calls: &[libc::SYS_io_submit], ..Self::SWITCH };

    /// `lasthop-cable`: the same, and memory of its own that it made before.
    pub const CABLE: Self = Self { user_name: "lasthop-cable", fixed_user: 61_906, ..Self::SESSION };

    /// `lasthop-flower`: one socket of rtnetlink, for which it keeps a right (see [`Program::enter_sandbox_keeping`]).
    pub const FLOWER: Self =
        Self { user_name: "lasthop-flower", fixed_user: 61_907, calls: &[], ioctls: &[], socket_pairs: &[] };

    /// What the process with this number becomes, which runs this program.
    pub fn confinement(self, pid: u32) -> Result<Confinement, ProgramError> {
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = find_user(&passwd, self.user_name).unwrap_or((self.fixed_user, self.fixed_user));
        let filters = filter::compile_all(self, pid).map_err(|e| ProgramError::NoFilter(e.to_string()))?;
        give_back_memory();
        Ok(Confinement { user, filters })
    }

    /// Makes this process what this program becomes: [`limit`], what can be given up before a program is there, then [`Confinement::enter`].
    pub fn enter_sandbox(self) -> Result<Report, ProgramError> {
        alone()?;
        let (mut report, is_root) = (Report::default(), geteuid().is_root());
        limit(None, &mut report);
        one_heap();
        if is_root {
            give_up(&mut report)
        } else {
            report.left_out.push(NOT_ROOT.into())
        }
        let confinement = self.confinement(std::process::id())?;
        let handed = make_handed(&mut report);
        let steps = [
            ("empty root", handed.root.is_some()),
            ("own user", is_root),
            ("no capabilities", true),
            ("no new privileges", true),
            ("nothing by name (Landlock)", handed.rules.is_some()),
            ("system call filter", true),
        ];
        let left_out = confinement.enter(handed).map_err(ProgramError::Step)?;
        let is_left_out = |step: &str| left_out.iter().any(|what| what.starts_with(step));
        let done = steps.iter().filter(|(step, taken)| *taken && !is_left_out(step));
        report.done.extend(done.map(|(step, _)| *step));
        report.left_out.extend(left_out);
        report.user = geteuid().as_raw();
        Ok(report)
    }

    /// The same, but for one capability, without which the kernel does not do what it is asked over a socket that was opened before; and it does not
    /// end with its parent, whose end it sees: what it has made outside of itself it takes away then. Needs to be started as root.
    pub fn enter_sandbox_keeping(self, kept: CapabilitySet) -> Result<Report, ProgramError> {
        alone()?;
        let capabilities = |e| ProgramError::Step(format!("capabilities: {e}"));
        let mut report = Report::default();
        limit(None, &mut report);
        let confinement = self.confinement(std::process::id())?;
        super::warm_up();
        one_heap();
        give_up(&mut report);
        report.note("empty root", empty_directory().and_then(super::become_root));
        set_keep_capabilities(true).map_err(capabilities)?;
        report.note("own user", super::become_user(confinement.user.0, confinement.user.1));
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
        set_capabilities(None, sets).map_err(capabilities)?;
        set_keep_capabilities(false).map_err(capabilities)?;
        report.done.push("one capability");
        report.user = geteuid().as_raw();
        set_parent_process_death_signal(None).map_err(capabilities)?;
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        set_no_new_privs(true).map_err(|e| ProgramError::Step(format!("no_new_privs: {e}")))?;
        report.done.push("no new privileges");
        report.note("nothing by name (Landlock)", nothing_by_name().and_then(super::obey));
        confinement
            .filters
            .iter()
            .try_for_each(|filter| super::install(filter))
            .map_err(|e| ProgramError::Step(unfiltered(e)))?;
        report.done.push("system call filter");
        Ok(report)
    }
}

/// Gives the kernel back all pages of the heap in which nothing is in use, for a process of which there are many: the allocator would keep them.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it gives pages back that nobody has, under the allocator's own lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// All threads share one heap: for a second one the allocator opens a file when a thread begins or ends, for which the filter would end the process. The switch
/// is started with one (`child/sandbox.rs` of `lasthop`).
fn one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Whether nothing has the rights of this process but this thread.
fn alone() -> Result<(), ProgramError> {
    match std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count()) {
        1 => Ok(()),
        threads => Err(ProgramError::Threads(threads)),
    }
}

/// What is handed to [`Confinement::enter`]: an empty root, if this process is root, and rules of Landlock. What cannot be made is left out in the
/// report, with the reason.
pub fn make_handed(report: &mut Report) -> Handed {
    let mut or_why = |what: &str, made: Result<OwnedFd, Errno>| {
        made.inspect_err(|e| report.left_out.push(format!("{what} ({e})"))).ok()
    };
    let root = geteuid().is_root().then(|| or_why("empty root", empty_directory())).flatten();
    Handed { root, rules: or_why("nothing by name (Landlock)", nothing_by_name()) }
}

/// An empty directory that no longer has a name: nothing is in it and nothing can be made in it, so that it can be the root of a process that is to
/// see no file. Needs to be root, as the process that it becomes the root of.
pub fn empty_directory() -> Result<OwnedFd, Errno> {
    // The first place is where it should be: why not there is what somebody can mend.
    let mut error = None;
    let name = format!("lasthop-empty-{}", std::process::id());
    for parent in [PathBuf::from("/run"), std::env::temp_dir(), PathBuf::from("/dev/shm"), PathBuf::from("/")] {
        match nameless_directory(&parent.join(&name)) {
            Ok(directory) => return Ok(directory),
            Err(e) => error = error.or(Some(e)),
        }
    }
    Err(error.unwrap_or(Errno::NOENT))
}

fn nameless_directory(path: &Path) -> Result<OwnedFd, Errno> {
    // Root enters it without a capability, and becomes somebody else there.
    rustix::fs::mkdir(path, Mode::RUSR | Mode::XUSR)?;
    let opened = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    rustix::fs::rmdir(path)?;
    opened
}

/// The first step into the sandbox, which somebody else can take for a process that has not entered it yet: no core dumps, more
/// descriptors, a limit of memory of its own. `None`: this process. The other has the limits that this one has.
pub fn limit(process: Option<Pid>, report: &mut Report) {
    let set = |resource, limit| prlimit(process, resource, Rlimit { current: limit, maximum: limit }).map(drop);
    report.note("no core dumps", set(Resource::Core, Some(0)));
    // `None` is no limit.
    let memory = getrlimit(Resource::Data).maximum.map_or(most_memory(), |already| already.min(most_memory()));
    report.note("memory limit", set(Resource::Data, Some(memory)));
    let most = getrlimit(Resource::Nofile).maximum;
    if set(Resource::Nofile, most.map(|n| n.max(WANTED_DESCRIPTORS))).is_err() {
        let _ = set(Resource::Nofile, most);
    }
}

/// Heap, stacks and tables, not what is shared with others, which is bounded where it is mapped. A process that wants more ends, and is replaced, before the host is short of memory. Half of the host's, within what the
/// largest switch has been seen to need and what no host can spare.
fn most_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let host = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    (host / 2).clamp(MOST_MEMORY.0, MOST_MEMORY.1)
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

    /// It travels in one message to the switch.
    #[test]
    fn a_confinement_is_short() {
        let (some, others) = (
            [Program::SWITCH, Program::CONTROL, Program::OVS, Program::UPLINK],
            [Program::SESSION, Program::CABLE, Program::FLOWER],
        );
        for program in some.into_iter().chain(others) {
            let confinement = program.confinement(u32::MAX).unwrap();
            let instructions: usize = confinement.filters.iter().map(Vec::len).sum();
            assert!((100..4000).contains(&instructions), "{instructions}");
        }
        let waits = |program: &Program| program.calls.contains(&libc::SYS_io_getevents);
        assert!(waits(&Program::SWITCH) && ![Program::SESSION, Program::CABLE].iter().any(waits));
    }
}
