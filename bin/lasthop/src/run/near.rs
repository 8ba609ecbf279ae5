//! Ports' threads near their VMs (`--near`): where a VM's threads run is looked at now and then, and its port's thread may run on those CPUs of the engine
//! `ports` that are on the same NUMA node, or share a cache. What is made of that is in [`law`]; why it is done so in `docs/engines.md`.

mod law;

use super::engines::allowed_cpus;
use super::port_threads::{PortThreads, Thread};
use super::supervisor::Supervisor;
use lasthop_hostview::topology;
use lasthop_management_ipc::{Nearness, PortPlace, SupervisorToControl};
use lasthop_sys::CpuList;
use lasthop_types::PortId;
use law::{Domain, Law, Place, there};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// All VMs are looked at this often while ports' threads work, and more and more seldom, down to [`SELDOM`], while none does.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(8);
/// So much processor time at most is used to look without a rest; other work of this process waits meanwhile.
const TURN: Duration = Duration::from_millis(2);
/// The rest is this many times as long, and no longer than [`MOST_REST`]: in a turn that seems to have taken more than 10 ms the clock went on without us, as in a virtual machine.
const REST: u32 = 200;
const MOST_REST: Duration = Duration::from_secs(2);
/// Of a process with more threads so many are looked at.
const MOST_THREADS: usize = 512;
/// A VM that has used less than this since it was looked at, in ticks, is where it was.
const FEW_TICKS: u64 = 2;

/// How near to its VM the thread of a port is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Near {
    /// The kernel chooses among all CPUs of ports' threads
    Off,
    /// On its VM's NUMA node
    #[default]
    Node,
    /// On CPUs that share its VM's last-level cache; if it uses several of those, on its node
    Cache,
}

