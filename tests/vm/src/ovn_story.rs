//! OVN on two hosts with real virtual machines, as a story whose every scene is checked: `make demo-ovn` shows it, and a test of the long
//! suite runs it.
//!
//! ```text
//!            host one                            host two
//!   outside ── br-provider ── br-int ══ Geneve ══ br-int
//!   203.0.113.100              │                 │     │
//!                            web1              web2    db1        logical switches: web 10.1.0.0/24, db 10.2.0.0/24;
//!                                                                 a router between them, with 203.0.113.1 outside
//! ```

use crate::stage;
use lasthop_harness::ovn::{Central, Host, cable};
use lasthop_harness::{Netns, Nic, Vm, VmConfig, guest_program, proc, wait_for};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// The logical network, each line a command of `ovn-nbctl`.
const NETWORK: [&str; 22] = [
    "ls-add web",
    "ls-add db",
    "lsp-add web web1",
    "lsp-set-addresses web1 '52:54:00:00:00:01 10.1.0.11'",
    "lsp-set-port-security web1 '52:54:00:00:00:01 10.1.0.11'",
    "lsp-add web web2",
    "lsp-set-addresses web2 '52:54:00:00:00:02 10.1.0.12'",
    "lsp-add db db1",
    "lsp-set-addresses db1 '52:54:00:00:00:03 10.2.0.13'",
    "lr-add r",
    "lrp-add r r-web 02:00:00:00:01:01 10.1.0.1/24",
    "lrp-add r r-db 02:00:00:00:02:01 10.2.0.1/24",
    "lrp-add r r-out 02:00:00:00:03:01 203.0.113.1/24",
    "lsp-add web web-r",
    "lsp-set-type web-r router",
    "lsp-set-addresses web-r router",
    "lsp-set-options web-r router-port=r-web",
    "lsp-add db db-r",
    "lsp-set-type db-r router",
    "lsp-set-addresses db-r router",
    "lsp-set-options db-r router-port=r-db",
    "lrp-set-gateway-chassis r-out one",
];

/// The way out: a logical switch that is the network behind host one's bridge `br-provider`.
const OUTSIDE: [&str; 10] = [
    "ls-add out",
    "lsp-add out out-r",
    "lsp-set-type out-r router",
    "lsp-set-addresses out-r router",
    "lsp-set-options out-r router-port=r-out nat-addresses=router",
    "lsp-add out out-net",
    "lsp-set-type out-net localnet",
    "lsp-set-addresses out-net unknown",
    "lsp-set-options out-net network_name=provider",
    "lr-nat-add r snat 203.0.113.1 10.0.0.0/8",
];

/// Addresses by DHCP, and names.
const SERVICES: &str = "
for net in 1 2; do
  id=$(ovn-nbctl create dhcp_options cidr=10.$net.0.0/24 options='\"server_id\"=\"10.'$net'.0.1\" \"server_mac\"=\"02:00:00:00:0'$net':01\" \
    \"lease_time\"=\"3600\" \"router\"=\"10.'$net'.0.1\" \"mtu\"=\"1442\" \"dns_server\"=\"10.'$net'.0.1\"')
  [ $net = 1 ] && ports='web1 web2' || ports=db1
  for port in $ports; do ovn-nbctl lsp-set-dhcpv4-options $port $id; done
done
names=$(ovn-nbctl create dns records='{web1.example=\"10.1.0.11\",web2.example=\"10.1.0.12\",db1.example=\"10.2.0.13\"}')
for net in web db; do ovn-nbctl set logical_switch $net dns_records=$names; done";

