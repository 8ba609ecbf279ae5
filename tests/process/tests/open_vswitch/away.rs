//! Open vSwitch is not there, does not keep up, is there twice, or goes on with what is gone; its socket is removed: counted, said and, where that can be, mended.

use super::*;
use lasthop_tests_process::{binary, proc};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

/// What `lasthop doctor` finds while something goes on.
fn findings(lasthop: &Lasthop, mut meanwhile: impl FnMut()) -> Vec<Value> {
    let mut command = Command::new(binary("lasthop"));
    command.args(["doctor", "--json", "--for", "1", "--run-dir"]).arg(lasthop.run_dir());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("lasthop starts");
    while child.try_wait().expect("a child").is_none() {
        meanwhile();
        std::thread::sleep(Duration::from_millis(20));
    }
    let out = child.wait_with_output().expect("a child");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    report["findings"].as_array().expect("a list").clone()
}

impl Site {
    fn findings(&self, meanwhile: impl FnMut()) -> Vec<Value> {
        findings(&self.lasthop, meanwhile)
    }

    /// The finding of this kind, beside which there is no other.
    fn is_found(&self, kind: &str) -> Value {
        let found = self.finds(kind);
        let [finding] = &found[..] else { panic!("{kind}, and what else? {found:#?}") };
        finding.clone()
    }

    /// All findings, once one is of this kind.
    fn finds(&self, kind: &str) -> Vec<Value> {
        let end = Instant::now() + 3 * PATIENCE;
        loop {
            let found = self.findings(|| ());
            if found.iter().any(|finding| finding["kind"] == kind) {
                return found;
            }
            assert!(Instant::now() < end, "{kind} is not found: {found:#?}, {}", self.deciders());
        }
    }

    fn is_well(&self) {
        wait_for("no finding", 3 * PATIENCE, || self.findings(|| ()).is_empty());
    }

    fn deciders(&self) -> Value {
        deciders(self)
    }

    fn lost(&self) -> u64 {
        self.deciders()["lost"].as_u64().expect("a number")
    }

    fn drops(&self, reason: &str) -> u64 {
        let port = self.lasthop.port("vm1");
        let drops = port["from_guest"]["drops"].as_array().expect("a list").clone();
        drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().expect("a number"))
    }

    fn end_vswitchd(&mut self) {
        self.vswitchd.kill().expect("it is ours");
        let _ = self.vswitchd.wait();
    }

    fn says(&self, words: &str) {
        wait_for(words, PATIENCE, || self.lasthop.log().contains(words));
    }
}

/// What is known of who decides.
pub(crate) fn deciders(site: &Site) -> Value {
    site.lasthop.json(&["stats"])["switch"]["deciders"].clone()
}

/// They vanished, and counted as delivered to the port by which they get to `lasthop-ovs`.
#[test]
fn what_nobody_decides_about_is_a_drop_of_its_port() {
    let mut site = Site::new();
    let pid = proc::children(site.vswitchd.id()).first().map_or(site.vswitchd.id(), |(pid, _)| *pid);
    site.says(&format!("Open vSwitch (pid {pid}) takes packets that meet no flow"));
    assert_eq!(site.deciders()["processes"], serde_json::json!([pid]));
    assert_eq!(site.lost(), 0);
    site.is_well();

    site.end_vswitchd();
    site.says(&format!("Open vSwitch (pid {pid}) is gone"));
    let before = site.drops("miss_timeout");
    (0..20).for_each(|n| site.guests[0].send(&numbered(mac(9), mac(40 + n), n.into(), 60)));
    wait_for("all of them", PATIENCE, || site.drops("miss_timeout") == before + 20);
    assert_eq!(site.lost(), 20);
    site.lasthop.check_sums();
    let finding = site.is_found("open-vswitch-away");
    assert!(finding["remedy"].as_str().expect("text").contains("ovs exec"), "{finding}");
    let stats = site.lasthop.command(&["stats"]);
    assert!(stats.contains("Open vSwitch is not there") && stats.contains("20 packets found nobody"), "{stats}");
    let metrics = site.lasthop.command(&["metrics"]);
    for line in ["lasthop_open_vswitch_processes 0", "lasthop_open_vswitch_lost_total 20"] {
        assert!(metrics.lines().any(|l| l.starts_with(line)), "{line}: {metrics}");
    }
    let words = ["trace", "--in-port", "vm1", "--eth-src", "02:00:00:00:00:77", "--eth-dst", "02:00:00:00:00:78"];
    let trace = site.lasthop.command(&words);
    assert!(trace.contains("Open vSwitch is not there") && !trace.contains("would wait"), "{trace}");

    site.vswitchd = vswitch::daemon(&site.netns, site.dir.path(), &site.lasthop);
    site.wait_for_bridge();
    site.is_well();
}

