//! Engines (`lasthop engine`): which CPUs do ports' work, and who does it there: cores that poll, helpers, or ports' own threads. A switch is told when
//! it starts, so whoever wants it otherwise has another switch take over, as [`super::upgrade`] does: nothing is lost.

use super::args::{Cpus, RunArgs};
use super::devices::{self, Device, check_engines};
use super::near::Near;
use super::settings_text::changed;
use super::setup::check_cpus;
use super::store::Store;
use super::supervisor::Supervisor;
use super::threads::of_engines;
use super::{RunError, RunError::Failed, RunError::Usage};
use crate::declared::DeclaredEngines;
use lasthop_ipc::SwitchSettings;
use lasthop_management_ipc::{
    ControlToSupervisor, EngineChange, EngineInfo, EngineKind, SupervisorToControl, Upgraded,
};
use lasthop_policy::{ENGINE, PortEngine, engine_name};
use lasthop_sys::CpuList;
use lasthop_types::PortId;
use serde::{Deserialize, Serialize};
use std::fmt;
use tracing::{info, warn};

/// An engine that has lived for less is not judged.
const LONG_NS: u64 = 1_000_000_000;
/// One that polls and waits for its core for more than one part in so many of its time has it shared with others.
const WAITS_PART: u64 = 20;

/// All engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Engines {
    /// CPUs of all threads of the switch; none given: those that this process may use.
    pub cpus: Option<CpuList>,
    /// CPUs with a helper, but for those that poll; none given: all of `cpus`.
    pub helpers: Option<CpuList>,
    /// CPUs that do nothing but poll: they have all ports that are not set to their own threads.
    pub poll: CpuList,
    /// How near ports' threads are to their VMs.
    pub near: Near,
}

/// The same in a file, as people write it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ports: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    helper: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    poll: String,
    #[serde(default, skip_serializing_if = "Near::is_default")]
    near: Near,
}

impl From<Engines> for Written {
    fn from(Engines { cpus, helpers, poll, near }: Engines) -> Self {
        let text = |list: CpuList| list.to_string();
        Self { ports: cpus.map(text), helper: helpers.map(text), poll: poll.to_string(), near }
    }
}

impl TryFrom<Written> for Engines {
    type Error = String;

    fn try_from(Written { ports, helper, poll, near }: Written) -> Result<Self, String> {
        let list = |text: String| match text.as_str() {
            "" => Ok(CpuList::default()),
            text => text.parse::<CpuList>().map_err(|e| e.to_string()),
        };
        Ok(Self { cpus: ports.map(list).transpose()?, helpers: helper.map(list).transpose()?, poll: list(poll)?, near })
    }
}

impl fmt::Display for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [poll, helper, ports] = self.shown();
        write!(f, "poll {poll}, helper {helper}, ports {ports}, near {}", self.near)
    }
}

/// Engines of this run; and what is remembered of them, as long as somebody has changed them and `lasthop run` is told the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnginesOfRun {
    /// As the command line says, and the file of `--config`.
    pub given: Engines,
    /// As they are.
    pub now: Engines,
}

/// All of these CPUs are in the list.
fn without(what: EngineKind, list: &CpuList, cpus: &CpuList) -> Result<(), String> {
    let missing = cpus.without(list);
    if missing.is_empty() {
        return Ok(());
    }
    let name = what.name();
    Err(format!("there is no {name} engine on CPU {missing}; `lasthop engine list` shows those there are"))
}

/// None of these CPUs is in the list.
fn with(what: EngineKind, list: &CpuList, cpus: &CpuList) -> Result<(), String> {
    let there: CpuList = cpus.iter().filter(|cpu| list.contains(*cpu)).collect();
    if there.is_empty() {
        return Ok(());
    }
    Err(format!("there is a {} engine on CPU {there} already", what.name()))
}

impl Engines {
    /// Those of the command line. CPUs that are not allowed any more are left out.
    pub fn of_command_line(args: &RunArgs, allowed: &CpuList) -> Self {
        let left = |cpus: CpuList| cpus.iter().filter(|cpu| allowed.contains(*cpu)).collect::<CpuList>();
        let cpus = args.cpus.as_deref().and_then(|text| text.parse().ok()).map(left).filter(|cpus| !cpus.is_empty());
        let none = || Cpus(None);
        let helpers = args.scheduling.helpers.clone().map(|Cpus(list)| left(list.unwrap_or_default()));
        let poll = args.scheduling.poll.clone().unwrap_or_else(none).0.map(left).unwrap_or_default();
        Self { cpus, helpers, poll, near: args.scheduling.near.unwrap_or_default() }
    }

