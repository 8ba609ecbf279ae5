//! A thread of the switch or of control that hangs is found out, its process is replaced, and traffic goes on; one that only gets no
//! processor time is left alone. What cannot even be closed or killed holds up nobody else.

use lasthop_frame::VnetHdr;
use lasthop_sys::Trigger;
use lasthop_tests_process::{
    Arena, Bystanders, DeadMount, Lasthop, Options, PATIENCE, Plug, Port, connect, mac, number_of, numbered, proc,
    scratch, wait_for,
};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

/// Of most tests; the default is 1 s.
const LIMIT_MS: u64 = 400;

/// Two guests, of which one sends to the other all the time.
struct Site {
    a: Plug,
    b: Plug,
    lasthop: Lasthop,
    next: u32,
    /// How long it took until the log said that something hangs, the last time.
    found: Duration,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(client: bool, arguments: &[&str]) -> Self {
        let dir = scratch();
        let (port_a, a) = Plug::new(dir.path().join("a.sock"), client, 1, Options::default());
        let (port_b, b) = Plug::new(dir.path().join("b.sock"), client, 2, Options::default());
        let lasthop = Lasthop::start_with(&[port_a, port_b], arguments);
        let mut site = Self { a: a(), b: b(), lasthop, next: 1, found: Duration::ZERO, _dir: dir };
        site.a.guest.greet(&mut site.b.guest, 0);
        site
    }

    fn watched(client: bool) -> Self {
        Self::new(client, &["--watchdog", &LIMIT_MS.to_string()])
    }

    /// Sends what there is room for, takes what there is: how many came.
    fn exchange(&mut self) -> usize {
        for _ in 0..16 {
            if !self.a.guest.try_send(VnetHdr::default(), &numbered(mac(1), mac(2), self.next, 200)) {
                break;
            }
            self.next += 1;
        }
        let mut came = 0;
        while let Some((_, frame)) = self.b.guest.recv_within(Duration::from_micros(200)) {
            came += usize::from(number_of(&frame).is_some());
        }
        came
    }

    /// Exchanges frames until so many have come.
    fn load(&mut self, frames: usize) {
        let (mut came, end) = (0, Instant::now() + PATIENCE);
        while came < frames {
            came += self.exchange();
            assert!(Instant::now() < end, "frames do not flow");
        }
    }

    /// Exchanges frames until another switch carries them: how long that took since `then`.
    fn back(&mut self, then: Instant) -> Duration {
        let (before, end) = ([self.a.reconnected, self.b.reconnected], Instant::now() + PATIENCE);
        loop {
            self.a.mend();
            self.b.mend();
            let both = self.a.reconnected > before[0] && self.b.reconnected > before[1];
            if self.exchange() > 0 && both {
                return then.elapsed();
            }
            assert!(Instant::now() < end, "traffic is not back\n{}", self.lasthop.log());
        }
    }

    fn says(&self, words: &[&str]) {
        wait_for(&format!("a line of the log with {words:?}; now {}", self.lasthop.log()), PATIENCE, || {
            self.lasthop.log().lines().any(|line| words.iter().all(|word| line.contains(word)))
        });
    }
}

/// There is another switch than this one, of which something may be left.
fn another(lasthop: &Lasthop, old: u32) {
    wait_for("another switch", PATIENCE, || {
        proc::children(lasthop.pid()).iter().any(|(pid, name)| name == "lasthop-switch" && *pid != old)
    });
}

/// A thread of this name.
fn thread(process: u32, name: &str) -> u32 {
    let mut found = 0;
    wait_for(&format!("a thread {name}"), PATIENCE, || {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let of_name = |path: &std::path::Path| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim().starts_with(name))
        };
        let found_path = tasks.map(|task| task.path()).find(|path| of_name(path));
        found = found_path.and_then(|path| path.file_name()?.to_str()?.parse().ok()).unwrap_or(0);
        found != 0
    });
    found
}

