//! The threads of ports in the switch, and the processor time of all threads and processes, as the kernel counts it.

use super::supervisor::Supervisor;
use lasthop_management_ipc::CpuTimes;
use lasthop_types::PortId;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// A thread of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The switch's process.
    pub process: u32,
    /// Its number, which is the switch's word.
    pub number: i32,
}

impl Thread {
    /// What /proc says of it, if it is a thread of the switch at all.
    pub fn proc(self) -> PathBuf {
        format!("/proc/{}/task/{}", self.process, self.number).into()
    }

    /// Processor time that it has used, in nanoseconds; `None` if it has ended.
    fn cpu_ns(self) -> Option<u64> {
        on_cpu_ns(&fs::read_to_string(self.proc().join("schedstat")).ok()?)
    }
}

/// Which thread works for which port.
#[derive(Debug, Default)]
pub struct PortThreads(BTreeMap<u32, i32>);

impl PortThreads {
    /// The port's thread has been started.
    pub fn started(&mut self, port: u32, number: i32) {
        self.0.insert(port, number);
    }

    /// The port that this thread of the switch works for.
    pub fn port(&self, number: i32) -> Option<u32> {
        self.0.iter().find_map(|(port, thread)| (*thread == number).then_some(*port))
    }

    /// The port is gone; so is its thread.
    pub fn forget(&mut self, port: u32) {
        self.0.remove(&port);
    }

    /// The switch is gone, and its threads with it.
    pub fn forget_all(&mut self) {
        self.0.clear();
    }

    /// The thread of a port in this switch, if it has one.
    pub fn of(&self, port: u32, switch: Option<u32>) -> Option<Thread> {
        Some(Thread { process: switch?, number: *self.0.get(&port)? })
    }
}

impl Supervisor {
    /// What has been used so far. Threads are read before their process, so that they never have used more than it has.
    pub(super) fn cpu_times(&self) -> CpuTimes {
        let mut times = CpuTimes {
            control_ns: self.control.pid().map_or(0, process_ns),
            uplinks_ns: self.uplinks.values().flat_map(|uplink| uplink.pids()).map(process_ns).sum(),
            supervisor_ns: process_ns(std::process::id()),
            ..CpuTimes::default()
        };
        let Some(process) = self.switch.pid() else { return times };
        let time = |(port, number): (&u32, &i32)| Some((PortId(*port), Thread { process, number: *number }.cpu_ns()?));
        times.ports = self.port_threads.0.iter().filter_map(time).collect();
        times.main_ns = Thread { process, number: process as i32 }.cpu_ns().unwrap_or(0);
        times.helpers_ns = helpers(process).filter_map(Thread::cpu_ns).sum();
        times.switch_ns = process_ns(process);
        times
    }
}

/// The helpers and pollers of a switch, which goes by the names that it gives its threads. Those of ports begin otherwise.
fn helpers(process: u32) -> impl Iterator<Item = Thread> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let threads =
        tasks.filter_map(move |task| Some(Thread { process, number: task.file_name().to_str()?.parse().ok()? }));
    threads.filter(|thread| {
        let name = fs::read_to_string(thread.proc().join("comm")).unwrap_or_default();
        name.starts_with("helper-") || name.starts_with("poll-")
    })
}

/// Of /proc/PID/task/TID/schedstat: nanoseconds on a CPU, before those of waiting for one and the number of times.
fn on_cpu_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

/// Processor time, in nanoseconds, of a process with all its threads, those that have ended too; 0 if it has ended itself.
fn process_ns(pid: u32) -> u64 {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32));
    let time = clock.and_then(|clock| clock.now()).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_the_time_on_a_cpu() {
        assert_eq!(on_cpu_ns("123456789 42 7\n"), Some(123_456_789));
        assert_eq!(on_cpu_ns("0 0 0\n"), Some(0));
        for broken in ["", "\n", "x 1 2\n", "-1 0 0\n", "99999999999999999999 0 0\n"] {
            assert_eq!(on_cpu_ns(broken), None, "{broken:?}");
        }
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

    #[test]
    fn threads_come_and_go_with_their_port_and_their_switch() {
        let mut threads = PortThreads::default();
        threads.started(3, 17);
        threads.started(4, 18);
        assert_eq!(threads.of(3, Some(9)), Some(Thread { process: 9, number: 17 }));
        assert_eq!((threads.of(3, None), threads.of(5, Some(9))), (None, None));
        assert_eq!((threads.port(18), threads.port(19)), (Some(4), None));
        threads.forget(3);
        assert_eq!((threads.of(3, Some(9)), threads.of(4, Some(9)).is_some()), (None, true));
        threads.forget_all();
        assert_eq!(threads.of(4, Some(9)), None);
    }
}
