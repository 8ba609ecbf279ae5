//! OpenFlow controllers that others wrote decide, over Open vSwitch over lasthop.

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, numbered, scratch, spawn, vswitch, wait_for,
};
use lasthop_text::MacAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A bridge whose rules come from this controller, which listens at 127.0.0.1:6653 of the namespace.
fn learns_by(protocol: &str, controller: impl FnOnce(&mut Command)) {
    let (dir, netns) = (scratch(), Netns::new());
    let ports = ["vm1", "vm2"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--control", "ovs", "--no-bpf"]);
    let database = vswitch::database(&netns, dir.path());
    let vswitchd = vswitch::daemon(&netns, dir.path(), &lasthop);
    let controls = spawn::spawn("TERM", "ip", |c| {
        c.args(["netns", "exec", netns.name()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Open vSwitch's own wants a place for its control socket.
        c.env("OVS_RUNDIR", dir.path());
        controller(c);
    });
    let mut servers = [controls, vswitchd, database];
    wait_for("the controller", PATIENCE, || netns.shell("ss -Hltn").contains(":6653"));
    let [mut a, mut b] = [("vm1", 1), ("vm2", 2)]
        .map(|(name, n)| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default()));
    let bridge = format!(
        "ovs-vsctl --timeout=20 add-br br0 -- set bridge br0 protocols={protocol} fail-mode=secure other-config:datapath-id=0000000000000001 \
         -- add-port br0 vm1 -- set interface vm1 ofport_request=1 -- add-port br0 vm2 -- set interface vm2 ofport_request=2 -- set-controller br0 tcp:127.0.0.1:6653"
    );
    vswitch::shell(dir.path(), &bridge);
    wait_for("the bridge", PATIENCE, || {
        a.send(&numbered(mac(1), MacAddr::BROADCAST, 0, 60));
        b.recv_within(Duration::from_millis(500)).is_some()
    });
    // The answer goes to where the broadcast came from, and so on: by rules that were learned.
    for number in 1..20 {
        let [there, back] = [(2, 1), (1, 2)].map(|(from, to)| numbered(mac(from), mac(to), number, 600));
        b.send(&there);
        a.recv("what b has sent", |_, frame| *frame == there);
        a.send(&back);
        b.recv("what a has sent", |_, frame| *frame == back);
    }
    let rules = vswitch::shell(
        dir.path(),
        &format!("ovs-ofctl -O {protocol} dump-flows unix:{}/br0.mgmt", dir.path().display()),
    );
    let learned = rules.lines().filter(|rule| rule.contains("dl_dst=02:00:00:00:00:0")).count();
    assert!(learned >= 2, "{rules}");
    for server in &mut servers {
        spawn::end(server);
    }
}

#[test]
#[ignore = "takes long; `cargo xtask test --long` runs it"]
fn a_learning_switch_by_os_ken() {
    learns_by("OpenFlow13", |c| {
        let app = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/open_vswitch/learning.py");
        c.args(["osken-manager", "--ofp-tcp-listen-port", "6653", app]);
    });
}

#[test]
#[ignore = "takes long; `cargo xtask test --long` runs it"]
fn a_learning_switch_by_open_vswitchs_test_controller() {
    learns_by("OpenFlow10", |c| {
        c.args(["ovs-testcontroller", "ptcp:6653"]);
    });
}

/// Where Faucet is, unless it cannot be had.
fn faucet() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = Command::new(root.join("tests/ovs/install-faucet")).output().expect("tests/ovs/install-faucet");
    if !made.status.success() {
        println!("skipped: Faucet cannot be installed: {}", String::from_utf8_lossy(&made.stderr));
        return None;
    }
    Some(root.join("target/tools/faucet/bin").canonicalize().expect("its programs"))
}

#[test]
#[ignore = "takes long; `cargo xtask test --long` runs it"]
fn a_vlan_by_faucet() {
    let Some(programs) = faucet() else { return };
    let dir = scratch();
    let config = dir.path().join("faucet.yaml");
    let office = "vlans: {office: {vid: 100}}\n\
                  dps: {br0: {dp_id: 1, hardware: Open vSwitch, interfaces: {1: {native_vlan: office}, 2: {native_vlan: office}}}}\n";
    std::fs::write(&config, office).expect("its configuration");
    learns_by("OpenFlow13", |c| {
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        c.env("PATH", path).env("FAUCET_CONFIG", &config);
        c.env("FAUCET_LOG", dir.path().join("log")).env("FAUCET_EXCEPTION_LOG", dir.path().join("exceptions"));
        // By default it says what happens to a socket of the host's.
        c.env("FAUCET_EVENT_SOCK", "").arg(programs.join("faucet"));
    });
}
