//! The cable between a device and the host: guests on both sides reach each other, whichever process is killed.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Lasthop, Options, Port, mac, number_of, numbered, scratch, spawn, wait_for};
use std::path::Path;
use std::time::Duration;

/// A guest on the host, and two on a device.
struct Site {
    dir: tempfile::TempDir,
    lasthop: Lasthop,
}

impl Site {
    fn new(device: &str) -> Self {
        let dir = scratch();
        let [a, b] = ["a", "b"].map(|name| format!("{name}={},device=nic0", dir.path().join(name).display()));
        let ports = [Port::listen("h", dir.path())];
        let lasthop = Lasthop::start_with(&ports, &["--device", device, "--port", &a, "--port", &b]);
        Self { dir, lasthop }
    }

    fn on_host(&self) -> Guest {
        Guest::connect(&self.dir.path().join("h.sock"), mac(1), Options::offloading())
    }

    fn on_device(&self, name: &str, number: u8) -> Guest {
        Guest::connect(&self.dir.path().join(name), mac(number), Options::offloading())
    }

    fn device_dir(&self) -> std::path::PathBuf {
        self.lasthop.run_dir().join("devices/nic0")
    }

    /// What the device's lasthop says of one of its ports.
    fn device_port(&self, name: &str) -> serde_json::Value {
        let list = self.device(&["port", "list", "--json"]);
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        list["ports"].as_array().into_iter().flatten().find(|port| port["name"] == name).cloned().unwrap_or_default()
    }

