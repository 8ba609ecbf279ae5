//! lasthop driven by the distribution's Open vSwitch: the bridges and rules of its DPDK datapath, carried out by our switch.

use super::lasthop::Ours;
use super::ovs::{BRIDGE, Rules, install, run};
use super::{Extras, Spent, Switch};
use lasthop_harness::stop::Outcome;
use lasthop_harness::{Netns, Port, proc, scratch, spawn, vswitch};
use std::process::{Child, Command};

/// A running lasthop, and who drives it.
pub struct Driven {
    // In this order: Open vSwitch ends before its datapath, and the network namespace last.
    servers: [Child; 2],
    lasthop: Ours,
    before: u64,
    _dir: tempfile::TempDir,
    _netns: Netns,
}

impl Driven {
    /// All of it on CPU `cpu`: ovs-vswitchd too, which OVS-DPDK has on the guests' CPU.
    pub fn start(ports: &[Port], cpu: usize, rules: Rules, extras: Extras<'_>) -> Outcome<Self> {
        let (dir, netns) = (scratch(), Netns::new());
        let lasthop = Ours::driven(&netns, ports, &cpu.to_string())?;
        let servers = [vswitch::database(&netns, dir.path()), vswitch::daemon(&netns, dir.path(), lasthop.instance())];
        let driven = Self { servers, lasthop, before: 0, _dir: dir, _netns: netns };
        driven.configure(ports, cpu, rules, extras)?;
        Ok(driven)
    }

    fn configure(&self, ports: &[Port], cpu: usize, rules: Rules, extras: Extras<'_>) -> Outcome<()> {
        let dir = self._dir.path();
        let database = format!("--db=unix:{}", dir.join("db.sock").display());
        let mut words: Vec<String> = ["add-br", BRIDGE].map(String::from).into();
        for (i, port) in ports.iter().enumerate() {
            let number = format!("ofport_request={}", i + 1);
            let added = ["--", "add-port", BRIDGE, &port.name, "--", "set", "Interface", &port.name, &number];
            words.extend(added.map(String::from));
        }
        run(Command::new("ovs-vsctl").args([&database, "--timeout=20"]).args(words))?;
        run(Command::new("taskset").args(["-a", "-c", "-p", &cpu.to_string(), &self.servers[1].id().to_string()]))?;
        install(dir, rules, extras.list, ports.len())
    }

    fn vswitchd_ns(&self) -> u64 {
        proc::cpu_ns(self.servers[1].id())
    }
}

impl Switch for Driven {
    fn begin(&mut self) -> Outcome<()> {
        self.before = self.vswitchd_ns();
        self.lasthop.begin()
    }

    fn spent(&mut self, packets: f64) -> Outcome<Spent> {
        let spent = self.lasthop.spent(packets)?;
        let vswitchd = self.vswitchd_ns().saturating_sub(self.before) as f64;
        Ok(Spent { cpu_ns: spent.cpu_ns + vswitchd, ..spent })
    }

    fn memory_kib(&self) -> u64 {
        self.lasthop.memory_kib() + proc::private_kib(self.servers[1].id())
    }

    fn pids(&self) -> Vec<u32> {
        let mut pids = self.lasthop.pids();
        pids.extend(self.servers.iter().map(Child::id));
        pids
    }

    fn forwarder(&self) -> u32 {
        self.lasthop.forwarder()
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.servers.iter_mut().rev().for_each(|server| {
            spawn::end(server);
        });
    }
}
