//! A device with Linux at its ports: more connections than its table has rules, its control and its data plane killed, and a VM of the host's own
//! switch at the other end of the cable.

use lasthop_harness::checks::{self, Counted, Depth, Stream};
use lasthop_harness::{DmaEngine, Lasthop, Nic, Port, Vm, VmConfig, on_device, proc, scratch, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(40);

const OF_ITS_OWN: &str = "it has a device of its own, and is the same twice";
/// The smallest table that there is.
const RULES: u64 = 16;
/// Connections at once: each has two flows, one each way.
const CONNECTIONS: u64 = 24;

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("no number: {of}"))
}

/// VMs a and b on a device that is told this, h on the host.
fn boot(dir: &Path, told: &str) -> (Lasthop, [Vm; 3]) {
    let socket = |name: &str| dir.join(format!("{name}.sock"));
    let [a, b] = ["a", "b"].map(|name| format!("{name}={},device=nic0", socket(name).display()));
    let device = format!("nic0,{told}");
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
    wait_for("a ping to be answered", PATIENCE, || from.output(&ping, 20).code == 0);
}

/// Runs them under a list by which each has flows of its own: what the device had counted before, and has then.
fn more_connections_than_rules(lasthop: &Lasthop, dir: &Path, a: &Vm, b: &Vm) -> [Value; 2] {
    let list = dir.join("list").display().to_string();
    std::fs::write(&list, "stateful\ndefault to-guest deny\npermit to-guest tcp to any port 7000\n").expect("a file");
    let on_device = |words: &[&str]| {
        let out = lasthop.try_command_of(Some("nic0"), words);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    on_device(&["acl", "load", &list]);
    let stats = || lasthop.json(&["device", "stats", "nic0"]);
    let before = stats();
    a.run(&format!(
        "pids=; for i in $(seq {CONNECTIONS}); do lasthop-guest tcp-check {}:7000 128 1 >/dev/null & pids=\"$pids $!\"; done; \
         for p in $pids; do wait $p || exit 1; done",
        b.config.nics[0].ip4()
    ));
    let after = stats();
    on_device(&["acl", "clear"]);
    [before, after]
}

#[test]
fn more_connections_than_rules_and_deaths_of_a_device() {
    if on_device::skips(OF_ITS_OWN) {
        return;
    }
    let dir = scratch();
    let (lasthop, [a, b, h]) = boot(dir.path(), &format!("rules={RULES}"));
    for (from, to) in [(&a, &b), (&a, &h), (&h, &b)] {
        reaches(from, to);
        checks::tcp(from, to, Depth::Quick);
    }
    let [before, after] = more_connections_than_rules(&lasthop, dir.path(), &a, &b);
    let grown = |name: &str| number(&after["table"][name]) - number(&before["table"][name]);
    assert!(number(&after["rules_used"]) <= RULES, "{after}");
    assert!(grown("recached") > CONNECTIONS, "rules had left the table while their connections went on: {after}");
    assert!(grown("judged") < grown("recached"), "and were not judged again: {before} {after}");
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

/// What the device says of its engine.
fn engine(lasthop: &Lasthop) -> Value {
    let out = lasthop.try_command(&["device", "stats", "nic0", "--json"]);
    serde_json::from_slice::<Value>(&out.stdout).unwrap_or_default()["table"]["dma"].take()
}

/// A TCP connection over which one VM pushes until it is ended; the other compares what comes.
fn pushes<'a>(from: &'a Vm, to: &Vm) -> Stream<'a> {
    checks::stream(from, &format!("{}:7000", to.config.nics[0].ip4()))
}

/// Waits until so many bytes more have come to this port of the device's.
fn comes(lasthop: &Lasthop, port: &str) {
    let bytes = || {
        let out = lasthop.try_command_of(Some("nic0"), &["port", "list", "--json"]);
        let list = serde_json::from_slice::<Value>(&out.stdout).unwrap_or_default();
        let ports = list["ports"].as_array().cloned().unwrap_or_default();
        ports.iter().find(|of| of["name"] == port).and_then(|of| of["to_guest"]["bytes"].as_u64())
    };
    let mut before = None;
    wait_for("the stream to go on", PATIENCE, || {
        // Who counts may be another one now.
        let now = bytes();
        before = before.min(now).or(now);
        now > before.map(|bytes| bytes + 1_000_000)
    });
}

