//! The threads of ports in the switch.

use lasthop_types::ThreadNews;
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
    /// Of each port the thread before its present one, or its last if it has none now. While it has not ended it may hold a lock that others wait for.
    #[serde(skip)]
    ended: BTreeMap<u32, i32>,
    /// Processor time that each port's threads had used when it was looked at last or the switch said so, in nanoseconds. It is told of those that have ended
    /// after they have: without this it would go back meanwhile.
    #[serde(skip)]
    seen_ns: BTreeMap<u32, u64>,
    /// What those have used that were there before these, by the switch's word.
    #[serde(skip)]
    before_ns: BTreeMap<u32, u64>,
    /// Why one that is needed could not be started.
    #[serde(skip)]
    refused: BTreeMap<u32, String>,
}

impl PortThreads {
    /// What the switch says of the port's threads. Of its last one's end it may not hear, but of another one.
    pub fn heard(&mut self, port: u32, news: ThreadNews) {
        self.ended.extend(self.numbers.remove(&port).filter(|last| *last != news.thread).map(|last| (port, last)));
        if news.thread != 0 {
            self.numbers.insert(port, news.thread);
        }
        match news.refused {
            Some(why) => self.refused.insert(port, why),
            None => self.refused.remove(&port),
        };
        self.before_ns.insert(port, news.used_ns);
        self.see(port, news.used_ns);
    }

    fn see(&mut self, port: u32, ns: u64) {
        let seen = self.seen_ns.entry(port).or_default();
        *seen = ns.max(*seen);
    }

    /// By port, what threads before those that there are have used, and what has been seen of all.
    pub fn times(&self) -> BTreeMap<u32, [u64; 2]> {
        let seen = |port| self.seen_ns.get(port).copied().unwrap_or(0);
        self.before_ns.iter().map(|(port, before)| (*port, [*before, seen(port)])).collect()
    }

    /// The same, as the program before this one knew it.
    pub fn set_times(&mut self, times: BTreeMap<u32, [u64; 2]>) {
        (self.before_ns, self.seen_ns) =
            times.into_iter().map(|(port, [before, seen])| ((port, before), (port, seen))).unzip();
    }

    /// Processor time that the port's threads have used together, in nanoseconds; `None` until it has had one. It never falls. `of`: what one that there is has, if it
    /// has not just ended.
    pub fn time(&mut self, port: u32, of: impl Fn(i32) -> Option<u64>) -> Option<u64> {
        if let Some(ns) = self.numbers.get(&port).and_then(|number| of(*number)) {
            self.see(port, self.before_ns.get(&port).copied().unwrap_or(0).saturating_add(ns));
        }
        self.seen_ns.get(&port).copied()
    }

    /// Ports that have, or have had, a thread.
    pub fn ports(&self) -> Vec<u32> {
        self.before_ns.keys().copied().collect()
    }

    /// Why no thread can be started for a port that has packets.
    pub fn refused(&self, port: u32) -> Option<String> {
        let why = self.refused.get(&port)?;
        Some(format!(
            "no thread can be started for it ({why}), and what its guest sends waits; it is tried again until there is one: raise what limits threads, pids.max of \
             lasthop's control group (TasksMax= of its unit) or kernel.threads-max, or give the host more memory"
        ))
    }

    /// The port's last one in this switch, which is about to end, unless its number is that of another port's by now.
    pub fn last(&self, port: u32, switch: Option<u32>) -> Option<Thread> {
        let number = *self.ended.get(&port)?;
        Some(Thread { process: switch?, number }).filter(|_| self.numbers.values().all(|other| *other != number))
    }

    /// The port that this thread of the switch works for, or was the last to work for.
    pub fn port(&self, number: i32) -> Option<u32> {
        let all = self.numbers.iter().chain(&self.ended);
        all.into_iter().find_map(|(port, thread)| (*thread == number).then_some(*port))
    }

    /// The port is gone; so is its thread.
    pub fn forget(&mut self, port: u32) {
        self.numbers.remove(&port);
        self.ended.remove(&port);
        self.before_ns.remove(&port);
        self.seen_ns.remove(&port);
        self.refused.remove(&port);
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
        let news = |thread, used_ns| ThreadNews { thread, used_ns, refused: None };
        threads.heard(3, news(17, 0));
        threads.heard(4, news(18, 0));
        assert_eq!(threads.of(3, Some(9)), Some(Thread { process: 9, number: 17 }));
        assert_eq!((threads.of(3, None), threads.of(5, Some(9))), (None, None));
        assert_eq!((threads.port(18), threads.port(19)), (Some(4), None));
        let times = |threads: &mut PortThreads| {
            [3, 4, 5].map(|port| threads.time(port, |number| (number != 19).then_some(100)))
        };
        assert_eq!(times(&mut threads), [Some(100), Some(100), None]);
        // It has ended, a little later than when somebody looked. Another one comes, of which nothing can be seen, and one more.
        threads.heard(3, news(0, 103));
        // It has yet to let go of what it has.
        assert_eq!((threads.of(3, Some(9)), threads.port(17)), (None, Some(3)));
        assert_eq!(times(&mut threads)[0], Some(103));
        assert_eq!(threads.last(3, Some(9)).map(|thread| thread.number), Some(17));
        threads.heard(3, news(19, 103));
        assert_eq!((threads.port(19), times(&mut threads)[0]), (Some(3), Some(103)));
        threads.heard(3, news(20, 153));
        // The end of the one before was not said.
        assert_eq!(threads.last(3, Some(9)).map(|thread| thread.number), Some(19));
        threads.heard(4, news(19, 0));
        assert_eq!(threads.last(3, Some(9)), None, "it is another port's");
        threads.heard(4, news(18, 0));
        // Said twice, it is the same.
        threads.heard(3, news(20, 153));
        assert_eq!(times(&mut threads), [Some(253), Some(100), None]);
        let mut resumed: PortThreads = serde_json::from_str(&serde_json::to_string(&threads).unwrap()).unwrap();
        resumed.set_times(threads.times());
        // Its thread may end before it is heard of.
        assert_eq!((resumed.time(3, |_| None), resumed.ports()), (Some(253), vec![3, 4]));
        threads.heard(4, ThreadNews { refused: Some("EAGAIN".into()), ..news(0, 120) });
        assert!(threads.refused(4).is_some_and(|why| why.contains("EAGAIN")));
        threads.heard(4, news(21, 120));
        assert_eq!((threads.refused(4), times(&mut threads)[1]), (None, Some(220)));
        threads.forget(3);
        assert_eq!((threads.of(3, Some(9)), threads.of(4, Some(9)).is_some()), (None, true));
        threads.forget_all();
        assert_eq!(threads.of(4, Some(9)), None);
    }
}
