//! Starting and watching other processes: pidfd, death signal, signals as readable events.

use crate::CpuList;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, pidfd_open, pidfd_send_signal, waitid, waitpid,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};

/// A child of this process, whichever program has started it: execve(2) changes the program, and children stay.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    ended: Option<ExitStatus>,
}

impl Process {
    /// One that this program has started.
    pub fn of(child: &Child) -> Result<Self, Errno> {
        Self::kept(child.id())
    }

    /// One that the program before this one has started and has not waited for.
    pub fn kept(pid: u32) -> Result<Self, Errno> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        collector();
        Ok(Self { pid, ended: None })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    /// How it ended, if it has; has it [collected](collect) then. `CHILD`: it is no child of ours.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Errno> {
        if self.ended.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let ended = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(self.pid), options))?;
            // As wait(2) has it: what the process said of itself, or the signal.
            let dumped = ended.as_ref().is_some_and(|ended| ended.dumped());
            let raw = ended.and_then(|ended| ended.exit_status().map(|code| code << 8).or(ended.terminating_signal()));
            self.ended = raw.map(|raw| ExitStatus::from_raw(raw | if dumped { 0x80 } else { 0 }));
            if self.ended.is_some() {
                collect(self.pid);
            }
        }
        Ok(self.ended)
    }

    /// How it ended, in words, if it has. Of what is no child of ours any more nobody hears how.
    pub fn how_it_ended(&mut self) -> Option<String> {
        match self.try_wait() {
            Ok(status) => status.map(|status| status.to_string()),
            Err(e) => Some(format!("how is not known: {e}")),
        }
    }
}

/// Processes that have ended and are not collected yet.
static UNCOLLECTED: AtomicUsize = AtomicUsize::new(0);

/// Collects a process that has ended, on a thread that does nothing else. wait(2) returns when the kernel has let go of all that /proc shows of the process, which it
/// tries again and again while somebody who reads /proc is stopped in the middle of it: for many seconds, where that one gets little of the processors.
fn collect(pid: Pid) {
    UNCOLLECTED.fetch_add(1, Relaxed);
    if collector().send(pid).is_err() {
        wait(pid);
    }
}

/// Where the thread is told, which begins with the first child: the end of one is a bad moment to find that there can be no more threads.
fn collector() -> &'static Sender<Pid> {
    static TO_COLLECT: OnceLock<Sender<Pid>> = OnceLock::new();
    TO_COLLECT.get_or_init(|| {
        let (to_collect, ended) = channel();
        let thread = std::thread::Builder::new().name("collect".into()).stack_size(64 << 10);
        // Without the thread nobody has the other end.
        let _ = thread.spawn(move || ended.into_iter().for_each(wait));
        to_collect
    })
}

fn wait(pid: Pid) {
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
    UNCOLLECTED.fetch_sub(1, Relaxed);
}

/// How many children have ended that the kernel still has: another program of this process would never collect them.
pub fn uncollected() -> usize {
    UNCOLLECTED.load(Relaxed)
}

/// A descriptor of a child process (pidfd_open(2)): readable once it has ended.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// For a child that has not been waited for, so that its number cannot have gone to somebody else.
    pub fn of(child: &Child) -> Result<Self, Errno> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// The same, of one that another program of this process has started. `SRCH`: it has ended, and may have been waited for.
    pub fn of_kept(process: &mut Process) -> Result<Self, Errno> {
        match process.try_wait() {
            Ok(None) => Ok(Self(pidfd_open(process.pid, PidfdFlags::empty())?)),
            _ => Err(Errno::SRCH),
        }
    }

    /// One that another program of this process has made.
    pub fn kept(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Ends the process at once (SIGKILL). One that has ended already is no error.
    pub fn kill(&self) -> Result<(), Errno> {
        match pidfd_send_signal(&self.0, Signal::KILL) {
            Err(Errno::SRCH) => Ok(()),
            other => other,
        }
    }

    /// Waits for its end, so long at most.
    pub fn has_ended_within(&self, limit: std::time::Duration) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let limit = rustix::time::Timespec::try_from(limit).ok();
        rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref())).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes the process that `command` starts die by SIGKILL when the thread that starts it ends, however it ends.
