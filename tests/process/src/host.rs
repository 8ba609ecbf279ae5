//! A host with lasthop and the distribution's `ovs-vswitchd`, and two of them with a cable between them.

use crate::{Lasthop, Netns, PATIENCE, Port, scratch, spawn, vswitch, wait_for};
use std::process::Child;

/// A host with a bridge `br0`, whose port `p` is the cable of a guest: a namespace with the interface `g`.
pub struct Host {
    /// Its Open vSwitch.
    pub vswitchd: Child,
    /// The database of that.
    pub database: Child,
    /// Its lasthop.
    pub lasthop: Lasthop,
    /// The guest's namespace.
    pub guest: Netns,
    /// Its own namespace.
    pub netns: Netns,
    /// Files of Open vSwitch.
    pub dir: tempfile::TempDir,
    /// Its number, and the guest's.
    pub number: u8,
}

impl Host {
    /// Its guest is 10.8.0.`number`, with room for a tunnel's headers.
    pub fn new(number: u8) -> Self {
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

    /// Changes the database, or asks it, and waits for Open vSwitch; words are parted by blanks.
    pub fn vsctl(&self, words: &str) -> String {
        let words: Vec<_> = ["ovs-vsctl", "--timeout=20"].into_iter().chain(words.split(' ')).collect();
        vswitch::run(self.dir.path(), &words)
    }

    /// Adds a rule to the bridge, which holds when this returns.
    pub fn flow(&self, rule: &str) {
        let bridge = format!("unix:{}", self.dir.path().join("br0.mgmt").display());
        vswitch::run(self.dir.path(), &["ovs-ofctl", "add-flow", &bridge, rule]);
        self.appctl(&["revalidator/wait"]);
    }

    /// Asks `ovs-vswitchd` something.
    pub fn appctl(&self, words: &[&str]) -> String {
        let control = self.dir.path().join("ovs-vswitchd.ctl").display().to_string();
        vswitch::run(self.dir.path(), &[&["ovs-appctl", "-t", &control], words].concat())
    }

    /// Adds the tunnel `t` to the bridge, as port 2.
    pub fn tunnel(&self, kind: &str, options: &str) {
        self.vsctl(&format!("add-port br0 t -- set interface t type={kind} ofport_request=2 {options}"));
        let error = self.vsctl("get interface t error");
        assert_eq!(error.trim(), "[]", "{}", self.logs());
    }

    /// This host's guest has an answer of the other's to one ping.
    pub fn ping(&self, other: &Self, options: &str) -> bool {
        self.guest.output(&format!("ping -n -c 1 -W 1 {options} 10.8.0.{}", other.number)).status.success()
    }

    /// Packets go both ways, also long ones, from now on.
    pub fn reaches(&self, other: &Self) {
        wait_for("a ping", PATIENCE, || self.ping(other, ""));
        let many = self.many(other);
        assert!(many.contains(" 0% packet loss"), "{many}");
    }

    /// What `ping` says of twenty long ones.
    pub fn many(&self, other: &Self) -> String {
        self.guest.shell(&format!("ping -n -c 20 -i 0.01 -W 1 -s 1300 10.8.0.{} || true", other.number))
    }

    /// Packets and bytes that a port has carried, `way` being `to_guest` or `from_guest`.
    pub fn carried(&self, port: &str, way: &str) -> (u64, u64) {
        let of = &self.lasthop.port(port)[way];
        let number = |what: &str| of[what].as_u64().unwrap_or_else(|| panic!("{what}: {of}"));
        (number("packets"), number("bytes"))
    }

    /// Whatever goes wrong is told by the logs.
    pub fn logs(&self) -> String {
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
pub fn hosts() -> [Host; 2] {
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
