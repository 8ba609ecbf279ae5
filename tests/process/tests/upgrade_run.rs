//! `lasthop upgrade` of `lasthop run` itself: the process becomes another program. Its children are the same, nobody's connection ends, no packet is lost, and
//! all that can be asked of it can be asked of the new program. One that cannot go on changes nothing.

#[allow(dead_code, reason = "the wire alone is used here")]
mod outside;

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Plug, Port, binary, mac, number_of, numbered, proc};
use lasthop_tests_process::{scratch, wait_for};
use outside::Wire;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Sent and not received: fewer than the receiver has buffers.
const WINDOW: u32 = 100;

/// A directory with all programs, of which `lasthop` is another file.
fn release(dir: &Path, name: &str) -> PathBuf {
    let release = dir.join(name);
    std::fs::create_dir(&release).unwrap();
    for program in ["lasthop-switch", "lasthop-control", "lasthop-session", "lasthop-uplink"] {
        std::os::unix::fs::symlink(binary(program), release.join(program)).unwrap();
    }
    std::fs::copy(binary("lasthop"), release.join("lasthop")).unwrap();
    release
}

/// The same with a script in the place of `lasthop run`; what it is asked besides, the true program answers.
fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let release = release(dir, name);
    let program = release.join("lasthop");
    std::fs::remove_file(&program).unwrap();
    let lasthop = binary("lasthop");
    let text = format!(
        "#!/bin/sh\nLASTHOP={}\nif [ \"$1\" = messages ]; then exec $LASTHOP messages; fi\n{body}\n",
        lasthop.display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    release
}

fn children(lasthop: &Lasthop) -> BTreeMap<u32, String> {
    proc::children(lasthop.pid()).into_iter().collect()
}

fn upgrade(lasthop: &Lasthop, release: &Path) -> Output {
    lasthop.try_command(&["upgrade", "--only", "run", "--json", "--programs", release.to_str().unwrap()])
}

/// The process becomes the program of this release, and its children stay.
fn becomes(lasthop: &Lasthop, release: &Path) {
    // Of one that was killed something may be left.
    wait_for("one switch to be left", PATIENCE, || {
        children(lasthop).into_values().filter(|name| name == "lasthop-switch").count() == 1
    });
    let (before, out) = (children(lasthop), upgrade(lasthop, release));
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), lasthop.log());
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let process = &said["processes"][0];
    assert_eq!((process["process"].as_str(), process["pid"].as_u64()), (Some("run"), Some(u64::from(lasthop.pid()))));
    let runs = std::fs::read_link(format!("/proc/{}/exe", lasthop.pid())).unwrap();
    assert_eq!(runs, release.join("lasthop"));
    assert_eq!(children(lasthop), before, "its children are others");
}

/// What is wrong; the process is the program that it was.
fn stays(lasthop: &Lasthop, release: &Path) -> String {
    let runs = || std::fs::read_link(format!("/proc/{}/exe", lasthop.pid())).unwrap();
    let (program, before) = (runs(), children(lasthop));
    let out = upgrade(lasthop, release);
    assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    assert_eq!((runs(), children(lasthop)), (program, before));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Sends numbered frames to the other, as many as its window lets it, and checks what comes from there: all, once, in order.
fn exchange(guest: &mut Guest, other: u8, [mine, theirs]: [&AtomicU32; 2], stop: &AtomicBool) {
    let (own, other) = (guest.mac, mac(other));
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        while sent < theirs.load(Ordering::Relaxed) + WINDOW {
            let len = 60 + (sent as usize * 71) % 1400;
            if !guest.try_send(VnetHdr::default(), &numbered(own, other, sent + 1, len)) {
                break;
            }
            sent += 1;
        }
        let mut wait = Duration::from_millis(2);
        while let Some((_, frame)) = guest.recv_within(wait) {
            wait = Duration::ZERO;
            let Some(number) = number_of(&frame) else { continue };
            let next = mine.load(Ordering::Relaxed) + 1;
            assert_eq!(number, next, "at {own}: lost, twice or out of order");
            mine.store(next, Ordering::Relaxed);
        }
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two guests exchange frames while `job` is done; what it is given waits until more have come both ways.
fn under_load(a: &mut Guest, b: &mut Guest, job: impl FnOnce(&dyn Fn())) {
    let (stop, got) = (AtomicBool::new(false), [AtomicU32::new(0), AtomicU32::new(0)]);
    a.drain();
    b.drain();
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let one = scope.spawn(|| exchange(a, 2, [&got[0], &got[1]], &stop));
        let two = scope.spawn(|| exchange(b, 1, [&got[1], &got[0]], &stop));
        let flows = || {
            let before = [0, 1].map(|i| got[i].load(Ordering::Relaxed));
            wait_for("frames to flow", PATIENCE, || {
                assert!(!one.is_finished() && !two.is_finished(), "see above");
                [0, 1].iter().all(|i| got[*i].load(Ordering::Relaxed) > before[*i] + 2 * WINDOW)
            });
        };
        flows();
        job(&flows);
    });
}