/// One thread, stopped for as long as this thread lives. When its process is killed it is left over, like the process, until it is
/// waited for.
struct Stopped(Pid);

impl Stopped {
    fn new(thread: u32) -> Self {
        let thread = Pid::from_raw(thread as i32);
        ptrace::seize(thread, ptrace::Options::empty()).expect("root may");
        ptrace::interrupt(thread).expect("it is ours");
        Self(thread)
    }

    fn bury(self) {
        let _ = waitpid(self.0, Some(WaitPidFlag::__WALL));
        // That it is stopped, and that it has ended.
        let _ = waitpid(self.0, Some(WaitPidFlag::__WALL));
    }
}

/// Stops a thread of a switch, or all of it, and takes the time until frames flow again.
fn hang(site: &mut Site, name: Option<&str>) -> Duration {
    // A good life, so that the next begins at once.
    site.load(500);
    let switch = site.lasthop.switch();
    wait_for("a good life", PATIENCE, || {
        site.load(16);
        let stat = std::fs::read_to_string(format!("/proc/{switch}/schedstat")).unwrap_or_default();
        !stat.is_empty() && age(switch) > Duration::from_millis(250)
    });
    let victim = name.map(|name| thread(switch, name));
    site.load(16);
    let (then, time_of_day) = (Instant::now(), SystemTime::now());
    let stopped = victim.map(Stopped::new);
    if stopped.is_none() {
        proc::signal(switch, Signal::STOP);
    }
    let time = site.back(then);
    site.found = said_at(&site.lasthop.log(), &format!("(pid {switch}) hangs"), time_of_day);
    another(&site.lasthop, switch);
    stopped.into_iter().for_each(Stopped::bury);
    wait_for("nothing of the old one to be left", PATIENCE, || {
        !std::path::Path::new(&format!("/proc/{switch}")).exists()
    });
    time
}

/// When the log had this line, after a time of the same day.
fn said_at(log: &str, words: &str, since: SystemTime) -> Duration {
    let line = log.lines().find(|line| line.contains(words)).expect("it says so");
    let clock = line.split(['T', 'Z']).nth(1).expect("a time");
    let seconds = clock.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().expect("a number"));
    let then = since.duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs_f64();
    Duration::from_secs_f64((seconds - then.rem_euclid(86_400.0)).rem_euclid(86_400.0))
}

/// Since a process was started: /proc/PID's own time would do, were it not that of the first look.
fn age(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let ticks = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19)?.parse::<u64>().ok()).unwrap_or(0);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (Duration::from_secs(now.tv_sec as u64) + Duration::from_nanos(now.tv_nsec as u64))
        .saturating_sub(Duration::from_millis(ticks * 10))
}

#[test]
fn the_whole_switch_is_stopped() {
    for client in [true, false] {
        let mut site = Site::watched(client);
        let time = hang(&mut site, None);
        println!("the whole switch: {time:?}");
        site.says(&["lasthop-switch (pid", "hangs", "is stopped", "replacing it"]);
    }
}

#[test]
fn one_thread_is_stopped() {
    for name in ["lasthop-switch", "port-p1", "port-p2", "helper-0"] {
        let mut site = Site::watched(true);
        let time = hang(&mut site, Some(name));
        println!("{name}: {time:?}");
        let of = if name.starts_with("port") { format!("of port {}", &name[5..]) } else { String::new() };
        site.says(&["hangs: its thread", name, &of, "is stopped", "replacing it"]);
    }
}

