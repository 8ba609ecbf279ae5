//! lasthop, as people start it.

use super::{Extras, Spent, Switch};
use crate::acl::List;
use crate::contender::Change;
use crate::switch::uplink::UPLINK;
use lasthop_harness::stop::{Outcome, failed};
use lasthop_harness::{Lasthop, Netns, Port, proc};
use serde_json::Value;
use std::process::Command;

/// Of the one device there is.
const DEVICE: &str = "nic0";

/// A running lasthop.
pub struct Ours {
    lasthop: Lasthop,
    /// The device that has the ports, if the host's own switch has not.
    device: Option<&'static str>,
    /// Its processes when the measurement began.
    measured: Vec<u32>,
    cpu_before: u64,
    busy_before: u64,
    idle_before: u64,
}

impl Ours {
    /// A learning switch on these CPUs.
    pub fn start(ports: &[Port], cpus: &str, extras: Extras<'_>, change: Option<Change>) -> Outcome<Self> {
        let polled = cpus.split(',').next_back().and_then(|cpu| cpu.parse().ok()).unwrap_or(0);
        let changed = change.map(|change| change.arguments(polled)).unwrap_or_default();
        let mut arguments = vec!["--cpus", cpus];
        arguments.extend(changed.iter().map(String::as_str));
        let uplink = extras.uplink.map(|u| u.device.uplink());
        arguments.extend(uplink.iter().flat_map(|uplink| ["--uplink", uplink]));
        let lasthop = Lasthop::start_in(extras.uplink.map(|u| u.netns), ports, &arguments);
        bind(lasthop.control(), cpus)?;
        let ours = Self::new(lasthop, None);
        extras.list.map_or(Ok(()), |list| ours.load(list))?;
        if extras.uplink.is_some_and(|u| u.device.queues() > 1) {
            ports.iter().for_each(|p| ours.told(&["port", "set", &p.name, "--queue-of", UPLINK]));
        }
        if let Some((promise, port)) = extras.promise.and_then(|p| Some((p, ports.get(p.port)?))) {
            ours.told(&["port", "set", UPLINK, "--rate-to", &promise.whole.to_string()]);
            ours.told(&["port", "set", &port.name, "--min-rate", &promise.least.to_string()]);
        }
        Ok(ours)
    }

    /// Says something to it that it takes.
    fn told(&self, words: &[&str]) {
        self.lasthop.command(words);
    }

    /// A device that polls on one CPU, with all ports; no cable to the host's own switch, which has nothing to do.
    pub fn device(ports: &[Port], cpu: usize, extras: Extras<'_>) -> Outcome<Self> {
        let cpus = cpu.to_string();
        let device = format!("{DEVICE},engines={cpus},cable=off");
        let of_device = |p: &Port| format!("{}={},client,device={DEVICE}", p.name, p.socket.display());
        let ports: Vec<String> = ports.iter().map(of_device).collect();
        let mut arguments = vec!["--cpus", &cpus, "--device", &device];
        arguments.extend(ports.iter().flat_map(|port| ["--port", port]));
        let lasthop = Lasthop::start_with(&[], &arguments);
        let data_plane = lasthop.child("lasthop-device");
        for pid in lasthop.pids().into_iter().filter(|pid| *pid != data_plane) {
            bind(pid, &cpus)?;
        }
        let ours = Self::new(lasthop, Some(DEVICE));
        extras.list.map_or(Ok(()), |list| ours.load(list))?;
        Ok(ours)
    }

    fn new(lasthop: Lasthop, device: Option<&'static str>) -> Self {
        Self { lasthop, device, measured: Vec::new(), cpu_before: 0, busy_before: 0, idle_before: 0 }
    }

    /// Gives whoever has the ports an access list.
    fn load(&self, list: &List) -> Outcome<()> {
        let file = tempfile::NamedTempFile::new().map_err(failed)?;
        let (text, format) = list.lasthop();
        std::fs::write(&file, text).map_err(failed)?;
        let path = file.path().display().to_string();
        let out = self.lasthop.try_command_of(self.device, &["acl", "load", &path, "--format", format]);
        if !out.status.success() {
            return Err(failed(format!("lasthop acl load: {}", String::from_utf8_lossy(&out.stderr).trim())));
        }
        Ok(())
    }

    /// One that Open vSwitch drives, on these CPUs.
    pub fn driven(netns: &Netns, ports: &[Port], cpus: &str) -> Outcome<Self> {
        let lasthop = Lasthop::start_in(Some(netns), ports, &["--control", "ovs", "--cpus", cpus]);
        for pid in lasthop.pids().into_iter().filter(|pid| *pid != lasthop.switch()) {
            bind(pid, cpus)?;
        }
        Ok(Self::new(lasthop, None))
    }

    /// What runs.
    pub fn instance(&self) -> &Lasthop {
        &self.lasthop
    }

