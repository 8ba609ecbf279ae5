//! `lasthop upgrade`: another switch takes over from the one that runs, and no front-end notices more than a pause.
//!
//! The other one is started beside the first, and confined and told of all ports before anything stops. Then all ports' session processes take
//! the same steps at the same time ([`Step`]): memory and notifications, rings that packets come from, rings that packets go to. Until the last of them
//! all can be undone, and is when anything fails: then the first switch goes on, and whoever asked hears why.
//!
//! What is lost is what was on its way through the first switch: packets that waited for control there. Counters begin anew.

use super::child::Ended;
use super::engines::{Engines, Moved, allowed_cpus};
use super::setup::{find_program, is_program};
use super::supervisor::{NEXT_CHANNEL, NEXT_PID, SWITCH_CHANNEL, SWITCH_PID, Supervisor};
use super::uplink::Switch;
use lasthop_ipc::{SupervisorToSwitch, SwitchToSupervisor, ring_pair};
use lasthop_management_ipc::{ControlToSupervisor, NewProcess, NotReplaced, Processes, SupervisorToControl, Upgraded};
use lasthop_session_ipc::Step;
use lasthop_types::{PortId, ThreadNews};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// What the programs of this build say to each other: `build.rs` makes a number of it.
pub const MESSAGES: &str = env!("LASTHOP_MESSAGES");
/// How `lasthop upgrade` knows such a refusal of a build whose API has no error for it.
pub const OTHER_MESSAGES: &str = "the programs that run say other things to each other than the new ones";
/// The other switch is ready by then, or it is given up.
const START_LIMIT: Duration = Duration::from_secs(5);
/// And all ports have taken a step.
const STEP_LIMIT: Duration = Duration::from_secs(1);
/// While rings stand still, for so long at most, nothing is done but what has them go on: a round of all else takes as long as it takes to ask hundreds
/// of things whether they are due, and there is one for each of the ports' answers.
const HURRY: Duration = Duration::from_millis(50);

/// `lasthop upgrade` or `lasthop engine`.
const UNDER_WAY: &str = "processes are being replaced by others already, for an upgrade or for other engines";

/// What somebody has asked for last, and what came of it.
#[derive(Debug)]
pub(super) struct Asked {
    /// Different each time, but the same when the same is asked again, because control was replaced meanwhile.
    attempt: String,
    /// Control's number of it.
    request: u64,
    outcome: Option<Result<Upgraded, NotReplaced>>,
}

impl Asked {
    /// What another program of this process has not answered.
    pub(super) fn again(attempt: String, request: u64) -> Self {
        Self { attempt, request, outcome: None }
    }

    /// Its mark and control's number, unless it was answered.
    pub(super) fn open(&self) -> Option<(String, u64)> {
        self.outcome.is_none().then(|| (self.attempt.clone(), self.request))
    }
}

/// What is asked for: see `ControlToSupervisor::Upgrade`.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) request: u64,
    pub(super) programs: Option<String>,
    pub(super) messages: String,
    pub(super) processes: Processes,
    pub(super) all: bool,
    pub(super) attempt: String,
}

/// Where a new program is: in this directory, or in the place of the one before.
pub(super) fn new_program(name: &str, programs: Option<&str>, place: &Path) -> Result<PathBuf, String> {
    let path = match programs {
        Some(dir) => find_program(name, Some(Path::new(dir))).map_err(|e| e.to_string())?,
        None => place.to_owned(),
    };
    if !is_program(&path) {
        return Err(format!("{} is not there, or may not be run; install it there", path.display()));
    }
    if programs.is_some() {
        // It runs with all that we may.
        for path in path.parent().into_iter().chain([&*path]) {
            is_ours_alone(path, &fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?)?;
        }
    }
    Ok(path)
}