/// Takes an address by DHCP, as distributions do.
const DHCP: &str = "cat >/tmp/dhcp <<'END'
#!/bin/sh
[ \"$1\" = bound ] || exit 0
ip link set $interface mtu $mtu
ip addr add $ip/$mask dev $interface
ip route add default via $router
echo nameserver $dns >/etc/resolv.conf
END
chmod +x /tmp/dhcp; udhcpc -i eth0 -n -q -t 20 -T 1 -O mtu -s /tmp/dhcp";

/// Two hosts and what is plugged into them.
pub struct Story {
    vms: [Option<Vm>; 3],
    outside: Netns,
    hosts: [Host; 2],
    central: Central,
    show: bool,
}

impl Story {
    /// Tells all of it; `show`: on the screen. Returns what TCP between two virtual machines on two hosts had, in bits a second, and the mean
    /// length of its packets in the tunnel, in bytes.
    pub fn tell(show: bool) -> (f64, u64) {
        let mut story = Self::begin(show);
        story.machines();
        story.switching();
        story.security();
        story.outside();
        story.balance();
        let figures = story.stream();
        story.a_machine_moves();
        story.deaths();
        figures
    }

    fn headline(&self, what: &str) {
        if self.show {
            stage::headline(what);
        }
    }

    fn say(&self, what: &str) {
        if self.show {
            println!("{what}");
        }
    }

    /// Changes the logical network.
    fn change(&self, commands: &[&str]) {
        if self.show {
            commands.iter().for_each(|command| stage::command("$", &format!("ovn-nbctl {command}")));
        }
        self.central.change(commands);
    }

    fn vm(&self, n: usize) -> &Vm {
        self.vms[n].as_ref().expect("it is plugged in")
    }

    /// Runs a command in a VM, which ends well.
    fn run(&self, n: usize, command: &str) -> String {
        let vm = self.vm(n);
        if self.show {
            stage::command(&format!("{}#", vm.config.name), command);
        }
        let output = vm.output(command, 60);
        assert_eq!(output.code, 0, "{}: {command}: {output:?}", vm.config.name);
        if self.show {
            print!("{}", output.stdout);
        }
        output.stdout
    }

    /// Runs a command in a VM, which does not end well.
    fn fails(&self, n: usize, command: &str) {
        let vm = self.vm(n);
        if self.show {
            stage::command(&format!("{}#", vm.config.name), command);
        }
        let output = vm.output(command, 30);
        assert_ne!(output.code, 0, "{}: {command}: {output:?}", vm.config.name);
        self.say("no answer, as it is to be");
    }

    /// OVN's own opinion of a packet.
    fn trace(&self, switch: &str, packet: &str) -> String {
        let line = format!("ovn-trace --minimal {switch} '{packet}'");
        if self.show {
            stage::command("$", &line);
        }
        let told = self.central.shell(&line);
        if self.show {
            print!("{told}");
        }
        told
    }

    fn begin(show: bool) -> Self {
        if show {
            stage::headline("Two hosts: each with lasthop, Debian's Open vSwitch over it, and Debian's ovn-controller");
        }
        let central = Central::start();
        let hosts = [Host::start(&central, "one", 1), Host::start(&central, "two", 2)];
        cable(&hosts);
        let outside = Netns::new();
        let one = &hosts[0];
        one.netns.ip(&format!("link add provider type veth peer name eth0 netns {}", outside.name()));
        one.netns.ip("link set provider up");
        outside.ip("addr add 203.0.113.100/24 dev eth0");
        outside.ip("link set eth0 up");
        one.shell(
            "ovs-vsctl --timeout=30 add-br br-provider -- add-port br-provider provider \
             -- set open_vswitch . external_ids:ovn-bridge-mappings=provider:br-provider",
        );
        let story = Self { vms: [None, None, None], outside, hosts, central, show };
        story.headline("A logical network: two switches, a router, a way out, DHCP and names");
        story.change(&NETWORK);
        story.change(&OUTSIDE);
        story.central.shell(SERVICES);
        story
    }

    /// A virtual machine is plugged into a host and gets its address.
    fn plug(&mut self, n: usize, host: usize) {
        let name = ["web1", "web2", "db1"][n];
        let socket = self.hosts[host].add_vm(name);
        let card = Nic::vhost_user(&socket, n as u8 + 1).bare();
        self.vms[n] = Some(Vm::launch(VmConfig::new(name, [card])));
    }

    fn machines(&mut self) {
        self.headline("Three virtual machines boot, and get their addresses by OVN's DHCP");
        for (n, host) in [(0, 0), (1, 1), (2, 1)] {
            self.plug(n, host);
        }
        for n in 0..3 {
            self.ready(n);
        }
    }

    fn ready(&mut self, n: usize) {
        let vm = self.vms[n].take().expect("it was launched").ready();
        self.vms[n] = Some(vm);
        self.central.sync();
        let told = self.vm(n).output(DHCP, 60);
        assert_eq!(told.code, 0, "DHCP: {told:?}\n{}", self.hosts[0].logs());
        let address = ["10.1.0.11", "10.1.0.12", "10.2.0.13"][n];
        let shown = self.run(n, "ip -4 -o addr show dev eth0");
        assert!(shown.contains(address), "{shown}");
        assert!(self.vm(n).run("cat /sys/class/net/eth0/mtu").contains("1442"));
        self.vm(n).serve();
    }

    fn switching(&self) {
        self.headline("On one switch from host to host, and through the router");
        self.run(0, "ping -c 5 -i 0.2 -q 10.1.0.12");
        self.run(0, "ping -c 5 -i 0.2 -q 10.2.0.13");
        let found = self.run(0, "nslookup db1.example 10.1.0.1");
        assert!(found.contains("10.2.0.13"), "{found}");
        self.run(0, "lasthop-guest tcp-check 10.2.0.13:7000 1000000 4001");
    }

    fn security(&self) {
        let to_db = |what: &str| {
            format!(
                "inport == \"web1\" && eth.src == 52:54:00:00:00:01 && eth.dst == 02:00:00:00:01:01 && ip4.src == 10.1.0.11 && \
                 ip4.dst == 10.2.0.13 && ip.ttl == 64 && {what}"
            )
        };
        self.headline("A security group: to db1 comes TCP to port 7000, and what db1 asked for");
        self.change(&[
            "pg-add group db1",
            "acl-add group to-lport 1000 'outport == @group && ip' drop",
            "acl-add group to-lport 1001 'outport == @group && tcp.dst == 7000' allow-related",
            "acl-add group from-lport 1001 'inport == @group && ip' allow-related",
        ]);
        self.fails(0, "ping -c 2 -W 1 -q 10.2.0.13");
        let told = self.trace("web", &to_db("icmp4"));
        assert!(!told.contains("output(\"db1\")"), "{told}");
        self.run(0, "lasthop-guest tcp-check 10.2.0.13:7000 1000000 4001");
        let told = self.trace("web", &to_db("tcp && tcp.dst == 7000"));
        assert!(told.contains("output(\"db1\")"), "{told}");
        self.run(2, "ping -c 3 -i 0.2 -q 10.1.0.11");

        self.headline("Port security: web1 may not speak with another address");
        self.run(0, "ip addr add 10.1.0.99/24 dev eth0");
        self.fails(0, "ping -c 2 -W 1 -q -I 10.1.0.99 10.1.0.12");
        self.run(0, "ip addr del 10.1.0.99/24 dev eth0");
        self.run(0, "ping -c 2 -i 0.2 -q 10.1.0.12");
    }

    fn outside(&self) {
        self.headline("To the network outside by address translation, and from there to one machine");
        // It has no route to the networks inside: an answer means that the address was translated.
        self.run(0, "ping -c 3 -i 0.2 -q 203.0.113.100");
        self.run(1, "ping -c 3 -i 0.2 -q 203.0.113.100");
        self.change(&["lr-nat-add r dnat_and_snat 203.0.113.12 10.1.0.12"]);
        self.ask_outside("ping -c 3 -i 0.2 -q 203.0.113.12");
        let program = guest_program().display().to_string();
        self.ask_outside(&format!("{program} tcp-check 203.0.113.12:7000 1000000 4001"));
    }

    fn ask_outside(&self, command: &str) {
        if self.show {
            stage::command("outside#", &command.replace(&guest_program().display().to_string(), "lasthop-guest"));
        }
        let told = self.outside.shell(command);
        if self.show {
            print!("{told}");
        }
    }

    fn balance(&self) {
        self.headline("A load balancer: one address, two machines");
        self.change(&["lb-add lb 10.9.9.9:80 10.1.0.11:7000,10.1.0.12:7000 tcp", "ls-lb-add db lb"]);
        self.run(
            2,
            "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do lasthop-guest tcp-check 10.9.9.9:80 1000 401 || exit 1; done",
        );
        let table = self.hosts[1].appctl("dpctl/dump-conntrack");
        for server in ["10.1.0.11", "10.1.0.12"] {
            let of = |line: &&str| line.contains("dst=10.9.9.9") && line.contains(&format!("reply=(src={server}"));
            let connections = table.lines().filter(of).count();
            self.say(&format!("{server}: {connections} connections"));
            assert!(connections > 0, "{table}");
        }
    }

    fn stream(&self) -> (f64, u64) {
        self.headline("One TCP stream from host to host, five seconds");
        let of = || {
            let way = self.hosts[0].lasthop.port("genev_sys_6081")["to_guest"].take();
            ["packets", "bytes"].map(|what| way[what].as_u64().expect("a counter"))
        };
        self.vm(1).background("iperf3 -s -1");
        // 1451: port 5201. 0A: it listens.
        let listens = "grep -q ':1451 .* 0A ' /proc/net/tcp6 /proc/net/tcp";
        wait_for("iperf3 listens", PATIENCE, || self.vm(1).output(listens, 10).code == 0);
        let before = of();
        let report = self.vm(0).output("iperf3 -c 10.1.0.12 -t 5 -J", 60);
        let after = of();
        let report: serde_json::Value = serde_json::from_str(&report.stdout).expect("iperf3 reports in JSON");
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64().expect("iperf3 measures");
        let mean = (after[1] - before[1]) / (after[0] - before[0]).max(1);
        self.say(&format!(
            "{}{:.2} Gb/s{}, in packets of {mean} bytes between the hosts",
            stage::paint(stage::FIGURE),
            bits / 1e9,
            stage::paint(stage::PLAIN)
        ));
        assert!(mean > 4000, "packets cross in one piece: {mean} bytes");
        (bits, mean)
    }

    fn a_machine_moves(&mut self) {
        self.headline("web2 moves: it ends on host two, and starts on host one");
        drop(self.vms[1].take());
        self.hosts[1].remove_vm("web2");
        self.plug(1, 0);
        self.ready(1);
        let chassis =
            "ovn-sbctl get chassis $(ovn-sbctl --bare --columns=chassis find port_binding logical_port=web2) hostname";
        assert_eq!(self.central.shell(chassis).trim(), "one");
        self.run(0, "ping -c 3 -i 0.2 -q 10.1.0.12");
        self.run(2, "ping -c 3 -i 0.2 -q 10.1.0.12");
        self.ask_outside("ping -c 3 -i 0.2 -q 203.0.113.12");
    }

    fn deaths(&mut self) {
        self.headline("kill -9, one process after the other, while web1 and db1 talk");
        for part in
            ["lasthop-switch", "lasthop-uplink", "lasthop-ovs", "ovs-vswitchd", "ovsdb-server", "ovn-controller"]
        {
            if self.show {
                stage::command("$", &format!("kill -9 {part}"));
            }
            let host = &mut self.hosts[0];
            match part {
                "ovs-vswitchd" => {
                    proc::signal(host.vswitchd.id(), rustix::process::Signal::KILL);
                    let _ = host.vswitchd.wait();
                    host.restart_vswitchd();
                }
                "ovsdb-server" => {
                    host.restart_database();
                    // Returns when ovs-vswitchd has read it.
                    host.shell("ovs-vsctl --timeout=30 set bridge br-int other_config:again=1");
                }
                "ovn-controller" => host.restart_controller(),
                part => host.lasthop.kill(part),
            }
            self.say("killed, and another has taken its place");
            let ping = |story: &Self| story.vm(0).output("ping -c 3 -i 0.2 -W 1 -q 10.1.0.12", 20).code == 0;
            wait_for("web2 to answer", PATIENCE, || ping(self));
            self.run(0, "lasthop-guest tcp-check 10.2.0.13:7000 1000000 4001");
        }
    }
}
