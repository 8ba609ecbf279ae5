//! Devices of the host as guests: containers' veths and the host's TAP device are ports like a VM's, and the uplink is where the
//! network is.

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, binary, mac, number_of, numbered, proc, scratch, wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::Signal;
use serde_json::Value;

/// The host's namespace with lasthop in it, a guest's port a, the NIC n0 with the network at its other end n1, and containers,
/// each with a veth `inN` whose other end in the host is `cN`.
struct Site {
    lasthop: Lasthop,
    host: Netns,
    containers: Vec<Netns>,
    dir: tempfile::TempDir,
}

const PORTS: usize = 2;

impl Site {
    fn new(arguments: &[&str]) -> Self {
        let host = Netns::new();
        host.ip("link add n0 type veth peer name n1");
        host.ip("link set n1 up");
        let containers: Vec<Netns> = (1..=PORTS)
            .map(|n| {
                let container = Netns::new();
                host.ip(&format!("link add c{n} type veth peer name in{n} netns {}", container.name()));
                container.ip(&format!("addr add 10.7.0.{n}/24 dev in{n}"));
                container.ip(&format!("link set in{n} up"));
                container
            })
            .collect();
        let dir = scratch();
        let lasthop = Lasthop::start_in(Some(&host), &[Port::listen("a", dir.path())], arguments);
        Self { lasthop, host, containers, dir }
    }

    fn with_two() -> Self {
        let site = Self::new(&["--uplink", "net=n0", "--port", "c1=device:c1"]);
        site.lasthop.command(&["port", "add", "c2", "--device", "c2"]);
        ["net", "c1", "c2"].iter().for_each(|port| site.lasthop.wait_for_state(port, "up"));
        site
    }

    fn uplinks(&self) -> Vec<Value> {
        self.lasthop.json(&["uplink", "list"])["uplinks"].as_array().cloned().unwrap_or_default()
    }

    fn trace(&self, from: &str, to: MacAddr) -> String {
        let (src, dst) = (mac(0x77).to_string(), to.to_string());
        self.lasthop.command(&["trace", "--in-port", from, "--eth-src", &src, "--eth-dst", &dst])
    }

    fn lives_at(&self, station: MacAddr) -> Option<String> {
        let macs = self.lasthop.json(&["mac", "list"])["macs"].as_array().cloned().unwrap_or_default();
        macs.iter().find(|m| m["mac"] == station.to_string()).and_then(|m| Some(m["port"].as_str()?.to_owned()))
    }
}

fn number(frame: &[u8], wanted: u32) -> bool {
    number_of(frame) == Some(wanted)
}

/// Two containers reach each other, through their own stacks and counted on the way, and whoever is outside.
#[test]
fn containers_reach_each_other_and_the_network() {
    let site = Site::with_two();
    let ping = site.containers[0].shell("busybox ping -c 5 -i 0.05 -w 20 10.7.0.2");
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    for port in ["c1", "c2"] {
        let shown = site.lasthop.port(port);
        assert!(shown["from_guest"]["packets"].as_u64() >= Some(5), "{shown}");
        assert!(shown["to_guest"]["packets"].as_u64() >= Some(5), "{shown}");
        assert_eq!(
            (&shown["uplink"], &shown["device"], &shown["driver"]),
            (&false.into(), &port.into(), &"af_packet".into())
        );
        assert_eq!(shown["mac_limit"], 4096, "{shown}");
    }
    // To the network and back, known and flooded.
    let (inside, outside) = (Station::on(&site.containers[0], "in1"), Station::on(&site.host, "n1"));
    let (near, far) = (mac(0x61), mac(0x62));
    inside.send(&numbered(near, MacAddr::BROADCAST, 1, 60));
    outside.recv("a container's broadcast", |f| number(f, 1));
    outside.send(&numbered(far, near, 2, 60));
    inside.recv("an answer", |f| number(f, 2));
    inside.send(&numbered(near, far, 3, 60));
    outside.recv("a container's frame", |f| number(f, 3));
    assert_eq!((site.lives_at(near).as_deref(), site.lives_at(far).as_deref()), (Some("c1"), Some("net")));
    // And to a VM.
    let mut guest = Guest::connect(&site.dir.path().join("a.sock"), mac(0x63), Options::default());
    wait_for("a VM to hear the container", PATIENCE, || {
        inside.send(&numbered(near, guest.mac, 4, 60));
        guest.drain().iter().any(|f| number(f, 4))
    });
    // Uplinks are where the network is: no guest is among them.
    assert_eq!(site.uplinks().iter().map(|u| u["name"].clone()).collect::<Vec<_>>(), ["net"]);
    let table = site.lasthop.command(&["port", "list"]);
    let line = table.lines().find(|line| line.starts_with("c1 ")).unwrap_or_default();
    assert!(line.contains(" device ") && line.ends_with("c1 (af_packet)"), "{table}");
    site.lasthop.check_sums();
}

