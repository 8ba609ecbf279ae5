//! `lasthop upgrade` of session processes, of uplinks' processes and of control: a newly installed program takes the place of the one that runs, one process
//! after the other, and each is waited for. When one does not come, the program before is started again from its file, which is kept open for that, and nothing
//! else is replaced.
//!
//! What it costs: `docs/commands.md`.

use super::supervisor::Supervisor;
use super::uplink::Before;
use lasthop_management_ipc::{MAX_UPGRADED, NewProcess, Processes, Upgraded};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// A new process does its work by then, or it is given up.
const LIMIT: Duration = Duration::from_secs(5);
/// Or when it has ended so often before it was ready.
const FAILED_STARTS: u32 = 3;

/// Processes that are still to be replaced, and the one that is being replaced.
#[derive(Debug)]
pub(super) struct Renewal {
    left: VecDeque<Target>,
    current: Option<Current>,
    /// Those whose program is the same file, too.
    all: bool,
    program: PathBuf,
    /// Where the program before is, for what is started later.
    place: PathBuf,
    done: Upgraded,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Session(u32),
    Uplink(u32),
    Control,
}

/// The file of the program before.
#[derive(Debug)]
enum Kept {
    One(Option<OwnedFd>),
    Uplink(Before),
}

#[derive(Debug)]
struct Current {
    target: Target,
    name: String,
    kept: Kept,
    /// The process that is to be replaced.
    before: Option<u32>,
    /// Of an uplink, the one that stood by, while its successor is waited for.
    spare: Option<Option<u32>>,
    /// Since when the one before has not done its work.
    since: Instant,
    until: Instant,
}

impl Renewal {
    /// When something is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().map(|current| current.until)
    }
}

impl Supervisor {
    /// Begins to replace these. `None`: nothing is to be waited for.
    pub(super) fn begin_renewal(
        &mut self,
        processes: Processes,
        programs: Option<&str>,
        all: bool,
    ) -> Result<Option<Upgraded>, String> {
        let (name, place) = match processes {
            Processes::Sessions => ("lasthop-session", self.sessions.program().to_owned()),
            Processes::Uplinks => match &self.uplink_program {
                Ok(place) => ("lasthop-uplink", place.clone()),
                Err(_) if programs.is_none() => return Ok(Some(Upgraded::default())),
                Err(_) => ("lasthop-uplink", PathBuf::new()),
            },
            _ => (self.control_program(), self.control.path().to_owned()),
        };
        let program = super::upgrade::new_program(name, programs, &place)?;
        let left: VecDeque<_> = match processes {
            Processes::Sessions => {
                self.sessions.set_program(&program);
                self.sessions.running().into_iter().map(Target::Session).collect()
            }
            Processes::Uplinks => {
                self.uplink_program = Ok(program.clone());
                self.uplinks.keys().copied().map(Target::Uplink).collect()
            }
            _ => [Target::Control].into(),
        };
        self.renewal = Some(Renewal { left, current: None, all, program, place, done: Upgraded::default() });
        Ok(None)
    }

    /// Goes on with what is being replaced.
    pub(super) fn step_renewal(&mut self, now: Instant) {
        while let Some(renewal) = &mut self.renewal {
            let Some(current) = renewal.current.take() else {
                let Some(target) = renewal.left.pop_front() else {
                    let done = std::mem::take(&mut renewal.done);
                    self.renewal = None;
                    return self.answer_upgrade(Ok(done));
                };
                let begun = self.begin_with(target, now);
                if let Some(renewal) = &mut self.renewal {
                    renewal.current = begun;
                }
                continue;
            };
            match self.go_on_with(current, now) {
                Ok(None) => {}
                Ok(Some(current)) => {
                    if let Some(renewal) = &mut self.renewal {
                        renewal.current = Some(current);
                    }
                    return;
                }
                Err(current) => return self.give_up_renewal(current),
            }
        }
    }

