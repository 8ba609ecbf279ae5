//! `lasthop engine`: which CPUs do ports' work is changed while guests exchange frames. None is lost, nobody connects again.

#[allow(dead_code, reason = "the wire alone is used here")]
mod outside;

use lasthop_sys::{CpuList, bind_current_thread};
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Options, PATIENCE, Port, binary, mac, proc, scratch, wait_for,
};
use outside::Wire;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two CPUs; one twice where there are no more, and then there is only one engine.
fn cpus() -> [usize; 2] {
    let all: Vec<usize> = CpuList::allowed().unwrap().iter().collect();
    [all[0], all[all.len() - 1]]
}

fn engines(lasthop: &Lasthop) -> Vec<Value> {
    lasthop.json(&["engine", "list"])["engines"].as_array().unwrap().clone()
}

fn engine(lasthop: &Lasthop, name: &str) -> Option<Value> {
    engines(lasthop).into_iter().find(|engine| engine["name"] == name)
}

/// Ports that it serves, by what it says.
fn served(lasthop: &Lasthop, name: &str) -> Vec<String> {
    let engine = engine(lasthop, name).unwrap_or_else(|| panic!("no engine {name}"));
    engine["ports"].as_array().unwrap().iter().map(|port| port.as_str().unwrap().to_owned()).collect()
}

/// The switch's thread with this name.
fn thread(lasthop: &Lasthop, name: &str) -> Option<u32> {
    let switch = lasthop.switch();
    let threads = std::fs::read_dir(format!("/proc/{switch}/task")).unwrap().flatten();
    let named = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    threads.filter(named).find_map(|task| task.file_name().to_str()?.parse().ok())
}

/// CPUs that the switch's thread with this name may run on, as the kernel writes them.
fn cpus_of(lasthop: &Lasthop, name: &str) -> String {
    let thread = thread(lasthop, name).unwrap_or_else(|| panic!("no thread {name}"));
    let status = std::fs::read_to_string(format!("/proc/{}/task/{thread}/status", lasthop.switch())).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list").trim().to_owned()
}

/// Nanoseconds of processor time of the switch's thread with this name.
fn used(lasthop: &Lasthop, name: &str) -> u64 {
    proc::thread_ns(lasthop.switch(), thread(lasthop, name).unwrap_or_else(|| panic!("no thread {name}")))
}

/// What goes wrong, and that nothing is otherwise then.
fn refused(lasthop: &Lasthop, words: &[&str]) -> String {
    let shown =
        || (lasthop.switch(), lasthop.json(&["engine", "list"])["poll"].clone(), lasthop.port("a")["settings"].clone());
    let before = shown();
    let out = lasthop.try_command(words);
    assert!(!out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stdout));
    assert_eq!(shown(), before, "{words:?}");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Another switch has taken over, and the one before has gone.
fn changed(lasthop: &Lasthop, words: &[&str]) {
    let before = lasthop.switch();
    let said = lasthop.json(words);
    wait_for("the switch before to be gone", PATIENCE, || !proc::alive(before));
    assert_eq!(said["processes"][0]["pid"], lasthop.switch(), "{words:?}: {said}");
}

fn ports(dir: &Path) -> [Port; 2] {
    ["a", "b"].map(|name| Port::listen(name, dir))
}

