//! Ports' threads near their VMs (`--near`): where a VM's threads run is looked at now and then, and its port's thread may run on those CPUs of the engine
//! `ports` that are on the same NUMA node, or share a cache. What is made of that is in [`law`]; why it is done so in `docs/engines.md`.

mod law;
mod told;

use super::cgroup_accounting::{Hierarchy, mounted, throttled};
use super::port_threads::{PortThreads, Thread};
use lasthop_hostview::topology;
use lasthop_management_ipc::{Nearness, PortPlace};
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
use told::Told;

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
/// It is looked this often whether CPUs have come or gone: one file is read.
const HOST_EVERY: Duration = Duration::from_secs(60);
/// So long after a switch has ended a VM is known that has not come back to the next one.
const COMES_BACK: Duration = Duration::from_secs(60);
/// A thread that may not be bound is tried again after so long.
const AGAIN: Duration = Duration::from_secs(60);

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
    /// CPUs that were online when it was looked at last, and when that is done again.
    online: CpuList,
    host_at: Instant,
    /// Finest first, without those that have all CPUs; none: there is nothing to be near to.
    domains: Vec<Domain>,
    /// Whether there has ever been something: it may come back.
    was_on: bool,
    /// Control groups, where threads may be stopped by a quota.
    hierarchies: Vec<Hierarchy>,
    /// By port number.
    vms: BTreeMap<u32, Vm>,
    /// Ports that are still to be looked at in this round.
    round: Vec<u32>,
    begun: Instant,
    next: Option<Instant>,
    pause: Duration,
    /// Whether a thread has worked since the round before.
    worked: bool,
    told: Told,
    complained: bool,
    /// For the log, which has names of ports that are not known here.
    said: Vec<(u32, Said)>,
}

/// What is said of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Runs(String),
    Refused(CpuList, Errno),
}

/// What another program of this process goes on with: port, process (0: not seen), and CPUs of where it is, if it is somewhere.
pub type FollowedState = Vec<(u32, u32, Option<String>)>;

