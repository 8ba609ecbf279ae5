//! Two hosts, each with lasthop and the distribution's `ovs-vswitchd`, and tunnels between them over the hosts' stacks: Geneve and VXLAN, IPv4 and
//! IPv6, networks apart, keys that flows set, TCP in whole packets, deaths. Packets in, packets out.

use lasthop_tests_process::{Lasthop, Netns, PATIENCE, Port, scratch, spawn, vswitch, wait_for};
use std::process::{Child, Stdio};

/// A host with a bridge `br0`, whose port `p` is the cable of a guest: a namespace with the interface `g`.
struct Host {
    vswitchd: Child,
    database: Child,
    lasthop: Lasthop,
    guest: Netns,
    netns: Netns,
    dir: tempfile::TempDir,
    number: u8,
}

impl Host {
    /// Its guest is 10.8.0.`number`, with room for a tunnel's headers.
    fn new(number: u8) -> Self {
        let (dir, netns, guest) = (scratch(), Netns::new(), Netns::new());
        netns.ip(&format!("link add p type veth peer name g netns {}", guest.name()));
        netns.ip("link set p up");
        guest.ip(&format!("link set g address 02:00:00:00:00:0{number} mtu 1400 up"));
        guest.ip(&format!("addr add 10.8.0.{number}/24 dev g"));
        let none: [Port; 0] = [];
        let lasthop = Lasthop::start_in(Some(&netns), &none, &["--control", "ovs", "--no-bpf"]);
        let database = vswitch::database(&netns, dir.path());
        let vswitchd = vswitch::daemon(&netns, dir.path(), &lasthop);
        let host = Self { vswitchd, database, lasthop, guest, netns, dir, number };
        host.vsctl("add-br br0 -- add-port br0 p -- set interface p ofport_request=1");
        host
    }

    fn vsctl(&self, words: &str) -> String {
        let words: Vec<_> = ["ovs-vsctl", "--timeout=20"].into_iter().chain(words.split(' ')).collect();
        vswitch::run(self.dir.path(), &words)
    }

    fn flow(&self, rule: &str) {
        let bridge = format!("unix:{}", self.dir.path().join("br0.mgmt").display());
        vswitch::run(self.dir.path(), &["ovs-ofctl", "add-flow", &bridge, rule]);
        self.appctl(&["revalidator/wait"]);
    }

    fn appctl(&self, words: &[&str]) -> String {
        let control = self.dir.path().join("ovs-vswitchd.ctl").display().to_string();
        vswitch::run(self.dir.path(), &[&["ovs-appctl", "-t", &control], words].concat())
    }

    fn tunnel(&self, kind: &str, options: &str) {
        self.vsctl(&format!("add-port br0 t -- set interface t type={kind} ofport_request=2 {options}"));
        let error = self.vsctl("get interface t error");
        assert_eq!(error.trim(), "[]", "{}", self.logs());
    }

    fn ping(&self, other: &Self, options: &str) -> bool {
        self.guest.output(&format!("ping -n -c 1 -W 1 {options} 10.8.0.{}", other.number)).status.success()
    }

    /// Packets go both ways, also long ones, from now on.
    fn reaches(&self, other: &Self) {
        wait_for("a ping", PATIENCE, || self.ping(other, ""));
        let many = self.guest.shell(&format!("ping -n -c 20 -i 0.01 -W 5 -s 1300 10.8.0.{}", other.number));
        assert!(many.contains(" 0% packet loss"), "{many}");
    }

    /// Packets and bytes that the tunnel's uplink has carried.
    fn carried(&self, port: &str, way: &str) -> (u64, u64) {
        let of = &self.lasthop.port(port)[way];
        let number = |what: &str| of[what].as_u64().unwrap_or_else(|| panic!("{what}: {of}"));
        (number("packets"), number("bytes"))
    }

    /// Whatever goes wrong is told by the logs.
    fn logs(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("ovs-vswitchd.log")).unwrap_or_default();
        format!("host {}:\n{}\n{log}", self.number, self.lasthop.log())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
            eprintln!("{}", String::from_utf8_lossy(&self.lasthop.try_command(&["port", "list"]).stdout));
            eprintln!("{}", String::from_utf8_lossy(&self.lasthop.try_command(&["flow", "list"]).stdout));
        }
        spawn::end(&mut self.vswitchd);
        spawn::end(&mut self.database);
    }
}

/// Two hosts and a cable between them: 192.0.2.`n` and 2001:db8::`n`.
fn hosts() -> [Host; 2] {
    let hosts = [Host::new(1), Host::new(2)];
    let [a, b] = &hosts;
    a.netns.ip(&format!("link add cable type veth peer name cable netns {}", b.netns.name()));
    for host in &hosts {
        host.netns.shell("echo 0 >/proc/sys/net/ipv6/conf/cable/disable_ipv6");
        host.netns.ip("link set cable up");
        host.netns.ip(&format!("addr add 192.0.2.{}/24 dev cable", host.number));
        host.netns.ip(&format!("addr add 2001:db8::{}/64 dev cable nodad", host.number));
    }
    hosts
}