#[test]
fn engines_and_their_ports_change_under_load() {
    let dir = scratch();
    let lasthop = Lasthop::start(&ports(dir.path()));
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&socket("a"), &socket("b"), [mac(1), mac(2)]);
    bystanders.still_exchange();
    assert_eq!(served(&lasthop, "ports"), ["a", "b"]);
    let (one, two) = (cpus()[0], cpus()[1]);
    let of = |cpu: usize| format!("poll-{cpu}");
    for cpu in cpus().into_iter().take(if one == two { 1 } else { 2 }) {
        changed(&lasthop, &["engine", "add", "poll", &cpu.to_string()]);
        bystanders.still_exchange();
        assert_eq!(cpus_of(&lasthop, &of(cpu)), cpu.to_string());
        assert_eq!(engine(&lasthop, &of(cpu)).unwrap()["cpus"], cpu.to_string());
    }
    assert_eq!(served(&lasthop, "ports"), [""; 0], "cores that poll do it");
    for (to, other) in [(one, two), (two, one)] {
        changed(&lasthop, &["engine", "move", "a", &of(to)]);
        // First packets that wait for control are not what is known.
        bystanders.still_exchange();
        lasthop.command(&["port", "set", "b", "--engine", &of(to), "--weight", "200"]);
        bystanders.still_exchange();
        assert_eq!(served(&lasthop, &of(to)), ["a", "b"]);
        if to != other {
            assert_eq!(served(&lasthop, &of(other)), [""; 0]);
            // One without rings sleeps.
            let used = || [to, other].map(|cpu| used(&lasthop, &of(cpu)));
            let before = used();
            bystanders.still_exchange();
            let after = used();
            assert!(after[0] > before[0] && after[1] == before[1], "the other serves a ring");
        }
    }
    let why = refused(&lasthop, &["engine", "del", "poll", &two.to_string()]);
    assert!(why.contains(&format!("engine {} serves port a", of(two))), "{why}");
    for port in ["a", "b"] {
        changed(&lasthop, &["engine", "move", port, "none"]);
        bystanders.still_exchange();
    }
    let all = if one == two { one.to_string() } else { format!("{one},{two}") };
    changed(&lasthop, &["engine", "del", "poll", &all]);
    bystanders.still_exchange();
    assert_eq!(served(&lasthop, "ports"), ["a", "b"]);
    assert!(engine(&lasthop, &of(one)).is_none());
    let stats = lasthop.json(&["stats"]);
    assert!(stats["switch"]["replaced"].as_array().unwrap().iter().all(|of| of["times"] == 0), "{stats}");
}

/// One port is polled, and beside it one has a thread of its own and a helper; a third is where it happens to be. What they exchange is whole and in
/// order, whoever moves where.
#[test]
fn a_port_with_a_thread_of_its_own_beside_one_that_is_polled() {
    let [other, core] = cpus();
    if other == core {
        return eprintln!("not done: with one CPU there is none for helpers beside one that polls");
    }
    let dir = scratch();
    let ports = ["a", "b", "c", "d"].map(|name| Port::listen(name, dir.path()));
    // Packets come so often that helpers have the rings of ports with threads of their own.
    let lasthop = Lasthop::start_with(&ports, &["--hysteresis", "1000,10000"]);
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let pair = |one, other, n| Bystanders::start(&socket(one), &socket(other), [mac(n), mac(n + 1)]);
    let pairs = [pair("a", "b", 1), pair("c", "d", 3)];
    let all_is_well = || pairs.iter().for_each(Bystanders::still_exchange);
    all_is_well();
    let (poll, helper) = (format!("poll-{core}"), format!("helper-{other}"));
    let threads = |names: [&str; 4]| names.map(|name| thread(&lasthop, name).is_some());
    changed(&lasthop, &["engine", "add", "poll", &core.to_string()]);
    all_is_well();
    assert_eq!(served(&lasthop, &poll), ["a", "b", "c", "d"]);
    assert!(lasthop.command(&["engine", "list"]).contains("no port has a thread of its own"));
    assert_eq!(threads(["port-a", "port-b", &helper, &format!("helper-{core}")]), [false, false, true, false]);
    let before = used(&lasthop, &helper);
    all_is_well();
    assert_eq!(used(&lasthop, &helper), before, "nobody has a ring for it, and it sleeps");
    changed(&lasthop, &["engine", "move", "a", &poll]);
    changed(&lasthop, &["engine", "move", "b", "ports"]);
    all_is_well();
    assert_eq!((served(&lasthop, &poll), served(&lasthop, "ports")), (strings(["a", "c", "d"]), strings(["b"])));
    assert_eq!(threads(["port-a", "port-b", "port-c", "port-d"]), [false, true, false, false]);
    assert!(!lasthop.command(&["engine", "list"]).contains("no port has a thread of its own"));
    // The core is left to what polls, and the helper is on another.
    let left = CpuList::allowed().unwrap().without(&[core].into_iter().collect()).to_string();
    assert_eq!((cpus_of(&lasthop, "port-b"), cpus_of(&lasthop, &helper)), (left.clone(), other.to_string()));
    assert_eq!(engine(&lasthop, "ports").unwrap()["cpus"], left);
    // One for each other CPU: whichever is idle.
    let helpers = || proc::threads_ns(lasthop.switch(), "helper-");
    let before = helpers();
    wait_for("a helper to have looked after b", PATIENCE, || {
        all_is_well();
        helpers() > before + 5_000_000
    });
    changed(&lasthop, &["engine", "move", "c", "ports"]);
    all_is_well();
    assert_eq!(served(&lasthop, "ports"), ["b", "c"]);
    let all = CpuList::allowed().unwrap().without(&[core].into_iter().collect()).to_string();
    changed(&lasthop, &["engine", "del", "helper", &all]);
    all_is_well();
    assert!(thread(&lasthop, &helper).is_none() && thread(&lasthop, "port-b").is_some());
    changed(&lasthop, &["engine", "add", "helper", &other.to_string()]);
    all_is_well();
    assert!(thread(&lasthop, &helper).is_some());
    let why = refused(&lasthop, &["engine", "add", "helper", &core.to_string()]);
    assert!(why.contains(&format!("CPU {core} polls and has no cycles left for a helper")), "{why}");
    let why = refused(&lasthop, &["engine", "del", "poll", &core.to_string()]);
    assert!(why.contains(&format!("engine {poll} serves port a")), "{why}");
    // Change places.
    changed(&lasthop, &["engine", "move", "a", "ports"]);
    changed(&lasthop, &["engine", "move", "b", &poll]);
    all_is_well();
    assert_eq!((served(&lasthop, &poll), served(&lasthop, "ports")), (strings(["b", "d"]), strings(["a", "c"])));
    assert_eq!(threads(["port-a", "port-b", "port-c", "port-d"]), [true, false, true, false]);
    changed(&lasthop, &["engine", "move", "b", "none"]);
    changed(&lasthop, &["engine", "del", "poll", &core.to_string()]);
    all_is_well();
    assert_eq!(threads(["port-a", "port-b", "port-c", "port-d"]), [true; 4]);
    // Nothing moves by what only counts beside cores that poll, and it is remembered.
    let (before, set) = (lasthop.switch(), || lasthop.port("c")["settings"].to_string());
    assert!(lasthop.command(&["engine", "move", "d", "ports"]).contains("nothing has moved"));
    assert!(set().contains("ports") && lasthop.switch() == before, "{}", set());
    let stats = lasthop.json(&["stats"]);
    assert!(stats["switch"]["replaced"].as_array().unwrap().iter().all(|of| of["times"] == 0), "{stats}");
    lasthop.check_sums();
}

