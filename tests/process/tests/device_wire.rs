//! The wire of a device (`--device NAME,wire=INTERFACE`): its guests, and by the cable those of the host, reach a network outside, which here is the kernel's stack
//! at the other end of a veth pair. It is there again whichever process is killed, goes on over upgrades, and comes back when its interface does.

#[allow(dead_code, reason = "the guest that answers is used alone")]
mod outside;

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, binary, mac, proc, release, scratch, upgrade_run, wait_for,
};
use outside::Host;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};

/// A guest at the host's switch and one at the device's, which answer echoes, and a veth pair that the device has one end of.
struct Site {
    host: Host,
    guest: Option<Host>,
    lasthop: Lasthop,
    netns: Netns,
    dir: tempfile::TempDir,
}

/// A pair whose other end is the network's.
fn make_pair(netns: &Netns) {
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    netns.ip("addr add 10.1.0.1/24 dev v1");
}

fn answering(socket: &Path, n: u8) -> Host {
    Host::start(Guest::connect(socket, mac(n), Options::default()), [10, 1, 0, n], &format!("fd01::{n}"))
}

impl Site {
    fn new(device: &str) -> Self {
        let (netns, dir) = (Netns::new(), scratch());
        make_pair(&netns);
        let at = |name: &str| dir.path().join(name);
        let port = format!("a={},device=nic0", at("a").display());
        let arguments = ["--device", device, "--port", &port];
        let lasthop = Lasthop::start_in(Some(&netns), &[Port::listen("h", dir.path())], &arguments);
        let host = answering(&at("h.sock"), 8);
        let mut site = Self { host, guest: None, lasthop, netns, dir };
        site.guest_connects();
        site
    }

    /// The host's `lasthop run` ends, and another one starts the device for the first time.
    fn starts_anew(self, device: &str) -> Self {
        let Self { host, guest, lasthop, netns, dir } = self;
        let _ = (host.stop(), guest.map(Host::stop));
        let port = format!("a={},device=nic0", dir.path().join("a").display());
        let arguments = ["--device", device, "--port", &port];
        let lasthop = lasthop.start_again(Some(&netns), &[Port::listen("h", dir.path())], &arguments, || {});
        let host = answering(&dir.path().join("h.sock"), 8);
        let mut site = Self { host, guest: None, lasthop, netns, dir };
        site.guest_connects();
        site
    }

    /// Which VLANs the wire carries, and what its port is told.
    fn told(&self) -> (Value, Value) {
        let list = self.lasthop.json_of(Some("nic0"), &["uplink", "list"])["uplinks"].clone();
        let ports = self.lasthop.json_of(Some("nic0"), &["port", "list"])["ports"].clone();
        let wire = ports.as_array().and_then(|ports| ports.iter().find(|port| port["name"] == "wire").cloned());
        (list[0]["vlans"].clone(), wire.expect("it has a port")["settings"].clone())
    }

