//! A process in the sandbox, looked at from outside and made to try what it must not.
//!
//! Each case runs this binary again as a child, which enters the sandbox and does as told. A sandbox is entered by the
//! only thread of a process, so this is a plain program and not a set of libtest tests, which each have a thread. Root
//! sees every step; without root the steps that need it must be reported as left out.
#![allow(unsafe_code)]

use lasthop_sys::sandbox::{GivenUp, Handed, Program, empty_directory, give_up_when_started};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

const ACT: &str = "LASTHOP_TEST_ACT";
const PROGRAM: &str = "LASTHOP_TEST_PROGRAM";
/// Where a link planted in the way of the child is to lead.
const PLANTED: &str = "LASTHOP_TEST_PLANTED";

fn main() {
    if let Ok(act) = std::env::var(ACT) {
        return confined(&act);
    }
    let tests: [(&str, fn()); 9] = [
        ("root_becomes_nobody_with_nothing", root_becomes_nobody_with_nothing),
        ("what_the_starter_gives_up_is_gone_at_once", what_the_starter_gives_up_is_gone_at_once),
        ("a_planted_link_is_not_followed", a_planted_link_is_not_followed),
        ("what_cannot_be_made_is_left_out_with_the_reason", what_cannot_be_made_is_left_out_with_the_reason),
        ("death_signal_outlives_the_change_of_user", death_signal_outlives_the_change_of_user),
        ("forbidden_calls_kill", forbidden_calls_kill),
        ("daily_work_is_allowed", daily_work_is_allowed),
        ("without_root_the_rest_still_holds", without_root_the_rest_still_holds),
        ("a_second_thread_is_refused", a_second_thread_is_refused),
    ];
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    for (name, test) in tests {
        if wanted.as_deref().is_none_or(|w| name.contains(w)) {
            test();
            println!("test {name} ... ok");
        }
    }
}

/// The child.
fn confined(act: &str) {
    let program = match std::env::var(PROGRAM).as_deref() {
        Ok("control") => Program::CONTROL,
        Ok("uplink") => Program::UPLINK,
        _ => Program::SWITCH,
    };
    if act == "thread first" {
        let (_keep, wait) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || wait.recv());
        eprintln!("error: {}", program.enter_sandbox().unwrap_err());
        return;
    }
    if act == "given up" {
        // It takes its root and another user by what it was left.
        let handed = Handed { root: Some(empty_directory().unwrap()), rules: None };
        let confinement = program.confinement(std::process::id()).unwrap();
        let mut go = [0];
        eprintln!("started");
        std::io::stdin().read_exact(&mut go).unwrap();
        eprintln!("entered, without: {:?}", confinement.enter(handed).unwrap());
        return std::io::stdin().read_exact(&mut go).unwrap();
    }
    if let Some(elsewhere) = std::env::var_os(PLANTED) {
        std::os::unix::fs::symlink(elsewhere, planted(std::process::id())).unwrap();
    }
    if act == "no root" {
        for path in everywhere(std::process::id()) {
            // A host without one of these directories has no place there either.
            let _ = std::os::unix::fs::symlink("/nowhere", path);
        }
    }
    lasthop_sys::prepare_peer_events(lasthop_sys::SIGNALLING_THREADS).unwrap();
    match program.enter_sandbox() {
        Ok(report) => eprintln!("entered: {report}"),
        Err(e) => {
            eprintln!("error: {e}");
            return;
        }
    }
    let mut go = [0];
    std::io::stdin().read_exact(&mut go).unwrap();
    perform(act);
    eprintln!("still here");
}