/// A stopped process has its sockets still: what they have no room for is dropped, and all passes again when it goes on.
#[test]
fn a_stopped_ovs_vswitchd_is_found_and_goes_on() {
    let mut site = Site::new();
    let pid = site.deciders()["processes"][0].as_u64().expect("a number") as u32;
    proc::signal(pid, Signal::STOP);
    let mut n = 0u32;
    let guest = &mut site.guests[0];
    let mut new_flow = || {
        n += 1;
        guest.send(&numbered(mac(9), MacAddr([2, 1, 0, 0, (n >> 8) as u8, n as u8]), n, 60));
    };
    (0..4000).for_each(|_| new_flow());
    wait_for("packets that nobody took", PATIENCE, || {
        let drops = site.lasthop.port("vm1")["from_guest"]["drops"].to_string();
        drops.contains("miss_queue_full")
    });
    let before = site.lasthop.json(&["stats"])["switch"]["deciders"]["lost"].as_u64();
    assert!(before > Some(0), "{before:?}");
    proc::signal(pid, Signal::CONT);
    site.wait_for_bridge();
    site.lasthop.check_sums();
}

#[test]
fn two_ovs_vswitchd_are_found() {
    let mut site = Site::new();
    let other = scratch();
    let mut database = vswitch::database(&site.netns, other.path());
    let mut second = vswitch::daemon(&site.netns, other.path(), &site.lasthop);
    vswitch::run(other.path(), &["ovs-vsctl", "--timeout=20", "add-br", "br9"]);
    // While they take each other's ports away there may be more.
    let found = site.finds("open-vswitch-twice");
    assert!(found.iter().any(|finding| finding["what"].as_str().expect("text").contains("pids")), "{found:?}");
    site.says("both change one datapath");
    // Ended, it leaves the first without packets, which has to be restarted. That looked as if it had too much to do.
    spawn::end(&mut second);
    spawn::end(&mut database);
    wait_for("one of them", PATIENCE, || site.deciders()["processes"].as_array().expect("a list").len() <= 1);
    assert!(site.deciders()["away_ms"].is_u64(), "{}", site.deciders());
    site.finds("open-vswitch-displaced");
    site.says("had taken the datapath over from pid");
    site.end_vswitchd();
    site.vswitchd = vswitch::daemon(&site.netns, site.dir.path(), &site.lasthop);
    site.wait_for_bridge();
    site.is_well();
}

/// A program with a library of a version before found no datapath, said that the kernel's module was not loaded, and nothing else was said anywhere.
#[test]
fn a_library_of_another_version_is_named() {
    let mut site = Site::new();
    let dir = scratch();
    let library = std::fs::read(binary("lasthop").with_file_name("liblasthop_ovs.so")).expect("it is built");
    let mut other = library.clone();
    let hello = b"lasthop-ovs 3";
    let at = library.windows(hello.len()).position(|bytes| bytes == hello).expect("it stands in the file");
    other[at + hello.len() - 1] = b'2';
    let file = dir.path().join("liblasthop_ovs.so");
    std::fs::write(&file, other).expect("a file");
    // `ovs exec` looks at the library beside it before anything is started.
    std::fs::copy(binary("lasthop"), dir.path().join("lasthop")).expect("a file");
    let mut exec = Command::new(dir.path().join("lasthop"));
    exec.args(["ovs", "exec", "--run-dir"]).arg(site.lasthop.run_dir()).args(["--", "true"]);
    let out = exec.output().expect("lasthop");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("of another version than this lasthop"), "{said}");
    // One that was started before is refused, and named.
    site.end_vswitchd();
    let mut program = Command::new("ovs-dpctl");
    program.arg("show").env("LD_PRELOAD", &file).env("LASTHOP_OVS_SOCKET", site.lasthop.run_dir().join("ovs.sock"));
    assert!(!program.output().expect("ovs-dpctl is installed by scripts/setup").status.success());
    site.says("it says hello 2, this lasthop 3");
    site.is_found("open-vswitch-outdated");
}