    /// Those of the command line, checked, with what the file says.
    pub fn given(args: &RunArgs, file: &DeclaredEngines, allowed: &CpuList) -> Result<Self, RunError> {
        let cpus = args.cpus.as_deref().map(|text| check_cpus("--cpus", text, allowed)).transpose()?;
        let may = cpus.as_ref().unwrap_or(allowed);
        for (option, list) in [("--helpers", &args.scheduling.helpers), ("--poll", &args.scheduling.poll)] {
            if let Some(list) = list.as_ref().and_then(|cpus| cpus.0.as_ref()) {
                check_cpus(option, &list.to_string(), may)?;
            }
        }
        let of_command_line = Self::of_command_line(args, allowed);
        let near = file.near().unwrap_or(of_command_line.near);
        let engines = Self { near, ..of_command_line };
        engines.set(&file.lists(), allowed).map_err(|e| Failed(format!("[engines] of --config: {e}")))
    }

    /// As people write them, in the order of [`EngineKind::ALL`].
    fn shown(&self) -> [String; 3] {
        [Some(&self.poll), self.helpers.as_ref(), self.cpus.as_ref()].map(|list| match list {
            None => "all".to_owned(),
            Some(list) if list.is_empty() => "none".to_owned(),
            Some(list) => list.to_string(),
        })
    }

    /// Of ports' threads.
    pub fn cpus<'a>(&'a self, allowed: &'a CpuList) -> &'a CpuList {
        self.cpus.as_ref().unwrap_or(allowed)
    }

    /// CPUs that have a helper as long as they do not poll.
    fn helpers<'a>(&'a self, allowed: &'a CpuList) -> &'a CpuList {
        self.helpers.as_ref().unwrap_or_else(|| self.cpus(allowed))
    }

    /// Where threads of the switch run that have no CPU of their own, such as ports': not where one polls, unless there is no other. `None`: wherever this
    /// process may.
    pub fn of_threads(&self) -> Option<CpuList> {
        self.of_threads_among(&allowed_cpus().unwrap_or_default())
    }

    fn of_threads_among(&self, allowed: &CpuList) -> Option<CpuList> {
        let left = self.left(allowed);
        if self.poll.is_empty() || left.is_empty() { self.cpus.clone() } else { Some(left) }
    }

    /// CPUs that do not poll.
    fn left(&self, allowed: &CpuList) -> CpuList {
        self.cpus(allowed).without(&self.poll)
    }

    /// What is wrong where ports' threads run, if any port has one.
    fn trouble_of_ports(&self, allowed: &CpuList) -> Option<String> {
        let cpus = self.cpus(allowed);
        (!self.poll.is_empty() && self.left(allowed).is_empty())
            .then(|| format!("all its CPUs poll ({cpus}): ports' threads and cores that poll are in each other's way"))
    }

    /// Has the switch told so.
    pub fn tell(&self, settings: &mut SwitchSettings, allowed: &CpuList) {
        settings.poll = self.poll.iter().collect();
        settings.helpers = self.list(EngineKind::Helper, allowed).iter().collect();
    }

    /// As they are to be, checked. The error says what is wrong and what to do.
    pub fn changed(&self, change: &EngineChange, allowed: &CpuList) -> Result<Self, String> {
        match change {
            EngineChange::Add(kind, text) => {
                let cpus = read(text, self.range(*kind, allowed))?;
                let polls: CpuList = cpus.iter().filter(|cpu| self.poll.contains(*cpu)).collect();
                if *kind == EngineKind::Helper && !polls.is_empty() {
                    return Err(format!(
                        "CPU {polls} polls and has no cycles left for a helper; choose another, or `lasthop engine del poll {polls}` first"
                    ));
                }
                with(*kind, &self.list(*kind, allowed), &cpus)?;
                let all = self.set_to(*kind, allowed).iter().chain(cpus.iter()).collect();
                self.with_list(*kind, all, allowed)
            }
            EngineChange::Del(kind, text) => {
                let cpus: CpuList = text.parse().map_err(|e| format!("{text}: {e}"))?;
                without(*kind, &self.list(*kind, allowed), &cpus)?;
                self.with_list(*kind, self.set_to(*kind, allowed).without(&cpus), allowed)
            }
            EngineChange::Set(lists) => self.set(lists, allowed),
            EngineChange::Near(text) => Ok(Self { near: text.parse()?, ..self.clone() }),
            EngineChange::Move(..) => Ok(self.clone()),
        }
    }

