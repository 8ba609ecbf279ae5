//! How far the two CPUs are from each other: the time that a cache line takes from one to the other and back.
//!
//! A hypervisor moves virtual CPUs about, and what two threads that share rings achieve together follows: figures
//! compare when they were taken at the same distance. A probe is two threads, one on each CPU, that write a number each
//! and wait for the other's. They have real-time priority, so that whoever else wants the CPUs (the guests and the
//! switch, which never sleep) waits for a fraction of a millisecond. Without the right to it they share the CPUs with
//! everybody else; then a probe may find nothing, but it ends all the same.

use crate::cpus::Cpus;
use lasthop_sys::bind_current_thread;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use thread_priority::{RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy};

/// Where two CPUs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// Threads of one core, which share all its caches.
    OneCore,
    /// Cores with the same last-level cache.
    OneCache,
    /// Anything beyond.
    Apart,
}

impl Distance {
    /// Nearest first.
    pub const ALL: [Self; 3] = [Self::OneCore, Self::OneCache, Self::Apart];

    /// Where CPUs with this round trip are. The bounds lie between what today's x86 servers take: about 50 ns within a
    /// core; within a cache about 100 where it serves a few cores, 230 to 430 where it is spread over a mesh of many; 450 and
    /// more beyond.
    pub fn of(round_trip_ns: f64) -> Self {
        match round_trip_ns {
            ns if ns < 70.0 => Self::OneCore,
            ns if ns < 440.0 => Self::OneCache,
            _ => Self::Apart,
        }
    }

    /// Where they were all the while, if that is one place.
    pub fn of_all(round_trips_ns: &[f64]) -> Option<Self> {
        let first = Self::of(*round_trips_ns.first()?);
        round_trips_ns.iter().all(|ns| Self::of(*ns) == first).then_some(first)
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneCore => "at one core",
            Self::OneCache => "at one cache",
            Self::Apart => "far apart",
        }
    }
}

/// The least and the most of round trips, for people; nothing where there are none.
pub fn range(round_trips_ns: &[f64]) -> Option<String> {
    let least = round_trips_ns.iter().copied().reduce(f64::min)?.round();
    let most = round_trips_ns.iter().copied().reduce(f64::max)?.round();
    Some(if least < most { format!("{least}–{most} ns") } else { format!("{least} ns") })
}

/// How often a probe is taken within a measurement, and the least part of the time between two that one may take.
const EVERY: Duration = Duration::from_millis(250);
const PART: u32 = 300;
/// Round trips are timed in blocks of so many, and the quickest block counts: an interrupt falls into one of the others.
const BLOCKS: u32 = 8;
const BLOCK: u32 = 50;
/// When one of the two does not get its CPU. The slowest probe takes a tenth of it.
const LIMIT: Duration = Duration::from_millis(4);
/// At the start and at the end, where a probe has to be.
const TRIES: usize = 3;

/// Probes right before a measurement, right after it and, if wanted, within.
pub struct Track(Option<Running>);

struct Running {
    /// A message starts it; it ends when this is dropped.
    orders: Sender<()>,
    /// Once when it can be started, once after the first probe.
    done: Receiver<()>,
    thread: JoinHandle<Option<Vec<f64>>>,
}

impl Track {
    /// Gets ready, which takes longer than a probe. Two threads are there until [`Self::end`] or until this is dropped, one
    /// on each CPU; they sleep when no probe is due. Where there is nothing to probe (one CPU, or one that may not be used),
    /// there are none.
    pub fn new(cpus: Cpus, within: bool) -> Self {
        if cpus.guests == cpus.switch {
            return Self(None);
        }
        let ((orders, wanted), (said, done)) = (channel(), channel());
        let thread = Builder::new().name("distance".into()).spawn(move || track(cpus, within, &wanted, &said));
        // An error when that thread has ended already, here and below.
        let _ = done.recv();
        Self(thread.ok().map(|thread| Running { orders, done, thread }))
    }

    /// Returns after the first probe.
    pub fn begin(&self) {
        if let Some(running) = &self.0 {
            let _ = running.orders.send(());
            let _ = running.done.recv();
        }
    }

    /// Takes the last probe; the round trips of all of them in nanoseconds, or none at all when the first or the last found
    /// nothing.
    pub fn end(self) -> Vec<f64> {
        let Some(Running { orders, thread, .. }) = self.0 else { return Vec::new() };
        drop(orders);
        thread.join().ok().flatten().unwrap_or_default()
    }
}

/// The thread on the guests' CPU.
fn track(cpus: Cpus, within: bool, wanted: &Receiver<()>, said: &Sender<()>) -> Option<Vec<f64>> {
    take_over(cpus.guests)?;
    let ((partner, tables), (there, is_there)) = (channel(), channel());
    let answer = move || {
        take_over(cpus.switch)?;
        there.send(()).ok()?;
        tables.iter().for_each(|table: Arc<Table>| table.answer());
        Some(())
    };
    Builder::new().name("distance".into()).spawn(answer).ok()?;
    is_there.recv().ok()?;
    said.send(()).ok()?;
    wanted.recv().ok()?;
    let certain = || (0..TRIES).find_map(|_| probe(&partner));
    let first = certain();
    said.send(()).ok()?;
    let mut trips = vec![first?];
    let mut wait = EVERY;
    loop {
        let event = if within { wanted.recv_timeout(wait) } else { wanted.recv().map_err(RecvTimeoutError::from) };
        if event != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let start = Instant::now();
        // One that finds nothing says nothing: the last one has to find something.
        trips.extend(probe(&partner));
        wait = EVERY.max(start.elapsed() * PART);
    }
    trips.push(certain()?);
    Some(trips)
}

