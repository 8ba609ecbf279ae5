//! Bounds of the processor time that is spent for a guest (`lasthop port set NAME --max-cpu PERCENT`): its rate is lowered until its packets take no more, and
//! somebody is told where that does not help. The switch knows nothing of it but the rate.

pub mod law;

use super::port_threads::Thread;
use super::supervisor::Supervisor;
use super::threads::of_engines;
use lasthop_ipc::RateLimit;
use lasthop_management_ipc::{CpuBound, PortWork, SupervisorToControl};
use lasthop_policy::MAX_CPU;
use lasthop_types::PortId;
use law::{BYTES, FLOOR, Law, Look, units};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Looks that are closer to each other are one: control's words may have waited.
const SHORTEST: Duration = Duration::from_millis(300);
/// What a guest that is held back may make up for at once, in nanoseconds: little beside the second between two looks.
const BURST_NS: u64 = 10_000_000;
/// A hundredth of a processor, in nanoseconds a second.
const PERCENT_NS: u64 = 10_000_000;

/// Ports with a bound, by number. Of another program that takes over nothing is forgotten but when it was last looked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CpuBounds(BTreeMap<u32, Bounded>);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Bounded {
    percent: u16,
    law: Law,
    spent_ns: u64,
    /// Packets and bytes of a unit, as they last were.
    mix: [f64; 2],
    missed: u64,
    #[serde(skip)]
    missed_since: Option<Instant>,
    #[serde(skip)]
    seen: Option<Seen>,
}

/// What had been counted, and when.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    work: PortWork,
    /// Processor time of the port's own thread, and which that is.
    thread: Option<(i32, u64)>,
    /// That of all helpers and pollers.
    engines_ns: u64,
}

/// What is new.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Missed,
    Kept,
}

impl CpuBounds {
    /// The port is gone.
    pub fn forget(&mut self, port: PortId) {
        self.0.remove(&port.0);
    }

    /// A limit of what comes from a guest, and what its bound makes of it.
    fn lowered(&self, port: PortId, told: RateLimit) -> RateLimit {
        let Some((bounded, limit)) = self.0.get(&port.0).and_then(|bounded| Some((bounded, bounded.law.limit()?)))
        else {
            return told;
        };
        let least = |told: u64, held: f64| match (told, (held as u64).max(1)) {
            (0, held) => held,
            (told, held) => told.min(held),
        };
        // A limit of packets and one of bytes add up. One of both is exact whatever the guest sends; beside a limit of one kind, one of that kind is.
        let [packets, bytes] = bounded.mix;
        let both = RateLimit {
            packets: least(told.packets, limit),
            bytes: least(told.bytes, limit * BYTES as f64),
            burst_ns: BURST_NS,
        };
        let held = match (told.packets, told.bytes) {
            (0, 0) => both,
            (0, told_bytes) => RateLimit { packets: 0, bytes: least(told_bytes, limit * bytes), ..both },
            (told_packets, 0) => RateLimit { bytes: 0, packets: least(told_packets, limit * packets), ..both },
            _ => both,
        };
        if (held.packets, held.bytes) == (told.packets, told.bytes) { told } else { held }
    }

    /// Takes a look at a port's work: true if its guest is held to something else now, and what is new.
    fn look(
        &mut self,
        work: &PortWork,
        (thread, engines_ns): (Option<(i32, u64)>, u64),
        now: Instant,
    ) -> (bool, Option<News>) {
        let Some(bounded) = self.0.get_mut(&work.port.0) else { return (false, None) };
        let seen = Seen { at: now, work: *work, thread, engines_ns };
        let Some(before) = bounded.seen.filter(|before| before.is_before(work)) else {
            bounded.seen = Some(seen);
            return (false, None);
        };
        if now.saturating_duration_since(before.at) < SHORTEST {
            return (false, None);
        }
        bounded.seen = Some(seen);
        let held = bounded.law.limit();
        bounded.take(&before, &seen);
        let news = match (bounded.law.is_missed(), bounded.missed_since) {
            (true, None) => {
                bounded.missed += 1;
                bounded.missed_since = Some(now);
                Some(News::Missed)
            }
            (false, Some(_)) => {
                bounded.missed_since = None;
                Some(News::Kept)
            }
            _ => None,
        };
        (bounded.law.limit() != held, news)
    }

