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

/// Two guests that know each other at ports `a` and `b`, and a port `c` that nobody is at.
struct Site {
    a: Guest,
    b: Guest,
    lasthop: Lasthop,
    ports: [Port; 3],
    installed: Installed,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        Self::start(None, &[])
    }

    fn start(netns: Option<&Netns>, arguments: &[&str]) -> Self {
        let dir = scratch();
        let installed = Installed::new(dir.path());
        let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
        let lasthop = installed.start(netns, &ports, arguments);
        let [mut a, mut b] =
            [(0, 1), (1, 2)].map(|(n, number)| Guest::connect(&ports[n].socket, mac(number), Options::default()));
        a.greet(&mut b, 0);
        Self { a, b, lasthop, ports, installed, _dir: dir }
    }

    /// With an uplink on this end of a veth pair, and a station at the other.
    fn with_uplink(uplink: &str) -> (Self, Outside, Netns) {
        let netns = Netns::new();
        netns.ip("link add v0 numtxqueues 2 numrxqueues 2 type veth peer name v1 numtxqueues 2 numrxqueues 2");
        netns.ip("link set v0 up");
        netns.ip("link set v1 up");
        let outside = Outside { station: Station::on(&netns, "v1"), number: 0 };
        let site = Self::start(Some(&netns), &["--uplink", uplink]);
        site.lasthop.wait_for_state("net", "up");
        (site, outside, netns)
    }

    fn uplink(&self) -> Value {
        self.lasthop.json(&["uplink", "list"])["uplinks"][0].clone()
    }
}

/// A station in the network.
struct Outside {
    station: Station,
    number: u32,
}

impl Outside {
    /// Frames come in and go out. Those that come while one process takes over from the other may be lost.
    fn reaches(&mut self, a: &mut Guest, what: &str) {
        let outside = mac(9);
        wait_for(what, PATIENCE, || {
            self.number += 1;
            let number = self.number;
            self.station.send(&numbered(outside, mac(1), number, 100));
            let got = a.recv_within(std::time::Duration::from_millis(20));
            a.try_send(VnetHdr::default(), &numbered(mac(1), outside, number, 100));
            got.is_some_and(|(_, frame)| number_of(&frame).is_some_and(|got| got <= number))
        });
        self.station.drain();
    }
}

/// Only what was installed anew is replaced, and only where no connection ends with it.
#[test]
fn what_has_changed_is_replaced_and_nothing_else() {
    let Site { mut a, mut b, lasthop, ports, installed, _dir } = Site::new();
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
    let mut site = Site::new();
    let Site { a, b, lasthop, .. } = &mut site;
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            for _ in 0..5 {
                let (names, _) = upgraded(lasthop, &["--only", "control", "--all"]);
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
    let Site { mut a, mut b, lasthop, ports, installed, _dir } = Site::new();
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
    // Nor of a port whose front-end leaves after that, or that has one when the program is put there: then nothing can be tried.
    drop(b);
    b = Guest::connect(&ports[1].socket, mac(2), Options::default());
    b.greet_when_back(&mut a, 10);
    let (names, _) = upgraded(&lasthop, &["--only", "sessions"]);
    assert!(names.is_empty(), "all ports have front-ends: {names:?}");
    drop(b);
    wait_for("it to be said", PATIENCE, || lasthop.log().contains("the program before goes on, as its new one"));
    b = Guest::connect(&ports[1].socket, mac(2), Options::default());
    b.greet_when_back(&mut a, 20);
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
    let (mut site, mut outside, _netns) = Site::with_uplink("net=v0,driver=af_packet");
    outside.reaches(&mut site.a, "frames to come in");
    let before = site.uplink()["pid"].clone();
    site.installed.broken("lasthop-uplink");
    let said = refused(&site.lasthop, &[]);
    assert!(said.contains("uplink net: ") && said.contains("the program before goes on"), "{said}");
    assert_eq!(site.uplink()["pid"], before, "it has not ended");
    outside.reaches(&mut site.a, "frames to come in as before");

    for _ in 0..3 {
        site.installed.again("lasthop-uplink");
        let before = site.uplink()["pid"].clone();
        let (names, _) = upgraded(&site.lasthop, &[]);
        assert_eq!(names, ["uplink net"]);
        let now = site.uplink();
        assert!(now["pid"] != before && now["restarts"] == 0 && now["spare"].is_null(), "{now}");
        outside.reaches(&mut site.a, "frames to come in through the new one");
        let uplinks = processes(&site.lasthop).into_values().filter(|name| name == "lasthop-uplink").count();
        assert_eq!(uplinks, 1, "one that stood by for this alone is not kept");
    }
    // Its session process, too: the uplink connects by itself.
    site.installed.again("lasthop-session");
    let (names, _) = upgraded(&site.lasthop, &[]);
    assert_eq!(names, ["session c", "session net"]);
    outside.reaches(&mut site.a, "frames to come in through the new session process");
    assert_eq!(times_replaced(&site.lasthop), 0);
}

/// It needs one as any port does, and says so where somebody looks for it.
#[test]
fn an_uplink_whose_session_process_cannot_be_started_says_so() {
    let (mut site, mut outside, _netns) = Site::with_uplink("net=v0,driver=af_packet");
    outside.reaches(&mut site.a, "frames to come in");
    let session = site.installed.0.join("lasthop-session");
    std::fs::remove_file(&session).unwrap();
    let is_its = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.contains("--port\0net\0"))
    };
    let its = processes(&site.lasthop).into_keys().find(is_its).expect("it runs");
    proc::signal(its, rustix::process::Signal::KILL);
    let why = |site: &Site| site.uplink()["last_error"].as_str().unwrap_or_default().to_owned();
    wait_for("it to be said", PATIENCE, || why(&site).starts_with("cannot start session net: "));
    assert!(why(&site).contains("install it there again"), "{}", why(&site));
    let found = site.lasthop.try_command(&["doctor", "--json", "--for", "1", "net"]).stdout;
    assert!(String::from_utf8_lossy(&found).contains("cannot start session net"), "{found:?}");
    site.installed.again("lasthop-session");
    outside.reaches(&mut site.a, "frames to come in again");
    assert_eq!(site.uplink()["state"], "up");
}

/// Where nothing can be handed down one ends before the other starts. A new one that hangs is ended, and is followed by the program before.
#[test]
fn an_uplink_that_hangs_is_followed_by_the_program_before() {
    let (mut site, mut outside, _netns) = Site::with_uplink("net=v0,driver=af_xdp,queues=2");
    outside.reaches(&mut site.a, "frames to come in");
    let before = site.uplink()["pid"].clone();
    site.installed.put("lasthop-uplink", |new| std::fs::write(new, "#!/bin/sh\nexec sleep 1000\n").unwrap());
    let said = refused(&site.lasthop, &[]);
    assert!(said.contains("uplink net: ") && said.contains("the program before goes on"), "{said}");
    outside.reaches(&mut site.a, "frames to come in through the program before");
    let now = site.uplink();
    assert!(now["pid"] != before && now["state"] == "up", "{now}");
    wait_for("the one that hangs to have ended", PATIENCE, || {
        !processes(&site.lasthop).into_values().any(|name| name == "sleep")
    });
    site.installed.again("lasthop-uplink");
    let (names, _) = upgraded(&site.lasthop, &[]);
    assert_eq!(names, ["uplink net"]);
    outside.reaches(&mut site.a, "frames to come in through the new one");
}
