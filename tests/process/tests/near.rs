//! `--near`: a port's thread follows its VM to the NUMA node where that runs, while packets flow. This host may have one node: two of a CPU each are declared to lasthop.
//! The VM is this process, which is bound to one CPU and to the other, so one test runs at a time.

use lasthop_sys::CpuList;
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Options, PATIENCE, Port, mac, numbered, proc, scratch, wait_for,
};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Two CPUs; none where there is one.
fn cpus() -> Option<[usize; 2]> {
    let all: Vec<usize> = CpuList::allowed().unwrap().iter().collect();
    if let [one, .., other] = all[..] { Some([one, other]) } else { None }
}

/// Files as the kernel has them in /sys/devices/system, of a host whose nodes have a CPU each.
fn host(dir: &Path, cpus: [usize; 2]) -> PathBuf {
    let system = dir.join("system");
    let write = |name: &str, text: String| {
        let file = system.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text + "\n").unwrap();
    };
    write("cpu/online", cpus.into_iter().collect::<CpuList>().to_string());
    write("node/online", "0-1".into());
    for (node, cpu) in cpus.into_iter().enumerate() {
        write(&format!("node/node{node}/cpulist"), cpu.to_string());
    }
    system
}

/// All threads of this process run there from now on, and those that they start.
fn bind(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    for thread in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let number = thread.file_name().to_str().unwrap().parse().unwrap();
        // It may have ended.
        let _ = sched_setaffinity(Pid::from_raw(number), &set);
    }
}

/// This process may run anywhere again when it is over.
struct Unbound([usize; 2]);

impl Drop for Unbound {
    fn drop(&mut self) {
        bind(&self.0);
    }
}

/// Where the thread of a port may run, as the kernel has it.
fn allowed(lasthop: &Lasthop, port: &str) -> String {
    let threads = std::fs::read_dir(format!("/proc/{}/task", lasthop.switch())).unwrap().flatten();
    let of = |file: PathBuf| std::fs::read_to_string(file).unwrap_or_default();
    let mut named = threads.filter(|task| of(task.path().join("comm")).trim_end() == format!("port-{port}"));
    let status = named.next().map(|task| of(task.path().join("status"))).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    line.unwrap_or_default().to_owned()
}

fn place(lasthop: &Lasthop, port: &str) -> Value {
    lasthop.port(port)["place"].clone()
}

/// One that finds its CPUs busy may run anywhere for 30 s, a minute the next time; and the host that tests run on may have much else to do.
const LONG: Duration = Duration::from_secs(180);