    /// As control is told.
    fn told(&self, now: Instant) -> Vec<CpuBound> {
        let told = |(port, bounded): (&u32, &Bounded)| CpuBound {
            port: PortId(*port),
            most_ns: bounded.most_ns(),
            spent_ns: bounded.spent_ns,
            held_to: bounded.law.limit().map(|limit| [limit as u64, (limit * BYTES as f64) as u64]),
            missed_ms: bounded.missed_since.map(|since| now.saturating_duration_since(since).as_millis() as u64),
            missed: bounded.missed,
        };
        self.0.iter().map(told).collect()
    }
}

impl Seen {
    /// Nothing has begun anew meanwhile.
    fn is_before(&self, now: &PortWork) -> bool {
        let before = &self.work;
        before.busy_ns <= now.busy_ns && before.packets <= now.packets && before.bytes <= now.bytes
    }

    /// Nanoseconds that were spent until then. What the port's own thread took the kernel knows, and that it was woken and slept is in it. What others took for the
    /// port's packets, whoever moved them has counted with that, on the clock: on a crowded host far more than the processor's time, of which it cannot be more than
    /// theirs together and the thread's.
    fn spent(&self, now: &Self) -> u64 {
        let busy = now.work.busy_ns - self.work.busy_ns;
        match (self.thread, now.thread) {
            (Some((thread, before)), Some((same, own))) if thread == same => {
                let (own, engines) = (own.saturating_sub(before), now.engines_ns.saturating_sub(self.engines_ns));
                own.max(busy.min(own + engines))
            }
            // Pollers have its rings, each with a core of its own.
            _ => busy,
        }
    }
}

impl Bounded {
    fn most_ns(&self) -> u64 {
        u64::from(self.percent) * PERCENT_NS
    }

    fn take(&mut self, before: &Seen, now: &Seen) {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let [packets, bytes] =
            [now.work.packets - before.work.packets, now.work.bytes - before.work.bytes].map(|count| count as f64);
        let sent = units(packets as u64, bytes as u64);
        if sent > 0.0 {
            self.mix = [packets / sent, bytes / sent];
        }
        let spent = before.spent(now) as f64 / seconds;
        self.spent_ns = spent as u64;
        self.law.look(self.most_ns() as f64, Look { seconds, spent, rate: sent / seconds });
    }
}

impl Supervisor {
    /// Hundredths of a processor that the port's packets may take.
    fn max_cpu(&self, name: &str) -> Option<u16> {
        self.settings.get(name)?.max_cpu
    }

    /// A limit of what comes from a guest, as its bound has it.
    pub(super) fn within_cpu_bound(&self, port: PortId, told: RateLimit) -> RateLimit {
        self.cpu_bounds.lowered(port, told)
    }

    /// The port may have another bound, or none any more.
    pub(super) fn follow_cpu_bound(&mut self, port: PortId, name: &str) {
        if let Some(percent) = self.max_cpu(name) {
            if let Some(bounded) = self.cpu_bounds.0.get_mut(&port.0) {
                bounded.percent = percent;
            }
        } else if self.cpu_bounds.0.remove(&port.0).is_some() {
            self.tell_cpu_bounds(Instant::now());
        }
    }

    /// Control says what ports have done.
    pub(super) fn hear_done(&mut self, work: &[PortWork]) {
        let now = Instant::now();
        let engines = self.switch.pid().map(of_engines).unwrap_or_default();
        let engines_ns = engines.into_iter().filter_map(|(_, thread)| thread.cpu_ns()).sum();
        for work in work {
            let name = self.name_of_port(work.port.0);
            let Some(percent) = self.max_cpu(&name) else { continue };
            self.cpu_bounds.0.entry(work.port.0).or_default().percent = percent;
            let thread = self.port_threads.of(work.port.0, self.switch.pid());
            let time = |thread: Thread| Some((thread.number, thread.cpu_ns()?));
            let (held_otherwise, news) = self.cpu_bounds.look(work, (thread.and_then(time), engines_ns), now);
            if held_otherwise {
                self.tell_limits(work.port, &name);
            }
            if let (Some(news), Some(bounded)) = (news, self.cpu_bounds.0.get(&work.port.0)) {
                bounded.say(&name, &news);
            }
        }
        self.tell_cpu_bounds(now);
    }

    fn tell_cpu_bounds(&mut self, now: Instant) {
        self.control.send(SupervisorToControl::CpuBounds(self.cpu_bounds.told(now)), None);
    }
}