fn strings<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}

/// An uplink's rings are polled, or looked after by a thread of its own, as those of any port; and so it is remembered, and declared.
#[test]
fn an_uplink_is_moved_to_a_core_and_back() {
    let [other, core] = cpus();
    let (dir, wire) = (scratch(), Wire::taps(1));
    let site = |port: &str, uplink: &str| {
        let ports = [Port::listen(port, dir.path())];
        let lasthop = Lasthop::start_in(Some(wire.netns()), &ports, &["--uplink", uplink]);
        lasthop.wait_for_state("net", "up");
        lasthop
    };
    let (lasthop, _far) = (site("a", &wire.left), site("b", &wire.right));
    wire.join();
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&socket("a"), &socket("b"), [mac(1), mac(2)]);
    bystanders.still_exchange();
    let poll = format!("poll-{core}");
    let said =
        String::from_utf8_lossy(&lasthop.try_command(&["port", "set", "net", "--engine", &poll]).stderr).into_owned();
    assert!(said.contains("no core polls"), "{said}");
    changed(&lasthop, &["engine", "add", "poll", &core.to_string()]);
    bystanders.still_exchange();
    lasthop.command(&["port", "set", "net", "--engine", &poll]);
    changed(&lasthop, &["engine", "move", "a", "ports"]);
    bystanders.still_exchange();
    assert_eq!((served(&lasthop, &poll), served(&lasthop, "ports")), (strings(["net"]), strings(["a"])));
    assert_eq!(["port-net", "port-a"].map(|name| thread(&lasthop, name).is_some()), [false, true]);
    let why = lasthop.try_command(&["engine", "del", "poll", &core.to_string()]);
    let why = String::from_utf8_lossy(&why.stderr).into_owned();
    assert!(why.contains(&format!("engine {poll} serves port net")), "{why}");
    // What else an uplink has not, it still has not.
    let why = lasthop.try_command(&["port", "set", "net", "--weight", "5"]);
    let why = String::from_utf8_lossy(&why.stderr).into_owned();
    assert!(why.contains("net is an uplink, which has rate-to, engine and static-mac alone"), "{why}");
    if other != core {
        changed(&lasthop, &["engine", "move", "net", "ports"]);
        changed(&lasthop, &["engine", "move", "a", &poll]);
        assert_eq!((served(&lasthop, &poll), served(&lasthop, "ports")), (strings(["a"]), strings(["net"])));
        assert_eq!(["port-net", "port-a"].map(|name| thread(&lasthop, name).is_some()), [true, false]);
    }
    let file = dir.path().join("lasthop.toml");
    let apply = |engine: &str| {
        let table = format!(
            "[engines]\npoll = [{core}]\n[uplink.net]\ndevice = \"t0\"\ndriver = \"tap\"\nengine = \"{engine}\"\n"
        );
        std::fs::write(&file, table).unwrap();
        let out = lasthop.try_command(&["apply", file.to_str().unwrap()]);
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    let said = apply("poll-4000");
    assert!(
        said.contains("[uplink.net]: engine = \"poll-4000\"") && said.contains("name one of those there"),
        "{said}"
    );
    let said = apply(&poll);
    assert!(said.contains(&format!("-> {poll}")) && served(&lasthop, &poll).contains(&"net".into()), "{said}");
    assert!(apply(&poll).contains("nothing to change"));
    bystanders.still_exchange();
    // What the uplink's own process had goes with it, and the next one is polled there as well.
    drop(bystanders);
    let uplink = || lasthop.json(&["uplink", "list"])["uplinks"][0]["pid"].as_u64();
    let before = uplink().expect("it runs");
    proc::signal(before as u32, Signal::KILL);
    wait_for("another process of the uplink", PATIENCE, || uplink().is_some_and(|pid| pid != before));
    lasthop.wait_for_state("net", "up");
    assert!(served(&lasthop, &poll).contains(&"net".into()) && thread(&lasthop, "port-net").is_none());
    let [mut near, mut far] =
        [("a", 1), ("b", 2)].map(|(name, n)| Guest::connect(&socket(name), mac(n), Options::default()));
    near.greet_when_back(&mut far, 1);
}

