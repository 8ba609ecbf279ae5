//! What came out.

use super::Settings;
use super::attack::Tally;
use super::grants::Told;
use super::guest::{self, PortReport, Ports};
use super::worker::WorkerReport;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// What a thread counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Frames sent.
    pub sent: u64,
    /// Frames received, announcements and the like left out.
    pub received: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Nanoseconds from the start to the last frame received; known where senders stop by themselves.
    pub last: u64,
}

impl Window {
    /// The sum of both.
    pub fn with(self, other: &Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            bytes: self.bytes + other.bytes,
            last: self.last.max(other.last),
        }
    }

    /// The difference to an earlier one.
    pub fn since(self, earlier: &Self) -> Self {
        Self {
            sent: self.sent - earlier.sent,
            received: self.received - earlier.received,
            bytes: self.bytes - earlier.bytes,
            last: self.last,
        }
    }
}

/// What a thread finds out beside that, over the whole traffic that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Sent, each as often as it was to be received.
    pub expected: u64,
    /// Received.
    pub received: u64,
    /// Of these, overtaken by others of the same flow.
    pub reordered: u64,
    /// Received a second time.
    pub doubled: u64,
    /// With a byte that is not as it was sent.
    pub damaged: u64,
    /// Frames that are not ours, or that were not for this port.
    pub stray: u64,
    /// Due, but there was no room in the ring.
    pub unsent: u64,
    /// Kicks given.
    pub kicks: u64,
    /// Times a guest slept.
    pub sleeps: u64,
    /// Nanoseconds by which greedy guests' turns were longer than they should.
    pub overrun_ns: u64,
}

impl Findings {
    /// The sum of both.
    pub fn with(self, o: &Self) -> Self {
        Self {
            expected: self.expected + o.expected,
            received: self.received + o.received,
            reordered: self.reordered + o.reordered,
            doubled: self.doubled + o.doubled,
            damaged: self.damaged + o.damaged,
            stray: self.stray + o.stray,
            unsent: self.unsent + o.unsent,
            kicks: self.kicks + o.kicks,
            sleeps: self.sleeps + o.sleeps,
            overrun_ns: self.overrun_ns + o.overrun_ns,
        }
    }
}

/// Times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Packets whose time was taken.
    pub packets: u64,
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// Half took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1000 took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// Of nanoseconds; nothing without any.
    pub fn of(times: &Histogram<u64>) -> Option<Self> {
        let us = |ns: u64| ns as f64 / 1e3;
        (!times.is_empty()).then(|| Self {
            packets: times.len(),
            min: us(times.min()),
            mean: times.mean() / 1e3,
            p50: us(times.value_at_quantile(0.5)),
            p99: us(times.value_at_quantile(0.99)),
            p999: us(times.value_at_quantile(0.999)),
            max: us(times.max()),
        })
    }
}

/// An empty histogram for nanoseconds, up to a minute, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that fit")
}

/// What a run of the generator found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Length of the measurement.
    pub seconds: f64,
    /// Frames sent meanwhile.
    pub sent: u64,
    /// Frames received meanwhile.
    pub received: u64,
    /// Frames received, in millions a second.
    pub mpps: f64,
    /// Bytes received, in Gbit a second, without checksum, preamble and gap.
    pub gbit_per_second: f64,
    /// Frames that were sent and not received, by the end.
    pub lost: u64,
    /// Frames overtaken by others of the same flow; known where order is checked.
    pub reordered: u64,
    /// Frames received a second time.
    pub doubled: u64,
    /// Frames with a byte that is not as it was sent; known where content is checked.
    pub damaged: u64,
    /// Frames that no port of ours sent, or not to the port that got them.
    pub stray: u64,
    /// Frames that were due by the end but found no room in the ring.
    pub unsent: u64,
    /// Kicks to the switch.
    pub kicks: u64,
    /// Times a guest went to sleep.
    pub sleeps: u64,
    /// Times from when a packet was due to when it was received (there and back, where packets come back).
    pub latency: Option<Latency>,
    /// The same of packets that were the first of their flows; these are counted nowhere else.
    pub first_packets: Option<Latency>,
    /// Frames received meanwhile by each port.
    pub received_by_port: Vec<u64>,
    /// What each port did and got meanwhile.
    pub ports: Vec<PortReport>,
    /// Part of the time by which greedy guests' turns were longer than they should, in percent.
    pub turns_overrun_percent: f64,
    /// What attackers did meanwhile.
    pub attack: Option<AttackReport>,
    /// What guests granted and revoked meanwhile, if they grant page by page.
    pub grants: Option<Told>,
}

/// What attackers did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct AttackReport {
    /// Counted.
    #[serde(flatten)]
    pub tally: Tally,
    /// Part of the time by which their slots were too short, in percent: so much of the guests' processor time went to
    /// attackers beyond what tame ones take.
    pub overrun_percent: f64,
}

