//! Real VMs and the network: TAP and veth uplinks, with the stack of a network namespace outside.

use lasthop_harness::{Lasthop, Netns, Nic, Port, Vm, checks, scratch, spawn, wait_for};
use std::process::{Child, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(40);

/// The outside: a namespace with 10.9.0.100 and fd09::100, and `lasthop-guest` serving there.
struct Outside {
    servers: Vec<Child>,
    netns: Netns,
}

impl Outside {
    /// Gives the interface its addresses and starts the servers.
    fn serve(netns: Netns, device: &str) -> Self {
        netns.shell(&format!("echo 0 >/proc/sys/net/ipv6/conf/{device}/disable_ipv6"));
        netns.ip(&format!("link set {device} up"));
        netns.ip(&format!("addr add 10.9.0.100/24 dev {device}"));
        netns.ip(&format!("addr add fd09::100/64 dev {device} nodad"));
        let servers = ["tcp-serve", "udp-serve"].map(|what| {
            spawn::spawn("KILL", "ip", |c| {
                c.args(["netns", "exec", netns.name(), &guest_program(), what, "7000"]);
                c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            })
        });
        wait_for("the servers outside", Duration::from_secs(10), || {
            let listening = netns.shell("cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6");
            listening.matches(":1B58 ").count() >= 2
        });
        Self { servers: servers.into(), netns }
    }

    fn run(&self, what: &str) -> String {
        self.netns.shell(&format!("timeout 60 {} {what}", guest_program()))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The program that runs inside VMs runs outside of them as well.
fn guest_program() -> String {
    lasthop_harness::guest_program().display().to_string()
}

/// Ping, TCP and UDP with content checked, both ways, IPv4 and IPv6, from two kinds of cards; then iperf3 both ways.
/// `whole`: packets beyond the MTU cross.
fn vms_and_the_network(uplink: &str, device: &str, whole: bool, prepare: impl FnOnce(&Netns)) {
    let netns = Netns::new();
    prepare(&netns);
    let dir = scratch();
    let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--uplink", uplink]);
    let mut outside = Outside::serve(netns, device);
    let nic = |i: usize| Nic::vhost_user(&ports[i].socket, i as u8 + 1);
    let vms = Vm::boot_all([
        lasthop_harness::VmConfig::new("a", [nic(0)]),
        lasthop_harness::VmConfig::new("b", [nic(1).plain()]),
    ]);
    for vm in &vms {
        vm.serve();
        let (ip4, ip6) = (vm.config.nics[0].ip4(), vm.config.nics[0].ip6());
        for ping in ["ping -c 10 -i 0.02 -w 40 -q 10.9.0.100", "ping -6 -c 5 -i 0.05 -w 40 -q fd09::100"] {
            let out = vm.output(ping, 50);
            assert!(out.code == 0 && out.stdout.contains(" 0% packet loss"), "{ping}: {out:?}");
        }
        vm.run("lasthop-guest tcp-check 10.9.0.100:7000 65536 4001");
        vm.run("lasthop-guest tcp-check [fd09::100]:7000 65536 9001");
        vm.run("lasthop-guest udp-check 10.9.0.100:7000 65507 4001");
        outside.run(&format!("tcp-check {ip4}:7000 65536 4001"));
        outside.run(&format!("tcp-check [{ip6}]:7000 65536 9001"));
        outside.run(&format!("udp-check {ip4}:7000 65507 4001"));
    }
    // With TSO at both ends an average packet is longer than any frame on a wire.
    let iperf = spawn::spawn("KILL", "ip", |c| {
        c.args(["netns", "exec", outside.netns.name(), "iperf3", "-s"]);
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    });
    outside.servers.push(iperf);
    wait_for("iperf3", Duration::from_secs(10), || outside.netns.shell("cat /proc/net/tcp*").contains(":1451 "));
    for direction in ["", "-R"] {
        let before = lasthop.json(&["uplink", "list"])["uplinks"][0].clone();
        let out = vms[0].run(&format!("iperf3 -c 10.9.0.100 -t 2 {direction} | grep receiver"));
        println!("{uplink} {direction}: {}", out.trim());
        let after = lasthop.json(&["uplink", "list"])["uplinks"][0].clone();
        let way = if direction.is_empty() { "to_network" } else { "from_network" };
        let of = |v: &serde_json::Value, what: &str| v[way][what].as_u64().unwrap_or(0);
        let [packets, bytes] = ["packets", "bytes"].map(|w| of(&after, w) - of(&before, w));
        assert!(
            !whole || bytes / packets.max(1) > 2000,
            "packets of {} bytes on average: {after}",
            bytes / packets.max(1)
        );
    }
    let uplink = lasthop.json(&["uplink", "list"])["uplinks"][0].clone();
    // Of the stream from outside, where the kernel does not do it.
    assert!(whole || uplink["merged"].as_u64() > Some(0), "{uplink}");
    // A TCP sender finds out how much is too much by sending it.
    let drops = uplink["drops"].as_array().into_iter().flatten().filter(|d| d["reason"] != "overrun");
    assert_eq!(drops.count(), 0, "{uplink}");
    assert_eq!(uplink["restarts"], 0);
    // Killed, or hanging, in the middle of a stream: the connection survives.
    for end in [Lasthop::kill, Lasthop::hang] {
        let stream = checks::stream(&vms[0], "10.9.0.100:7000");
        comes(&lasthop);
        let before = of_uplink(&lasthop, &["restarts"]);
        end(&lasthop, "lasthop-uplink");
        wait_for("another", PATIENCE, || of_uplink(&lasthop, &["restarts"]) > before);
        comes(&lasthop);
        stream.end();
    }
    lasthop.check_sums();
}

/// A number that it says of the uplink.
fn of_uplink(lasthop: &Lasthop, path: &[&str]) -> u64 {
    let uplink = &lasthop.json(&["uplink", "list"])["uplinks"][0];
    path.iter().fold(uplink, |value, name| &value[name]).as_u64().unwrap_or(0)
}

/// Waits until it has sent 2 MB more. Who counts may be another one now.
fn comes(lasthop: &Lasthop) {
    let bytes = || of_uplink(lasthop, &["to_network", "bytes"]);
    let mut before = bytes();
    wait_for("the stream to go on", PATIENCE, || {
        let now = bytes();
        before = before.min(now);
        now > before + 2_000_000
    });
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn vms_and_the_host_through_tap() {
    vms_and_the_network("net=lh0,tap", "lh0", true, |_| {});
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn vms_and_the_network_through_af_packet() {
    vms_and_the_network("net=v0,af_packet", "v1", true, |netns| {
        netns.ip("link add v0 type veth peer name v1");
        netns.ip("link set v1 up");
    });
}

#[test]
fn vms_and_the_network_through_af_xdp() {
    vms_and_the_network("net=v0,af_xdp", "v1", false, |netns| {
        netns.ip("link add v0 type veth peer name v1");
        netns.ip("link set v1 up");
    });
}
