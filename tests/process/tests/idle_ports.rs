//! Ports whose guests have nothing to say: no thread of theirs in the switch, and nothing lost when they wake up.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, proc, release, scratch, wait_for,
};
use lasthop_text::MacAddr;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Threads of the switch whose names begin so.
fn named(lasthop: &Lasthop, kind: &str) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", lasthop.switch())).into_iter().flatten().flatten();
    let name = |task: &PathBuf| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    tasks.map(|task| task.path()).filter(|task| name(task).starts_with(kind)).collect()
}

/// Whether the process has a thread that closes what a front-end sent.
fn closes(pid: u32) -> bool {
    proc::thread_names(pid).iter().any(|name| name.starts_with("close-"))
}

fn threads(lasthop: &Lasthop) -> usize {
    named(lasthop, "port-").len()
}

/// What the threads of a have used.
fn used(lasthop: &Lasthop) -> u64 {
    lasthop.port("a")["cpu_ns"].as_u64().unwrap_or(0)
}

fn wait_for_rest(lasthop: &Lasthop) {
    wait_for("the threads of silent ports to end", PATIENCE, || threads(lasthop) == 0);
}

fn site(arguments: &[&str]) -> (Lasthop, Guest, Guest, tempfile::TempDir) {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&["a", "b"].map(|name| Port::listen(name, dir.path())), arguments);
    let guest = |name: &str, n| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default());
    let (a, b) = (guest("a", 1), guest("b", 2));
    (lasthop, a, b, dir)
}

/// Each number once, in order, each way.
fn exchange(a: &mut Guest, b: &mut Guest, first: u32) {
    for number in first..first + 40 {
        one_way(a, b, number);
        one_way(b, a, number);
    }
}

fn one_way(from: &mut Guest, to: &mut Guest, number: u32) {
    from.send(&numbered(from.mac, to.mac, number, 200));
    let (_, frame) = to.recv("the next frame", |_, frame| number_of(frame).is_some());
    assert_eq!(number_of(&frame), Some(number));
}

#[test]
fn threads_of_silent_ports_end_and_begin_and_no_packet_is_lost_or_late() {
    let (lasthop, mut a, mut b, _dir) = site(&["--thread-idle", "100"]);
    a.greet(&mut b, 1);
    let mut last = 0;
    for round in 1..=8 {
        wait_for_rest(&lasthop);
        wait_for("the time of a thread that has ended", PATIENCE, || used(&lasthop) > last);
        last = used(&lasthop);
        exchange(&mut a, &mut b, round * 1000);
    }
    // The same over to another switch, while they sleep and while they do not.
    for round in 9..=12 {
        if round % 2 == 0 {
            wait_for_rest(&lasthop);
        }
        let before = lasthop.switch();
        lasthop.command(&["upgrade", "--only", "switch", "--all"]);
        assert_ne!(lasthop.switch(), before);
        exchange(&mut a, &mut b, round * 1000);
    }
    wait_for_rest(&lasthop);
    let port = lasthop.port("a");
    let (sent, lost) = (port["from_guest"]["packets"].as_u64(), &port["from_guest"]["drops"]);
    assert!(sent.is_some_and(|sent| sent > 0) && lost.as_array().is_none_or(Vec::is_empty), "{port}");
    lasthop.check_sums();
}

