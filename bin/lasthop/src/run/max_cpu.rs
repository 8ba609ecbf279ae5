//! Bounds of the processor time that is spent for a guest: for what it sends (`lasthop port set NAME --max-cpu PERCENT`), and to copy packets to it
//! (`--max-cpu-to`). A rate of its is lowered until they take no more, and somebody is told where that does not help. The switch knows nothing of it but the rates.

pub mod law;

use super::supervisor::Supervisor;
use super::threads::{EngineTimes, process_ns};
use lasthop_ipc::RateLimit;
use lasthop_management_ipc::{CpuBound, PortWork, SupervisorToControl};
use lasthop_policy::{MAX_CPU, MAX_CPU_TO, PortEngine};
use lasthop_types::PortId;
use law::{BYTES, DEAD, FLOOR, Law, Look, units};
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
/// What it takes at most that a port's thread is woken by its guest's kick, or to go on where it was held back, and goes to sleep again. It works for what others send to
/// its guest as well, which is on their account and no lower rate of its guest's changes: what is above this and what its guest's packets took is that.
const WAKE_NS: u64 = 20_000;

/// What a bound is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What a guest sends, with all that it takes to switch and copy it.
    From,
    /// What is copied to a guest, whoever sends it.
    To,
}

impl Way {
    const BOTH: [Self; 2] = [Self::From, Self::To];

    /// What it is that takes time, and the setting.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::From => ("its packets", MAX_CPU),
            Self::To => ("copies to it", MAX_CPU_TO),
        }
    }
}

/// Ports with a bound, by number. Of another program that takes over nothing is forgotten but when it was last looked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CpuBounds {
    /// Of what their guests send.
    ports: BTreeMap<u32, Bounded>,
    /// Of what is copied to their guests.
    #[serde(default)]
    copies: BTreeMap<u32, Bounded>,
    #[serde(skip)]
    engines: EngineTimes,
    /// When control said something last.
    #[serde(skip)]
    heard: Option<Instant>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Bounded {
    percent: u16,
    law: Law,
    spent_ns: u64,
    /// Packets and bytes of a unit, as they last were.
    mix: [f64; 2],
    /// What its port was set to when the switch was last told, and what that was told to hold its guest to.
    told: Option<[RateLimit; 2]>,
    missed: u64,
    #[serde(skip)]
    missed_since: Option<Instant>,
    #[serde(skip)]
    seen: Option<Seen>,
}

impl Default for Bounded {
    fn default() -> Self {
        // Until something was sent it may be either.
        let mix = [1.0, BYTES as f64];
        let (percent, law, spent_ns, told, missed) = Default::default();
        Self { percent, law, spent_ns, mix, told, missed, missed_since: None, seen: None }
    }
}

/// What had been counted, and when.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    work: PortWork,
    /// Whose processor time is known, and that: the port's own thread's, or of copies to its guest the whole switch's.
    worker: Option<(i32, u64)>,
    /// That of all helpers; of copies it does not count, as it is in the switch's.
    engines_ns: u64,
}

/// What is new.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Missed,
    Kept,
}

impl CpuBounds {
    fn of(&mut self, way: Way) -> &mut BTreeMap<u32, Bounded> {
        match way {
            Way::From => &mut self.ports,
            Way::To => &mut self.copies,
        }
    }

    /// The port is gone.
    pub fn forget(&mut self, port: PortId) {
        for way in Way::BOTH {
            self.of(way).remove(&port.0);
        }
    }

    /// A limit of what comes from a guest, or goes to it, and what its bound makes of it from now on.
    pub fn hold(&mut self, way: Way, port: PortId, told: RateLimit) -> RateLimit {
        let Some(bounded) = self.of(way).get_mut(&port.0) else { return told };
        let held = bounded.lowered(told);
        bounded.told = Some([told, held]);
        held
    }

    /// Whether there is something to look at: control may have gone bad, and say it without a pause.
    fn is_due(&mut self, work: [&[PortWork]; 2], now: Instant) -> bool {
        let soon = self.heard.is_some_and(|last| now.saturating_duration_since(last) < SHORTEST);
        let due = work.iter().any(|work| !work.is_empty()) && !soon;
        self.heard = if due { Some(now) } else { self.heard };
        due
    }

