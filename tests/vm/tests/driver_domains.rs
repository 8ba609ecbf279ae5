//! Real VMs and services outside: addresses from a DHCP server, and a VM that is itself the way to the network.

use lasthop_harness::{Backend, Lasthop, Netns, Nic, Port, Vm, VmConfig, guest_program, scratch, spawn, wait_for};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Something that serves in a namespace. Dropping it ends it.
struct Server(Child);

impl Server {
    fn start(netns: &Netns, words: &[&str]) -> Self {
        Self(spawn::spawn("KILL", "ip", |c| {
            c.args(["netns", "exec", netns.name()]).args(words);
            c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        }))
    }

    /// busybox's DHCP server on `device`, which has 10.`net`.0.1.
    fn dhcp(netns: &Netns, dir: &Path, device: &str, net: u8) -> Self {
        netns.ip(&format!("link set {device} up"));
        netns.ip(&format!("addr add 10.{net}.0.1/24 dev {device}"));
        let file = |name: &str| dir.join(format!("{name}-{net}")).display().to_string();
        let (config, leases) = (file("config"), file("leases"));
        let text = format!(
            "start 10.{net}.0.50\nend 10.{net}.0.60\nmax_leases 10\ninterface {device}\nlease_file {leases}\n\
             pidfile {}\noption subnet 255.255.255.0\noption router 10.{net}.0.1\noption lease 600\n",
            file("pid")
        );
        std::fs::write(&config, text).expect("the scratch directory can be written");
        std::fs::write(&leases, "").expect("the scratch directory can be written");
        Self::start(netns, &["busybox", "udhcpd", "-f", &config])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has busybox's DHCP client find an address for the VM's card and returns it.
fn lease(vm: &Vm) -> String {
    vm.run(
        "printf '#!/bin/sh\\n[ $1 = bound ] && ip addr add $ip/24 dev $interface && echo $ip $router >/tmp/lease\\nexit 0\\n' \
         >/tmp/dhcp; chmod +x /tmp/dhcp; rm -f /tmp/lease; ip addr flush dev eth0",
    );
    vm.run("udhcpc -i eth0 -n -q -t 20 -T 2 -s /tmp/dhcp");
    vm.run("cat /tmp/lease").trim().to_owned()
}

/// A server behind an interface of the host, then one behind a TAP device: a VM with all offloads and one with none get
/// addresses of each and reach the server from them.
#[test]
fn vms_get_their_addresses_from_dhcp_servers_outside() {
    let (netns, dir) = (Netns::new(), scratch());
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
    let arguments = ["--uplink", "net=v0,af_packet", "--uplink", "host=lh0,tap"];
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &arguments);
    let nic = |i: usize| Nic::vhost_user(&ports[i].socket, i as u8 + 1);
    let vms = Vm::boot_all([VmConfig::new("a", [nic(0)]), VmConfig::new("b", [nic(1).plain()])]);
    for uplink in ["net", "host"] {
        lasthop.wait_for_state(uplink, "up");
    }
    for (net, device) in [(7, "v1"), (8, "lh0")] {
        let server = Server::dhcp(&netns, dir.path(), device, net);
        let leases = vms.each_ref().map(lease);
        for (vm, lease) in vms.iter().zip(&leases) {
            assert!(
                lease.starts_with(&format!("10.{net}.0.")) && lease.ends_with(&format!(" 10.{net}.0.1")),
                "{lease}"
            );
            let ping = vm.output(&format!("ping -c 5 -i 0.05 -w 40 -q 10.{net}.0.1"), 50);
            assert!(ping.code == 0 && ping.stdout.contains(" 0% packet loss"), "{ping:?}");
        }
        assert_ne!(leases[0], leases[1]);
        drop(server);
    }
    lasthop.check_sums();
}

/// A VM with two cards, one at lasthop and one at the network, bridges them: to the switch it is a port like any other.
#[test]
fn a_vm_is_a_driver_domain() {
    let (netns, dir) = (Netns::new(), scratch());
    netns.ip("tuntap add t0 mode tap vnet_hdr");
    netns.ip("link set t0 up");
    netns.ip("addr add 10.9.0.100/24 dev t0");
    let ports = ["a", "b", "net"].map(|n| Port::listen(n, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let nic = |i: usize| Nic::vhost_user(&ports[i].socket, i as u8 + 1);
    let outside = Nic::new(Backend::Tap { ifname: "t0".into(), netns: netns.name().to_owned() }, 4);
    let [a, b, domain] = Vm::boot_all([
        VmConfig::new("a", [nic(0)]),
        VmConfig::new("b", [nic(1).plain()]),
        VmConfig::new("domain", [nic(2), outside]),
    ]);
    domain.run(
        "set -e; for m in llc stp bridge; do insmod /modules/$m.ko; done; brctl addbr br0; \
         for e in eth0 eth1; do ip addr flush dev $e; brctl addif br0 $e; done; ip link set br0 up",
    );
    let program = guest_program().display().to_string();
    let _servers = ["tcp-serve", "udp-serve"].map(|what| Server::start(&netns, &[&program, what, "7000"]));
    wait_for("the servers outside", Duration::from_secs(10), || {
        netns.shell("cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6").matches(":1B58 ").count() >= 2
    });
    for vm in [&a, &b] {
        vm.serve();
        let ping = vm.output("ping -c 10 -i 0.02 -w 40 -q 10.9.0.100", 50);
        assert!(ping.code == 0 && ping.stdout.contains(" 0% packet loss"), "{ping:?}");
        vm.run("lasthop-guest tcp-check 10.9.0.100:7000 65536 9001");
        vm.run("lasthop-guest udp-check 10.9.0.100:7000 65507 9001");
        let ip4 = vm.config.nics[0].ip4();
        netns.shell(&format!("timeout 60 {program} tcp-check {ip4}:7000 65536 9001"));
        netns.shell(&format!("timeout 60 {program} udp-check {ip4}:7000 65507 9001"));
    }
    // It ends: VMs among themselves do not notice.
    drop(domain);
    lasthop.wait_for_state("net", "waiting");
    let ping = a.output("ping -c 10 -i 0.02 -w 40 -q 10.9.0.2", 50);
    assert!(ping.code == 0 && ping.stdout.contains(" 0% packet loss"), "{ping:?}");
    lasthop.check_sums();
}