    fn device(&self, words: &[&str]) -> String {
        let run_dir = self.device_dir();
        let mut command = std::process::Command::new(lasthop_tests_process::binary("lasthop"));
        let out = command.args(words).arg("--run-dir").arg::<&Path>(&run_dir).output().expect("lasthop starts");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn is_plugged_in(&self) {
        wait_for("the cable", Duration::from_secs(20), || {
            self.lasthop.port("nic0")["state"] == "up" && self.device_port("host")["state"] == "up"
        });
    }
}

/// Frames of every length come as they were sent, and none of them twice; packets of 64 KiB stay whole and unsummed.
#[test]
fn guests_of_the_host_and_of_a_device_reach_each_other() {
    let site = Site::new("nic0");
    let (mut h, mut a, mut b) = (site.on_host(), site.on_device("a", 2), site.on_device("b", 3));
    site.is_plugged_in();
    h.greet_when_back(&mut a, 1);
    b.greet_when_back(&mut h, 2);
    for guest in [&mut h, &mut a, &mut b] {
        guest.drain();
    }
    // More than the cable has buffers, and of lengths that take one to five of them.
    for number in 10..2510 {
        h.send(&numbered(mac(1), mac(2), number, 60 + number as usize * 37 % 9000));
        a.recv("each frame once and in order", |_, frame| {
            number_of(frame).is_some_and(|came| {
                assert_eq!(came, number);
                true
            })
        });
    }
    let payload: Vec<u8> = (0..60_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let whole = Frame::between(mac(3), mac(1))
        .ipv4([10, 0, 0, 3], [10, 0, 0, 1])
        .tcp(1000, 80)
        .payload(payload)
        .partial_checksum();
    let sent = whole.vnet(VnetHdr::GSO_TCPV4, 1400);
    b.send_as(sent, &whole.build());
    let (header, frame) = h.recv("a packet of 60 000 bytes", |_, frame| frame.len() > 60_000);
    assert!(frame == whole.build(), "changed on its way");
    assert_eq!((header.gso_type, header.gso_size, header.flags), (sent.gso_type, 1400, VnetHdr::F_NEEDS_CSUM));
    // One for all comes to all, once.
    h.send(&numbered(mac(1), lasthop_text::MacAddr([255; 6]), 5000, 60));
    for guest in [&mut a, &mut b] {
        let came = guest.drain().iter().filter(|frame| number_of(frame) == Some(5000)).count();
        assert_eq!(came, 1, "a broadcast");
    }
    assert!(h.drain().is_empty(), "nothing comes back");
    site.lasthop.check_sums();
    assert!(site.lasthop.stop(), "all processes end");
}

/// Where only warnings are asked for, the cable has nothing to say.
#[test]
fn a_cable_says_what_rust_log_asks_for() {
    let dir = scratch();
    let run_dir = dir.path().join("run");
    for (level, says) in [("warn", false), ("info", true)] {
        let log = dir.path().join(level);
        let file = std::fs::File::create(&log).unwrap();
        let program = lasthop_tests_process::binary("lasthop").display().to_string();
        let mut run = spawn::spawn("TERM", &program, |c| {
            c.env("RUST_LOG", level).args(["run", "--device", "nic0", "--run-dir"]).arg(&run_dir);
            c.arg("--state-dir").arg(dir.path().join("state")).stdout(std::process::Stdio::null()).stderr(file);
        });
        wait_for("the cable", Duration::from_secs(20), || {
            let mut command = std::process::Command::new(&program);
            let out = command.args(["port", "list", "--json", "--run-dir"]).arg(&run_dir).output().unwrap();
            let list = serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap_or_default();
            list["ports"][0]["state"] == "up"
        });
        let line = || std::fs::read_to_string(&log).unwrap().contains(" is plugged in");
        wait_for("the line", Duration::from_secs(20), || line() || !says);
        assert!(spawn::end(&mut run));
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(said.contains(" is plugged in"), says, "{level}: {said}");
    }
}

/// The port of a cable goes by no command, and a device that is cut off is found.
#[test]
fn a_device_is_not_cut_off_unnoticed() {
    let site = Site::new("nic0");
    site.is_plugged_in();
    let refused = |out: std::process::Output| {
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains("`lasthop port set") && said.contains("cable=off"), "{said}");
        said
    };
    let said = refused(site.lasthop.try_command(&["port", "del", "nic0"]));
    assert!(
        said.contains(
            "nic0 is the cable of device nic0; to remove the device, start `lasthop run` without --device nic0"
        )
    );
    let run_dir = site.device_dir();
    let mut of_device = std::process::Command::new(lasthop_tests_process::binary("lasthop"));
    refused(of_device.args(["port", "del", "host", "--run-dir"]).arg(&run_dir).output().unwrap());
    let file = site.dir.path().join("empty.toml");
    std::fs::write(&file, "").unwrap();
    let said = site.lasthop.command(&["apply", &file.display().to_string(), "--prune"]);
    assert!(said.contains("- port h") && !said.contains("nic0"), "{said}");
    site.is_plugged_in();
    let found = |words: &[&str]| {
        let out = site.lasthop.try_command(&[&["doctor", "--json"], words].concat());
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let all = report["findings"].as_array().unwrap().clone();
        all.into_iter()
            .find_map(|finding| finding["kind"].as_str().filter(|kind| kind.starts_with("device-")).map(str::to_owned))
    };
    assert_eq!(found(&["--since-start"]), None);
    // Its supervisor takes no connection, so that the next cable waits; it answers nobody either, and that is told.
    let supervisor = std::fs::read_to_string(run_dir.join("lock")).unwrap();
    let signal = |signal: &str| {
        let status = std::process::Command::new("kill").args([signal, supervisor.trim()]).status();
        assert!(status.unwrap().success());
    };
    signal("-STOP");
    site.lasthop.kill("lasthop-cable");
    wait_for("the finding", Duration::from_secs(20), || found(&["--since-start"]).as_deref() == Some("device-away"));
    signal("-CONT");
    site.is_plugged_in();
    assert_eq!(found(&["--since-start"]), None);
    let text = site.lasthop.log();
    assert!(text.lines().any(|line| line.starts_with("nic0: ") && line.contains("the switch is connected")), "{text}");
}

/// Interfaces, devices and CPUs that are taken for each other are told apart.
#[test]
fn a_device_is_no_interface_and_has_cpus_that_there_are() {
    let site = Site::new("nic0");
    let out = site.lasthop.try_command(&["port", "add", "x", "--device", "nic0"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("nic0 is a device of this lasthop") && said.contains("devices/nic0"), "{said}");
    let dir = scratch();
    let mut run = std::process::Command::new(lasthop_tests_process::binary("lasthop"));
    run.args(["run", "--device", "nic0,engines=1023", "--run-dir"]).arg(dir.path().join("run"));
    let out = run.arg("--state-dir").arg(dir.path().join("state")).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(said.matches("engines=1023: CPU 1023 cannot be used here").count(), 1, "{said}");
    assert!(!said.contains("--poll") && out.status.code() == Some(2), "{said}");
}

/// Each of the processes on the way is killed: packets pass again, and those that need none of it do not notice.
#[test]
fn a_cable_comes_back_whoever_is_killed() {
    let site = Site::new("nic0,rules=64");
    let (mut h, mut a, mut b) = (site.on_host(), site.on_device("a", 2), site.on_device("b", 3));
    site.is_plugged_in();
    h.greet_when_back(&mut a, 1);
    a.greet_when_back(&mut b, 2);
    site.lasthop.kill("lasthop-cable");
    a.greet(&mut b, 3);
    h.greet_when_back(&mut a, 4);
    site.lasthop.kill("lasthop-device");
    (a, b) = (site.on_device("a", 2), site.on_device("b", 3));
    h.greet_when_back(&mut a, 5);
    site.lasthop.kill("lasthop-switch");
    a.greet(&mut b, 6);
    h = site.on_host();
    h.greet_when_back(&mut b, 7);
    assert!(site.lasthop.stop(), "all processes end");
}

/// Without a cable there is no port for one, and nothing of the device comes to the host.
#[test]
fn a_device_without_a_cable_is_alone() {
    let site = Site::new("nic0,cable=off");
    let (mut h, mut a, mut b) = (site.on_host(), site.on_device("a", 2), site.on_device("b", 3));
    a.greet_when_back(&mut b, 1);
    a.send(&numbered(mac(2), lasthop_text::MacAddr([255; 6]), 2, 60));
    b.expect_number(2);
    assert!(h.drain().is_empty());
    let ports = site.lasthop.json(&["port", "list"]);
    assert_eq!(ports["ports"].as_array().map(Vec::len), Some(1), "{ports}");
}