    /// Takes a look at a port's work: true if its guest is to be held to something else now, and what is new.
    fn look(
        &mut self,
        way: Way,
        work: &PortWork,
        (worker, engines_ns): (Option<(i32, u64)>, u64),
        now: Instant,
    ) -> (bool, Option<News>) {
        let Some(bounded) = self.of(way).get_mut(&work.port.0) else { return (false, None) };
        let seen = Seen { at: now, work: *work, worker, engines_ns };
        let Some(before) = bounded.seen.filter(|before| before.is_before(work)) else {
            bounded.seen = Some(seen);
            // Another program of this process has counted it, and said so.
            if bounded.law.is_missed() {
                bounded.missed_since.get_or_insert(now);
            }
            return (false, None);
        };
        if now.saturating_duration_since(before.at) < SHORTEST {
            return (false, None);
        }
        bounded.seen = Some(seen);
        let limit = bounded.law.limit();
        bounded.take(way, &before, &seen);
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
        (bounded.is_to_be_told(bounded.law.limit() != limit), news)
    }

    /// As control is told.
    fn told(&self, now: Instant) -> [Vec<CpuBound>; 2] {
        let told = |(port, bounded): (&u32, &Bounded)| CpuBound {
            port: PortId(*port),
            most_ns: bounded.most_ns(),
            spent_ns: bounded.spent_ns,
            held_to: bounded.told.filter(|[told, held]| told != held).map(|[_, held]| [held.packets, held.bytes]),
            presses: bounded.law.presses(),
            missed_ms: bounded.missed_since.map(|since| now.saturating_duration_since(since).as_millis() as u64),
            missed: bounded.missed,
        };
        [&self.ports, &self.copies].map(|ports| ports.iter().map(told).collect())
    }
}

impl Seen {
    /// Nothing has begun anew meanwhile.
    fn is_before(&self, now: &PortWork) -> bool {
        let before = &self.work;
        before.busy_ns <= now.busy_ns
            && before.packets <= now.packets
            && before.bytes <= now.bytes
            && before.woken <= now.woken
    }

    /// Nanoseconds that were spent until then.
    ///
    /// Of what its guest sends: what the port's own thread took the kernel knows, and that it was woken and slept is in it; what it took for others' packets is taken
    /// off ([`WAKE_NS`]). What others took for the port's packets, whoever moved them has counted with that, on the clock: on a crowded host far more than the
    /// processor's time, of which it cannot be more than theirs together and the thread's.
    ///
    /// Of copies to its guest: what whoever copied has counted, on the clock as well, and no more than the whole switch took.
    fn spent(&self, way: Way, now: &Self) -> u64 {
        let busy = now.work.busy_ns - self.work.busy_ns;
        let own = match (self.worker, now.worker) {
            (Some((worker, before)), Some((same, own))) if worker == same => own.saturating_sub(before),
            // Pollers have its rings, each with a core of its own; or another thread, or switch, has come since.
            _ => return busy,
        };
        match way {
            Way::From => {
                let engines = now.engines_ns.saturating_sub(self.engines_ns);
                let woken = (now.work.woken - self.work.woken).saturating_mul(WAKE_NS);
                own.min(busy.saturating_add(woken)).max(busy.min(own + engines))
            }
            Way::To => busy.min(own),
        }
    }
}

impl Bounded {
    fn most_ns(&self) -> u64 {
        u64::from(self.percent) * PERCENT_NS
    }

    /// A limit of what comes from a guest, or goes to it, as the bound has it.
    fn lowered(&self, told: RateLimit) -> RateLimit {
        let Some(limit) = self.law.limit() else { return told };
        // Of one kind alone it may be a small part: nobody is held to less than the floor in either.
        let least = |told: u64, held: f64, floor: u64| match (told, (held as u64).max(floor)) {
            (0, held) => held,
            (told, held) => told.min(held),
        };
        let least_packets = |part: f64| least(told.packets, limit * part, FLOOR);
        let least_bytes = |part: f64| least(told.bytes, limit * part, FLOOR * BYTES);
        // A limit of packets and one of bytes add up. One of both is exact whatever the guest sends; beside a limit of one kind, one of that kind is.
        let [packets, bytes] = self.mix;
        let both = RateLimit { packets: least_packets(1.0), bytes: least_bytes(BYTES as f64), burst_ns: BURST_NS };
        let held = match (told.packets, told.bytes) {
            (0, 0) => both,
            (0, _) => RateLimit { packets: 0, bytes: least_bytes(bytes), ..both },
            (_, 0) => RateLimit { bytes: 0, packets: least_packets(packets), ..both },
            _ => both,
        };
        if (held.packets, held.bytes) == (told.packets, told.bytes) { told } else { held }
    }