/// The host itself, by a TAP device, reaches the NIC: two uplinks would not reach each other.
#[test]
fn the_host_reaches_the_network_through_a_tap_device() {
    let site = Site::new(&["--uplink", "net=n0"]);
    site.lasthop.command(&["port", "add", "host", "--device", "lh0", "--driver", "tap"]);
    site.lasthop.wait_for_state("host", "up");
    let (host, outside) = (Station::on(&site.host, "lh0"), Station::on(&site.host, "n1"));
    host.send(&numbered(mac(0x71), MacAddr::BROADCAST, 1, 60));
    outside.recv("the host's broadcast", |f| number(f, 1));
    outside.send(&numbered(mac(0x72), mac(0x71), 2, 60));
    host.recv("an answer", |f| number(f, 2));
    // As an uplink it does not, and that is said where one looks.
    site.lasthop.command(&["port", "del", "host"]);
    assert!(!site.host.output("ip link show lh0").status.success(), "the device goes with its port");
    site.lasthop.command(&["uplink", "add", "host", "lh0", "--driver", "tap"]);
    site.lasthop.wait_for_state("host", "up");
    outside.send(&numbered(mac(0x72), MacAddr::BROADCAST, 3, 60));
    let trace = site.trace("net", MacAddr::BROADCAST);
    assert!(trace.contains("not to host: nothing goes from one uplink to another"), "{trace}");
    wait_for("what a flood leaves out to be said", PATIENCE, || {
        site.lasthop.command(&["stats"]).contains("left out: uplink to uplink, in ")
    });
}