impl Near {
    const ALL: [Self; 3] = [Self::Off, Self::Node, Self::Cache];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Node => "node",
            Self::Cache => "cache",
        }
    }

    /// Whether it is what it is if nobody says anything.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Near {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|near| near.name() == text);
        known.ok_or_else(|| {
            format!("{text:?} is not how near threads are kept; there are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// Where VMs are, and their ports' threads.
#[derive(Debug)]
pub struct Followed {
    near: Near,
    /// Where the kernel says which nodes and caches there are.
    system: PathBuf,
    /// All of the host.
    nodes: Vec<(u32, CpuList)>,
    /// Finest first, without those that have all CPUs; none: there is nothing to be near to.
    domains: Vec<Domain>,
    /// By port number.
    vms: BTreeMap<u32, Vm>,
    /// Ports that are still to be looked at in this round.
    round: Vec<u32>,
    begun: Instant,
    next: Option<Instant>,
    pause: Duration,
    /// Whether a thread has worked since the round before.
    worked: bool,
    /// What control has been told, if it was told something.
    told: Option<Vec<PortPlace>>,
    complained: bool,
}

/// What another program of this process goes on with: port, process, and CPUs of where it is, if it is somewhere.
pub type FollowedState = Vec<(u32, u32, Option<String>)>;

/// The process at the other end of a port.
#[derive(Debug, Default)]
struct Vm {
    process: u32,
    /// Ticks that its threads had used when it was last judged.
    used: BTreeMap<i32, u64>,
    law: Law,
    /// What the port's thread had used, and waited for, when it was last looked at, and when that was.
    thread: Option<(Thread, (u64, u64), Instant)>,
    has_thread: bool,
    put: Option<Put>,
    refused: Option<Errno>,
}

/// Where a port's thread was last put.
#[derive(Clone, Debug)]
struct Put {
    thread: Thread,
    cpus: CpuList,
    /// What the kernel made of that. Whoever else binds the thread, or puts it into a control group with other CPUs, changes it.
    bound: CpuList,
}

/// What the switch's threads are, and may.
#[derive(Clone, Copy, Debug)]
struct Threads<'a> {
    of_ports: &'a PortThreads,
    switch: Option<u32>,
    /// CPUs of ports' threads.
    cpus: &'a CpuList,
    /// Ports that cores poll: they may have work without a thread, and one that they had before has none.
    polled: &'a BTreeSet<u32>,
}

impl Threads<'_> {
    fn of(&self, port: u32) -> Option<(Thread, (u64, u64))> {
        let thread = self.of_ports.of(port, self.switch).filter(|_| !self.is_polled(port))?;
        Some((thread, thread.times()?))
    }

    fn is_polled(&self, port: u32) -> bool {
        self.polled.contains(&port)
    }
}

impl Followed {
    /// On the host that is described below `system`.
    pub fn new(near: Near, system: &Path) -> Self {
        let mut followed = Self {
            near,
            system: system.to_owned(),
            nodes: Vec::new(),
            domains: Vec::new(),
            vms: BTreeMap::new(),
            round: Vec::new(),
            begun: Instant::now(),
            next: None,
            pause: OFTEN,
            worked: false,
            told: None,
            complained: false,
        };
        followed.hurry();
        followed
    }

    /// From now on threads are kept so near.
    pub fn set_near(&mut self, near: Near) {
        self.near = near;
        self.hurry();
    }

    /// CPUs of the host, or of the engine `ports`, may be others now.
    pub fn hurry(&mut self) {
        (self.round, self.next, self.pause) = (Vec::new(), None, OFTEN);
        self.nodes = topology::nodes(&self.system);
        let domains = domains(self.near, &self.nodes, &self.system);
        if domains == self.domains {
            return;
        }
        self.domains = domains;
        for vm in self.vms.values_mut() {
            *vm = Vm { process: vm.process, put: vm.put.take(), ..Vm::default() };
        }
    }

    /// NUMA nodes of these CPUs, as people write lists; `None` where the host has one.
    pub fn nodes(&self, cpus: &CpuList) -> Option<String> {
        let on = self.nodes.iter().filter(|(_, of)| cpus.iter().any(|cpu| of.contains(cpu)));
        let on: CpuList = on.map(|(node, _)| *node as usize).collect();
        (self.nodes.len() > 1).then(|| on.to_string())
    }

    /// The process at the other end of the port's connection, if it is known; `None`: it is gone.
    pub fn set_vm(&mut self, port: u32, process: Option<u32>) {
        // The same one has come back, to another switch: it runs where it did.
        if process.is_some() && self.vms.get(&port).map(|vm| vm.process) == process {
            return;
        }
        let before = self.vms.remove(&port);
        if process.is_some() || before.is_some() {
            // Until somebody else connects, who is process 0 here, the thread may run anywhere.
            let put = before.and_then(|vm| vm.put);
            self.vms.insert(port, Vm { process: process.unwrap_or(0), put, ..Vm::default() });
        }
        self.pause = OFTEN;
        let soon = Instant::now() + OFTEN;
        self.next = self.next.map(|next| next.min(soon));
    }

    /// The port is gone.
    pub fn forget(&mut self, port: u32) {
        self.vms.remove(&port);
    }

    /// The port's thread has just been started, or was put into another control group: it runs where it is to.
    fn place(&mut self, port: u32, thread: Thread, cpus: &CpuList) {
        if self.is_on()
            && let Some(vm) = self.vms.get_mut(&port)
        {
            (vm.put, vm.has_thread) = (None, true);
            vm.keep(port, thread, (&self.domains, cpus), &mut self.complained);
        }
    }

    fn is_on(&self) -> bool {
        !self.domains.is_empty()
    }

    /// When [`Followed::step`] has something to do.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let any = self.vms.values().any(|vm| self.is_on() || vm.put.is_some());
        any.then(|| self.next.unwrap_or(now))
    }

    /// Looks at some of the VMs. Where all are, if that was to be said.
    fn step(&mut self, threads: Threads<'_>, now: Instant) -> Option<Vec<PortPlace>> {
        let start = own_time();
        let took = || own_time().saturating_sub(start);
        if self.round.is_empty() {
            // The last ones are taken first.
            self.round = self.vms.keys().rev().copied().collect();
            (self.begun, self.worked) = (now, false);
        }
        while let Some(port) = self.round.pop() {
            self.worked |= self.look(port, threads, now);
            if took() >= TURN {
                break;
            }
        }
        let done = self.round.is_empty();
        let places = done.then(|| self.places(threads.cpus)).filter(|places| self.told.as_ref() != Some(places));
        if places.is_some() {
            self.told.clone_from(&places);
        }
        // What it takes is bounded, however many VMs and threads there are.
        let rest = Instant::now() + (took() * REST).min(MOST_REST);
        self.next = Some(rest);
        if done {
            self.pause = if self.worked { OFTEN } else { (self.pause * 2).min(SELDOM) };
            self.next = Some(rest.max(self.begun + self.pause));
        }
        places
    }

    /// Looks where the VM of a port has run, unless nothing was done for it. Whether something was.
    fn look(&mut self, port: u32, threads: Threads<'_>, now: Instant) -> bool {
        let (on, thread) = (self.is_on(), threads.of(port));
        let Some(vm) = self.vms.get_mut(&port) else { return false };
        vm.has_thread = thread.is_some();
        let worked = on && vm.process != 0 && vm.has_worked(thread, threads.is_polled(port), now);
        if worked && vm.look(&self.domains) {
            let domain = vm.at().and_then(|at| self.domains.get(at));
            let place = domain.map_or_else(|| "all over the host".into(), |domain| format!("on CPUs {}", domain.cpus));
            info!("the VM of port {port} runs {place}");
        }
        if let Some((thread, _)) = thread {
            vm.keep(port, thread, (&self.domains, threads.cpus), &mut self.complained);
        }
        if !on {
            vm.put = None;
        }
        if vm.process == 0 {
            self.vms.remove(&port);
        }
        worked
    }

    /// Where all are. `cpus`: those of ports' threads.
    fn places(&self, cpus: &CpuList) -> Vec<PortPlace> {
        let all = self.vms.iter().filter(|(_, vm)| self.is_on() && vm.process != 0);
        let place = |(port, vm): (&u32, &Vm)| {
            let domain = vm.at().and_then(|at| self.domains.get(at));
            let near = vm.at().and_then(|at| there(&self.domains, at, cpus));
            let state = match (vm.refused, vm.law.place()) {
                (_, None) => Nearness::Unknown,
                (Some(why), _) => Nearness::Refused(why.to_string()),
                (_, Some(Place::Spread)) => Nearness::Spread,
                _ if near.is_none() => Nearness::NoCpu,
                _ if vm.law.is_free() => Nearness::Crowded,
                _ => Nearness::Near,
            };
            PortPlace {
                port: PortId(*port),
                node: domain.and_then(|domain| domain.node),
                vm_cpus: domain.map(|domain| domain.cpus.to_string()).unwrap_or_default(),
                thread_cpus: vm.put.as_ref().filter(|_| vm.has_thread).map(|put| put.bound.to_string()),
                state,
            }
        };
        all.map(place).collect()
    }

    /// What another program of this process goes on with.
    pub fn hand_over(&self) -> FollowedState {
        let at = |vm: &Vm| Some(self.domains.get(vm.at()?)?.cpus.to_string());
        let vms = self.vms.iter().filter(|(_, vm)| vm.process != 0);
        vms.map(|(port, vm)| (*port, vm.process, at(vm))).collect()
    }

    /// Goes on with it.
    pub fn resume(&mut self, state: FollowedState) {
        for (port, process, at) in state {
            let at = at.and_then(|cpus| self.domains.iter().position(|domain| domain.cpus.to_string() == cpus));
            let law = at.map(|at| Law::knowing(Place::At(at))).unwrap_or_default();
            self.vms.insert(port, Vm { process, law, ..Vm::default() });
        }
    }
}