/// Waits until the port is like that. Else it is said how it is.
fn wait_of(lasthop: &Lasthop, port: &str, what: &str, done: impl Fn(&Value, &str) -> bool) {
    let end = Instant::now() + LONG;
    loop {
        let (place, allowed) = (place(lasthop, port), allowed(lasthop, port));
        if done(&place, &allowed) {
            return;
        }
        assert!(
            Instant::now() < end,
            "port {port}: {what}: its thread may run on CPUs {allowed:?}; {place}\n{}",
            lasthop.log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the threads of both ports may run there and nowhere else, as is shown.
fn wait_at(lasthop: &Lasthop, state: &str, cpus: &str) {
    for port in ["a", "b"] {
        wait_of(lasthop, port, &format!("not on {cpus}"), |place, allowed| {
            allowed == cpus && place["state"] == state && place["thread_cpus"] == cpus
        });
    }
}

/// Another switch has taken over, and nothing waits for control any more: that would be lost when the next one does.
fn changed(lasthop: &Lasthop, bystanders: &Bystanders, words: &[&str]) {
    let before = lasthop.switch();
    lasthop.command(words);
    wait_for("the switch before to be gone", PATIENCE, || !proc::alive(before));
    bystanders.still_exchange();
}

fn far(lasthop: &Lasthop) -> Vec<Value> {
    let out = lasthop.try_command(&["doctor", "--since-start", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let found = report["findings"].as_array().unwrap().iter();
    found.filter(|found| found["kind"] == "engine-far").cloned().collect()
}

#[test]
fn a_ports_thread_follows_its_vm_and_no_packet_is_lost() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some([one, two]) = cpus() else {
        println!("there is one CPU: not tested");
        return;
    };
    let _unbound = Unbound([one, two]);
    let (dir, both) = (scratch(), CpuList::from_iter([one, two]).to_string());
    let system = host(dir.path(), [one, two]);
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--system", system.to_str().unwrap(), "--cpus", &both]);
    let bystanders = Bystanders::start(&ports[0].socket, &ports[1].socket, [mac(1), mac(2)]);
    let changed = |words: &[&str]| changed(&lasthop, &bystanders, words);
    let comes_to = |node: usize, cpu: usize| {
        bind(&[cpu]);
        let cpu = cpu.to_string();
        wait_at(&lasthop, "near", &cpu);
        let place = place(&lasthop, "a");
        assert!(place["node"] == node && place["vm_cpus"] == cpu.as_str(), "{place}");
        bystanders.still_exchange();
    };
    comes_to(0, one);
    comes_to(1, two);
    let shown = lasthop.command(&["show", "a"]);
    assert!(shown.contains(&format!("its VM runs on node 1, CPUs {two}, and its thread on CPUs")), "{shown}");
    assert!(lasthop.command(&["metrics"]).contains("lasthop_port_near_vm{port=\"a\"} "));
    let list = lasthop.json(&["engine", "list"]);
    assert_eq!(list["near"], "node");
    let of_ports = list["engines"].as_array().unwrap().iter().find(|engine| engine["name"] == "ports").cloned();
    assert_eq!(of_ports.unwrap()["nodes"], "0-1", "{list}");
    assert!(far(&lasthop).is_empty());
    // Threads of another switch are there, too; a new control is told.
    changed(&["engine", "del", "helper", &two.to_string()]);
    wait_at(&lasthop, "near", &two.to_string());
    lasthop.kill("lasthop-control");
    wait_at(&lasthop, "near", &two.to_string());
    assert_eq!(place(&lasthop, "a")["node"], 1);
    // Off, and on again.
    lasthop.command(&["engine", "near", "off"]);
    for port in ["a", "b"] {
        wait_of(&lasthop, port, "not everywhere", |place, allowed| allowed == both && place.is_null());
    }
    lasthop.command(&["engine", "near", "node"]);
    comes_to(1, two);
    // Ports' threads have no CPU on its node any more.
    changed(&["engine", "del", "ports", &two.to_string()]);
    wait_at(&lasthop, "no-cpu", &one.to_string());
    let found = far(&lasthop);
    assert!(found.len() == 2 && found[0]["evidence"].to_string().contains("have none there"), "{found:?}");
    changed(&["engine", "add", "ports", &two.to_string()]);
    wait_at(&lasthop, "near", &two.to_string());
    let drops = lasthop.json(&["stats"])["switch"]["replaced"].to_string();
    assert!(!drops.contains("lasthop-switch"), "{drops}");
}

/// Beside cores that poll, whose ports have no thread: those that have one are never put where one polls.
#[test]
fn a_thread_beside_cores_that_poll_keeps_off_them_and_doctor_names_cores_that_are_far() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some([one, two]) = cpus() else {
        println!("there is one CPU: not tested");
        return;
    };
    let _unbound = Unbound([one, two]);
    let (dir, both) = (scratch(), CpuList::from_iter([one, two]).to_string());
    let system = host(dir.path(), [one, two]);
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(
        &ports,
        &["--system", system.to_str().unwrap(), "--cpus", &both, "--poll", &one.to_string()],
    );
    let bystanders = Bystanders::start(&ports[0].socket, &ports[1].socket, [mac(1), mac(2)]);
    bystanders.still_exchange();
    let changed = |words: &[&str]| changed(&lasthop, &bystanders, words);
    bind(&[two]);
    let polled = |node: usize| {
        wait_of(&lasthop, "a", "not polled", |place, allowed| {
            place["node"] == node && place["thread_cpus"].is_null() && allowed.is_empty()
        });
    };
    polled(1);
    wait_for("doctor to find it", PATIENCE, || far(&lasthop).len() == 2);
    let found = far(&lasthop)[0].to_string();
    assert!(found.contains(&format!("poll-{one} is on node 0; its VM runs on node 1")), "{found}");
    // One has a thread of its own, and the VM comes to the node whose CPU polls.
    changed(&["engine", "move", "b", "ports"]);
    let of_b = |node: usize, state: &str| {
        let two = two.to_string();
        wait_of(&lasthop, "b", &format!("not {state}"), |place, allowed| {
            assert_eq!(allowed, two, "a core polls on {one}: {place}");
            place["node"] == node && place["state"] == state && place["thread_cpus"] == two.as_str()
        });
    };
    of_b(1, "near");
    bind(&[one]);
    of_b(0, "no-cpu");
    polled(0);
    let found = far(&lasthop);
    assert!(
        found.len() == 1 && found[0]["command"].to_string().contains(&format!("engine move b poll-{one}")),
        "{found:?}"
    );
    bystanders.still_exchange();
    bind(&[two]);
    of_b(1, "near");
    polled(1);
    assert!(far(&lasthop).iter().all(|found| found["port"] == "a"), "{:?}", far(&lasthop));
    changed(&["engine", "move", "b", "none"]);
    // One of its own is there: it is told which.
    changed(&["engine", "add", "poll", &two.to_string()]);
    changed(&["engine", "move", "a", &format!("poll-{one}")]);
    wait_for("doctor to find it", PATIENCE, || far(&lasthop).iter().any(|found| found["port"] == "a"));
    let found = far(&lasthop).into_iter().find(|found| found["port"] == "a").unwrap();
    let command = found["command"].as_str().unwrap();
    assert!(command.contains(&format!("engine move a poll-{two}")), "{found}");
    changed(&["engine", "move", "a", &format!("poll-{two}")]);
    assert!(!far(&lasthop).iter().any(|found| found["port"] == "a"));
}

/// A control group of version 1. Dropping it moves what is left back.
struct Group {
    dir: PathBuf,
    root: &'static str,
}

impl Group {
    /// Here, with these values; `None` where there are no such groups.
    fn new(root: &'static str, values: &[(&str, &str)]) -> Option<Self> {
        let dir = PathBuf::from(format!("{root}/lasthop-near-{}", std::process::id()));
        let group = std::fs::create_dir(&dir).is_ok().then(|| Self { dir, root });
        let takes =
            |group: &Self| values.iter().all(|(name, value)| std::fs::write(group.dir.join(name), value).is_ok());
        let group = group.filter(takes);
        if group.is_none() {
            println!("no such control groups of version 1 here: not tested");
        }
        group
    }

    /// The thread of a port.
    fn takes(&self, lasthop: &Lasthop, port: &str) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", lasthop.switch())).unwrap().flatten();
        let mut tasks = tasks.filter(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.trim_end() == format!("port-{port}")
        });
        let thread = tasks.next().expect("it has a thread").file_name();
        std::fs::write(self.dir.join("tasks"), thread.to_str().unwrap()).unwrap();
    }

    fn throttled(&self) -> u64 {
        let stat = std::fs::read_to_string(self.dir.join("cpu.stat")).unwrap();
        stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for task in std::fs::read_to_string(self.dir.join("tasks")).unwrap_or_default().lines() {
            let _ = std::fs::write(format!("{}/tasks", self.root), task);
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// The control group of one thread has no CPU of its VM's node, and is given one later.
#[test]
fn a_thread_that_may_not_be_near_is_named_by_doctor_and_tried_again() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some([one, two]) = cpus() else { return };
    let [first, second, both] = [one.to_string(), two.to_string(), CpuList::from_iter([one, two]).to_string()];
    let Some(group) = Group::new("/sys/fs/cgroup/cpuset", &[("cpuset.mems", "0"), ("cpuset.cpus", &first)]) else {
        return;
    };
    let _unbound = Unbound([one, two]);
    let dir = scratch();
    let system = host(dir.path(), [one, two]);
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--system", system.to_str().unwrap(), "--cpus", &both]);
    let bystanders = Bystanders::start(&ports[0].socket, &ports[1].socket, [mac(1), mac(2)]);
    bind(&[two]);
    wait_at(&lasthop, "near", &second);
    group.takes(&lasthop, "a");
    wait_of(&lasthop, "a", "not refused", |place, allowed| {
        place["state"] == "refused" && allowed == first && place["thread_cpus"] == first.as_str()
    });
    let out = lasthop.try_command(&["doctor", "--since-start", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut found = report["findings"].as_array().unwrap().iter();
    let found = found.find(|found| found["kind"] == "near-refused");
    let found = found.unwrap_or_else(|| panic!("{report}\n{}", place(&lasthop, "a")));
    assert!(found["port"] == "a" && found["evidence"].to_string().contains("cannot be bound there"), "{found}");
    let log = lasthop.log();
    assert!(
        log.contains("the thread of port a cannot be bound") && log.contains("the VM of port a runs on CPUs"),
        "{log}"
    );
    bystanders.still_exchange();
    std::fs::write(group.dir.join("cpuset.cpus"), &both).unwrap();
    wait_at(&lasthop, "near", &second);
    bystanders.still_exchange();
}

/// The kernel counts as waiting for a CPU what a quota has a thread stand still. Elsewhere it would stand still, too.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_thread_that_its_vms_quota_stops_is_not_crowded() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some([one, two]) = cpus() else { return };
    let Some(group) =
        Group::new("/sys/fs/cgroup/cpu", &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "1000")])
    else {
        return;
    };
    let _unbound = Unbound([one, two]);
    let dir = scratch();
    let system = host(dir.path(), [one, two]);
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let both = CpuList::from_iter([one, two]).to_string();
    let options = ["--system", system.to_str().unwrap(), "--cpus", &both, "--helpers", "none"];
    let lasthop = Lasthop::start_with(&ports, &options);
    let [mut a, mut b] = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default()));
    a.greet(&mut b, 1);
    bind(&[two]);
    group.takes(&lasthop, "a");
    let frame = numbered(a.mac, b.mac, 0, 1400);
    let (end, mut seen) = (Instant::now() + LONG, None);
    // In each of three looks in a row, and some more, after it has been seen to be stopped.
    while seen.is_none_or(|seen| group.throttled() < seen + 100) {
        a.fill(&frame);
        while b.try_recv().is_some() {}
        let place = place(&lasthop, "a");
        assert_ne!(place["state"], "crowded", "{place}\n{}", lasthop.log());
        if place["state"] == "near" && place["why"].to_string().contains("quota") {
            seen.get_or_insert_with(|| group.throttled());
        }
        assert!(Instant::now() < end, "{place}, {} times throttled\n{}", group.throttled(), lasthop.log());
    }
    assert_eq!(allowed(&lasthop, "a"), two.to_string());
    assert!(
        lasthop.command(&["show", "a"]).contains("it has to stand still at times, as its control group has a quota")
    );
}