    fn set(&self, words: &[&str]) {
        let out = self.lasthop.try_command_of(Some("nic0"), words);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// The device's guest, as a VM does whose connection has ended.
    fn guest_connects(&mut self) {
        if let Some(guest) = self.guest.take() {
            guest.stop();
        }
        wait_for("the device's port", PATIENCE, || {
            let out = self.lasthop.try_command_of(Some("nic0"), &["port", "list", "--json"]);
            let list: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
            let ports = list["ports"].as_array().cloned().unwrap_or_default();
            ports.iter().any(|port| port["name"] == "a" && port["state"] == "waiting")
        });
        self.guest = Some(answering(&self.dir.path().join("a"), 9));
    }

    /// Echoes of all lengths to the device's guest, and to the host's by the cable. The first may be lost while something is being started again.
    fn is_reached(&self) {
        for address in ["10.1.0.9", "10.1.0.8"] {
            wait_for(&format!("an echo of {address}"), PATIENCE, || {
                self.netns.output(&format!("busybox ping -c 1 -w 1 {address}")).status.success()
            });
            for length in [0, 56, 1000, 1472] {
                let out = self.netns.shell(&format!("busybox ping -c 3 -i 0.05 -w 20 -s {length} {address}"));
                assert!(out.contains(" 0% packet loss"), "{length} bytes to {address}: {out}");
            }
        }
    }

    /// What `lasthop device list --json` says of the device's uplinks.
    fn uplinks(&self) -> Value {
        self.lasthop.json(&["device", "list"])["devices"][0]["uplinks"].clone()
    }

    fn wire_is(&self, state: &str) {
        wait_for(state, PATIENCE, || self.uplinks()[0]["state"] == state);
    }

    /// The device's `lasthop run`.
    fn run(&self) -> u32 {
        let lock = std::fs::read_to_string(self.lasthop.run_dir().join("devices/nic0/lock"));
        lock.ok().and_then(|pid| pid.trim().parse().ok()).unwrap_or_default()
    }

    /// The device is started again.
    fn run_is_killed(&mut self) {
        let run = self.run();
        self.kill(run);
        wait_for("the device's next run", PATIENCE, || ![0, run].contains(&self.run()));
        self.guest_connects();
    }

    /// A process of the device's.
    fn process(&self, name: &str) -> Option<u32> {
        proc::children(self.run()).into_iter().find(|(_, other)| other == name).map(|(pid, _)| pid)
    }

    fn kill(&self, pid: u32) {
        proc::signal(pid, Signal::KILL);
        wait_for("its end", PATIENCE, || !Path::new(&format!("/proc/{pid}")).exists());
    }

    fn end(self) {
        assert!(self.guest.is_some_and(|guest| guest.stop() > 0) && self.host.stop() > 0);
        assert!(self.lasthop.stop(), "all processes end");
        drop(self.dir);
    }
}

/// By each driver, and with the options of an uplink.
#[test]
fn guests_reach_a_network_by_the_wire_of_their_device() {
    for (wire, driver) in
        [("v0", "af_packet"), ("v0:af_packet:spare:nice=1", "af_packet"), ("v0:driver=af_xdp:gro=off", "af_xdp")]
    {
        let site = Site::new(&format!("nic0,wire={wire},walk=on"));
        site.is_reached();
        let up = json!([{ "name": "wire", "interface": "v0", "driver": driver, "state": "up" }]);
        assert_eq!(site.uplinks(), up);
        let list = site.lasthop.command(&["device", "list"]);
        assert!(list.contains("UPLINKS") && list.contains(" v0 "), "{list}");
        let uplink = site.lasthop.json_of(Some("nic0"), &["uplink", "list"])["uplinks"][0].clone();
        let (spare, nice) = (wire.contains("spare"), if wire.contains("nice") { 1 } else { 0 });
        assert_eq!((uplink["spare"].is_null(), uplink["nice"].as_i64()), (!spare, Some(nice)), "{uplink}");
        assert_eq!(site.lasthop.json(&["uplink", "list"])["uplinks"], json!([]), "it is none of the host's");
        let bytes = &site.lasthop.json(&["device", "stats", "nic0"])["table"]["bus"]["bus_bytes"]["wire"];
        assert!(bytes.as_u64() > Some(1472), "{bytes}");
        site.end();
    }
}

#[test]
fn a_wire_is_there_again_whoever_is_killed() {
    let mut site = Site::new("nic0,wire=v0:af_packet");
    site.is_reached();
    for name in ["lasthop-uplink", "lasthop-device", "lasthop-control"] {
        let pid = site.process(name).unwrap_or_else(|| panic!("no {name}"));
        site.kill(pid);
        wait_for(name, PATIENCE, || site.process(name).is_some_and(|now| now != pid));
        if name == "lasthop-device" {
            site.guest_connects();
        }
        site.is_reached();
    }
    site.run_is_killed();
    site.is_reached();
    site.wire_is("up");
    site.end();
}

/// A device whose wire has gone is a device all the same, and has it back when it is there again, by itself.
#[test]
fn a_wire_may_go_and_come_back() {
    let mut site = Site::new("nic0,wire=v0:af_packet");
    site.is_reached();
    let found = |site: &Site| {
        let out = site.lasthop.try_command(&["doctor", "--since-start", "--json"]);
        let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        let findings = report["findings"].as_array().cloned().unwrap_or_default();
        findings.into_iter().find(|finding| finding["kind"] == "device-uplink")
    };
    assert_eq!(found(&site), None);
    site.netns.ip("link del v0");
    wait_for("it to be missed", PATIENCE, || site.uplinks()[0]["state"] == "waiting");
    // Also by one that has never had it.
    site.run_is_killed();
    wait_for("it to be missed", PATIENCE, || site.uplinks()[0]["state"] == "waiting");
    let finding = found(&site).expect("it is found");
    assert_eq!(
        (&finding["port"], &finding["what"]),
        (&json!("nic0"), &json!("wire of device nic0: there is no interface v0"))
    );
    assert!(site.lasthop.command(&["device", "list"]).contains(" v0 (waiting) "));
    make_pair(&site.netns);
    site.wire_is("up");
    site.is_reached();
    assert_eq!(found(&site), None);
    // And set down.
    site.netns.ip("link set v0 down");
    site.wire_is("down");
    let command = found(&site).expect("it is found")["command"].clone();
    assert_eq!(command, "ip link set v0 up");
    site.netns.shell(command.as_str().unwrap_or_default());
    site.is_reached();
    site.end();
}

/// The host's `lasthop run`, and the device's own, become other programs, and so does the process of the wire.
#[test]
fn a_wire_goes_on_over_upgrades() {
    let mut site = Site::new("nic0,wire=v0:af_packet");
    site.is_reached();
    let releases = ["one", "two"].map(|name| release(site.dir.path(), name));
    let run = site.run();
    let out = upgrade_run(&site.lasthop, &releases[0]);
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), site.lasthop.log());
    assert_eq!(site.run(), run, "the device goes on");
    site.is_reached();
    let uplink = site.process("lasthop-uplink");
    let words = ["upgrade", "--all", "--programs", releases[1].to_str().unwrap()];
    let out = site.lasthop.try_command_of(Some("nic0"), &words);
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), site.lasthop.log());
    let exe = std::fs::read_link(format!("/proc/{run}/exe")).unwrap();
    assert_eq!((site.run(), exe), (run, releases[1].join("lasthop")));
    wait_for("another process of the wire", PATIENCE, || {
        site.process("lasthop-uplink").is_some_and(|now| Some(now) != uplink)
    });
    site.is_reached();
    // Both still know of it.
    let pid = site.process("lasthop-uplink").expect("it runs");
    site.kill(pid);
    site.is_reached();
    site.run_is_killed();
    site.is_reached();
    site.end();
}