/// A front-end that has cut its guest's memory, and stays: no other switch can have it, and it keeps nobody else from going over.
#[test]
fn a_front_end_whose_memory_is_gone_keeps_nobody_where_they_are() {
    let dir = scratch();
    let ports = ["a", "b", "x", "x2"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&socket("a"), &socket("b"), [mac(1), mac(2)]);
    bystanders.still_exchange();
    let cut = Guest::connect(&socket("x"), mac(3), Options::default());
    rustix::fs::ftruncate(cut.net.region().1, 4096).expect("it is ours");
    let since = || ["a", "b"].map(|name| lasthop.log().matches(&format!("port {name}: connection ended")).count());
    let cpu = cpus()[0].to_string();
    changed(&lasthop, &["engine", "add", "poll", &cpu]);
    bystanders.still_exchange();
    assert_eq!(since(), [0, 0], "{}", lasthop.log());
    let log = lasthop.log();
    assert!(
        log.contains("port x stays behind, and its front-end has to connect again: to go over to another"),
        "{log}"
    );
    assert!(log.contains("port x: connection ended: to go over to another switch"), "{log}");
    // With memory that is there it does, and goes along the next time.
    drop(cut);
    let mut back = Guest::connect(&socket("x"), mac(3), Options::default());
    let mut other = Guest::connect(&socket("x2"), mac(4), Options::default());
    back.greet_when_back(&mut other, 1);
    changed(&lasthop, &["engine", "del", "poll", &cpu]);
    bystanders.still_exchange();
    back.greet(&mut other, 2);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let dir = scratch();
    let lasthop = Lasthop::start(&ports(dir.path()));
    let cpu = cpus()[0].to_string();
    let poll = format!("poll-{cpu}");
    let wrong = |words: &[&str], why: &str| {
        let said = refused(&lasthop, words);
        assert!(said.contains(why), "{words:?}: {said}");
    };
    wrong(&["engine", "add", "poll", "1000"], "CPU 1000 cannot be used here");
    wrong(&["engine", "add", "poll", "5000"], "beyond the last possible one");
    wrong(&["engine", "add", "poll", "x"], "x");
    wrong(&["engine", "add", "core", &cpu], "core");
    wrong(&["engine", "del", "poll", &cpu], "there is no poll engine on CPU");
    wrong(&["engine", "del", "ports", &CpuList::allowed().unwrap().to_string()], "no CPU would be left");
    wrong(&["engine", "move", "a", &poll], &format!("there is no engine {poll}: no core polls"));
    wrong(
        &["engine", "move", "a", "core-1"],
        "no port can be set to an engine of that name; write one that polls, such as poll-3",
    );
    wrong(&["engine", "move", "a", &format!("helper-{cpu}")], "ports for a thread of its own");
    wrong(&["engine", "move", "nobody", "none"], "there is no port nobody");
    wrong(&["port", "set", "a", "--engine", &poll], "no core polls");
    changed(&lasthop, &["engine", "add", "poll", &cpu]);
    wrong(&["engine", "add", "poll", &cpu], "already");
    wrong(&["engine", "add", "helper", &cpu], "polls and has no cycles left for a helper");
    wrong(&["engine", "del", "helper", &cpu], "there is no helper engine on CPU");
    wrong(&["engine", "move", "a", "poll-4000"], &format!("CPUs that poll are {cpu}"));
    // What is told beside it is judged first.
    wrong(&["port", "set", "a", "--engine", &poll, "--queue-of", "net"], "there is no uplink net");
    let out = lasthop.try_command(&["port", "set", "a", "--engine", "poll-4000", "--weight", "200"]);
    let said = String::from_utf8_lossy(&out.stderr);
    let half = "port a: set is weight=200, but its engine stays as it was: there is no engine poll-4000";
    assert!(!out.status.success() && said.contains(half) && !said.contains("nothing has changed"), "{said}");
    assert!(lasthop.port("a")["settings"].to_string().contains("weight"), "{}", lasthop.port("a"));
}