    /// The process has what it needs to be replaced, and is told so. `None`: it is left alone.
    fn begin_with(&mut self, target: Target, now: Instant) -> Option<Current> {
        let (all, program) = self.renewal.as_ref().map(|renewal| (renewal.all, renewal.program.clone()))?;
        let of = |name, kept, before, spare| {
            Some(Current { target, name, kept, before, spare, since: now, until: now + LIMIT })
        };
        match target {
            Target::Control => {
                let (before, kept) = (self.control.pid(), self.control.set_program(program));
                if !(all || self.control.is_outdated()) || before.is_none() {
                    return None;
                }
                self.control.make_way();
                of("control".into(), Kept::One(kept), before, None)
            }
            Target::Session(port) => {
                let (name, before) = self.sessions.process(port)?;
                let (kept, outdated) = self.sessions.renew(port)?;
                if !(all || outdated) {
                    return None;
                }
                if self.sessions.is_connected(port) && !self.uplinks.contains_key(&port) {
                    self.sessions.make_way_later(port, kept);
                    self.keep(name, "its front-end would have to connect again; replaced when that has gone");
                    return None;
                }
                self.sessions.make_way(port);
                of(name, Kept::One(kept), before, None)
            }
            Target::Uplink(id) => {
                let uplink = self.uplinks.get_mut(&id).filter(|uplink| !uplink.is_leaving())?;
                let (name, before) = (uplink.process(), uplink.driver_pid());
                let kept = uplink.set_program(&program);
                if !(all || uplink.is_outdated()) || before.is_none() {
                    return None;
                }
                if uplink.ends_with_capture() {
                    self.keep(name, "it ends with its capture");
                    return None;
                }
                let spare = uplink.spare_pid();
                let stands_by = uplink.stand_by_anew(now).then_some(spare);
                if stands_by.is_none() {
                    uplink.make_way();
                }
                of(name, Kept::Uplink(kept), before, stands_by)
            }
        }
    }

    fn keep(&mut self, name: String, why: &str) {
        if let Some(kept) = self.renewal.as_mut().map(|renewal| &mut renewal.done.kept)
            && kept.len() < MAX_UPGRADED
        {
            kept.push((name, why.into()));
        }
    }

    /// Looks how far it is: `None` when it is done, an error when it does not come.
    fn go_on_with(&mut self, mut current: Current, now: Instant) -> Result<Option<Current>, Current> {
        let (pid, failed_starts) = match current.target {
            Target::Control => {
                let anew = self.control.is_ready() && self.control.pid() != current.before;
                (self.control.pid().filter(|_| anew), self.control.failed_starts())
            }
            Target::Session(port) => {
                let Some((_, pid)) = self.sessions.process(port) else { return Ok(None) };
                let wants = self.uplinks.get(&port).is_some_and(|uplink| uplink.wants_connection());
                let anew = self.sessions.serves_anew(port, current.before);
                let anew = anew && (!wants || self.sessions.is_connected(port));
                (pid.filter(|_| anew), self.sessions.failed_starts(port))
            }
            Target::Uplink(id) => {
                let uplink = self.uplinks.get_mut(&id).filter(|uplink| !uplink.is_leaving());
                let Some(uplink) = uplink else { return Ok(None) };
                if current.spare.is_some_and(|before| uplink.stands_by_anew(before)) {
                    (current.spare, current.since, current.until) = (None, now, now + LIMIT);
                    uplink.make_way();
                }
                let anew = current.spare.is_none() && uplink.carries_anew(current.before);
                (uplink.driver_pid().filter(|_| anew), uplink.failed_starts())
            }
        };
        if let Some(pid) = pid {
            let took = now.saturating_duration_since(current.since);
            info!(
                "upgrade: {} is of the new program (pid {pid}), after {:.1} ms",
                current.name,
                took.as_secs_f64() * 1e3
            );
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            if let Some(done) = self.renewal.as_mut().map(|renewal| &mut renewal.done.processes)
                && done.len() < MAX_UPGRADED
            {
                done.push(NewProcess { process: current.name, pid, took });
            }
            return Ok(None);
        }
        if now >= current.until || failed_starts >= FAILED_STARTS {
            return Err(current);
        }
        Ok(Some(current))
    }

    /// The new program does not do: the one before comes back, and nothing else is replaced.
    fn give_up_renewal(&mut self, Current { target, name, kept, before: pid, .. }: Current) {
        let Some(Renewal { done, program, place, .. }) = self.renewal.take() else { return };
        match (target, kept) {
            (Target::Session(port), Kept::One(before)) => {
                self.sessions.set_program(&place);
                self.sessions.go_back_to(port, before);
                self.sessions.stay();
            }
            (Target::Uplink(id), Kept::Uplink(before)) => {
                self.uplink_program = Ok(place);
                if let Some(uplink) = self.uplinks.get_mut(&id) {
                    uplink.go_back_to(before, pid);
                }
            }
            (_, Kept::One(before)) => {
                self.control.make_way();
                self.control.set_program(place);
                self.control.go_back_to(before);
            }
            (_, Kept::Uplink(_)) => {}
        }
        let others = match done.processes.len() {
            0 => String::new(),
            n => format!("; {n} others of its kind have been replaced"),
        };
        let why = format!(
            "{name}: {} does not come up (the log says why); the program before goes on{others}",
            program.display()
        );
        warn!("upgrade: {why}");
        self.answer_upgrade(Err(why));
    }

    /// What decides.
    fn control_program(&self) -> &'static str {
        super::open_vswitch::program(self.ovs.is_some())
    }
}
