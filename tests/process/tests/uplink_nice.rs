//! Uplinks' processes are scheduled by their `nice`: what is told of one goes out before the rest where a processor has too much to send.

use lasthop_sys::CpuList;
use lasthop_tests_process::{Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, mac, numbered, proc, scratch};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::time::{Duration, Instant};

/// What the kernel does with each frame before it is sent: so many filters that do not match. An uplink is then slower than what feeds it.
const FILTERS: usize = 800;
/// As the kernel weighs nice 0 and nice 5: 1024 and 335.
const FAIR: f64 = 1024.0 / 335.0;

/// Two interfaces, with their ends outside; whatever goes out takes long.
fn slow_interfaces() -> Netns {
    let netns = Netns::new();
    for (near, far) in [("v0", "v1"), ("v2", "v3")] {
        netns.ip(&format!("link add {near} type veth peer name {far}"));
        netns.ip(&format!("link set {near} up"));
        netns.ip(&format!("link set {far} up"));
        let filter = format!("filter add dev {near} egress protocol all u32 match u32 1 0xffffffff at 0\\n");
        netns.shell(&format!("tc qdisc add dev {near} clsact; printf '{}' | tc -b -", filter.repeat(FILTERS)));
    }
    netns
}

/// All threads of the process run there.
fn bind(process: u32, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten() {
        let number = thread.file_name().to_string_lossy().parse().expect("a number");
        sched_setaffinity(Pid::from_raw(number), &set).expect("root may");
    }
}

/// Two guests flood, each by an uplink of its own; both uplinks' processes want the same processor.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn what_goes_out_by_an_uplink_has_its_process_s_part_of_a_processor() {
    let cpus: Vec<usize> = CpuList::allowed().expect("CPUs").iter().collect();
    let [other, shared, ..] = cpus[..] else {
        println!("one CPU alone: not tested");
        return;
    };
    let netns = slow_interfaces();
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let uplinks = ["--uplink", "first=v0,af_packet,queues=1", "--uplink", "rest=v2,af_packet,queues=1,nice=5"];
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &[&uplinks[..], &["--helpers", "none"]].concat());
    let mut guests = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default()));
    // Where both are outside lasthop learns from what they say.
    let outside = ["v1", "v3"].map(|name| Station::on(&netns, name));
    for (n, (guest, station)) in (0..).zip(guests.iter_mut().zip(&outside)) {
        lasthop.wait_for_state(["first", "rest"][n as usize], "up");
        station.send(&numbered(mac(n + 11), guest.mac, 1, 60));
        guest.expect_number(1);
    }
    let processes = lasthop.json(&["uplink", "list"])["uplinks"].as_array().expect("both").clone();
    let of = |name: &str| processes.iter().find(|uplink| uplink["name"] == name).and_then(|u| u["pid"].as_u64());
    let pids = ["first", "rest"].map(|name| of(name).expect("it runs") as u32);
    pids.iter().for_each(|pid| bind(*pid, shared));
    bind(lasthop.switch(), other);
    let frames = [0, 1].map(|n: u8| numbered(guests[n as usize].mac, mac(n + 11), 2, 60));
    let sent = |name: &str| lasthop.port(name)["to_guest"]["packets"].as_u64().expect("a number");
    let end = Instant::now() + 4 * PATIENCE;
    loop {
        let seen = || (["first", "rest"].map(sent), pids.map(proc::cpu_ns), Instant::now());
        let (packets, times, since) = seen();
        while since.elapsed() < Duration::from_secs(2) {
            for (guest, frame) in guests.iter_mut().zip(&frames) {
                guest.fill(frame);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let (packets_then, times_then, then) = seen();
        let [first, rest] = [0, 1].map(|n| (packets_then[n] - packets[n]) as f64);
        let [of_first, of_rest] =
            [0, 1].map(|n| (times_then[n] - times[n]) as f64 / then.duration_since(since).as_nanos() as f64);
        println!("packets {first} and {rest}, of the processor {of_first:.2} and {of_rest:.2}");
        // Only then do they want more than there is.
        let is_full = of_first + of_rest > 0.8;
        if is_full && (FAIR * 0.75..FAIR * 1.33).contains(&(first / rest)) {
            break;
        }
        assert!(
            Instant::now() < end,
            "{first} and {rest} packets, not {FAIR} times as many; of the processor {of_first:.2} and {of_rest:.2}"
        );
    }
    lasthop.check_sums();
}
