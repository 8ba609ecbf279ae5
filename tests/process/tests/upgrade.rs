//! `lasthop upgrade`: another switch takes over under load. Nobody's connection ends, nothing comes twice, and nothing is lost of flows that are known.
//! When it fails, the one before goes on.

#[allow(dead_code, reason = "the wire alone is used here")]
mod outside;

use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Plug, Port, binary, mac, numbered, proc, raw, scratch, under_load, wait_for,
};
use lasthop_vhostuser::ProtocolFeatures;
use lasthop_virtqueue::driver::NetDriver;
use outside::Wire;
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

/// A new release: the same programs in another directory.
fn release(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    for program in ["lasthop", "lasthop-switch"] {
        std::fs::copy(binary(program), dir.join(program)).unwrap();
    }
}

/// A release whose `lasthop-switch` is this.
fn release_with(dir: &Path, switch: &str) {
    std::fs::create_dir(dir).unwrap();
    symlink(binary("lasthop"), dir.join("lasthop")).unwrap();
    std::fs::write(dir.join("lasthop-switch"), switch).unwrap();
    std::fs::set_permissions(dir.join("lasthop-switch"), PermissionsExt::from_mode(0o755)).unwrap();
}

fn upgrade(lasthop: &Lasthop, release: &Path) -> Output {
    let words = ["upgrade", "--only", "switch", "--all", "--json", "--programs", release.to_str().unwrap()];
    lasthop.try_command(&words)
}

/// Upgrades, and what it says.
fn upgraded(lasthop: &Lasthop, release: &Path) -> Value {
    let (before, out) = (lasthop.switch(), upgrade(lasthop, release));
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{stderr}\n{}", lasthop.log());
    let said: Value = serde_json::from_str(&stdout).unwrap();
    let pid = &said["processes"][0]["pid"];
    assert_ne!(*pid, before, "it is the same process");
    wait_for("the switch before to be gone", PATIENCE, || !proc::alive(before));
    assert_eq!(*pid, lasthop.switch());
    said
}

