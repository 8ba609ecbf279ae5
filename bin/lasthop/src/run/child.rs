//! One child process: its start, the channel to it, and when to start it again.

mod handed;
mod program;
mod sandbox;
mod second;

use super::backoff::Backoff;
use super::closing::{Came, close_aside, drop_aside};
use super::handover;
use super::watchdog::{self, Hung, Watchdog};
use command_fds::{CommandFdExt, FdMapping};
pub use handed::ChildState;
use lasthop_ipc::{Channel, ChannelError, MAX_MESSAGE};
use lasthop_sys::{
    CpuList, Epoll, PidFd, Process, Pulse, Trigger, bind_when_started, die_with_parent, outlive_terminal,
    take_short_turns_when_started,
};
use rustix::process::Signal;
use serde::{Serialize, de::DeserializeOwned};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};

/// First wait before a child that keeps dying is started again, and the longest.
const START_WAIT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// A child that served this long did not die of its start: it is started again at once.
const GOOD_LIFE: Duration = Duration::from_millis(200);
/// A child that has not said it is ready by then hangs.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// A child whose channel is closed is ending; one that has not ended by then hangs.
const ENDING_LIMIT: Duration = Duration::from_secs(1);
/// One that was killed and has not ended by then has a thread that cannot end, such as one that closes a file of somebody who does
/// not answer: it runs no more, and is not waited for.
const KILLED_LIMIT: Duration = Duration::from_millis(50);
/// So many that were killed and cannot end are gone on without; each may hold as much memory as a child may have. The next is waited for.
const MOST_DYING: usize = 4;
/// Messages taken from one child at a time.
const RECEIVE_BURST: usize = 64;
/// Descriptor number of the channel in the child.
const CHANNEL_FD: i32 = 3;
/// Descriptor number of the first other thing it is given.
const OTHER_FD: i32 = 4;

/// A child that is sent `S` and sends `R`.
#[derive(Debug)]
pub struct Child<S, R> {
    name: String,
    path: PathBuf,
    /// The file that is started instead: the one at `path` did not do.
    held: Option<OwnedFd>,
    arguments: Vec<String>,
    cpus: Option<CpuList>,
    /// Its turns on a core, and its timers, are as short as the kernel lets them be, what its sandbox is made of is made for it, and rights are given up for it.
    is_data_plane: bool,
    channel_token: u64,
    pid_token: u64,
    running: Option<Running<S, R>>,
    start_at: Instant,
    backoff: Backoff,
    failed_starts: u32,
    /// How it ended last before it was ready.
    failed_as: String,
    /// Why it could not be started, as it was last said.
    complaint: Option<String>,
    /// Within which it is found out that a thread of it hangs, if that is to be found out, and how long one may be busy with one round.
    limit: Option<(Duration, Duration)>,
    /// One that was killed and cannot end is not waited for.
    gives_up: bool,
    /// Killed, and not ended yet: nothing of them runs.
    dying: Vec<Running<S, R>>,
    /// Bytes of the longest message.
    longest: usize,
    /// It has a second channel, of a thread of its own, by an option of this name.
    second: Option<&'static str>,
}

#[derive(Debug)]
struct Running<S, R> {
    process: Process,
    /// Its program's file.
    program: Option<OwnedFd>,
    pidfd: PidFd,
    channel: Channel<S, R>,
    second: Option<Channel<S, R>>,
    /// Messages the channel had no room for.
    queue: VecDeque<(S, Option<OwnedFd>)>,
    /// Whether epoll reports room in the channel.
    wants_room: bool,
    started: Instant,
    ready: bool,
    /// When to kill it, as it is of no use any more.
    kill_at: Option<Instant>,
    /// Its mount namespace: the last to let go of one waits until every CPU has been elsewhere, which takes milliseconds, and
    /// seconds on a busy host. Its end is not to be late for that.
    namespace: Option<OwnedFd>,
    watchdog: Option<Watchdog>,
    /// When it was killed, or found to have been.
    killed: Cell<Option<Instant>>,
    /// It has closed its channel.
    closed: bool,
    /// Why it is being killed, if it is by us.
    fault: Option<String>,
    /// It ends because another is to take its place.
    planned: bool,
}