impl Vm {
    /// The domain where it is, if it is in one.
    fn at(&self) -> Option<usize> {
        match self.law.place() {
            Some(Place::At(at)) => Some(at),
            _ => None,
        }
    }

    /// Whether its port's thread has worked since it was last looked at. One without a thread has nothing to do, or is polled.
    fn has_worked(&mut self, thread: Option<(Thread, (u64, u64))>, polled: bool, now: Instant) -> bool {
        let Some((thread, times)) = thread else { return polled };
        let before = self.thread.replace((thread, times, now)).filter(|(before, ..)| *before == thread);
        let Some((_, before, at)) = before else { return true };
        let [ran, waited] = [times.0.saturating_sub(before.0), times.1.saturating_sub(before.1)];
        self.law.waited(ran, waited, now.saturating_duration_since(at), now);
        times != before
    }

    /// Looks where its threads have run. True if that is somewhere else than it was.
    fn look(&mut self, domains: &[Domain]) -> bool {
        let threads = threads(Path::new(&format!("/proc/{}/task", self.process)));
        let mut on: BTreeMap<usize, u64> = BTreeMap::new();
        for (thread, (ticks, cpu)) in &threads {
            let since = ticks.saturating_sub(self.used.get(thread).copied().unwrap_or(0));
            *on.entry(*cpu).or_default() += since;
        }
        if on.values().sum::<u64>() < FEW_TICKS {
            return false;
        }
        self.used = threads.into_iter().map(|(thread, (ticks, _))| (thread, ticks)).collect();
        self.law.looked(domains, &on)
    }

    /// Puts the port's thread where it is to run, if it is not there.
    fn keep(&mut self, port: u32, thread: Thread, (domains, ports): (&[Domain], &CpuList), complained: &mut bool) {
        let cpus = self.law.cpus(domains, ports);
        let is_there = self.put.as_ref().is_some_and(|put| {
            put.thread == thread && put.cpus == cpus && bound(thread).is_none_or(|bound| put.bound == bound)
        });
        // Its number is the switch's word, so it is looked up among its threads.
        if is_there || cpus.is_empty() || !thread.proc().exists() {
            return;
        }
        // It may have ended meanwhile.
        self.refused = bind(thread, &cpus).err().filter(|why| *why != Errno::SRCH);
        if let Some(why) = self.refused
            && !std::mem::replace(complained, true)
        {
            warn!(
                "--near: the thread of port {port} cannot be bound to CPUs {cpus}: {why}; it takes the rights of root, CAP_SYS_NICE, or the same user, and a \
                 control group (cpuset) that has one of these CPUs; threads that cannot stay where they are"
            );
        }
        let bound = bound(thread).unwrap_or_else(|| cpus.clone());
        self.put = Some(Put { thread, cpus, bound });
    }
}