/// A CPU that a device was given to poll on is nobody else's to poll on, whoever says so.
#[test]
fn a_core_of_a_device_is_not_polled_on_by_the_host() {
    let dir = scratch();
    let [one, _] = cpus();
    let (cpu, device) = (one.to_string(), format!("nic0,cable=off,engines={one}"));
    let why = format!("CPU {cpu} is an engine of device nic0 (--device nic0,engines=); choose another");
    let start = |more: &[&str]| {
        let run = |option: &str| [option.to_owned(), dir.path().join(option).display().to_string()];
        // One that is not refused would run for ever.
        let mut command = Command::new("timeout");
        command
            .arg("20")
            .arg(binary("lasthop"))
            .arg("run")
            .args(run("--run-dir"))
            .args(run("--state-dir"))
            .args(["--device", &device])
            .args(more);
        let out = command.output().expect("lasthop starts");
        assert_eq!(out.status.code(), Some(2), "{out:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(start(&["--poll", &cpu]).contains(&format!("--poll: {why}")));
    let file = dir.path().join("lasthop.toml");
    std::fs::write(&file, format!("[engines]\npoll = \"{cpu}\"\n")).unwrap();
    let said = start(&["--config", file.to_str().unwrap()]);
    assert!(said.contains(&format!("[engines] poll of --config: {why}")), "{said}");
    // One that was added before there was the device is forgotten.
    let ports = ports(dir.path());
    let lasthop = Lasthop::start(&ports);
    changed(&lasthop, &["engine", "add", "poll", &cpu]);
    let lasthop = lasthop.start_again(None, &ports, &["--device", &device], || ());
    assert_eq!(lasthop.json(&["engine", "list"])["poll"], "none", "{}", lasthop.log());
    assert!(lasthop.log().contains("or a device was given them: poll"), "{}", lasthop.log());
    let said = refused(&lasthop, &["engine", "add", "poll", &cpu]);
    assert!(said.contains(&why), "{said}");
}

/// Control is killed while a port goes to another engine: whoever asked for it is told what came of it all the same.
#[test]
fn whoever_sets_a_ports_engine_is_answered_by_the_next_control() {
    let dir = scratch();
    let lasthop = Lasthop::start(&ports(dir.path()));
    let cpu = cpus()[0].to_string();
    let poll = format!("poll-{cpu}");
    changed(&lasthop, &["engine", "add", "poll", &cpu]);
    for round in 0..8 {
        let (before, to) = (lasthop.switch(), if round % 2 == 0 { &poll } else { "none" });
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| lasthop.try_command(&["port", "set", "a", "--engine", to]));
            wait_for("the other switch to be started", PATIENCE, || {
                let there = proc::children(lasthop.pid());
                there.iter().any(|(pid, name)| *pid != before && name == "lasthop-switch") || asked.is_finished()
            });
            proc::signal(lasthop.control(), Signal::KILL);
            let out = asked.join().unwrap();
            assert!(out.status.success(), "{round}: {}", String::from_utf8_lossy(&out.stderr));
        });
        let settings = lasthop.port("a")["settings"].to_string();
        assert_eq!(settings.contains(&poll), to == poll, "{settings}");
    }
}

