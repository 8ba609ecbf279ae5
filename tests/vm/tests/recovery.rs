//! Processes killed under load, ports that come and go, and VMs that come back.

use lasthop_harness::checks::{self, Counted, Depth};
use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, binary, proc, scratch, wait_for};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

/// VMs a and b on ports that listen, or that connect where `client` is true; with rings as `properties` say.
fn pair(client: bool, properties: &str) -> (tempfile::TempDir, Lasthop, [Vm; 2]) {
    let dir = scratch();
    let port = |n: &str| if client { Port::connect(n, dir.path()) } else { Port::listen(n, dir.path()) };
    let ports = ["a", "b"].map(port);
    let lasthop = Lasthop::start(&ports);
    let nic = |i: usize| {
        let (socket, number) = (&ports[i].socket, i as u8 + 1);
        let nic = if client { Nic::vhost_user_server(socket, number) } else { Nic::vhost_user(socket, number) };
        nic.with(properties)
    };
    let vms = Vm::boot_all([VmConfig::new("a", [nic(0)]), VmConfig::new("b", [nic(1)])]);
    vms.iter().for_each(Vm::serve);
    checks::ping(&vms[0], &vms[1]);
    (dir, lasthop, vms)
}

/// Where it serves.
fn server(vm: &Vm) -> String {
    format!("{}:7000", vm.config.nics[0].ip4())
}

/// The same two VMs see all of it, one after the other.
#[test]
fn who_decides_dies_and_who_carries_is_replaced() {
    let (dir, lasthop, [a, b]) = pair(false, "");
    control_killed_under_load_loses_nothing_that_is_known(&lasthop, &a, &b);
    switch_upgraded_under_load_loses_nothing(&dir.path().join("new"), &lasthop, &a, &b);
    lasthop_started_anew_while_vms_run(dir.path(), lasthop, &a, &b);
}

fn control_killed_under_load_loses_nothing_that_is_known(lasthop: &Lasthop, a: &Vm, b: &Vm) {
    let switch = lasthop.switch();
    let kills = 4;
    let numbers = checks::numbered(a, b, 3000, 1000, || {
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(500));
            lasthop.kill("lasthop-control");
        }
    });
    let all = Counted { received: 3000, gap_ms: numbers.gap_ms, ..Default::default() };
    assert_eq!(numbers, all, "{kills} kills");
    assert_eq!(lasthop.switch(), switch, "the switch goes on");
    // What is new works again as soon as control is back: an address nobody has used yet.
    a.run("ip addr add 10.9.1.1/24 dev eth0");
    b.run("ip addr add 10.9.1.2/24 dev eth0");
    a.run("ping -c 3 -i 0.2 -w 10 -q 10.9.1.2");
    lasthop.check_sums();
    assert!(lasthop.json(&["mac", "list"]).to_string().contains(&a.config.nics[0].mac()), "control has reconciled");
}

/// Another switch takes over, several times, and nobody in the VMs notices: every frame comes, once, and a TCP stream goes on.
fn switch_upgraded_under_load_loses_nothing(release: &Path, lasthop: &Lasthop, a: &Vm, b: &Vm) {
    std::fs::create_dir(release).unwrap();
    for program in ["lasthop", lasthop.data_plane()] {
        std::fs::copy(binary(program), release.join(program)).unwrap();
    }
    let stream = checks::stream(a, &server(b));
    let upgrades = 3;
    let numbers = checks::numbered(a, b, 4000, 1000, || {
        for _ in 0..upgrades {
            std::thread::sleep(Duration::from_millis(800));
            let said = lasthop.json(&["upgrade", "--only", "switch", "--all", "--programs", release.to_str().unwrap()]);
            // On a device there is its end of the cable besides.
            let ports = 2 + usize::from(lasthop.device().is_some());
            assert_eq!(said["ports"].as_array().map(Vec::len), Some(ports), "{said}");
        }
    });
    stream.end();
    let all = Counted { received: 4000, gap_ms: numbers.gap_ms, ..Default::default() };
    assert_eq!(numbers, all, "{upgrades} upgrades");
    checks::all(a, b, Depth::Quick);
    lasthop.check_sums();
}

/// Kills the switch under numbered frames and a TCP stream; says what came of the frames.
fn kill_switch(lasthop: &Lasthop, a: &Vm, b: &Vm, kills: u32) -> Counted {
    let uptime = [a.uptime(), b.uptime()];
    let control = lasthop.control();
    let stream = checks::stream(a, &server(b));
    let numbers = checks::numbered(a, b, 3500, 2000, || {
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(2000));
            lasthop.kill("lasthop-switch");
        }
    });
    // Its content is checked on the far side, so nothing was delivered damaged.
    stream.end();
    assert!(a.alive() && b.alive());
    assert!(a.uptime() > uptime[0] && b.uptime() > uptime[1], "no VM was booted again");
    assert_eq!(lasthop.control(), control, "control goes on");
    checks::all(a, b, Depth::Quick);
    lasthop.check_sums();
    numbers
}

