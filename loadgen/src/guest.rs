//! What one port does otherwise than the others, and what came out of each port.

use super::frame;
use super::report::{Latency, histogram};
use super::settings::Sizes;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::str::FromStr;

/// A port with a load of its own. What is not said is as the settings say for all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guest {
    /// Number of the port.
    pub port: u16,
    /// Lengths of its frames.
    pub sizes: Option<Sizes>,
    /// Packets a second of this port alone; 0: it sends nothing.
    pub rate: Option<f64>,
    /// Its packets on their way at most.
    pub window: Option<u32>,
    /// Its flows to each receiver.
    pub flows: Option<u32>,
    /// It kicks whenever it is looked at, whether or not there is something new in its ring.
    pub kicks: bool,
}

impl Guest {
    /// Whether it takes what it can get: it is not paced, or its kicks are not.
    pub fn is_greedy(&self) -> bool {
        self.rate.is_none() || self.kicks
    }

    /// What does not fit, for people.
    pub(super) fn wrong(&self, ports: usize) -> Option<String> {
        let port = self.port;
        if usize::from(port) >= ports {
            Some(format!("--guest {port}: ports are numbered from 0 to {}", ports.saturating_sub(1)))
        } else if self.rate.is_some_and(|r| !r.is_finite() || r < 0.0) {
            Some(format!("--guest {port}: a rate of 0 or more"))
        } else if self.window == Some(0) {
            Some(format!("--guest {port}: a window of one packet at least"))
        } else if self.flows.is_some_and(|f| !(1..=frame::MAX_FLOWS).contains(&f)) {
            Some(format!("--guest {port}: 1 to {} flows", frame::MAX_FLOWS))
        } else {
            None
        }
    }
}

impl FromStr for Guest {
    type Err = String;

    /// `PORT:WORD,…`, of `size=LENGTH+LENGTH…` (or `size=gso`, `size=imix`), `rate=N`, `window=N`, `flows=N` and `kicks`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (port, words) = text.split_once(':').ok_or("PORT:WORD,…, such as 2:size=1514,rate=1000")?;
        let port = port.parse().map_err(|_| format!("not the number of a port: {port:?}"))?;
        let mut guest = Self { port, ..Self::default() };
        for word in words.split(',') {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let bad = |what: &str| format!("{word:?}: {what}");
            match name {
                "size" => guest.sizes = Some(value.replace('+', ",").parse()?),
                "rate" => guest.rate = Some(value.parse().map_err(|_| bad("packets a second"))?),
                "window" => guest.window = Some(value.parse().map_err(|_| bad("a number of packets"))?),
                "flows" => guest.flows = Some(value.parse().map_err(|_| bad("a number of flows"))?),
                "kicks" if value.is_empty() => guest.kicks = true,
                _ => return Err(format!("{word:?}: size=, rate=, window=, flows= or kicks")),
            }
        }
        Ok(guest)
    }
}

/// What a port counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub sent: u64,
    pub sent_bytes: u64,
    pub received: u64,
    pub kicks: u64,
    /// Turns.
    pub looks: u64,
    /// Turns at whose beginning the switch had taken everything.
    pub dry: u64,
}

impl Count {
    /// The difference to an earlier one.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent - earlier.sent,
            sent_bytes: self.sent_bytes - earlier.sent_bytes,
            received: self.received - earlier.received,
            kicks: self.kicks.saturating_sub(earlier.kicks),
            looks: self.looks - earlier.looks,
            dry: self.dry - earlier.dry,
        }
    }
}

/// What was received of a port, by whomever.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    pub frames: u64,
    pub bytes: u64,
    /// Their times, of a port whose times are told apart.
    pub times: Option<Histogram<u64>>,
}

impl Source {
    /// One whose times are told apart, or one that only counts.
    pub fn new(timed: bool) -> Self {
        Self { times: timed.then(histogram), ..Self::default() }
    }
}

/// What a thread knows of all ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// By its own ports.
    pub counts: Vec<(u16, Count)>,
    /// By all ports: what this thread received of them while it was measured.
    pub sources: Vec<(u64, u64)>,
    /// By port, of those whose times are told apart.
    pub times: Vec<(u16, Histogram<u64>)>,
}