#[test]
fn engines_are_remembered_until_the_command_line_says_otherwise() {
    let dir = scratch();
    let ports = ports(dir.path());
    let lasthop = Lasthop::start(&ports);
    let cpu = cpus()[0].to_string();
    let poll = format!("poll-{cpu}");
    changed(&lasthop, &["engine", "add", "poll", &cpu]);
    changed(&lasthop, &["engine", "move", "a", &poll]);
    // The next switch knows as well.
    lasthop.kill("lasthop-switch");
    assert_eq!(lasthop.json(&["engine", "list"])["poll"], cpu.as_str());
    let set = |lasthop: &Lasthop| lasthop.port("a")["settings"].to_string();
    let lasthop = lasthop.start_again(None, &ports, &[], || ());
    assert_eq!(lasthop.json(&["engine", "list"])["poll"], cpu.as_str());
    assert!(set(&lasthop).contains(&poll), "{}", set(&lasthop));
    let lasthop = lasthop.start_again(None, &ports, &["--helpers", "none"], || ());
    let list = lasthop.json(&["engine", "list"]);
    assert_eq!((&list["poll"], &list["helper"]), (&"none".into(), &"none".into()), "{}", lasthop.log());
    assert!(lasthop.log().contains("forgotten is what was set at run time: poll"), "{}", lasthop.log());
    // It does not come back with the command line of before. What the port is told is its own.
    let lasthop = lasthop.start_again(None, &ports, &[], || ());
    let list = lasthop.json(&["engine", "list"]);
    assert_eq!((&list["poll"], &list["helper"]), (&"none".into(), &"all".into()), "{}", lasthop.log());
}

#[test]
fn the_declarative_file_has_engines() {
    let dir = scratch();
    let cpu = cpus()[0];
    let lasthop = Lasthop::start(&[]);
    let apply = |more: &str, poll: &str| {
        let port = format!("[port.a]\nsocket = \"{}/a.sock\"\n{more}\n", dir.path().display());
        let path = dir.path().join("lasthop.toml");
        std::fs::write(&path, format!("[engines]\npoll = \"{poll}\"\n{port}")).unwrap();
        let out = lasthop.try_command(&["apply", path.to_str().unwrap()]);
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    let polls = format!("{cpu}");
    let engine = format!("engine = \"poll-{cpu}\"");
    let said = apply("", &polls);
    assert!(said.contains(&format!("~ engines: poll none -> {cpu}")), "{said}");
    let said = apply(&engine, &polls);
    assert!(said.contains(&format!("~ port a: engine none -> poll-{cpu}")), "{said}");
    assert!(apply(&engine, &polls).contains("nothing to change"));
    let before = lasthop.switch();
    let said = apply("engine = \"poll-4000\"", &polls);
    assert!(said.contains("name one of those there, or add it") && lasthop.switch() == before, "{said}");
    let said = apply("", "none");
    assert!(said.contains(&format!("engines: poll {cpu} -> none")) && said.contains("-> none"), "{said}");
    assert_eq!(lasthop.json(&["engine", "list"])["poll"], "none");
}

#[test]
fn doctor_names_an_engine_whose_core_others_use() {
    let dir = scratch();
    let lasthop = Lasthop::start(&ports(dir.path()));
    let cpu = cpus()[0];
    let kinds = || {
        let out = lasthop.try_command(&["doctor", "--since-start", "--json"]);
        let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        let kinds = report["findings"].as_array().unwrap().iter().map(|found| found["kind"].to_string());
        kinds.collect::<Vec<_>>().join(" ")
    };
    assert!(!kinds().contains("\"engine\""), "{}", kinds());
    changed(&lasthop, &["engine", "add", "poll", &cpu.to_string()]);
    let _guest = Guest::connect(&dir.path().join("a.sock"), mac(1), Options::default());
    lasthop.wait_for_state("a", "up");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind_current_thread(cpu).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let found =
            std::panic::catch_unwind(|| wait_for("doctor to find it", PATIENCE, || kinds().contains("\"engine\"")));
        stop.store(true, Ordering::Relaxed);
        assert!(found.is_ok(), "{}", lasthop.command(&["engine", "list"]));
    });
    let shown = lasthop.command(&["engine", "list"]);
    assert!(shown.contains(&format!("others run on CPU {cpu}")), "{shown}");
}