    /// Refuses a port's engine that is not there.
    pub fn check_engine(&self, engine: Option<PortEngine>) -> Result<(), String> {
        let polls = engine.and_then(PortEngine::polls_on);
        let Some(cpu) = polls.filter(|cpu| !self.poll.contains(usize::from(*cpu))) else { return Ok(()) };
        let name = engine_name(EngineKind::Poll.name(), cpu);
        Err(match self.poll.is_empty() {
            true => format!("there is no engine {name}: no core polls; `lasthop engine add poll {cpu}` first"),
            false => format!(
                "there is no engine {name}; CPUs that poll are {}, and `lasthop engine add poll {cpu}` adds it",
                self.poll
            ),
        })
    }

    /// What those of one kind are set to.
    fn set_to<'a>(&'a self, kind: EngineKind, allowed: &'a CpuList) -> &'a CpuList {
        match kind {
            EngineKind::Poll => &self.poll,
            EngineKind::Ports => self.cpus(allowed),
            EngineKind::Helper => self.helpers(allowed),
        }
    }

    /// Those of one kind that there are: where a CPU polls is no helper.
    fn list(&self, kind: EngineKind, allowed: &CpuList) -> CpuList {
        let set = self.set_to(kind, allowed);
        if kind == EngineKind::Helper { set.without(&self.poll) } else { set.clone() }
    }

    /// Where engines of a kind may be: where the switch may run.
    fn range<'a>(&'a self, kind: EngineKind, allowed: &'a CpuList) -> &'a CpuList {
        if kind == EngineKind::Ports { allowed } else { self.cpus(allowed) }
    }

    fn with_list(&self, kind: EngineKind, list: CpuList, allowed: &CpuList) -> Result<Self, String> {
        let mut new = self.clone();
        match kind {
            EngineKind::Poll => new.poll = list,
            EngineKind::Helper => new.helpers = Some(list),
            EngineKind::Ports => new.cpus = Some(list),
        }
        new.check(allowed).map(|()| new)
    }

    /// Some CPU is left, and all engines are where the switch may run.
    fn check(&self, allowed: &CpuList) -> Result<(), String> {
        let cpus = self.cpus(allowed);
        if cpus.is_empty() {
            return Err("no CPU would be left for ports' threads; leave one".into());
        }
        let helpers = self.helpers.clone().unwrap_or_default();
        for (kind, list) in [(EngineKind::Poll, &self.poll), (EngineKind::Helper, &helpers)] {
            let outside = list.without(cpus);
            if !outside.is_empty() {
                let name = kind.name();
                return Err(format!(
                    "the {name} engine on CPU {outside} would be where the switch may not run (ports {cpus}); remove it first: `lasthop engine del \
                     {name} {outside}`"
                ));
            }
        }
        Ok(())
    }

    /// Those kinds that are given are on these CPUs alone.
    fn set(&self, lists: &[Option<String>; 3], allowed: &CpuList) -> Result<Self, String> {
        let mut new = self.clone();
        let [poll, helper, ports] = lists;
        let list = |text: &str, range: &CpuList| match text {
            "all" => Ok(None),
            "none" => Ok(Some(CpuList::default())),
            text => read(text, range).map(Some),
        };
        if let Some(text) = ports {
            new.cpus = list(text, allowed).map_err(|e| format!("ports {e}"))?;
        }
        let range = new.cpus(allowed).clone();
        if let Some(text) = helper {
            new.helpers = list(text, &range).map_err(|e| format!("helper {e}"))?;
        }
        if let Some(text) = poll {
            let all = || "poll all: name the CPUs that are to do nothing else".to_owned();
            new.poll = list(text, &range).map_err(|e| format!("poll {e}"))?.ok_or_else(all)?;
        }
        new.check(allowed).map(|()| new)
    }

