//! The distribution's own service of Open vSwitch over lasthop: what `lasthop ovs install` writes for systemd, and the service's start and restart with it.
//! Packets in, packets out.

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, binary, mac, numbered, scratch, spawn, wait_for,
};
use lasthop_text::MacAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// What the unit of the distribution starts and stops ovs-vswitchd with.
const CONTROL_SCRIPT: &str = "/usr/share/openvswitch/scripts/ovs-ctl";
const DROP_IN: &str = "etc/systemd/system/ovs-vswitchd.service.d/lasthop.conf";
const UNIT: &str = "etc/systemd/system/lasthop.service";

/// A directory with the distribution's units below, like an image's root.
fn image() -> tempfile::TempDir {
    let root = scratch();
    let units = root.path().join("usr/lib/systemd/system");
    std::fs::create_dir_all(&units).unwrap();
    for unit in ["ovs-vswitchd.service", "ovsdb-server.service", "openvswitch-switch.service"] {
        let from = ["/usr/lib/systemd/system", "/lib/systemd/system"].map(|dir| Path::new(dir).join(unit));
        let from = from.iter().find(|path| path.exists()).expect("openvswitch-switch is installed by scripts/setup");
        std::fs::copy(from, units.join(unit)).unwrap();
    }
    root
}

/// `lasthop ovs …` for an image.
fn lasthop_ovs(root: &Path, words: &[&str]) -> Output {
    Command::new(binary("lasthop")).arg("ovs").args(words).arg("--root").arg(root).output().unwrap()
}

