//! `lasthop upgrade` of control, of uplinks and of session processes: each is replaced by the newly installed program, guests' known flows go on meanwhile, and a
//! program that does not come up is followed by the one before.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, binary, mac, number_of, numbered, proc, scratch, wait_for,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

const PROGRAMS: [&str; 5] = ["lasthop", "lasthop-switch", "lasthop-control", "lasthop-session", "lasthop-uplink"];

/// An installation, whose programs a package would replace.
struct Installed(PathBuf);

impl Installed {
    fn new(dir: &Path) -> Self {
        let installed = Self(dir.join("programs"));
        std::fs::create_dir(&installed.0).unwrap();
        PROGRAMS.iter().for_each(|program| installed.again(program));
        installed
    }

    /// As a package manager does: a new file takes the name.
    fn put(&self, program: &str, write: impl FnOnce(&Path)) {
        let new = self.0.join("new");
        write(&new);
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(new, self.0.join(program)).unwrap();
    }

    /// A newly built program that does the same.
    fn again(&self, program: &str) {
        self.put(program, |new| assert!(std::fs::copy(binary(program), new).unwrap() > 0));
    }

    /// One that ends at once.
    fn broken(&self, program: &str) {
        self.put(program, |new| std::fs::write(new, "#!/bin/sh\nexit 3\n").unwrap());
    }

    fn start(&self, netns: Option<&Netns>, ports: &[Port], arguments: &[&str]) -> Lasthop {
        let libexec = ["--libexec", self.0.to_str().unwrap()];
        Lasthop::start_in(netns, ports, &[&libexec, arguments].concat())
    }
}

/// By their names.
fn processes(lasthop: &Lasthop) -> BTreeMap<u32, String> {
    proc::children(lasthop.pid()).into_iter().collect()
}

fn upgrade(lasthop: &Lasthop, options: &[&str]) -> Output {
    lasthop.try_command(&[&["upgrade", "--json"], options].concat())
}

/// The processes that it says it has replaced, and what it says of others.
fn upgraded(lasthop: &Lasthop, options: &[&str]) -> (Vec<String>, Value) {
    let out = upgrade(lasthop, options);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{stderr}\n{}", lasthop.log());
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut names = Vec::new();
    for process in said["processes"].as_array().unwrap() {
        let name = process["process"].as_str().unwrap();
        let pid = process["pid"].as_u64().unwrap() as u32;
        assert!(proc::alive(pid) && process["took_us"].as_u64() > Some(0), "{said}");
        names.push(name.to_owned());
    }
    (names, said["kept"].clone())
}

fn refused(lasthop: &Lasthop, options: &[&str]) -> String {
    let out = upgrade(lasthop, options);
    assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn times_replaced(lasthop: &Lasthop) -> u64 {
    let stats = lasthop.json(&["stats"]);
    stats["switch"]["replaced"].as_array().unwrap().iter().map(|of| of["times"].as_u64().unwrap()).sum()
}

/// Two guests that know each other, and a port nobody is at.
fn guests(dir: &Path) -> ([Port; 3], impl FnOnce() -> [Guest; 2]) {
    let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir));
    let sockets = [ports[0].socket.clone(), ports[1].socket.clone()];
    (ports, move || {
        let mut number = 0;
        sockets.map(|socket| {
            number += 1;
            Guest::connect(&socket, mac(number), Options::default())
        })
    })
}

/// Only what was installed anew is replaced, and only where no connection ends with it.
#[test]
fn what_has_changed_is_replaced_and_nothing_else() {
    let dir = scratch();
    let installed = Installed::new(dir.path());
    let (ports, connect) = guests(dir.path());
    let lasthop = installed.start(None, &ports, &[]);
    let [mut a, mut b] = connect();
    a.greet(&mut b, 0);
    let before = processes(&lasthop);
    assert_eq!(upgraded(&lasthop, &[]), (vec![], json!([])));
    assert_eq!(processes(&lasthop), before, "nothing has changed");

    installed.again("lasthop-control");
    let (names, kept) = upgraded(&lasthop, &[]);
    assert_eq!((names, kept), (vec!["control".to_owned()], json!([])));
    let now = processes(&lasthop);
    assert_eq!(now.keys().filter(|pid| !before.contains_key(pid)).count(), 1);
    // It knows what the one before has, and learns what is new.
    a.send(&numbered(mac(1), mac(2), 1, 100));
    b.expect_number(1);
    assert!(lasthop.json(&["mac", "list"])["macs"].as_array().unwrap().len() >= 2);

    installed.again("lasthop-session");
    let (names, kept) = upgraded(&lasthop, &[]);
    assert_eq!(names, ["session c"]);
    let kept: Vec<_> = kept.as_array().unwrap().iter().map(|of| of["process"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kept, ["session a", "session b"]);
    b.send(&numbered(mac(2), mac(1), 2, 100));
    a.expect_number(2);
    assert!(!a.is_disconnected() && !b.is_disconnected());
    // Once its front-end has gone, that of a port is replaced as well.
    let sessions = || {
        let all = processes(&lasthop).into_iter().filter(|(_, name)| name == "lasthop-session");
        all.map(|(pid, _)| pid).collect::<Vec<_>>()
    };
    let before = sessions();
    drop(b);
    wait_for("the process of b to be replaced", PATIENCE, || {
        let now = sessions();
        now.len() == 3 && now != before
    });
    let (names, kept) = upgraded(&lasthop, &["--only", "sessions"]);
    assert_eq!((names.len(), kept.as_array().unwrap().len()), (0, 1), "{kept}");
    let mut b = Guest::connect(&ports[1].socket, mac(2), Options::default());
    a.greet_when_back(&mut b, 3);

    let (names, _) = upgraded(&lasthop, &["--all"]);
    assert_eq!(names, ["switch", "session c", "control", "run"]);
    a.greet_when_back(&mut b, 4);
    assert_eq!(times_replaced(&lasthop), 0, "none of them was at fault");
    lasthop.check_sums();
}

/// Frames of a known flow pass while control is replaced again and again.
#[test]
fn known_flows_go_on_while_control_is_replaced() {
    let dir = scratch();
    let installed = Installed::new(dir.path());
    let (ports, connect) = guests(dir.path());
    let lasthop = installed.start(None, &ports, &[]);
    let [mut a, mut b] = connect();
    a.greet(&mut b, 0);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            for _ in 0..5 {
                let (names, _) = upgraded(&lasthop, &["--only", "control", "--all"]);
                assert_eq!(names, ["control"]);
            }
        });
        let mut number = 1;
        while !asked.is_finished() {
            a.send(&numbered(mac(1), mac(2), number, 60 + number as usize % 1400));
            b.expect_number(number);
            number += 1;
        }
        assert!(number > 100, "{number}");
    });
    assert!(!a.is_disconnected() && !b.is_disconnected());
}