/// Of whoever looks at it with a debugger, the process is left over until he lets go; nobody waits for him.
#[test]
fn what_does_not_end_is_not_waited_for() {
    let mut site = Site::watched(true);
    site.load(500);
    let switch = site.lasthop.switch();
    let stopped = Stopped::new(thread(switch, "port-p1"));
    let then = Instant::now();
    proc::signal(switch, Signal::KILL);
    let time = site.back(then);
    println!("killed, and not ended: {time:?}");
    another(&site.lasthop, switch);
    assert!(std::path::Path::new(&format!("/proc/{switch}")).exists());
    site.says(&["lasthop-switch (pid", "does not end"]);
    stopped.bury();
    wait_for("nothing of the old one to be left", PATIENCE, || {
        !std::path::Path::new(&format!("/proc/{switch}")).exists()
    });
}

/// Stopped for less than half the limit, again and again: it goes on, and so does the switch.
#[test]
fn a_short_stop_is_no_hang() {
    let mut site = Site::watched(true);
    let switch = site.lasthop.switch();
    for _ in 0..8 {
        site.load(100);
        let end = Instant::now() + Duration::from_millis(LIMIT_MS * 2 / 5);
        proc::signal(switch, Signal::STOP);
        while Instant::now() < end {
            site.exchange();
        }
        proc::signal(switch, Signal::CONT);
    }
    site.load(100);
    assert_eq!((site.lasthop.switch(), site.lasthop.log().contains("hangs")), (switch, false));
}

/// Four programs that spin, on the one CPU that all of lasthop has.
#[test]
fn a_switch_that_gets_no_processor_is_no_hang() {
    let mut first = rustix::thread::CpuSet::new();
    first.set(0);
    rustix::thread::sched_setaffinity(None, &first).expect("there is a CPU 0");
    let mut site = Site::watched(true);
    let switch = site.lasthop.switch();
    let mut spinning: Vec<_> = (0..4)
        .map(|_| {
            lasthop_tests_process::spawn::spawn("KILL", "timeout", |c| {
                c.args(["60", "sh", "-c", "while :; do :; done"]);
            })
        })
        .collect();
    let end = Instant::now() + Duration::from_millis(LIMIT_MS * 8);
    while Instant::now() < end {
        site.load(50);
    }
    for child in &mut spinning {
        lasthop_tests_process::spawn::end(child);
    }
    assert_eq!((site.lasthop.switch(), site.lasthop.log().contains("hangs")), (switch, false));
}

#[test]
fn control_is_stopped() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--watchdog", &LIMIT_MS.to_string()]);
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&path("a"), &path("b"), [mac(0xa), mac(0xb)]);
    bystanders.still_exchange();
    let (switch, control) = (lasthop.switch(), lasthop.control());
    lasthop.hang("lasthop-control");
    bystanders.still_exchange();
    assert!(lasthop.switch() == switch && lasthop.control() != control);
    let log = lasthop.log();
    assert!(log.lines().any(|l| l.contains("lasthop-control (pid") && l.contains("is stopped")), "{log}");
    assert_eq!(lasthop.json(&["port", "list"])["ports"].as_array().map(Vec::len), Some(2));
}

/// Only the log said so: whoever looked at `stats` saw counters that had begun anew, and no word why.
#[test]
fn stats_say_which_processes_were_replaced_and_why() {
    let mut site = Site::watched(true);
    let of = |site: &Site, process: &str| {
        let stats = site.lasthop.json(&["stats"]);
        let all = stats["switch"]["replaced"].as_array().expect("a list").clone();
        let found = all.into_iter().find(|entry| entry["process"] == process).expect("it is there in any case");
        let why = found["why"].as_str().unwrap_or_default().to_owned();
        (found["times"].as_u64().expect("a number"), found["age_ms"].as_u64(), why)
    };
    assert_eq!(of(&site, "switch"), (0, None, String::new()));
    let then = Instant::now();
    proc::signal(site.lasthop.switch(), Signal::KILL);
    site.back(then);
    let (times, age_ms, why) = of(&site, "switch");
    assert!(times == 1 && age_ms.is_some() && why.contains("signal: 9"), "{times} {why}");
    hang(&mut site, None);
    let (times, _, why) = of(&site, "switch");
    assert!(times == 2 && why.contains("hung: its thread") && why.contains("is stopped"), "{times} {why}");
    assert_eq!(of(&site, "control").0, 0);
    site.lasthop.hang("lasthop-control");
    assert_eq!(of(&site, "control").0, 1);
    assert_eq!(of(&site, "switch").0, 2, "it is the supervisor that counts");
}

