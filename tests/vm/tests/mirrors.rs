//! Mirrors with Linux at all ends: a destination that counts with the guest's own tools, and one whose VM is stopped.

use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, checks, scratch, wait_for};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

fn config(name: &str, dir: &Path, number: u8) -> VmConfig {
    VmConfig::new(name, [Nic::vhost_user(&dir.join(format!("{name}.sock")), number)])
}

fn lost(lasthop: &Lasthop, port: &str) -> u64 {
    let port = lasthop.port(port);
    let drops = port["to_guest"]["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().find(|d| d["reason"] == "mirror_copy").map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
}

/// The destination counts what the mirrored guests exchange, with its own packet socket; then its VM is stopped, and they notice nothing.
#[test]
fn a_guest_that_watches_two_others() {
    const FRAMES: u64 = 2000;
    let dir = scratch();
    let lasthop = Lasthop::start(&["a", "b", "m"].map(|name| Port::listen(name, dir.path())));
    let [a, b, m] = Vm::boot_all([("a", 1), ("b", 2), ("m", 3)].map(|(name, n)| config(name, dir.path(), n)));
    [&a, &b].into_iter().for_each(Vm::serve);
    checks::ping(&a, &b);
    checks::ping(&m, &a);
    // A guest that is up first has nobody to speak to.
    let dropped = |port: &str| {
        let mut drops = lasthop.port(port)["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.retain(|d| d["reason"] != "link_local");
        drops
    };
    let alone = ["a", "b"].map(dropped);
    lasthop.command(&["mirror", "add", "tap", "--from", "a", "--to", "m"]);
    m.run("ip link set eth0 promisc on");
    let whole = |counted: checks::Counted| checks::Counted { gap_ms: 0, ..counted };
    let all = checks::Counted { received: FRAMES, ..Default::default() };
    // What is sent by a, and what is sent to it.
    for (from, to) in [(&a, &b), (&b, &a)] {
        let watcher = m.spawn(&format!("lasthop-guest raw-recv eth0 88b5 {FRAMES} 20"));
        m.run("until [ $(wc -l </proc/net/packet) -gt 1 ]; do usleep 20000; done");
        assert_eq!(whole(checks::numbered(from, to, FRAMES, 500, || ())), all, "the stream itself");
        let counted = checks::Counted::parse(&watcher.output(Duration::from_secs(65)));
        assert_eq!(whole(counted), all, "its copies; {} were lost there", lost(&lasthop, "m"));
    }
    // It is no station any more, and says so by what it does not reach.
    assert!(!m.output("ping -c 2 -i 0.2 -w 1 -q 10.9.0.1", 20).stdout.contains(" 0% packet loss"));
    let drops = lasthop.port("m")["from_guest"]["drops"].clone();
    assert!(drops.as_array().is_some_and(|drops| drops.iter().any(|d| d["reason"] == "mirror_port")), "{drops}");
    // Large packets with offloads, both ways, while nobody takes their copies.
    m.qmp("stop", json!({}));
    let before = lost(&lasthop, "m");
    checks::all(&a, &b, checks::Depth::Quick);
    assert_eq!(whole(checks::numbered(&a, &b, FRAMES, 500, || ())), all, "the stream without its mirror");
    wait_for("copies to be lost there", Duration::from_secs(20), || lost(&lasthop, "m") > before);
    m.qmp("cont", json!({}));
    // One that is slow: it sleeps and wakes. The stream loses nothing, and each packet is either copied or lost there.
    let counts = || {
        let port = lasthop.port("m");
        let copies = lasthop.port("a")["from_guest"]["packets"].as_u64().unwrap_or(0)
            + lasthop.port("a")["to_guest"]["packets"].as_u64().unwrap_or(0);
        (copies, port["to_guest"]["packets"].as_u64().unwrap_or(0), lost(&lasthop, "m"))
    };
    let before = counts();
    let slow = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while slow.load(std::sync::atomic::Ordering::Relaxed) {
                for order in ["stop", "cont"] {
                    m.qmp(order, json!({}));
                    std::thread::sleep(Duration::from_millis(if order == "stop" { 400 } else { 50 }));
                }
            }
        });
        let counted = checks::numbered(&a, &b, FRAMES, 500, || ());
        slow.store(false, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(whole(counted), all, "the stream beside a slow receiver of its mirror");
    });
    let after = counts();
    let [sent, copied, missed] = [after.0 - before.0, after.1 - before.1, after.2 - before.2];
    assert!(copied > 0 && missed > 0, "{copied} copies came, {missed} did not");
    assert!((copied + missed).abs_diff(sent) <= 8, "{sent} packets, {copied} copies, {missed} lost there");
    assert_eq!(["a", "b"].map(dropped), alone);
    lasthop.command(&["mirror", "del", "tap"]);
    wait_for("it to be a station again", Duration::from_secs(60), || {
        m.output("ping -c 2 -i 0.2 -w 3 -q 10.9.0.1", 20).stdout.contains(" 0% packet loss")
    });
    lasthop.check_sums();
}