/// What is wrong, of one that fails; the switch before goes on.
fn refused(lasthop: &Lasthop, release: &Path) -> String {
    let (before, out) = (lasthop.switch(), upgrade(lasthop, release));
    assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    wait_for("the other to be gone", PATIENCE, || {
        let switches = proc::children(lasthop.pid()).into_iter().filter(|(_, name)| name == "lasthop-switch");
        switches.map(|(pid, _)| pid).collect::<Vec<_>>() == [before]
    });
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn traffic_goes_on(client: bool, options: Options) {
    let dir = scratch();
    release(&dir.path().join("new"));
    let (port_a, a) = Plug::new(dir.path().join("a.sock"), client, 1, options);
    let (port_b, b) = Plug::new(dir.path().join("b.sock"), client, 2, options);
    let lasthop = Lasthop::start(&[port_a, port_b]);
    let (mut a, mut b) = (a(), b());
    a.guest.greet(&mut b.guest, 0);
    under_load(&mut a.guest, &mut b.guest, |flows| {
        for _ in 0..4 {
            let said = upgraded(&lasthop, &dir.path().join("new"));
            let ports = said["ports"].as_array().unwrap();
            assert_eq!(ports.len(), 2, "{said}");
            assert!(ports.iter().all(|port| port["pause_us"].as_u64() > Some(0)), "{said}");
            flows();
        }
    });
    assert!(!a.guest.is_disconnected() && !b.guest.is_disconnected(), "a connection ended");
    let stats = lasthop.json(&["stats"]);
    let replaced = stats["switch"]["replaced"].as_array().unwrap();
    assert!(replaced.iter().all(|process| process["times"] == 0), "{stats}");
    a.guest.drain();
    b.guest.drain();
    // What is told from here on is told to the new one.
    a.guest.reset();
    a.guest.greet(&mut b.guest, 1 << 20);
    lasthop.check_sums();
}

fn rings(packed: bool) -> Options {
    Options::net(|n| (n.packed, n.size, n.event_idx) = (packed, 256, true))
}

#[test]
fn traffic_goes_on_over_split_rings() {
    traffic_goes_on(false, rings(false));
}

#[test]
fn traffic_goes_on_over_packed_rings() {
    traffic_goes_on(false, rings(true));
}

#[test]
fn traffic_goes_on_where_lasthop_connects() {
    traffic_goes_on(true, rings(true));
}

#[test]
fn traffic_goes_on_over_several_queue_pairs() {
    traffic_goes_on(false, Options::net(|n| (n.size, n.pairs) = (256, 4)));
}

/// The switch that takes over has the guest's translations as well.
#[test]
fn traffic_goes_on_where_the_guest_has_an_iommu() {
    let dir = scratch();
    release(&dir.path().join("new"));
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let options = Options { iommu: true, ..rings(false) };
    let mut a = Guest::connect(&ports[0].socket, mac(1), options);
    let mut b = Guest::connect(&ports[1].socket, mac(2), Options { iommu: false, ..options });
    let (memory, _) = a.net.region();
    let pages = |size: u64| (0..size / 4096).map(|page| memory.guest_addr + page * 4096).collect::<Vec<_>>();
    a.grant(&pages(memory.size));
    lasthop.wait_for_state("a", "up");
    under_load(&mut a, &mut b, |flows| {
        for _ in 0..3 {
            upgraded(&lasthop, &dir.path().join("new"));
            let port = lasthop.port("a");
            assert!(port["translation"].is_object(), "{port}");
            flows();
        }
    });
    assert!(!a.is_disconnected() && !b.is_disconnected(), "a connection ended");
    // What it takes back is taken back from the new one.
    a.drain();
    b.drain();
    a.revoke(0, 0xfee0_0000);
    a.revoke(0xfef0_0000, 0xffff_ffff_0110_0000);
    b.send(&numbered(mac(2), mac(1), 1 << 20, 100));
    wait_for("pages to be asked for anew", PATIENCE, || !a.asked().is_empty());
    assert!(a.try_recv().is_none(), "it came without a page");
}

/// An uplink is a front-end like any other.
#[test]
fn traffic_goes_on_through_an_uplink() {
    let wire = Wire::veth(1);
    let dir = scratch();
    release(&dir.path().join("new"));
    let start = |side: &str, device: &str| {
        let port = Port::listen(side, dir.path());
        let lasthop = Lasthop::start_in(Some(wire.netns()), &[port], &["--uplink", device]);
        lasthop.wait_for_state("net", "up");
        lasthop
    };
    let (left, _right) = (start("left", &wire.left), start("right", &wire.right));
    wire.join();
    let guest = |side: &str, n| Guest::connect(&dir.path().join(format!("{side}.sock")), mac(n), rings(false));
    let (mut near, mut far) = (guest("left", 1), guest("right", 2));
    near.greet(&mut far, 0);
    let pid = || left.json(&["uplink", "list"])["uplinks"][0]["pid"].clone();
    let before = pid();
    under_load(&mut near, &mut far, |flows| {
        for _ in 0..3 {
            let said = upgraded(&left, &dir.path().join("new"));
            assert_eq!(said["ports"].as_array().unwrap().len(), 2, "{said}");
            flows();
        }
    });
    assert!(!near.is_disconnected(), "a connection ended");
    assert_eq!(pid(), before, "the uplink's process was replaced");
}

/// A port that nobody is at, one whose front-end has said nothing yet, and ports that come later.
#[test]
fn ports_without_rings_go_over_as_well() {
    let dir = scratch();
    release(&dir.path().join("new"));
    let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let protocol = ProtocolFeatures::all();
    let options = Options { mtu: Some(1400), protocol, ..rings(false) };
    let mut a = Guest::connect(&ports[0].socket, mac(1), options);
    let silent = lasthop_tests_process::connect(&ports[1].socket);
    silent.set_owner().unwrap();
    wait_for("all to be connected", PATIENCE, || lasthop.port("b")["state"] == "connected");
    let known = |port: &Value| {
        let of = |name: &str| port[name].clone();
        ["state", "features", "protocol_features", "mtu", "memory_bytes", "memory_regions", "queues"].map(of)
    };
    let before = known(&lasthop.port("a"));
    let said = upgraded(&lasthop, &dir.path().join("new"));
    wait_for("the port to be the same", PATIENCE, || known(&lasthop.port("a")) == before);
    assert_eq!(before[3], 1400, "its MTU");
    assert_eq!(said["ports"][0]["port"], "a");
    assert_eq!(said["ports"][1], serde_json::json!({ "port": "b", "pause_us": null }), "{said}");
    let mut b = Guest::attach(silent, NetDriver::new(rings(false).net).expect("guest memory"), mac(2), rings(false));
    a.greet_when_back(&mut b, 1);
    let mut c = Guest::connect(&ports[2].socket, mac(3), rings(true));
    a.greet_when_back(&mut c, 2);
    let socket = dir.path().join("d.sock");
    lasthop.command(&["port", "add", "d", socket.to_str().unwrap()]);
    let mut d = Guest::connect(&socket, mac(4), rings(true));
    a.greet_when_back(&mut d, 3);
    upgraded(&lasthop, &dir.path().join("new"));
    d.greet_when_back(&mut c, 4);
    // A ring that breaks now is told of where the front-end has said before.
    let available = a.net.queues()[1].layout.driver + 2;
    raw::poke(a.net.memory(), available, &0x8000u16.to_le_bytes());
    a.net.queues()[1].kick.signal();
    wait_for("the front-end to hear that its ring broke", PATIENCE, || a.errors[1].drain());
}

/// Each says what is wrong, and the switch before goes on: nothing is lost.
#[test]
fn a_program_that_cannot_take_over_changes_nothing() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let mut a = Guest::connect(&ports[0].socket, mac(1), rings(false));
    let mut b = Guest::connect(&ports[1].socket, mac(2), rings(true));
    a.greet(&mut b, 0);
    let before = lasthop.switch();
    under_load(&mut a, &mut b, |flows| {
        let wrong = [
            ("#!/bin/sh\nexit 3\n", "the new switch ended: exit status: 3"),
            ("#!/bin/sh\nkill -9 $$\n", "the new switch ended: signal: 9"),
            ("no program", "the new switch ended: exit status: 127"),
        ];
        for (i, (program, why)) in wrong.into_iter().enumerate() {
            let release = dir.path().join(format!("{i}"));
            release_with(&release, program);
            let said = refused(&lasthop, &release);
            assert!(said.contains(why), "{said}");
            flows();
        }
        let missing = dir.path().join("missing");
        release_with(&missing, "");
        std::fs::remove_file(missing.join("lasthop-switch")).unwrap();
        let said = refused(&lasthop, &missing);
        assert!(said.contains("lasthop-switch is not in") && said.contains("nothing has changed"), "{said}");
        // One that says other things is not even started.
        let other = dir.path().join("other");
        release(&other);
        std::fs::remove_file(other.join("lasthop")).unwrap();
        std::fs::write(other.join("lasthop"), "#!/bin/sh\necho 0123456789abcdef\n").unwrap();
        std::fs::set_permissions(other.join("lasthop"), PermissionsExt::from_mode(0o755)).unwrap();
        let said = refused(&lasthop, &other);
        assert!(said.contains("say other things") && said.contains("0123456789abcdef"), "{said}");
        flows();
    });
    assert!(!a.is_disconnected() && !b.is_disconnected(), "a connection ended");
    assert_eq!(lasthop.switch(), before);
    release(&dir.path().join("new"));
    under_load(&mut a, &mut b, |_| drop(upgraded(&lasthop, &dir.path().join("new"))));
}