/// Binds the calling thread to a CPU and lets it have that as soon as it wants it, if it may.
fn take_over(cpu: usize) -> Option<()> {
    bind_current_thread(cpu).ok()?;
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let thread = thread_priority::unix::thread_native_id();
    let _ = thread_priority::unix::set_thread_priority_and_policy(thread, ThreadPriority::Min, policy);
    Some(())
}

/// One probe; nothing when the two threads did not come to run at the same time.
fn probe(partner: &Sender<Arc<Table>>) -> Option<f64> {
    // Each has a table of its own, so that a partner that is late finds nothing but the end of his.
    let table = Arc::new(Table::default());
    partner.send(table.clone()).ok()?;
    let best = table.ask()?;
    Some((best.as_nanos() as f64 / f64::from(BLOCK) * 10.0).round() / 10.0)
}

/// What the two threads share, each part on cache lines of its own: processors fetch them in pairs.
#[derive(Default)]
struct Table {
    asked: Line<AtomicU32>,
    answered: Line<AtomicU32>,
    over: Line<AtomicBool>,
}

#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

impl Table {
    /// The time of the quickest block.
    fn ask(&self) -> Option<Duration> {
        let (mut best, end) = (None, Instant::now() + LIMIT);
        for block in 0..BLOCKS {
            let start = Instant::now();
            for number in block * BLOCK + 1..=(block + 1) * BLOCK {
                self.asked.0.store(number, Release);
                if !self.comes(&self.answered, number, end) {
                    return best;
                }
            }
            let time = start.elapsed();
            best = Some(best.map_or(time, |best| time.min(best)));
        }
        best
    }

    fn answer(&self) {
        let end = Instant::now() + LIMIT;
        for number in 1..=BLOCKS * BLOCK {
            if !self.comes(&self.asked, number, end) {
                return;
            }
            self.answered.0.store(number, Release);
        }
    }

    /// Waits for a number, without the processor's hint that this is a wait, which would take as long as what is measured.
    fn comes(&self, line: &Line<AtomicU32>, number: u32, end: Instant) -> bool {
        loop {
            if (0..20_000).any(|_| line.0.load(Acquire) == number) {
                return true;
            }
            if self.over.0.load(Relaxed) || Instant::now() > end {
                self.over.0.store(true, Relaxed);
                return false;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity};

    #[test]
    fn round_trips_have_their_distance() {
        let of = |ns| Distance::of(ns);
        assert_eq!([of(47.0), of(69.9)], [Distance::OneCore; 2]);
        assert_eq!([of(70.0), of(95.0), of(439.9)], [Distance::OneCache; 3]);
        assert_eq!([of(440.0), of(500.0)], [Distance::Apart; 2]);
        assert_eq!(Distance::of_all(&[96.0, 118.0]), Some(Distance::OneCache));
        assert_eq!(Distance::of_all(&[96.0, 47.0, 96.0]), None, "they moved");
        assert_eq!(Distance::of_all(&[]), None);
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(range(&[118.4, 96.4, 100.0]).unwrap(), "96–118 ns");
        assert_eq!(range(&[47.1, 46.9]).unwrap(), "47 ns");
        assert_eq!(range(&[]), None);
    }

    /// Two CPUs that may be used here, if there are as many, and whether probes do not have to wait there until other tests
    /// are through.
    fn two() -> Option<(Cpus, bool)> {
        let allowed = sched_getaffinity(None).unwrap();
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let cpus = Cpus { guests: cpus.next()?, switch: cpus.next()? };
        let policy = move || take_over(cpus.switch).and_then(|()| thread_priority::unix::thread_schedule_policy().ok());
        let fifo = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
        Some((cpus, std::thread::spawn(policy).join().unwrap() == Some(fifo)))
    }

    fn trips(cpus: Cpus, within: bool, time: Duration) -> Vec<f64> {
        let track = Track::new(cpus, within);
        track.begin();
        std::thread::sleep(time);
        track.end()
    }

    #[test]
    fn two_cpus_are_some_way_from_each_other() {
        let Some((cpus, certain)) = two() else { return };
        let found = (0..20).map(|_| trips(cpus, false, Duration::ZERO)).find(|trips| !trips.is_empty());
        assert!(found.is_some() || !certain);
        assert!(found.is_none_or(|trips| trips.len() == 2 && trips.iter().all(|ns| *ns > 0.0)));
    }

    #[test]
    fn a_longer_measurement_is_probed_within() {
        let Some((cpus, certain)) = two() else { return };
        assert!((0..20).any(|_| trips(cpus, true, EVERY * 2).len() > 2) || !certain);
        Track::new(cpus, true).begin();
        assert!(Track::new(cpus, true).end().is_empty(), "it has not begun");
    }

    #[test]
    fn nothing_is_probed_where_there_is_nothing() {
        assert!(trips(Cpus { guests: 0, switch: 0 }, true, Duration::ZERO).is_empty());
        assert!(trips(Cpus { guests: 0, switch: CpuSet::MAX_CPU - 1 }, false, Duration::ZERO).is_empty());
        assert!(trips(Cpus { guests: CpuSet::MAX_CPU - 1, switch: 0 }, false, Duration::ZERO).is_empty());
    }

    #[test]
    fn a_probe_without_a_partner_ends() {
        let table = Table::default();
        assert_eq!(table.ask(), None);
        // He comes late, and leaves at once or after his own time.
        table.answer();
        assert_ne!(table.answered.0.load(Relaxed), BLOCKS * BLOCK);
    }
}
