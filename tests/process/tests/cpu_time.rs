//! Where processor time goes: what lasthop says, beside what the kernel says.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, numbered, proc, scratch, wait_for};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use serde_json::Value;
use std::time::Duration;

/// What the kernel says.
#[derive(Debug)]
struct Kernel {
    /// Every thread of the switch that lives, by name.
    threads: Vec<(String, u64)>,
    /// All processes, with threads that have ended. `None` if one of them has ended since it was listed.
    total: Option<u64>,
    pids: Vec<u32>,
}

impl Kernel {
    fn of(lasthop: &Lasthop) -> Self {
        let switch = lasthop.switch();
        let tasks = std::fs::read_dir(format!("/proc/{switch}/task")).expect("the switch runs").flatten();
        let thread = |task: std::fs::DirEntry| {
            let number: u32 = task.file_name().to_str()?.parse().ok()?;
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            let name = if number == switch { "main" } else { name.trim_end() }.to_owned();
            Some((name, proc::thread_ns(switch, number)))
        };
        let pids = lasthop.pids();
        let total = pids.iter().map(|pid| process_ns(*pid)).sum();
        Self { threads: tasks.filter_map(thread).collect(), total, pids }
    }

    fn of_threads(&self, name: &str) -> u64 {
        self.threads.iter().filter(|(n, _)| n.starts_with(name)).map(|(_, ns)| ns).sum()
    }
}

/// What a process has used; none of one that has ended since it was seen, as what starts another in a sandbox does.
fn process_ns(pid: u32) -> Option<u64> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32)).ok()?;
    Some(Duration::from(clock.now().ok()?).as_nanos() as u64)
}

fn ns(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no time"))
}

/// Time only goes forward, so what is read between two looks lies between them, however long that takes.
#[track_caller]
fn between(before: u64, told: u64, after: u64) {
    assert!((before..=after).contains(&told), "{told} is not from {before} to {after}");
}

fn check(lasthop: &Lasthop) -> Value {
    // What starts a process in its sandbox ends a moment later, and its time with it.
    let [mut before, mut after] = [(); 2].map(|()| Kernel::of(lasthop));
    let mut stats = Value::Null;
    wait_for("the same processes before and after", PATIENCE, || {
        before = Kernel::of(lasthop);
        stats = lasthop.json(&["stats"]);
        after = Kernel::of(lasthop);
        before.pids == after.pids && before.total.is_some() && after.total.is_some()
    });
    let cpu = &stats["switch"]["cpu"];
    let parts = ["ports", "helpers", "main", "other", "control", "uplinks", "sessions", "supervisor"];
    assert_eq!(parts.iter().map(|part| ns(&cpu[format!("{part}_ns")])).sum::<u64>(), ns(&cpu["total_ns"]), "{cpu}");
    between(before.total.unwrap_or(0), ns(&cpu["total_ns"]), after.total.unwrap_or(0));
    for (part, name) in [("ports_ns", "port-"), ("helpers_ns", "helper-"), ("main_ns", "main")] {
        between(before.of_threads(name), ns(&cpu[part]), after.of_threads(name));
    }
    for port in stats["ports"].as_array().expect("ports").iter().filter(|port| !port["cpu_ns"].is_null()) {
        let name = format!("port-{}", port["name"].as_str().expect("a name"));
        between(before.of_threads(&name), ns(&port["cpu_ns"]), after.of_threads(&name));
    }
    stats
}

fn send(a: &mut Guest, b: &mut Guest, numbers: std::ops::Range<u32>) {
    let last = numbers.end - 1;
    for number in numbers {
        a.send_as(VnetHdr::default(), &numbered(a.mac, b.mac, number, 1000));
        while b.try_recv().is_some() {}
    }
    b.send(&numbered(b.mac, a.mac, last, 60));
    a.expect_number(last);
}