/// How a child ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its number and status, for the log.
    pub what: String,
    /// Why: what was wrong with it, if it was killed for that, else its status.
    pub why: String,
    /// How often in a row it has ended before it was ready.
    pub failed_starts: u32,
    /// It was ready, and somebody has killed it (SIGKILL): that was no fault of its own.
    pub was_killed: bool,
    /// With status 0, as one does that was asked to.
    pub well: bool,
    /// So that another takes its place: nothing was wrong with it.
    pub planned: bool,
    /// How long it waits before it is started again.
    pub wait: Duration,
}

impl Ended {
    /// What is done about it, for the log.
    pub fn remedy(&self) -> String {
        match self.wait.as_millis() {
            0 => "restarting it".into(),
            ms => format!("restarting it in {ms} ms"),
        }
    }
}

impl<S: Serialize + 'static, R: DeserializeOwned + 'static> Child<S, R> {
    /// A child that is not running. `epoll` will report its channel and its end by the tokens.
    pub fn new(name: &str, path: PathBuf, arguments: Vec<String>, channel_token: u64, pid_token: u64) -> Self {
        let backoff = Backoff::new(START_WAIT.0, START_WAIT.1);
        let (name, start_at) = (name.to_owned(), Instant::now());
        let cpus = None;
        Self {
            name,
            path,
            held: None,
            arguments,
            cpus,
            is_data_plane: false,
            channel_token,
            pid_token,
            running: None,
            start_at,
            backoff,
            failed_starts: 0,
            failed_as: String::new(),
            complaint: None,
            limit: None,
            gives_up: false,
            dying: Vec::new(),
            longest: MAX_MESSAGE,
            second: None,
        }
    }

    /// Messages to and from it have so many bytes at most. There is one channel only.
    pub fn with_messages_of(mut self, longest: usize) -> Self {
        self.longest = longest;
        self
    }

    /// Another of its kind, with this program, which is not running.
    pub fn another(&self, path: PathBuf, (channel_token, pid_token): (u64, u64)) -> Self {
        let mut other = Self::new(&self.name, path, self.arguments.clone(), channel_token, pid_token);
        other.cpus.clone_from(&self.cpus);
        (other.is_data_plane, other.limit, other.gives_up) = (self.is_data_plane, self.limit, self.gives_up);
        (other.second, other.longest) = (self.second, self.longest);
        other
    }

    /// Its program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether epoll reports it by this token.
    pub fn has_token(&self, token: u64) -> bool {
        token == self.channel_token || token == self.pid_token
    }

    /// With a watchdog: a thread of it that hangs is found out in about the limit; one that is busy, if one round of it takes that and at
    /// least `longest_round`.
    pub fn with_watchdog(mut self, limit: Option<Duration>, longest_round: Duration) -> Self {
        (self.limit, self.gives_up) = (limit.map(|limit| (limit, limit.max(longest_round))), true);
        self
    }

    /// Another limit for the watchdog, of the process that runs too; nothing if there is no watchdog.
    pub fn set_limit(&mut self, limit: Duration, now: Instant) {
        let Some((before, longest_round)) = self.limit.as_mut().filter(|(before, _)| *before != limit) else { return };
        (*before, *longest_round) = (limit, limit);
        if let Some(watchdog) = self.running.as_mut().and_then(|running| running.watchdog.as_mut()) {
            watchdog.set_limit(limit, limit, now);
        }
    }

    /// Has it run on these CPUs only, if any are given.
    pub fn bound_to(mut self, cpus: Option<CpuList>) -> Self {
        self.cpus = cpus;
        self
    }

    /// Has it take short turns, makes for it what its sandbox is made of, and gives rights up for it: that is then no code of the program that maps
    /// guest memory.
    pub fn into_data_plane(mut self) -> Self {
        self.is_data_plane = true;
        self
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls it something else.
    pub fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Whether the process exists.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// Its number, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|r| r.process.id())
    }

