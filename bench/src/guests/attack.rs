//! Two guests that talk to each other, and guests that do their worst beside them.

use crate::acl::{Kind, List};
use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::round::Round;
use crate::switch::lasthop::Ours;
use crate::switch::ovs::Ovs;
use crate::switch::{Extras, Switch};
use lasthop_harness::stop::{Outcome, check, failed};
use lasthop_harness::{Port, scratch};
use lasthop_loadgen::{self as load, Attack, Listening, Pattern, Report, Session, Settings, Socket};
use std::time::Duration;

/// Packets a second of both bystanders together: so far below what any contender carries that it is carried where the CPUs are far
/// apart and on a machine with something else to do, too.
const RATE: f64 = 2.5e5;
/// First packets of flows a second, beside these.
const FIRSTS: f64 = 1e3;
/// The part of [`RATE`] that has to come while everybody behaves well.
const CARRIED: f64 = 0.97;
/// Traffic before a measurement.
const WARMUP: Duration = Duration::from_millis(300);
/// The same for who has to own as many flows as it can.
const OWNING: Duration = Duration::from_secs(2);

/// A switch, bystanders and attackers.
struct Field {
    // In this order: guests leave before their switch ends.
    session: Session<'static>,
    _listening: Listening,
    switch: Box<dyn Switch>,
    settings: Settings,
    _dir: tempfile::TempDir,
}

impl Field {
    fn set(contender: Contender, cpus: Cpus, attack: Attack, rules: usize) -> Outcome<Self> {
        let dir = scratch();
        let count = 2 + attack.ports();
        let ports: Vec<Port> = (0..count).map(|i| Port::connect(&format!("p{i}"), dir.path())).collect();
        let paths: Vec<_> = ports.iter().map(|p| &*p.socket).collect();
        let mut sockets: Vec<_> = paths.iter().map(|p| Socket { path: p.to_path_buf(), listen: true }).collect();
        let attackers = sockets.split_off(2);
        let settings = Settings {
            rate: Some(RATE),
            latency: true,
            cpus: vec![cpus.guests],
            attack: Some(attack),
            attackers,
            firsts: Some(FIRSTS),
            ..Settings::new(sockets, Pattern::BothWays)
        };
        // Before the switch tries to connect for the first time.
        let listening = load::listen(&settings)?;
        let list = (rules > 0).then(|| List::generate(Kind::Stateless, rules));
        let extras = Extras { large: attack.is_large(), queues: 1, list: list.as_ref(), ..Extras::default() };
        let switch: Box<dyn Switch> = match contender {
            Contender::Lasthop => Box::new(Ours::start(&ports, &cpus.switch.to_string(), extras, None)?),
            Contender::Ovs(rules) => Box::new(Ovs::start(cpus.guests, &[cpus.switch], &paths, rules, extras)?),
            _ => return Err(failed("is not attacked")),
        };
        let session = Session::connect(&settings, &listening, &check)?;
        Ok(Self { session, _listening: listening, switch, settings, _dir: dir })
    }

    /// Plays so many seconds.
    fn play(&mut self, tame: bool, seconds: f64) -> Outcome<Report> {
        let owns = !tame && matches!(self.settings.attack, Some(Attack::Flap | Attack::Headers | Attack::All));
        let settings = Settings {
            tame,
            warmup: if owns { OWNING } else { WARMUP },
            length: Duration::from_secs_f64(seconds),
            ..self.settings.clone()
        };
        let before = self.switch.forwarder();
        let report = self.session.play(&settings, &mut ())?;
        if self.switch.forwarder() != before {
            return Err(failed("the switch's process was replaced"));
        }
        if report.reordered + report.doubled + report.damaged > 0 {
            let Report { reordered, doubled, damaged, .. } = report;
            return Err(failed(format!("packets out of order: {reordered}, doubled: {doubled}, damaged: {damaged}")));
        }
        Ok(report)
    }
}

