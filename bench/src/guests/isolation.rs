//! A guest with a modest load, alone and beside guests that take what they can get.
//!
//! Each guest is a pair of ports, one that sends and one that receives: nobody shares a receiver.

use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::guests::load::spread;
use crate::machine;
use crate::round::Round;
use crate::switch::bridge_tap::BridgeTap;
use crate::switch::lasthop::Ours;
use crate::switch::ovs::{Ovs, Rules};
use crate::switch::{Bound, Extras, Switch};
use lasthop_harness::stop::{Outcome, check, failed};
use lasthop_harness::{Port, scratch};
use lasthop_loadgen::guest::PortReport;
use lasthop_loadgen::{self as load, Guest, Listening, Pattern, Report, Session, Settings, Socket};
use std::time::Duration;

/// Packets a second of the modest guest.
const RATE: f64 = 1e4;
/// The part of [`RATE`] that has to come while it is alone.
const CARRIED: f64 = 0.97;
/// The part of the time, in percent, by which turns may be too long while the modest guest is alone: then somebody else has the guests' CPU.
const DISTURBED: f64 = 20.0;
/// How long a greedy guest has in each round of the thread that plays all.
const TURN: Duration = Duration::from_micros(20);
const WARMUP: Duration = Duration::from_millis(300);
/// Bytes a second for each 100 of weight that a policer, or a class of `tc`, lets through to a greedy guest's receiver: so few that every guest
/// asks for more.
const POLICED: u64 = 30_000_000;

/// Lengths of packets of 64 KiB, and of frames.
pub const LARGE: &str = "gso";
pub const FRAME: &str = "1514";

/// What a greedy guest does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Greed {
    /// Lengths of its frames.
    pub sizes: &'static str,
    /// Its flows.
    pub flows: u32,
    /// It sends nothing, and kicks instead.
    pub kicks: bool,
    /// What it is to get, 100 being usual.
    pub weight: u32,
}

impl Greed {
    /// 64-byte frames of one flow, the usual weight.
    pub const PLAIN: Self = Self { sizes: "64", flows: 1, kicks: false, weight: 100 };
}

/// Greedy guests beside a modest one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Isolation {
    /// Greedy guests are of these kinds, one after the other.
    pub kinds: &'static [Greed],
    /// How many there are.
    pub greedy: usize,
    /// Each guest is played by a thread on a CPU of its own; else one plays all.
    pub apart: bool,
}

impl Isolation {
    /// Guests, each of which is a pair of ports.
    fn pairs(self) -> usize {
        self.greedy + 1
    }

    /// Ports of all.
    pub fn ports(self) -> usize {
        2 * self.pairs()
    }

    /// CPUs that the guests and the switch's one take.
    pub fn cpus(self) -> usize {
        if self.apart { self.pairs() + 1 } else { 2 }
    }

    fn greedy(self) -> impl Iterator<Item = Greed> {
        self.kinds.iter().copied().cycle().take(self.greedy)
    }

    /// What goes to each greedy guest's receiver, where that is bounded.
    fn bounds(self) -> Vec<Bound> {
        let bytes = |greed: Greed| POLICED * u64::from(greed.weight) / 100;
        self.greedy().enumerate().map(|(i, g)| Bound { from: 2 * i, to: 2 * i + 1, bytes: bytes(g) }).collect()
    }

    /// The loads of all ports that send. Where no packet is longer than a frame, a guest's own stack has cut the long ones.
    fn guests(self, frames_alone: bool) -> Outcome<Vec<Guest>> {
        let mut guests = Vec::new();
        for (greed, i) in self.greedy().zip(0..) {
            let sizes = if frames_alone && greed.sizes == LARGE { FRAME } else { greed.sizes };
            guests.push(Guest {
                port: 2 * i,
                sizes: Some(sizes.parse().map_err(failed)?),
                rate: greed.kicks.then_some(0.0),
                flows: Some(greed.flows),
                kicks: greed.kicks,
                ..Guest::default()
            });
        }
        guests.push(Guest { port: 2 * self.greedy as u16, rate: Some(RATE), ..Guest::default() });
        Ok(guests)
    }
}

/// Whether no packet longer than a frame gets through: DPDK's TAP driver passes none on whole.
fn frames_alone(contender: Contender) -> bool {
    matches!(contender, Contender::BridgeTap | Contender::BridgeTc)
}

/// A switch and its guests.
struct Field {
    // In this order: guests leave before their switch ends.
    session: Session<'static>,
    _listening: Listening,
    _switch: Box<dyn Switch>,
    settings: Settings,
    _dir: tempfile::TempDir,
}

