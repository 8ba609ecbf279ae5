//! A queue of an uplink that is kept for a Linux VM's port: it goes by the address that the VM has.

use lasthop_harness::{Lasthop, Netns, Nic, Port, Vm, VmConfig, guest_program, scratch, wait_for};
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// The queues of the uplink, the default queue first.
fn queues(lasthop: &Lasthop) -> Vec<Value> {
    lasthop.json(&["uplink", "list"])["uplinks"][0]["guest_queues"].as_array().cloned().unwrap_or_default()
}

/// What the queues have carried: from the network, to it.
fn carried(lasthop: &Lasthop) -> Vec<[u64; 2]> {
    let number = |queue: &Value, name| queue[name].as_u64().unwrap_or_else(|| panic!("{queue} has no {name}"));
    queues(lasthop).iter().map(|queue| ["packets", "sent"].map(|name| number(queue, name))).collect()
}

/// The queue that is kept for port a, once frames for this address go to it.
fn kept(lasthop: &Lasthop, mac: &str) -> usize {
    let mut found = None;
    wait_for("the address to have its queue", PATIENCE, || {
        found = queues(lasthop).iter().position(|queue| queue["port"] == "a" && queue["mac"] == mac);
        found.is_some()
    });
    found.unwrap_or(0)
}

/// Frames that a guest's card has got, as its kernel counts them.
fn received(vm: &Vm) -> u64 {
    vm.run("cat /sys/class/net/eth0/statistics/rx_packets").trim().parse().expect("a number")
}

/// From outside come so many frames for this VM, by the address it has, and all reach it: by how much each queue's count has grown.
fn comes(lasthop: &Lasthop, netns: &Netns, vm: &Vm, mac: &str, frames: u64) -> Vec<u64> {
    let (before, got) = (carried(lasthop), received(vm));
    netns.shell(&format!("{} raw-send v1 {mac} 88b5 {frames} 64 1514 200", guest_program().display()));
    wait_for("all to have arrived", PATIENCE, || received(vm) >= got + frames);
    carried(lasthop).iter().zip(&before).map(|(now, before)| now[0] - before[0]).collect()
}

#[test]
fn a_vm_s_frames_come_through_the_queue_that_is_kept_for_it() {
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
    lasthop.command(&["port", "set", "a", "--queue-of", "net:256"]);
    let vm = |i: usize| VmConfig::new(&ports[i].name, [Nic::vhost_user(&ports[i].socket, i as u8 + 1)]);
    let [a, b] = Vm::boot_all([vm(0), vm(1)]);
    let pings = |vm: &Vm| {
        let out = vm.output("ping -c 5 -i 0.1 -w 20 -q 10.9.0.100", 30);
        assert_eq!(out.code, 0, "{out:?}");
    };
    [&a, &b].into_iter().for_each(pings);
    // From now on it asks nobody where that is, at whatever moment; it may be asked.
    a.run("arp -s 10.9.0.100 $(awk '$1 == \"10.9.0.100\" { print $4 }' /proc/net/arp)");
    let [mac, other] = [&a, &b].map(|vm| vm.config.nics[0].mac());
    let own = kept(&lasthop, &mac);
    assert_ne!(own, 0, "the default queue is nobody's");
    // Where one looks: at the uplink and at the port.
    let line = format!("net: queue {own} (of a, {mac}, kept for it)");
    let shown = lasthop.command(&["uplink", "list"]);
    let keeps = |line: &&str| line.starts_with("net: queue") && line.ends_with(", keeps 256");
    assert!(shown.contains(&line) && shown.lines().filter(keeps).count() == 1, "{shown}");
    let settings = lasthop.port("a")["settings"].clone();
    assert!(settings.to_string().contains("net:256"), "{settings}");

    // What it sends goes out by no other, and what others send does not go by that.
    let sent_by = |vm: &Vm| {
        let before = carried(&lasthop);
        pings(vm);
        carried(&lasthop).iter().zip(&before).map(|(now, before)| now[1] - before[1]).collect::<Vec<_>>()
    };
    let (of_a, of_b) = (sent_by(&a), sent_by(&b));
    assert!(of_a[own] >= 5 && of_a.iter().sum::<u64>() - of_a[own] < 5, "queue {own} is a's: {of_a:?}");
    assert!(of_b.iter().sum::<u64>() - of_b[own] >= 5 && of_b[own] < 3, "and b has no part of queue {own}: {of_b:?}");

    // However little it is that comes for it. Neighbours' questions, which are for all, go to the default queue.
    let (for_a, for_b) = (comes(&lasthop, &netns, &a, &mac, 200), comes(&lasthop, &netns, &b, &other, 40));
    assert!((200..220).contains(&for_a[own]), "queue {own} is a's: {for_a:?}");
    assert!((40..60).contains(&for_b[0]) && for_b[own] < 5, "b shares the default queue: {for_b:?}");
    assert!(for_a.iter().sum::<u64>() - for_a[own] < 20, "and what is for a comes by no other: {for_a:?}");
    assert_eq!(queues(&lasthop)[own]["dropped"], 0);

    // The VM takes another address: the queue is the VM's, and goes by that.
    let mac = "52:54:00:aa:bb:01";
    a.run(&format!("ip link set dev eth0 down; ip link set dev eth0 address {mac}; ip link set dev eth0 up"));
    pings(&a);
    wait_for("both addresses to be known", PATIENCE, || comes(&lasthop, &netns, &a, mac, 20)[own] >= 20);
    let for_a = comes(&lasthop, &netns, &a, mac, 200);
    assert!((200..220).contains(&for_a[own]), "queue {own} is a's still: {for_a:?}");
    lasthop.check_sums();
}
