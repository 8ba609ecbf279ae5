//! Access lists with real processes: what is denied is dropped and counted, what is permitted passes, and a change is in
//! force when the command returns, whatever is killed.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, binary, connect, mac, numbered, proc, scratch, wait_for,
};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Two guests on a lasthop of their own, which know each other.
struct World {
    a: Guest,
    b: Guest,
    lasthop: Lasthop,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = scratch();
        let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
        let lasthop = Lasthop::start(&ports);
        let guest = |i: usize| Guest::connect(&ports[i].socket, mac(i as u8 + 1), Options::default());
        let (mut a, mut b) = (guest(0), guest(1));
        a.greet(&mut b, 0);
        Self { a, b, lasthop, dir }
    }

    fn rules(&self, text: &str) -> String {
        let file = self.dir.path().join("rules");
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }

    fn load(&self, text: &str, more: &[&str]) {
        let file = self.rules(text);
        self.lasthop.command(&[&["acl", "load", &file], more].concat());
    }

    fn denied(&self) -> u64 {
        let drops = self.lasthop.port("a")["from_guest"]["drops"].clone();
        let policy = drops.as_array().unwrap().iter().find(|d| d["reason"] == "acl").cloned();
        policy.map_or(0, |d| d["packets"].as_u64().unwrap())
    }

    /// Sends a datagram from a to b: it arrives, or it is counted as denied.
    fn udp(&mut self, port: u16, passes: bool) {
        let before = self.denied();
        let frame = udp(port);
        self.a.send(&frame);
        if passes {
            self.b.expect(&frame);
        } else {
            // Frames of one guest do not overtake each other: behind a frame that passes nothing is on its way.
            let marker = numbered(mac(1), mac(2), 7, 60);
            self.a.send(&marker);
            let first = self.b.recv("the marker", |_, f| *f == *frame || *f == *marker);
            assert_eq!(first.1, marker, "port {port} should be denied");
            // A burst is counted when it has been delivered.
            wait_for("the drop to be counted", PATIENCE, || self.denied() > before);
            assert_eq!(self.denied(), before + 1, "counted once, as acl");
        }
    }
}