/// Nobody but root and our own user can change a program, or put another in its place.
pub(super) fn is_ours_alone(path: &Path, of: &fs::Metadata) -> Result<(), String> {
    let owner = of.uid();
    if (owner == 0 || owner == rustix::process::geteuid().as_raw()) && of.mode() & 0o022 == 0 {
        return Ok(());
    }
    let shown = path.display();
    Err(format!(
        "{shown} belongs to user {owner}, or others may write to it, and it would run with the rights of lasthop: `chown root` and `chmod go-w` it"
    ))
}

/// One that is under way.
#[derive(Debug)]
pub(super) struct Upgrade {
    /// When it was begun.
    since: Instant,
    /// The switch to come; once it is in use, the one that was before.
    other: Switch,
    /// Where the DMA engine of the switch to come counts, if it has one; of none once it is in use.
    dma: Option<OwnedFd>,
    /// Rings for it and control: to make them takes as long as a port's step.
    rings: Option<(OwnedFd, OwnedFd)>,
    /// What ports are at; none while the other switch starts.
    step: Option<Step>,
    /// Ports with a front-end, which go over.
    ports: BTreeSet<u32>,
    /// Those that have not taken the step yet.
    waits: BTreeSet<u32>,
    /// For how long each port's packets did not move, in nanoseconds.
    pauses: BTreeMap<u32, Option<u64>>,
    /// Threads of ports in the switch to come.
    threads: BTreeMap<u32, ThreadNews>,
    until: Instant,
    /// While rings stand still: for how long all else waits.
    hurries: Option<Instant>,
    /// Why it is being undone.
    failed: Option<String>,
    /// Engines of the switch to come, if they are other ones.
    engines: Option<Engines>,
    /// A port that goes to another engine.
    pub(super) moved: Option<Moved>,
}

type Controlled<'a> = (&'a mut Switch, Option<&'a OwnedFd>, Option<(OwnedFd, OwnedFd)>);

impl Upgrade {
    /// When something is due.
    pub(super) fn deadline(&self) -> Instant {
        self.other.deadline().map_or(self.until, |at| at.min(self.until))
    }

    /// Until when all else waits for it, if it does.
    pub(super) fn hurries(&self, now: Instant) -> Option<Instant> {
        self.hurries.filter(|until| *until > now).map(|until| until.min(self.deadline()))
    }

    /// The switch that control is to have rings to, if that is the other one already, where its DMA engine counts, and the rings, if they were made before.
    pub(super) fn controlled(&mut self) -> Option<Controlled<'_>> {
        let Self { other, dma, rings, .. } = self;
        matches!(self.step, Some(Step::Cross | Step::GoOn)).then(|| (other, dma.as_ref(), rings.take()))
    }

    /// The other switch is in use.
    fn is_done(&self) -> bool {
        self.step == Some(Step::Leave)
    }

    /// Enters a step that all ports take.
    fn enter(&mut self, step: Step) {
        let now = Instant::now();
        (self.step, self.waits, self.until) = (Some(step), self.ports.clone(), now + STEP_LIMIT);
        self.hurries = match step {
            Step::Hold => Some(now + HURRY),
            Step::Cross | Step::GoOn => self.hurries,
            Step::Prepare | Step::Leave | Step::Stay => None,
        };
    }
}

impl Supervisor {
    /// Somebody wants processes replaced by newly installed programs, or hears what came of that. `messages`: what the new programs say to each other.
    pub(super) fn begin_upgrade(&mut self, wanted: Wanted) {
        if self.ending.is_some() {
            // Its memory is being unmapped, and its end comes soon.
            let Wanted { request, programs, messages, processes, all, attempt } = wanted;
            let asked = ControlToSupervisor::Upgrade { request, programs, messages, processes, all, attempt };
            return self.deferred.push(asked);
        }
        if !self.admit(wanted.request, &wanted.attempt) {
            return;
        }
        if wanted.messages != MESSAGES {
            return self.answer_asked(Err(NotReplaced::OtherMessages(format!(
                "{OTHER_MESSAGES} (messages {MESSAGES}, and {}); restart lasthop to take the \
                 new ones into use: front-ends connect again; nothing has changed",
                wanted.messages
            ))));
        }
        let begun = match wanted.processes {
            Processes::Switch => self.begin_with_switch(wanted.programs.as_deref(), wanted.all),
            Processes::Run => self.begin_take_over(wanted.programs.as_deref(), wanted.all),
            processes => self.begin_renewal(processes, wanted.programs.as_deref(), wanted.all),
        };
        match begun {
            Ok(None) => {}
            Ok(Some(done)) => self.answer_upgrade(Ok(done)),
            Err(why) => self.answer_upgrade(Err(format!("{why}; nothing has changed"))),
        }
    }