    /// Whether it has said that it is ready.
    pub fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|r| r.ready)
    }

    /// Whether it should be started now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.running.is_none() && self.start_at <= now
    }

    /// What it is started with from now on.
    pub fn set_arguments(&mut self, arguments: Vec<String>) {
        self.arguments = arguments;
    }

    /// Starts it with the channel as descriptor 3 and `others` as descriptors 4 and up, and nothing else of ours:
    /// standard input is empty, and what it prints goes to our standard error.
    pub fn start(&mut self, epoll: &Epoll, mut others: Vec<OwnedFd>) -> io::Result<()> {
        let (ours, theirs) = Channel::<S, R>::pair().map_err(io::Error::other)?;
        let (file, program) = self.program_file();
        let mut command = Command::new(file);
        command.arg0(&self.path).args(&self.arguments);
        if self.is_data_plane {
            sandbox::hand(&self.name, &mut command, &mut others);
            take_short_turns_when_started(&mut command);
        }
        let pulse = self.limit.map(|_| Pulse::new()).transpose()?;
        if let Some(pulse) = &pulse {
            command.args(["--pulse-fd".into(), (OTHER_FD + others.len() as i32).to_string()]);
            others.push(pulse.as_fd().try_clone_to_owned()?);
        }
        let second = self.second_channel(&mut command, &mut others)?;
        sandbox::surround(&mut command)?;
        let mappings = std::iter::once((theirs, CHANNEL_FD)).chain(others.into_iter().zip(OTHER_FD..));
        let mappings = mappings.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        command.fd_mappings(mappings.collect()).map_err(io::Error::other)?;
        die_with_parent(&mut command);
        outlive_terminal(&mut command);
        self.cpus.iter().for_each(|cpus| bind_when_started(&mut command, cpus));
        // Behind all else that is done there.
        let given_up = self.is_data_plane.then(|| sandbox::give_up(&mut command)).transpose()?;
        let mut process = command.spawn().map_err(|e| self.explain(&e))?;
        let started = Instant::now();
        given_up.iter().for_each(|given_up| sandbox::say_what_was_not(given_up, &self.name));
        let watched = PidFd::of(&process).and_then(|pidfd| {
            epoll.add(&pidfd, self.pid_token, Trigger::Level)?;
            epoll.add(&ours, self.channel_token, Trigger::Level)?;
            second.iter().try_for_each(|second| epoll.add(second, self.channel_token, Trigger::Level))?;
            Ok((Process::of(&process)?, pidfd))
        });
        let (process, pidfd) = match watched {
            Ok(watched) => watched,
            Err(e) => {
                let _ = process.kill().and_then(|()| process.wait());
                return Err(e.into());
            }
        };
        if self.complaint.take().is_some() {
            info!("{} could be started (pid {})", self.name, process.id());
        } else {
            debug!("{} started (pid {})", self.name, process.id());
        }
        let (channel, queue) = (Channel::within(ours, self.longest), VecDeque::new());
        let watched = pulse.zip(self.limit);
        let watchdog = watched
            .map(|(pulse, (limit, longest_round))| Watchdog::new(pulse, process.id(), limit, longest_round, started));
        self.running = Some(Running {
            process,
            program,
            pidfd,
            channel,
            second,
            queue,
            wants_room: false,
            started,
            ready: false,
            kill_at: Some(started + READY_LIMIT),
            namespace: None,
            watchdog,
            killed: Cell::default(),
            closed: false,
            fault: None,
            planned: false,
        });
        Ok(())
    }

    /// It could not be started, for this reason: says so, once, and tries again later.
    pub fn cannot_start(&mut self, what: String, now: Instant) {
        if self.complaint.as_ref() != Some(&what) {
            error!("{what}");
            self.complaint = Some(what);
        }
        self.start_later(now);
    }

    /// A start failed before there was a process: try again later.
    pub fn start_later(&mut self, now: Instant) {
        self.start_at = now + self.backoff.wait().max(START_WAIT.0);
    }

    /// It has said that it is ready.
    pub fn set_ready(&mut self) {
        if let Some(running) = self.running.as_mut().filter(|running| !running.ready) {
            running.ready = true;
            running.kill_at = None;
            // Without the right to, its end takes as long as it takes.
            let namespace = std::fs::File::open(format!("/proc/{}/ns/mnt", running.process.id()));
            running.namespace = namespace.ok().map(OwnedFd::from);
            self.failed_starts = 0;
        }
    }

    /// Sends a message after those still waiting to be sent. A child that does not run gets none: it is told
    /// everything when it starts.
    pub fn send(&mut self, message: S, fd: Option<OwnedFd>) {
        if let Some(running) = &mut self.running {
            running.queue.push_back((message, fd));
        }
    }

    /// Takes back messages that have not been sent yet.
    pub fn unsend(&mut self, which: impl Fn(&S) -> bool) {
        if let Some(running) = &mut self.running {
            running.queue.retain(|(message, _)| !which(message));
        }
    }

    /// Whether there are such that have not been sent yet.
    pub fn has_unsent(&self, which: impl Fn(&S) -> bool) -> bool {
        self.running.iter().any(|running| running.queue.iter().any(|(message, _)| which(message)))
    }

    /// Sends as much as the channel has room for.
    pub fn flush(&mut self, epoll: &Epoll) {
        let Some(running) = &mut self.running else { return };
        while let Some((message, fd)) = running.queue.front() {
            match running.channel.send(message, fd.as_ref().map(AsFd::as_fd)) {
                Err(ChannelError::WouldBlock) => break,
                Ok(()) => {}
                // It is ending; the pidfd will say so.
                Err(ChannelError::Closed) => {}
                Err(e) => warn!("{}: a message was not sent: {e}", self.name),
            }
            running.queue.pop_front();
        }
        let wants_room = !running.queue.is_empty();
        if wants_room != running.wants_room {
            let trigger = if wants_room { Trigger::ReadWrite } else { Trigger::Level };
            running.wants_room = epoll.modify(&running.channel, self.channel_token, trigger).is_ok() && wants_room;
        }
    }

    /// Takes what it has sent. A child that closed the channel or talks nonsense is of no use any more: it is killed if
    /// it does not end by itself.
    pub fn receive(&mut self, epoll: &Epoll, now: Instant) -> Vec<R> {
        let (messages, fds): (Vec<_>, Vec<_>) = self.receive_with_fds(epoll, now).into_iter().unzip();
        // One thread for all of them.
        let mut all = Came::default();
        fds.into_iter().for_each(|fds| all.append(fds));
        messages
    }

    /// The same, each message with the descriptor that came with it. All others are closed aside: what a session process was sent by its
    /// front-end may be a file whose close(2) never ends.
    pub fn receive_with_fds(&mut self, epoll: &Epoll, now: Instant) -> Vec<(R, Came)> {
        let (mut received, mut others) = (Vec::new(), Vec::new());
        let Some(running) = &mut self.running else { return received };
        received.extend(running.heard_second(epoll));
        while received.len() < RECEIVE_BURST {
            let mut came = Vec::new();
            let message = running.channel.recv_with(&mut came);
            let mut came = came.into_iter();
            let message = message.map(|message| (message, Came::new(came.next())));
            others.extend(came);
            match message {
                Ok(message) => received.push(message),
                Err(ChannelError::WouldBlock) => break,
                Err(e) => {
                    let _ = epoll.delete(&running.channel);
                    if matches!(e, ChannelError::Closed) {
                        running.closed = true;
                        running.kill_at = Some(now + ENDING_LIMIT);
                    } else {
                        warn!("{} (pid {}): {e}; killing it", self.name, running.process.id());
                        running.fault = Some(format!("what it said made no sense: {e}"));
                        running.kill(now);
                    }
                    break;
                }
            }
        }
        close_aside(others);
        received
    }

    /// It has closed its channel: it is ending, or has been killed.
    pub fn has_closed(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.closed)
    }

    /// If it has ended: collects it, decides when to start it again and says how it ended.
    pub fn reap(&mut self, epoll: &Epoll, now: Instant) -> Option<Ended> {
        self.dying.extract_if(.., |dying| dying.has_ended().is_some()).for_each(|dying| dying.forget(epoll));
        let status = self.running.as_mut()?.has_ended()?;
        let running = self.running.take()?;
        let _ = epoll.delete(&running.channel);
        let ended = self.ended(&running, &status.to_string(), status.signal(), status.success(), now);
        running.forget(epoll);
        Some(ended)
    }

    /// If it was killed, by us or by somebody else, and does not end: as if it had. No instruction of its program is carried out any
    /// more, and what it holds, it holds until it can end.
    pub fn give_up(&mut self, epoll: &Epoll, now: Instant) -> Option<Ended> {
        self.running.as_ref()?.killed.get().filter(|killed| *killed + KILLED_LIMIT <= now)?;
        if self.dying.len() >= MOST_DYING {
            return None;
        }
        if let Some(ended) = self.reap(epoll, now) {
            return Some(ended);
        }
        let mut running = self.running.take()?;
        let _ = epoll.delete(&running.channel);
        if let Some(second) = &running.second {
            let _ = epoll.delete(second);
        }
        running.queue.clear();
        let status = "was killed and does not end yet, so it is gone on without";
        let ended = self.ended(&running, status, Some(Signal::KILL.as_raw()), false, now);
        self.dying.push(running);
        Some(ended)
    }

    fn ended(&mut self, running: &Running<S, R>, status: &str, signal: Option<i32>, well: bool, now: Instant) -> Ended {
        if running.ready && now.saturating_duration_since(running.started) >= GOOD_LIFE {
            self.backoff.reset();
        }
        if !running.ready {
            self.failed_starts += 1;
        }
        let wait = self.backoff.wait();
        self.start_at = now + wait;
        let what = format!("{} (pid {}) ended: {status}", self.name, running.process.id());
        let was_killed = running.ready && signal == Some(Signal::KILL.as_raw());
        let why = running.fault.clone().unwrap_or_else(|| format!("ended: {status}"));
        if !running.ready {
            self.failed_as.clone_from(&why);
        }
        Ended { what, why, failed_starts: self.failed_starts, was_killed, well, planned: running.planned, wait }
    }

    /// When it has to be started, or looked at, or killed because it hangs.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.running {
            None => Some(self.start_at),
            Some(running) if self.gives_up && running.killed.get().is_some() => {
                running.killed.get().map(|killed| killed + KILLED_LIMIT).filter(|_| self.dying.len() < MOST_DYING)
            }
            Some(running) => {
                let watch = running.watchdog.as_ref().filter(|_| running.ready).map(Watchdog::deadline);
                running.kill_at.into_iter().chain(watch).min()
            }
        }
    }

    /// Kills it if it has not become ready, or not ended, in time.
    pub fn check_hang(&mut self, now: Instant) {
        if let Some(running) = &mut self.running
            && running.kill_at.take_if(|at| *at <= now).is_some()
        {
            let fault = if running.ready { "has closed its channel but does not end" } else { "does not become ready" };
            warn!("{} (pid {}) {fault}; killing it", self.name, running.process.id());
            // The pidfd reports the end.
            running.fault = Some(format!("hung: it {fault}"));
            running.kill(now);
        }
    }

    /// Kills it if a thread of it hangs, and says which.
    pub fn kill_if_hung(&mut self, now: Instant) -> Option<Hung> {
        let running = self.running.as_mut().filter(|running| running.ready && running.killed.get().is_none())?;
        let watchdog = running.watchdog.as_mut().filter(|watchdog| watchdog.deadline() <= now)?;
        let hung = watchdog.look(now);
        if let Some(Hung { name, how, .. }) = &hung {
            running.fault = Some(format!("hung: its thread {name} {how}"));
        }
        // Of one that is ending nobody says so while a thread is left that cannot end; and one that ended its first thread alone is to end.
        if hung.is_some() || watchdog::is_ending(running.process.id()) {
            running.kill(now);
        }
        hung
    }

    /// It is going to end, because of this.
    pub fn set_fault(&mut self, fault: &str) {
        if let Some(running) = &mut self.running {
            running.fault = Some(fault.into());
        }
    }

    /// Ends it at once, because this is wrong with it. Its end is reported like any other.
    pub fn kill_for(&mut self, fault: &str) {
        self.set_fault(fault);
        self.kill();
    }

    /// Ends it at once. Its end is reported like any other.
    pub fn kill(&self) {
        if let Some(running) = &self.running {
            running.kill(Instant::now());
        }
    }
}

impl<S: 'static, R: 'static> Running<S, R> {
    fn kill(&self, now: Instant) {
        let _ = self.pidfd.kill();
        self.killed.set(self.killed.get().or(Some(now)));
    }

    fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok()?
    }

    /// It has ended. What it has sent and nobody has read goes with its channels, and may be any file.
    fn forget(self, epoll: &Epoll) {
        let Self { pidfd, channel, second, namespace, .. } = self;
        let _ = epoll.delete(&pidfd);
        // One whose end was heard is deleted already.
        let _ = epoll.delete(&channel);
        drop_aside((channel, second, namespace));
    }
}

impl<S, R> Drop for Child<S, R> {
    /// No child and no zombie is left, whatever ended the supervisor, but for one that cannot end.
    fn drop(&mut self) {
        if let Some(running) = self.running.as_mut().filter(|_| !handover::is_under_way()) {
            let _ = running.pidfd.kill();
            if !running.pidfd.has_ended_within(ENDING_LIMIT) {
                warn!("{} (pid {}) was killed and does not end; it is left behind", self.name, running.process.id());
            }
            let _ = running.process.try_wait();
        }
    }
}