fn options() -> Options {
    Options::net(|n| (n.packed, n.size, n.event_idx) = (true, 256, true))
}

/// Ports that come and go afterwards do, and processes that end are started again, with the guests' connections as ever.
fn works(lasthop: &Lasthop, dir: &Path, a: &mut Plug, b: &mut Plug, number: u32) {
    let socket = dir.join("new.sock");
    lasthop.command(&["port", "add", "new", socket.to_str().unwrap()]);
    let mut c = Guest::connect(&socket, mac(3), options());
    a.guest.greet_when_back(&mut c, number);
    lasthop.command(&["port", "del", "new"]);
    wait_for("the connection of the port to end", PATIENCE, || c.is_disconnected());
    assert!(!socket.exists());
    lasthop.command(&["port", "set", "p1", "--tx-batch", "off"]);
    lasthop.kill("lasthop-control");
    a.guest.greet_when_back(&mut b.guest, number + 10);
    lasthop.kill("lasthop-switch");
    wait_for("front-ends to be back", PATIENCE, || {
        a.mend();
        b.mend();
        let up = |name| lasthop.try_command(&["show", name]).status.success() && lasthop.port(name)["state"] == "up";
        !a.guest.is_disconnected() && !b.guest.is_disconnected() && up("p1") && up("p2")
    });
    a.guest.greet_when_back(&mut b.guest, number + 20);
}

fn everything_goes_on(client: bool) {
    let dir = scratch();
    let releases = ["one", "two", "three"].map(|name| release(dir.path(), name));
    let (port_a, a) = Plug::new(dir.path().join("a.sock"), client, 1, options());
    let (port_b, b) = Plug::new(dir.path().join("b.sock"), client, 2, options());
    let idle = Port::listen("idle", dir.path());
    let lasthop = Lasthop::start(&[port_a, port_b, Port::listen("idle", dir.path())]);
    let (mut a, mut b) = (a(), b());
    a.guest.greet(&mut b.guest, 0);
    let ino = |path: &Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
    let api = ino(&lasthop.run_dir().join("api.sock"));
    under_load(&mut a.guest, &mut b.guest, |flows| {
        for release in &releases[..2] {
            becomes(&lasthop, release);
            flows();
        }
    });
    assert!(!a.guest.is_disconnected() && !b.guest.is_disconnected(), "a connection ended");
    assert_eq!(ino(&lasthop.run_dir().join("api.sock")), api, "the socket was made anew");
    let mut c = Guest::connect(&idle.socket, mac(4), options());
    a.guest.greet_when_back(&mut c, 1 << 20);
    works(&lasthop, dir.path(), &mut a, &mut b, 2 << 20);
    // What has come about under the new program is handed over as well.
    becomes(&lasthop, &releases[2]);
    a.guest.greet_when_back(&mut b.guest, 3 << 20);
    works(&lasthop, dir.path(), &mut a, &mut b, 4 << 20);
    let stats = lasthop.json(&["stats"]);
    let replaced = stats["switch"]["replaced"].as_array().unwrap();
    let times = |name: &str| replaced.iter().find(|of| of["process"] == name).unwrap()["times"].as_u64();
    assert_eq!((times("switch"), times("control")), (Some(2), Some(2)), "deaths from before are known");
    lasthop.check_sums();
    // It ends as it does without: cleanly, and with all its children.
    let all = lasthop.pids();
    assert!(lasthop.stop());
    wait_for("all to end", PATIENCE, || all.iter().all(|pid| !proc::alive(*pid)));
    assert!(!idle.socket.exists(), "the socket of a port is left behind");
}

#[test]
fn everything_goes_on_where_lasthop_listens() {
    everything_goes_on(false);
}

#[test]
fn everything_goes_on_where_lasthop_connects() {
    everything_goes_on(true);
}

/// An uplink's process goes on, and its device is handed down when it is killed afterwards.
#[test]
fn an_uplink_goes_on() {
    let (wire, dir) = (Wire::veth(1), scratch());
    let new = release(dir.path(), "new");
    let start = |side: &str, device: &str| {
        let port = Port::listen(side, dir.path());
        let lasthop = Lasthop::start_in(Some(wire.netns()), &[port], &["--uplink", device]);
        lasthop.wait_for_state("net", "up");
        lasthop
    };
    let (left, _right) = (start("left", &wire.left), start("right", &wire.right));
    wire.join();
    let guest = |side: &str, n| Guest::connect(&dir.path().join(format!("{side}.sock")), mac(n), options());
    let (mut near, mut far) = (guest("left", 1), guest("right", 2));
    near.greet(&mut far, 0);
    let uplink = || left.json(&["uplink", "list"])["uplinks"][0].clone();
    under_load(&mut near, &mut far, |flows| {
        let before = uplink();
        becomes(&left, &new);
        flows();
        let after = uplink();
        let carried = |of: &Value| of["to_network"]["packets"].as_u64().unwrap();
        assert!(after["pid"] == before["pid"] && carried(&after) > carried(&before), "{before}\n{after}");
    });
    proc::signal(uplink()["pid"].as_u64().unwrap() as u32, Signal::KILL);
    wait_for("another process", PATIENCE, || uplink()["restarts"] == 1 && left.port("net")["state"] == "up");
    near.greet_when_back(&mut far, 1 << 20);
    assert!(!near.is_disconnected(), "a connection ended");
}