/// Whoever dies, or hangs, while another switch takes over, and whenever: traffic goes on with the switch before, with the new one, or with the next that is
/// started. What was asked is answered.
fn somebody_ends(victim: impl Fn(&Lasthop, u32) -> u32, signal: Signal) {
    let dir = scratch();
    release(&dir.path().join("new"));
    let (port_a, a) = Plug::new(dir.path().join("a.sock"), false, 1, rings(false));
    let (port_b, b) = Plug::new(dir.path().join("b.sock"), false, 2, rings(true));
    let lasthop = Lasthop::start_with(&[port_a, port_b], &["--watchdog", "200"]);
    let (mut a, mut b) = (a(), b());
    a.guest.greet(&mut b.guest, 0);
    for round in 1..=6 {
        let before = lasthop.switch();
        let (out, ends) = std::thread::scope(|scope| {
            let asked = scope.spawn(|| upgrade(&lasthop, &dir.path().join("new")));
            let mut other = None;
            wait_for("the other switch to be started", PATIENCE, || {
                let there = proc::children(lasthop.pid()).into_iter();
                other = there.map(|(pid, _)| pid).find(|pid| *pid != before && runs_switch(*pid));
                other.is_some() || asked.is_finished()
            });
            std::thread::sleep(Duration::from_millis(4 * round - 4));
            let ends = victim(&lasthop, other.unwrap_or(before));
            proc::signal(ends, signal);
            (asked.join().unwrap(), ends)
        });
        // Before its end is noticed everybody looks as if they were back.
        let is_gone = || signal != Signal::KILL || !Path::new(&format!("/proc/{ends}")).exists();
        wait_for("its end to be noticed", PATIENCE, is_gone);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success() || said.starts_with("lasthop: "), "{said}");
        let up = |name: &str| {
            let list = lasthop.try_command(&["port", "list", "--json"]);
            let list: Value = serde_json::from_slice(&list.stdout).unwrap_or_default();
            let mut ports = list["ports"].as_array().into_iter().flatten();
            ports.any(|port| port["name"] == name && port["state"] == "up")
        };
        wait_for("both to be back", PATIENCE, || {
            a.mend();
            b.mend();
            up("p1") && up("p2") && !a.guest.is_disconnected() && !b.guest.is_disconnected()
        });
        a.guest.greet_when_back(&mut b.guest, 100 * round as u32);
    }
}

