//! Ports' threads near their VMs (`lasthop run --near`): lasthop runs in a VM that has two NUMA nodes of two processors each, as its kernel knows them. The VMs there
//! are played, by one process.

use lasthop_harness::{Vm, VmConfig, binary};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// All is emulated, perhaps on a host that has much else to do; and a thread that finds its VM's CPUs busy may run anywhere for 30 s, and for a minute the next time.
const PATIENCE: Duration = Duration::from_secs(600);
const PROGRAMS: [&str; 5] = ["lasthop", "lasthop-switch", "lasthop-control", "lasthop-session", "lasthop-loadgen"];
/// Where the threads of ports may run, as the kernel has it.
const ALLOWED: &str = "for t in /proc/$(pidof lasthop-switch)/task/*; do read -r name <$t/comm; case $name in port-*) sed -n 's/^Cpus_allowed_list:.//p' $t/status; esac; done";

/// A VM that is a host of two nodes.
struct Host(Vm);

impl Host {
    fn boot() -> Self {
        let programs = PROGRAMS.map(binary).into_iter().chain([PathBuf::from("/usr/bin/taskset")]);
        let host = Self(Vm::boot(VmConfig::new("host", []).memory_mib(1024).cpus(4).nodes(2).programs(programs)));
        let nodes = host.0.run("cat /sys/devices/system/node/node*/cpulist; mkdir -p /var/run /run");
        assert_eq!(nodes, "0-1\n2-3\n");
        host
    }

    /// Waits until it is so, while nothing has ended.
    fn wait<T>(&self, what: &str, done: impl Fn() -> Result<T, String>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let why = match done() {
                Ok(found) => return found,
                Err(why) => why,
            };
            let ended = self.0.output("cat /tmp/ended /tmp/load", 60);
            assert!(ended.code != 0 && Instant::now() < end, "{what}: {why}\n{}\n{}", ended.stdout, self.log());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn background(&self, command: &str, out: &str) {
        self.0.background(&format!("{command} >/tmp/{out} 2>>/tmp/log; echo {out} $? >/tmp/ended"));
    }

    /// Waits until the threads of both ports may run there and nowhere else. The command line is slow here, and not asked for that.
    fn are_on(&self, cpus: &str) {
        self.wait(&format!("threads do not come to CPUs {cpus}"), || {
            let out = self.0.output(ALLOWED, 60);
            let allowed: Vec<_> = out.stdout.split_whitespace().collect();
            (allowed == [cpus, cpus]).then_some(()).ok_or_else(|| format!("{out:?}"))
        });
    }

    fn asked(&self, command: &str) -> Value {
        let out = self.0.output(&format!("lasthop {command} --json"), PATIENCE.as_secs());
        serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}\n{}", self.log()))
    }

    /// Waits until both threads are there, it is shown, and more packets have come than before. How many.
    fn comes_to(&self, node: usize, cpus: &str, before: u64) -> u64 {
        self.are_on(cpus);
        self.wait(&format!("CPUs {cpus} are not shown, or guests are idle"), || {
            let list = self.asked("port list");
            let ports = list["ports"].as_array().map_or(&[][..], Vec::as_slice);
            let are_shown = ports.iter().all(|port| {
                let place = &port["place"];
                let on = [&place["thread_cpus"], &place["vm_cpus"]];
                place["state"] == "near" && place["node"] == node && on == [cpus, cpus]
            });
            let packets = ports.iter().filter_map(|port| port["from_guest"]["packets"].as_u64()).sum();
            let places: Vec<_> = ports.iter().map(|port| port["place"].to_string()).collect();
            let why = || format!("{packets} packets, {before} before; {places:?}");
            (are_shown && packets > before).then_some(packets).ok_or_else(why)
        })
    }

    fn log(&self) -> String {
        self.0.output("cat /tmp/log", 60).stdout
    }
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn threads_of_ports_follow_their_vms_to_another_node() {
    let host = Host::boot();
    let ports = "--port a=/run/a.sock --port b=/run/b.sock";
    host.background(&format!("lasthop run --no-bpf --watchdog off --helpers none {ports}"), "out");
    host.wait("lasthop is not ready", || {
        let out = host.0.output("grep ready /tmp/out", 60);
        (out.code == 0).then_some(()).ok_or_else(|| format!("{out:?}"))
    });
    let load = "lasthop-loadgen /run/a.sock,client /run/b.sock,client --pattern both-ways --rate 100 --window 16 --notify sleep --ring 256 --huge no --check content \
                --warmup 0 --seconds 36000 --patience 600 --strict";
    host.background(&format!("taskset -c 2-3 {load}"), "load");
    let mut packets = host.comes_to(1, "2-3", 0);
    for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
        let bound = host.0.output(&format!("taskset -a -p -c {cpus} $(pidof lasthop-loadgen)"), PATIENCE.as_secs());
        assert_eq!(bound.code, 0, "{bound:?}");
        packets = host.comes_to(node, cpus, packets);
    }
    // Nowhere in particular, as it is asked for.
    host.asked("engine near off");
    host.are_on("0-3");
    let stats = host.asked("stats");
    assert_eq!(stats["sum"]["dropped"], 0, "{stats}");
    let list = host.asked("engine list");
    let of_ports = list["engines"].as_array().and_then(|all| all.iter().find(|engine| engine["name"] == "ports"));
    assert_eq!(of_ports.expect("there is one")["nodes"], "0-1", "{list}");
    let log = host.log();
    assert!(!log.contains("cannot be bound"), "{log}");
}
