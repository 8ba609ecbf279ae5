//! Multicasts where they are wanted (`port set --snooping`), with Linux at all ends: guests that join and leave, and a bridge's querier that asks.

use lasthop_harness::{Lasthop, Netns, Nic, Port, Vm, VmConfig, scratch, wait_for};
use std::path::Path;
use std::time::Duration;

/// Datagrams that are sent to a group, and their bytes.
const SENT: u64 = 20;
const BYTES: u64 = 1000;
/// Another port than they are sent to: who waits there stays joined.
const NO_PORT: u16 = 7;
const PORT: u16 = 9000;

fn config(name: &str, dir: &Path, number: u8) -> VmConfig {
    VmConfig::new(name, [Nic::vhost_user(&dir.join(format!("{name}.sock")), number)])
}

/// A group, and its Ethernet address.
struct Group(&'static str, &'static str);
const V4: Group = Group("239.1.2.3", "01:00:5e:01:02:03");
const V6: Group = Group("ff15::1:203", "33:33:00:01:02:03");
/// Nobody joins it.
const OTHER: Group = Group("239.9.9.9", "01:00:5e:09:09:09");

/// Bytes that each port's guest got while `from` sent to the group.
fn got(lasthop: &Lasthop, from: &Vm, group: &Group, ports: [&str; 2]) -> [u64; 2] {
    let bytes = || ports.map(|port| lasthop.port(port)["to_guest"]["bytes"].as_u64().unwrap_or(0));
    let before = bytes();
    from.run(&format!("lasthop-guest group-send {} {PORT} {BYTES} {SENT} $(cat /sys/class/net/eth0/ifindex)", group.0));
    // It was delivered before the sender ended, but for what is on its way: who gets it all has the last word.
    let after = bytes();
    [0, 1].map(|n| after[n] - before[n])
}

fn members(lasthop: &Lasthop, group: &Group) -> String {
    let list = lasthop.command(&["mac", "groups"]);
    list.lines().find(|line| line.contains(group.1)).unwrap_or_default().to_owned()
}

/// Joins a group, and stays.
fn join(vm: &Vm, group: &Group) {
    vm.background(&format!("lasthop-guest group-recv {} {NO_PORT} 8 600", group.0));
}

fn leave(vm: &Vm) {
    vm.run("for p in $(pidof lasthop-guest); do grep -q group-recv /proc/$p/cmdline && kill $p; done; true");
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn guests_get_the_groups_that_they_have_joined() {
    let dir = scratch();
    let netns = Netns::new();
    let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--uplink", "net=lh0,tap"]);
    for port in ["a", "b"] {
        lasthop.command(&["port", "set", port, "--snooping"]);
    }
    let [a, b, c] = Vm::boot_all([("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| config(name, dir.path(), n)));
    let all = SENT * BYTES;
    // Nobody asks who wants what: all get all.
    let [to_a, to_b] = got(&lasthop, &c, &V4, ["a", "b"]);
    assert!(to_a >= all && to_b >= all, "without a router: {to_a}, {to_b}");

    // The network has a router, as Linux's bridge knows it: it asks, and keeps its own list of who has answered.
    netns.ip(
        "link add br0 type bridge mcast_query_use_ifaddr 1 mcast_query_interval 300 mcast_startup_query_interval 100",
    );
    netns.shell("echo 0 >/proc/sys/net/ipv6/conf/br0/disable_ipv6");
    netns.ip("link set lh0 master br0");
    netns.ip("link set lh0 up");
    netns.ip("link set br0 up");
    netns.ip("addr add 10.9.0.100/24 dev br0");
    netns.ip("link set br0 type bridge mcast_querier 1");
    let routers = |family: &str| {
        let list = lasthop.command(&["mac", "groups"]);
        let there = format!("{} (", lasthop.port_of_uplink("net"));
        list.lines().any(|line| line.contains("all (routers)") && line.contains(family) && line.contains(&there))
    };
    for family in ["IPv4", "IPv6"] {
        wait_for("its question", Duration::from_secs(60), || routers(family));
    }
    for group in [V4, V6] {
        let is_at = |port: &str| members(&lasthop, &group).contains(&format!("{port} ("));
        assert!(!is_at("a") && !is_at("b"));
        let [to_a, to_b] = got(&lasthop, &c, &group, ["a", "b"]);
        assert!(to_a < all / 4 && to_b < all / 4, "{}: nobody has joined, and they got {to_a}, {to_b}", group.0);
        join(&a, &group);
        wait_for("a to be a member", Duration::from_secs(60), || is_at("a"));
        // What it says goes to the router.
        wait_for("the bridge to hear it", Duration::from_secs(60), || {
            netns.shell("bridge mdb show").contains(&format!("grp {}", group.0))
        });
        let [to_a, to_b] = got(&lasthop, &c, &group, ["a", "b"]);
        assert!(to_a >= all && to_b < all / 4, "{}: a has joined; {to_a}, {to_b}", group.0);
        // b joins as well, and its kernel hands up what comes.
        let hears = b.spawn(&format!("lasthop-guest group-recv {} {PORT} {BYTES} 60", group.0));
        wait_for("b to be a member", Duration::from_secs(60), || is_at("b"));
        let [to_a, to_b] = got(&lasthop, &c, &group, ["a", "b"]);
        assert!(to_a >= all && to_b >= BYTES, "{}: both have joined; {to_a}, {to_b}", group.0);
        hears.success(Duration::from_secs(60));
        // It has left with the first one, and the other stays.
        wait_for("b to have left", Duration::from_secs(60), || !is_at("b"));
        let [to_a, to_b] = got(&lasthop, &c, &group, ["a", "b"]);
        assert!(to_a >= all && to_b < all / 4, "{}: b has left; {to_a}, {to_b}", group.0);
        leave(&a);
        wait_for("a to have left", Duration::from_secs(60), || !is_at("a"));
        let [to_a, to_b] = got(&lasthop, &c, &group, ["a", "b"]);
        assert!(to_a < all / 4 && to_b < all / 4, "{}: both have left; {to_a}, {to_b}", group.0);
    }
    let [to_a, to_b] = got(&lasthop, &c, &OTHER, ["a", "b"]);
    assert!(to_a < all / 4 && to_b < all / 4, "a group of nobody's: {to_a}, {to_b}");
    // What is for all is for them, too.
    lasthop_harness::checks::group(&c, &[&a, &b], "224.0.0.251");
    lasthop_harness::checks::group(&c, &[&a, &b], "ff02::fb");
    lasthop.command(&["port", "set", "b", "--snooping", "off"]);
    let [to_a, to_b] = got(&lasthop, &c, &V4, ["a", "b"]);
    assert!(to_a < all / 4 && to_b >= all, "b is told to get everything: {to_a}, {to_b}");
    lasthop.check_sums();
}
