//! What ports are told to do, with Linux at both ends: VLANs, addresses that a guest may use, isolation.

use lasthop_harness::{Lasthop, Netns, Nic, Port, Vm, VmConfig, checks, scratch, wait_for};
use std::path::Path;
use std::time::Duration;

fn config(name: &str, dir: &Path, number: u8) -> VmConfig {
    VmConfig::new(name, [Nic::vhost_user(&dir.join(format!("{name}.sock")), number)])
}

/// Whether it answers: three attempts at least.
fn answers(vm: &Vm, address: &str) -> bool {
    let six = if address.contains(':') { "-6" } else { "-4" };
    vm.output(&format!("ping {six} -c 3 -i 0.2 -w 3 -q {address}"), 30).stdout.contains(" 0% packet loss")
}

/// Gives it, instead of its address, one in each of the VLANs 10 and 20.
fn in_two_vlans(vm: &Vm, host: u8) {
    vm.run(&format!(
        "set -e; for m in llc stp garp mrp 8021q; do insmod /modules/$m.ko 2>/dev/null || true; done; \
         ip addr flush dev eth0; vconfig add eth0 10; vconfig add eth0 20; \
         ip addr add 10.9.0.{host}/24 dev eth0.10; ip addr add 10.9.2.{host}/24 dev eth0.20; \
         ip link set eth0.10 up; ip link set eth0.20 up"
    ));
}

/// Two tenants on access ports, a guest that is in both VLANs by a trunk, and one that is beyond an uplink with tags.
#[test]
fn tenants_on_vlans() {
    let dir = scratch();
    let netns = Netns::new();
    netns.ip("link add u0 type veth peer name s0");
    netns.ip("link set s0 up");
    let ports = ["a", "c", "trunk", "far"].map(|name| Port::listen(name, dir.path()));
    let outside = Lasthop::start_in(Some(&netns), &ports[3..], &["--uplink", "net=s0,af_packet"]);
    let lasthop = Lasthop::start_in(Some(&netns), &ports[..3], &["--uplink", "net=u0,af_packet"]);
    for words in [["a", "--vlan", "10"], ["c", "--vlan", "20"], ["trunk", "--trunk", "10,20"]] {
        lasthop.command(&[&["port", "set"], &words[..]].concat());
    }
    let [a, c, trunk, far] =
        Vm::boot_all([("a", 1), ("c", 2), ("trunk", 3), ("far", 4)].map(|(name, n)| config(name, dir.path(), n)));
    [&lasthop, &outside].into_iter().for_each(|lasthop| lasthop.wait_for_state("net", "up"));
    for vm in [&a, &c] {
        vm.run(&format!("ip addr add 10.9.2.{}/24 dev eth0", vm.config.nics[0].ip4().octets()[3]));
    }
    (in_two_vlans(&trunk, 3), in_two_vlans(&far, 4));
    for address in ["10.9.0.3", "10.9.0.4"] {
        assert!(answers(&a, address), "a to {address} in VLAN 10");
    }
    for address in ["10.9.2.3", "10.9.2.4"] {
        assert!(answers(&c, address), "c to {address} in VLAN 20");
        assert!(!answers(&a, address), "a is not in VLAN 20");
    }
    assert!(answers(&trunk, "10.9.0.4") && answers(&trunk, "10.9.2.4"), "from trunk to trunk");
    assert!(!answers(&a, "10.9.2.2") && !answers(&c, "10.9.2.1"), "two tenants");
    // Large packets go through tags that come and go: their offloads move with their headers.
    for (vm, to) in [(&a, &trunk), (&a, &far), (&trunk, &a), (&trunk, &far)] {
        to.serve();
        let host = to.config.nics[0].ip4().octets()[3];
        vm.run(&format!("lasthop-guest tcp-check 10.9.0.{host}:7000 65536 4001"));
        vm.run(&format!("lasthop-guest udp-check 10.9.0.{host}:7000 9000 4001"));
    }
    // One moves to the other's VLAN while it lives.
    lasthop.command(&["port", "set", "a", "--vlan", "20"]);
    assert!(answers(&a, "10.9.2.2") && answers(&a, "10.9.2.4"), "they are one tenant now");
    assert!(!answers(&a, "10.9.0.3"), "and not the other any more");
    lasthop.check_sums();
}