/// Where all CPUs poll, a port's own thread shares one with that, and it is said.
#[test]
fn a_thread_of_its_own_where_all_cpus_poll_is_in_the_way() {
    let dir = scratch();
    let cpu = cpus()[0].to_string();
    let lasthop = Lasthop::start_with(&ports(dir.path()), &["--cpus", &cpu, "--poll", &cpu]);
    let trouble = || engine(&lasthop, "ports").expect("it is always there")["trouble"].clone();
    let guest = |name: &str, n| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default());
    let (mut a, mut b) = (guest("a", 1), guest("b", 2));
    a.greet(&mut b, 1);
    assert!(trouble().is_null(), "{}", trouble());
    changed(&lasthop, &["engine", "move", "a", "ports"]);
    a.greet(&mut b, 2);
    assert_eq!((cpus_of(&lasthop, "port-a"), cpus_of(&lasthop, &format!("poll-{cpu}"))), (cpu.clone(), cpu.clone()));
    assert!(trouble().as_str().is_some_and(|why| why.contains("all its CPUs poll")), "{}", trouble());
    let out = lasthop.try_command(&["doctor", "--since-start"]);
    assert!(String::from_utf8_lossy(&out.stdout).contains("all its CPUs poll"), "{out:?}");
}

/// A port with a thread of its own, and no CPU that does not poll: it is told with what helps, and that does.
#[test]
fn threads_of_ports_where_all_cpus_poll_are_told_with_what_helps() {
    let dir = scratch();
    let lasthop = Lasthop::start(&ports(dir.path()));
    let _guest = Guest::connect(&dir.path().join("a.sock"), mac(1), Options::default());
    lasthop.wait_for_state("a", "up");
    let trouble = || engine(&lasthop, "ports").unwrap()["trouble"].to_string();
    let found = || {
        let out = lasthop.try_command(&["doctor", "--since-start", "--json"]);
        let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        let findings = report["findings"].as_array().unwrap().clone();
        findings.into_iter().find(|found| found["what"].as_str().unwrap().contains("the engine ports "))
    };
    assert_eq!((trouble(), found()), ("null".into(), None));
    let said = lasthop.command(&["engine", "move", "b", "none"]);
    assert!(said.contains("as no core polls") && said.contains("that b is set to none is remembered"), "{said}");
    let all = CpuList::allowed().unwrap().to_string();
    changed(&lasthop, &["engine", "add", "poll", &all]);
    assert_eq!((trouble(), found()), ("null".into(), None), "no port has a thread of its own");
    changed(&lasthop, &["engine", "move", "a", "ports"]);
    let why = format!("all its CPUs poll ({all})");
    assert!(trouble().contains(&why) && lasthop.command(&["engine", "list"]).contains(&why), "{}", trouble());
    let again = lasthop.command(&["engine", "move", "a", "ports"]);
    assert_eq!(again, "nothing has moved: a is set to ports already\n");
    let told = found().expect("doctor tells it");
    assert_eq!((&told["kind"], &told["also"][0]), (&"engine".into(), &"a".into()), "{told}");
    let remedy = told["remedy"].as_str().unwrap();
    assert!(remedy.contains("lasthop engine del poll CPU") && !remedy.contains("isolcpus"), "{remedy}");
    changed(&lasthop, &["engine", "del", "poll", &cpus()[0].to_string()]);
    assert_eq!((trouble(), found()), ("null".into(), None), "a CPU is left");
}
