//! The processor time of all threads and processes, as the kernel counts it.

use super::port_threads::Thread;
use super::supervisor::Supervisor;
use lasthop_management_ipc::{CpuTimes, EngineKind, SupervisorToControl};
use lasthop_policy::engine_name;
use lasthop_types::PortId;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// Threads' names are read anew after this.
const NAMES_AGE: Duration = Duration::from_secs(60);

impl Supervisor {
    /// What processes have used, and what goes with it.
    pub(super) fn tell_cpu_times(&mut self, request: u64) {
        // What is wrong with ports is told before they are shown.
        self.presence.ask();
        self.look_after_sockets(Instant::now());
        let (times, replaced) = (self.cpu_times(), self.replaced.list(Instant::now()));
        let host = self.host_facts();
        self.control.send(SupervisorToControl::CpuTimes { request, times, replaced, host }, None);
    }

    /// Processor time of the port's threads.
    pub(super) fn time_of_threads(&mut self, port: u32) -> Option<u64> {
        let process = self.switch.pid()?;
        self.port_threads.time(port, |number| Thread { process, number }.cpu_ns())
    }

    /// What has been used so far. Threads are read before their process, so that they never have used more than it has.
    pub(super) fn cpu_times(&mut self) -> CpuTimes {
        let mut times = CpuTimes {
            control_ns: self.control.pid().map_or(0, process_ns),
            uplinks_ns: self.uplinks.values().flat_map(|uplink| uplink.pids()).map(process_ns).sum(),
            sessions_ns: self.sessions.pids().map(process_ns).sum(),
            supervisor_ns: process_ns(std::process::id()),
            ..CpuTimes::default()
        };
        let Some(process) = self.switch.pid() else { return times };
        let ports = self.port_threads.ports().into_iter();
        times.ports = ports.filter_map(|port| Some((PortId(port), self.time_of_threads(port)?))).collect();
        times.main_ns = Thread { process, number: process as i32 }.cpu_ns().unwrap_or(0);
        times.helpers_ns = of_engines(process).into_iter().filter_map(|(_, thread)| thread.cpu_ns()).sum();
        times.switch_ns = process_ns(process);
        times
    }
}

/// The helpers and pollers of a switch by the names that it gives its threads, like `poll-3`. Those of ports begin otherwise.
pub(super) fn of_engines(process: u32) -> Vec<(String, Thread)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let threads =
        tasks.filter_map(move |task| Some(Thread { process, number: task.file_name().to_str()?.parse().ok()? }));
    let named = threads.map(|thread| {
        let name = fs::read_to_string(thread.proc().join("comm")).unwrap_or_default();
        (name.trim_end().to_owned(), thread)
    });
    let kinds = [EngineKind::Poll, EngineKind::Helper].map(|kind| engine_name(kind.name(), ""));
    named.filter(|(name, _)| kinds.iter().any(|kind| name.starts_with(kind))).collect()
}

/// The time of all helpers, for who asks each second: their names are not read each time. Cores that poll are busy with packets or without, and have
/// nothing of a port with a thread of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineTimes {
    process: u32,
    threads: Vec<Thread>,
    /// When their names were.
    read: Option<Instant>,
}

impl EngineTimes {
    /// Nanoseconds that those of this switch have used together; 0 without one.
    pub fn cpu_ns(&mut self, switch: Option<u32>, now: Instant) -> u64 {
        let Some(process) = switch else { return 0 };
        let is_new = self.read.is_some_and(|read| now.saturating_duration_since(read) < NAMES_AGE);
        // One that has ended has no time.
        let known = Some(()).filter(|()| is_new && self.process == process).and_then(|()| self.sum());
        known.unwrap_or_else(|| {
            let helps = engine_name(EngineKind::Helper.name(), "");
            let helpers = of_engines(process).into_iter().filter(|(name, _)| name.starts_with(&helps));
            let threads = helpers.map(|(_, thread)| thread).collect();
            *self = Self { process, threads, read: Some(now) };
            self.threads.iter().filter_map(|thread| thread.cpu_ns()).sum()
        })
    }

    fn sum(&self) -> Option<u64> {
        self.threads.iter().map(|thread| thread.cpu_ns()).sum()
    }
}

/// Processor time, in nanoseconds, of a process with all its threads, those that have ended too; 0 if it has ended itself.
pub(super) fn process_ns(pid: u32) -> u64 {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32));
    let time = clock.and_then(|clock| clock.now()).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_threads_are_read_once_a_minute_or_when_one_has_ended() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let start = |name: &str, until: Option<std::sync::mpsc::Receiver<()>>| {
            let (begun, begins) = std::sync::mpsc::channel();
            let run = move || {
                begun.send(()).unwrap();
                // Without anything that ends it, it stays.
                match until {
                    Some(until) => until.recv().unwrap_or_default(),
                    None => loop {
                        std::thread::park();
                    },
                }
            };
            let thread = std::thread::Builder::new().name(name.into()).spawn(run).unwrap();
            begins.recv().unwrap();
            thread
        };
        let first = start("helper-7", Some(ended));
        let (mut times, process, now) = (EngineTimes::default(), Some(std::process::id()), Instant::now());
        let mut known = |seconds| {
            times.cpu_ns(process, now + Duration::from_secs(seconds));
            times.threads.len()
        };
        assert_eq!(known(0), 1);
        start("poll-8", None);
        start("helper-9", None);
        assert_eq!((known(59), known(60)), (1, 2), "the names were read again");
        drop(end);
        first.join().unwrap();
        // Who joins a thread may be told a moment before it is gone.
        while known(61) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(EngineTimes::default().cpu_ns(None, now), 0);
    }

    #[test]
    fn a_process_has_used_what_its_threads_have_those_that_ended_too() {
        let process = std::process::id();
        let spin = move || {
            let thread = Thread { process, number: rustix::thread::gettid().as_raw_nonzero().get() };
            while thread.cpu_ns().expect("this thread runs") < 20_000_000 {
                std::hint::spin_loop();
            }
            thread
        };
        let before = process_ns(process);
        let ended = std::thread::spawn(spin).join().unwrap();
        assert!(process_ns(process) >= before + 20_000_000);
        // Who joins a thread may be told a moment before it is gone.
        while ended.cpu_ns().is_some() {
            std::thread::yield_now();
        }
        // One of somebody else is none of the switch's.
        assert_eq!(Thread { process, number: 1 }.cpu_ns(), None);
        // No process has so high a number.
        assert_eq!(process_ns(1 << 23), 0);
    }
}