fn perform(act: &str) {
    match act {
        "nothing" | "no root" => {}
        "open" => drop(std::fs::File::open("/etc/passwd")),
        "exec" => drop(Command::new("/bin/true").exec()),
        "fork" => drop(Command::new("/bin/true").spawn()),
        "inet socket" => drop(std::net::UdpSocket::bind("127.0.0.1:0")),
        "unix connect" => drop(std::os::unix::net::UnixStream::connect("/nowhere")),
        "socketpair" => {
            let (mut a, mut b) = std::os::unix::net::UnixStream::pair().unwrap();
            a.write_all(b"x").unwrap();
            b.read_exact(&mut [0]).unwrap();
        }
        "read memory of another process" => {
            let mut byte = 0u8;
            let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(0x1000), iov_len: 1 };
            // SAFETY: what is read goes to a live local.
            unsafe { libc::process_vm_readv(1, &raw const local, 1, &raw const remote, 1, 0) };
        }
        "write memory of another process" => {
            let byte = 0u8;
            let local = libc::iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: 1 };
            let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(0x1000), iov_len: 1 };
            // SAFETY: nothing of this process is written.
            unsafe { libc::process_vm_writev(1, &raw const local, 1, &raw const remote, 1, 0) };
        }
        // SAFETY: to trace another process changes nothing here.
        "trace" => drop(unsafe { libc::ptrace(libc::PTRACE_ATTACH, 1, 0, 0) }),
        "open memory" => drop(std::fs::File::open("/proc/1/mem")),
        // SAFETY: these only make descriptors.
        "take a descriptor" => drop(unsafe { libc::syscall(libc::SYS_pidfd_getfd, 0, 0, 0) }),
        "signal" => drop(rustix::process::kill_process(rustix::process::Pid::INIT, rustix::process::Signal::TERM)),
        "executable memory" => {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            let protection = ProtFlags::READ | ProtFlags::EXEC;
            // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
            let _ = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, protection, MapFlags::PRIVATE) };
        }
        "let an event block" => {
            let event = OwnedFd::from(lasthop_sys::EventFd::new().unwrap());
            let _ = rustix::fs::fcntl_setfl(&event, rustix::fs::OFlags::empty());
        }
        "seal memory" => {
            use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
            let memory = memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap();
            let _ = fcntl_add_seals(&memory, SealFlags::SHRINK);
        }
        "own a signal" => {
            let event = OwnedFd::from(lasthop_sys::EventFd::new().unwrap());
            // SAFETY: no memory is involved.
            unsafe { libc::fcntl(event.as_raw_fd(), libc::F_SETOWN, 1) };
        }
        "move another process" => {
            let cpus = rustix::thread::sched_getaffinity(None).unwrap();
            let _ = rustix::thread::sched_setaffinity(Some(rustix::process::Pid::INIT), &cpus);
        }
        "slow another process" => drop(lasthop_sys::set_idle(1, true)),
        "look at the class of another process" => {
            // SAFETY: no memory is involved.
            unsafe { libc::sched_getscheduler(1) };
        }
        // SAFETY: it adds nothing.
        "restrict" => drop(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, -1, 0) }),
        "limits of another process" => {
            let none = std::ptr::null::<libc::rlimit>();
            // SAFETY: no pointer is followed.
            unsafe { libc::prlimit(1, libc::RLIMIT_DATA, none, std::ptr::null_mut()) };
        }
        "too much memory" => {
            // Never touched: what is asked for counts.
            let much: Vec<Vec<u8>> = (0..9).map(|_| Vec::with_capacity(1 << 30)).collect();
            std::hint::black_box(much);
        }
        "work" => work(),
        "signal peers" => {
            let event = lasthop_sys::EventFd::new().unwrap();
            let peers = lasthop_sys::PeerEvent::new(OwnedFd::from(event.try_clone().unwrap())).unwrap();
            (0..10_000).for_each(|_| peers.signal());
            assert!(event.drain());
        }
        "abort" => std::process::abort(),
        other => panic!("unknown act {other}"),
    }
}

