//! Ports whose guests have nothing to say: no thread in any process, and nothing lost when they wake up.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, proc, release, scratch, wait_for,
};
use lasthop_text::MacAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Threads of ports in the switch, those that close what front-ends sent among them.
fn threads(lasthop: &Lasthop) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", lasthop.switch())).into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| ["port-", "close-"].iter().any(|kind| name.starts_with(kind))).count()
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
    let (lasthop, mut a, mut b, _dir) = site(&["--thread-idle", "50"]);
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

/// What its threads have used of the processor goes on from where the last one was, though nobody has looked while that was there.
#[test]
fn the_time_of_a_port_does_not_begin_anew_with_its_thread() {
    let (lasthop, mut a, mut b, dir) = site(&["--thread-idle", "50"]);
    let mut last = 0;
    for round in 1..=3 {
        exchange(&mut a, &mut b, round * 1000);
        wait_for_rest(&lasthop);
        // The supervisor hears of a thread's end a moment later than it is seen here.
        wait_for("the time of a thread that has ended", PATIENCE, || used(&lasthop) > last);
        last = used(&lasthop);
    }
    // With another program it goes on as well.
    let programs = release(dir.path(), "release").display().to_string();
    lasthop.command(&["upgrade", "--only", "run", "--programs", &programs]);
    assert!(used(&lasthop) >= last, "{} after {last}", used(&lasthop));
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
    let lasthop = Lasthop::start(&[]);
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