/// A front-end sends files that do not close: its port is out of service, says so, and takes up no more for each time it comes. Others
/// notice nothing. The switch is killed, and cannot end: another takes its place.
#[test]
fn files_that_do_not_close_hold_up_nobody_else() {
    let Some(dead) = DeadMount::new() else {
        println!("no file system in user space can be mounted here: not tested");
        return;
    };
    let mut arena = Arena::new(false);
    let switch = arena.lasthop.switch();
    let path = arena.path();
    let send = move |file: std::os::fd::BorrowedFd<'_>| {
        let front = connect(&path);
        let kick = lasthop_vhostuser::Request::SetVringKick as u32;
        // Refused and answered, or the connection ends.
        while front.send(kick, 1, &[0; 8], &[file]).is_ok() && !hung_up(&front) {}
    };
    let again = send.clone();
    dead.with_file(again);
    wait_for("the port to be out of service", PATIENCE, || {
        dead.with_file(send.clone());
        arena.port()["last_error"].as_str().is_some_and(|e| e.contains("do not close"))
    });
    arena.bystanders.still_exchange();
    let held = |arena: &Arena| [switch, arena.lasthop.pid()].map(proc::descriptors);
    let before = held(&arena);
    dead.with_file(move |file| (0..100).for_each(|_| send(file)));
    arena.bystanders.still_exchange();
    wait_for(&format!("no more descriptors than {before:?}; now {:?}", held(&arena)), PATIENCE, || {
        held(&arena).iter().zip(before).all(|(now, before)| *now <= before + 2)
    });
    assert_eq!(arena.lasthop.switch(), switch);
    // Nobody can end a thread that closes such a file.
    let (witness, lasthop) = (&mut arena.witness, &arena.lasthop);
    proc::signal(switch, Signal::KILL);
    another(lasthop, switch);
    wait_for("front-ends to be told", PATIENCE, || witness.is_disconnected());
    assert!(lasthop.log().contains("does not end"), "{}", lasthop.log());
    drop(dead);
    wait_for("nothing of the old one to be left", PATIENCE, || {
        !std::path::Path::new(&format!("/proc/{switch}")).exists()
    });
    std::mem::forget(arena.bystanders);
}

/// Clients that never stop talking, of what control needs to ask nobody: it is busy, and goes on. The time is that of its limit for one
/// round, four seconds.
#[test]
fn clients_that_never_stop_talking_do_not_have_control_replaced() {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[Port::listen("a", dir.path())], &["--watchdog", &LIMIT_MS.to_string()]);
    let control = lasthop.control();
    let (path, end) = (lasthop.run_dir().join("api.sock"), Instant::now() + Duration::from_secs(7));
    let calls = b"{\"method\":\"org.varlink.service.GetInfo\",\"oneway\":true}\0".repeat(1000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = UnixStream::connect(&path).unwrap();
                client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
                while Instant::now() < end && client.write_all(&calls).is_ok() {}
            });
        }
    });
    assert_eq!(lasthop.control(), control, "{}", lasthop.log());
}

