//! A child that goes on under another program of this process.

use super::super::backoff::Backoff;
use super::super::handover::{Fd, Giver, Moment, Taker};
use super::super::watchdog::Watchdog;
use super::{Child, Running};
use lasthop_ipc::Channel;
use lasthop_sys::{Epoll, PidFd, Process, Pulse, Trigger};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::cell::Cell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What there is to know of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChildState {
    path: PathBuf,
    held: Option<Fd>,
    start_at: Moment,
    backoff: Backoff,
    failed_starts: u32,
    complaint: Option<String>,
    limit: Option<(Duration, Duration)>,
    running: Option<RunningState>,
}

/// The same of its process.
#[derive(Debug, Serialize, Deserialize)]
struct RunningState {
    pid: u32,
    pidfd: Fd,
    channel: Fd,
    #[serde(default)]
    second: Option<Fd>,
    program: Option<Fd>,
    namespace: Option<Fd>,
    pulse: Option<Fd>,
    started: Moment,
}

impl<S: Serialize, R: DeserializeOwned> Child<S, R> {
    /// What of it is half done, so that no other program can go on with it.
    pub fn unsettled(&self) -> Option<String> {
        let name = &self.name;
        if !self.dying.is_empty() {
            return Some(format!("a {name} that was killed does not end"));
        }
        let running = self.running.as_ref()?;
        if !running.ready {
            return Some(format!("{name} is not ready"));
        }
        if running.closed || running.killed.get().is_some() {
            return Some(format!("{name} is ending"));
        }
        (!running.queue.is_empty()).then(|| format!("{name} does not read what it is told"))
    }

    /// Of one that is settled.
    pub fn hand_over(&self, giver: &mut Giver) -> ChildState {
        ChildState {
            path: self.path.clone(),
            held: self.held.as_ref().map(|file| giver.fd(file)),
            start_at: giver.moment(self.start_at),
            backoff: self.backoff.clone(),
            failed_starts: self.failed_starts,
            complaint: self.complaint.clone(),
            limit: self.limit,
            running: self.running.as_ref().map(|running| RunningState {
                pid: running.process.id(),
                pidfd: giver.fd(&running.pidfd),
                channel: giver.fd(&running.channel),
                second: running.second.as_ref().map(|second| giver.fd(second)),
                program: running.program.as_ref().map(|file| giver.fd(file)),
                namespace: running.namespace.as_ref().map(|namespace| giver.fd(namespace)),
                pulse: running.watchdog.as_ref().map(|watchdog| giver.fd(watchdog.page())),
                started: giver.moment(running.started),
            }),
        }
    }

    /// This child, which does not run, is the one that was handed over.
    pub fn resume(&mut self, state: ChildState, epoll: &Epoll, taker: &Taker) -> Result<(), String> {
        self.path = state.path;
        self.held = state.held.map(|file| taker.fd(file)).transpose()?;
        self.start_at = taker.at(state.start_at);
        (self.backoff, self.failed_starts, self.complaint) = (state.backoff, state.failed_starts, state.complaint);
        self.limit = self.limit.and(state.limit);
        let Some(running) = state.running else { return Ok(()) };
        let failed = |e: rustix::io::Errno| format!("{} (pid {}): {e}", self.name, running.pid);
        let fd = |fd: Option<Fd>| fd.map(|fd| taker.fd(fd)).transpose();
        let (pidfd, channel) = (PidFd::kept(taker.fd(running.pidfd)?), taker.fd(running.channel)?);
        epoll.add(&pidfd, self.pid_token, Trigger::Level).map_err(failed)?;
        epoll.add(&channel, self.channel_token, Trigger::Level).map_err(failed)?;
        let second = fd(running.second)?;
        second.iter().try_for_each(|second| epoll.add(second, self.channel_token, Trigger::Level)).map_err(failed)?;
        let watched = fd(running.pulse)?.map(Pulse::kept).zip(self.limit);
        let now = Instant::now();
        let watchdog =
            watched.map(|(pulse, (limit, longest_round))| Watchdog::new(pulse, running.pid, limit, longest_round, now));
        self.running = Some(Running {
            process: Process::kept(running.pid).map_err(failed)?,
            program: fd(running.program)?,
            pidfd,
            channel: Channel::within(channel, self.longest),
            second: second.map(Channel::new),
            queue: VecDeque::new(),
            wants_room: false,
            started: taker.at(running.started),
            ready: true,
            kill_at: None,
            namespace: fd(running.namespace)?,
            watchdog,
            killed: Cell::default(),
            closed: false,
            fault: None,
            planned: false,
        });
        Ok(())
    }

    /// This child, which does not run, is this process, with the other end of this channel.
    #[cfg(test)]
    pub fn becomes(&mut self, process: &std::process::Child, channel: std::os::fd::OwnedFd) {
        self.running = Some(Running {
            process: Process::of(process).expect("it runs"),
            program: None,
            pidfd: PidFd::of(process).expect("it runs"),
            channel: Channel::new(channel),
            second: None,
            queue: VecDeque::new(),
            wants_room: false,
            started: Instant::now(),
            ready: false,
            kill_at: None,
            namespace: None,
            watchdog: None,
            killed: Cell::default(),
            closed: false,
            fault: None,
            planned: false,
        });
    }
}