#[test]
fn geneve_joins_two_hosts() {
    let [a, b] = hosts();
    a.tunnel("geneve", "options:remote_ip=192.0.2.2 options:key=5 options:csum=true");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1 options:key=5 options:csum=true");
    a.reaches(&b);
    let flows = a.appctl(&["dpctl/dump-flows"]);
    assert!(flows.contains("tunnel(tun_id=0x5,src=192.0.2.2,dst=192.0.2.1"), "{flows}");
    assert!(flows.contains("set(tunnel(tun_id=0x5,dst=192.0.2.2"), "{flows}");

    // Another network of the same other end is another one.
    b.vsctl("set interface t options:key=6");
    wait_for("the other network", PATIENCE, || !a.ping(&b, ""));
    a.vsctl("set interface t options:key=6");
    a.reaches(&b);
}

#[test]
fn vxlan_joins_two_hosts_over_ipv6() {
    let [a, b] = hosts();
    a.tunnel("vxlan", "options:remote_ip=2001:db8::2 options:key=77");
    b.tunnel("vxlan", "options:remote_ip=2001:db8::1 options:key=77");
    a.reaches(&b);
    assert!(!a.netns.output("ip link show vxlan_sys_4789").status.success(), "the kernel has no such interface");
    let flows = b.appctl(&["dpctl/dump-flows"]);
    assert!(flows.contains("tunnel(tun_id=0x4d,ipv6_src=2001:db8::1,ipv6_dst=2001:db8::2"), "{flows}");
}

#[test]
fn what_is_too_long_for_the_way_is_fragmented_or_dropped() {
    let [a, b] = hosts();
    for host in [&a, &b] {
        host.netns.ip("link set cable mtu 1300");
    }
    a.tunnel("geneve", "options:remote_ip=192.0.2.2 options:df_default=false");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1 options:df_default=false");
    a.reaches(&b);
    for host in [&a, &b] {
        host.vsctl("set interface t options:df_default=true");
    }
    wait_for("a long packet that does not come", PATIENCE, || !a.ping(&b, "-s 1300"));
    assert!(a.ping(&b, "-s 1000"));
}

#[test]
fn flows_choose_network_and_other_end() {
    let [a, b] = hosts();
    for host in [&a, &b] {
        host.tunnel("geneve", "options:key=flow options:remote_ip=flow");
    }
    a.flow("priority=9,in_port=1,actions=set_field:0x123->tun_id,set_field:192.0.2.2->tun_dst,output:2");
    b.flow("priority=9,in_port=1,actions=set_field:0x456->tun_id,set_field:192.0.2.1->tun_dst,output:2");
    a.flow("priority=9,in_port=2,tun_id=0x456,actions=output:1");
    b.flow("priority=9,in_port=2,tun_id=0x123,tun_src=192.0.2.1,actions=output:1");
    b.flow("priority=8,in_port=2,actions=drop");
    a.reaches(&b);
    a.flow("priority=9,in_port=1,actions=set_field:0x124->tun_id,set_field:192.0.2.2->tun_dst,output:2");
    wait_for("the other network", PATIENCE, || !a.ping(&b, ""));
}

#[test]
fn tcp_crosses_in_large_packets() {
    let [a, b] = hosts();
    a.tunnel("geneve", "options:remote_ip=192.0.2.2 options:key=5");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1 options:key=5");
    a.reaches(&b);
    let before = [a.carried("genev_sys_6081", "to_guest"), b.carried("genev_sys_6081", "from_guest")];
    let mut server = spawn::spawn("TERM", "ip", |c| {
        c.args(["netns", "exec", b.guest.name(), "iperf3", "-s", "-1"]).stdout(Stdio::null()).stderr(Stdio::null());
    });
    wait_for("iperf3", PATIENCE, || b.guest.shell("ss -Hltn").contains(":5201"));
    let told = a.guest.shell("iperf3 -c 10.8.0.2 -n 200M");
    eprintln!("{told}");
    let _ = server.wait();
    for (host, (packets, bytes), way) in [(&a, before[0], "to_guest"), (&b, before[1], "from_guest")] {
        let (now_packets, now_bytes) = host.carried("genev_sys_6081", way);
        let (packets, bytes) = (now_packets - packets, now_bytes - bytes);
        assert!(bytes > 200_000_000, "{bytes} bytes");
        let mean = bytes / packets;
        eprintln!("host {}: {mean} bytes a packet", host.number);
        assert!(mean > 4000, "{way}: {packets} packets of {mean} bytes");
    }
}

#[test]
fn deaths_of_the_parts_are_survived() {
    let [a, b] = hosts();
    a.tunnel("geneve", "options:remote_ip=192.0.2.2 options:key=5");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1 options:key=5");
    a.reaches(&b);
    // The newest uplink is the tunnel.
    for part in ["lasthop-uplink", "lasthop-switch"] {
        a.lasthop.kill(part);
        a.reaches(&b);
        b.lasthop.kill(part);
        a.reaches(&b);
    }
}