/// A client of the API that may only look sends a socket that lingers: control goes on, and so do other clients.
#[test]
fn sockets_that_linger_hold_up_no_other_client() {
    use std::os::fd::AsFd;
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[Port::listen("a", dir.path())], &["--read-group", "root"]);
    let control = lasthop.control();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let lingers = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
    lingers.set_nonblocking(true).expect("a socket");
    // Closing it takes as long as the other end likes.
    while std::io::Write::write(&mut &lingers, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(600))).expect("a socket");
    let client = std::os::unix::net::UnixStream::connect(lasthop.run_dir().join("read.sock")).expect("it listens");
    // Who closes it last has to wait: control does not look before that is not us.
    proc::signal(control, Signal::STOP);
    let sent = lasthop_sys::send_with_fds(&client, b"x", &[lingers.as_fd()], rustix::net::SendFlags::empty());
    drop(lingers);
    proc::signal(control, Signal::CONT);
    assert_eq!(sent, Ok(1));
    wait_for("control to have a thread that closes it", PATIENCE, || {
        proc::thread_names(control).iter().any(|name| name == "close-readers")
    });
    for _ in 0..10 {
        assert_eq!(lasthop.json(&["port", "list"])["ports"].as_array().map(Vec::len), Some(1));
    }
    wait_for("the log to say so", PATIENCE, || {
        drop(std::os::unix::net::UnixStream::connect(lasthop.run_dir().join("read.sock")));
        lasthop.log().contains("does not close")
    });
    assert_eq!(lasthop.control(), control);
    // The other end is closed: so is what lingered, and whoever may look may come in again.
    drop(listener);
    let call = b"{\"method\":\"org.lasthop.Switch.Stats\"}\0";
    wait_for("readers to be let in again", PATIENCE, || {
        let client = std::os::unix::net::UnixStream::connect(lasthop.run_dir().join("read.sock")).expect("it listens");
        client.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
        let _ = std::io::Write::write(&mut &client, call);
        std::io::Read::read(&mut &client, &mut [0; 64]).is_ok_and(|n| n > 0)
    });
}

/// A thread that does nothing but go round in a circle, in the middle of its work: its process is replaced.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_thread_that_spins() {
    let mut site = Site::new(true, &["--watchdog", &LIMIT_MS.to_string(), "--helpers", "none"]);
    site.load(500);
    let switch = site.lasthop.switch();
    let circle = a_circle(switch);
    let thread = Pid::from_raw(thread(switch, "port-p1") as i32);
    ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACESYSGOOD).expect("root may");
    ptrace::interrupt(thread).expect("it is ours");
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "it makes no system call at work");
        ptrace::syscall(thread, None).expect("it is stopped");
        // It stops where a call begins, and where it ends. Only the end will do: the filter of system calls ends a process whose call a debugger leaves out.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
        while waitpid(thread, Some(flags)).expect("it is ours") == WaitStatus::StillAlive {
            site.exchange();
            assert!(Instant::now() < end, "it is always asleep");
        }
        let mut registers = ptrace::getregs(thread).expect("it is stopped");
        let ends = registers.rax as i64 != -i64::from(nix::libc::ENOSYS);
        if ends && is_at_work(site.lasthop.pid(), thread) {
            registers.rip = circle;
            ptrace::setregs(thread, registers).expect("it is stopped");
            break;
        }
    }
    let then = Instant::now();
    ptrace::detach(thread, None).expect("it is stopped");
    println!("spins: {:?}", site.back(then));
    site.says(&["hangs: its thread port-p1 of port p1", "has been busy with one thing", "replacing it"]);
}

/// Whether a thread says that it has work, in one of the pages that the supervisor has.
#[cfg(target_arch = "x86_64")]
fn is_at_work(supervisor: u32, thread: Pid) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{supervisor}/fd")).into_iter().flatten().flatten();
    let is_page = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("lasthop-pulse"))
    };
    descriptors.map(|entry| entry.path()).filter(is_page).any(|page| {
        let words = std::fs::read(page).unwrap_or_default();
        let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        words.chunks_exact(64).any(|line| word(line) == thread.as_raw() as u32 && word(&line[8..]) % 2 == 1)
    })
}