    /// The switch holds its guest to something else than it is to. Each rate that is set begins with a burst, so a mixture that has changed a little is left alone.
    fn is_to_be_told(&self, has_changed: bool) -> bool {
        let Some([told, held]) = self.told else { return self.law.limit().is_some() };
        let now = self.lowered(told);
        let differs = |now: u64, held: u64| now.abs_diff(held) as f64 > DEAD * held as f64;
        now != held && (has_changed || differs(now.packets, held.packets) || differs(now.bytes, held.bytes))
    }

    fn take(&mut self, way: Way, before: &Seen, now: &Seen) {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let [packets, bytes] =
            [now.work.packets - before.work.packets, now.work.bytes - before.work.bytes].map(|count| count as f64);
        let sent = units(packets as u64, bytes as u64);
        if sent > 0.0 {
            self.mix = [packets / sent, bytes / sent];
        }
        let spent = before.spent(way, now) as f64 / seconds;
        self.spent_ns = spent as u64;
        self.law.look(self.most_ns() as f64, Look { seconds, spent, rate: sent / seconds });
    }
}

impl Supervisor {
    /// Hundredths of a processor that the port's packets, or copies to it, may take.
    fn max_cpu(&self, way: Way, name: &str) -> Option<u16> {
        let settings = self.settings.get(name)?;
        match way {
            Way::From => settings.max_cpu,
            Way::To => settings.max_cpu_to,
        }
    }

    /// The port may have other bounds, or none any more.
    pub(super) fn follow_cpu_bounds(&mut self, port: PortId, name: &str) {
        for way in Way::BOTH {
            if let Some(percent) = self.max_cpu(way, name) {
                if let Some(bounded) = self.cpu_bounds.of(way).get_mut(&port.0) {
                    bounded.percent = percent;
                }
            } else if self.cpu_bounds.of(way).remove(&port.0).is_some() {
                self.tell_cpu_bounds(Instant::now());
            }
        }
    }

    /// Control says what ports have done, and what was copied to them.
    pub(super) fn hear_done(&mut self, [from, to]: [&[PortWork]; 2]) {
        let now = Instant::now();
        if !self.cpu_bounds.is_due([from, to], now) {
            return;
        }
        let engines_ns = self.cpu_bounds.engines.cpu_ns(self.switch.pid(), now);
        for work in from {
            // That of its threads together: one that ends takes nothing along.
            let own = Some(work.port).filter(|port| !self.is_polled(*port)).and_then(|p| self.time_of_threads(p.0));
            let own = self.switch.pid().zip(own).map(|(pid, ns)| (pid as i32, ns));
            self.look_at(Way::From, work, (own, engines_ns), now);
        }
        // Whoever copied worked for others as well: what the clock said counts, which goes on while a thread is interrupted, and no more than the whole switch took.
        let switch = self.switch.pid().filter(|_| !to.is_empty()).map(|pid| (pid as i32, process_ns(pid)));
        to.iter().for_each(|work| self.look_at(Way::To, work, (switch, 0), now));
        self.tell_cpu_bounds(now);
    }

    /// Cores that poll have its rings: a thread that it had before, which has none of them any more, says nothing of what they take.
    pub(super) fn is_polled(&self, port: PortId) -> bool {
        let set = self.settings.get(&self.name_of_port(port.0)).and_then(|set| set.engine);
        !self.engines.now.poll.is_empty() && set != Some(PortEngine::Ports)
    }

    fn look_at(&mut self, way: Way, work: &PortWork, times: (Option<(i32, u64)>, u64), now: Instant) {
        let name = self.name_of_port(work.port.0);
        let Some(percent) = self.max_cpu(way, &name) else { return };
        self.cpu_bounds.of(way).entry(work.port.0).or_default().percent = percent;
        let (held_otherwise, news) = self.cpu_bounds.look(way, work, times, now);
        if held_otherwise {
            self.tell_limits(work.port, &name);
        }
        let Some(news) = news else { return };
        let doctor = self.doctor_of(&name);
        if let Some(bounded) = self.cpu_bounds.of(way).get(&work.port.0) {
            bounded.say(way, &name, &news, &doctor);
        }
    }

    /// The command that looks at a port of this instance. A device is not the one that people ask.
    fn doctor_of(&self, name: &str) -> String {
        let dir = self.served.iter().find_map(|served| served.path().parent()).filter(|_| self.of_device.is_some());
        let dir = dir.map_or_else(String::new, |dir| format!(" --run-dir {}", dir.display()));
        format!("lasthop doctor {name}{dir}")
    }