/// What a port did and got during the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PortReport {
    /// Its number.
    pub port: u16,
    /// Frames that it sent.
    pub sent: u64,
    /// Bytes in them.
    pub sent_bytes: u64,
    /// Frames that it received.
    pub received: u64,
    /// Frames of its own that others received, or that came back.
    pub delivered: u64,
    /// Bytes in them.
    pub delivered_bytes: u64,
    /// Kicks that it gave.
    pub kicks: u64,
    /// Of its turns, those at whose beginning its ring still had something that the switch had not taken, in percent. Known of
    /// greedy ports that have turns.
    pub backlog_percent: Option<f64>,
    /// Times of the packets that it sent, in microseconds; of ports that are named with a load of their own, where times are measured.
    pub latency: Option<Latency>,
}

/// By port, of what all threads know.
pub(super) fn reports(threads: &[&Ports]) -> Vec<PortReport> {
    let mut counts: Vec<_> = threads.iter().flat_map(|t| t.counts.iter().copied()).collect();
    counts.sort_unstable_by_key(|(port, _)| *port);
    let report = |(port, count): (u16, Count)| {
        let of = |t: &&Ports| t.sources.get(usize::from(port)).copied().unwrap_or_default();
        let (delivered, delivered_bytes) =
            threads.iter().map(of).fold((0, 0), |sum, (frames, bytes)| (sum.0 + frames, sum.1 + bytes));
        let mut times = histogram();
        let its = threads.iter().flat_map(|t| &t.times).filter(|(source, _)| *source == port);
        its.for_each(|(_, t)| times.add(t).expect("the same bounds"));
        PortReport {
            port,
            sent: count.sent,
            sent_bytes: count.sent_bytes,
            received: count.received,
            delivered,
            delivered_bytes,
            kicks: count.kicks,
            backlog_percent: (count.looks > 0).then(|| 100.0 - 100.0 * count.dry as f64 / count.looks as f64),
            latency: Latency::of(&times),
        }
    };
    counts.into_iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_understood() {
        let guest: Guest = "3:size=64+1514,rate=1e4,window=8,flows=100,kicks".parse().unwrap();
        assert_eq!(
            (guest.port, guest.rate, guest.window, guest.flows, guest.kicks),
            (3, Some(1e4), Some(8), Some(100), true)
        );
        assert_eq!(guest.sizes.unwrap().cycle, [64, 1514]);
        assert!("0:size=gso".parse::<Guest>().unwrap().sizes.unwrap().gso);
        for bad in
            ["", "3", "x:rate=1", "1:", "1:rate", "1:rate=x", "1:size=63", "1:kicks=2", "1:speed=4", "1:flows=-1"]
        {
            assert!(bad.parse::<Guest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn who_is_paced_is_not_greedy_unless_it_kicks() {
        let greedy = |text: &str| text.parse::<Guest>().unwrap().is_greedy();
        assert_eq!([greedy("0:size=64"), greedy("0:rate=5"), greedy("0:rate=0,kicks")], [true, false, true]);
    }

    #[test]
    fn ports_are_put_together_from_all_threads() {
        let mut times = histogram();
        times.record(5000).unwrap();
        let count = Count { sent: 7, looks: 4, dry: 1, ..Count::default() };
        let one = Ports { counts: vec![(1, count)], sources: vec![(0, 0), (3, 300)], times: vec![(1, times.clone())] };
        let other =
            Ports { counts: vec![(0, Count::default())], sources: vec![(1, 64), (2, 200)], times: vec![(1, times)] };
        let reports = reports(&[&one, &other]);
        assert_eq!(
            reports.iter().map(|r| (r.port, r.delivered, r.delivered_bytes)).collect::<Vec<_>>(),
            [(0, 1, 64), (1, 5, 500)]
        );
        assert_eq!((reports[1].sent, reports[1].backlog_percent), (7, Some(75.0)));
        assert_eq!(reports[1].latency.as_ref().map(|l| l.packets), Some(2));
        assert_eq!((reports[0].backlog_percent, reports[0].latency.as_ref()), (None, None));
    }
}