fn said(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn what_install_writes_systemd_accepts_and_uninstall_takes_away() {
    let root = image();
    let told = said(&lasthop_ovs(root.path(), &["install", "--run-dir", "/run/lasthop"]));
    assert!(told.contains("lasthop.service: written") && told.contains("lasthop.conf: written"), "{told}");
    assert!(told.contains("systemctl restart openvswitch-switch"), "{told}");
    let drop_in = std::fs::read_to_string(root.path().join(DROP_IN)).unwrap();
    assert!(drop_in.contains("Environment=LASTHOP_OVS_SOCKET=/run/lasthop/ovs.sock\n"), "{drop_in}");
    // The programs that the units name are to be there, from systemd's point of view.
    for program in ["bin/true", "bin/kill", "usr/share/openvswitch/scripts/ovs-ctl"] {
        put_program(root.path(), Path::new("/").join(program).as_path());
    }
    put_program(root.path(), &binary("lasthop"));
    let judged = Command::new("systemd-analyze")
        .args(["verify", "--recursive-errors=no", "--man=no", "--root"])
        .arg(root.path())
        .args(["lasthop.service", "ovs-vswitchd.service"])
        .output()
        .expect("systemd is installed");
    let complaints = String::from_utf8_lossy(&judged.stderr);
    assert!(judged.status.success() && !complaints.contains("lasthop"), "{complaints}");

    let again = said(&lasthop_ovs(root.path(), &["install", "--run-dir", "/run/lasthop"]));
    assert!(again.contains("lasthop.service: as it was") && again.contains("lasthop.conf: as it was"), "{again}");
    // What `systemctl enable` makes goes too: `systemctl disable` fails without the unit.
    let wanted = root.path().join("etc/systemd/system/multi-user.target.wants/lasthop.service");
    std::fs::create_dir_all(wanted.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(Path::new("/").join(UNIT), &wanted).unwrap();
    let told = said(&lasthop_ovs(root.path(), &["uninstall"]));
    assert!(!wanted.is_symlink() && told.contains("systemctl stop lasthop"), "{told}");
    assert!(told.contains("lasthop.service: removed") && told.contains("lasthop.conf: removed"), "{told}");
    assert!(!root.path().join(UNIT).exists() && !root.path().join(DROP_IN).parent().unwrap().exists());
    assert!(said(&lasthop_ovs(root.path(), &["uninstall"])).contains("not there"));
}

fn put_program(root: &Path, path: &Path) {
    let to = root.join(path.strip_prefix("/").unwrap());
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy("/bin/true", to).unwrap();
}

#[test]
fn files_of_others_stay_and_what_cannot_be_is_refused() {
    let root = image();
    let own = root.path().join(UNIT);
    std::fs::create_dir_all(own.parent().unwrap()).unwrap();
    std::fs::write(&own, "[Service]\nExecStart=/opt/lasthop run --control ovs\n").unwrap();
    let told = said(&lasthop_ovs(root.path(), &["install"]));
    assert!(told.contains("lasthop.service: is there already and stays"), "{told}");
    assert!(said(&lasthop_ovs(root.path(), &["uninstall"])).contains("lasthop.service: stays"));
    assert!(std::fs::read_to_string(&own).unwrap().contains("/opt/lasthop"));

    let odd = lasthop_ovs(root.path(), &["install", "--run-dir", "/run/a b"]);
    assert_eq!(odd.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&odd.stderr).contains("cannot stand in a unit file"));
    let both = lasthop_ovs(root.path(), &["install", "--run-dir", "/run/lasthop", "--state-dir", "/run/lasthop"]);
    assert_eq!(both.status.code(), Some(2), "lasthop run refuses that");
    let empty = scratch();
    let none = lasthop_ovs(empty.path(), &["install"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("install openvswitch-switch first"));
}

/// What a unit file gives a key, in its order.
fn values(unit: &str, key: &str) -> Vec<String> {
    unit.lines().filter_map(|line| line.strip_prefix(key)).map(str::to_owned).collect()
}

/// The service as systemd runs it: its script, with what the drop-in puts into the environment.
struct Service {
    netns: Netns,
    dir: tempfile::TempDir,
    environment: Vec<(String, String)>,
    before_start: Vec<String>,
    database: Child,
}

impl Service {
    fn new(netns: Netns, lasthop: &Lasthop) -> Self {
        let (root, dir) = (image(), scratch());
        let run_dir = lasthop.run_dir().to_str().unwrap().to_owned();
        said(&lasthop_ovs(root.path(), &["install", "--run-dir", &run_dir]));
        let drop_in = std::fs::read_to_string(root.path().join(DROP_IN)).unwrap();
        let environment = values(&drop_in, "Environment=").into_iter().map(|line| {
            let (name, value) = line.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        });
        let (environment, before_start) = (environment.collect(), values(&drop_in, "ExecStartPre="));
        let database = database(&netns, dir.path());
        Self { netns, dir, environment, before_start, database }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("db.sock")
    }

    /// `start`, `restart` or `stop`, with the words of the unit's ExecStart.
    fn script(&self, word: &str) {
        for command in &self.before_start {
            let words: Vec<_> = command.split(' ').collect();
            assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{command}");
        }
        let dir = self.dir.path();
        let log = std::fs::File::create(dir.join("ovs-ctl.log")).unwrap();
        let status = Command::new("ip")
            .args(["netns", "exec", self.netns.name(), CONTROL_SCRIPT, "--no-ovsdb-server", "--no-monitor"])
            .args(["--system-id=random", "--no-record-hostname", word])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("OVS_RUNDIR", dir)
            .env("OVS_LOGDIR", dir)
            .env("OVS_SYSCONFDIR", dir)
            .env("OVS_DBDIR", dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status()
            .unwrap();
        assert!(status.success(), "ovs-ctl {word}: {}", self.told());
    }

    /// What the script said last.
    fn told(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("ovs-ctl.log")).unwrap()
    }

    fn vsctl(&self, words: &str) {
        let database = format!("--db=unix:{}", self.socket().display());
        let out = Command::new("ovs-vsctl").args(["--timeout=20", &database]).args(words.split(' ')).output().unwrap();
        assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
    }

    fn ofctl(&self, words: &[&str]) -> String {
        let bridge = format!("unix:{}", self.dir.path().join("br0.mgmt").display());
        let (first, rest) = words.split_first().expect("a command");
        let out = Command::new("ovs-ofctl").args([first, bridge.as_str()]).args(rest).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.script("stop");
        } else if let Ok(pid) = std::fs::read_to_string(self.dir.path().join("ovs-vswitchd.pid")) {
            let _ = Command::new("kill").arg(pid.trim()).status();
        }
        spawn::end(&mut self.database);
    }
}

fn database(netns: &Netns, dir: &Path) -> Child {
    let schema = "/usr/share/openvswitch/vswitch.ovsschema";
    let made = Command::new("ovsdb-tool").arg("create").arg(dir.join("conf.db")).arg(schema).output().unwrap();
    assert!(made.status.success());
    let socket = dir.join("db.sock");
    let child = spawn::spawn("TERM", "ip", |c| {
        c.args(["netns", "exec", netns.name(), "ovsdb-server"]).arg(dir.join("conf.db"));
        c.arg(format!("--remote=punix:{}", socket.display()));
        // The script saves rules only of a database that it finds running.
        c.arg(format!("--pidfile={}", dir.join("ovsdb-server.pid").display()));
        c.env("OVS_RUNDIR", dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    });
    wait_for("the database", PATIENCE, || socket.exists());
    child
}

/// The service's restart saves rules that the database does not keep, and installs them again before traffic is let in by others.
#[test]
fn the_service_starts_and_restarts_over_lasthop_and_keeps_its_rules() {
    let (dir, netns) = (scratch(), Netns::new());
    let ports = ["vm1", "vm2"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--control", "ovs", "--no-bpf"]);
    let service = Service::new(netns, &lasthop);
    service.script("start");
    service.vsctl("add-br br0 -- add-port br0 vm1 -- add-port br0 vm2 -- set-fail-mode br0 secure");
    let connect = |name: &str, n| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default());
    let (mut a, mut b) = (connect("vm1", 1), connect("vm2", 2));
    ["vm1", "vm2"].into_iter().for_each(|port| lasthop.wait_for_state(port, "up"));
    // Without this rule nothing passes: the bridge is "secure".
    service.ofctl(&["add-flow", "priority=7,actions=NORMAL"]);
    let mut passes = |number| {
        wait_for("the frame", PATIENCE, || {
            a.send(&numbered(mac(1), MacAddr::BROADCAST, number, 60));
            b.recv_within(std::time::Duration::from_millis(300)).is_some()
        });
    };
    passes(1);
    service.script("restart");
    let rules = service.ofctl(&["dump-flows"]);
    assert!(rules.contains("priority=7"), "the rule came back with the service: {rules}\n{}", service.told());
    passes(2);
    // Programs that the service's script starts have its environment: they make interfaces as ever, but none for a tunnel.
    let make = |name: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", service.netns.name(), "ip", "link", "add", name, "type", "veth"]);
        command.envs(service.environment.iter().map(|(name, value)| (name, value))).output().unwrap()
    };
    said(&make("veth-a"));
    let tunnel = make("vxlan_sys_4789");
    assert!(String::from_utf8_lossy(&tunnel.stderr).contains("Operation not supported"), "{tunnel:?}");
}