    /// Whether this is to be begun: not if it was asked for before, or another is under way. Whoever asks is told so.
    pub(super) fn admit(&mut self, request: u64, attempt: &str) -> bool {
        match &mut self.asked {
            Some(asked) if asked.attempt == attempt => {
                asked.request = request;
                if let Some(result) = asked.outcome.clone() {
                    self.answer_asked(result);
                }
                return false;
            }
            Some(Asked { outcome: None, .. }) => {
                let why = format!("{UNDER_WAY}; wait for the end of that; nothing has changed");
                let result = Err(NotReplaced::Refused(why));
                self.control.send(SupervisorToControl::UpgradeReply { request, result }, None);
                return false;
            }
            _ => {}
        }
        self.asked = Some(Asked { attempt: attempt.to_owned(), request, outcome: None });
        true
    }

    fn begin_with_switch(&mut self, programs: Option<&str>, all: bool) -> Result<Option<Upgraded>, String> {
        let path = new_program(self.switch.name(), programs, self.switch.path())?;
        if !self.switch.is_ready() {
            return Err("the switch is being restarted, with the program that is there; try again in a second".into());
        }
        if !all && !self.switch.runs_another_than(&path) {
            return Ok(Some(Upgraded::default()));
        }
        self.start_other(path, None).map(|()| None)
    }

    /// Starts the switch that is to take over, with these engines if they are to be other ones.
    pub(super) fn start_other(&mut self, path: PathBuf, engines: Option<Engines>) -> Result<(), String> {
        let first = self.switch.has_token(SWITCH_CHANNEL);
        let tokens = if first { (NEXT_CHANNEL, NEXT_PID) } else { (SWITCH_CHANNEL, SWITCH_PID) };
        let mut other = self.switch.another(path, tokens);
        let before = self.for_switch.clone();
        let mut for_other = before.clone();
        if let Some(engines) = &engines {
            engines.tell(&mut for_other, &allowed_cpus()?);
            other = other.bound_to(engines.of_threads());
        }
        let given = |dma: &Option<OwnedFd>| self.for_new_switch(dma.as_ref());
        let given = self.another_dma_page().and_then(|dma| Ok((given(&dma)?, dma)));
        let (given, dma) = given.map_err(|e| format!("no descriptors for another switch: {e}"))?;
        other.start(&self.epoll, given).map_err(|e| format!("the new switch cannot be started: {e}"))?;
        // It hears what a new one hears.
        std::mem::swap(&mut self.switch, &mut other);
        self.for_switch = for_other;
        self.tell_switch_all();
        self.for_switch = before;
        std::mem::swap(&mut self.switch, &mut other);
        info!("upgrade: the new switch starts (pid {})", other.pid().unwrap_or_default());
        let (ports, waits, pauses, threads) = Default::default();
        let since = Instant::now();
        let until = since + START_LIMIT;
        let (step, hurries, failed, moved) = (None, None, None, None);
        self.upgrade = Some(Upgrade {
            since,
            other,
            dma,
            rings: None,
            step,
            ports,
            waits,
            pauses,
            threads,
            until,
            hurries,
            failed,
            engines,
            moved,
        });
        Ok(())
    }

