//! The cable of a device: the process `lasthop-cable` between a port of this lasthop and one of the device's. It ends when either switch is
//! gone, and is started again; it waits by itself until both are there. It is no part of what `ready` says.

use super::backoff::Backoff;
use super::handover::{self, Fd, Giver, Moment, Taker};
use lasthop_log::{FORMAT_VARIABLE, Format};
use lasthop_sys::{CpuList, Epoll, PidFd, Process, Trigger, bind_when_started, die_with_parent, outlive_terminal};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Name of the device's port that the cable is plugged in to; the host's has the device's name.
pub const FAR_PORT: &str = "host";
/// A cable that carried this long did not end of its start.
const GOOD_LIFE: Duration = Duration::from_secs(1);

/// The only variables of the environment that it sees, beside the format of the log.
const ENVIRONMENT: [&str; 2] = ["RUST_LOG", "RUST_BACKTRACE"];

/// One that was killed has ended by then, or is left behind.
const ENDING_LIMIT: Duration = Duration::from_secs(1);

/// What another program of this process goes on with.
#[derive(Debug, Serialize, Deserialize)]
pub struct CableState {
    running: Option<(u32, Fd, Moment)>,
    start_at: Moment,
    backoff: Backoff,
}

/// One cable.
#[derive(Debug)]
pub struct Cable {
    /// What it is called in the log.
    name: String,
    program: PathBuf,
    /// Sockets of the host's port and of the device's.
    sockets: [PathBuf; 2],
    cpus: Option<CpuList>,
    running: Option<(Process, PidFd, Instant)>,
    start_at: Instant,
    backoff: Backoff,
}

impl Cable {
    /// One that does not run.
    pub fn new(device: &str, program: PathBuf, sockets: [PathBuf; 2], cpus: Option<CpuList>) -> Self {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let (name, start_at) = (format!("cable of device {device}"), Instant::now());
        Self { name, program, sockets, cpus, running: None, start_at, backoff }
    }

    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &mut Giver) -> CableState {
        let running = self.running.as_ref();
        CableState {
            running: running.map(|(process, pidfd, at)| (process.id(), giver.fd(pidfd), giver.moment(*at))),
            start_at: giver.moment(self.start_at),
            backoff: self.backoff.clone(),
        }
    }

    /// This one, which does not run, is the one that was handed over. If that cannot be gone on with, it is started again.
    pub fn resume(&mut self, state: CableState, epoll: &Epoll, token: u64, taker: &Taker) {
        (self.start_at, self.backoff) = (taker.at(state.start_at), state.backoff);
        let Some((pid, pidfd, started)) = state.running else { return };
        match resumed(pid, taker.fd(pidfd), epoll, token) {
            Ok((process, pidfd)) => self.running = Some((process, pidfd, taker.at(started))),
            Err(e) => {
                warn!("{} (pid {pid}) cannot be gone on with: {e}; starting another", self.name);
                self.start_at = Instant::now();
            }
        }
    }

    /// Starts it if it is due. Its end is reported by the token. What cannot be started is tried again.
    pub fn start(&mut self, epoll: &Epoll, token: u64, now: Instant) {
        if self.running.is_some() || self.start_at > now {
            return;
        }
        match self.spawn(epoll, token) {
            Ok(running) => {
                info!("{} started (pid {})", self.name, running.0.id());
                self.running = Some(running);
            }
            Err(e) => {
                warn!("{}: {}: {e}; trying again in a second", self.name, self.program.display());
                self.start_at = now + Duration::from_secs(1);
            }
        }
    }

    fn spawn(&self, epoll: &Epoll, token: u64) -> io::Result<(Process, PidFd, Instant)> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.sockets)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        command.env_clear().envs(ENVIRONMENT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        command.env(FORMAT_VARIABLE, Format::current().name());
        die_with_parent(&mut command);
        outlive_terminal(&mut command);
        if let Some(cpus) = &self.cpus {
            bind_when_started(&mut command, cpus);
        }
        let mut process = command.spawn()?;
        let watched = PidFd::of(&process).and_then(|pidfd| {
            epoll.add(&pidfd, token, Trigger::Level)?;
            Ok((Process::of(&process)?, pidfd))
        });
        match watched {
            Ok((process, pidfd)) => Ok((process, pidfd, Instant::now())),
            Err(e) => {
                let _ = process.kill().and_then(|()| process.wait());
                Err(e.into())
            }
        }
    }

    /// It has ended: how, and it is to be started again. `None` if it has not.
    pub fn reap(&mut self, epoll: &Epoll, now: Instant) -> Option<String> {
        let how = self.running.as_mut()?.0.how_it_ended()?;
        let (process, pidfd, started) = self.running.take()?;
        let _ = epoll.delete(&pidfd);
        if now.saturating_duration_since(started) >= GOOD_LIFE {
            self.backoff.reset();
        }
        self.start_at = now + self.backoff.wait();
        Some(format!("{} (pid {}) ended: {how}", self.name, process.id()))
    }

    /// Socket of the host's port that it is plugged in to.
    pub fn host_socket(&self) -> &Path {
        &self.sockets[0]
    }

    /// When it is to be started again.
    pub fn deadline(&self) -> Option<Instant> {
        self.running.is_none().then_some(self.start_at)
    }
}

/// The process that was handed over, and its descriptor, or another where that is missing or another thing. One that ended meanwhile is reported like any other.
fn resumed(
    pid: u32,
    pidfd: Result<OwnedFd, String>,
    epoll: &Epoll,
    token: u64,
) -> Result<(Process, PidFd), rustix::io::Errno> {
    let mut process = Process::kept(pid)?;
    let watched = |pidfd: PidFd| epoll.add(&pidfd, token, Trigger::Level).map(|()| pidfd);
    let pidfd = match pidfd.ok().and_then(|fd| watched(PidFd::kept(fd)).ok()) {
        Some(pidfd) => pidfd,
        None => watched(PidFd::of_kept(&mut process)?)?,
    };
    Ok((process, pidfd))
}

impl Drop for Cable {
    /// It has nothing to put in order.
    fn drop(&mut self) {
        if let Some((process, pidfd, _)) = self.running.as_mut().filter(|_| !handover::is_under_way()) {
            let _ = pidfd.kill();
            pidfd.has_ended_within(ENDING_LIMIT);
            let _ = process.try_wait();
        }
    }
}