/// What `lasthop run` says before it ends.
fn refusal(netns: &Netns, arguments: &[&str]) -> String {
    refusal_beside(netns, arguments, |_| {})
}

/// Where its state directory was prepared.
fn refusal_beside(netns: &Netns, arguments: &[&str], prepare: impl FnOnce(&Path)) -> String {
    let dir = scratch();
    let (run, state) = (dir.path().join("run"), dir.path().join("state"));
    prepare(&state);
    let mut command: Command = netns.command(&binary("lasthop").display().to_string());
    command.arg("run").arg("--run-dir").arg(run).arg("--state-dir").arg(state).args(arguments);
    // A process that starts is a line of this level.
    command.env("RUST_LOG", "debug");
    let out = command.stdin(Stdio::null()).output().expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{arguments:?}: {said}");
    assert!(!said.contains("started"), "before anything is started: {said}");
    said
}

/// What the wire was told holds when the device is started again, also that an option does not hold any more, and also by other programs, the host's and the device's; and not once it was removed.
#[test]
fn a_wire_is_as_it_was_told_when_the_device_is_started_again() {
    let mut site = Site::new("nic0,wire=v0:af_packet:vlans=untagged:7:rate-to=950M");
    let given = site.told();
    assert_eq!(given.0, "untagged:7", "{given:?}");
    assert!(given.1.to_string().contains("950M"), "{given:?}");
    for (vlans, rate) in [("untagged:9", "500M"), ("all", "none")] {
        site.set(&["uplink", "set", "wire", "--vlans", vlans]);
        site.set(&["port", "set", "wire", "--rate-to", rate]);
        let now = site.told();
        assert!(now.0 != given.0 && now.1 != given.1, "{now:?}");
        site.run_is_killed();
        site.wire_is("up");
        assert_eq!(site.told(), now);
        site.is_reached();
    }
    let told = site.told();
    let [one, two] = ["one", "two"].map(|name| release(site.dir.path(), name));
    site.set(&["upgrade", "--all", "--programs", one.to_str().unwrap()]);
    assert_eq!(site.told(), told);
    let out = upgrade_run(&site.lasthop, &two);
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), site.lasthop.log());
    site.set(&["uplink", "set", "wire", "--vlans", "untagged:11"]);
    site.run_is_killed();
    site.wire_is("up");
    assert_eq!(site.told(), (json!("untagged:11"), told.1));
    site.set(&["uplink", "del", "wire"]);
    site.run_is_killed();
    site.wire_is("up");
    assert_eq!(site.told(), given, "it is as its option says");
    site.is_reached();
    site.end();
}

