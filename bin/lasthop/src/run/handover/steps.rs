//! What leads to a take-over, and what comes after it.

use super::super::supervisor::{Supervisor, TAKE_OVER};
use super::super::upgrade::Asked;
use super::super::{RunArgs, RunError};
use super::program::Program;
use super::state::own_program;
use super::{CHECK, State, Successor, Taker, bytes_of, go_back, memory, own_arguments, set_under_way};
use lasthop_management_ipc::{NewProcess, Upgraded};
use lasthop_sys::{PidFd, Trigger};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Nothing is half done by then, or it is given up.
const SETTLED_LIMIT: Duration = Duration::from_secs(5);
/// The new program has looked at the state by then.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked whether nothing is half done, where no event would say so.
const LOOK: Duration = Duration::from_millis(10);
/// Descriptors that a program opens for itself.
const SPARE: u64 = 128;
/// So much of what it says is heard, in bytes.
const LONGEST_SAID: u64 = 4096;

/// Why neither this process nor lasthop-flower becomes another program.
const OFFLOADS: &str = "with --hw-offload: the new one would not know what is in the kernel or a card; restart lasthop";

/// One that is under way.
#[derive(Debug)]
pub(in super::super) struct TakeOver {
    program: Arc<Program>,
    until: Instant,
    look_at: Instant,
    /// The new program looks at the state, or has.
    check: Check,
}

#[derive(Debug)]
enum Check {
    NotYet,
    Runs(Child, PidFd),
    Done,
}

impl TakeOver {
    /// When something is due.
    pub(in super::super) fn deadline(&self) -> Instant {
        match self.check {
            Check::Runs(..) => self.until,
            _ => self.until.min(self.look_at),
        }
    }
}

impl Supervisor {
    /// Somebody wants this process to become a newly installed program. `Some`: there is none.
    pub(in super::super) fn begin_take_over(
        &mut self,
        programs: Option<&str>,
        all: bool,
    ) -> Result<Option<Upgraded>, String> {
        let (runs, place) = own_program()?;
        let program = Program::find(programs, &place)?;
        let kept = self.offload.iter().filter(|offload| all || offload.is_outdated());
        let mut kept: Vec<_> = kept.map(|_| ("flower".into(), OFFLOADS.into())).collect();
        let is_new = all || !program.is(&runs);
        if is_new && self.offload.is_some() {
            kept.push(("run".into(), OFFLOADS.into()));
        }
        if !is_new || self.offload.is_some() {
            return Ok(Some(Upgraded { kept, ..Upgraded::default() }));
        }
        let now = Instant::now();
        self.take_over = Some(TakeOver {
            program: Arc::new(program),
            until: now + SETTLED_LIMIT,
            look_at: now,
            check: Check::NotYet,
        });
        Ok(None)
    }

    /// Goes on with it. What comes back is the program that this process is to become now.
    pub(in super::super) fn step_take_over(&mut self, now: Instant) -> Option<Successor> {
        self.take_over.as_ref()?;
        // What was just answered is not what somebody does not read.
        self.flush();
        let unsettled = self.unsettled();
        let take_over = self.take_over.as_mut()?;
        take_over.look_at = now + LOOK;
        let late = take_over.until <= now;
        let step = match (std::mem::replace(&mut take_over.check, Check::Done), unsettled) {
            (Check::Runs(process, pidfd), _) => self.hear_check(process, pidfd, late).map(|()| None),
            (check, Some(why)) => {
                take_over.check = check;
                if late { Err(format!("{why}, and {SETTLED_LIMIT:?} have passed")) } else { Ok(None) }
            }
            (Check::NotYet, None) => self.begin_check(now).map(|()| None),
            (Check::Done, None) => {
                let program = take_over.program.clone();
                let state = program.is_as_it_was().and_then(|()| self.hand_over());
                state.and_then(|state| Successor::new(program, state)).map(Some)
            }
        };
        match step {
            Ok(Some(successor)) => {
                info!("upgrade: this process becomes {}", successor.program.path().display());
                Some(successor)
            }
            Ok(None) => None,
            Err(why) => {
                self.could_not_become_another(why);
                None
            }
        }
    }