    /// Does what is due.
    pub(super) fn step_upgrade(&mut self, now: Instant) {
        let Some(upgrade) = &mut self.upgrade else { return };
        upgrade.other.flush(&self.epoll);
        if upgrade.other.kill_if_hung(now).is_some() || upgrade.until > now {
            return;
        }
        if upgrade.is_done() {
            return self.finish_upgrade();
        }
        // Session processes wait for an answer of it, and hear nothing else meanwhile.
        upgrade.other.kill();
        match upgrade.step {
            None => self.undo_upgrade(format!("the new switch was not ready within {START_LIMIT:?}")),
            Some(Step::Stay) if upgrade.failed.is_some() => {
                // They are killed if they hang.
                self.finish_upgrade();
            }
            Some(step) => {
                let late = upgrade.waits.first().copied().unwrap_or_default();
                let name = self.name_of_port(late);
                self.undo_upgrade(format!("port {name} did not go over within {STEP_LIMIT:?} (step {step:?})"));
            }
        }
    }

    /// An event of the switch that is not in use: the one to come, or the one that was before.
    pub(super) fn other_switch_event(&mut self, token: u64) {
        let now = Instant::now();
        if let Some(ending) = self.ending.as_mut().filter(|ending| ending.has_token(token)) {
            ending.receive(&self.epoll, now);
            if ending.reap(&self.epoll, now).is_some() {
                self.ending = None;
                self.obey_deferred();
            }
            return;
        }
        let Some(upgrade) = self.upgrade.as_mut().filter(|upgrade| upgrade.other.has_token(token)) else { return };
        let messages = upgrade.other.receive(&self.epoll, now);
        messages.into_iter().for_each(|message| self.hear_other(message));
        let Some(upgrade) = &mut self.upgrade else { return };
        if let Some(ended) = upgrade.other.reap(&self.epoll, now)
            && !upgrade.is_done()
        {
            self.other_ended(&ended);
        }
    }

    fn other_ended(&mut self, ended: &Ended) {
        self.undo_upgrade(format!("the new switch {}", ended.why));
    }

    fn hear_other(&mut self, message: SwitchToSupervisor) {
        let Some(upgrade) = &mut self.upgrade else { return };
        let done = upgrade.is_done();
        match message {
            SwitchToSupervisor::Log(line) => self.write_for_switch(&line, Instant::now()),
            // What else the one before says does not matter any more.
            _ if done => {}
            SwitchToSupervisor::Ready => {
                upgrade.other.set_ready();
                self.take_step(Step::Prepare);
            }
            // Its word: of ports that are none nothing is kept.
            SwitchToSupervisor::Thread(port, news) => {
                if upgrade.ports.contains(&port.0) {
                    upgrade.threads.insert(port.0, news);
                }
            }
            // A port that is not prepared yet may stay behind; its session process will say so, or that it cannot go.
            SwitchToSupervisor::ConnectionClosed { port, reason } => {
                let prepares = upgrade.step == Some(Step::Prepare) && upgrade.waits.contains(&port.0);
                if upgrade.ports.contains(&port.0) && !prepares && upgrade.failed.is_none() {
                    let name = self.name_of_port(port.0);
                    self.undo_upgrade(format!("the new switch lets go of port {name}: {reason}"));
                }
            }
            SwitchToSupervisor::ControlBroke(what) => self.undo_upgrade(format!("to the new switch control {what}")),
        }
    }

    /// Has all ports take this step.
    fn take_step(&mut self, step: Step) {
        if step == Step::Prepare {
            self.sessions.wait(true);
        }
        let Some(upgrade) = &mut self.upgrade else { return };
        if step == Step::Prepare {
            upgrade.ports = self.sessions.connected().collect();
            upgrade.rings = ring_pair().ok();
        }
        upgrade.enter(step);
        match step {
            Step::Prepare => {
                for port in upgrade.ports.clone() {
                    match self.sessions.prepare(port) {
                        Ok((channel, vm)) => {
                            upgrade.other.send(SupervisorToSwitch::Connection(PortId(port), vm), Some(channel))
                        }
                        Err(e) => return self.undo_upgrade(format!("no channel for a port: {e}")),
                    }
                }
            }
            step => upgrade.ports.iter().for_each(|port| self.sessions.take_step(*port, step)),
        }
        if step == Step::Cross {
            // Before packets come there that nobody has decided about. What waits for control in the one before is lost.
            self.join_children();
        }
        self.go_on_upgrading();
    }