impl Bounded {
    fn say(&self, name: &str, news: &News) {
        let (spent, most) = (self.spent_ns / PERCENT_NS, self.percent);
        match news {
            News::Kept => info!("port {name}: its packets take no more than {most} % of a processor again ({MAX_CPU})"),
            News::Missed if self.law.is_at_floor() => warn!(
                "port {name}: its packets take {spent} % of a processor, and are to take {most} ({MAX_CPU}); its guest is held to {FLOOR} packets a second already, and to \
                 less nobody is: `lasthop doctor {name}` says what to do"
            ),
            News::Missed => warn!(
                "port {name}: its packets take {spent} % of a processor, and are to take {most} ({MAX_CPU}), though its guest is held to fewer: `lasthop doctor {name}` says \
                 what to do"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(3);

    fn work(busy_ns: u64, packets: u64, bytes: u64) -> PortWork {
        PortWork { port: PORT, busy_ns, packets, bytes }
    }

    /// With a bound of a tenth, looked at once a second; each time so much work more, and so much time of its thread and of helpers.
    fn looked(each: &[(PortWork, [u64; 2])]) -> CpuBounds {
        let mut bounds = CpuBounds::default();
        bounds.0.entry(PORT.0).or_default().percent = 10;
        let (mut at, mut sum, mut times) = (Instant::now(), work(0, 0, 0), [0; 2]);
        bounds.look(&sum, (Some((7, 0)), 0), at);
        for (more, took) in each {
            at += Duration::from_secs(1);
            times = [times[0] + took[0], times[1] + took[1]];
            sum = work(sum.busy_ns + more.busy_ns, sum.packets + more.packets, sum.bytes + more.bytes);
            bounds.look(&sum, (Some((7, times[0])), times[1]), at);
        }
        bounds
    }

    fn limit(bytes: u64, packets: u64) -> RateLimit {
        RateLimit { bytes, packets, burst_ns: 5 }
    }

    /// A packet of 1024 bytes is two units, and 200 000 of them have taken twice what they may.
    #[test]
    fn the_lower_of_both_limits_counts_and_is_exact() {
        let flood = work(200_000_000, 200_000, 200_000 * BYTES);
        let bounds = looked(&[(flood, [200_000_000, 0])]);
        let both = bounds.lowered(PORT, RateLimit::default());
        assert_eq!(both, RateLimit { packets: 200_000, bytes: 200_000 * BYTES, burst_ns: BURST_NS });
        for (told, held) in [
            (limit(50_000_000, 0), limit(50_000_000, 0)),
            (limit(0, 90_000), limit(0, 90_000)),
            (limit(500_000_000, 0), RateLimit { burst_ns: BURST_NS, ..limit(100_000 * BYTES, 0) }),
            (limit(0, 900_000), RateLimit { burst_ns: BURST_NS, ..limit(0, 100_000) }),
        ] {
            assert_eq!(bounds.lowered(PORT, told), held, "{told:?}");
        }
        assert_eq!(bounds.lowered(PortId(4), limit(9, 9)), limit(9, 9), "another port");
        assert_eq!(looked(&[(work(1, 200_000, 1), [1, 0])]).lowered(PORT, limit(9, 9)), limit(9, 9), "it takes little");
    }

    /// A thread that is woken for each packet takes more than its packets do, and one that is stopped in the middle less; a helper's time is in theirs alone.
    #[test]
    fn the_time_of_a_thread_and_no_more_than_that_of_helpers_counts() {
        let spent = |busy_ns, own, helpers| {
            looked(&[(work(busy_ns, 1000, 60_000), [own, helpers])]).told(Instant::now())[0].spent_ns
        };
        assert_eq!((spent(5, 77, 0), spent(77, 5, 0)), (77, 5));
        assert_eq!((spent(77, 5, 1000), spent(77, 5, 30)), (77, 35));
    }

    #[test]
    fn what_begins_anew_is_not_counted() {
        let mut bounds = looked(&[(work(200_000_000, 200_000, 0), [200_000_000, 0])]);
        let (held, later) =
            (bounds.clone().lowered(PORT, RateLimit::default()), Instant::now() + Duration::from_secs(9));
        // Another switch, with another thread.
        assert_eq!(bounds.look(&work(100, 1, 60), (Some((8, 0)), 0), later), (false, None));
        bounds.look(&work(99_000_100, 100_001, 60), (Some((9, 500_000_000)), 0), later + Duration::from_secs(1));
        assert_eq!(bounds.told(later)[0].spent_ns, 99_000_000);
        assert_eq!(bounds.lowered(PORT, RateLimit::default()), held);
    }
}