    /// These, if all of their CPUs can still be used, and none polls on one of `taken`.
    fn if_all_usable(self, allowed: &CpuList, taken: &CpuList) -> Option<Self> {
        let gone = |list: &CpuList| !list.without(allowed).is_empty();
        let lost = gone(&self.poll) || self.helpers.as_ref().is_some_and(gone) || self.cpus.as_ref().is_some_and(gone);
        let lost = lost || self.poll.iter().any(|cpu| taken.contains(cpu));
        (!lost && self.check(allowed).is_ok()).then_some(self)
    }
}

/// A list of CPUs that can be used here.
fn read(text: &str, range: &CpuList) -> Result<CpuList, String> {
    let cpus: CpuList = text.parse().map_err(|e| format!("{text}: {e}"))?;
    let missing = cpus.without(range);
    if missing.is_empty() {
        return Ok(cpus);
    }
    Err(format!(
        "CPU {missing} cannot be used here: not there, not online, or not among those that lasthop has; choose from {range}"
    ))
}

impl EnginesOfRun {
    /// As [`EnginesOfRun::new`], with what is remembered, beside what devices were given. `given`: what is asked for, and whether the file of `--config`
    /// says anything of it.
    pub fn found(
        args: &RunArgs,
        (given, of_file): (Engines, bool),
        store: &Store,
        devices: &[Device],
        allowed: &CpuList,
    ) -> Result<(Self, bool), RunError> {
        let option = if args.scheduling.poll.is_some() { "--poll" } else { "[engines] poll of --config" };
        check_engines(devices, &given.poll).map_err(|e| Usage(format!("{option}: {e}")))?;
        let is_device = args.device_rules.is_some();
        let remembered = store.load_engines().map_err(Failed)?.map(|kept| kept.beside(&given, is_device));
        Ok(Self::new(given, of_file, remembered, allowed, &devices::engines(devices)))
    }

    /// The same, as it is remembered now: a device that polls is told to have no helpers. Programs before told it what the host is told of them, or nothing,
    /// and whoever set its engines at run time said nothing else of helpers by that.
    fn beside(mut self, given: &Engines, is_device: bool) -> Self {
        let has_none = given.helpers.as_ref().is_some_and(CpuList::is_empty);
        if is_device && has_none && !given.poll.is_empty() {
            // Whoever took all polling from it at run time has it work by helpers.
            if self.now.helpers == self.given.helpers && !self.now.poll.is_empty() {
                self.now.helpers.clone_from(&given.helpers);
            }
            self.given.helpers.clone_from(&given.helpers);
        }
        self
    }

    /// What was set at run time holds again, unless the command line says otherwise than it did then, the file says anything, or a CPU cannot be used any
    /// more. On those of `taken` devices poll. Also whether something was `remembered` that does not hold: it is to be forgotten for good, or a later start
    /// with the command line of that time would have it again.
    pub fn new(
        given: Engines,
        of_file: bool,
        remembered: Option<Self>,
        allowed: &CpuList,
        taken: &CpuList,
    ) -> (Self, bool) {
        let Some(kept) = remembered else { return (Self { now: given.clone(), given }, false) };
        let says = if of_file { "the file of --config" } else { "the command line" };
        if of_file || kept.given != given {
            if kept.now != given {
                info!("engines: {given}, as {says} says now; forgotten is what was set at run time: {}", kept.now);
            }
            return (Self { now: given.clone(), given }, true);
        }
        let Some(now) = kept.now.clone().if_all_usable(allowed, taken) else {
            warn!(
                "engines: {given}, as {says} says; what was set at run time is forgotten, as not all of its CPUs can be used any more: they are not there, \
                 or a device was given them: {}",
                kept.now
            );
            return (Self { now: given.clone(), given }, true);
        };
        info!("engines: {now}, as they were set at run time (`lasthop engine`); {says} says {given}");
        (Self { given, now }, false)
    }
}

/// A port that was set to another engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    port: PortId,
    /// What it was set to before.
    before: Option<PortEngine>,
}

