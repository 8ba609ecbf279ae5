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

/// Which thread works for which port. Ports whose guests are silent have none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PortThreads {
    numbers: BTreeMap<u32, i32>,
    /// Processor time that each port's threads had used when it was looked at last or the switch said so, in nanoseconds. It is told of those that have ended
    /// after they have: without this it would go back meanwhile.
    #[serde(skip)]
    seen_ns: BTreeMap<u32, u64>,
    /// What those have used that were there before these, by the switch's word.
    #[serde(skip)]
    before_ns: BTreeMap<u32, u64>,
}

impl PortThreads {
    /// The port has this thread now, or none (0), and those before it have used so much.
    pub fn heard(&mut self, port: u32, number: i32, before_ns: u64) {
        match number {
            0 => self.numbers.remove(&port),
            number => self.numbers.insert(port, number),
        };
        self.before_ns.insert(port, before_ns);
        self.see(port, before_ns);
    }

    fn see(&mut self, port: u32, ns: u64) {
        let seen = self.seen_ns.entry(port).or_default();
        *seen = ns.max(*seen);
    }

    /// What threads before those that there are have used, by port.
    pub fn before_ns(&self) -> &BTreeMap<u32, u64> {
        &self.before_ns
    }

    /// The same, as the program before this one knew it.
    pub fn set_before_ns(&mut self, before_ns: BTreeMap<u32, u64>) {
        (self.before_ns, self.seen_ns) = (before_ns.clone(), before_ns);
    }

    /// Processor time that each port's threads have used, in nanoseconds. `of`: what one that there is has, if it has not just ended.
    pub fn times(&mut self, of: impl Fn(i32) -> Option<u64>) -> &BTreeMap<u32, u64> {
        for (port, number) in self.numbers.clone() {
            if let Some(ns) = of(number) {
                self.see(port, self.before_ns.get(&port).copied().unwrap_or(0).saturating_add(ns));
            }
        }
        &self.seen_ns
    }

    /// The port that this thread of the switch works for.
    pub fn port(&self, number: i32) -> Option<u32> {
        self.numbers.iter().find_map(|(port, thread)| (*thread == number).then_some(*port))
    }

    /// The port is gone; so is its thread.
    pub fn forget(&mut self, port: u32) {
        self.numbers.remove(&port);
        self.before_ns.remove(&port);
        self.seen_ns.remove(&port);
    }

    /// The switch is gone, and its threads with it.
    pub fn forget_all(&mut self) {
        *self = Self::default();
    }

    /// The thread of a port in this switch, if it has one.
    pub fn of(&self, port: u32, switch: Option<u32>) -> Option<Thread> {
        Some(Thread { process: switch?, number: *self.numbers.get(&port)? })
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
        threads.heard(3, 17, 0);
        threads.heard(4, 18, 0);
        assert_eq!(threads.of(3, Some(9)), Some(Thread { process: 9, number: 17 }));
        assert_eq!((threads.of(3, None), threads.of(5, Some(9))), (None, None));
        assert_eq!((threads.port(18), threads.port(19)), (Some(4), None));
        let times = |threads: &mut PortThreads| {
            let of = |number| (number != 19).then_some(100);
            threads.times(of).iter().map(|(port, ns)| (*port, *ns)).collect::<Vec<_>>()
        };
        assert_eq!(times(&mut threads), [(3, 100), (4, 100)]);
        // It has ended, a little later than when somebody looked. Another one comes, of which nothing can be seen, and one more.
        threads.heard(3, 0, 103);
        assert_eq!(
            (threads.of(3, Some(9)), threads.port(17), times(&mut threads)),
            (None, None, vec![(3, 103), (4, 100)])
        );
        threads.heard(3, 19, 103);
        assert_eq!((threads.port(19), times(&mut threads)), (Some(3), vec![(3, 103), (4, 100)]));
        threads.heard(3, 20, 153);
        // Said twice, it is the same.
        threads.heard(3, 20, 153);
        assert_eq!(times(&mut threads), [(3, 253), (4, 100)]);
        let mut resumed: PortThreads = serde_json::from_str(&serde_json::to_string(&threads).unwrap()).unwrap();
        resumed.set_before_ns(threads.before_ns().clone());
        assert_eq!(times(&mut resumed)[0], (3, 253));
        threads.forget(3);
        assert_eq!((threads.of(3, Some(9)), threads.of(4, Some(9)).is_some()), (None, true));
        threads.forget_all();
        assert_eq!(threads.of(4, Some(9)), None);
    }
}