/// What may be in flight when the switch dies: what its rings hold, and what a guest sends while nobody listens.
fn assert_outage(numbers: &Counted) {
    assert_eq!((numbers.repeated, numbers.damaged), (0, 0), "{numbers:?}");
    assert!(numbers.received > 1000, "{numbers:?}");
    eprintln!("{numbers:?}");
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn switch_killed_under_load_where_it_connects() {
    let (_dir, lasthop, [a, b]) = pair(true, "");
    assert_outage(&kill_switch(&lasthop, &a, &b, 3));
}

#[test]
fn switch_killed_under_load_where_it_listens() {
    let (_dir, lasthop, [a, b]) = pair(false, "");
    assert_outage(&kill_switch(&lasthop, &a, &b, 2));
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn switch_killed_under_load_with_packed_rings() {
    let (_dir, lasthop, [a, b]) = pair(true, "packed=on");
    assert_outage(&kill_switch(&lasthop, &a, &b, 3));
}

fn lasthop_started_anew_while_vms_run(dir: &Path, lasthop: Lasthop, a: &Vm, b: &Vm) {
    assert!(lasthop.stop(), "SIGTERM ends all processes");
    let lasthop = Lasthop::start(&["a", "b"].map(|n| Port::listen(n, dir)));
    for port in ["a", "b"] {
        lasthop.wait_for_state(port, "up");
    }
    checks::all(a, b, Depth::Quick);
}

#[test]
fn three_vms_and_ports_that_come_and_go_under_load() {
    let (dir, lasthop, [a, b]) = pair(false, "");
    let stream = checks::stream(&a, &server(&b));
    let numbers = checks::numbered(&a, &b, 6000, 1500, || {
        let third = Port::listen("c", dir.path());
        let path = third.socket.display().to_string();
        for _ in 0..5 {
            lasthop.command(&["port", "add", "c", &path]);
            lasthop.command(&["port", "del", "c"]);
        }
        lasthop.command(&["port", "add", "c", &path]);
        let c = Vm::start("c", [Nic::vhost_user(&third.socket, 3).plain()]);
        c.serve();
        checks::ping(&c, &a);
        checks::tcp(&a, &c, Depth::Quick);
        checks::group(&a, &[&b, &c], "255.255.255.255");
        checks::group(&c, &[&a, &b], "ff02::4242");
        checks::group(&b, &[&a, &c], "239.1.2.3");
        // A port takes its counts along when it goes.
        lasthop.check_sums();
        // The guest's card is pulled from under it.
        lasthop.command(&["port", "del", "c"]);
        assert!(c.alive());
        assert!(!third.socket.exists(), "the socket went with its port");
    });
    assert_eq!((numbers.repeated, numbers.damaged, numbers.reordered), (0, 0, 0), "{numbers:?}");
    // A guest that three others keep busy may run out of buffers; nothing else takes frames away from it.
    let drops = lasthop.port("b")["to_guest"]["drops"].clone();
    let drops = drops.as_array().into_iter().flatten();
    let overrun: u64 = drops.filter(|d| d["reason"] == "no_buffers").filter_map(|d| d["packets"].as_u64()).sum();
    assert!(numbers.lost <= overrun, "{numbers:?}, {overrun} for want of buffers");
    stream.end();
    assert!(!lasthop.command(&["port", "list"]).contains("\nc "));
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_vm_killed_and_booted_again_leaves_nothing_behind() {
    let (dir, lasthop, [a, b]) = pair(false, "");
    let (switch, supervisor) = (lasthop.switch(), lasthop.supervisor());
    // Threads that close what a front-end left behind end a moment later.
    let threads = |p: u32| proc::thread_names(p).iter().filter(|name| !name.starts_with("close-")).count();
    let held = |p: u32| (proc::descriptors(p), threads(p));
    let mut before = [held(switch), held(supervisor)];
    let mut b = Some(b);
    for round in 0..3 {
        drop(b.take());
        lasthop.wait_for_state("b", "waiting");
        b = Some(Vm::start("b", [Nic::vhost_user(&dir.path().join("b.sock"), 2)]));
        lasthop.wait_for_state("b", "up");
        checks::ping(&a, b.as_ref().expect("just booted"));
        if round == 0 {
            before = [held(switch), held(supervisor)];
        }
    }
    assert_eq!([held(switch), held(supervisor)], before, "descriptors and threads");
    let memory = proc::private_kib(switch);
    assert!(memory < 64 * 1024, "the switch holds {memory} KiB of its own");
}

#[test]
fn a_stopped_guest_stops_nobody_else() {
    let (dir, lasthop, [a, b]) = pair(false, "");
    lasthop.command(&["port", "add", "c", &dir.path().join("c.sock").display().to_string()]);
    let c = Vm::start("c", [Nic::vhost_user(&dir.path().join("c.sock"), 3)]);
    checks::ping(&a, &c);
    // Its vCPU stands still and its rings fill up, while the others shout at it and talk to each other.
    proc::signal(c.pid(), Signal::STOP);
    a.background(&format!("ping -f -c 20000 -s 1400 {} >/dev/null", c.config.nics[0].ip4()));
    let numbers = checks::numbered(&a, &b, 3000, 1000, || ());
    assert_eq!((numbers.lost, numbers.repeated, numbers.damaged), (0, 0, 0), "{numbers:?}");
    proc::signal(c.pid(), Signal::CONT);
    wait_for("the stopped guest to answer", Duration::from_secs(20), || {
        a.output(&format!("ping -c 1 -w 1 {}", c.config.nics[0].ip4()), 5).code == 0
    });
    checks::ping(&a, &c);
}