#[test]
fn the_parts_add_up_to_what_the_processes_have_used() {
    for arguments in [&["--helpers", "none"][..], &[]] {
        let dir = scratch();
        let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
        // Threads that have ended are not among the kernel's, and their time is (`idle_ports.rs`).
        let lasthop = Lasthop::start_with(&ports, &[arguments, &["--thread-idle", "0"]].concat());
        assert!(lasthop.port("a")["cpu_ns"].is_null(), "nobody has a thread before somebody has come");
        let guest = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default());
        let [mut a, mut b, mut c] = [guest(0), guest(1), guest(2)];
        a.greet(&mut b, 1);
        a.greet(&mut c, 2);
        check(&lasthop);
        send(&mut a, &mut b, 10..20_010);
        let stats = check(&lasthop);
        let of = |name: &str| {
            let ports = stats["ports"].as_array().expect("ports");
            ns(&ports.iter().find(|p| p["name"] == name).expect("the port")["cpu_ns"])
        };
        let helped = ns(&stats["switch"]["cpu"]["helpers_ns"]);
        if arguments.is_empty() {
            assert!(of("a") + helped > of("c"), "{stats}");
        } else {
            assert!(of("a") > of("c") && helped == 0, "{stats}");
        }

        // What a port used that is gone, its process has used all the same.
        let (gone, other) = (of("c"), ns(&stats["switch"]["cpu"]["other_ns"]));
        let processes = lasthop.pids().len();
        lasthop.command(&["port", "del", "c"]);
        // The kernel counts the process of the port's session until it has ended, lasthop until it was told to.
        let ended = || Kernel::of(&lasthop).of_threads("port-c") == 0 && lasthop.pids().len() < processes;
        wait_for("the port's thread and its session's process to end", PATIENCE, ended);
        let stats = check(&lasthop);
        let now = ns(&stats["switch"]["cpu"]["other_ns"]);
        assert!(now >= gone, "{now} after {other}, without {gone}");

        // Another switch process starts at nothing.
        lasthop.kill("lasthop-switch");
        wait_for("the new switch to be there", PATIENCE, || lasthop.port("a")["state"] == "waiting");
        let stats = check(&lasthop);
        assert!(stats["ports"][0]["cpu_ns"].is_null() && ns(&stats["switch"]["cpu"]["ports_ns"]) == 0, "{stats}");
        let again = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default());
        let [mut a, mut b] = [again(0), again(1)];
        a.greet_when_back(&mut b, 30_000);
        assert!(ns(&check(&lasthop)["ports"][0]["cpu_ns"]) > 0);
    }
}

/// Pollers have all the work, and ports no threads. Helpers are there, and sleep.
#[test]
fn pollers_count_as_helpers() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--poll", "0"]);
    let [mut a, mut b] = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default()));
    a.greet(&mut b, 1);
    send(&mut a, &mut b, 10..1010);
    let (before, stats, after) = (Kernel::of(&lasthop), lasthop.json(&["stats"]), Kernel::of(&lasthop));
    let cpu = &stats["switch"]["cpu"];
    let of_engines = |at: &Kernel| at.of_threads("poll-") + at.of_threads("helper-");
    between(of_engines(&before), ns(&cpu["helpers_ns"]), of_engines(&after));
    assert!(ns(&cpu["helpers_ns"]) > 0 && ns(&cpu["ports_ns"]) == 0 && stats["ports"][0]["cpu_ns"].is_null(), "{cpu}");
}

/// An uplink's port has a thread like any other; its processes are told apart, the one that stands by among them.
#[test]
fn the_processes_of_uplinks_count() {
    let netns = Netns::new();
    let lasthop = Lasthop::start_in(Some(&netns), &[], &["--uplink", "net=lasthop0,tap,spare"]);
    lasthop.wait_for_state("net", "up");
    let spare = || lasthop.json(&["uplink", "list"])["uplinks"][0]["spare"].take();
    wait_for("a second process", PATIENCE, || spare() == "ready");
    let uplinks = || {
        let children = proc::children(lasthop.pid()).into_iter().filter(|(_, name)| name == "lasthop-uplink");
        let used: Vec<u64> = children.map(|(pid, _)| process_ns(pid).expect("a process")).collect();
        assert_eq!(used.len(), 2);
        used.iter().sum::<u64>()
    };
    wait_for("word of the port's thread", PATIENCE, || lasthop.port("net")["cpu_ns"].as_u64() > Some(0));
    let before = uplinks();
    let stats = check(&lasthop);
    between(before, ns(&stats["switch"]["cpu"]["uplinks_ns"]), uplinks());
    assert!(ns(&stats["ports"][0]["cpu_ns"]) > 0, "{stats}");
}