/// What is wrong with an engine, if anything is.
fn trouble(kind: EngineKind, cpu: usize, allowed: &CpuList, times: Option<(u64, u64)>) -> Option<String> {
    if !allowed.contains(cpu) {
        return Some(format!(
            "CPU {cpu} is offline, or lasthop may not use it any more; its thread runs elsewhere, if at all"
        ));
    }
    let Some((on_cpu, waited)) = times else {
        return Some("it has no thread and does nothing; the log says why".into());
    };
    let all = on_cpu.saturating_add(waited);
    // A helper runs where nobody else wants to, so it waits by right.
    (kind == EngineKind::Poll && all > LONG_NS && waited > all / WAITS_PART).then(|| {
        let percent = waited as f64 * 100.0 / all as f64;
        format!(
            "others run on CPU {cpu}: it has waited for its core for {percent:.0} % of its time since it was started"
        )
    })
}

pub(super) fn allowed_cpus() -> Result<CpuList, String> {
    CpuList::allowed().map_err(|e| format!("cannot read the CPUs of this process: {e}"))
}

impl Supervisor {
    /// What control says of engines.
    pub(super) fn hear_of_engines(&mut self, message: ControlToSupervisor) {
        match message {
            ControlToSupervisor::EngineChange { request, change, attempt } => {
                self.change_engines(request, change, attempt);
            }
            ControlToSupervisor::EngineList { request } => self.tell_engines(request),
            _ => {}
        }
    }

    /// Somebody wants engines to be otherwise, or hears what came of that.
    fn change_engines(&mut self, request: u64, change: EngineChange, attempt: String) {
        if self.ending.is_some() {
            return self.deferred.push(ControlToSupervisor::EngineChange { request, change, attempt });
        }
        if !self.admit(request, &attempt) {
            return;
        }
        match self.begin_with_engines(&change) {
            Ok(true) => {}
            Ok(false) => self.answer_upgrade(Ok(Upgraded::default())),
            Err(why) => self.answer_upgrade(Err(format!("{why}; nothing has changed"))),
        }
    }

    /// False if they are like that already.
    fn begin_with_engines(&mut self, change: &EngineChange) -> Result<bool, String> {
        if let EngineChange::Move(port, engine) = change {
            return self.begin_to_move(port, engine);
        }
        let allowed = allowed_cpus()?;
        let new = self.engines.now.changed(change, &allowed)?;
        if new == self.engines.now {
            return Ok(false);
        }
        if (Engines { near: new.near, ..self.engines.now.clone() }) == new {
            // It is none of the switch's business.
            self.remember_engines(&new)?;
            self.take_on(new);
            return Ok(false);
        }
        // A file says all of it: ports' settings follow.
        if matches!(change, EngineChange::Del(..)) {
            self.check_nobody_is_set_there(&new)?;
        }
        check_engines(&self.devices, &new.poll)?;
        if !self.switch.is_ready() {
            return Err("the switch is being restarted; try again in a second".into());
        }
        self.remember_engines(&new)?;
        let path = self.switch.path().to_owned();
        self.start_other(path, Some(new)).inspect_err(|_| self.remember_engines_again()).map(|()| true)
    }

    /// Refuses engines without one that a port is set to.
    fn check_nobody_is_set_there(&self, new: &Engines) -> Result<(), String> {
        let set = |name: &String| self.settings.get(name)?.engine?.polls_on().map(usize::from);
        for config in self.each_config() {
            let name = &config.name;
            if let Some(cpu) = set(name).filter(|cpu| self.engines.now.poll.contains(*cpu) && !new.poll.contains(*cpu))
            {
                let engine = engine_name(EngineKind::Poll.name(), cpu);
                return Err(format!(
                    "engine {engine} serves port {name}, which is set to it; move that first, to another or to any: `lasthop engine move {name} none`"
                ));
            }
        }
        Ok(())
    }