fn udp(port: u16) -> Vec<u8> {
    Frame::between(mac(1), mac(2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1234, port).payload([7; 30]).build()
}

#[test]
fn denied_is_counted_permitted_passes_and_clear_opens_again() {
    let mut w = World::new();
    w.udp(53, true);
    w.load("deny udp to 10.0.0.2 port 53,60-70\n", &[]);
    w.udp(53, false);
    w.udp(65, false);
    w.udp(54, true);
    w.udp(53, false);
    // A port's own list replaces the general one.
    w.load("deny udp to any port 54", &["--port", "a"]);
    w.udp(53, true);
    w.udp(54, false);
    w.lasthop.command(&["acl", "clear", "--port", "a"]);
    w.udp(53, false);
    w.udp(54, true);
    // The receiver's list, and its own file format, on standard input's stand-in.
    w.load(
        "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t54 : 54\t0x11/0xFF\t0x0000/0x0000\n",
        &["--port", "b", "--direction", "to-guest"],
    );
    w.udp(54, false);
    w.lasthop.command(&["acl", "clear", "--port", "b"]);
    w.lasthop.command(&["acl", "clear"]);
    w.udp(53, true);
    w.udp(54, true);
    w.lasthop.check_sums();
}

/// The line that somebody reads at 3 am: which rule, which packet, when.
#[test]
fn what_was_denied_names_the_rule() {
    let mut w = World::new();
    w.load("deny icmp\n", &[]);
    let echo = Frame::between(mac(1), mac(2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).protocol(1).payload([8; 40]).build();
    for _ in 0..3 {
        w.a.send(&echo);
    }
    wait_for("the drops to be counted", PATIENCE, || w.denied() == 3);
    let said = w.lasthop.command(&["stats"]);
    let line = said.lines().find(|line| line.contains("denied")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.starts_with("a: 3 denied by rule 1 \"deny icmp\", "), "{line}");
    assert!(line.ends_with(" s ago (icmp 10.0.0.1 > 10.0.0.2)"), "{line}");
    let json = w.lasthop.json(&["stats"]);
    let denied = &json["switch"]["denied"][0];
    assert_eq!((&denied["port"], &denied["packets"], &denied["rule"]), (&"a".into(), &3.into(), &1.into()), "{denied}");
    // What a killed control had counted is there again: the switch has it.
    w.lasthop.kill("lasthop-control");
    wait_for("the next control to have asked", PATIENCE, || {
        w.lasthop.command(&["stats"]).contains("a: 3 denied by rule 1")
    });
    w.lasthop.check_sums();
}

/// Load and clear in turn, with traffic in between: the first packet after the command is judged by the new list.
#[test]
fn a_change_is_in_force_when_the_command_returns() {
    let mut w = World::new();
    for _ in 0..20 {
        // Warm in every cache on the way.
        for _ in 0..3 {
            w.udp(53, true);
        }
        w.load("deny udp to any port 53", &[]);
        w.udp(53, false);
        w.udp(52, true);
        w.lasthop.command(&["acl", "clear"]);
    }
}

#[test]
fn lists_survive_kills_of_control_and_of_the_switch() {
    let mut w = World::new();
    w.load("deny udp to any port 53", &[]);
    w.udp(53, false);
    w.udp(54, true);
    w.lasthop.kill("lasthop-control");
    // Flows that were there, and one that control has to judge anew.
    w.udp(53, false);
    w.udp(54, true);
    w.udp(55, true);
    // A list that was loaded holds; a change after the kill too.
    w.load("deny udp to any port 55", &[]);
    w.udp(55, false);
    w.udp(53, true);
    let shown = w.lasthop.command(&["acl", "show"]);
    assert!(shown.contains("deny udp to any port 55") && !shown.contains("port 53"), "{shown}");
    let (switch, control) = (w.lasthop.switch(), w.lasthop.control());
    w.lasthop.kill("lasthop-switch");
    assert_ne!(w.lasthop.switch(), switch);
    assert_eq!(w.lasthop.control(), control, "control goes on");
    let front = connect(&w.dir.path().join("a.sock"));
    w.a.reattach(front, None).unwrap();
    let front = connect(&w.dir.path().join("b.sock"));
    w.b.reattach(front, None).unwrap();
    for port in ["a", "b"] {
        w.lasthop.wait_for_state(port, "up");
    }
    w.udp(55, false);
    w.udp(53, true);
}

/// `lasthop run` in `dir`, ready. Ends with the handle.
struct Run(std::process::Child);

impl Run {
    fn start(dir: &Path) -> Self {
        let mut command = lasthop_run(dir, &dir.join("state"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        proc::signal(self.0.id(), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// From an address of 10.0.0.0/24, to b.
fn udp_from(host: u8, port: u16) -> Vec<u8> {
    Frame::between(mac(1), mac(2)).ipv4([10, 0, 0, host], [10, 0, 0, 2]).udp(1234, port).payload([host; 30]).build()
}

impl World {
    /// Sends a datagram from a with this source: whether it arrives at b, or is counted as denied.
    fn arrives(&mut self, host: u8) -> bool {
        let (frame, before, mut came) = (udp_from(host, 53), self.denied(), false);
        self.a.send(&frame);
        wait_for("the datagram, or its drop", PATIENCE, || {
            came |= self.b.drain().iter().any(|f| **f == *frame);
            came || self.denied() > before
        });
        came
    }

    fn refused(&self, arguments: &[&str], says: &str) {
        let output = self.lasthop.try_command(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(says), "{arguments:?}: {error}");
    }

    /// Packets that met flows of the switch, without the one that made them.
    fn hits(&self) -> u64 {
        let flows = self.lasthop.json(&["flow", "list"])["flows"].clone();
        flows.as_array().unwrap().iter().map(|flow| flow["packets"].as_u64().unwrap()).sum()
    }
}

#[test]
fn a_set_of_addresses_changes_and_its_lists_go_by_it_at_once_and_after_deaths() {
    let mut w = World::new();
    let list = w.rules("permit ethertype 0x88b5\npermit ip from @web\ndefault deny\n");
    w.refused(&["acl", "load", &list, "--port", "a"], "`lasthop set add web ");
    assert!(w.lasthop.command(&["set", "add", "web", "10.0.0.5", "fd00::/64"]).starts_with("set web: made; 2 joined"));
    w.lasthop.command(&["acl", "load", &list, "--port", "a"]);
    assert!(w.arrives(5) && !w.arrives(6), "one is in the set, the other is not");
    // Its flow is the switch's, and stays while others' come and go.
    assert!(w.arrives(5));
    let said = w.lasthop.command(&["set", "add", "web", "10.0.0.6"]);
    assert!(said.contains("1 joined, 0 left, it has 3 now; 1 flow judged anew"), "{said}");
    assert!(w.arrives(6) && w.arrives(5), "it has joined");
    w.lasthop.command(&["set", "del", "web", "10.0.0.5"]);
    assert!(w.arrives(6) && !w.arrives(5), "it has left");
    let traced = w.lasthop.command(&["trace", "--in-port", "a", "--frame", &hex(&udp_from(6, 53))]);
    assert!(traced.contains("permit ip from @web"), "{traced}");
    w.refused(&["set", "destroy", "web"], "port a names @web");
    w.refused(&["set", "add", "web", "10.0.0.300"], "10.0.0.0/8");
    w.refused(&["set", "del", "web", "10.0.0.5"], "`lasthop set list web`");
    w.refused(&["set", "list", "other"], "`lasthop set add other`");
    assert_eq!(w.lasthop.command(&["set", "list", "web"]), "10.0.0.6\nfd00::/64\n");

    // Control dies: the next one knows the set, and changes it.
    w.lasthop.kill("lasthop-control");
    assert!(w.arrives(6), "known flows go on");
    let file = w.dir.path().join("addresses");
    std::fs::write(&file, "10.0.0.5 # again\n\n10.0.0.7\n").unwrap();
    w.lasthop.command(&["set", "add", "web", "--file", file.to_str().unwrap()]);
    assert!(w.arrives(7) && w.arrives(5) && w.arrives(6) && !w.arrives(8));
    assert!(w.hits() > 0);
    w.lasthop.command(&["acl", "clear", "--port", "a"]);
    assert!(w.arrives(8), "no list");
    w.lasthop.command(&["set", "destroy", "web"]);
    assert!(w.lasthop.command(&["set", "list"]).starts_with("no sets"));
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn lists_are_there_in_the_next_run() {
    let dir = scratch();
    let command = |words: &[&str]| {
        let mut command = Command::new(binary("lasthop"));
        let out = command.args(words).arg("--run-dir").arg(dir.path()).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let rules = dir.path().join("rules");
    // Longer than one message between processes.
    let text: String = (0..3000).map(|n| format!("deny udp to 10.0.{}.{} port {n}\n", n / 250, n % 250)).collect();
    std::fs::write(&rules, text + "permit to-guest arp\ndefault to-guest deny\n").unwrap();
    let run = Run::start(dir.path());
    command(&["acl", "load", rules.to_str().unwrap()]);
    let shown = command(&["acl", "show"]);
    assert_eq!(shown.lines().count(), 1 + 3001 + 2);
    drop(run);
    let _run = Run::start(dir.path());
    assert_eq!(command(&["acl", "show"]), shown);
}

#[test]
fn a_bad_file_changes_nothing() {
    let mut w = World::new();
    w.load("deny udp to any port 53", &[]);
    for bad in ["deny udp\npermit", "deny udp\n\u{0}", "@1.2.3.4/33\n", "deny udp to any port 53 54"] {
        let out = w.lasthop.try_command(&["acl", "load", &w.rules(bad)]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && said.contains("line ") && said.contains("nothing was changed"),
            "{bad:?}: {said}"
        );
    }
    w.udp(53, false);
    w.udp(54, true);
}

#[test]
fn headers_that_hide_ports_do_not_get_past_rules_about_ports() {
    let mut w = World::new();
    w.load("default deny\npermit ethertype 0x88b5\npermit udp to any port 54", &[]);
    let first = Frame::between(mac(1), mac(2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let short = first.clone().protocol(17).fragment(0x2000).payload([0, 1, 0, 54]).build();
    let later = first.clone().protocol(17).fragment(0x2001).payload([1; 40]).build();
    let tcp_later = first.protocol(6).fragment(0x2001).payload([1; 40]).build();
    let marker = numbered(mac(1), mac(2), 9, 60);
    for frame in [&short, &tcp_later, &later, &marker] {
        w.a.try_send(VnetHdr::default(), frame);
    }
    let arrived: Vec<_> = std::iter::from_fn(|| {
        let (_, frame) = w.b.recv("a frame", |_, f| [&short, &tcp_later, &later, &marker].contains(&&f.to_vec()));
        (frame != marker).then_some(frame)
    })
    .collect();
    assert_eq!(arrived, [later], "the later fragment of a datagram that may pass, and nothing else");
}

/// A file of saved lists that was damaged: the switch does not open what somebody closed.
#[test]
fn a_damaged_file_of_saved_lists_stops_the_start() {
    let dir = scratch();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let file = state.join("acl.rules");
    std::fs::write(&file, "# lasthop access lists, format 1. `lasthop acl load` writes this file.\nlist from-gue")
        .unwrap();
    let out = lasthop_run(dir.path(), &state).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{said}");
    assert!(
        said.contains("acl.rules: line 2") && said.contains("move it away to start without access lists"),
        "{said}"
    );
}

fn lasthop_run(dir: &Path, state: &Path) -> Command {
    let mut command = Command::new(binary("lasthop"));
    command.arg("run").arg("--run-dir").arg(dir).arg("--state-dir").arg(state);
    command
}
