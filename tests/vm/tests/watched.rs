//! What somebody at the host sees of two Linux guests, and what he does to one of them: a capture that tcpdump reads, a cable that is pulled.

use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, checks, scratch, wait_for};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn config(name: &str, dir: &Path, number: u8) -> VmConfig {
    VmConfig::new(name, [Nic::vhost_user(&dir.join(format!("{name}.sock")), number)])
}

fn pair(dir: &Path) -> (Lasthop, [Vm; 2]) {
    let lasthop = Lasthop::start(&["a", "b"].map(|name| Port::listen(name, dir)));
    let vms = Vm::boot_all([config("a", dir, 1), config("b", dir, 2)]);
    checks::ping(&vms[0], &vms[1]);
    (lasthop, vms)
}

fn answers(vm: &Vm) -> bool {
    vm.output("ping -4 -c 3 -i 0.2 -w 3 -q 10.9.0.2", 30).stdout.contains(" 0% packet loss")
}

/// Of the same two guests.
#[test]
fn two_guests_are_listened_to_and_cut_off() {
    let dir = scratch();
    let (lasthop, [a, b]) = pair(dir.path());
    tcpdump_reads_what_two_guests_say(dir.path(), &lasthop, &a);
    a_cable_that_is_pulled_and_plugged_in_again(&lasthop, [&a, &b]);
}

/// What one guest asks and the other answers is in the file, in this order, as another program reads it.
fn tcpdump_reads_what_two_guests_say(dir: &Path, lasthop: &Lasthop, a: &Vm) {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        return println!("skipped: tcpdump is not installed");
    }
    let file = dir.join("a.pcap");
    let run_dir = lasthop.run_dir();
    let mut command = Command::new(lasthop_harness::binary("lasthop"));
    command.args(["capture", "a", "-w"]).arg(&file).arg("--run-dir").arg(&run_dir);
    let mut capture = command.stderr(Stdio::null()).spawn().expect("lasthop capture");
    wait_for("the mirror", Duration::from_secs(20), || lasthop.command(&["mirror", "list"]).contains("capture-"));
    a.run("ping -4 -c 5 -i 0.2 -s 1000 -q 10.9.0.2");
    let read = || {
        let words = ["-n", "-r", file.to_str().expect("a path"), "icmp"];
        let out = Command::new("tcpdump").args(words).output().expect("tcpdump");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    wait_for("ten packets in the file", Duration::from_secs(20), || read().lines().count() >= 10);
    let text = read();
    for (n, line) in text.lines().enumerate() {
        let (what, way) = match n % 2 {
            0 => ("echo request", "10.9.0.1 > 10.9.0.2"),
            _ => ("echo reply", "10.9.0.2 > 10.9.0.1"),
        };
        let right = line.contains(what) && line.contains(way) && line.contains("length 1008");
        assert!(right && line.contains(&format!("seq {}", n / 2)), "line {n} of\n{text}");
    }
    assert_eq!(text.lines().count(), 10, "{text}");
    let pid = capture.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    assert!(capture.wait().expect("it ends").success());
    assert!(!lasthop.command(&["mirror", "list"]).contains("capture-"), "it takes its mirror along");
    lasthop.check_sums();
}

/// Nothing passes while the cable is pulled; then all is as before, without a new connection of the guest's. It is not told: its card shows a carrier.
fn a_cable_that_is_pulled_and_plugged_in_again(lasthop: &Lasthop, [a, b]: [&Vm; 2]) {
    for _ in 0..2 {
        lasthop.command(&["port", "set", "b", "--link", "down"]);
        assert!(!answers(a), "the cable is pulled");
        assert_eq!(b.run("cat /sys/class/net/eth0/carrier").trim(), "1", "docs/ports.md says so");
        let drops = lasthop.port("a")["from_guest"]["drops"].clone();
        assert!(drops.as_array().is_some_and(|drops| drops.iter().any(|d| d["reason"] == "port_down")), "{drops}");
        lasthop.command(&["port", "set", "b", "--link", "up"]);
        wait_for("the two to talk again", Duration::from_secs(30), || answers(a));
    }
    assert_eq!(lasthop.port("b")["state"], "up");
    lasthop.check_sums();
}