/// What the option says of VLANs and rates, it says of a first start; what it does not say of rates stays as it was told. Without it there is no wire.
#[test]
fn an_option_of_a_wire_holds_when_the_host_starts_anew() {
    let site = Site::new("nic0,wire=v0:af_packet:vlans=untagged:7:rate-to=950M");
    let given = site.told();
    let tell = |site: &Site| {
        site.set(&["uplink", "set", "wire", "--vlans", "untagged:9"]);
        site.set(&["port", "set", "wire", "--rate-to", "500M"]);
        site.told()
    };
    let told = tell(&site);
    let site = site.starts_anew("nic0,wire=v0:af_packet:vlans=untagged:7:rate-to=950M");
    assert_eq!(site.told(), given);
    assert_eq!(tell(&site), told);
    let site = site.starts_anew("nic0,wire=v0:af_packet:nice=1");
    assert_eq!(site.told(), (Value::Null, told.1.clone()), "all VLANs, and the rate that it was told");
    site.is_reached();
    site.set(&["uplink", "set", "wire", "--vlans", "untagged:9"]);
    let mut site = site.starts_anew("nic0");
    for _ in 0..2 {
        assert_eq!(site.uplinks(), json!([]));
        let file = site.lasthop.state_file("devices/nic0/ports.json");
        let saved: Value = serde_json::from_slice(&std::fs::read(&file).expect("it is written")).unwrap();
        assert_eq!((&saved["uplinks"], &saved["given"]["wire"]), (&json!([]), &Value::Null), "{saved}");
        assert!(saved["given"].as_object().is_some_and(|given| given.contains_key("a") && !given.contains_key("wire")));
        site.run_is_killed();
    }
    let site = site.starts_anew("nic0,wire=v0:af_packet");
    assert_eq!(site.told().0, Value::Null);
    site.is_reached();
    site.end();
}

fn is_probe(frame: &[u8]) -> bool {
    frame.starts_with(b"\x03lasth")
}

/// `--no-uplink-probe` of the host goes for uplinks of its devices as well: both on one segment are used, and neither sends anything.
#[test]
fn devices_send_no_probes_where_their_host_must_not() {
    let netns = Netns::new();
    for (bridge, interfaces) in [("br0", &["u0", "u1", "s0"][..]), ("br1", &["u2", "s1"]), ("br2", &["u3"])] {
        netns.ip(&format!("link add {bridge} type bridge mcast_snooping 0"));
        netns.ip(&format!("link set {bridge} up"));
        for interface in interfaces {
            netns.ip(&format!("link add {interface} type veth peer name {interface}x"));
            netns.ip(&format!("link set {interface}x master {bridge} up"));
            netns.ip(&format!("link set {interface} up"));
        }
    }
    let [left, right] = ["s0", "s1"].map(|interface| Station::on(&netns, interface));
    let start = |wire: &str, other: &str, more: &[&str]| {
        let device = format!("nic0,wire={wire}:af_packet,cable=off");
        let lasthop = Lasthop::start_in(Some(&netns), &[], &[&["--device", &device][..], more].concat());
        let added = lasthop.try_command_of(Some("nic0"), &["uplink", "add", "net2", other, "--driver", "af_packet"]);
        assert!(added.status.success(), "{added:?}");
        lasthop
    };
    let states = |lasthop: &Lasthop| {
        let list = lasthop.json_of(Some("nic0"), &["uplink", "list"])["uplinks"].clone();
        [0, 1].map(|n| list[n]["state"].as_str().unwrap_or_default().to_owned())
    };
    let silent = start("u0", "u1", &["--no-uplink-probe"]);
    wait_for("both to be up", PATIENCE, || states(&silent) == ["up", "up"]);
    // Another that does ask, and came up after them: when two of its probes have been seen, theirs would have been.
    let asks = start("u2", "u3", &[]);
    for _ in 0..2 {
        right.recv("a probe", is_probe);
    }
    assert_eq!(states(&silent), ["up", "up"]);
    assert!(!left.drain().iter().any(|frame| is_probe(frame)), "a probe");
    assert!(asks.stop() && silent.stop(), "all processes end");
}