/// What the switch does all day.
fn work() {
    use lasthop_sys::{CpuList, Epoll, EventFd, Trigger};
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let worker = std::thread::Builder::new().name(format!("worker-{i}"));
            worker.spawn(|| {
                CpuList::allowed().unwrap().bind_current_thread().unwrap();
                let (epoll, event) = (Epoll::new().unwrap(), EventFd::new().unwrap());
                epoll.add(&event, 1, Trigger::Edge).unwrap();
                event.signal();
                let mut ready = Vec::new();
                epoll.wait(&mut ready, Some(std::time::Duration::from_secs(5))).unwrap();
                std::thread::sleep(std::time::Duration::from_micros(1));
                std::thread::yield_now();
                ready.len()
            })
        })
        .collect();
    assert_eq!(threads.into_iter().map(|t| t.unwrap().join().unwrap()).sum::<usize>(), 3);

    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 1 << 20).unwrap();
    assert_eq!(fstat(&memory).unwrap().st_size, 1 << 20);
    let file = std::fs::File::from(memory.try_clone().unwrap());
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    // SAFETY: a new shared mapping of a file nobody shortens; unmapped at the end, used by nobody after.
    unsafe {
        let at = rustix::mm::mmap(
            std::ptr::null_mut(),
            1 << 20,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &memory,
            0,
        );
        let at = at.unwrap();
        at.cast::<u8>().write(1);
        rustix::mm::madvise(at, 1 << 20, Advice::LinuxDontNeed).unwrap();
        rustix::mm::munmap(at, 1 << 20).unwrap();
    }
    let many: Vec<Vec<u8>> = (0..64).map(|i| vec![1; i << 14]).collect();
    assert!(many.iter().map(Vec::len).sum::<usize>() > 1 << 20);
    let _ = std::collections::HashMap::<u8, u8>::new();
    let _ = std::time::SystemTime::now();
    let panicked = std::thread::spawn(|| std::panic::resume_unwind(Box::new(()))).join();
    assert!(panicked.is_err());
}

struct Confined {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    /// The line it said on entering (or why it did not).
    entered: String,
}

impl Confined {
    fn start(program: &str, act: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(ACT, act).env(PROGRAM, program).env_remove("RUST_BACKTRACE");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut entered = String::new();
        stderr.read_line(&mut entered).unwrap();
        Self { child, stderr, entered }
    }

    fn status_field(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with(&format!("{name}:"))).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    }

    fn go(mut self) -> (ExitStatus, String) {
        // A process that has ended already cannot be told.
        let _ = self.child.stdin.take().unwrap().write_all(b"g");
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }
}

fn namespace(pid: u32, kind: &str) -> std::path::PathBuf {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn root_becomes_nobody_with_nothing() {
    if !is_root() {
        return;
    }
    let users: Vec<String> = ["switch", "control", "uplink"]
        .map(|program| {
            let confined = Confined::start(program, "nothing", lasthop_sys::die_with_parent);
            assert!(confined.entered.starts_with("entered: user "), "{}", confined.entered);
            let pid = confined.child.id();
            let uids = confined.status_field("Uid");
            let ids: Vec<&str> = uids.split_whitespace().collect();
            assert!(ids.iter().all(|id| *id == ids[0] && *id != "0"), "{uids}");
            assert!(!confined.status_field("Gid").split_whitespace().any(|id| id == "0"));
            assert_eq!(confined.status_field("Groups"), "");
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert_eq!(confined.status_field(set), "0000000000000000", "{set}");
            }
            assert_eq!(confined.status_field("NoNewPrivs"), "1");
            assert_eq!(confined.status_field("Seccomp"), "2");
            if !confined.entered.contains("without") {
                for kind in ["net", "ipc", "uts", "mnt"] {
                    assert_ne!(namespace(pid, kind), namespace(std::process::id(), kind), "{kind}");
                }
                let root = std::fs::read_link(format!("/proc/{pid}/root")).unwrap();
                assert!(root.to_string_lossy().ends_with(" (deleted)"), "{root:?}");
                assert_eq!(std::fs::read_dir(format!("/proc/{pid}/root/")).unwrap().count(), 0);
            }
            let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            let core = limits.lines().find(|l| l.starts_with("Max core file size")).unwrap();
            assert_eq!(core.split_whitespace().filter(|w| *w == "0").count(), 2, "{core}");
            let data = limits.lines().find(|l| l.starts_with("Max data size")).unwrap();
            let most: u64 = data.split_whitespace().nth(4).unwrap().parse().expect("a limit");
            assert!((1 << 30..=8 << 30).contains(&most), "{data}");
            assert!(confined.entered.contains("nothing by name (Landlock)"), "{}", confined.entered);
            let (status, said) = confined.go();
            assert!(status.success(), "{status} {said}");
            ids[0].to_owned()
        })
        .into();
    let different: std::collections::BTreeSet<_> = users.iter().collect();
    assert_eq!(different.len(), users.len(), "each program has its own user");
}

