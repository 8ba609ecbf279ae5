//! Networks that are broken, each in its own way: `lasthop doctor` alone finds what it is, and where its remedy is a command that command mends it.

use lasthop_frame::testutil;
use lasthop_sys::EventFd;
use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, binary, connect, mac, numbered, scratch, spawn, wait_for,
};
use lasthop_text::MacAddr;
use lasthop_vhostuser::{Features, ProtocolFeatures};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What goes on while a test looks at something else.
fn nothing() {}

/// A network: lasthop with ports of guests, in a namespace of its own with the veth v0, whose other end is v1.
struct Site {
    lasthop: Lasthop,
    netns: Netns,
    dir: tempfile::TempDir,
}

impl Site {
    fn new(ports: &[&str], arguments: &[&str]) -> Self {
        let (netns, dir) = (Netns::new(), scratch());
        for (one, other) in [("v0", "v1"), ("w0", "w1")] {
            netns.ip(&format!("link add {one} type veth peer name {other}"));
            netns.ip(&format!("link set {other} up"));
        }
        let ports: Vec<_> = ports.iter().map(|name| Port::listen(name, dir.path())).collect();
        // Whether eBPF is permitted here is no part of these networks.
        let lasthop = Lasthop::start_in(Some(&netns), &ports, &[arguments, &["--no-bpf"]].concat());
        Self { lasthop, netns, dir }
    }

    fn guest(&self, port: &str, mac: MacAddr, options: Options) -> Guest {
        let guest = Guest::connect(&self.dir.path().join(format!("{port}.sock")), mac, options);
        self.lasthop.wait_for_state(port, "up");
        guest
    }

    /// Guests at these ports, numbered from 1.
    fn guests<const N: usize>(&self, ports: [&str; N]) -> [Guest; N] {
        let mut number = 0;
        ports.map(|port| {
            number += 1;
            self.guest(port, mac(number), Options::default())
        })
    }

    fn doctor(&self, meanwhile: impl FnMut()) -> Vec<Value> {
        doctor(&self.lasthop.run_dir(), &[], meanwhile)
    }

    /// Waits until something is found: that alone, and what it is.
    fn finds(&self, kind: &str, port: Option<&str>, meanwhile: impl FnMut()) -> Value {
        finds(&self.lasthop.run_dir(), kind, port, meanwhile)
    }

    /// Runs the command of a finding, as it is printed, where lasthop runs.
    fn run(&self, finding: &Value) {
        let command = finding["command"].as_str().unwrap_or_else(|| panic!("no command: {finding}"));
        let programs = binary("lasthop").parent().expect("a directory").display().to_string();
        self.netns.shell(&format!("PATH={programs}:$PATH; {command}"));
    }

    /// The network is well, whatever goes on.
    fn is_well(&self, mut meanwhile: impl FnMut()) {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let found = self.doctor(&mut meanwhile);
            if found.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{found:#?}");
        }
    }
}

/// As `wait_for`, for what takes a second itself.
fn wait_for_slowly(what: &str, done: impl FnMut() -> bool) {
    wait_for(what, PATIENCE + Duration::from_secs(20), done);
}

/// All findings, while something goes on. The exit status says whether there are any.
fn doctor(run_dir: &Path, words: &[&str], mut meanwhile: impl FnMut()) -> Vec<Value> {
    let mut command = Command::new(binary("lasthop"));
    command.args(["doctor", "--json", "--for", "1"]).args(words).arg("--run-dir").arg(run_dir);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lasthop starts");
    while child.try_wait().expect("a child").is_none() {
        meanwhile();
        std::thread::sleep(Duration::from_millis(20));
    }
    let out = child.wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&out.stdout);
    let report: Value = serde_json::from_str(&said)
        .unwrap_or_else(|e| panic!("{e}: {said:?}, {:?}", String::from_utf8_lossy(&out.stderr)));
    let findings = report["findings"].as_array().expect("a list").clone();
    assert_eq!(out.status.code(), Some(i32::from(!findings.is_empty())), "{said}");
    findings
}