/// [`crate::sandbox::Confinement::enter`] keeps this alive over the change of user, which would clear it.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: prctl with these arguments touches no memory.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the line above took effect.
        // SAFETY: getppid has no preconditions.
        if u32::try_from(unsafe { libc::getppid() }) != Ok(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it makes two system calls and neither allocates nor locks.
    unsafe { command.pre_exec(prepare) };
}

/// Makes the process that `command` starts ignore SIGHUP: a terminal that goes away is the supervisor's business.
pub fn outlive_terminal(command: &mut Command) {
    let prepare = || {
        // SAFETY: signal(2) with these constants touches no memory of ours, and what it sets is kept over exec.
        if unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it makes one system call and neither allocates nor locks.
    unsafe { command.pre_exec(prepare) };
}

/// Binds the process that `command` starts, and so all its threads, to these CPUs. Starting it fails with `INVAL` when
/// none of them is online or allowed here.
pub fn bind_when_started(command: &mut Command, cpus: &CpuList) {
    let set = cpus.set();
    // SAFETY: the closure runs between fork and exec; it makes one system call and neither allocates nor locks.
    unsafe { command.pre_exec(move || Ok(rustix::thread::sched_setaffinity(None, &set)?)) };
}

/// How long the kernel lets a thread of the switch run before others get their turn: as short as it can be (sched(7); before Linux
/// 6.12 it cannot be said). Who yields forfeits what is left of it.
const SLICE_NS: u64 = 100_000;

/// Has the process that `command` starts, and all its threads, take short turns on a core where the kernel lets them and the
/// scheduling class is the normal one, and has their timers run out when they are to (the kernel gives itself 50 µs otherwise).
pub fn take_short_turns_when_started(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec; it makes three system calls and neither allocates nor locks.
    unsafe {
        command.pre_exec(|| {
            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
            take_short_turns();
            Ok(())
        });
    }
}

/// For this thread and those that it starts. Its niceness stays, and its program may be replaced (execve(2)).
fn take_short_turns() {
    let size = std::mem::size_of::<libc::sched_attr>() as u32;
    // SAFETY: all of it are numbers, of which any may be 0.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes to `attr`, which lives until the call returns.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) } == 0;
    if known && attr.sched_policy == libc::SCHED_OTHER as u32 {
        attr.sched_runtime = SLICE_NS;
        // SAFETY: the kernel reads `attr`, which lives until the call returns, and changes nothing of ours in memory.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    }
}

/// Sets close-on-exec on every descriptor from 3 on, so that what a careless parent left open in us does not reach the
/// processes we start.
pub fn keep_descriptors_from_children() {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed; only a flag changes, which no owner in this process relies on.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done < 0 {
        // Linux before 5.11.
        for fd in 3..4096 {
            // SAFETY: fcntl on any number is harmless; it fails with EBADF on one that is not open.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// A signal a [`SignalFd`] can watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// SIGTERM: somebody asks us to end.
    Terminate,
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGHUP: somebody wants the configuration read again, or the terminal went away.
    HangUp,
}

const WATCHED: [(Watched, libc::c_int); 3] =
    [(Watched::Terminate, libc::SIGTERM), (Watched::Interrupt, libc::SIGINT), (Watched::HangUp, libc::SIGHUP)];

/// The signals of [`Watched`] as a readable descriptor (signalfd(2)), non-blocking.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks the signals in the calling thread (and those it starts later) and makes them readable here. For a
    /// process with one thread: another thread that does not block them would still die of them.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: an all-zero sigset_t is valid memory for sigemptyset to initialise; the other calls get that set by
        // valid pointers, signal numbers are constants, and the result is checked before it becomes an owner.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for (_, number) in WATCHED {
                libc::sigaddset(&mut set, number);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(Errno::from_raw_os_error(error));
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
            }
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// The next signal that has come, if one has.
    pub fn read(&self) -> Option<Watched> {
        // SAFETY: signalfd_siginfo is plain numbers, valid when zero; read gets its address and exact size.
        let (read, info) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let read = libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info));
            (read, info)
        };
        let number = libc::c_int::try_from(info.ssi_signo).ok()?;
        if read <= 0 {
            return None;
        }
        WATCHED.iter().find(|(_, n)| *n == number).map(|(signal, _)| *signal)
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoll, Trigger};

    #[test]
    fn pidfd_reports_the_end_and_kills() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let (pidfd, epoll) = (PidFd::of(&child).unwrap(), Epoll::new().unwrap());
        epoll.add(&pidfd, 1, Trigger::Level).unwrap();
        let mut ready = Vec::new();
        epoll.wait(&mut ready, Some(std::time::Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        pidfd.kill().unwrap();
        epoll.wait(&mut ready, None).unwrap();
        assert_eq!(ready.len(), 1);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        pidfd.kill().unwrap();
    }

    #[test]
    fn a_child_is_collected_once_by_its_number() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let (pidfd, mut process) = (PidFd::of(&child).unwrap(), Process::kept(child.id()).unwrap());
        assert_eq!((process.try_wait(), process.id()), (Ok(None), child.id()));
        pidfd.kill().unwrap();
        assert!(pidfd.has_ended_within(std::time::Duration::from_secs(20)));
        let ended = process.try_wait().unwrap().unwrap();
        assert_eq!((ended.signal(), process.try_wait()), (Some(libc::SIGKILL), Ok(Some(ended))));
        // Soon, and by another thread: what /proc shows of it goes with that.
        let begun = std::time::Instant::now();
        while Process::of(&child).unwrap().try_wait() != Err(Errno::CHILD) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it is collected");
        }
        assert!(child.wait().is_err() && !std::fs::exists(format!("/proc/{}", child.id())).unwrap());
    }

    #[test]
    fn how_a_child_ended_is_as_it_was() {
        for (how, code, signal) in [
            ("exit 0", Some(0), None),
            ("exit 7", Some(7), None),
            ("exit 255", Some(255), None),
            ("kill -TERM $$", None, Some(libc::SIGTERM)),
            ("kill -KILL $$", None, Some(libc::SIGKILL)),
        ] {
            let mut child = Command::new("sh").args(["-c", how]).stderr(std::process::Stdio::null()).spawn().unwrap();
            let (pidfd, mut process) = (PidFd::of(&child).unwrap(), Process::of(&child).unwrap());
            assert!(pidfd.has_ended_within(std::time::Duration::from_secs(20)));
            let ended = process.try_wait().unwrap().expect("it has ended");
            assert_eq!((ended.code(), ended.signal(), ended.core_dumped()), (code, signal, false), "{how}");
            // Whoever comes first: this, or the thread that collects.
            let _ = child.wait();
        }
    }

    #[test]
    fn a_child_outlives_the_terminal() {
        let mut command = Command::new("sleep");
        command.arg("600");
        outlive_terminal(&mut command);
        let mut child = command.spawn().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & 1, 1, "SIGHUP is signal 1");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn turns_and_timers_of_a_child_are_short() {
        let runtime = |process: u32| {
            // SAFETY: all of it are numbers, of which any may be 0.
            let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
            let size = size_of::<libc::sched_attr>() as u32;
            // SAFETY: the kernel writes at most `size` bytes to `attr`, which lives until the call returns.
            let done = unsafe { libc::syscall(libc::SYS_sched_getattr, process, &raw mut attr, size, 0) };
            (done, attr.sched_policy, attr.sched_nice, attr.sched_runtime)
        };
        let (_, policy, nice, before) = runtime(0);
        // A shell whose children have what its threads would have.
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        take_short_turns_when_started(&mut command);
        let mut shell = command.spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let sleep: u32 = line.trim().parse().unwrap();
        // A kernel before 6.12 says 0 and keeps to its own.
        let wanted = if before == 0 { 0 } else { SLICE_NS };
        for process in [shell.id(), sleep] {
            assert_eq!(runtime(process), (0, policy, nice, wanted));
        }
        let slack = |process: u32| std::fs::read_to_string(format!("/proc/{process}/timerslack_ns"));
        assert!(slack(shell.id()).is_ok_and(|ns| ns.trim() == "1"), "{:?}", slack(shell.id()));
        rustix::process::kill_process(Pid::from_raw(sleep as i32).unwrap(), Signal::KILL).unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn death_signal_is_set_before_exec() {
        let spawned = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("600");
            die_with_parent(&mut command);
            command.spawn().unwrap()
        });
        // The starting thread ends here, and so must the child.
        let mut child = spawned.join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