/// Processor time of this thread: what others use meanwhile does not count.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn bind(thread: Thread, cpus: &CpuList) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    sched_setaffinity(Some(Pid::from_raw(thread.number).ok_or(Errno::SRCH)?), &set)
}

/// Where the kernel lets it run; `None`: it has ended.
fn bound(thread: Thread) -> Option<CpuList> {
    let set = sched_getaffinity(Some(Pid::from_raw(thread.number)?)).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// What there is to be near to, finest first.
fn domains(near: Near, nodes: &[(u32, CpuList)], system: &Path) -> Vec<Domain> {
    let node_of = |cpus: &CpuList| {
        let mut within = nodes.iter().filter(|(_, of)| cpus.without(of).is_empty());
        within.next().map(|(node, _)| *node)
    };
    let caches = if near == Near::Cache { topology::caches(system) } else { Vec::new() };
    // One that a CPU has for itself, or of which nothing is known, is shared with nobody.
    let caches = caches.into_iter().filter(|(_, cpus)| cpus.len() > 1);
    let caches = caches.map(|(_, cpus)| Domain { node: node_of(&cpus), cpus });
    let known = nodes.iter().filter(|_| near != Near::Off);
    let mut domains: Vec<_> =
        caches.chain(known.map(|(node, cpus)| Domain { node: Some(*node), cpus: cpus.clone() })).collect();
    let online = topology::online(&system.join("cpu"));
    domains.retain(|domain| domain.cpus != online);
    domains.sort_by_key(|domain| domain.cpus.len());
    domains
}

/// The threads of a process, by their numbers: ticks of processor time that each has used, and the CPU where it ran last.
fn threads(task: &Path) -> BTreeMap<i32, (u64, usize)> {
    let all = fs::read_dir(task).into_iter().flatten().flatten().take(MOST_THREADS);
    all.filter_map(|thread| {
        let number = thread.file_name().to_str()?.parse().ok()?;
        Some((number, ran(&fs::read_to_string(thread.path().join("stat")).ok()?)?))
    })
    .collect()
}

/// Of /proc/PID/task/TID/stat (proc_pid_stat(5)): fields 14 and 15 (ticks), and 39 (CPU). The name before them may have any letter.
fn ran(stat: &str) -> Option<(u64, usize)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some((field(14)?.saturating_add(field(15)?), usize::try_from(field(39)?).ok()?))
}

impl Supervisor {
    /// Threads of ports are where they are to be.
    pub(super) fn step_threads(&mut self, now: Instant) {
        self.cgroup_accounting.iter_mut().for_each(|cgroup_accounting| cgroup_accounting.step(now));
        if self.followed.deadline(now).is_some_and(|due| due <= now) {
            let cpus = self.cpus_of_ports();
            let polled = self.ports.keys().copied().filter(|port| self.is_polled(PortId(*port))).collect();
            let (of_ports, switch) = (&self.port_threads, self.switch.pid());
            let threads = Threads { of_ports, switch, cpus: &cpus, polled: &polled };
            if let Some(places) = self.followed.step(threads, now) {
                self.control.send(SupervisorToControl::Places(places), None);
            }
        }
    }

    /// When that has something to do.
    pub(super) fn threads_deadline(&self) -> Option<Instant> {
        let cgroup_accounting =
            self.cgroup_accounting.as_ref().and_then(super::cgroup_accounting::CgroupAccounting::deadline);
        cgroup_accounting.into_iter().chain(self.followed.deadline(Instant::now())).min()
    }

    /// A new control knows nothing.
    pub(super) fn tell_places(&mut self) {
        self.control.send(SupervisorToControl::Places(self.followed.told.clone().unwrap_or_default()), None);
    }

    /// From now on threads are kept so near to their VMs.
    pub(super) fn keep_near(&mut self, near: Near) {
        self.followed.set_near(near);
        self.followed.told = Some(Vec::new());
        self.tell_places();
    }

    /// The port's thread has just been started, or has been put into another control group.
    pub(super) fn place_thread(&mut self, port: PortId) {
        if let Some(thread) = self.port_threads.of(port.0, self.switch.pid()) {
            let cpus = self.cpus_of_ports();
            self.followed.place(port.0, thread, &cpus);
        }
    }

    /// Those that are online.
    fn cpus_of_ports(&self) -> CpuList {
        let allowed = allowed_cpus().unwrap_or_default();
        let cpus = self.engines.now.of_threads().unwrap_or_else(|| allowed.clone());
        let online: CpuList = cpus.iter().filter(|cpu| allowed.contains(*cpu)).collect();
        if online.is_empty() { cpus } else { online }
    }
}

#[cfg(test)]
mod tests;