impl Report {
    pub(super) fn new(settings: &Settings, elapsed: Duration, window: &Window, workers: &[WorkerReport]) -> Self {
        let found = workers.iter().fold(Findings::default(), |sum, w| sum.with(&w.findings));
        let mut times = histogram();
        workers.iter().filter_map(|w| w.times.as_ref()).for_each(|t| times.add(t).expect("the same bounds"));
        let mut firsts = histogram();
        workers.iter().filter_map(|w| w.firsts.as_ref()).for_each(|t| firsts.add(t).expect("the same bounds"));
        let ports = guest::reports(&workers.iter().map(|w| &w.ports).collect::<Vec<&Ports>>());
        let elapsed = if settings.packets.is_some() { Duration::from_nanos(window.last.max(1)) } else { elapsed };
        let seconds = elapsed.as_secs_f64();
        Self {
            seconds,
            sent: window.sent,
            received: window.received,
            mpps: window.received as f64 / seconds / 1e6,
            gbit_per_second: window.bytes as f64 * 8.0 / seconds / 1e9,
            lost: (found.expected + found.doubled).saturating_sub(found.received),
            reordered: found.reordered,
            doubled: found.doubled,
            damaged: found.damaged,
            stray: found.stray,
            unsent: found.unsent,
            kicks: found.kicks,
            sleeps: found.sleeps,
            latency: if settings.latency { Latency::of(&times) } else { None },
            first_packets: Latency::of(&firsts),
            received_by_port: ports.iter().map(|p| p.received).collect(),
            ports,
            turns_overrun_percent: found.overrun_ns as f64 / seconds / 1e7,
            attack: workers
                .iter()
                .find_map(|w| w.attack)
                .map(|tally| AttackReport { tally, overrun_percent: tally.overrun_ns as f64 / seconds / 1e7 }),
            grants: settings.grants.map(|_| workers.iter().fold(Told::default(), |sum, w| sum.with(&w.told))),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "received   {:.3} Mpps, {:.3} Gbit/s: {} frames in {:.2} s\n",
            self.mpps, self.gbit_per_second, self.received, self.seconds
        );
        let _ = writeln!(text, "sent       {} meanwhile; {} due without room in a ring", self.sent, self.unsent);
        let _ = writeln!(
            text,
            "wrong      {} lost, {} reordered, {} doubled, {} damaged, {} stray",
            self.lost, self.reordered, self.doubled, self.damaged, self.stray
        );
        if let Some(l) = &self.latency {
            let _ = writeln!(
                text,
                "latency    p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs, max {:.1} µs; min {:.1} µs, mean {:.1} µs",
                l.p50, l.p99, l.p999, l.max, l.min, l.mean
            );
        }
        if let Some(l) = &self.first_packets {
            let _ =
                writeln!(text, "first      p50 {:.1} µs, p99 {:.1} µs of {} first packets", l.p50, l.p99, l.packets);
        }
        if let Some(a) = &self.attack {
            let t = a.tally;
            let _ = writeln!(
                text,
                "attackers  {} frames sent, {} received, {} messages; {:.1} % of the time beyond their slots",
                t.sent, t.received, t.messages, a.overrun_percent
            );
        }
        if let Some(g) = &self.grants {
            let _ = writeln!(
                text,
                "grants     {} messages that granted, {} that revoked, {} questions, {} buffers that had to wait; buffers in {} pages",
                g.updates, g.invalidations, g.asked, g.refused, g.pages
            );
        }
        for p in self.ports.iter().filter(|p| p.latency.is_some() || p.backlog_percent.is_some()) {
            let gbit = |bytes: u64| bytes as f64 * 8.0 / self.seconds / 1e9;
            let _ = write!(
                text,
                "port {:<5} {} sent, {} of them received: {:.3} Gbit/s; {} kicks",
                p.port,
                p.sent,
                p.delivered,
                gbit(p.delivered_bytes),
                p.kicks
            );
            if let Some(l) = &p.latency {
                let _ = write!(text, "; p50 {:.1} µs, p99 {:.1} µs, max {:.1} µs", l.p50, l.p99, l.max);
            }
            if let Some(backlog) = p.backlog_percent {
                let _ = write!(text, "; {backlog:.0} % of its turns began with a backlog");
            }
            text.push('\n');
        }
        let _ = writeln!(text, "events     {} kicks, {} sleeps", self.kicks, self.sleeps);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_times() {
        let mut times = histogram();
        (1..=100_000u64).for_each(|us| times.record(us * 1000).unwrap());
        let l = Latency::of(&times).unwrap();
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.002;
        assert!(close(l.p50, 50_000.0) && close(l.p99, 99_000.0) && close(l.p999, 99_900.0), "{l:?}");
        assert!(close(l.max, 100_000.0) && close(l.mean, 50_000.5) && close(l.min, 1.0), "{l:?}");
        assert_eq!((l.packets, Latency::of(&histogram())), (100_000, None));
    }

    #[test]
    fn what_is_lost_is_what_did_not_come_once() {
        let settings = Settings::new(vec![], super::super::Pattern::OneWay);
        let findings = Findings { expected: 100, received: 98, doubled: 3, ..Findings::default() };
        let workers = [WorkerReport {
            findings,
            times: None,
            firsts: None,
            ports: Ports::default(),
            attack: None,
            told: Told::default(),
        }];
        let report = Report::new(
            &settings,
            Duration::from_secs(2),
            &Window { sent: 90, received: 80, bytes: 8000, last: 0 },
            &workers,
        );
        assert_eq!((report.lost, report.doubled), (5, 3));
        assert_eq!(report.mpps, 40e-6);
        assert!(report.text().contains("5 lost") && report.text().contains("3 doubled"));
    }
}