    /// Processor time so far. Its processes are not looked for again: on CPUs that guests and switch keep busy that takes a tenth of a second
    /// and more, in which the switch works on.
    fn cpu_ns(&self) -> u64 {
        self.measured.iter().copied().map(proc::cpu_ns).sum()
    }

    /// Processor time of its helpers, which are in the idle class.
    fn idle_ns(&self) -> u64 {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.forwarder())) else { return 0 };
        let time = |task: std::fs::DirEntry| {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
            let helper = read("comm")?.starts_with("helper-");
            read("schedstat")?.split(' ').next()?.parse::<u64>().ok().filter(|_| helper)
        };
        tasks.filter_map(Result::ok).filter_map(time).sum()
    }

    /// Time in which its workers had packets, as it counts that itself.
    fn busy_ns(&self) -> Outcome<u64> {
        let out = self.lasthop.try_command_of(self.device, &["stats", "--json"]);
        let stats: Value = serde_json::from_slice(&out.stdout)
            .map_err(|e| failed(format!("lasthop stats: {e}: {}", String::from_utf8_lossy(&out.stderr).trim())))?;
        let ports = stats["ports"].as_array().into_iter().flatten();
        Ok(ports.filter_map(|port| port["from_guest"]["busy_ns"].as_u64()).sum())
    }
}

impl Switch for Ours {
    fn begin(&mut self) -> Outcome<()> {
        // The question costs processor time too: it is asked outside of what is measured.
        self.busy_before = self.busy_ns()?;
        self.measured = self.lasthop.pids();
        self.idle_before = self.idle_ns();
        self.cpu_before = self.cpu_ns();
        Ok(())
    }

    fn spent(&mut self, _packets: f64) -> Outcome<Spent> {
        let cpu_ns = self.cpu_ns().saturating_sub(self.cpu_before) as f64;
        let idle_ns = self.idle_ns().saturating_sub(self.idle_before) as f64;
        let busy_ns = self.busy_ns()?.saturating_sub(self.busy_before) as f64;
        // A clock goes on while others have the CPU.
        Ok(Spent { cpu_ns, busy_ns: busy_ns.min(cpu_ns), idle_ns })
    }

    fn memory_kib(&self) -> u64 {
        self.pids().into_iter().map(proc::private_kib).sum()
    }

    fn pids(&self) -> Vec<u32> {
        self.lasthop.pids()
    }

    fn told_ns(&self) -> u64 {
        let switch = self.lasthop.switch();
        let sessions = self.pids().into_iter().filter(|pid| proc::name(*pid).starts_with("lasthop-session"));
        sessions.map(proc::cpu_ns).sum::<u64>() + proc::thread_ns(switch, switch)
    }

    fn forwarder(&self) -> u32 {
        self.device.map_or_else(|| self.lasthop.switch(), |_| self.lasthop.child("lasthop-device"))
    }

    fn by_queues(&self) -> Option<[u64; 2]> {
        by_queues(&self.lasthop.json(&["uplink", "list"]))
    }

    fn uplink(&self) -> Option<u32> {
        let list = self.lasthop.json(&["uplink", "list"]);
        list["uplinks"][0]["pid"].as_u64().map(|pid| pid as u32)
    }
}

/// Of `lasthop uplink list --json`: packets by queues that are kept for nobody, and by the others.
fn by_queues(list: &Value) -> Option<[u64; 2]> {
    let queues = list["uplinks"][0]["guest_queues"].as_array().filter(|q| !q.is_empty())?;
    let sum = |kept: bool| {
        let of = queues.iter().filter(|q| q["port"].is_string() == kept);
        of.filter_map(|q| q["packets"].as_u64()).sum::<u64>()
    };
    Some([sum(false), sum(true)])
}

/// Has all threads of a process on these CPUs: `--cpus` is about the data plane alone, and the switch has one CPU here.
fn bind(pid: u32, cpus: &str) -> Outcome<()> {
    let bound = Command::new("taskset").args(["-a", "-c", "-p", cpus, &pid.to_string()]).output().map_err(failed)?;
    if bound.status.success() {
        return Ok(());
    }
    Err(failed(format!("taskset for process {pid}: {}", String::from_utf8_lossy(&bound.stderr).trim())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn packets_are_told_apart_by_whether_their_queue_is_kept() {
        let queue = |port: Option<&str>, packets: u64| json!({ "port": port, "mac": null, "packets": packets });
        let list = json!({ "uplinks": [{ "guest_queues": [queue(None, 5), queue(Some("p0"), 30), queue(Some("p1"), 4), queue(None, 2)] }] });
        assert_eq!(super::by_queues(&list), Some([7, 34]));
        assert_eq!(super::by_queues(&json!({ "uplinks": [{ "guest_queues": [] }] })), None);
    }
}