fn runs_switch(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("lasthop-switch"))
}

#[test]
fn the_new_switch_may_be_killed_at_any_time() {
    somebody_ends(|_, other| other, Signal::KILL);
}

#[test]
fn the_switch_before_may_be_killed_at_any_time() {
    somebody_ends(other_than, Signal::KILL);
}

/// The switch that is not this one, if there is one.
fn other_than(lasthop: &Lasthop, not: u32) -> u32 {
    let there = proc::children(lasthop.pid()).into_iter().map(|(pid, _)| pid);
    there.filter(|pid| *pid != not).find(|pid| runs_switch(*pid)).unwrap_or(not)
}

#[test]
fn a_session_process_may_be_killed_at_any_time() {
    somebody_ends(|lasthop, _| lasthop.child("lasthop-session"), Signal::KILL);
}

#[test]
fn control_may_be_killed_at_any_time() {
    somebody_ends(|lasthop, _| lasthop.control(), Signal::KILL);
}

#[test]
fn the_new_switch_may_hang_at_any_time() {
    somebody_ends(|_, other| other, Signal::STOP);
}

/// Prints for how long ports pause. Guests send and receive nothing but what they are asked to at the first two ports.
#[test]
#[ignore = "a measurement"]
fn how_long_ports_pause() {
    for (ports, rounds) in [(1, 40), (8, 20), (64, 8)] {
        let dir = scratch();
        release(&dir.path().join("new"));
        let ports: Vec<_> = (0..ports).map(|n| Port::listen(&format!("p{n}"), dir.path())).collect();
        let lasthop = Lasthop::start(&ports);
        let guests = ports.iter().zip(1..).map(|(port, n)| Guest::connect(&port.socket, mac(n), Options::default()));
        let guests: Vec<_> = guests.collect();
        ports.iter().for_each(|port| lasthop.wait_for_state(&port.name, "up"));
        let mut pauses = Vec::new();
        for _ in 0..rounds {
            let said = upgraded(&lasthop, &dir.path().join("new"));
            let of = said["ports"].as_array().unwrap().iter().map(|port| port["pause_us"].as_u64().unwrap());
            pauses.extend(of);
        }
        assert!(guests.iter().all(|guest| !guest.is_disconnected()));
        pauses.sort_unstable();
        let at = |percent: usize| pauses[(pauses.len() * percent / 100).min(pauses.len() - 1)] as f64 / 1000.0;
        eprintln!(
            "{} ports, {rounds} upgrades: median {:.2} ms, p99 {:.2} ms, longest {:.2} ms",
            ports.len(),
            at(50),
            at(99),
            at(100)
        );
    }
}
