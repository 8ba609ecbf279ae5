//! Machines that are set up wrongly, each in a way that QEMU accepts without a word: the first place that one looks at says
//! what is wrong, and what to do.

use lasthop_harness::{Lasthop, Memory, Nic, Port, Vm, VmConfig, checks, scratch, wait_for};
use serde_json::{Value, json};
use std::time::Duration;

/// What `lasthop doctor` finds at a port, by kind; the exit status says whether there is anything.
fn found(lasthop: &Lasthop, port: &str) -> Vec<String> {
    let out = lasthop.try_command(&["doctor", port, "--for", "1", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let findings = report["findings"].as_array().expect("a list");
    assert_eq!(out.status.code(), Some(i32::from(!findings.is_empty())), "{report}");
    let of_port = findings.iter().filter(|f| f["port"] == port);
    of_port.map(|f| f["kind"].as_str().unwrap_or_default().to_owned()).collect()
}

/// vhost-user wants memory that is shared, and QEMU 7.2 starts without.
#[test]
fn memory_that_is_not_shared_is_named() {
    let dir = scratch();
    let ports = ["off", "none"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let machine = |n: usize, memory| {
        let nic = Nic::vhost_user(&ports[n].socket, n as u8 + 1);
        VmConfig { memory, ..VmConfig::new(&ports[n].name, [nic]) }
    };
    let vms = Vm::boot_all([machine(0, Memory::Private), machine(1, Memory::Anonymous)]);
    let pings = vms.each_ref().map(|vm| vm.spawn("ping -c 2 -W 1 10.9.0.9"));
    pings.into_iter().for_each(|ping| drop(ping.output(Duration::from_secs(65))));
    let said = |name: &str| lasthop.port(name)["note"].as_str().unwrap_or_default().to_owned();
    // A guest that waits for an answer kicks once. Where this falls together with the kick that QEMU gives when the ring starts, lasthop
    // cannot tell it from a guest that has not set its interface up, and names both.
    for (name, how) in [("off", "zeros"), ("none", "handed over no memory")] {
        let said = || said(name);
        wait_for(&format!("a note on {name}"), Duration::from_secs(30), || said().contains("memory is not shared"));
        assert!(said().contains(how) && said().contains("share=on"), "{}", said());
        let named = |text: &str| {
            text.lines().any(|line| line.contains(&format!("{name}: ")) && line.contains("memory is not shared"))
        };
        assert!(named(&lasthop.command(&["port", "list"])));
        wait_for("a line in the log", Duration::from_secs(30), || named(&lasthop.log()));
        let kinds = found(&lasthop, name);
        assert!(kinds == ["memory-not-shared"] || name == "off" && kinds == ["rings-blank"], "{name}: {kinds:?}");
    }
}

/// `lasthop doctor` has nothing to say of two guests that are well, and finds the one whose machine is stopped while the other sends to it.
#[test]
fn a_machine_that_is_stopped_is_found() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    // What lasthop may of the host is no matter here.
    let lasthop = Lasthop::start_with(&ports, &["--no-bpf"]);
    let machine = |n: usize| VmConfig::new(&ports[n].name, [Nic::vhost_user(&ports[n].socket, n as u8 + 1)]);
    let [a, b] = Vm::boot_all([machine(0), machine(1)]);
    checks::ping(&a, &b);
    for port in ["a", "b"] {
        assert_eq!(found(&lasthop, port), [""; 0]);
    }
    let shown = lasthop.json(&["show", "b"]);
    assert_eq!(shown["macs"].as_array().map(Vec::len), Some(1), "{shown}");
    // QEMU takes the rings away then.
    b.qmp("stop", json!({}));
    let pings = a.spawn("echo $$ >/tmp/pings; exec ping -i 0.002 -s 1400 -w 50 -q 10.9.0.2");
    wait_for("the stopped machine to be found", Duration::from_secs(20), || found(&lasthop, "b") == ["rings-stopped"]);
    b.qmp("cont", json!({}));
    a.run("kill $(cat /tmp/pings)");
    drop(pings.output(Duration::from_secs(65)));
    assert_eq!(found(&lasthop, "b"), [""; 0]);
    checks::ping(&a, &b);
}
