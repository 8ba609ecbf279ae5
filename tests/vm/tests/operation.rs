//! What an operator sees: commands while VMs talk, and what idle VMs cost.

use lasthop_harness::checks;
use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, proc, scratch, wait_for};
use lasthop_sys::CpuList;
use std::path::Path;
use std::time::{Duration, Instant};

fn pair() -> (tempfile::TempDir, Lasthop, [Vm; 2]) {
    let dir = scratch();
    let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let vm = |i: usize| VmConfig::new(&ports[i].name, [Nic::vhost_user(&ports[i].socket, i as u8 + 1)]);
    let vms = Vm::boot_all([vm(0), vm(1)]);
    (dir, lasthop, vms)
}

/// Of the same two VMs.
#[test]
fn what_an_operator_sees_and_does() {
    let (dir, lasthop, [a, b]) = pair();
    commands_show_what_flows(dir.path(), &lasthop, [&a, &b]);
    idle_vms_cost_nothing(&lasthop);
    access_lists_close_and_open(dir.path(), &lasthop, [&a, &b]);
    one_is_polled_and_the_other_has_a_thread_of_its_own(&lasthop, [&a, &b]);
}

fn commands_show_what_flows(dir: &Path, lasthop: &Lasthop, [a, b]: [&Vm; 2]) {
    checks::ping(a, b);
    let ports = lasthop.command(&["port", "list"]);
    // On a device there is its end of the cable besides.
    let all = 2 + usize::from(lasthop.device().is_some());
    assert!(ports.lines().count() == 1 + all && ports.matches(" up ").count() == all, "{ports}");
    let macs = lasthop.command(&["mac", "list"]);
    for vm in [a, b] {
        assert!(macs.contains(&vm.config.nics[0].mac()), "{macs}");
    }
    let flows = lasthop.json(&["flow", "list"]);
    let carried = flows["flows"].as_array().into_iter().flatten().filter_map(|f| f["packets"].as_u64()).max();
    assert!(carried >= Some(40), "{flows}");
    let stats = lasthop.command(&["stats"]);
    assert!(stats.contains("sum: "), "{stats}");
    // An echo request from a to b: out of port b.
    let (from, to) = (&a.config.nics[0], &b.config.nics[0]);
    let frame = format!("{}{}0800", to.mac(), from.mac()).replace(':', "");
    let frame = frame + "4500001c00010000400166cd0a0900010a0900020800f7fe00010000";
    let by_fields = ["--eth-src", &from.mac(), "--eth-dst", &to.mac(), "--ip-src", "10.9.0.1", "--ip-dst", "10.9.0.2"];
    for packet in [&["--frame", &frame][..], &by_fields] {
        let trace = lasthop.command(&[&["trace", "--in-port", "a"], packet].concat());
        assert!(trace.contains("delivered to b"), "{trace}");
    }
    // What `attach` prints is what the VM was started with.
    let attach = lasthop.command(&["attach", "a"]);
    for part in ["-chardev socket,", &dir.join("a.sock").display().to_string(), "--net vhost_user=true", "vhostuser"] {
        assert!(attach.contains(part), "{part} is not in {attach}");
    }
}

#[test]
fn errors_say_what_to_do() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("a", dir.path())]);
    for (words, part) in [
        (&["port", "del", "nobody"][..], "nobody"),
        (&["port", "add", "a", "/tmp/other.sock"], "a"),
        (&["port", "add", "b", "/no/such/directory/b.sock"], "/no/such/directory"),
        (&["attach", "nobody"], "nobody"),
        (&["trace", "--in-port", "nobody", "--frame", "5254000000025254000000010806"], "nobody"),
    ] {
        let out = lasthop.try_command(words);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(part), "{words:?}: {said}");
    }
}

/// Machines that have nothing to say have no thread in the switch, and are answered as soon as they have.
#[test]
fn threads_of_silent_machines_end_and_they_are_answered_all_the_same() {
    let dir = scratch();
    let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--thread-idle", "200"]);
    let vm = |i: usize| VmConfig::new(&ports[i].name, [Nic::vhost_user(&ports[i].socket, i as u8 + 1)]);
    let [a, b] = Vm::boot_all([vm(0), vm(1)]);
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", lasthop.switch())).into_iter().flatten().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| ["port-a\n", "port-b\n"].contains(&name.as_str())).count()
    };
    for round in 0..3 {
        checks::ping(&a, &b);
        if round == 1 {
            b.serve();
            checks::tcp(&a, &b, checks::Depth::Quick);
        }
        // Machines say a word of their own at times.
        wait_for("no thread of a port", Duration::from_secs(60), || threads() == 0);
    }
    checks::ping(&b, &a);
    lasthop.check_sums();
}