/// Two guests send to three, one of which gets packets of both.
#[test]
fn what_is_copied_to_a_guest_counts_there_whoever_sends() {
    const NAMES: [&str; 5] = ["a", "b", "x", "y", "z"];
    let dir = scratch();
    let ports = NAMES.map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--helpers", "none"]);
    let guest = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default());
    let [mut a, mut b, mut x, mut y, mut z] = [0, 1, 2, 3, 4].map(guest);
    NAMES.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    // What was written to each port, what its packets took, and how many of these met no flow.
    let figures = || {
        let list = lasthop.json(&["port", "list"]);
        NAMES.map(|name| {
            let port = list["ports"].as_array().expect("ports").iter().find(|p| p["name"] == name).expect("the port");
            assert_eq!(port["copied_ns"], port["to_guest"]["busy_ns"]);
            [&port["copied_ns"], &port["from_guest"]["busy_ns"], &port["from_guest"]["missed"]].map(ns)
        })
    };
    let mut number = 10;
    let mut exchange = |from: &mut Guest, [one, other]: [&mut Guest; 2], frames: u32| {
        for _ in 0..frames {
            for to in [&mut *one, &mut *other] {
                from.send(&numbered(from.mac, to.mac, number, 1400));
                to.expect_number(number);
                number += 1;
            }
        }
    };
    a.greet(&mut x, 1);
    a.greet(&mut y, 2);
    b.greet(&mut y, 3);
    b.greet(&mut z, 4);
    exchange(&mut a, [&mut x, &mut y], 2);
    exchange(&mut b, [&mut y, &mut z], 2);
    for (sender, receivers) in [(0, [2, 3]), (1, [3, 4])] {
        let before = figures();
        if sender == 0 {
            exchange(&mut a, [&mut x, &mut y], 1000);
        } else {
            exchange(&mut b, [&mut y, &mut z], 1000);
        }
        // A burst's time is counted a moment after it has arrived, and the copies in it before.
        wait_for("what was copied to be a part of what the packets took", PATIENCE, || {
            let after = figures();
            let since = |port: usize, what: usize| after[port][what] - before[port][what];
            assert_eq!([0, 1, 2, 3, 4].map(|port| since(port, 2)), [0; 5], "all met a flow");
            let copied = [0, 1, 2, 3, 4].map(|port| since(port, 0));
            assert!((0..5).all(|port| (copied[port] > 0) == receivers.contains(&port)), "{copied:?}");
            copied.iter().sum::<u64>() < since(sender, 1)
        });
    }
    let ms = |port: usize| figures()[port][0] / 1_000_000;
    let shown = lasthop.command(&["show", "y"]);
    assert!(shown.contains(&format!("busy with its packets; {} ms to copy others' to it", ms(3))), "{shown}");
    let stats = lasthop.command(&["stats", "--verbose"]);
    let column = |name: &str| stats.lines().find(|line| line.starts_with(name)).expect("a line").split_whitespace();
    // The last but one: numbers' headings are of one word or two.
    assert_eq!(column("y ").rev().nth(1).and_then(|cell| cell.parse().ok()), Some(ms(3)), "{stats}");
    assert!(stats.contains("BUSY MS  COPIED MS  CPU MS"), "{stats}");
    let metrics = lasthop.command(&["metrics"]);
    let seconds = metrics.lines().find_map(|line| line.strip_prefix("lasthop_port_copied_seconds_total{port=\"y\"} "));
    assert_eq!(seconds.and_then(|seconds| seconds.parse().ok()), Some(figures()[3][0] as f64 / 1e9), "{metrics}");
}