/// Its VMs would have no network otherwise.
#[test]
fn a_device_starts_where_nothing_can_be_remembered() {
    let mut site = Site::new("nic0,wire=v0:af_packet");
    let in_the_way = site.lasthop.state_file("devices/nic0/ports.json.new");
    std::fs::create_dir(&in_the_way).unwrap();
    // Set beside another command line; and in a place of its own, from which nobody takes it.
    let engines = site.lasthop.state_file("devices/nic0/engines.json");
    std::fs::write(&engines, r#"{"given":{"ports":"0"},"now":{"ports":"0"}}"#).unwrap();
    let (run, file) = (site.run().to_string(), engines.to_str().unwrap());
    let mounted = Command::new("nsenter").args(["--mount", "--target", &run, "mount", "--bind", file, file]).status();
    assert!(mounted.unwrap().success());
    site.run_is_killed();
    site.wire_is("up");
    site.is_reached();
    let log = site.lasthop.log();
    for says in [
        "ports and the wire of this device are told may not hold",
        "engines.json: ",
        "engines of this device may be other ones",
    ] {
        assert!(log.contains(says), "{says}: {log}");
    }
    std::fs::remove_dir(in_the_way).unwrap();
    site.end();
}

/// Options of a start that could not be saved hold, and not what was said in an earlier one, whether its options were others or the same.
#[test]
fn what_was_told_before_a_start_that_could_not_be_saved_does_not_hold() {
    let mut site = Site::new("nic0,wire=v0:af_packet");
    let in_the_way = site.lasthop.state_file("devices/nic0/ports.json.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let option = "nic0,wire=v0:af_packet:vlans=untagged:7:rate-to=950M";
    site = site.starts_anew(option);
    let given = site.told();
    assert_eq!(given.0, "untagged:7");
    site.run_is_killed();
    site.wire_is("up");
    assert_eq!(site.told(), given);
    std::fs::remove_dir(&in_the_way).unwrap();
    site.set(&["uplink", "set", "wire", "--vlans", "all"]);
    site.set(&["port", "set", "wire", "--rate-to", "500M"]);
    assert!(site.told().0 != given.0 && site.told().1 != given.1, "{:?}", site.told());
    std::fs::create_dir(&in_the_way).unwrap();
    site = site.starts_anew(option);
    assert_eq!(site.told(), given);
    site.run_is_killed();
    site.wire_is("up");
    assert_eq!(site.told(), given);
    site.is_reached();
    let log = site.lasthop.log();
    for says in [
        "uplink wire was told vlans=all ",
        ": vlans=untagged:7 ",
        "port wire was told rate-to=500M ",
        ": rate-to=950M ",
    ] {
        assert!(log.contains(says), "{says}: {log}");
    }
    std::fs::remove_dir(in_the_way).unwrap();
    site.end();
}

/// What the device remembers of the wire's name or interface would keep it from starting.
#[test]
fn nothing_that_is_remembered_is_in_the_way_of_a_wire() {
    let mut site = Site::new("nic0,wire=v0");
    let try_command = |site: &Site, words: &[&str]| {
        let out = site.lasthop.try_command_of(Some("nic0"), words);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert!(try_command(&site, &["uplink", "del", "wire"]).0);
    let socket = site.dir.path().join("c").display().to_string();
    assert!(try_command(&site, &["port", "add", "c", &site.dir.path().join("d").display().to_string()]).0);
    for words in [
        &["port", "rename", "c", "wire"][..],
        &["uplink", "add", "wire", "v0", "--driver", "af_xdp"],
        &["uplink", "add", "net", "v0"],
        &["uplink", "add", "wire", "v1"],
        &["port", "add", "wire", &socket],
    ] {
        let (added, said) = try_command(&site, words);
        assert!(
            !added && said.contains("this device's wire") && said.contains("another wire= behind"),
            "{words:?}: {said}"
        );
    }
    site.run_is_killed();
    site.is_reached();
    // Somebody has edited the file, or it is of before there was a wire.
    let file = site.lasthop.state_file("devices/nic0/ports.json");
    let mut saved: Value = serde_json::from_slice(&std::fs::read(&file).expect("it is written")).unwrap();
    saved["uplinks"] = json!([{ "name": "net", "device": "v0", "queues": 1 }]);
    saved["ports"] = json!([{ "name": "wire", "path": socket }]);
    std::fs::write(&file, saved.to_string()).unwrap();
    site.run_is_killed();
    site.is_reached();
    let log = site.lasthop.log();
    assert!(log.contains("remembered uplink net of v0 is forgotten"), "{log}");
    assert!(log.contains("remembered port wire of ") && log.contains(" is forgotten: that is the name"), "{log}");
    let Site { lasthop, netns, dir, .. } = site;
    assert!(lasthop.stop(), "all processes end");
    drop(dir);
    // At a first start it is said what to do.
    for (uplink, port) in [
        (json!([{ "name": "net", "device": "v0", "queues": 1 }]), json!([])),
        (json!([]), json!([{ "name": "wire", "path": "/x" }])),
    ] {
        let said = refusal_beside(&netns, &["--device", "nic0,wire=v0"], |state| {
            let dir = state.join("devices/nic0");
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(
                dir.join("ports.json"),
                json!({ "version": 1, "ports": port, "uplinks": uplink }).to_string(),
            )
            .unwrap();
        });
        let what = if port == json!([]) {
            ["uplink net of v0", "uplink del net"]
        } else {
            ["port wire of /x", "port del wire"]
        };
        for says in [what[0], what[1], "device nic0 remembers", "devices/nic0/ports.json", "--run-dir "] {
            assert!(said.contains(says), "{says}: {said}");
        }
    }
}

#[test]
fn an_interface_that_cannot_be_a_wire_is_refused() {
    let site = Site::new("nic0,wire=v0,cable=off");
    let netns = &site.netns;
    for (arguments, says) in [
        (&["--device", "nic0,wire=v9"][..], "wire=v9: there is no interface v9; `ip link` lists"),
        (&["--device", "nic0,wire=v1", "--uplink", "net=v1"], "wire=v1: it is uplink net of the host's switch"),
        (&["--device", "nic0,wire=v1", "--port", "c=device:v1"], "wire=v1: it is port c of the host's switch"),
        (
            &["--device", "nic0,wire=v1", "--device", "nic1,wire=v1"],
            "nic1,wire=v1: it is the wire of device nic0 already",
        ),
        (&["--device", "nic0,wire=v0"], "wire=v0: v0 is used by another lasthop (pid "),
        (&["--device", "nic0,wire=v1,wire=v0"], "a device has one wire"),
        (&["--device", "nic0,wire=v1", "--port", "wire=/tmp/x,device=nic0"], "that is device nic0's wire"),
        (&["--device", "nic0,wire=v1:vhost"], "no driver \"vhost\""),
        (&["--device", "nic0,wire=/tmp/x"], "cannot be an interface"),
    ] {
        let said = refusal(netns, arguments);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    // Nor is it an uplink of the host's, or a port, afterwards.
    for words in [&["uplink", "add", "net", "v0"][..], &["port", "add", "c", "--device", "v0"]] {
        let out = site.lasthop.try_command(words);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains("v0 is the wire of device nic0"), "{words:?}: {said}");
    }
    site.lasthop.command(&["uplink", "add", "net", "v1"]);
    assert!(site.lasthop.stop(), "all processes end");
}