    fn tell_cpu_bounds(&mut self, now: Instant) {
        self.control.send(SupervisorToControl::CpuBounds(self.cpu_bounds.told(now)), None);
    }
}

impl Bounded {
    fn say(&self, way: Way, name: &str, news: &News, doctor: &str) {
        let (spent, most, (what, setting)) = (self.spent_ns / PERCENT_NS, self.percent, way.words());
        match news {
            News::Kept => info!("port {name}: {what} take no more than {most} % of a processor again ({setting})"),
            News::Missed if self.law.is_at_floor() => warn!(
                "port {name}: {what} take {spent} % of a processor, and are to take {most} ({setting}); its guest is held to {FLOOR} packets a second already, and to \
                 less nobody is: `{doctor}` says what to do"
            ),
            News::Missed => warn!(
                "port {name}: {what} take {spent} % of a processor, and are to take {most} ({setting}), though its guest is held to fewer: `{doctor}` says \
                 what to do"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(3);
    const FROM: Way = Way::From;

    fn work(busy_ns: u64, packets: u64, bytes: u64) -> PortWork {
        PortWork { port: PORT, busy_ns, packets, bytes, woken: 0 }
    }

    trait Woken {
        fn woken(self, woken: u64) -> Self;
    }

    impl Woken for PortWork {
        fn woken(self, woken: u64) -> Self {
            Self { woken, ..self }
        }
    }

    /// One spike, and from then on nine tenths of what it may: all of it arrives, and the limit stays. It does not press, and a flood does.
    #[test]
    fn a_limit_that_nothing_waits_for_is_told() {
        let spike = (work(300_000_000, 300_000, 0), [300_000_000, 0]);
        let steady = (work(90_000_000, 60_000, 0), [90_000_000, 0]);
        let flood = (work(100_000_000, 100_000, 0), [100_000_000, 0]);
        let told = |looks: &[(PortWork, [u64; 2])]| {
            let mut bounds = looked(looks);
            bounds.hold(FROM, PORT, RateLimit::default());
            bounds.told(Instant::now())[0][0]
        };
        let held = told(&[&[spike][..], &[steady; 60]].concat());
        assert_eq!((held.held_to.is_some(), held.presses, held.spent_ns), (true, false, 90_000_000), "{held:?}");
        let flooded = told(&[&[spike][..], &[flood; 60]].concat());
        assert_eq!((flooded.held_to.is_some(), flooded.presses), (true, true), "{flooded:?}");
        assert!(!told(&[steady; 9]).presses, "it is held to nothing");
    }

    /// With a bound of a tenth, looked at once a second; each time so much work more, and so much time of its thread and of helpers.
    fn looked(each: &[(PortWork, [u64; 2])]) -> CpuBounds {
        let mut bounds = CpuBounds::default();
        bounds.ports.entry(PORT.0).or_default().percent = 10;
        let (mut at, mut sum, mut times) = (Instant::now(), work(0, 0, 0), [0; 2]);
        bounds.look(FROM, &sum, (Some((7, 0)), 0), at);
        for (more, took) in each {
            at += Duration::from_secs(1);
            times = [times[0] + took[0], times[1] + took[1]];
            sum = work(sum.busy_ns + more.busy_ns, sum.packets + more.packets, sum.bytes + more.bytes)
                .woken(sum.woken + more.woken);
            bounds.look(FROM, &sum, (Some((7, times[0])), times[1]), at);
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
        let mut bounds = looked(&[(flood, [200_000_000, 0])]);
        let both = bounds.hold(FROM, PORT, RateLimit::default());
        assert_eq!(both, RateLimit { packets: 200_000, bytes: 200_000 * BYTES, burst_ns: BURST_NS });
        for (told, held) in [
            (limit(50_000_000, 0), limit(50_000_000, 0)),
            (limit(0, 90_000), limit(0, 90_000)),
            (limit(500_000_000, 0), RateLimit { burst_ns: BURST_NS, ..limit(100_000 * BYTES, 0) }),
            (limit(0, 900_000), RateLimit { burst_ns: BURST_NS, ..limit(0, 100_000) }),
        ] {
            assert_eq!(bounds.hold(FROM, PORT, told), held, "{told:?}");
        }
        assert_eq!(bounds.hold(FROM, PortId(4), limit(9, 9)), limit(9, 9), "another port");
        assert_eq!(
            looked(&[(work(1, 200_000, 1), [1, 0])]).hold(FROM, PORT, limit(9, 9)),
            limit(9, 9),
            "it takes little"
        );
    }

    /// The clock goes on while others have the processor. What helpers took is in the switch's time.
    #[test]
    fn copies_take_no_more_than_the_whole_switch() {
        let (mut bounds, at) = (CpuBounds::default(), Instant::now());
        bounds.copies.entry(PORT.0).or_default().percent = 10;
        for (busy_ns, switch_ns, after) in [(0, 7, 0), (900_000_000, 50_000_007, 1)] {
            let at = at + Duration::from_secs(after);
            let engines_ns = 400_000_000 * after;
            bounds.look(Way::To, &work(busy_ns, 1000 * after, 60_000 * after), (Some((9, switch_ns)), engines_ns), at);
        }
        assert_eq!(bounds.told(at)[1][0].spent_ns, 50_000_000);
    }

    /// Its guest may send what it likes. Here nobody knows the switch's time: what is copied to it is known by the clock alone.
    #[test]
    fn what_is_copied_to_a_guest_has_a_bound_of_its_own() {
        let (mut bounds, at) = (CpuBounds::default(), Instant::now());
        bounds.copies.entry(PORT.0).or_default().percent = 10;
        let flood = work(200_000_000, 200_000, 200_000 * BYTES);
        assert_eq!(bounds.look(FROM, &flood, (None, 0), at), (false, None), "there is none of that way");
        for (done, at) in [(work(0, 0, 0), at), (flood, at + Duration::from_secs(1))] {
            assert_eq!(bounds.look(Way::To, &done, (None, 0), at).0, done == flood);
        }
        let both = RateLimit { packets: 200_000, bytes: 200_000 * BYTES, burst_ns: BURST_NS };
        let [from, to] = Way::BOTH.map(|way| bounds.hold(way, PORT, RateLimit::default()));
        assert_eq!((from, to), (RateLimit::default(), both));
        let [from, to] = bounds.told(at);
        assert_eq!((from, to[0].spent_ns, to[0].held_to), (Vec::new(), 200_000_000, Some([200_000, 200_000 * BYTES])));
        bounds.forget(PORT);
        assert_eq!(bounds.told(at), [const { Vec::new() }; 2]);
    }

    /// A thread that is woken for each packet takes more than its packets do, and one that is stopped in the middle less; a helper's time is in theirs alone.
    #[test]
    fn the_time_of_a_thread_and_no_more_than_that_of_helpers_counts() {
        let spent = |busy_ns, own, helpers| {
            looked(&[(work(busy_ns, 1000, 60_000).woken(1), [own, helpers])]).told(Instant::now())[0][0].spent_ns
        };
        assert_eq!((spent(5, 77, 0), spent(77, 5, 0)), (77, 5));
        assert_eq!((spent(77, 5, 1000), spent(77, 5, 30)), (77, 35));
    }

    #[test]
    fn what_begins_anew_is_not_counted() {
        let mut bounds = looked(&[(work(200_000_000, 200_000, 0), [200_000_000, 0])]);
        let (held, later) =
            (bounds.clone().hold(FROM, PORT, RateLimit::default()), Instant::now() + Duration::from_secs(9));
        // Another switch, with another thread.
        assert_eq!(bounds.look(FROM, &work(100, 1, 60), (Some((8, 0)), 0), later), (false, None));
        bounds.look(FROM, &work(99_000_100, 100_001, 60), (Some((9, 500_000_000)), 0), later + Duration::from_secs(1));
        assert_eq!(bounds.told(later)[0][0].spent_ns, 99_000_000);
        assert_eq!(bounds.hold(FROM, PORT, RateLimit::default()), held);
    }

    /// Of one kind alone it may be a small part of what it may send.
    #[test]
    fn nobody_is_held_to_less_than_the_floor_in_what_its_own_rate_counts() {
        let floor = |bytes, packets| RateLimit { burst_ns: BURST_NS, ..limit(bytes, packets) };
        let took = [900_000_000, 0];
        for more in
            [work(0, 0, 0).woken(1_000_000), work(900_000_000, 1000, 60_000), work(900_000_000, 1000, 65_536_000)]
        {
            let mut bounds = looked(&[(more, took), (work(900_000_000, 1000, more.bytes), took)]);
            let [bytes, packets] =
                [limit(5_000_000_000, 0), limit(0, 1_000_000)].map(|told| bounds.hold(FROM, PORT, told));
            assert!(bytes.bytes >= FLOOR * BYTES && packets.packets >= FLOOR, "{bytes:?} {packets:?}");
        }
        let mut bounds = looked(&[(work(0, 0, 0).woken(1_000_000), took)]);
        assert_eq!(bounds.hold(FROM, PORT, limit(50_000_000, 0)), floor(FLOOR * BYTES, 0));
        assert_eq!(bounds.hold(FROM, PORT, limit(0, 50_000)), floor(0, FLOOR));
        assert_eq!(bounds.hold(FROM, PORT, limit(9, 0)), limit(9, 0), "its own is lower");
    }

    /// Short packets are all packets, long ones nearly all bytes: at the floor the rate stays, and what it comes to in one kind does not.
    #[test]
    fn another_mixture_is_told_and_what_is_told_is_shown() {
        let (mut bounds, mut at, mut sum) = (looked(&[]), Instant::now(), work(0, 0, 0));
        let told = limit(0, 10_000_000);
        let mut look = |bounds: &mut CpuBounds, bytes| {
            at += Duration::from_secs(1);
            sum = work(sum.busy_ns + 100_000_000, sum.packets + 100_000, sum.bytes + bytes);
            let changed = bounds.look(FROM, &sum, (None, 0), at).0;
            if changed {
                bounds.hold(FROM, PORT, told);
            }
            (changed, bounds.told(at)[0][0].held_to)
        };
        look(&mut bounds, 0);
        bounds.ports.get_mut(&PORT.0).unwrap().law = serde_json::from_value(
            serde_json::json!({"limit": 2e5, "owed": 1e9, "calm": 0, "over": 0, "missed": false}),
        )
        .unwrap();
        assert_eq!(look(&mut bounds, 0), (true, Some([200_000, 0])));
        assert_eq!(look(&mut bounds, 100_000), (false, Some([200_000, 0])), "it is nearly the same");
        assert_eq!(look(&mut bounds, 100_000 * BYTES), (true, Some([100_000, 0])), "half of it is bytes");
        bounds.hold(FROM, PORT, limit(0, 50_000));
        assert_eq!(bounds.told(Instant::now())[0][0].held_to, None, "its own is lower");
    }

    /// Its neighbours flood it, and its thread is woken for what it gets.
    #[test]
    fn what_others_send_to_it_is_not_its_own() {
        let flooded = (work(0, 0, 0), [900_000_000, 0]);
        let bounds = looked(&[flooded; 9]);
        assert_eq!((bounds.told(Instant::now())[0][0].spent_ns, bounds.ports[&PORT.0].law.limit()), (0, None));
        let answers = (work(3_000_000, 1000, 60_000).woken(1000), [900_000_000, 0]);
        assert_eq!(looked(&[answers; 9]).told(Instant::now())[0][0].spent_ns, 23_000_000);
    }

    #[test]
    fn another_program_goes_on_with_a_miss_and_counts_it_once() {
        let flood = (work(900_000_000, 1000, 60_000), [900_000_000, 0]);
        let before = looked(&[flood; 9]);
        assert_eq!(before.told(Instant::now())[0][0].missed, 1);
        let mut after: CpuBounds = serde_json::from_str(&serde_json::to_string(&before).unwrap()).unwrap();
        let (mut sum, mut at) = (work(0, 0, 0), Instant::now());
        for _ in 0..3 {
            assert_eq!(after.look(FROM, &sum, (None, 0), at).1, None);
            (sum.busy_ns, at) = (sum.busy_ns + 900_000_000, at + Duration::from_secs(1));
            let told = after.told(at)[0][0];
            assert_eq!((told.missed, told.missed_ms.is_some()), (1, true));
        }
        let news = (0..9).find_map(|_| {
            at += Duration::from_secs(1);
            after.look(FROM, &sum, (None, 0), at).1
        });
        assert_eq!(news, Some(News::Kept));
    }

    #[test]
    fn nothing_is_looked_at_for_nothing_or_without_a_pause() {
        let (mut bounds, now, work) = (CpuBounds::default(), Instant::now(), [work(0, 0, 0)]);
        let mut due = |work: [&[PortWork]; 2], ms| bounds.is_due(work, now + Duration::from_millis(ms));
        let [none, from, to]: [[&[PortWork]; 2]; 3] = [[&[], &[]], [&work, &[]], [&[], &work]];
        assert!(!due(none, 0) && due(from, 1) && !due(from, 2) && !due(to, 300) && due(to, 301));
    }
}
