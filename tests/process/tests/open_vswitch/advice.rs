//! What lasthop's own commands say where Open vSwitch decides: nothing succeeds that has no effect, and what is Open vSwitch's stays.

use super::Site;
use lasthop_tests_process::{Netns, PATIENCE, binary, scratch, wait_for};
use std::process::Command;

impl Site {
    /// What a command that is refused says.
    fn refused(&self, words: &[&str]) -> String {
        let out = self.lasthop.try_command(words);
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success(), "{words:?}: {}{error}", String::from_utf8_lossy(&out.stdout));
        error
    }
}

#[test]
fn what_is_open_vswitchs_is_removed_there() {
    let site = Site::new();
    site.netns.ip("link add va type veth peer name vb");
    site.vsctl("add-port br0 va");
    for port in ["br0", "va"] {
        let error = site.refused(&["port", "del", port]);
        assert!(error.contains(&format!("`ovs-vsctl del-port {port}`")), "{error}");
    }
    assert!(site.netns.output("ip link show br0").status.success());
    let file = site.dir.path().join("none.toml");
    std::fs::write(&file, "").unwrap();
    let plan = site.lasthop.command(&["apply", &file.display().to_string(), "--prune", "--dry-run"]);
    assert_eq!(plan, "- port vm1\n- port vm2\nnothing was changed (--dry-run)\n");
    std::fs::write(&file, "[port.va]\ndevice = \"va\"\n").unwrap();
    let error = site.refused(&["apply", &file.display().to_string(), "--dry-run"]);
    assert!(error.contains("Open vSwitch has va"), "{error}");
    // Open vSwitch's own word takes them away.
    site.vsctl("del-port br0 va");
    site.vsctl("del-br br0");
    let gone = |name: &str| !site.lasthop.command(&["port", "list"]).contains(&format!("{name} "));
    wait_for("the ports' end", PATIENCE, || gone("br0") && gone("va"));
}

#[test]
fn what_would_have_no_effect_is_refused_or_says_who_knows() {
    let site = Site::new();
    let error = site.refused(&["uplink", "add", "net", "eth1"]);
    assert!(error.contains("`ovs-vsctl add-port BRIDGE eth1`"), "{error}");
    let socket = site.dir.path().join("x.sock").display().to_string();
    let error = site.refused(&["port", "add", "averylongportname", &socket]);
    assert!(error.contains("at most 15 characters"), "{error}");
    let error = site.refused(&["port", "add", "lo", &socket]);
    assert!(error.contains("there is an interface lo"), "{error}");
    for name in ["ovs-system", "genev_sys_6081", "gre_sys"] {
        let error = site.refused(&["port", "add", name, &socket]);
        assert!(error.contains("Open vSwitch makes interfaces of the name"), "{error}");
    }
    let show = site.lasthop.command(&["show", "vm1"]);
    for (part, false_word) in
        [("`ovs-ofctl dump-flows BRIDGE`", "every packet passes"), ("`ovs-appctl fdb/show BRIDGE`", "learned")]
    {
        assert!(show.contains(part) && !show.contains(false_word), "{show}");
    }
    // The interface of a port that was there is no reason.
    site.lasthop.command(&["port", "add", "vm3", &socket]);
    wait_for("its interface", PATIENCE, || site.netns.output("ip link show vm3").status.success());
    let told = site.lasthop.command(&["port", "del", "vm3"]);
    assert!(told.contains("`ovs-vsctl del-port vm3`"), "{told}");
    site.lasthop.command(&["port", "add", "vm3", &socket]);

    let capture = site.dir.path().join("c.pcap");
    let error = site.refused(&["capture", "vm1", "-w", &capture.display().to_string()]);
    assert!(error.contains("a capture is a mirror") && !capture.exists(), "{error}");
    let file = site.dir.path().join("vlan.toml");
    std::fs::write(&file, format!("[port.vm4]\nsocket = \"{socket}4\"\nvlan = 10\n")).unwrap();
    let error = site.refused(&["apply", &file.display().to_string(), "--dry-run"]);
    assert!(error.contains("settings of port vm4 other than rates"), "{error}");
    let error = site.refused(&["mac", "flush"]);
    assert!(error.contains("ovs-appctl fdb/flush"), "{error}");
    let says = |words: &[&str]| site.lasthop.command(words);
    assert!(says(&["mac", "list"]).contains("`ovs-appctl fdb/show BRIDGE`"));
    assert!(says(&["mac", "groups"]).contains("`ovs-appctl mdb/show BRIDGE`"));
    assert!(says(&["acl", "show"]).contains("`ovs-ofctl dump-flows BRIDGE`"));
    let (src, dst) = ("02:00:00:00:00:77", "02:00:00:00:00:78");
    let trace = says(&["trace", "--in-port", "vm1", "--eth-src", src, "--eth-dst", dst, "--vlan", "77"]);
    assert!(trace.contains("not known: Open vSwitch") && !trace.contains("dropped"), "{trace}");
}

/// Lists and mirrors of a file whose start was refused held from then on, and each later start was refused for them.
#[test]
fn a_start_that_is_refused_changes_nothing() {
    let (dir, netns) = (scratch(), Netns::new());
    let start = |more: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns.name()]).arg(binary("lasthop")).args([
            "run",
            "--control",
            "ovs",
            "--no-bpf",
        ]);
        command.arg("--run-dir").arg(dir.path().join("run")).arg("--state-dir").arg(dir.path().join("state"));
        let out = command.args(more).output().expect("ip");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let file = dir.path().join("lists.toml");
    std::fs::write(&file, "[guests]\nrules = \"deny from-guest icmp\"\n[mirror.m]\nfrom = [\"a\"]\nto = \"b\"\n")
        .unwrap();
    let (status, error) = start(&["--config", &file.display().to_string()]);
    assert!(status == Some(2) && error.contains("access lists are loaded"), "{error}");
    for name in ["acl.rules", "ports.json"] {
        assert!(!dir.path().join("state").join(name).exists(), "{name}");
    }
    let (status, error) = start(&["--uplink", "net=lo"]);
    assert!(status == Some(2) && error.contains("`ovs-vsctl add-port BRIDGE lo`"), "{error}");
    let (status, error) = start(&["--port", "averylongportname=./x.sock"]);
    assert!(status == Some(2) && error.contains("at most 15 characters"), "{error}");
}