/// One that goes on after `lasthop run` was replaced has a datapath that is gone, if nothing was kept of it.
#[test]
fn an_ovs_vswitchd_of_an_earlier_lasthop_is_found() {
    let mut site = Site::new();
    site.netns.ip("link add ve0 type veth peer name ve1");
    site.vsctl("add-port br0 ve0");
    let kept = [1, 2].map(|n| site.lasthop.run_dir().join(format!("ovs.datapath-{n}")));
    site.start_lasthop_again(false, || kept.iter().for_each(|file| std::fs::remove_file(file).expect("it is there")));
    site.says("goes on with the datapath of a `lasthop run` before");
    wait_for("a finding", 3 * PATIENCE, || {
        site.findings(|| ()).iter().any(|finding| finding["kind"] == "open-vswitch-left-over")
    });
    // What the finding says to do.
    site.end_vswitchd();
    site.vswitchd = vswitch::daemon(&site.netns, site.dir.path(), &site.lasthop);
    wait_for("one of its own", PATIENCE, || site.deciders()["processes"].as_array().is_some_and(|all| all.len() == 1));
    wait_for("no finding of it", 3 * PATIENCE, || {
        !site.findings(|| ()).iter().any(|finding| finding["kind"] == "open-vswitch-left-over")
    });
    // What it has taken up again it closes.
    let list = |site: &Site| site.lasthop.command(&["port", "list"]);
    assert!(list(&site).contains("ve0"), "{}", list(&site));
    site.vsctl("del-port ve0");
    wait_for("the end of the interface", PATIENCE, || !list(&site).contains("ve0"));
}

/// A device as a port was accepted, and Open vSwitch could never use it.
#[test]
fn a_device_is_opened_by_open_vswitch_alone() {
    let site = Site::new();
    site.netns.ip("link add ve0 type veth peer name ve1");
    let refused = site.lasthop.try_command(&["port", "add", "c1", "--device", "ve0"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("`ovs-vsctl add-port BRIDGE ve0`"), "{said}");
    // Without Open vSwitch, what it has opened is not joined by the learning switch, which has none of its rules.
    site.vsctl("add-port br0 ve0");
    let saved = site.lasthop.run_dir().with_file_name("state");
    let other = scratch();
    let state = other.path().join("state");
    let copied = Command::new("cp").arg("-r").args([&saved, &state]).status().expect("cp");
    assert!(copied.success());
    // It would run for ever otherwise.
    let mut run = Command::new("timeout");
    run.arg("10")
        .arg(binary("lasthop"))
        .args(["run", "--no-bpf", "--run-dir"])
        .arg(other.path().join("run"))
        .arg("--state-dir")
        .arg(&state);
    let out = run.output().expect("lasthop");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("Open vSwitch has opened") && said.contains("ve0"), "{said}");
}

/// The socket was gone for good, and `ovs exec` said to start lasthop with `--control ovs`.
#[test]
fn a_socket_of_open_vswitchs_programs_that_is_removed_comes_back() {
    let mut site = Site::new();
    let socket = site.lasthop.run_dir().join("ovs.sock");
    let exec = |site: &Site| site.lasthop_exec(&site.lasthop.run_dir());
    for _ in 0..2 {
        std::fs::remove_file(&socket).expect("it is there");
        wait_for("another socket", PATIENCE, || exec(&site).0);
    }
    site.says(&format!("Open vSwitch: {} was removed or replaced; making it anew", socket.display()));
    // Another ovs-vswitchd comes by the new one, and one more after the death of lasthop-ovs.
    for kill in [false, true] {
        if kill {
            site.lasthop.kill("lasthop-ovs");
        }
        site.end_vswitchd();
        site.vswitchd = vswitch::daemon(&site.netns, site.dir.path(), &site.lasthop);
        site.wait_for_bridge();
    }
    // Something in the way.
    let other = site.lasthop.run_dir().join("other");
    std::fs::write(&other, "precious").expect("a file");
    std::fs::rename(&other, &socket).expect("it takes its place");
    assert_eq!(site.is_found("ovs-socket-gone")["port"], Value::Null);
    let (_, said) = exec(&site);
    assert!(said.contains("though lasthop runs with --control ovs"), "{said}");
    std::fs::remove_file(&socket).expect("it is ours");
    wait_for("another socket", PATIENCE, || exec(&site).0);
    site.is_well();
}

