//! Guests with an uplink queue of their own, and guests that may do nothing unless a rule says so.

use lasthop_harness::{Lasthop, Netns, Nic, Port, Vm, VmConfig, guest_program, scratch, wait_for};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// The queues of the uplink, the default queue first.
fn queues(lasthop: &Lasthop) -> Vec<Value> {
    lasthop.json(&["uplink", "list"])["uplinks"][0]["guest_queues"].as_array().cloned().unwrap_or_default()
}

fn packets(queue: &Value) -> u64 {
    queue["packets"].as_u64().unwrap_or_else(|| panic!("{queue} has no packets"))
}

/// While it is busy, what comes from outside for a guest comes through a queue that its address owns, and what is for another does not.
fn a_busy_guest_owns_a_queue(lasthop: &Lasthop, netns: &Netns, [a, b]: [&Vm; 2]) {
    let [mac, other] = [a, b].map(|vm| vm.config.nics[0].mac());
    for vm in [a, b] {
        let out = vm.output("ping -c 5 -i 0.1 -w 20 -q 10.9.0.100", 30);
        assert_eq!(out.code, 0, "{out:?}");
    }
    assert!(queues(lasthop).len() == 3 && queues(lasthop).iter().all(|q| q["mac"].is_null()), "{:?}", queues(lasthop));
    let send = |mac: &str, count: u32, pause: u32| {
        let program = guest_program();
        netns.shell(&format!("{} raw-send v1 {mac} 88b5 {count} 64 1514 {pause}", program.display()))
    };
    let owned = || queues(lasthop).iter().position(|q| q["mac"] == mac.as_str());
    wait_for("a to own a queue", PATIENCE, || {
        send(&mac, 500, 500);
        owned().is_some()
    });
    let queue = owned().expect("it was there");
    assert_ne!(queue, 0, "the default queue is nobody's");
    assert!(lasthop.command(&["uplink", "list"]).contains(&format!("net: queue {queue} (of {mac})")));
    let (before, got) = (queues(lasthop), received(&[a, b]));
    send(&mac, 1000, 200);
    send(&other, 20, 0);
    wait_for("all to have arrived", PATIENCE, || {
        let now = received(&[a, b]);
        now[0] >= got[0] + 1000 && now[1] >= got[1] + 20
    });
    let grown: Vec<u64> =
        queues(lasthop).iter().zip(&before).map(|(now, before)| packets(now) - packets(before)).collect();
    assert!(grown[queue] >= 1000, "queue {queue} is a's: {grown:?}");
    // What else comes, such as neighbours' questions, is little.
    assert!((20..100).contains(&grown[0]), "b shares the default queue: {grown:?}");
    wait_for("the queue to be free again", PATIENCE, || owned().is_none());
}

/// Frames that each guest's card has got, as its kernel counts them.
fn received(vms: &[&Vm]) -> Vec<u64> {
    let of = |vm: &&Vm| vm.run("cat /sys/class/net/eth0/statistics/rx_packets").trim().parse().expect("a number");
    vms.iter().map(of).collect()
}

/// Nothing enters or leaves unless a rule says so; each rule lets through what it says, and nothing else.
fn nothing_is_permitted_silently(lasthop: &Lasthop, dir: &std::path::Path, [a, b]: [&Vm; 2]) {
    let load = |rules: &[&str]| {
        let file = dir.join("rules");
        let lines = ["default from-guest deny", "default to-guest deny"].iter().chain(rules);
        std::fs::write(&file, lines.map(|line| format!("{line}\n")).collect::<String>()).expect("a scratch file");
        lasthop.command(&["acl", "load", &file.display().to_string(), "--port", "a"]);
    };
    // At the port they came from, whoever's list it is.
    let denied = || {
        ["a", "b"].map(|name| {
            let drops = lasthop.port(name)["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
            drops.iter().filter(|d| d["reason"] == "acl").filter_map(|d| d["packets"].as_u64()).sum::<u64>()
        })
    };
    let [to_a, to_b] = [a, b].map(|vm| vm.config.nics[0].ip4());
    let pings = |from: &Vm, to: &str| from.output(&format!("ping -c 3 -i 0.1 -w 3 -q {to}"), 20).code == 0;
    let forget = || [a, b].iter().for_each(|vm| drop(vm.output("ip neigh flush dev eth0", 10)));
    assert!(pings(a, &to_b.to_string()) && pings(b, &to_a.to_string()), "without a list");
    let both = ["permit from-guest arp", "permit to-guest arp", "permit from-guest icmp", "permit to-guest icmp"];
    load(&[]);
    forget();
    let (got, before) = (received(&[a]), denied());
    assert!(!pings(a, &to_b.to_string()) && !pings(b, &to_a.to_string()), "not even neighbours are found");
    assert!(!pings(b, "10.9.0.77"), "a hears no broadcast");
    let after = denied();
    println!("denied: {before:?}, then {after:?}");
    assert!(after[0] > before[0], "what a asks is denied and counted: {before:?}, {after:?}");
    assert_eq!(received(&[a]), got, "nothing has got in");
    // Neighbours are found, and that is all.
    load(&both[..2]);
    assert!(!pings(a, &to_b.to_string()));
    assert!(a.run("ip neigh").contains(&b.config.nics[0].mac()), "found: {}", a.run("ip neigh"));
    load(&both);
    assert!(pings(a, &to_b.to_string()) && pings(b, &to_a.to_string()));
    let tcp = |from: &Vm, to| from.output(&format!("timeout 3 lasthop-guest tcp-check {to}:7000 100 50"), 20).code == 0;
    [a, b].into_iter().for_each(Vm::serve);
    assert!(!tcp(a, to_b) && !tcp(b, to_a), "TCP has no rule");
    let open = ["permit to-guest tcp to any port 7000", "permit from-guest tcp from any port 7000"];
    load(&[&both[..2], &open].concat());
    assert!(tcp(b, to_a), "into the one port that is open");
    assert!(!tcp(a, to_b) && !pings(b, &to_a.to_string()), "and nothing else");
    lasthop.command(&["acl", "clear", "--port", "a"]);
    assert!(tcp(a, to_b) && pings(b, &to_a.to_string()), "as it was");
    lasthop.check_sums();
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn queues_of_their_own_and_default_deny() {
    let netns = Netns::new();
    let several = "numtxqueues 3 numrxqueues 3";
    netns.ip(&format!("link add v0 {several} type veth peer name v1 {several}"));
    netns.ip("link set v1 up");
    netns.ip("addr add 10.9.0.100/24 dev v1");
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &[]);
    lasthop.command(&["uplink", "add", "net", "v0", "--driver", "af_xdp", "--queues", "3"]);
    lasthop.wait_for_state("net", "up");
    let vm = |i: usize| VmConfig::new(&ports[i].name, [Nic::vhost_user(&ports[i].socket, i as u8 + 1)]);
    let [a, b] = Vm::boot_all([vm(0), vm(1)]);
    a_busy_guest_owns_a_queue(&lasthop, &netns, [&a, &b]);
    nothing_is_permitted_silently(&lasthop, dir.path(), [&a, &b]);
}
