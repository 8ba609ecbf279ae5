//! Scheduling classes of our own threads, and timers.

use rustix::io::Errno;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The calling thread, as the kernel numbers it.
pub fn current_thread() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// Processor time that the calling thread has used, in nanoseconds.
pub fn thread_time_ns() -> u64 {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).map_or(0, |used| used.as_nanos() as u64)
}

/// Lets a thread (0: the calling one, the only one that the sandbox allows) run only on cycles that nobody else wants
/// (SCHED_IDLE), or again like any other. The way back needs
/// RLIMIT_NICE to be 20 or more, or CAP_SYS_NICE: `PERM` otherwise. `SRCH` when it has ended.
pub fn set_idle(thread: i32, idle: bool) -> Result<(), Errno> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads `param`, which lives until the call returns, and changes nothing of ours in memory.
    if unsafe { libc::sched_setscheduler(thread, policy, &param) } < 0 { Err(last_errno()) } else { Ok(()) }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Asks the supervisor, who may, to put threads of ours into the normal class, or out of a VM's control group.
#[derive(Debug)]
pub struct Prompter(OwnedFd);

impl Prompter {
    /// By a pipe that does not block.
    pub fn new(pipe: OwnedFd) -> Self {
        Self(pipe)
    }

    /// Asks for the one with this number; times -1: nobody waits for it any more. If the pipe is full, somebody has asked often
    /// enough.
    pub fn ask(&self, thread: i32) {
        let _ = rustix::io::write(&self.0, &thread.to_ne_bytes());
    }
}

/// Binds the calling thread to one CPU. `INVAL` when it is not online or not allowed here.
pub fn bind_current_thread(cpu: usize) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// A timer that is readable when its time has come (timerfd_create(2), CLOCK_MONOTONIC). Any thread may set it.
#[derive(Debug)]
pub struct TimerFd(OwnedFd);

impl TimerFd {
    /// Not running.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?))
    }

    /// Runs out once in `ns` nanoseconds (0 counts as 1), whatever it was set to before.
    pub fn set_ns(&self, ns: u64) {
        let (tv_sec, tv_nsec) = ((ns / 1_000_000_000) as i64, (ns.max(1) % 1_000_000_000) as i64);
        let value = Itimerspec { it_interval: Timespec::default(), it_value: Timespec { tv_sec, tv_nsec } };
        // Nothing can be wrong with these arguments.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &value);
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoll, Trigger};
    use std::time::Instant;

    #[test]
    fn another_thread_is_made_idle_and_normal_again() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(current_thread()).unwrap();
            let _ = ended.recv();
        });
        let id = told.recv().unwrap();
        // SAFETY: no memory is involved.
        let policy = || unsafe { libc::sched_getscheduler(id) };
        set_idle(id, true).unwrap();
        assert_eq!(policy(), libc::SCHED_IDLE);
        set_idle(id, false).unwrap();
        assert_eq!(policy(), libc::SCHED_OTHER);
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn a_timer_runs_out_once() {
        let (epoll, timer) = (Epoll::new().unwrap(), TimerFd::new().unwrap());
        epoll.add(&timer, 7, Trigger::Edge).unwrap();
        let start = Instant::now();
        timer.set_ns(5_000_000);
        let mut ready = Vec::new();
        epoll.wait(&mut ready, Some(Duration::from_secs(10))).unwrap();
        assert_eq!(ready, [7]);
        assert!(start.elapsed() >= Duration::from_millis(5));
        epoll.wait(&mut ready, Some(Duration::from_millis(10))).unwrap();
        assert_eq!(ready, []);
        // Set anew without having been read, it reports again.
        timer.set_ns(0);
        epoll.wait(&mut ready, Some(Duration::from_secs(10))).unwrap();
        assert_eq!(ready.len(), 1);
    }
}