/// Each says what is wrong.
#[test]
fn a_program_that_cannot_go_on_changes_nothing() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let mut a = Guest::connect(&ports[0].socket, mac(1), options());
    let mut b = Guest::connect(&ports[1].socket, mac(2), options());
    a.greet(&mut b, 0);
    let check = "case \"$*\" in *--take-over-check*)";
    let wrong = [
        ("dies", "exit 3".to_owned(), "cannot go on from here (exit status: 3)"),
        ("says", format!("{check} echo a state of version 7 >&2; exit 1;; esac"), "a state of version 7"),
        // One that was good for nothing else than to be executed once.
        ("gone", format!("{check} rm \"$0\"; exit 0;; esac"), "No such file or directory"),
        // It has been executed, and executes the one before again.
        ("later", format!("{check} exit 0;; esac\nexec $LASTHOP \"$@\" --device x,engines=1000"), "engines="),
    ];
    under_load(&mut a, &mut b, |flows| {
        for (name, body, why) in &wrong {
            let said = stays(&lasthop, &script(dir.path(), name, body));
            assert!(said.contains(why) && said.contains("goes on as the program that it was"), "{name}: {said}");
            flows();
        }
    });
    assert!(!a.is_disconnected() && !b.is_disconnected(), "a connection ended");
    let socket = dir.path().join("c.sock");
    lasthop.command(&["port", "add", "c", socket.to_str().unwrap()]);
    let mut c = Guest::connect(&socket, mac(3), options());
    a.greet_when_back(&mut c, 1 << 20);
    under_load(&mut a, &mut b, |flows| {
        becomes(&lasthop, &release(dir.path(), "good"));
        flows();
    });
}

/// It would run with all that lasthop may.
#[test]
fn programs_that_others_can_change_are_refused() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("a", dir.path())]);
    let new = release(dir.path(), "new");
    let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    for path in [new.clone(), new.join("lasthop")] {
        set(&path, 0o777);
        let said = stays(&lasthop, &new);
        assert!(said.contains("others may write to it") && said.contains("chmod go-w"), "{said}");
        set(&path, 0o755);
    }
    becomes(&lasthop, &new);
}

/// `lasthop run` as a service manager starts it, in these directories.
fn service(dir: &Path, ports: &[Port]) -> std::process::Child {
    let mut run = lasthop_tests_process::spawn::spawn("KILL", binary("lasthop").to_str().unwrap(), |c| {
        c.arg("run").arg("--run-dir").arg(dir.join("run")).arg("--state-dir").arg(dir.join("state"));
        for port in ports {
            c.args(["--port", &format!("{}={}", port.name, port.socket.display())]);
        }
        c.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    });
    let mut line = String::new();
    let stdout = run.stdout.as_mut().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    run
}

/// Prints for how long nothing comes when `lasthop run` is killed and started again at once, by a guest whose machine connects as soon as it can.
#[test]
#[ignore = "a measurement"]
fn how_long_packets_are_away_when_it_is_killed() {
    let dir = scratch();
    // Packed rings need the journal, which is gone.
    let split = Options::net(|n| (n.size, n.event_idx) = (256, true));
    let (port_a, a) = Plug::new(dir.path().join("a.sock"), false, 1, split);
    let (port_b, b) = Plug::new(dir.path().join("b.sock"), false, 2, split);
    let ports = [port_a, port_b];
    let mut run = service(dir.path(), &ports);
    let (mut a, mut b) = (a(), b());
    a.guest.greet(&mut b.guest, 0);
    let (mut ready, mut back) = (Vec::new(), Vec::new());
    for round in 1..=20 {
        let began = std::time::Instant::now();
        run.kill().unwrap();
        run.wait().unwrap();
        run = service(dir.path(), &ports);
        ready.push(began.elapsed());
        a.mend();
        b.mend();
        let mut number = round * 10_000;
        loop {
            number += 1;
            a.guest.try_send(VnetHdr::default(), &numbered(mac(1), mac(2), number, 100));
            b.guest.try_send(VnetHdr::default(), &numbered(mac(2), mac(1), number, 100));
            let come = b.guest.recv_within(Duration::from_millis(1));
            if come.is_some_and(|(_, frame)| number_of(&frame).is_some_and(|got| got > round * 10_000)) {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "nothing comes");
        }
        back.push(began.elapsed());
        a.guest.drain();
        b.guest.drain();
    }
    run.kill().unwrap();
    run.wait().unwrap();
    for (what, mut times) in [("ready", ready), ("a frame comes", back)] {
        times.sort_unstable();
        eprintln!("{what}: median {:?}, longest {:?}", times[times.len() / 2], times[times.len() - 1]);
    }
}
