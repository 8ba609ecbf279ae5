//! Whether a process goes on: a thread that makes no progress while it has work is as good as dead, and so are those that wait
//! for it. Each thread that others wait for counts its rounds in a page ([`Pulse`]), and we look at that page four times in the
//! limit. What decides is the kernel's word (proc(5)), for whoever has taken the process over may write there what he likes:
//!
//! | a thread | of which the kernel says | hangs |
//! |---|---|---|
//! | whatever it counts | stopped, all the time | yes: by SIGSTOP, or by a debugger |
//! | at work, the same round all the time | asleep, and never woke | yes: it waits in the kernel for what does not come |
//! | | has used the processor for most of the time | yes: it goes round in circles |
//! | | asleep, and wakes up now and then | no: it waits for another thread's lock, and that one is looked at, too |
//! | | wants the processor and gets little of it | no: others use it, or a quota is used up |
//! | | frozen, by a control group | no: somebody wants that |
//! | asleep for want of work | | no |
//!
//! "All the time" is three quarters of the limit, counted from the first look that finds a thread so: as there are four looks in the
//! limit, whoever hangs is found within it; one of hundreds that sleep, within some limits. Time in which we have not run
//! ourselves (the host was suspended, or has no time for us either) does not count.

use lasthop_sys::{Pulse, Sign};
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::Read;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Threads that say they are asleep are asked about in turn, so many at a time: it is only to find those that were stopped.
const ASLEEP_BURST: usize = 64;
/// What the kernel calls the place where frozen threads are.
const FROZEN: [&str; 3] = ["do_freezer_trap", "__refrigerator", "get_signal"];

/// What is wrong with a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hang {
    /// SIGSTOP, or a debugger.
    Stopped,
    /// In a system call; where, if the kernel says so.
    Waits(String),
    /// It uses the processor.
    Spins,
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("is stopped, by a signal or a debugger"),
            Self::Waits(place) if place.is_empty() => f.write_str("waits in the kernel"),
            Self::Waits(place) => write!(f, "waits in the kernel ({place})"),
            Self::Spins => f.write_str("has been busy with one thing"),
        }
    }
}

/// A thread that hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hung {
    /// Its number.
    pub thread: u32,
    /// Its name.
    pub name: String,
    /// Why it does not go on.
    pub how: Hang,
    /// How long it has been seen so.
    pub time: Duration,
}

/// What is known of a thread. Times are those of [`Watchdog::clock`].
#[derive(Debug)]
struct Seen {
    beats: u32,
    /// Since when it has been in the same round.
    since: Duration,
    /// When it was first found stopped, and what it had run by then: it has not run since.
    stopped: Option<(Duration, Option<Schedule>)>,
    /// What it had run by when it was first found in the same round still.
    first: Option<Schedule>,
    /// In this look.
    is_there: bool,
}

/// /proc/PID/task/TID/schedstat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Schedule {
    on_cpu: Duration,
    /// How often it was given a CPU.
    times: u64,
}

/// Looks after one process.
#[derive(Debug)]
pub struct Watchdog {
    pulse: Pulse,
    process: u32,
    limit: Duration,
    /// How long one may be busy with the same round.
    longest_round: Duration,
    threads: HashMap<u32, Seen>,
    /// Where the next sleepers are to be asked about.
    turn: usize,
    /// Time in which we looked.
    clock: Duration,
    looked: Instant,
    next: Instant,
}

impl Watchdog {
    /// For the process that was started with this page; watched from `now` on. A thread that is busy with one round for most of
    /// `longest_round`, which is no less than the limit, hangs.
    pub fn new(pulse: Pulse, process: u32, limit: Duration, longest_round: Duration, now: Instant) -> Self {
        let (threads, clock) = (HashMap::new(), Duration::ZERO);
        Self {
            pulse,
            process,
            limit,
            longest_round,
            threads,
            turn: 0,
            clock,
            looked: now,
            next: tick(now + limit / 4, limit / 4),
        }
    }

    /// What its threads count in.
    pub fn page(&self) -> &Pulse {
        &self.pulse
    }