impl Site {
    /// Whether a program comes through to the lasthop of this directory, and what is said.
    fn lasthop_exec(&self, run_dir: &std::path::Path) -> (bool, String) {
        let mut command = Command::new(binary("lasthop"));
        let out =
            command.args(["ovs", "exec", "--run-dir"]).arg(run_dir).args(["--", "true"]).output().expect("lasthop");
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// `ovs exec` took a file for somebody who listens.
#[test]
fn ovs_exec_says_who_does_not_listen() {
    let site = Site::new();
    let dir = scratch();
    let (ok, said) = site.lasthop_exec(dir.path());
    assert!(!ok && said.contains("and no lasthop answers at"), "{said}");
    let socket = dir.path().join("ovs.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let (ok, said) = site.lasthop_exec(dir.path());
    assert!(!ok && said.contains("nobody listens at"), "{said}");
    let other = Lasthop::start(&[]);
    let (ok, said) = site.lasthop_exec(&other.run_dir());
    assert!(!ok && said.contains("but without --control ovs"), "{said}");
}

/// A rule that drops, and a port that no bridge has, looked alike in the counters, and nothing was said of either.
#[test]
fn what_rules_drop_and_ports_without_a_bridge_are_found() {
    let mut site = Site::new();
    site.is_well();
    let socket = site.dir.path().join("vm3.sock");
    site.lasthop.command(&["port", "add", "vm3", &socket.display().to_string()]);
    let mut third = Guest::connect(&socket, mac(3), Options::default());
    site.lasthop.wait_for_state("vm3", "up");
    site.ofctl(&["add-flow", "priority=9,in_port=1,actions=drop"]);
    let frame = numbered(mac(1), mac(2), 1, 60);
    let mut kinds = std::collections::BTreeSet::new();
    wait_for("both", 3 * PATIENCE, || {
        let Site { guests, lasthop, .. } = &mut site;
        let found = findings(lasthop, || {
            guests[0].send(&frame);
            third.send(&frame);
        });
        let kind = |finding: &Value| format!("{} {}", finding["port"], finding["kind"]);
        kinds = found.iter().map(kind).collect();
        kinds.contains("\"vm1\" \"rule-drops\"") && kinds.contains("\"vm3\" \"no-bridge\"")
    });
    site.is_well();
    // What a connection's state drops is judged in lasthop-ovs, and is no drop of the switch's.
    site.ofctl(&["del-flows"]);
    site.ofctl(&["add-flow", "in_port=1,ip,actions=ct(table=1)"]);
    site.ofctl(&["add-flow", "table=1,ct_state=+trk,actions=drop"]);
    let echo = lasthop_conntrack::testutil::Ends::v4(0, 0).echo(false, 1);
    wait_for("the drops of rules", 3 * PATIENCE, || {
        let Site { guests, lasthop, .. } = &mut site;
        let found = findings(lasthop, || guests[0].send(&echo));
        found.iter().any(|of| of["kind"] == "rule-drops" && of["evidence"].to_string().contains("in lasthop-ovs"))
    });
    site.ofctl(&["del-flows"]);
    // A meter is the switch's.
    site.ofctl13(&["add-meter", "meter=1,pktps,burst,band=type=drop,rate=1,burst_size=1"]);
    site.ofctl13(&["add-flow", "in_port=1,actions=meter:1,output:2"]);
    wait_for("the drops of a meter", 3 * PATIENCE, || {
        let Site { guests, lasthop, .. } = &mut site;
        let found = findings(lasthop, || (0..5).for_each(|_| guests[0].send(&frame)));
        guests[1].drain();
        found.iter().any(|of| of["kind"] == "meter-drops" && of["port"] == "vm1")
    });
    site.ofctl(&["del-flows"]);
    site.ofctl(&["add-flow", "priority=0,actions=NORMAL"]);
    // Its interface goes, and its port in Open vSwitch stays.
    site.vsctl("add-port br0 vm3");
    site.lasthop.command(&["port", "del", "vm3"]);
    let finding = site.is_found("port-without-interface");
    assert!(finding["what"].as_str().expect("text").contains("vm3"), "{finding}");
}