/// All ports were looked at, so each got a thread.
#[test]
fn the_end_of_control_wakes_no_port_that_does_not_wait_for_it() {
    let (lasthop, mut a, mut b, _dir) = site(&["--thread-idle", "2000"]);
    a.greet(&mut b, 1);
    wait_for_rest(&lasthop);
    lasthop.kill("lasthop-control");
    // Another one knows of it from the switch, which has lost the first before. A thread that had begun would be there for 2 s.
    assert_eq!(lasthop.port("a")["state"], "up");
    for _ in 0..20 {
        assert_eq!(threads(&lasthop), 0);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What its threads have used of the processor goes on from where the last one was, though nobody has looked while that was there; and whoever looks, it never falls.
#[test]
fn the_time_of_a_port_does_not_begin_anew_with_its_thread() {
    let (lasthop, mut a, mut b, dir) = site(&["--thread-idle", "100"]);
    let mut last = 0;
    for round in 1..=3 {
        exchange(&mut a, &mut b, round * 1000);
        wait_for_rest(&lasthop);
        // The supervisor hears of a thread's end a moment later than it is seen here.
        wait_for("the time of a thread that has ended", PATIENCE, || used(&lasthop) > last);
        last = used(&lasthop);
    }
    for round in 4..=6 {
        exchange(&mut a, &mut b, round * 1000);
        let mut looks = 0;
        while looks < 5 || threads(&lasthop) > 0 {
            let now = used(&lasthop);
            assert!(now >= last, "{now} after {last}");
            (last, looks) = (now, looks + 1);
        }
    }
    // With another program it goes on as well.
    let programs = release(dir.path(), "release").display().to_string();
    lasthop.command(&["upgrade", "--only", "run", "--programs", &programs]);
    assert!(used(&lasthop) >= last, "{} after {last}", used(&lasthop));
}

/// How the kernel lets a thread run: its class and priority, and its CPUs.
fn runs_as(thread: &Path) -> Option<(Vec<String>, String)> {
    let stat = std::fs::read_to_string(thread.join("stat")).ok()?;
    let fields: Vec<_> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().map(str::to_owned).collect();
    let status = std::fs::read_to_string(thread.join("status")).ok()?;
    let cpus = status.lines().find(|line| line.starts_with("Cpus_allowed_list"))?;
    Some((fields[15..17].iter().chain(&fields[37..39]).cloned().collect(), cpus.to_owned()))
}

/// Whoever delivers, a helper in the idle class or a core that polls: a thread that begins is like the main thread.
#[test]
fn a_thread_that_begins_has_the_class_and_the_cpus_of_the_main_thread() {
    for options in
        [&["--thread-idle", "500", "--near", "off"][..], &["--thread-idle", "500", "--near", "off", "--poll", "0"]]
    {
        let (lasthop, mut a, mut b, _dir) = site(options);
        lasthop.command(&["port", "set", "a", "--engine", "ports"]);
        a.greet_when_back(&mut b, 1);
        let main = PathBuf::from(format!("/proc/{0}/task/{0}", lasthop.switch()));
        let main = runs_as(&main).expect("the main thread");
        let mut seen = BTreeSet::new();
        for round in 1..=5 {
            wait_for("the thread of a to end", PATIENCE, || named(&lasthop, "port-a").is_empty());
            // What is for a is delivered by others.
            for number in 0..300 {
                b.send(&numbered(b.mac, a.mac, round * 1000 + number, 60));
                a.expect_number(round * 1000 + number);
            }
            a.send(&numbered(a.mac, b.mac, round, 60));
            b.expect_number(round);
            let thread = named(&lasthop, "port-a").pop().expect("a has sent something");
            assert_eq!(runs_as(&thread), Some(main.clone()), "{options:?}");
            seen.insert(thread);
        }
        assert!(seen.len() > 1, "{seen:?}");
    }
}

/// A control group that bounds how many threads some processes may have.
struct Bound(PathBuf);

impl Bound {
    /// `None`: there are none here that can.
    fn of(processes: &[u32]) -> Option<Self> {
        let name = format!("lasthop-test-{}", processes[0]);
        let groups = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|mount| Path::new(mount).join(&name));
        let makes = |group: &PathBuf| {
            let made = std::fs::create_dir(group).is_ok();
            made && (group.join("pids.max").exists() || std::fs::remove_dir(group).is_err())
        };
        let bound = Self(groups.into_iter().find(makes)?);
        processes.iter().for_each(|process| bound.write("cgroup.procs", &process.to_string()));
        Some(bound)
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).expect("root may");
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let all = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        let above = self.0.with_file_name("cgroup.procs");
        all.lines().for_each(|process| drop(std::fs::write(&above, process)));
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// What its guest sends waits, the port says why, and as soon as there may be a thread there is one.
#[test]
fn a_thread_that_cannot_be_started_is_tried_again_and_its_port_says_so() {
    let (lasthop, mut a, mut b, _dir) = site(&["--thread-idle", "100"]);
    a.greet(&mut b, 1);
    wait_for_rest(&lasthop);
    let Some(bound) = Bound::of(&[lasthop.switch()]) else {
        return println!("no control groups that bound threads here: not tested");
    };
    bound.write("pids.max", "0");
    let frames: Vec<_> = (10..30).map(|number| numbered(a.mac, b.mac, number, 100)).collect();
    frames.iter().for_each(|frame| assert!(a.try_send(VnetHdr::default(), frame)));
    let note = |name: &str| lasthop.port(name)["note"].as_str().unwrap_or_default().to_owned();
    wait_for("a note at the port", PATIENCE, || note("a").contains("no thread can be started"));
    assert!(note("a").contains("pids.max") && note("b").is_empty(), "{}", note("a"));
    let lines = || lasthop.log().matches("port a: no thread can be started").count();
    wait_for("a line in the log", PATIENCE, || lines() == 1);
    // Packets of others go on, and to it as well.
    assert_eq!((threads(&lasthop), lasthop.port("a")["from_guest"]["packets"].as_u64()), (0, Some(1)));
    // One that is tried in vain keeps no other from being tried.
    assert!(b.try_send(VnetHdr::default(), &numbered(b.mac, a.mac, 30, 100)));
    wait_for("a note at the other port", PATIENCE, || note("b").contains("no thread can be started"));
    bound.write("pids.max", "max");
    for number in 10..30 {
        b.expect_number(number);
    }
    a.expect_number(30);
    wait_for("nothing to be said any more", PATIENCE, || note("a").is_empty() && note("b").is_empty());
    assert_eq!(lines(), 1, "{}", lasthop.log());
    a.greet(&mut b, 40);
    lasthop.check_sums();
}

/// Its memory among it, which may be all that there is of huge pages: nothing more need come for that port. The switch has it mapped, and a's session process has its file.
#[test]
fn what_a_guest_leaves_behind_is_let_go_of_as_soon_as_a_thread_can_be_had() {
    let (lasthop, mut a, mut b, dir) = site(&["--thread-idle", "100"]);
    a.greet(&mut b, 1);
    wait_for_rest(&lasthop);
    let line = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_of_a = |pid: &u32| proc::name(*pid) == "lasthop-session" && line(*pid).contains("--port\0a\0");
    let session = lasthop.pids().into_iter().find(is_of_a).expect("it has one");
    let processes = [lasthop.switch(), session];
    let closing = || processes.into_iter().any(closes);
    wait_for("threads that close to end", PATIENCE, || !closing());
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", lasthop.switch())).expect("root may");
    let files = || std::fs::read_dir(format!("/proc/{session}/fd")).expect("root may").flatten();
    let is_memory = |link: PathBuf| link.to_str().is_some_and(|link| link.contains("memfd:"));
    let has = || {
        let held = files().filter_map(|fd| std::fs::read_link(fd.path()).ok()).filter(|link| is_memory(link.clone()));
        [maps().matches("memfd:").count(), held.count()]
    };
    let Some(bound) = Bound::of(&processes) else {
        return println!("no control groups that bound threads here: not tested");
    };
    bound.write("pids.max", "0");
    let before = has();
    drop(a);
    wait_for("its port to be down", PATIENCE, || lasthop.port("a")["state"] != "up");
    // The session process tries again meanwhile, in vain.
    for _ in 0..60 {
        assert!((has(), closing()) == (before, false), "{:?} of {before:?}", has());
        std::thread::sleep(Duration::from_millis(20));
    }
    bound.write("pids.max", "max");
    wait_for("its memory to be let go of", PATIENCE, || has().iter().zip(before).all(|(now, before)| *now < before));
    wait_for("threads that close to end", PATIENCE, || !closing());
    let mut a = Guest::connect(&dir.path().join("a.sock"), mac(1), Options::default());
    a.greet_when_back(&mut b, 2);
}

/// Ports, but where somebody wants to see what more cost.
const MANY: usize = 200;
const MORE: &str = "LASTHOP_TEST_PORTS";

/// Private memory of all processes of this lasthop, in KiB.
fn memory(lasthop: &Lasthop) -> u64 {
    lasthop.pids().into_iter().map(proc::private_kib).sum()
}

fn add(lasthop: &Lasthop, dir: &Path, n: usize) -> Duration {
    let path = dir.join(format!("m{n}.sock"));
    let begun = Instant::now();
    lasthop.command(&["port", "add", &format!("m{n}"), path.to_str().expect("a path")]);
    begun.elapsed()
}

/// Prints what each costs. What is asserted is that none of them has a thread in the switch, and that they work.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn many_connected_ports_without_a_thread_of_their_own() {
    let many = std::env::var(MORE).map_or(MANY, |more| more.parse().expect("a number"));
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[], &["--thread-idle", "1000"]);
    let empty = memory(&lasthop);
    let mut took = Vec::new();
    for n in 0..many {
        took.push(add(&lasthop, dir.path(), n));
    }
    for (from, to) in [(0, 10), (95, 105), (many - 10, many)] {
        let mut some = took[from..to].to_vec();
        some.sort_unstable();
        println!("ports {from} to {to}: {:?} each to add (median)", some[some.len() / 2]);
    }
    let alone = memory(&lasthop);
    println!("{} KiB a port while nobody is connected", (alone - empty) as f64 / many as f64);
    let small = Options::net(|net| (net.size, net.rx_buffer, net.tx_buffer) = (64, 512, 512));
    let mac = |n: usize| MacAddr([2, 0, 0, 1, (n >> 8) as u8, n as u8]);
    let connect = |n: usize| Guest::connect(&dir.path().join(format!("m{n}.sock")), mac(n), small);
    let mut guests: Vec<_> = (0..many).map(connect).collect();
    wait_for_rest(&lasthop);
    wait_for("threads that close to end", PATIENCE, || !lasthop.pids().into_iter().any(closes));
    let connected = memory(&lasthop);
    println!("{} KiB a connected port without a thread", (connected - empty) as f64 / many as f64);
    let pids: Vec<_> = lasthop.pids().into_iter().map(|pid| (pid, proc::name(pid))).collect();
    for name in ["lasthop", "lasthop-switch", "lasthop-control", "lasthop-session"] {
        let of: Vec<_> = pids.iter().filter(|(_, of)| of == name).map(|(pid, _)| *pid).collect();
        let (kib, threads) = (of.iter().map(|pid| proc::private_kib(*pid)), of.iter().map(|pid| proc::threads(*pid)));
        println!("{name}: {} processes, {} KiB, {} threads", of.len(), kib.sum::<u64>(), threads.sum::<usize>());
    }
    let (first, rest) = guests.split_at_mut(1);
    for (n, other) in rest.iter_mut().enumerate().step_by(100) {
        first[0].greet_when_back(other, 10 * n as u32 + 10);
    }
    assert!(threads(&lasthop) < 100, "only who has something to send has one");
    assert!(first[0].try_send(VnetHdr::default(), &numbered(first[0].mac, rest[0].mac, 7, 100)));
    wait_for_rest(&lasthop);
}