    /// Finds out within another limit.
    pub fn set_limit(&mut self, limit: Duration, longest_round: Duration, now: Instant) {
        // Whoever has the limit changed again and again does not put the next look off.
        let next = self.next.min(tick(now + limit / 4, limit / 4));
        (self.limit, self.longest_round, self.next) = (limit, longest_round, next);
    }

    /// When [`Watchdog::look`] is due.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// The thread that hangs, if one does: the one that others wait for, as far as that can be told.
    pub fn look(&mut self, now: Instant) -> Option<Hung> {
        if now < self.next {
            return None;
        }
        let period = self.limit / 4;
        self.clock += now.saturating_duration_since(self.looked).min(period * 2);
        // One look that was late does not make the next ones late.
        (self.looked, self.next) = (now, tick(now + period / 2, period));
        self.threads.values_mut().for_each(|seen| seen.is_there = false);
        let mut signs: Vec<Sign> = self.pulse.read().collect();
        // The first thread is looked at in any case: who stops a process stops it.
        if !signs.iter().any(|sign| sign.thread == self.process) {
            signs.push(Sign { thread: self.process, beats: 0 });
        }
        let asleep = signs.iter().filter(|sign| !sign.is_at_work()).count();
        // Threads come and go: there may be fewer by now.
        let (from, mut n) = (self.turn % asleep.max(1), 0);
        self.turn = if asleep > ASLEEP_BURST { (from + ASLEEP_BURST) % asleep } else { 0 };
        let mut hung: Vec<Hung> = Vec::new();
        for sign in signs {
            let mut has_turn = true;
            if !sign.is_at_work() {
                has_turn = (n + asleep - from) % asleep < ASLEEP_BURST || sign.thread == self.process;
                n += 1;
            }
            hung.extend(self.look_at(sign, has_turn));
        }
        self.threads.retain(|_, seen| seen.is_there);
        hung.into_iter().min_by_key(|hung| match hung.how {
            Hang::Stopped => 0,
            Hang::Spins => 1,
            Hang::Waits(_) => 2,
        })
    }

    fn look_at(&mut self, sign: Sign, has_turn: bool) -> Option<Hung> {
        let Self { process, clock, limit, longest_round, threads, .. } = self;
        let new = Seen { beats: sign.beats, since: *clock, stopped: None, first: None, is_there: false };
        let seen = threads.entry(sign.thread).or_insert(new);
        // A thread has one slot. Whoever writes its number into all of them has it looked at once.
        if std::mem::replace(&mut seen.is_there, true) {
            return None;
        }
        if seen.beats != sign.beats {
            (seen.beats, seen.since, seen.first) = (sign.beats, *clock, None);
        }
        if !has_turn {
            return None;
        }
        let time = |since: Duration| clock.saturating_sub(since);
        // Three looks later, even if the first of them was a little late.
        let long = |since: Duration| time(since) >= *limit / 16 * 11;
        let proc = format!("/proc/{process}/task/{}", sign.thread);
        // One that is not there is no thread of this process.
        let (name, state) = name_and_state(&line(&format!("{proc}/stat"))?)?;
        let hung = |how, since| Some(Hung { thread: sign.thread, name, how, time: time(since) });
        let ran = || line(&format!("{proc}/schedstat")).as_deref().and_then(schedule);
        if matches!(state, 'T' | 't') {
            // Who was let go in between has run, if only to be stopped again.
            let now = ran();
            let (since, then) = *seen.stopped.get_or_insert((*clock, now));
            if then != now {
                seen.stopped = Some((*clock, now));
                return None;
            }
            return if long(since) { hung(Hang::Stopped, since) } else { None };
        }
        seen.stopped = None;
        if !sign.is_at_work() {
            return None;
        }
        let now = ran()?;
        let first = *seen.first.get_or_insert(now);
        if !long(seen.since) {
            return None;
        }
        let busy = now.on_cpu.saturating_sub(first.on_cpu) >= *longest_round * 3 / 8;
        if busy && time(seen.since) >= *longest_round / 16 * 11 {
            return hung(Hang::Spins, seen.since);
        }
        if matches!(state, 'S' | 'D') && now.times == first.times {
            let place = line(&format!("{proc}/wchan")).unwrap_or_default();
            let place = if place == "0" { "" } else { place.trim() };
            return if FROZEN.contains(&place) { None } else { hung(Hang::Waits(place.into()), seen.since) };
        }
        None
    }
}