/// Connections whose rules have left the table are found by a walk. A stream from VM to VM and one from VM to host go on while the device's control, its data plane, its lasthop and its cable are killed.
#[test]
fn streams_go_on_over_deaths_of_all_that_a_device_is() {
    if on_device::skips(OF_ITS_OWN) {
        return;
    }
    let dir = scratch();
    let (lasthop, [a, b, h]) = boot(dir.path(), &format!("rules={RULES},walk=on,dma=on,dma-threshold=0"));
    let uptime = [&a, &b, &h].map(Vm::uptime);
    reaches(&a, &h);
    let [_, stats] = more_connections_than_rules(&lasthop, dir.path(), &a, &b);
    assert!(
        number(&stats["table"]["walk"]["hits"]) > CONNECTIONS,
        "their rules had left the table, and it walks: {stats}"
    );
    let own = || {
        let lock = std::fs::read_to_string(lasthop.run_dir().join("devices/nic0/lock"));
        lock.ok().and_then(|pid| pid.trim().parse::<u32>().ok()).filter(|pid| proc::alive(*pid))
    };
    let deaths: [(&str, &dyn Fn()); 4] = [
        ("control", &|| lasthop.kill("lasthop-control")),
        ("the data plane", &|| lasthop.kill("lasthop-device")),
        ("its lasthop", &|| {
            let run = own().expect("it runs");
            proc::signal(run, Signal::KILL);
            wait_for("another", PATIENCE, || own().is_some_and(|new| new != run));
        }),
        ("the cable", &|| lasthop.kill("lasthop-cable")),
    ];
    for (what, dies) in deaths {
        println!("{what} is killed");
        let streams = [pushes(&a, &b), pushes(&a, &h)];
        comes(&lasthop, "b");
        dies();
        comes(&lasthop, "b");
        streams.into_iter().for_each(Stream::end);
        reaches(&h, &b);
    }
    assert!([&a, &b, &h].map(Vm::uptime).iter().zip(uptime).all(|(now, before)| *now > before));
    lasthop.check_sums();
}

/// The engine hangs in the middle of a copy for a VM: its port breaks, the VM's machine connects again, and the streams go on, by the processor's copies. An
/// engine that dies takes the data plane with it.
#[test]
#[cfg(target_arch = "x86_64")]
fn streams_go_on_over_an_engine_that_hangs() {
    if on_device::skips(OF_ITS_OWN) {
        return;
    }
    let dir = scratch();
    let (lasthop, [a, b, h]) = boot(dir.path(), "dma=on,dma-threshold=0");
    reaches(&a, &h);
    // Where it is stopped is chance: at the end of a copy nobody loses anything.
    for attempt in 0.. {
        assert!(attempt < 8, "it is never stopped in a copy");
        // The cable finds by itself that its port has broken.
        let streams = [pushes(&a, &b), pushes(&b, &a)];
        comes(&lasthop, "b");
        assert!(number(&engine(&lasthop)["overtaken"]) > 0, "copies overtake each other: {}", engine(&lasthop));
        let process = lasthop.child("lasthop-device");
        let hangs = DmaEngine::seize(process);
        hangs.stop_in_a_copy();
        wait_for("it to be found out", PATIENCE, || engine(&lasthop)["state"] == "hangs");
        comes(&lasthop, "b");
        streams.into_iter().for_each(Stream::end);
        reaches(&h, &b);
        assert_eq!(lasthop.child("lasthop-device"), process, "it goes on without its engine");
        println!("{}", engine(&lasthop));
        if engine(&lasthop)["lost"] != 0 {
            break;
        }
        drop(hangs);
        lasthop.kill("lasthop-device");
        reaches(&a, &b);
    }
    lasthop.check_sums();
}