impl Field {
    fn set(contender: Contender, cpus: Cpus, isolation: Isolation) -> Outcome<Self> {
        let dir = scratch();
        let ports: Vec<Port> = (0..isolation.ports()).map(|i| Port::connect(&format!("p{i}"), dir.path())).collect();
        let paths: Vec<_> = ports.iter().map(|p| &*p.socket).collect();
        let sockets = paths.iter().map(|p| Socket { path: p.to_path_buf(), listen: true }).collect();
        let settings = Settings {
            latency: true,
            cpus: if isolation.apart { spread(machine::cpus(), isolation.pairs(), cpus).0 } else { vec![cpus.guests] },
            rx_buffer: 4096,
            guests: isolation.guests(frames_alone(contender))?,
            turn: Some(TURN),
            // They are left to the peers that need them.
            huge: Some(false),
            ..Settings::new(sockets, Pattern::OneWay)
        };
        // Before the switch tries to connect for the first time.
        let listening = load::listen(&settings)?;
        let bounded = matches!(contender, Contender::Ovs(Rules::Policed) | Contender::BridgeTc);
        let bounds = if bounded { isolation.bounds() } else { Vec::new() };
        let police = &bounds[..];
        let extras = Extras { large: true, queues: 1, police, ..Extras::default() };
        let ours = |change| -> Outcome<Box<dyn Switch>> {
            let switch = Ours::start(&ports, &cpus.switch.to_string(), extras, change)?;
            for (i, greed) in isolation.greedy().enumerate().filter(|(_, g)| g.weight != Greed::PLAIN.weight) {
                let (name, weight) = (format!("p{}", 2 * i), greed.weight.to_string());
                switch.instance().command(&["port", "set", &name, "--weight", &weight]);
            }
            Ok(Box::new(switch))
        };
        let switch: Box<dyn Switch> = match contender {
            Contender::Lasthop => ours(None)?,
            Contender::Changed(change) => ours(Some(change))?,
            Contender::Ovs(rules) => Box::new(Ovs::start(cpus.guests, &[cpus.switch], &paths, rules, extras)?),
            Contender::BridgeTap | Contender::BridgeTc => {
                Box::new(BridgeTap::start(cpus.guests, cpus.switch, &paths, extras)?)
            }
            _ => return Err(failed("has no such ports")),
        };
        let session = Session::connect(&settings, &listening, &check)?;
        Ok(Self { session, _listening: listening, _switch: switch, settings, _dir: dir })
    }

    fn play(&mut self, tame: bool, seconds: f64) -> Outcome<Report> {
        let length = Duration::from_secs_f64(seconds);
        let report = self.session.play(&Settings { tame, warmup: WARMUP, length, ..self.settings.clone() }, &mut ())?;
        if report.reordered + report.doubled + report.damaged > 0 {
            let Report { reordered, doubled, damaged, .. } = report;
            return Err(failed(format!("packets out of order: {reordered}, doubled: {doubled}, damaged: {damaged}")));
        }
        Ok(report)
    }
}

/// Both parts of a round, one right after the other on the same switch: the modest guest alone, and beside the greedy ones.
pub fn measure(contender: Contender, cpus: Cpus, isolation: Isolation, seconds: f64) -> Outcome<Round> {
    let mut field = Field::set(contender, cpus, isolation)?;
    let alone = field.play(true, seconds)?;
    let modest = 2 * isolation.greedy;
    let rate = rate(&alone, modest).unwrap_or(0.0);
    if rate < CARRIED * RATE {
        return Err(failed(format!(
            "alone the modest guest had {rate:.0} packets a second of {RATE:.0}: the machine is too busy"
        )));
    }
    if alone.turns_overrun_percent > DISTURBED {
        let percent = alone.turns_overrun_percent;
        return Err(failed(format!("others had {percent:.0} % of the guests' CPU while the modest guest was alone")));
    }
    let beside = field.play(false, seconds)?;
    let weights: Vec<u32> = isolation.greedy().map(|g| g.weight).collect();
    let shares = if isolation.kinds.iter().any(|g| g.kicks) { &[][..] } else { &weights };
    Ok(Round::new(figures(&alone, &beside, modest, shares), Vec::new()))
}

/// Packets of a port that arrived, a second.
fn rate(report: &Report, port: usize) -> Option<f64> {
    Some(report.ports.get(port)?.delivered as f64 / report.seconds)
}

/// As [`crate::scenario::Figure`] names them; greedy guests are ports 0, 2 and so on, and these are their weights.
fn figures(alone: &Report, beside: &Report, modest: usize, weights: &[u32]) -> Vec<Option<f64>> {
    let of = |r: &Report, f: fn(&load::report::Latency) -> f64| r.ports.get(modest)?.latency.as_ref().map(f);
    let greedy: Vec<&PortReport> = beside.ports.iter().take(modest).step_by(2).collect();
    let sum = |f: fn(&PortReport) -> u64| greedy.iter().map(|p| f(p) as f64).sum::<f64>() / beside.seconds;
    let (p99, p99_alone) = (of(beside, |l| l.p99), of(alone, |l| l.p99));
    vec![
        p99.zip(p99_alone).map(|(now, before)| now / before),
        p99_alone,
        p99,
        of(alone, |l| l.p50),
        of(beside, |l| l.p50),
        of(beside, |l| l.max),
        rate(beside, modest).zip(rate(alone, modest)).map(|(now, before)| 100.0 * now / before),
        worst_share(&greedy, weights),
        greedy.iter().filter_map(|p| p.backlog_percent).reduce(f64::min),
        (!weights.is_empty()).then(|| 8.0 * sum(|p| p.delivered_bytes) / 1e9),
        (!weights.is_empty()).then(|| sum(|p| p.delivered) / 1e3),
        Some(sum(|p| p.kicks) / 1e3),
        Some(beside.turns_overrun_percent),
    ]
}