/// Rules with real stacks on both ends: what is denied stops, what is not goes on, and without rules all passes again.
fn access_lists_close_and_open(dir: &Path, lasthop: &Lasthop, [a, b]: [&Vm; 2]) {
    for vm in [a, b] {
        vm.serve();
    }
    let rules = dir.join("rules");
    let load = |text: &str| {
        std::fs::write(&rules, text).expect("a file in the scratch directory");
        lasthop.command(&["acl", "load", &rules.display().to_string()]);
    };
    let pings = |ip6: bool| {
        let (option, to) =
            if ip6 { ("-6", b.config.nics[0].ip6()) } else { ("-4", b.config.nics[0].ip4().to_string()) };
        a.output(&format!("ping {option} -c 3 -i 0.1 -W 1 -q {to}"), 30).code == 0
    };
    checks::ping(a, b);
    // Neighbour discovery is ICMPv6 too, so echo requests alone are denied.
    load("deny icmp\ndeny icmpv6 type 128\n");
    assert!(!pings(false) && !pings(true), "{}", lasthop.command(&["acl", "show", "--packets"]));
    checks::tcp(a, b, checks::Depth::Quick);
    checks::udp(a, b, checks::Depth::Quick);
    let trace = ["trace", "--in-port", "a", "--ip-src", "10.9.0.1", "--ip-dst", "10.9.0.2", "--proto", "icmp"];
    let macs = ["--eth-src", &a.config.nics[0].mac(), "--eth-dst", &b.config.nics[0].mac()];
    let said = lasthop.command(&[&trace[..], &macs].concat());
    assert!(said.contains("rule 1 decides: deny icmp") && said.contains("dropped"), "{said}");
    // One TCP port of b is closed, others are open. The connection would hang: its first packet is dropped.
    load("deny to-guest tcp to any port 7000\n");
    assert!(pings(false) && pings(true));
    let to = b.config.nics[0].ip4();
    assert_ne!(a.output(&format!("timeout 3 lasthop-guest tcp-check {to}:7000 10 1"), 30).code, 0);
    checks::udp(a, b, checks::Depth::Quick);
    lasthop.command(&["acl", "clear"]);
    checks::ping(a, b);
    checks::tcp(a, b, checks::Depth::Quick);
    lasthop.check_sums();
}

/// The one test that measures time: two VMs that do nothing must cost next to nothing.
fn idle_vms_cost_nothing(lasthop: &Lasthop) {
    // IPv6's first announcements are over after a few seconds: nothing has come for two.
    let (mut sent, mut since) = (0, Instant::now());
    wait_for("the VMs to be silent", Duration::from_secs(60), || {
        let now: u64 = ["a", "b"].iter().filter_map(|p| lasthop.port(p)["from_guest"]["packets"].as_u64()).sum();
        if now != sent {
            (sent, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_secs(2)
    });
    let (start, before) = (Instant::now(), lasthop.cpu_ns());
    // Waits for nothing: it is the time in which processor time is measured.
    let window = Duration::from_secs(8);
    std::thread::sleep(window);
    let share = (lasthop.cpu_ns() - before) as f64 / start.elapsed().as_nanos() as f64;
    eprintln!("idle: {:.3} % of one CPU", share * 100.0);
    assert!(share < 0.005, "{:.3} % of one CPU", share * 100.0);
}

/// Engines by real stacks: what threads have used says who did the work. Both serve already.
fn one_is_polled_and_the_other_has_a_thread_of_its_own(lasthop: &Lasthop, vms: [&Vm; 2]) {
    let all = CpuList::allowed().expect("CPUs of this process");
    let (Some(core), true) = (all.iter().last(), all.len() > 1) else {
        return eprintln!("not done: with one CPU there is none beside one that polls");
    };
    let poll = format!("poll-{core}");
    lasthop.command(&["engine", "add", "poll", &core.to_string()]);
    for [polled, own] in [["a", "b"], ["b", "a"]] {
        lasthop.command(&["engine", "move", polled, &poll]);
        lasthop.command(&["engine", "move", own, "ports"]);
        let used = || {
            let stats = lasthop.json(&["stats"]);
            let of = |name: &str| {
                let port = stats["ports"].as_array().into_iter().flatten().find(|port| port["name"] == name);
                port.expect("the port")["cpu_ns"].as_u64()
            };
            (proc::threads_ns(lasthop.switch(), &poll), of(own).expect("a thread of its own"), of(polled))
        };
        // Each answers the other: both have something to send.
        checks::ping(vms[0], vms[1]);
        let before = used();
        checks::ping(vms[1], vms[0]);
        checks::tcp(vms[0], vms[1], checks::Depth::Quick);
        checks::tcp(vms[1], vms[0], checks::Depth::Quick);
        let after = used();
        assert!(after.0 > before.0 && after.1 > before.1 && after.2.is_none(), "{before:?} {after:?}");
        let list = lasthop.command(&["engine", "list"]);
        let serves = |engine: &str, port: &str| {
            let line = list.lines().find(|line| line.split_whitespace().next() == Some(engine));
            let ports = line.and_then(|line| line.split_whitespace().next_back());
            // On a device its end of the cable is polled, too.
            ports.is_some_and(|ports| ports.split(',').any(|other| other == port))
        };
        assert!(serves(&poll, polled) && serves("ports", own), "{list}");
    }
    ["a", "b"].iter().for_each(|port| drop(lasthop.command(&["engine", "move", port, "none"])));
    lasthop.command(&["engine", "del", "poll", &core.to_string()]);
    checks::ping(vms[0], vms[1]);
    lasthop.check_sums();
}