    /// Has the new program look at the state, which changes nothing.
    fn begin_check(&mut self, now: Instant) -> Result<(), String> {
        let state = self.hand_over()?;
        // Each is there twice for a moment, and what has no room then ends this process.
        let (twice, most) = (2 * state.descriptors.len() as u64 + SPARE, getrlimit(Resource::Nofile).maximum);
        if most.is_some_and(|most| twice > most) {
            return Err(format!(
                "it takes {twice} descriptors, and this process may have {}: raise LimitNOFILE, and restart",
                most.unwrap_or(0)
            ));
        }
        let state = state.to_memory()?;
        let Some(take_over) = &mut self.take_over else { return Ok(()) };
        // A file's place in it goes with each that has it open, and nobody has read this.
        let mut command = Command::new(take_over.program.place());
        command.arg0(take_over.program.path()).args(own_arguments().into_iter().skip(1)).arg(CHECK);
        command.stdin(File::from(state)).stdout(Stdio::null()).stderr(Stdio::piped());
        let failed = |e: std::io::Error| format!("{}: {e}", take_over.program.path().display());
        let mut process = command.spawn().map_err(failed)?;
        let watched = PidFd::of(&process).and_then(|pidfd| {
            self.epoll.add(&pidfd, TAKE_OVER, Trigger::Level)?;
            Ok(pidfd)
        });
        match watched {
            Ok(pidfd) => {
                (take_over.check, take_over.until) = (Check::Runs(process, pidfd), now + CHECK_LIMIT);
                Ok(())
            }
            Err(e) => {
                let _ = process.kill().and_then(|()| process.wait());
                Err(failed(e.into()))
            }
        }
    }

    /// Whether it has said that it understands the state.
    fn hear_check(&mut self, mut process: Child, pidfd: PidFd, late: bool) -> Result<(), String> {
        let Some(take_over) = &mut self.take_over else { return Ok(()) };
        let shown = take_over.program.path().display().to_string();
        let ended = process.try_wait().map_err(|e| format!("{shown}: {e}"))?;
        if ended.is_none() && !late {
            take_over.check = Check::Runs(process, pidfd);
            return Ok(());
        }
        let _ = self.epoll.delete(&pidfd);
        let Some(status) = ended else {
            let _ = process.kill().and_then(|()| process.wait());
            return Err(format!("{shown} did not say within {CHECK_LIMIT:?} whether it could go on"));
        };
        if status.success() {
            take_over.until = Instant::now() + SETTLED_LIMIT;
            return Ok(());
        }
        let mut said = Vec::new();
        if let Some(stderr) = process.stderr.take() {
            // It may have left somebody behind who has the other end still.
            let _ = fcntl_getfl(&stderr).and_then(|flags| fcntl_setfl(&stderr, flags | OFlags::NONBLOCK));
            let _ = stderr.take(LONGEST_SAID).read_to_end(&mut said);
        }
        let said = String::from_utf8_lossy(&said);
        let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
        Err(format!("{shown} cannot go on from here ({status}): {said}"))
    }

    /// This process is the program that it was: why.
    pub fn could_not_become_another(&mut self, why: String) {
        self.own_program = None;
        if let Some(TakeOver { check: Check::Runs(mut process, pidfd), .. }) = self.take_over.take() {
            let _ = self.epoll.delete(&pidfd);
            let _ = process.kill().and_then(|()| process.wait());
        }
        let why = format!("{why}; lasthop run goes on as the program that it was");
        warn!("upgrade: {why}");
        self.answer_upgrade(Err(why));
    }
}

/// The supervisor that another program of this process was. If it cannot be, that program is executed again, once.
pub fn take_over(args: &RunArgs, number: i32) -> Result<Supervisor, RunError> {
    let memory = memory(number).map_err(RunError::Failed)?;
    // One that is executed by its descriptor is called by that.
    let _ = std::fs::write("/proc/self/comm", "lasthop");
    set_under_way(true);
    let taker = Taker::new();
    let resumed = bytes_of(&memory).and_then(|bytes| State::from_bytes(&bytes)).and_then(|state| {
        let (first, since, asked) = (state.descriptors.clone(), taker.at(state.since), state.asked.clone());
        Ok((Supervisor::resumed(args, state, &taker)?, first, since, asked))
    });
    let (mut supervisor, first, since, asked) = match resumed {
        Ok(resumed) => resumed,
        Err(why) if args.take_over_refused.is_none() => {
            let failed = go_back(&memory, &why);
            return Err(RunError::Failed(format!("{why}, and the program before is not there any more: {failed}")));
        }
        Err(why) => return Err(RunError::Failed(format!("the program before cannot go on either: {why}"))),
    };
    set_under_way(false);
    // Each is there twice now.
    first.into_iter().chain([number]).for_each(|number| drop(lasthop_sys::inherited_fd(number)));
    supervisor.asked = asked.map(|(attempt, request)| Asked::again(attempt, request));
    match &args.take_over_refused {
        Some(why) => supervisor.could_not_become_another(why.clone()),
        None => {
            let took = since.elapsed();
            let pid = std::process::id();
            info!("upgrade: this process (pid {pid}) is the new program, after {:.1} ms", took.as_secs_f64() * 1e3);
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let process = NewProcess { process: "run".into(), pid, took };
            supervisor.answer_upgrade(Ok(Upgraded { processes: vec![process], ..Upgraded::default() }));
        }
    }
    Ok(supervisor)
}
