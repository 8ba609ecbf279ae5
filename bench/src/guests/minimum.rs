//! Two guests that want all of an uplink, one of which is promised a part of it.
//!
//! Both send whatever goes to a world outside that sends everything back. What the uplink takes is bounded, the way back is not: what comes
//! back of each is what it got of the uplink.

use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::guests::load::{Places, start};
use crate::guests::reflector::Reflector;
use crate::round::Round;
use crate::switch::uplink::{Device, Uplink};
use crate::switch::{Extras, Promise, Switch};
use lasthop_harness::stop::{Outcome, check, failed};
use lasthop_harness::{Port, scratch};
use lasthop_loadgen::{self as load, Guest, Observer, Pattern, Report, Session, Settings, Socket};
use std::time::Duration;

/// What an uplink takes and what the first guest is to have of it, in bits a second: less than any switch here carries.
const PROMISE: Promise = Promise { port: 0, least: 140_000_000, whole: 200_000_000 };
/// Until the buckets of all contenders have run empty.
const WARMUP: Duration = Duration::from_secs(1);

/// What the guests do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Minimum {
    /// Lengths of the other guest's frames.
    pub sizes: &'static str,
    /// Whoever is promised something sends nothing.
    pub idle: bool,
}

impl Minimum {
    /// Both guests' loads.
    fn guests(self) -> Outcome<Vec<Guest>> {
        let guest = |port, sizes: &str, rate| -> Outcome<Guest> {
            Ok(Guest { port, sizes: Some(sizes.parse().map_err(failed)?), rate, ..Guest::default() })
        };
        Ok(vec![guest(0, "1514", self.idle.then_some(0.0))?, guest(1, self.sizes, None)?])
    }
}

/// Takes the switch's processor time while packets flow.
struct Watch<'a> {
    switch: &'a mut dyn Switch,
    cpu_ns: Option<f64>,
}

impl Observer for Watch<'_> {
    fn begin(&mut self) -> Outcome<()> {
        self.switch.begin()
    }

    fn end(&mut self, packets: f64) -> Outcome<()> {
        self.cpu_ns = Some(self.switch.spent(2.0 * packets)?.cpu_ns);
        Ok(())
    }
}

/// What each guest got.
pub fn measure(contender: Contender, cpus: Cpus, what: Minimum, seconds: f64) -> Outcome<Round> {
    let (dir, world) = (scratch(), Reflector::new(Device::Packet)?);
    let ports = ["p0", "p1"].map(|name| Port::connect(name, dir.path()));
    let sockets = ports.iter().map(|p| Socket { path: p.socket.clone(), listen: true }).collect();
    let settings = Settings {
        cpus: vec![cpus.guests],
        // As long as those of Linux guests.
        ring_size: 256,
        guests: what.guests()?,
        // They are left to the peers that need them.
        huge: Some(false),
        warmup: WARMUP,
        length: Duration::from_secs_f64(seconds),
        ..Settings::new(sockets, Pattern::Reflect)
    };
    // Before the switch tries to connect for the first time.
    let listening = load::listen(&settings)?;
    let uplink = Some(Uplink { netns: &world.site, device: Device::Packet });
    let extras = Extras { queues: 1, uplink, promise: Some(PROMISE), ..Extras::default() };
    let places = Places { cpus, guests: &settings.cpus, switch: &[cpus.switch], spread: false };
    let mut switch = start(contender, places, &ports, extras)?;
    let mut session = Session::connect(&settings, &listening, &check)?;
    let mut watch = Watch { switch: &mut *switch, cpu_ns: None };
    let report = session.play(&settings, &mut watch)?;
    let cpu_ns = watch.cpu_ns;
    // Guests leave before their switch ends.
    drop(session);
    if report.reordered + report.doubled + report.damaged > 0 {
        let Report { reordered, doubled, damaged, .. } = report;
        return Err(failed(format!("packets out of order: {reordered}, doubled: {doubled}, damaged: {damaged}")));
    }
    if report.received == 0 {
        return Err(failed("no packet came back"));
    }
    Ok(Round::new(figures(&report, what, cpu_ns), Vec::new()))
}

/// As [`crate::figure::MINIMUM`] names them.
fn figures(report: &Report, what: Minimum, cpu_ns: Option<f64>) -> Vec<Option<f64>> {
    let rate = |port: usize| Some(8.0 * report.ports.get(port)?.delivered_bytes as f64 / report.seconds);
    let (promised, other) = (rate(0).filter(|_| !what.idle), rate(1));
    let together = other.map(|o| o + promised.unwrap_or(0.0));
    vec![
        promised.map(|r| r / 1e6),
        promised.map(|r| 100.0 * r / PROMISE.least as f64),
        other.map(|r| r / 1e6),
        together.map(|r| 100.0 * r / PROMISE.whole as f64),
        cpu_ns.map(|ns| ns / report.seconds / 1e7),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::all;
    use load::guest::PortReport;

    fn report(bytes: [u64; 2]) -> Report {
        let ports = (0..).zip(bytes).map(|(port, delivered_bytes)| PortReport {
            port,
            delivered_bytes,
            ..PortReport::default()
        });
        Report { seconds: 2.0, ports: ports.collect(), ..Report::default() }
    }

    #[test]
    fn what_came_back_is_held_against_what_was_promised() {
        // 70 and 100 Mbit/s.
        let both = Minimum { sizes: "1514", idle: false };
        let figures = figures(&report([17_500_000, 25_000_000]), both, Some(1e9));
        let names = all().find(|s| s.name == "minimum-frames").unwrap().figures();
        let of = |name: &str| figures[names.iter().position(|f| f.name == name).unwrap()];
        assert_eq!(figures.len(), names.len());
        assert_eq!(
            (of("promised guest"), of("of its minimum"), of("other guest")),
            (Some(70.0), Some(50.0), Some(100.0))
        );
        assert_eq!((of("both"), of("switch CPU")), (Some(85.0), Some(50.0)));
    }

    #[test]
    fn who_sends_nothing_has_no_rate_and_the_other_may_have_all() {
        let idle = Minimum { sizes: "1514", idle: true };
        assert_eq!(idle.guests().unwrap().iter().map(|g| g.rate).collect::<Vec<_>>(), [Some(0.0), None]);
        let figures = figures(&report([0, 50_000_000]), idle, None);
        assert_eq!(figures, [None, None, Some(200.0), Some(100.0), None]);
    }
}