/// The next of the times at which looks are due, at this time or later: the same for all processes, so that we wake up once for all.
fn tick(from: Instant, period: Duration) -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = from.saturating_duration_since(*FIRST.get_or_init(|| from)).as_nanos();
    let period = period.as_nanos().max(1);
    from + Duration::from_nanos((since.next_multiple_of(period) - since) as u64)
}

/// Whether nothing is left of the process but what cannot end: its first thread is over, and others are not.
pub fn is_ending(process: u32) -> bool {
    let stat = line(&format!("/proc/{process}/task/{process}/stat"));
    stat.is_some_and(|stat| name_and_state(&stat).is_some_and(|(_, state)| matches!(state, 'Z' | 'X')))
}

/// What the kernel says in a file of one line, shorter than a thousand bytes: in one read.
fn line(path: &str) -> Option<String> {
    let mut bytes = [0; 1024];
    let read = fs::File::open(path).and_then(|mut file| file.read(&mut bytes)).ok()?;
    Some(String::from_utf8_lossy(bytes.get(..read)?).into_owned())
}

/// Of /proc/PID/task/TID/stat: the name in parentheses may hold anything.
fn name_and_state(stat: &str) -> Option<(String, char)> {
    let (front, rest) = stat.rsplit_once(") ")?;
    Some((front.split_once('(')?.1.into(), rest.chars().next()?))
}

/// Nanoseconds on a CPU, nanoseconds of waiting for one, how often it was given one.
fn schedule(schedstat: &str) -> Option<Schedule> {
    let mut numbers = schedstat.split_ascii_whitespace().map(|n| n.parse().ok());
    let on_cpu = Duration::from_nanos(numbers.next()??);
    Some(Schedule { on_cpu, times: numbers.nth(1)?? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn looks_at_all_processes_are_due_at_the_same_times() {
        let (period, now) = (Duration::from_millis(250), Instant::now());
        let first = tick(now, period);
        for ms in [1, 100, 250, 600, 10_001] {
            let next = tick(first + Duration::from_millis(ms), period);
            let since = next - first;
            assert_eq!(since.as_nanos() % period.as_nanos(), 0);
            assert!((Duration::from_millis(ms)..Duration::from_millis(ms) + period).contains(&since));
        }
    }

    /// A thousand ports fall silent, and their threads end. Where their turn was then beyond those that are left, it ended in a subtraction.
    #[test]
    fn sleepers_may_be_fewer_at_the_next_look() {
        let (pulse, mut now) = (Pulse::new().unwrap(), Instant::now());
        let page = pulse.as_fd().try_clone_to_owned().unwrap();
        let limit = Duration::from_millis(400);
        let mut watchdog = Watchdog::new(pulse, std::process::id(), limit, limit, now);
        for sleepers in [1000_u64, 1000, 500, 65, 64, 3, 0, 200, 1] {
            // As `sys::pulse` has it: words of 8 bytes, lines of 64; the first says how many there are.
            let line =
                |words: [u64; 2]| words.into_iter().chain([0; 6]).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>();
            let lines = (1..=sleepers).flat_map(|thread| line([(1 << 24) + thread, 2]));
            let page_now: Vec<u8> = line([0, sleepers]).into_iter().chain(lines).collect();
            rustix::io::pwrite(&page, &page_now, 0).unwrap();
            for _ in 0..3 {
                now += limit;
                assert!(watchdog.look(now).is_none(), "{sleepers}");
            }
        }
    }

    #[test]
    fn what_the_kernel_says_of_a_thread() {
        assert_eq!(name_and_state("12 (port-a) b) S 1 2 3"), Some(("port-a) b".into(), 'S')));
        assert_eq!(name_and_state("12 (x"), None);
        let expected = Schedule { on_cpu: Duration::from_nanos(5), times: 7 };
        assert_eq!(schedule("5 6 7\n"), Some(expected));
        for bad in ["", "5", "5 6", "x 6 7", "5 6 -7"] {
            assert_eq!(schedule(bad), None, "{bad}");
        }
    }
}
