//! The threads of ports in the switch.

use serde::{Deserialize, Serialize};
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
    pub fn cpu_ns(self) -> Option<u64> {
        self.times().map(|(on_cpu, _)| on_cpu)
    }

    /// The same, and for how long it waited for a CPU though it could have run.
    pub fn times(self) -> Option<(u64, u64)> {
        times(&fs::read_to_string(self.proc().join("schedstat")).ok()?)
    }
}

/// Which thread works for which port.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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

    /// Each port with a thread, and the thread's number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, i32)> + '_ {
        self.0.iter().map(|(port, number)| (*port, *number))
    }
}

/// Of /proc/PID/task/TID/schedstat: nanoseconds on a CPU, and those of waiting for one; before the number of times.
fn times(schedstat: &str) -> Option<(u64, u64)> {
    let mut words = schedstat.split_ascii_whitespace().map_while(|word| word.parse().ok());
    Some((words.next()?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_the_time_on_a_cpu_and_the_second_that_of_waiting() {
        assert_eq!(times("123456789 42 7\n"), Some((123_456_789, 42)));
        assert_eq!(times("0 0 0\n"), Some((0, 0)));
        for broken in ["", "\n", "5\n", "x 1 2\n", "-1 0 0\n", "99999999999999999999 0 0\n"] {
            assert_eq!(times(broken), None, "{broken:?}");
        }
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