/// The program that maps guest memory has nothing but the way into the sandbox before its first instruction; and what its starter could not do
/// is said with the reason.
fn what_the_starter_gives_up_is_gone_at_once() {
    if !is_root() {
        return;
    }
    let start = |without: CapabilitySet| {
        let mut given_up = None;
        let mut confined = Confined::start("switch", "given up", |command| {
            let lose = move || {
                let own = capabilities(None)?;
                let (effective, permitted) = (own.effective - without, own.permitted - without);
                Ok(set_capabilities(None, CapabilitySets { effective, permitted, ..own })?)
            };
            // SAFETY: it makes two system calls, and neither allocates nor locks.
            unsafe { command.pre_exec(lose) };
            given_up = Some(give_up_when_started(command).unwrap());
        });
        assert_eq!(confined.entered, "started\n");
        let before = ["CapPrm", "CapBnd"].map(|set| confined.status_field(set));
        let own = ["net", "ipc", "uts", "mnt"]
            .map(|kind| namespace(confined.child.id(), kind) != namespace(std::process::id(), kind));
        confined.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
        confined.entered.clear();
        confined.stderr.read_line(&mut confined.entered).unwrap();
        assert_eq!(confined.entered, "entered, without: []\n");
        let after = ["CapInh", "CapPrm", "CapEff", "CapBnd"].map(|set| confined.status_field(set));
        assert!(confined.status_field("Uid").split_whitespace().all(|id| id != "0"));
        let report = given_up.as_ref().map(GivenUp::report).unwrap();
        assert!(confined.go().0.success());
        (before, own, after, report)
    };
    let none = "0000000000000000";
    let (before, own, after, report) = start(CapabilitySet::empty());
    // chroot, setuid and setgid.
    assert_eq!(before, ["00000000000400c0", none]);
    assert_eq!((own, after.each_ref().map(String::as_str)), ([true; 4], [none; 4]));
    assert_eq!((report.done.len(), report.left_out), (5, vec![]));
    let (before, own, after, report) = start(CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP);
    assert_eq!((own, after.each_ref().map(|set| set == none)), ([false; 4], [true, true, true, false]));
    assert_eq!(report.left_out.len(), 5, "{report:?}");
    assert!(report.left_out.iter().all(|left_out| left_out.contains(" (Operation not permitted")), "{report:?}");
    assert!(report.left_out[4].starts_with("empty bounding set") && before[1] != none);
}

/// Where a process makes its empty root first.
fn planted(pid: u32) -> String {
    format!("/run/lasthop-empty-{pid}")
}

/// Somebody who guesses the name of the directory that becomes the root puts a link there: the process takes another, and
/// what the link leads to is not touched.
fn a_planted_link_is_not_followed() {
    if !is_root() {
        return;
    }
    let elsewhere = std::env::temp_dir().join(format!("lasthop-planted-{}", std::process::id()));
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("file"), "kept").unwrap();
    let confined = Confined::start("uplink", "nothing", |command| {
        command.env(PLANTED, &elsewhere);
    });
    let pid = confined.child.id();
    assert_eq!(std::fs::read_link(planted(pid)).unwrap(), elsewhere);
    std::fs::remove_file(planted(pid)).unwrap();
    assert!(confined.entered.starts_with("entered: user "), "{}", confined.entered);
    if !confined.entered.contains("without") {
        let root = std::fs::read_link(format!("/proc/{pid}/root")).unwrap();
        assert!(root.to_string_lossy().ends_with(" (deleted)"), "{root:?}");
        assert_eq!(std::fs::read_dir(format!("/proc/{pid}/root/")).unwrap().count(), 0);
    }
    assert!(confined.go().0.success());
    assert_eq!(std::fs::read_to_string(elsewhere.join("file")).unwrap(), "kept");
    std::fs::remove_dir_all(elsewhere).unwrap();
}

/// All places where a process makes its empty root.
fn everywhere(pid: u32) -> [std::path::PathBuf; 4] {
    let name = format!("lasthop-empty-{pid}");
    [std::env::temp_dir(), "/run".into(), "/dev/shm".into(), "/".into()].map(|dir| dir.join(&name))
}