/// A guest that may use two addresses uses them, and no others; one that asks for an address may.
#[test]
fn a_guest_that_spoofs() {
    let dir = scratch();
    let lasthop = Lasthop::start(&["a", "b"].map(|name| Port::listen(name, dir.path())));
    let [a, b] = Vm::boot_all([config("a", dir.path(), 1), config("b", dir.path(), 2)]);
    let [nic, other] = [&a, &b].map(|vm| &vm.config.nics[0]);
    let addresses = format!("{},{}", nic.ip4(), nic.ip6());
    lasthop.command(&["port", "set", "a", "--mac", &nic.mac(), "--addr", &addresses, "--no-dhcp-server", "--no-ra"]);
    let spoofed = || {
        let port = lasthop.port("a");
        let drops = port["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().find(|d| d["reason"] == "spoofed").map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
    };
    checks::ping(&a, &b);
    assert!(answers(&a, &other.ip6()), "IPv6 of its own, and what it takes to find the other");
    // An address of its own making: neither its ARP nor what it sends arrives.
    a.run("ip addr flush dev eth0; ip addr add 10.9.0.77/24 dev eth0");
    let before = spoofed();
    assert!(!answers(&a, &other.ip4().to_string()));
    assert!(spoofed() > before, "counted by name");
    b.run("ip neigh flush dev eth0 || true");
    assert!(!answers(&b, "10.9.0.77"), "and it answers nobody who asks for that address");
    // A station of its own making.
    a.run(&format!("ip link set eth0 down; ip link set eth0 address 52:54:00:99:99:99; ip link set eth0 up; ip addr flush dev eth0; ip addr add {}/24 dev eth0", nic.ip4()));
    assert!(!answers(&a, &other.ip4().to_string()));
    let macs = lasthop.command(&["mac", "list"]);
    assert!(!macs.contains("52:54:00:99:99:99"), "what may not enter teaches nothing\n{macs}");
    let trace = lasthop.command(&[
        "trace",
        "--in-port",
        "a",
        "--eth-src",
        "52:54:00:99:99:99",
        "--eth-dst",
        &other.mac(),
        "--ip-src",
        "10.9.0.1",
        "--ip-dst",
        "10.9.0.2",
    ]);
    assert!(trace.contains("settings of a: its source is none of the port's Ethernet addresses (mac)"), "{trace}");
    // Without an address it may ask for one: the other hears it.
    a.run(&format!(
        "ip link set eth0 down; ip link set eth0 address {}; ip link set eth0 up; ip addr flush dev eth0",
        nic.mac()
    ));
    let before = lasthop.port("b")["to_guest"]["packets"].as_u64().unwrap_or(0);
    a.output("udhcpc -i eth0 -n -q -t 3 -T 1", 20);
    wait_for("what it asked to arrive", Duration::from_secs(10), || {
        lasthop.port("b")["to_guest"]["packets"].as_u64().unwrap_or(0) >= before + 3
    });
    // As it was.
    a.run(&format!("ip addr add {}/24 dev eth0", nic.ip4()));
    wait_for("the two to talk again", Duration::from_secs(30), || answers(&a, &other.ip4().to_string()));
    lasthop.check_sums();
}

/// Isolated guests reach the network and not each other.
#[test]
fn isolated_guests() {
    let netns = Netns::new();
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--uplink", "net=lh0,tap"]);
    netns.ip("link set lh0 up");
    netns.ip("addr add 10.9.0.100/24 dev lh0");
    for port in ["a", "b"] {
        lasthop.command(&["port", "set", port, "--isolated"]);
    }
    let [a, b] = Vm::boot_all([config("a", dir.path(), 1), config("b", dir.path(), 2)]);
    let other = b.config.nics[0].ip4().to_string();
    assert!(answers(&a, "10.9.0.100") && answers(&b, "10.9.0.100"), "the network");
    assert!(!answers(&a, &other), "each other");
    lasthop.command(&["port", "set", "b", "--isolated", "off"]);
    assert!(!answers(&a, &other), "one of the two is enough");
    lasthop.command(&["port", "set", "a", "--isolated", "off"]);
    wait_for("the two to talk", Duration::from_secs(30), || answers(&a, &other));
}