    /// A port's session process has taken a step, or could not.
    pub(super) fn port_moved(&mut self, port: u32, step: Step, done: Result<Option<u64>, String>) {
        let Some(upgrade) = self.upgrade.as_mut().filter(|upgrade| upgrade.step == Some(step)) else { return };
        match done {
            Ok(pause) => {
                if step == Step::GoOn {
                    upgrade.pauses.insert(port, pause);
                }
            }
            // Its connection has ended, and its front-end connects again.
            Err(why) if matches!(step, Step::Leave | Step::Stay) => {
                let name = self.name_of_port(port);
                warn!("upgrade: port {name}: {why}");
            }
            Err(why) => {
                let name = self.name_of_port(port);
                return self.undo_upgrade(format!("port {name}: {why}"));
            }
        }
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.waits.remove(&port);
        }
        self.go_on_upgrading();
    }

    /// No switch takes this port's front-end as it is, for a reason of its own: all others go without it. Its connection has ended, and it connects to the
    /// new switch when it does so again. A front-end is not to keep others where they are.
    pub(super) fn port_stays_behind(&mut self, port: u32, why: &str) {
        let Some(upgrade) = self.upgrade.as_mut().filter(|upgrade| upgrade.step == Some(Step::Prepare)) else { return };
        if !upgrade.waits.remove(&port) {
            return;
        }
        upgrade.ports.remove(&port);
        let name = self.name_of_port(port);
        warn!("upgrade: port {name} stays behind, and its front-end has to connect again: {why}");
        self.sessions.moved(port, false);
        // The switch before may be gone before it says so.
        self.connection_closed(PortId(port), why);
        self.go_on_upgrading();
    }

    /// A port's session process has ended, or the port is removed.
    pub(super) fn port_cannot_move(&mut self, port: u32) {
        let Some(upgrade) = self.upgrade.as_mut().filter(|upgrade| upgrade.ports.contains(&port)) else { return };
        upgrade.waits.remove(&port);
        if upgrade.is_done() || upgrade.step == Some(Step::Stay) {
            return self.go_on_upgrading();
        }
        let name = self.name_of_port(port);
        self.undo_upgrade(format!("port {name}: its session process has ended"));
    }

    /// The next step, once all have taken this one.
    fn go_on_upgrading(&mut self) {
        let Some(upgrade) = self.upgrade.as_mut().filter(|upgrade| upgrade.waits.is_empty()) else { return };
        match upgrade.step {
            None => {}
            Some(Step::Prepare) => self.take_step(Step::Hold),
            Some(Step::Hold) => self.take_step(Step::Cross),
            Some(Step::Cross) => self.take_step(Step::GoOn),
            Some(Step::GoOn) => self.use_other(),
            Some(Step::Leave | Step::Stay) => self.finish_upgrade(),
        }
    }

    /// From here on the new switch is the switch.
    fn use_other(&mut self) {
        let Some(upgrade) = &mut self.upgrade else { return };
        std::mem::swap(&mut self.switch, &mut upgrade.other);
        self.dma = upgrade.dma.take();
        let engines = upgrade.engines.take();
        let threads = std::mem::take(&mut upgrade.threads);
        // First: where threads may run depends on it.
        engines.into_iter().for_each(|engines| self.take_on(engines));
        self.port_threads.forget_all();
        for (port, news) in threads {
            self.hear_thread(PortId(port), news);
        }
        self.take_step(Step::Leave);
    }

    /// Everything stays as it was, or becomes so again.
    pub(super) fn undo_upgrade(&mut self, why: String) {
        let Some(upgrade) = self.upgrade.as_mut().filter(|upgrade| !upgrade.is_done() && upgrade.failed.is_none())
        else {
            return;
        };
        let had_control = upgrade.controlled().is_some();
        warn!("upgrade: {why}; the switch before goes on");
        upgrade.failed = Some(why);
        upgrade.enter(Step::Stay);
        upgrade.ports.iter().for_each(|port| self.sessions.take_step(*port, Step::Stay));
        if had_control && self.switch.is_up() && self.control.is_up() {
            self.join_children();
        }
        self.go_on_upgrading();
    }

    /// The switch that is not in use ends, and whoever asked hears how it went.
    fn finish_upgrade(&mut self) {
        let Some(Upgrade { since, other, ports, pauses, failed, engines, moved, .. }) = self.upgrade.take() else {
            return;
        };
        let used = failed.is_none();
        if engines.is_some() {
            self.remember_engines_again();
        }
        if let Some(moved) = moved.filter(|_| !used) {
            self.put_back(moved);
        }
        ports.iter().for_each(|port| self.sessions.moved(*port, used));
        self.sessions.wait(false);
        if other.is_up() {
            other.kill();
            self.ending = Some(other);
        }
        let result = match failed {
            Some(why) => Err(format!("{why}; the switch before goes on")),
            None => {
                let longest = pauses.values().flatten().max().copied().unwrap_or_default();
                let pid = self.switch.pid().unwrap_or_default();
                info!(
                    "upgrade: the new switch (pid {pid}) has taken over {} ports; the longest pause was {:.1} ms",
                    ports.len(),
                    longest as f64 / 1e6
                );
                let pauses = pauses.into_iter().map(|(port, pause)| (PortId(port), pause)).collect();
                let took = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let process = NewProcess { process: "switch".into(), pid, took };
                Ok(Upgraded { processes: vec![process], kept: Vec::new(), pauses })
            }
        };
        self.answer_upgrade(result);
        self.obey_deferred();
    }

    fn obey_deferred(&mut self) {
        std::mem::take(&mut self.deferred).into_iter().for_each(|message| self.obey_control(message));
    }

    /// What came of it. It is kept, should control be another one meanwhile: whoever asked asks again.
    pub(super) fn answer_upgrade(&mut self, result: Result<Upgraded, String>) {
        self.answer_asked(result.map_err(NotReplaced::Refused));
    }

    fn answer_asked(&mut self, result: Result<Upgraded, NotReplaced>) {
        let Some(asked) = &mut self.asked else { return };
        asked.outcome = Some(result.clone());
        let request = asked.request;
        self.control.send(SupervisorToControl::UpgradeReply { request, result }, None);
    }

    /// While ports go over, what control asks for waits.
    pub(super) fn defer(&mut self, message: ControlToSupervisor) -> Option<ControlToSupervisor> {
        let moves = self.upgrade.as_ref().is_some_and(|upgrade| upgrade.step.is_some());
        if !moves || matches!(message, ControlToSupervisor::Ready) {
            return Some(message);
        }
        self.deferred.push(message);
        None
    }

    /// Tells the switch of a port, and the one to come, which has been told of the others.
    pub(super) fn tell_switch(&mut self, message: SupervisorToSwitch) {
        if let Some(upgrade) = self.upgrade.as_mut().filter(|upgrade| !upgrade.is_done()) {
            upgrade.other.send(message.clone(), None);
        }
        self.switch.send(message, None);
    }

    pub(super) fn name_of_port(&self, port: u32) -> String {
        let config = self.ports.get(&port).map(|port| &port.config);
        let config = config.or_else(|| self.uplinks.get(&port).map(|uplink| &uplink.config));
        config.map_or_else(|| format!("#{port}"), |config| config.name.clone())
    }
}