/// Each of them is taken: the process goes on without an empty root, and says that, and not that something is missing.
fn what_cannot_be_made_is_left_out_with_the_reason() {
    if !is_root() {
        return;
    }
    let confined = Confined::start("uplink", "no root", |_| ());
    everywhere(confined.child.id()).iter().for_each(|path| drop(std::fs::remove_file(path)));
    let entered = &confined.entered;
    let (done, left_out) = entered.split_once("; without ").unwrap_or_else(|| panic!("{entered}"));
    assert!(!done.contains("empty root") && left_out.contains("empty root (File exists"), "{entered}");
    assert_eq!(entered.matches("empty root").count(), 1, "{entered}");
    match lasthop_sys::sandbox::nothing_by_name() {
        Ok(_) => assert!(done.contains("nothing by name (Landlock)"), "{entered}"),
        Err(e) => assert!(left_out.contains(&format!("nothing by name (Landlock) ({e})")), "{entered}"),
    }
    assert!(confined.go().0.success());
}

fn death_signal_outlives_the_change_of_user() {
    let starter = std::thread::spawn(|| {
        let confined = Confined::start("switch", "nothing", lasthop_sys::die_with_parent);
        assert!(confined.entered.starts_with("entered:"), "{}", confined.entered);
        confined
    });
    // The thread that started it has ended, so it must be killed although nobody told it anything.
    let mut confined = starter.join().unwrap();
    assert_eq!(confined.child.wait().unwrap().signal(), Some(9));
}

fn forbidden_calls_kill() {
    for program in ["switch", "control", "uplink"] {
        let mut acts = vec!["open", "exec", "fork", "inet socket", "unix connect", "signal", "executable memory"];
        acts.extend(["read memory of another process", "write memory of another process", "trace"]);
        acts.extend(["open memory", "take a descriptor", "let an event block", "seal memory", "own a signal"]);
        acts.extend(["move another process", "slow another process", "look at the class of another process"]);
        acts.extend(["restrict", "limits of another process"]);
        if program != "control" {
            acts.push("socketpair");
        }
        for act in acts {
            let confined = Confined::start(program, act, |_| {});
            assert!(confined.entered.starts_with("entered:"), "{}", confined.entered);
            let (status, said) = confined.go();
            assert_eq!(status.signal(), Some(31), "{program}: {act} gave {status} and {said:?}");
            assert!(!status.core_dumped());
        }
    }
}

fn daily_work_is_allowed() {
    for (program, act) in
        [("switch", "work"), ("switch", "signal peers"), ("control", "work"), ("control", "socketpair")]
    {
        let confined = Confined::start(program, act, |_| {});
        let (status, said) = confined.go();
        assert!(status.success() && said.contains("still here"), "{program}: {act} gave {status} and {said:?}");
    }
    let (status, _) = Confined::start("switch", "abort", |_| {}).go();
    assert_eq!(status.signal(), Some(6), "abort is told from a forbidden call");
    let (status, said) = Confined::start("switch", "too much memory", |_| {}).go();
    assert_eq!(status.signal(), Some(6), "a process beyond its limit ends: {said}");
    assert!(said.contains("memory allocation"), "{said}");
}

fn without_root_the_rest_still_holds() {
    let user = if is_root() { 65_534 } else { rustix::process::geteuid().as_raw() };
    let copy = tempfile_readable_by_all();
    let confined = Confined::start("switch", "open", |command| {
        if is_root() {
            let mut other = Command::new(&copy);
            other.env(ACT, "open").env(PROGRAM, "switch").env_remove("RUST_BACKTRACE");
            other.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).uid(user).gid(user);
            *command = other;
        }
    });
    assert!(confined.entered.starts_with(&format!("entered: user {user}, ")), "{}", confined.entered);
    assert!(confined.entered.contains("not started as root"), "{}", confined.entered);
    let (status, _) = confined.go();
    assert_eq!(status.signal(), Some(31));
    std::fs::remove_file(copy).unwrap();
}

/// This test binary where any user can run it.
fn tempfile_readable_by_all() -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("lasthop-sandbox-test-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    path
}

fn a_second_thread_is_refused() {
    let confined = Confined::start("switch", "thread first", |_| {});
    assert!(confined.entered.contains("2 threads"), "{}", confined.entered);
    assert!(confined.go().0.success());
}