/// The program before comes back, although its file has no name any more.
#[test]
fn a_control_that_does_not_come_up_is_followed_by_the_one_before() {
    let dir = scratch();
    let installed = Installed::new(dir.path());
    let (ports, connect) = guests(dir.path());
    let lasthop = installed.start(None, &ports, &[]);
    let [mut a, mut b] = connect();
    a.greet(&mut b, 0);
    installed.broken("lasthop-control");
    let said = refused(&lasthop, &[]);
    assert!(said.contains("control: ") && said.contains("the program before goes on"), "{said}");
    a.send(&numbered(mac(1), mac(2), 1, 100));
    b.expect_number(1);
    assert_eq!(lasthop.json(&["port", "list"])["ports"].as_array().unwrap().len(), 3);
    // A session process that does not come up, either.
    installed.broken("lasthop-session");
    let said = refused(&lasthop, &["--only", "sessions"]);
    assert!(said.contains("session c: "), "{said}");
    let mut c = Guest::connect(&ports[2].socket, mac(3), Options::default());
    c.greet(&mut a, 2);
    // Mended, they are replaced after all.
    installed.again("lasthop-control");
    installed.again("lasthop-session");
    let (names, _) = upgraded(&lasthop, &[]);
    assert_eq!(names, ["control"], "all ports have front-ends now");
    a.greet_when_back(&mut b, 3);
}

/// The new process is there before the one before ends; and what does not come up changes nothing.
#[test]
fn an_uplink_is_replaced_by_one_that_stands_by() {
    let (netns, dir) = (Netns::new(), scratch());
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v0 up");
    netns.ip("link set v1 up");
    let station = Station::on(&netns, "v1");
    let installed = Installed::new(dir.path());
    let (ports, connect) = guests(dir.path());
    let lasthop = installed.start(Some(&netns), &ports, &["--uplink", "net=v0,driver=af_packet"]);
    lasthop.wait_for_state("net", "up");
    let [mut a, _b] = connect();
    let outside = mac(9);
    let mut number = 0;
    let mut passes = |what: &str| {
        // Frames that come while one takes over from the other may be lost.
        wait_for(what, PATIENCE, || {
            number += 1;
            station.send(&numbered(outside, mac(1), number, 100));
            let got = a.recv_within(std::time::Duration::from_millis(20));
            a.try_send(VnetHdr::default(), &numbered(mac(1), outside, number, 100));
            got.is_some_and(|(_, frame)| number_of(&frame).is_some_and(|got| got <= number))
        });
        station.drain();
    };
    passes("frames to come in");
    let uplink = || lasthop.json(&["uplink", "list"])["uplinks"][0].clone();
    let before = uplink()["pid"].clone();
    installed.broken("lasthop-uplink");
    let said = refused(&lasthop, &[]);
    assert!(said.contains("uplink net: ") && said.contains("the program before goes on"), "{said}");
    assert_eq!(uplink()["pid"], before, "it has not ended");
    passes("frames to come in as before");

    for _ in 0..3 {
        installed.again("lasthop-uplink");
        let before = uplink()["pid"].clone();
        let (names, _) = upgraded(&lasthop, &[]);
        assert_eq!(names, ["uplink net"]);
        let now = uplink();
        assert!(now["pid"] != before && now["restarts"] == 0 && now["spare"].is_null(), "{now}");
        passes("frames to come in through the new one");
        let uplinks = processes(&lasthop).into_values().filter(|name| name == "lasthop-uplink").count();
        assert_eq!(uplinks, 1, "one that stood by for this alone is not kept");
    }
    // Its session process, too: the uplink connects by itself.
    installed.again("lasthop-session");
    let (names, _) = upgraded(&lasthop, &[]);
    assert_eq!(names, ["session c", "session net"]);
    passes("frames to come in through the new session process");
    assert_eq!(times_replaced(&lasthop), 0);
}