fn finds(run_dir: &Path, kind: &str, port: Option<&str>, mut meanwhile: impl FnMut()) -> Value {
    let mut found = Vec::new();
    let is = |f: &Value| f["kind"] == kind && f["port"].as_str() == port;
    wait_for_slowly(&format!("{kind} of {port:?} to be found"), || {
        found = doctor(run_dir, &[], &mut meanwhile);
        found.iter().any(is)
    });
    let [finding] = &found[..] else { panic!("{kind}, and what else? {found:#?}") };
    let has = |name: &str| finding[name].as_str().is_some_and(|text| !text.is_empty());
    assert!(has("what") && has("remedy") && finding["evidence"][0].is_string(), "{finding}");
    finding.clone()
}

/// What it says to do has these words.
fn advises(finding: &Value, words: &str) {
    assert!(finding["remedy"].as_str().is_some_and(|remedy| remedy.contains(words)), "{words:?}? {finding}");
}

fn broadcast(from: &mut Guest) {
    from.send(&numbered(from.mac, MacAddr::BROADCAST, 1, 60));
}

fn arp(from: &mut Guest) {
    from.send(&testutil::arp(1, (from.mac, [10, 0, 0, 1]), (MacAddr([0; 6]), [10, 0, 0, 2])));
}

#[test]
fn a_healthy_network() {
    let site = Site::new(&["a", "b"], &["--uplink", "net=v0,af_packet"]);
    site.lasthop.wait_for_state("net", "up");
    site.lasthop.command(&["port", "set", "a", "--mac", &mac(1).to_string(), "--rate-from", "1G"]);
    let [mut a, mut b] = site.guests(["a", "b"]);
    let mut number = 0;
    let mut traffic = || {
        number += 1;
        a.greet(&mut b, number);
    };
    traffic();
    site.is_well(&mut traffic);
    // And of one port.
    assert!(doctor(&site.lasthop.run_dir(), &["a"], traffic).is_empty());
    let text = site.lasthop.command(&["doctor", "--for", "1"]);
    assert!(text.starts_with("nothing found: looked at 3 ports for 1 second\n"), "{text}");
    assert!(text.contains("not known: whether the MTU inside the guests of a, b fits"), "{text}");
    let out = site.lasthop.try_command(&["doctor", "nobody"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no port named"), "{out:?}");
}

/// A front-end that hands over no memory.
#[test]
fn memory_that_is_not_shared_and_a_driver_that_has_not_started() {
    let site = Site::new(&["a", "b"], &[]);
    let front = |port: &str| {
        let front = connect(&site.dir.path().join(format!("{port}.sock")));
        front.set_owner().expect("an answer");
        front
    };
    let mut a = front("a");
    a.set_protocol_features(ProtocolFeatures::empty()).expect("an answer");
    let finding = site.finds("driver-not-started", Some("a"), nothing);
    advises(&finding, "virtio");
    a.set_features(Features::VERSION_1 | Features::PROTOCOL_FEATURES).expect("an answer");
    let kick = EventFd::new().expect("an eventfd");
    for ring in 0..2 {
        a.set_size(ring, 256).expect("an answer");
        a.set_base(ring, 0).expect("an answer");
        a.set_kick(ring, Some(kick.as_fd())).expect("an answer");
        a.enable(ring, true).expect("an answer");
    }
    let finding = site.finds("memory-not-shared", Some("a"), nothing);
    advises(&finding, "share=on");
    // It comes again, with its memory.
    drop(a);
    site.lasthop.wait_for_state("a", "waiting");
    let _a = site.guest("a", mac(1), Options::default());
    site.is_well(nothing);
}

#[test]
fn a_dead_cable_and_an_interface_that_is_set_down() {
    let site = Site::new(&["a"], &["--uplink", "net=v0,af_packet"]);
    site.lasthop.wait_for_state("net", "up");
    site.netns.ip("link set v1 down");
    let finding = site.finds("no-carrier", Some("net"), nothing);
    advises(&finding, "cable");
    site.netns.ip("link set v1 up");
    site.is_well(nothing);
    site.netns.ip("link set v0 down");
    site.run(&site.finds("interface-down", Some("net"), nothing));
    site.is_well(nothing);
}

#[test]
fn a_rule_that_denies() {
    let site = Site::new(&["a", "b"], &[]);
    let [mut a, _b] = site.guests(["a", "b"]);
    let rules = site.dir.path().join("a.rules");
    let load = |text: &str| {
        std::fs::write(&rules, text).expect("a file");
        site.lasthop.command(&["acl", "load", rules.to_str().expect("text"), "--port", "a"]);
    };
    load("permit from-guest tcp\ndeny from-guest arp\n");
    let finding = site.finds("denied", Some("a"), || arp(&mut a));
    let what = finding["what"].as_str().unwrap_or_default();
    assert!(what.contains("rule 2 (deny") && what.contains("from-guest list of port a"), "{finding}");
    advises(&finding, "permit it before that rule");
    load("permit from-guest arp\ndeny from-guest arp\n");
    site.is_well(|| arp(&mut a));
}

#[test]
fn a_cable_that_somebody_has_pulled() {
    let site = Site::new(&["a", "b"], &[]);
    let [mut a, _b] = site.guests(["a", "b"]);
    site.lasthop.command(&["port", "set", "a", "--link", "down"]);
    site.run(&site.finds("link-down", Some("a"), || broadcast(&mut a)));
    site.is_well(|| broadcast(&mut a));
}

#[test]
fn vlans_that_nobody_else_is_in() {
    let site = Site::new(&["a", "b"], &["--uplink", "net=v0,af_packet,vlans=20"]);
    site.lasthop.wait_for_state("net", "up");
    for (port, vlan) in [("a", "10"), ("b", "20")] {
        site.lasthop.command(&["port", "set", port, "--vlan", vlan]);
    }
    let [mut a, _b] = site.guests(["a", "b"]);
    site.run(&site.finds("vlan-alone", Some("a"), nothing));
    site.is_well(|| broadcast(&mut a));
}

#[test]
fn an_address_that_a_port_may_not_use() {
    let site = Site::new(&["a", "b"], &[]);
    site.lasthop.command(&["port", "set", "a", "--mac", &mac(9).to_string()]);
    let [mut a, _b] = site.guests(["a", "b"]);
    let finding = site.finds("spoofed", Some("a"), || arp(&mut a));
    assert!(finding["what"].as_str().is_some_and(|what| what.contains(&mac(1).to_string())), "{finding}");
    site.run(&finding);
    site.is_well(|| arp(&mut a));
}

#[test]
fn an_address_that_two_guests_have() {
    let site = Site::new(&["a", "b"], &[]);
    let mut guests = ["a", "b"].map(|port| site.guest(port, mac(7), Options::default()));
    let mut fight = || {
        guests.iter_mut().for_each(|guest| {
            broadcast(guest);
            guest.all_taken();
            guest.drain();
        });
    };
    let ours = |f: &Value| f["kind"] == "duplicate-mac";
    let mut found = Vec::new();
    wait_for_slowly("two claims to be found", || {
        found = site.doctor(&mut fight);
        found.iter().any(ours)
    });
    assert!(found.iter().all(ours), "{found:#?}");
    let what = found[0]["what"].as_str().unwrap_or_default();
    assert!(what.contains(&mac(7).to_string()) && what.contains("two ports claim"), "{found:#?}");
    let both = [&found[0]["port"], &found[0]["also"][0]].map(|name| name.as_str().unwrap_or_default());
    assert!(both == ["a", "b"] || both == ["b", "a"], "{found:#?}");
    advises(&found[0], "another address");
}

/// b takes nothing; then c, a mirror's destination.
#[test]
fn a_receiver_without_buffers_and_a_mirror_that_loses() {
    let site = Site::new(&["a", "b", "c"], &[]);
    let [mut a, mut b, mut c] = site.guests(["a", "b", "c"]);
    b.send(&numbered(b.mac, MacAddr::BROADCAST, 1, 60));
    a.drain();
    c.drain();
    let to_b = numbered(a.mac, b.mac, 2, 60);
    let mut many = || (0..100).for_each(|_| a.send(&to_b));
    let finding = site.finds("receiver-stuck", Some("b"), &mut many);
    advises(&finding, "processor time");
    site.is_well(|| {
        a.send(&to_b);
        b.drain();
    });
    site.lasthop.command(&["mirror", "add", "watch", "--from", "a", "--to", "c", "--direction", "from-guest"]);
    let finding = site.finds("mirror-loses", Some("c"), || {
        (0..20).for_each(|_| a.send(&to_b));
        b.drain();
    });
    advises(&finding, "mirror less");
    assert_eq!(finding["also"][0], "a");
    site.is_well(|| {
        a.send(&to_b);
        b.drain();
        c.drain();
    });
}

#[test]
fn a_rate_that_drops() {
    let site = Site::new(&["a", "b"], &[]);
    let [mut a, mut b] = site.guests(["a", "b"]);
    site.lasthop.command(&["port", "set", "b", "--rate-to", "10pps"]);
    let mut traffic = || {
        (0..20).for_each(|_| broadcast(&mut a));
        b.drain();
    };
    site.run(&site.finds("rate-to", Some("b"), &mut traffic));
    site.is_well(traffic);
}

#[test]
fn an_mtu_that_does_not_fit_the_uplink() {
    let site = Site::new(&["a"], &["--uplink", "net=v0,af_packet"]);
    site.lasthop.wait_for_state("net", "up");
    let _a = site.guest("a", mac(1), Options { mtu: Some(4000), ..Options::default() });
    let finding = site.finds("mtu", Some("a"), nothing);
    assert!(
        finding["evidence"][0].as_str().is_some_and(|seen| seen.contains("4000") && seen.contains("1500")),
        "{finding}"
    );
    site.run(&finding);
    site.is_well(nothing);
}

#[test]
fn two_uplinks_on_one_segment() {
    let site = Site::new(&["a"], &["--uplink", "net=v0,af_packet", "--uplink", "other=w0,af_packet"]);
    site.netns.ip("link add br0 type bridge mcast_snooping 0");
    site.netns.ip("link set br0 up");
    site.netns.ip("link set v1 master br0");
    site.netns.ip("link set w1 master br0");
    let finding = site.finds("uplink-excluded", Some("other"), nothing);
    assert!(finding["what"].as_str().is_some_and(|what| what.contains("uplink net")), "{finding}");
    advises(&finding, "--vlans");
    site.netns.ip("link set w1 nomaster");
    site.lasthop.command(&["uplink", "del", "other"]);
    site.is_well(nothing);
}

#[test]
fn a_second_front_end() {
    let site = Site::new(&["a", "b"], &[]);
    let [mut a, mut b] = site.guests(["a", "b"]);
    a.greet(&mut b, 1);
    let path = site.dir.path().join("a.sock");
    let mut held = Vec::new();
    let finding = site.finds("second-front-end", Some("a"), || {
        // One waits a moment for the first to go, and the next is refused at once.
        held.truncate(1);
        held.push(UnixStream::connect(&path).expect("it listens"));
    });
    let who = format!("process {} of user ", std::process::id());
    assert!(finding["evidence"][0].as_str().is_some_and(|seen| seen.starts_with(&who)), "{finding}");
    advises(&finding, "a port of its own");
    for words in [["port", "list"], ["show", "a"]] {
        let said = site.lasthop.command(&words);
        assert!(said.contains("a second front-end was refused") && said.contains(&who), "{said}");
    }
    a.greet(&mut b, 2);
}

#[test]
fn a_process_that_keeps_being_killed() {
    let site = Site::new(&["a"], &[]);
    (0..3).for_each(|_| site.lasthop.kill("lasthop-control"));
    let finding = site.finds("restarted", None, nothing);
    assert!(
        finding["evidence"][0].as_str().is_some_and(|seen| seen.contains("3 times") && seen.contains("signal: 9")),
        "{finding}"
    );
    advises(&finding, "log");
}

/// lasthop from another place than the one under test, started by another program.
struct Other {
    run: Child,
    dir: tempfile::TempDir,
}

impl Other {
    fn start(programs: &Path, before: &[&str], arguments: &[&str]) -> Self {
        let dir = scratch();
        let program = programs.join("lasthop").display().to_string();
        let line: Vec<_> = before.iter().copied().chain([&*program, "run"]).collect();
        let mut run = spawn::spawn("TERM", line[0], |c| {
            c.args(&line[1..])
                .arg("--run-dir")
                .arg(dir.path().join("run"))
                .arg("--state-dir")
                .arg(dir.path().join("state"));
            c.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        });
        let mut ready = String::new();
        let mut stdout = BufReader::new(run.stdout.take().expect("a pipe"));
        stdout.read_line(&mut ready).expect("a line");
        assert_eq!(ready, "ready\n");
        Self { run, dir }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        spawn::end(&mut self.run);
    }
}

#[test]
fn programs_that_were_replaced_while_they_ran() {
    let (programs, from) = (scratch(), binary("lasthop").parent().expect("a directory").to_owned());
    let install = |name: &str| {
        let (to, new) = (programs.path().join(name), programs.path().join("new"));
        std::fs::copy(from.join(name), &new).expect("a copy");
        std::fs::rename(&new, &to).expect("in its place");
    };
    let all = ["lasthop", "lasthop-switch", "lasthop-control", "lasthop-session", "lasthop-uplink"];
    all.iter().for_each(|name| install(name));
    let lasthop = Other::start(programs.path(), &[], &["--no-bpf"]);
    let run_dir = lasthop.dir.path().join("run");
    assert!(doctor(&run_dir, &[], nothing).is_empty());
    install("lasthop-switch");
    let finding = finds(&run_dir, "outdated", None, nothing);
    assert!(finding["evidence"][0].as_str().is_some_and(|seen| seen.ends_with(": switch")), "{finding}");
    advises(&finding, "restart");
    drop(lasthop);
    let lasthop = Other::start(programs.path(), &[], &["--no-bpf"]);
    assert!(doctor(&lasthop.dir.path().join("run"), &[], nothing).is_empty());
}

/// In a PID namespace of its own no process is the one that the kernel's program sees.
#[test]
fn a_host_that_does_not_let_us_see_which_vms_run() {
    let programs = binary("lasthop").parent().expect("a directory").to_owned();
    let before = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=TERM"];
    let lasthop = Other::start(&programs, &before, &[]);
    let finding = finds(&lasthop.dir.path().join("run"), "no-ebpf", None, nothing);
    advises(&finding, "CAP_BPF");
    drop(lasthop);
    let lasthop = Other::start(&programs, &before, &["--no-bpf"]);
    assert!(doctor(&lasthop.dir.path().join("run"), &[], nothing).is_empty());
}

/// A VM on the host where lasthop is in a container has no number there. Its user counts all the same: root may.
#[test]
fn a_front_end_that_is_not_seen_is_known_by_its_user() {
    let (programs, dir) = (binary("lasthop").parent().expect("a directory").to_owned(), scratch());
    let port = Port::listen("a", dir.path());
    let before = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=TERM"];
    let owned = format!("a={},owner=nobody", port.socket.display());
    let _lasthop = Other::start(&programs, &before, &["--no-bpf", "--port", &owned]);
    let _guest = Guest::connect(&port.socket, mac(1), Options::default());
}

/// Everything of a port, and of an uplink, beside what the other commands say.
#[test]
fn one_screen_has_all_of_a_port() {
    let site = Site::new(&["a", "b"], &["--uplink", "net=v0,af_packet"]);
    site.lasthop.wait_for_state("net", "up");
    site.lasthop.command(&["port", "set", "a", "--mac", &mac(1).to_string()]);
    let rules = site.dir.path().join("a.rules");
    std::fs::write(&rules, "deny from-guest udp\n").expect("a file");
    site.lasthop.command(&["acl", "load", rules.to_str().expect("text"), "--port", "a"]);
    site.lasthop.command(&["mirror", "add", "watch", "--from", "a", "--to", "b"]);
    let [mut a, mut b] = site.guests(["a", "b"]);
    b.send(&numbered(b.mac, MacAddr::BROADCAST, 1, 60));
    (2..5).for_each(|n| a.send(&numbered(a.mac, b.mac, n, 60)));
    a.all_taken();
    wait_for("three packets to be counted", PATIENCE, || site.lasthop.port("a")["from_guest"]["packets"] == 3);
    let shown = site.lasthop.json(&["show", "a"]);
    let of_list = site.lasthop.port("a");
    for field in ["id", "path", "settings", "features", "queues", "from_guest", "memory_bytes"] {
        assert_eq!(shown["port"][field], of_list[field], "{field}");
    }
    let names = shown["feature_names"].as_array().expect("a list");
    assert!(names.iter().any(|name| name == "VERSION_1"), "{names:?}");
    assert_eq!((shown["macs"][0]["mac"].as_str(), &shown["interface"]), (Some(&*mac(1).to_string()), &Value::Null));
    let texts: Vec<_> = shown["rules"].as_array().expect("a list").iter().map(|rule| rule["text"].as_str()).collect();
    assert!(
        texts.iter().any(|text| text.is_some_and(|text| text.starts_with("deny") && text.contains("udp"))),
        "{texts:?}"
    );
    assert_eq!(
        (shown["mirrors"][0]["name"].as_str(), shown["flows"].as_array().map(Vec::is_empty)),
        (Some("watch"), Some(false))
    );
    let text = site.lasthop.command(&["show", "a"]);
    for words in [
        &format!("settings    mac={}", mac(1))[..],
        "front-end ",
        "VERSION_1",
        "rule",
        "watch: b gets copies",
        "from guest        3",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
    site.lasthop.kill("lasthop-session");
    wait_for("a restart to be told", PATIENCE, || {
        site.lasthop.command(&["show", "a"]).contains("session a: 1 time")
            || site.lasthop.command(&["show", "b"]).contains("session b: 1 time")
            || site.lasthop.command(&["show", "net"]).contains("session net: 1 time")
    });
    let net = site.lasthop.json(&["show", "net"]);
    assert_eq!((net["interface"]["device"].as_str(), net["port"]["uplink"].as_bool()), (Some("v0"), Some(true)));
    assert!(site.lasthop.command(&["show", "net"]).contains("interface   v0, af_packet (mmsg), link up\n"));
    assert_eq!(site.lasthop.try_command(&["show", "nobody"]).status.code(), Some(1));
}

/// A port has opened as many connections as it may; its command lets it open more.
#[test]
fn a_port_without_room_for_connections() {
    let site = Site::new(&["a", "b"], &[]);
    let rules = site.dir.path().join("all.rules");
    std::fs::write(&rules, "stateful\npermit from-guest udp\n").expect("a file");
    site.lasthop.command(&["acl", "load", rules.to_str().expect("text")]);
    site.lasthop.command(&["port", "set", "a", "--connections", "4"]);
    let [mut a, mut b] = site.guests(["a", "b"]);
    let frames: Vec<_> = (1..7)
        .map(|port| testutil::Frame::between(a.mac, b.mac).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(port, 53).build())
        .collect();
    let mut talk = || {
        frames.iter().for_each(|frame| a.send(frame));
        b.drain();
    };
    let mut found = Vec::new();
    let ours = |f: &&Value| f["kind"] == "connections-full" && f["port"] == "a";
    wait_for_slowly("a port that is full", || {
        found = site.doctor(&mut talk);
        found.iter().any(|f| ours(&f))
    });
    assert!(found.iter().all(|f| f["kind"] == "connections-full"), "{found:#?}");
    site.run(found.iter().find(ours).expect("it is there"));
    site.is_well(talk);
}

/// Isolation, and what is flooded beyond a limit: the first by who is sent to, and both mended by what is printed.
#[test]
fn an_isolated_neighbour_and_a_storm() {
    let site = Site::new(&["a", "b"], &[]);
    let [mut a, mut b] = site.guests(["a", "b"]);
    b.send(&numbered(b.mac, MacAddr::BROADCAST, 1, 60));
    site.lasthop.command(&["port", "set", "b", "--isolated"]);
    site.lasthop.command(&["port", "set", "a", "--isolated"]);
    let to_b = numbered(a.mac, b.mac, 2, 60);
    site.run(&site.finds("isolated", Some("a"), || a.send(&to_b)));
    site.lasthop.command(&["port", "set", "b", "--isolated", "off"]);
    site.is_well(|| {
        a.send(&to_b);
        b.drain();
    });
    site.lasthop.command(&["port", "set", "a", "--storm", "10pps"]);
    let mut traffic = || {
        (0..20).for_each(|_| broadcast(&mut a));
        b.drain();
    };
    site.run(&site.finds("storm", Some("a"), &mut traffic));
    site.is_well(traffic);
    // What is over is told as such, and counts for who asks for all of it.
    let text = site.lasthop.command(&["doctor", "--for", "1"]);
    assert!(text.contains("dropped from a as storm, none while this command looked"), "{text}");
}