/// Both parts of a round, one right after the other on the same switch: attackers who behave well, and who do not.
pub fn measure(contender: Contender, cpus: Cpus, attack: Attack, rules: usize, seconds: f64) -> Outcome<Round> {
    let mut field = Field::set(contender, cpus, attack, rules)?;
    let tame = field.play(true, seconds)?;
    if tame.mpps * 1e6 < CARRIED * RATE {
        // Of one who is late already nothing can be said.
        return Err(failed(format!(
            "beside attackers that behave well the bystanders had {:.0} packets a second of {RATE:.0}: the machine is too busy",
            tame.mpps * 1e6
        )));
    }
    let wild = field.play(false, seconds)?;
    // Not probed: neighbours in time, at a rate that is carried at any distance.
    Ok(Round::new(figures(&tame, &wild), Vec::new()))
}

/// As [`crate::scenario::Figure`] names them.
fn figures(tame: &Report, wild: &Report) -> Vec<Option<f64>> {
    let rates = |r: &Report| -> Vec<f64> { r.received_by_port.iter().map(|n| *n as f64 / r.seconds).collect() };
    // Of both directions the one that suffers more.
    let kept = rates(wild).into_iter().zip(rates(tame)).filter(|(_, before)| *before > 0.0).map(|(now, b)| now / b);
    let kept = kept.reduce(f64::min).map(|part| 100.0 * part);
    let of = |r: &Report, f: fn(&load::report::Latency) -> f64| r.latency.as_ref().map(f);
    let first = |r: &Report, f: fn(&load::report::Latency) -> f64| r.first_packets.as_ref().map(f);
    let ratio = |now: Option<f64>, before: Option<f64>| Some(now? / before.filter(|b| *b > 0.0)?);
    let lost = 100.0 * wild.lost as f64 / (wild.lost + wild.received).max(1) as f64;
    let attack = |f: fn(&load::report::AttackReport) -> f64| wild.attack.as_ref().map(f);
    vec![
        kept,
        Some(lost),
        ratio(of(wild, |l| l.p99), of(tame, |l| l.p99)),
        of(tame, |l| l.p50),
        of(wild, |l| l.p50),
        of(tame, |l| l.p99),
        of(wild, |l| l.p99),
        of(wild, |l| l.p999),
        ratio(first(wild, |l| l.p99), first(tame, |l| l.p99)),
        first(wild, |l| l.p99),
        attack(|a| a.tally.sent as f64).map(|sent| sent / wild.seconds / 1e3),
        attack(|a| a.overrun_percent),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::all;
    use lasthop_loadgen::report::{AttackReport, Latency};

    fn report(by_port: [u64; 2], p99: f64, first_p99: f64, lost: u64) -> Report {
        let times = |p99| Latency { packets: 1, min: 1.0, mean: 2.0, p50: 3.0, p99, p999: 2.0 * p99, max: 4.0 * p99 };
        Report {
            seconds: 2.0,
            received: by_port.iter().sum(),
            lost,
            received_by_port: by_port.to_vec(),
            latency: Some(times(p99)),
            first_packets: Some(times(first_p99)),
            attack: Some(AttackReport::default()),
            ..Report::default()
        }
    }

    #[test]
    fn the_direction_that_suffers_more_counts_and_times_are_quotients() {
        let figures = figures(&report([1000, 1000], 10.0, 50.0, 0), &report([500, 900], 30.0, 60.0, 600));
        let names = all().find(|s| s.name == "attack-storm").unwrap().figures();
        let of = |name: &str| figures[names.iter().position(|f| f.name == name).unwrap()];
        assert_eq!(figures.len(), names.len());
        assert_eq!((of("packets kept"), of("lost")), (Some(50.0), Some(30.0)));
        assert_eq!((of("p99 against tame"), of("first packet p99 against tame")), (Some(3.0), Some(1.2)));
        assert_eq!((of("p99 tame"), of("p99"), of("p99.9")), (Some(10.0), Some(30.0), Some(60.0)));
    }

    #[test]
    fn without_packets_there_are_no_times() {
        let mut wild = report([0, 0], 1.0, 1.0, 5);
        (wild.latency, wild.first_packets) = (None, None);
        let figures = figures(&report([1000, 1000], 10.0, 50.0, 0), &wild);
        assert_eq!((figures[0], figures[2], figures[8]), (Some(0.0), None, None));
    }
}