/// How near it is can be said where engines are, holds over a start, and is refused where it makes no sense.
#[test]
fn how_near_is_said_on_the_command_line_in_the_file_and_at_run_time() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = scratch();
    let near = |lasthop: &Lasthop| lasthop.json(&["engine", "list"])["near"].as_str().unwrap().to_owned();
    let lasthop = Lasthop::start_with(&[], &["--near", "off"]);
    assert_eq!(near(&lasthop), "off");
    let switch = lasthop.switch();
    let said = lasthop.command(&["engine", "near", "cache"]);
    assert!(said.starts_with("near cache\n"), "{said}");
    assert_eq!((near(&lasthop), lasthop.switch()), ("cache".into(), switch), "no other switch is needed");
    let lasthop = lasthop.start_again(None, &[], &["--near", "off"], || ());
    assert_eq!(near(&lasthop), "cache", "it is remembered\n{}", lasthop.log());
    let lasthop = lasthop.start_again(None, &[], &[], || ());
    assert_eq!(near(&lasthop), "node", "the command line says something else\n{}", lasthop.log());
    let file = dir.path().join("lasthop.toml");
    // A host of one node whose CPUs share nothing.
    let system = dir.path().join("system");
    for (file, cpus) in [("cpu/online", "0-1"), ("node/online", "0"), ("node/node0/cpulist", "0-1")] {
        std::fs::create_dir_all(system.join(file).parent().unwrap()).unwrap();
        std::fs::write(system.join(file), cpus).unwrap();
    }
    let lasthop = lasthop.start_again(None, &[], &["--system", system.to_str().unwrap()], || ());
    assert!(lasthop.command(&["engine", "list"]).contains("near node: lasthop sees one NUMA node"));
    let said = lasthop.command(&["engine", "near", "cache"]);
    assert!(
        said.starts_with("near cache\nlasthop sees one NUMA node") && said.contains("no last-level cache"),
        "{said}"
    );
    assert_eq!(lasthop.command(&["engine", "near", "off"]), "near off\n");
    lasthop.command(&["engine", "near", "node"]);
    let write = |near: &str| std::fs::write(&file, format!("[engines]\nnear = {near}\n")).unwrap();
    let apply = || {
        let out = lasthop.try_command(&["apply", file.to_str().unwrap()]);
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    write("\"cache\"");
    assert!(apply().contains("~ engines: near node -> cache"));
    assert_eq!(near(&lasthop), "cache");
    assert!(apply().contains("nothing to change"));
    write("\"socket\"");
    let said = apply();
    assert!(
        said.contains("[engines] near: \"socket\" is not how near threads are kept; there are off, node, cache"),
        "{said}"
    );
    write("false");
    let file = file.to_str().unwrap().to_owned();
    let lasthop = lasthop.start_again(None, &[], &["--config", &file], || ());
    assert_eq!(near(&lasthop), "off");
    let out = lasthop.try_command(&["run", "--config", &file, "--near", "node"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(2) && said.contains("--near: [engines] near of --config says it too"), "{said}");
}