/// Where in a program there happens to be a jump to itself.
#[cfg(target_arch = "x86_64")]
fn a_circle(process: u32) -> u64 {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("it runs");
    let memory = std::fs::File::open(format!("/proc/{process}/mem")).expect("root may");
    let code = maps.lines().filter(|line| line.contains(" r-xp ")).filter_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    });
    let circle = code.into_iter().find_map(|(from, to)| {
        let mut bytes = vec![0; (to - from) as usize];
        memory.read_exact_at(&mut bytes, from).ok()?;
        Some(from + bytes.windows(2).position(|two| two == [0xeb, 0xfe])? as u64)
    });
    circle.expect("two bytes among millions")
}

/// S6: a front-end punches a hole into its memory, as slowly as it likes: whoever touches that memory waits in the kernel. The process is
/// replaced, and as the kernel will not end it either, it is gone on without.
#[test]
fn memory_that_is_taken_away_slowly() {
    let dir = scratch();
    let ports = ["x", "a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--watchdog", &LIMIT_MS.to_string()]);
    let switch = lasthop.switch();
    let options = Options::net(|n| n.rx_buffer = (512 << 20) / u32::from(n.size));
    let guest = lasthop_tests_process::Guest::connect(&dir.path().join("x.sock"), mac(0x66), options);
    let (region, file) = guest.net.region();
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, region.size).expect("there is room");
    // Others work on the CPU that the hole is punched on, in the idle class.
    let mut spinning: Vec<_> = (0..2)
        .map(|_| {
            lasthop_tests_process::spawn::spawn("KILL", "timeout", |c| {
                c.args(["60", "taskset", "-c", "0", "sh", "-c", "while :; do :; done"]);
            })
        })
        .collect();
    let mut first = rustix::thread::CpuSet::new();
    first.set(0);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::sched_setaffinity(None, &first).expect("there is a CPU 0");
            lasthop_sys::set_idle(rustix::thread::gettid().as_raw_nonzero().get(), true).expect("anybody may");
            tell.send(()).expect("it is waited for");
            let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, hole, 0, region.size).expect("a hole");
        });
        told.recv().expect("a thread");
        let end = Instant::now() + PATIENCE;
        while !lasthop.log().contains("waits in the kernel") && Instant::now() < end {
            guest.net.queues()[1].kick.signal();
            std::thread::sleep(Duration::from_millis(1));
        }
        // The hole is not to take longer than the test needs it.
        for child in &mut spinning {
            lasthop_tests_process::spawn::end(child);
        }
    });
    assert!(lasthop.log().contains("waits in the kernel"), "{}", lasthop.log());
    another(&lasthop, switch);
    let bystanders = Bystanders::start(&dir.path().join("a.sock"), &dir.path().join("b.sock"), [mac(0xa), mac(0xb)]);
    bystanders.still_exchange();
}

fn hung_up(front: &lasthop_vhostuser::Frontend) -> bool {
    let (epoll, mut ready) = (lasthop_sys::Epoll::new().expect("epoll"), Vec::new());
    epoll.add(front, 0, Trigger::Edge).expect("a socket");
    let _ = epoll.wait(&mut ready, Some(Duration::from_millis(1)));
    let mut bytes = [0; 64];
    !ready.is_empty()
        && rustix::net::recv(front, &mut bytes, rustix::net::RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n == 0)
}

/// Not a test but a measurement: `cargo test -p lasthop-tests-process --test watchdog -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn time_to_return() {
    for limit in [400, 1000] {
        for (client, name) in [(true, None), (true, Some("port-p1")), (false, None)] {
            let mut site = Site::new(client, &["--watchdog", &limit.to_string()]);
            let mut times: Vec<_> = (0..10).map(|_| (hang(&mut site, name), site.found)).collect();
            times.sort();
            let times: Vec<_> = times.iter().map(|(all, found)| (all.as_millis(), found.as_millis())).collect();
            println!("limit {limit}, client {client}, {}: back, found: {times:?}", name.unwrap_or("all"));
        }
    }
}