/// Of the bytes of all, what the guest got that got least of what its weight would give it, in percent of that.
fn worst_share(greedy: &[&PortReport], weights: &[u32]) -> Option<f64> {
    let all: u64 = greedy.iter().map(|p| p.delivered_bytes).sum();
    let total: u32 = weights.iter().sum();
    let share = |(p, weight): (&&PortReport, &u32)| {
        100.0 * (p.delivered_bytes as f64 / all as f64) / (f64::from(*weight) / f64::from(total))
    };
    if all == 0 { None } else { greedy.iter().zip(weights).map(share).reduce(f64::min) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::all;
    use lasthop_loadgen::report::Latency;

    fn report(bytes: [u64; 2], modest: u64, p99: f64) -> Report {
        let latency = Latency { packets: 1, min: 1.0, mean: 2.0, p50: 3.0, p99, p999: 2.0 * p99, max: 4.0 * p99 };
        let greedy = |port, delivered_bytes, backlog| PortReport {
            port,
            delivered_bytes,
            delivered: delivered_bytes / 64,
            backlog_percent: Some(backlog),
            ..PortReport::default()
        };
        let idle = |port| PortReport { port, ..PortReport::default() };
        let timed = PortReport { port: 4, delivered: modest, latency: Some(latency), ..PortReport::default() };
        let ports = vec![greedy(0, bytes[0], 99.0), idle(1), greedy(2, bytes[1], 40.0), idle(3), timed, idle(5)];
        Report { seconds: 2.0, ports, ..Report::default() }
    }

    #[test]
    fn shares_are_by_weight_and_times_are_quotients() {
        let figures = figures(&report([0, 0], 1000, 10.0), &report([6000, 1000], 900, 25.0), 4, &[300, 100]);
        let names = all().find(|s| s.name == "isolation-bytes-2").unwrap().figures();
        let of = |name: &str| figures[names.iter().position(|f| f.name == name).unwrap()];
        assert_eq!(figures.len(), names.len());
        assert_eq!((of("p99 against alone"), of("p99 alone"), of("longest")), (Some(2.5), Some(10.0), Some(100.0)));
        assert_eq!((of("packets kept"), of("turns with a backlog")), (Some(90.0), Some(40.0)));
        // A seventh of the bytes, where a quarter was due.
        assert!((of("worst share").unwrap() - 400.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn loads_are_those_of_the_kinds_in_turn() {
        let kinds = &[Greed { sizes: "gso", weight: 300, ..Greed::PLAIN }, Greed { kicks: true, ..Greed::PLAIN }];
        let guests = Isolation { kinds, greedy: 3, apart: false }.guests(false).unwrap();
        assert_eq!(guests.iter().map(|g| g.port).collect::<Vec<_>>(), [0, 2, 4, 6]);
        assert_eq!(guests.iter().map(Guest::is_greedy).collect::<Vec<_>>(), [true, true, true, false]);
        assert_eq!((guests[1].rate, guests[3].rate), (Some(0.0), Some(RATE)));
    }

    #[test]
    fn packets_of_64_kib_come_in_frames_where_nothing_longer_gets_through() {
        let kinds = &[Greed { sizes: LARGE, ..Greed::PLAIN }, Greed::PLAIN];
        let cycles = |contender| {
            let guests = Isolation { kinds, greedy: 2, apart: false }.guests(frames_alone(contender)).unwrap();
            guests.into_iter().take(2).map(|g| g.sizes.map(|s| (s.gso, s.longest())).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(cycles(Contender::BridgeTc), [(false, 1514), (false, 64)]);
        assert!(cycles(Contender::Lasthop)[0].0);
    }

    #[test]
    fn receivers_have_bounds_by_their_senders_weights() {
        let kinds = &[Greed { weight: 300, ..Greed::PLAIN }, Greed::PLAIN];
        let bounds = Isolation { kinds, greedy: 2, apart: false }.bounds();
        let expected = [Bound { from: 0, to: 1, bytes: 3 * POLICED }, Bound { from: 2, to: 3, bytes: POLICED }];
        assert_eq!(bounds, expected, "and the modest guest has none");
    }
}