    /// False if the port is set to it already, or nothing moves by it.
    fn begin_to_move(&mut self, name: &str, engine: &str) -> Result<bool, String> {
        let port = self.uplink_port(name).map_or_else(|| self.guest_port(name), Ok)?.id;
        let old = self.settings.get(name).cloned();
        let new = changed(old.as_ref(), &vec![(ENGINE.to_owned(), engine.to_owned())])?;
        let before = old.as_ref().and_then(|settings| settings.engine);
        self.engines.now.check_engine(new.engine)?;
        if new.engine == before {
            return Ok(false);
        }
        if !self.switch.is_ready() {
            return Err("the switch is being restarted; try again in a second".into());
        }
        self.remember_settings(name, new);
        if let Err(e) = self.save(None, None) {
            self.remember_settings(name, old.unwrap_or_default());
            return Err(e);
        }
        if self.engines.now.poll.is_empty() {
            // All ports have threads of their own, whatever they are set to.
            self.tell_port(port, name);
            return Ok(false);
        }
        let moved = Moved { port, before };
        let path = self.switch.path().to_owned();
        if let Err(e) = self.start_other(path, None) {
            self.put_back(moved);
            return Err(e);
        }
        self.upgrade.iter_mut().for_each(|upgrade| upgrade.moved = Some(moved));
        self.tell_port(port, name);
        Ok(true)
    }

    /// A port stays with the engine that it was set to.
    pub(super) fn put_back(&mut self, Moved { port, before }: Moved) {
        let Some(config) = self.each_config().find(|config| config.id == port) else { return };
        let name = config.name.clone();
        let mut settings = self.settings.get(&name).cloned().unwrap_or_default();
        settings.engine = before;
        self.remember_settings(&name, settings);
        if let Err(e) = self.save(None, None) {
            warn!("port {name}: {e}; the next start may have the engine that was asked for last");
        }
        self.tell_port(port, &name);
    }

    fn remember_engines(&self, now: &Engines) -> Result<(), String> {
        let (given, now) = (self.engines.given.clone(), now.clone());
        self.store.save_engines(&EnginesOfRun { given, now })
    }

    /// The change has failed.
    pub(super) fn remember_engines_again(&self) {
        if let Err(e) = self.remember_engines(&self.engines.now) {
            warn!("engines: {e}; the next start may have those that were asked for last");
        }
    }

    /// The switch that has these is in use.
    pub(super) fn take_on(&mut self, new: Engines) {
        info!("engines: {new} (before: {})", self.engines.now);
        if let Ok(allowed) = allowed_cpus() {
            new.tell(&mut self.for_switch, &allowed);
        }
        if new.near != self.engines.now.near {
            self.keep_near(new.near);
        }
        self.followed.hurry();
        self.engines.now = new;
    }

    fn tell_engines(&mut self, request: u64) {
        let times = self.cpu_times().ports;
        let allowed = allowed_cpus().unwrap_or_default();
        let engines = &self.engines.now;
        let threads = self.switch.pid().map(of_engines).unwrap_or_default();
        let on = |kind: EngineKind, cpu: usize| {
            let thread = threads.iter().find(|(name, _)| *name == engine_name(kind.name(), cpu));
            let times = thread.and_then(|(_, thread)| thread.times());
            let (cpu_ns, trouble) = (times.map(|(on_cpu, _)| on_cpu), trouble(kind, cpu, &allowed, times));
            let nodes = self.followed.nodes(&std::iter::once(cpu).collect());
            EngineInfo { kind, cpus: cpu.to_string(), nodes, cpu_ns, trouble }
        };
        let mut all: Vec<_> = engines.poll.iter().map(|cpu| on(EngineKind::Poll, cpu)).collect();
        all.extend(self.for_switch.helpers.iter().map(|cpu| on(EngineKind::Helper, *cpu)));
        let cpus = engines.of_threads().unwrap_or_else(|| allowed.clone());
        let (cpus, nodes) = (cpus.to_string(), self.followed.nodes(&cpus));
        // Cores that poll may have them all.
        let cpu_ns = (engines.poll.is_empty() || !times.is_empty()).then(|| times.iter().map(|(_, ns)| ns).sum());
        let trouble = engines.trouble_of_ports(&allowed);
        all.push(EngineInfo { kind: EngineKind::Ports, cpus, nodes, cpu_ns, trouble });
        let (set, near) = (engines.shown(), engines.near.name().to_owned());
        let near_to = u32::try_from(self.followed.places_to_be()).unwrap_or(u32::MAX);
        self.control.send(SupervisorToControl::Engines { request, engines: all, set, near, near_to }, None);
    }
}

#[cfg(test)]
mod tests;