/// What holds for guests holds for them: access lists of guests, the number of addresses, and they are remembered as what they are.
#[test]
fn a_device_is_judged_limited_and_remembered_like_a_guest() {
    let site = Site::with_two();
    let rules = site.dir.path().join("rules");
    std::fs::write(&rules, "deny from-guest ethertype 0x88b5\n").expect("a file");
    site.lasthop.command(&["acl", "load", &rules.display().to_string(), "--port", "c1"]);
    let (one, two) = (Station::on(&site.containers[0], "in1"), Station::on(&site.containers[1], "in2"));
    one.send(&numbered(mac(1), MacAddr::BROADCAST, 1, 60));
    two.send(&numbered(mac(2), MacAddr::BROADCAST, 2, 60));
    one.recv("what may pass", |f| number(f, 2));
    assert!(!two.drain().iter().any(|f| number(f, 1)), "a list is not asked");
    site.lasthop.command(&["acl", "clear", "--port", "c1"]);
    // An address of its own for each frame: beyond its share none is learned, and others keep theirs.
    for n in 0..5000u32 {
        let from = MacAddr([2, 7, 0, 0, (n >> 8) as u8, n as u8]);
        one.send(&numbered(from, mac(2), 100 + n, 60));
    }
    wait_for("its limit to be reached", PATIENCE, || site.lasthop.port("c1")["sources_over_limit"].as_u64() > Some(0));
    assert_eq!(site.lasthop.port("c1")["macs"], 4096);
    // Another lasthop of the same state has c2, which was added, as a guest; c1 was on the command line.
    let Site { lasthop, host, containers, dir: _dir } = site;
    let lasthop = lasthop.start_again(Some(&host), &[], &[], || ());
    lasthop.wait_for_state("c2", "up");
    assert_eq!((&lasthop.port("c2")["uplink"], &lasthop.port("c2")["device"]), (&false.into(), &"c2".into()));
    for (words, part) in [
        (&["port", "add", "c2", "--device", "n0"][..], "a port c2 already"),
        (&["port", "add", "x", "--device", "c2"], "c2 is port c2 already"),
        (&["uplink", "add", "x", "c2"], "c2 is port c2 already"),
        (&["uplink", "del", "c2"], "lasthop port del c2"),
        (&["uplink", "set", "c2", "--vlans", "5"], "a guest's port"),
        (&["port", "add", "x", "--device", "nope"], "no interface nope"),
        (&["port", "add", "x", "/tmp/x.sock", "--device", "n0"], "cannot be used with"),
    ] {
        let out = lasthop.try_command(words);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(part), "{words:?}: {text}");
    }
    assert_eq!(lasthop.command(&["port", "del", "c2"]), "port c2: removed\n");
    let gone = lasthop.try_command(&["port", "del", "c2"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no port c2"));
    drop(containers);
}

/// Where /sys is that of another network namespace, as it is behind `nsenter` and in many containers, the kernel knows better.
#[test]
fn an_interface_is_not_taken_for_a_path_where_sys_does_not_show_it() {
    let host = Netns::new();
    host.ip("link add lhsys0 type veth peer name lhsys1");
    let namespace = format!("--net=/run/netns/{}", host.name());
    let mut command = std::process::Command::new("nsenter");
    command.arg(namespace).arg(binary("lasthop")).args(["port", "add", "c1", "lhsys0", "--run-dir", "/nonexistent"]);
    let output = command.output().expect("util-linux has nsenter");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("write --device lhsys0"), "{said}");
    assert!(!std::path::Path::new("/sys/class/net/lhsys0").exists(), "the test shows something");
}

/// Two that use one interface would each carry every frame.
#[test]
fn an_interface_belongs_to_one_lasthop() {
    let site = Site::with_two();
    let dir = scratch();
    let second = Lasthop::start_in(Some(&site.host), &[Port::listen("b", dir.path())], &[]);
    let taken = format!("is used by another lasthop (pid {})", site.lasthop.pid());
    for words in [["uplink", "add", "net", "n0"].as_slice(), &["port", "add", "c1", "--device", "c1"]] {
        let output = second.try_command(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(&taken), "{words:?}: {said}");
    }
    // Its processes come and go, and it stays theirs.
    let net = site.uplinks().remove(0);
    proc::signal(net["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs"), Signal::KILL);
    assert!(!second.try_command(&["uplink", "add", "net", "n0"]).status.success());
    site.lasthop.wait_for_state("net", "up");
    site.lasthop.command(&["port", "del", "c1"]);
    second.command(&["port", "add", "c1", "--device", "c1"]);
    second.wait_for_state("c1", "up");
    // Whoever ends has nothing any more, however it ends.
    proc::signal(site.lasthop.pid(), Signal::KILL);
    wait_for("the uplink", PATIENCE, || second.try_command(&["uplink", "add", "net", "n0"]).status.success());
}

/// What is longer than the interface's MTU was counted by its process, and no command showed it.
#[test]
fn what_is_too_long_for_an_interface_shows() {
    let site = Site::with_two();
    site.host.ip("link set c1 mtu 1000");
    let from = Station::on(&site.containers[1], "in2");
    wait_for("a frame that is dropped", PATIENCE, || {
        from.send(&numbered(mac(0x81), MacAddr::BROADCAST, 1, 1400));
        site.lasthop.command(&["stats"]).lines().any(|line| line.ends_with("outside c1  too_long"))
    });
    let table = site.lasthop.command(&["port", "list"]);
    assert!(table.contains("dropped by its interface: too_long"), "{table}");
    let json = site.lasthop.json(&["port", "list"]);
    let c1 = json["interfaces"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "c1")).cloned();
    assert_eq!(c1.expect("c1")["drops"][0]["reason"], "too_long");
    site.lasthop.check_sums();
}
