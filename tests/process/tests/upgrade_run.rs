//! `lasthop upgrade` of `lasthop run` itself: the process becomes another program. Its children are the same, nobody's connection ends, no packet is lost, and
//! all that can be asked of it can be asked of the new program. One that cannot go on changes nothing.

#[allow(dead_code, reason = "the wire alone is used here")]
mod outside;

use lasthop_frame::VnetHdr;
use lasthop_tests_process::Station;
use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Plug, Port, binary, mac, number_of, numbered, proc,
};
use lasthop_tests_process::{becomes, connect, release, scratch, script, stays, under_load, upgrade_run, wait_for};
use outside::Wire;
use rustix::process::Signal;
use serde_json::Value;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

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
fn an_uplink_goes_on(wire: &Wire) {
    let dir = scratch();
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

#[test]
fn an_uplink_on_packet_sockets_goes_on() {
    an_uplink_goes_on(&Wire::veth(1));
}

#[test]
fn an_uplink_on_af_xdp_goes_on() {
    an_uplink_goes_on(&Wire::xdp());
}

/// Its interface has gone to another namespace, where the kernel tells nothing of it: the next program knows that it is used there.
#[test]
fn an_uplink_in_another_namespace_goes_on() {
    let (netns, other, dir) = (Netns::new(), Netns::new(), scratch());
    let port = Port::listen("a", dir.path());
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    let uplinks = ["--uplink", "net=t0,tap", "--uplink", "other=v0,af_packet"];
    let lasthop = Lasthop::start_in(Some(&netns), std::slice::from_ref(&port), &uplinks);
    lasthop.wait_for_state("net", "up");
    lasthop.wait_for_state("other", "up");
    netns.ip(&format!("link set t0 netns {}", other.name()));
    other.ip("link set t0 up");
    lasthop.wait_for_state("net", "up");
    let mut guest = Guest::connect(&port.socket, mac(1), options());
    let mut passes = |number: u32| {
        let station = Station::on(&other, "t0");
        wait_for("a frame to go out", PATIENCE, || {
            guest.try_send(VnetHdr::default(), &numbered(mac(1), mac(9), number, 100));
            station.recv_within(Duration::from_millis(50)).is_some_and(|frame| number_of(&frame) == Some(number))
        });
    };
    passes(1);
    for (number, name) in [(2, "one"), (3, "two")] {
        becomes(&lasthop, &release(dir.path(), name));
        // When the kernel says something of another one, it looks what is known of all.
        netns.ip("link set v1 down");
        wait_for("it to hear of that", PATIENCE, || lasthop.port("other")["state"] != "up");
        assert_eq!(lasthop.port("net")["state"], "up", "{}", lasthop.log());
        netns.ip("link set v1 up");
        lasthop.wait_for_state("other", "up");
        passes(number);
    }
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
        (
            "changed",
            format!("{check} echo : >>{}/changed/lasthop; exit 0;; esac", dir.path().display()),
            "was written to while",
        ),
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

/// The program that was looked at is the one that is executed, whatever has its name by then; and is shown by its name.
#[test]
fn another_program_that_gets_the_name_meanwhile_is_not_executed() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let [mut a, mut b] = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), options()));
    a.greet(&mut b, 0);
    let (new, good) = (dir.path().join("new"), release(dir.path(), "good").join("lasthop"));
    let (name, good) = (new.join("lasthop").display().to_string(), good.display().to_string());
    // It puts another in its place, as a package does.
    let swap = format!("printf '#!/bin/sh\nexit 3\n' >{name}.new; chmod 755 {name}.new; mv {name}.new {name}; exit 0");
    script(dir.path(), "new", &format!("case \"$*\" in *--take-over-check*) {swap};; esac\nexec {good} \"$@\""));
    under_load(&mut a, &mut b, |flows| {
        let out = upgrade_run(&lasthop, &new);
        assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), lasthop.log());
        flows();
    });
    assert_eq!(std::fs::read_to_string(&name).unwrap(), "#!/bin/sh\nexit 3\n", "the other has its name");
    let of = |what: &str| format!("/proc/{}/{what}", lasthop.pid());
    assert_eq!(std::fs::read_link(of("exe")).unwrap().display().to_string(), good);
    assert_eq!(proc::name(lasthop.pid()), "lasthop");
    assert!(lasthop.log().contains(&format!("this process becomes {name}")), "{}", lasthop.log());
}

/// What a front-end has left may never close, and execve(2) would wait for it: the port has gone meanwhile.
#[test]
fn what_does_not_close_holds_up_nobody() {
    let dir = scratch();
    let ports = ["a", "b", "x"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let [mut a, mut b] = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), options()));
    a.greet(&mut b, 0);
    let x = dir.path().join("y.sock");
    lasthop.command(&["port", "add", "y", x.to_str().unwrap()]);
    let first = connect(&x);
    first.set_owner().unwrap();
    wait_for("the first front-end", PATIENCE, || lasthop.port("y")["state"] == "connected");
    // The second is refused, with a socket in it that lingers as long as the other end likes.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let lingers = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    lingers.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &lingers, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(600))).unwrap();
    let second = std::os::unix::net::UnixStream::connect(&x).unwrap();
    let sent = lasthop_sys::send_with_fds(&second, b"x", &[lingers.as_fd()], rustix::net::SendFlags::empty());
    assert_eq!(sent, Ok(1));
    drop(lingers);
    wait_for("it to be refused", PATIENCE, || lasthop.log().contains("a second front-end refused"));
    drop((first, second));
    lasthop.command(&["port", "del", "y"]);
    let new = release(dir.path(), "new");
    under_load(&mut a, &mut b, |flows| {
        let said = stays(&lasthop, &new);
        assert!(said.contains("is still being closed") && said.contains("end whoever serves them"), "{said}");
        flows();
    });
    drop(listener);
    becomes(&lasthop, &new);
    a.greet_when_back(&mut b, 1 << 20);
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
