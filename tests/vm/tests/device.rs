//! A device with Linux at its ports: more connections than its table has rules, its control and its data plane killed, and a VM of the host's own
//! switch at the other end of the cable.

use lasthop_harness::checks::{self, Counted, Depth};
use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, scratch, wait_for};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The smallest table that there is.
const RULES: u64 = 16;
/// Connections at once: each has two flows, one each way.
const CONNECTIONS: u64 = 24;

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("no number: {of}"))
}

/// VMs a and b on a device, h on the host.
fn boot(dir: &Path) -> (Lasthop, [Vm; 3]) {
    let socket = |name: &str| dir.join(format!("{name}.sock"));
    let [a, b] = ["a", "b"].map(|name| format!("{name}={},device=nic0", socket(name).display()));
    let device = format!("nic0,rules={RULES}");
    let lasthop = Lasthop::start_with(&[Port::listen("h", dir)], &["--device", &device, "--port", &a, "--port", &b]);
    let vm = |name: &str, number| VmConfig::new(name, [Nic::vhost_user(&socket(name), number)]);
    let vms = Vm::boot_all([vm("a", 1), vm("b", 2), vm("h", 3)]);
    vms.iter().for_each(Vm::serve);
    lasthop.wait_for_state("nic0", "up");
    (lasthop, vms)
}

/// Waits until one echo request is answered.
fn reaches(from: &Vm, to: &Vm) {
    let ping = format!("ping -c 1 -W 1 -q {}", to.config.nics[0].ip4());
    wait_for("a ping to be answered", Duration::from_secs(40), || from.output(&ping, 20).code == 0);
}

#[test]
fn more_connections_than_rules_and_deaths_of_a_device() {
    let dir = scratch();
    let (lasthop, [a, b, h]) = boot(dir.path());
    for (from, to) in [(&a, &b), (&a, &h), (&h, &b)] {
        reaches(from, to);
        checks::tcp(from, to, Depth::Quick);
    }
    // Each connection has flows of its own.
    let list = dir.path().join("list");
    std::fs::write(&list, "stateful\ndefault to-guest deny\npermit to-guest tcp to any port 7000\n").expect("a file");
    let device_dir = lasthop.run_dir().join("devices/nic0").display().to_string();
    let on_device = |words: &[&str]| {
        let mut command = std::process::Command::new(lasthop_harness::binary("lasthop"));
        let out = command.args(words).args(["--run-dir", &device_dir]).output().expect("lasthop starts");
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    on_device(&["acl", "load", &list.display().to_string()]);
    let before = lasthop.json(&["device", "stats", "nic0"]);
    a.run(&format!(
        "pids=; for i in $(seq {CONNECTIONS}); do lasthop-guest tcp-check {}:7000 4096 401 >/dev/null & pids=\"$pids $!\"; done; \
         for p in $pids; do wait $p || exit 1; done",
        b.config.nics[0].ip4()
    ));
    let after = lasthop.json(&["device", "stats", "nic0"]);
    let grown = |name: &str| number(&after["table"][name]) - number(&before["table"][name]);
    assert!(number(&after["rules_used"]) <= RULES, "{after}");
    assert!(grown("recached") > CONNECTIONS, "rules had left the table while their connections went on: {after}");
    assert!(grown("judged") < grown("recached"), "and were not judged again: {before} {after}");
    on_device(&["acl", "clear"]);
    reaches(&a, &b);
    // The device's control, which was started last: what is known goes on.
    let numbers = checks::numbered(&a, &b, 1500, 1000, || lasthop.kill("lasthop-control"));
    assert_eq!(numbers, Counted { received: 1500, gap_ms: numbers.gap_ms, ..Counted::default() });
    // Its data plane: the VMs run on, connect again, and reach each other and the host.
    let (host, uptime) = (lasthop.switch(), a.uptime());
    lasthop.kill("lasthop-device");
    for (from, to) in [(&a, &b), (&a, &h), (&h, &b)] {
        reaches(from, to);
    }
    checks::tcp(&h, &a, Depth::Quick);
    assert_eq!(lasthop.switch(), host, "the host's switch goes on");
    assert!(a.uptime() > uptime && b.alive() && h.alive());
    lasthop.check_sums();
}