/// The process at the other end of a port.
#[derive(Debug, Default)]
struct Vm {
    /// 0: it is not seen, as from another PID namespace.
    process: u32,
    /// Its connection has ended: until somebody else connects the thread may run anywhere.
    gone: bool,
    /// The switch has ended, and it has not come back to the next one yet; by then it is gone.
    until: Option<Instant>,
    /// Ticks that its threads had used when it was last judged.
    used: BTreeMap<i32, u64>,
    law: Law,
    /// What the port's thread had used, and waited for, when it was last looked at, and when that was.
    thread: Option<(Thread, (u64, u64), Instant)>,
    has_thread: bool,
    /// The thread's control groups, and how often their quota had stopped somebody, when that was last looked at.
    throttled: Option<(String, u64)>,
    put: Option<Put>,
    /// Why the thread could not be bound, and when it is tried again.
    refused: Option<(Errno, Instant)>,
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
            online: CpuList::default(),
            host_at: Instant::now() + HOST_EVERY,
            domains: Vec::new(),
            was_on: false,
            hierarchies: mounted(),
            vms: BTreeMap::new(),
            round: Vec::new(),
            begun: Instant::now(),
            next: None,
            pause: OFTEN,
            worked: false,
            told: Told::default(),
            complained: false,
            said: Vec::new(),
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
        self.online = topology::online(&self.system.join("cpu"));
        self.nodes = topology::nodes(&self.system);
        let domains = domains(self.near, &self.nodes, &self.system);
        self.was_on |= !domains.is_empty();
        if domains == self.domains {
            return;
        }
        self.domains = domains;
        for vm in self.vms.values_mut() {
            *vm = Vm { process: vm.process, gone: vm.gone, until: vm.until, put: vm.put.take(), ..Vm::default() };
        }
    }

    /// NUMA nodes of these CPUs, as people write lists; `None` where the host has one.
    pub fn nodes(&self, cpus: &CpuList) -> Option<String> {
        let on = self.nodes.iter().filter(|(_, of)| cpus.iter().any(|cpu| of.contains(cpu)));
        let on: CpuList = on.map(|(node, _)| *node as usize).collect();
        (self.nodes.len() > 1).then(|| on.to_string())
    }

    /// Nodes and caches among which there is something to choose.
    pub fn places_to_be(&self) -> usize {
        self.domains.len()
    }

    /// This process is at the other end of the port's connection; 0: it is not seen.
    pub fn set_vm(&mut self, port: u32, process: u32) {
        let before = self.vms.entry(port).or_default();
        if process != 0 && before.process == process && !before.gone {
            // The same one has come back, to another switch: it runs where it did.
            before.until = None;
            return;
        }
        *before = Vm { process, put: before.put.take(), ..Vm::default() };
        self.look_soon();
    }

    /// The port's connection has ended.
    pub fn end(&mut self, port: u32) {
        if let Some(vm) = self.vms.get_mut(&port) {
            *vm = Vm { gone: true, put: vm.put.take(), ..Vm::default() };
            self.look_soon();
        }
    }

    /// The switch has ended, and with it all connections: VMs are to come back to the next one.
    pub fn switch_ended(&mut self, now: Instant) {
        self.vms.values_mut().for_each(|vm| vm.until = vm.until.or(Some(now + COMES_BACK)));
    }

    fn look_soon(&mut self) {
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
            let refused = vm.keep(thread, (&self.domains, cpus), Instant::now());
            self.complain(port, refused);
        }
    }

    fn is_on(&self) -> bool {
        !self.domains.is_empty()
    }

    /// When [`Followed::step`] has something to do.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let any = self.vms.values().any(|vm| self.is_on() || vm.put.is_some());
        // CPUs that have gone may come back.
        let host = (self.was_on && self.near != Near::Off && !self.vms.is_empty()).then_some(self.host_at);
        if any || self.told.is_late() { Some(self.next.unwrap_or(now)) } else { host }
    }

    /// Looks at some of the VMs. Whether all have been looked at.
    fn step(&mut self, threads: Threads<'_>, now: Instant) -> bool {
        let start = own_time();
        let took = || own_time().saturating_sub(start);
        if self.round.is_empty() {
            self.look_at_host(now);
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
        // What it takes is bounded, however many VMs and threads there are.
        let rest = Instant::now() + (took() * REST).min(MOST_REST);
        self.next = Some(rest);
        if done {
            self.pause = if self.worked { OFTEN } else { (self.pause * 2).min(SELDOM) };
            self.next = Some(rest.max(self.begun + self.pause));
        }
        done
    }

    /// CPUs may have come or gone.
    fn look_at_host(&mut self, now: Instant) {
        if self.near != Near::Off && self.host_at <= now {
            self.host_at = now + HOST_EVERY;
            if topology::online(&self.system.join("cpu")) != self.online {
                self.hurry();
            }
        }
    }

    /// Looks where the VM of a port has run, unless nothing was done for it. Whether something was.
    fn look(&mut self, port: u32, threads: Threads<'_>, now: Instant) -> bool {
        let (on, thread) = (self.is_on(), threads.of(port));
        let Some(vm) = self.vms.get_mut(&port) else { return false };
        // That of a silent port has ended, and the next one is put where it was.
        vm.has_thread = thread.is_some() || vm.has_thread && !threads.is_polled(port);
        let over = vm.gone || vm.until.is_some_and(|until| until <= now);
        let is_seen = on && vm.process != 0 && !vm.gone && vm.until.is_none();
        let worked = is_seen && vm.has_worked(thread, threads.is_polled(port), &self.hierarchies, now);
        if worked && vm.look(&self.domains) {
            let domain = vm.at().and_then(|at| self.domains.get(at));
            let place = domain.map_or_else(|| "all over the host".into(), |domain| format!("on CPUs {}", domain.cpus));
            self.said.push((port, Said::Runs(place)));
        }
        if over {
            vm.law = Law::default();
        }
        let refused = thread.and_then(|(thread, _)| vm.keep(thread, (&self.domains, threads.cpus), now));
        if !on {
            vm.put = None;
        }
        if over {
            self.vms.remove(&port);
        }
        self.complain(port, refused);
        worked
    }

    /// Once: `doctor` says of which ports.
    fn complain(&mut self, port: u32, refused: Option<(CpuList, Errno)>) {
        if let Some((cpus, why)) = refused
            && !std::mem::replace(&mut self.complained, true)
        {
            self.said.push((port, Said::Refused(cpus, why)));
        }
    }

    /// Where all are. `cpus`: those of ports' threads.
    fn places(&self, cpus: &CpuList) -> Vec<PortPlace> {
        let all = self.vms.iter().filter(|(_, vm)| self.is_on() && !vm.gone);
        let place = |(port, vm): (&u32, &Vm)| {
            let domain = vm.at().and_then(|at| self.domains.get(at));
            let near = vm.at().and_then(|at| there(&self.domains, at, cpus));
            let state = match (vm.refused, vm.law.place()) {
                (_, None) => Nearness::Unknown,
                (Some((why, _)), _) => Nearness::Refused(why.to_string()),
                (_, Some(Place::Spread)) => Nearness::Spread,
                _ if near.is_none() => Nearness::NoCpu,
                _ if vm.law.is_free() => Nearness::Crowded,
                _ if vm.law.is_throttled() => Nearness::Throttled,
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
        // Who has not come back from a switch that ended is to be heard of first.
        let vms = self.vms.iter().filter(|(_, vm)| !vm.gone && vm.until.is_none());
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
    fn has_worked(
        &mut self,
        thread: Option<(Thread, (u64, u64))>,
        polled: bool,
        hierarchies: &[Hierarchy],
        now: Instant,
    ) -> bool {
        let Some((thread, times)) = thread else { return polled };
        let before = self.thread.replace((thread, times, now)).filter(|(before, ..)| *before == thread);
        let Some((_, before, at)) = before else { return true };
        let [ran, waited] = [times.0.saturating_sub(before.0), times.1.saturating_sub(before.1)];
        // What was counted in the look before this one, and no earlier, says what has happened between both.
        let counted = self.throttled.take();
        let stopped = || {
            let groups = fs::read_to_string(thread.proc().join("cgroup")).unwrap_or_default();
            let times = throttled(hierarchies, &groups);
            let is_more = counted.is_some_and(|(before, had)| before == groups && had < times);
            self.throttled = Some((groups, times));
            is_more
        };
        // Of one that may not be near it says nothing.
        if self.refused.is_none() {
            self.law.waited([ran, waited], now.saturating_duration_since(at), now, stopped);
        }
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

    /// Puts the port's thread where it is to run, if it is not there. Where that was, and why, if it is refused.
    fn keep(
        &mut self,
        thread: Thread,
        (domains, ports): (&[Domain], &CpuList),
        now: Instant,
    ) -> Option<(CpuList, Errno)> {
        let cpus = self.law.cpus(domains, ports);
        let is_there = self.put.as_ref().is_some_and(|put| {
            put.thread == thread && put.cpus == cpus && bound(thread).is_none_or(|bound| put.bound == bound)
        });
        let is_there = is_there && self.refused.is_none_or(|(_, again)| now < again);
        // Its number is the switch's word, so it is looked up among its threads.
        if is_there || cpus.is_empty() || !thread.proc().exists() {
            return None;
        }
        // It may have ended meanwhile.
        let refused = bind(thread, &cpus).err().filter(|why| *why != Errno::SRCH);
        if refused.is_some() {
            // It may be where its VM was.
            let _ = bind(thread, ports);
        }
        self.refused = refused.map(|why| (why, now + AGAIN));
        let bound = bound(thread).unwrap_or_else(|| cpus.clone());
        self.put = Some(Put { thread, cpus: cpus.clone(), bound });
        Some((cpus, refused?))
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
        // Its name may be any bytes.
        Some((number, ran(&String::from_utf8_lossy(&fs::read(thread.path().join("stat")).ok()?))?))
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

#[cfg(test)]
mod tests;
