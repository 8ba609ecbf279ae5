//! What lasthop is to reach beside its peers, and whether it does.

use crate::distance::Distance;
use crate::results::{ContenderResults, Results, ScenarioResults};
use crate::table::{align, number};

/// A bound on lasthop's figure, beside something else.
struct Target {
    what: &'static str,
    scenario: &'static str,
    figure: usize,
    against: Against,
    bound: Bound,
    aim: Option<f64>,
}

/// What lasthop's figure is divided by.
#[derive(Clone, Copy)]
enum Against {
    /// A peer's.
    Peer(&'static str),
    /// Nothing: the figure itself counts.
    Nothing,
    /// Its own in another scenario, at the same distance of the CPUs.
    Scenario(&'static str),
    /// For [`LEFT`]: what it left in this scenario, where there was next to no traffic, less what the packets cost.
    LessCost(&'static str),
}

#[derive(Clone, Copy)]
enum Bound {
    Least(f64),
    Most(f64),
}
use Bound::{Least, Most};

const fn target(what: &'static str, scenario: &'static str, figure: usize, peer: &'static str, bound: Bound) -> Target {
    Target { what, scenario, figure, against: Against::Peer(peer), bound, aim: None }
}

/// A bound on the figure itself.
const fn alone(what: &'static str, scenario: &'static str, figure: usize, bound: Bound) -> Target {
    Target { what, scenario, figure, against: Against::Nothing, bound, aim: None }
}

const fn aiming(aim: f64, target: Target) -> Target {
    Target { aim: Some(aim), ..target }
}

const OVS: &str = "ovs-flows";
const VHOST: &str = "dpdk-vhost";
const POLL: &str = "lasthop-poll";
const BRIDGE: &str = "linux-bridge";
// Figures of loops: packets, bytes, busy time.
const PACKETS: usize = 0;
const BYTES: usize = 1;
const BUSY: usize = 2;
// Figures of CPUs shared with others: what these got, and what the switch with packets and the guests took.
const LEFT: usize = 0;
const OWN_COST: [usize; 2] = [3, 4];
// Figures of attacks.
const KEPT: usize = 0;
const LOST: usize = 1;
const P99: usize = 2;
const FIRST_P99: usize = 8;
// Figures of a modest guest beside greedy ones.
const P99_BESIDE: usize = 0;
const SHARE: usize = 7;

const TARGETS: [Target; 102] = [
    target("64 B split, packets", "loop-64-split", PACKETS, OVS, Least(1.6)),
    target("64 B split, packets", "loop-64-split", PACKETS, VHOST, Least(1.0)),
    target("64 B packed, packets", "loop-64-packed", PACKETS, OVS, Least(1.6)),
    target("64 B packed, packets", "loop-64-packed", PACKETS, VHOST, Least(0.95)),
    target("64 B split, switch busy", "loop-64-split", BUSY, OVS, Most(0.36)),
    target("64 B packed, switch busy", "loop-64-packed", BUSY, OVS, Most(0.33)),
    target("1472 B split, switch busy", "loop-1472-split", BUSY, OVS, Most(0.33)),
    aiming(2.8, target("1472 B split, packets", "loop-1472-split", PACKETS, OVS, Least(2.3))),
    target("1472 B split, packets", "loop-1472-split", PACKETS, VHOST, Least(2.0)),
    target("64 KiB GSO, bytes", "size-gso-split", BYTES, OVS, Least(2.2)),
    target("1000 access rules, 100 000 flows, packets", "acl-1000-flows", PACKETS, "ovs-list", Least(2.0)),
    // Where the guests are the slower side, this says what packets cannot.
    target("1000 access rules, 100 000 flows, switch busy", "acl-1000-flows", BUSY, "ovs-list", Most(0.5)),
    Target {
        against: Against::Scenario("acl-1"),
        ..alone("1000 access rules against one, packets", "acl-1000", PACKETS, Least(0.95))
    },
    Target {
        against: Against::Scenario("acl-1"),
        ..alone("1000 access rules against one, switch busy", "acl-1000", BUSY, Most(1.05))
    },
    Target {
        against: Against::Scenario("acl-1"),
        ..alone("971 access rules against one, switch busy", "acl-971", BUSY, Most(1.05))
    },
    // Half the time for a packet is twice as many of each busy cycle.
    target("established, one rule, switch busy", "stateful-1", BUSY, "ovs-list", Most(0.5)),
    target("established, 971 rules, switch busy", "stateful-971", BUSY, "ovs-list", Most(0.5)),
    target(
        "established, 971 rules, 10 000 connections, switch busy",
        "stateful-971-flows",
        BUSY,
        "ovs-list",
        Most(0.5),
    ),
    Target {
        against: Against::Scenario("stateful-1"),
        ..alone("971 stateful rules against one, switch busy", "stateful-971", BUSY, Most(1.05))
    },
    target("new connections a second", "new-connections", PACKETS, "ovs-list", Least(1.0)),
    Target {
        against: Against::Scenario("masks-1"),
        ..alone("30 masks against one, packets", "masks-30", PACKETS, Least(0.8))
    },
    alone("random headers behind 971 rules, packets kept, %", "attack-headers", KEPT, Least(95.0)),
    target("switch CPU at 10 000 packets/s", "cpu-10k", 2, OVS, Most(0.05)),
    target("switch CPU at 100 000 packets/s", "cpu-100k", 2, OVS, Most(0.25)),
    target("switch CPU at 100 000 packets/s, not on idle cycles", "cpu-100k", 4, OVS, Most(0.25)),
    target("latency p99 at 100 000 packets/s", "latency-100k", 2, OVS, Most(1.0)),
    target("64 B split, packets, against polling", "loop-64-split", PACKETS, POLL, Least(0.94)),
    target("latency p99 at 100 000 packets/s, against polling", "latency-100k", 2, POLL, Most(1.5)),
    target("two VMs, TCP stream", "vms", 0, BRIDGE, Least(1.2)),
    target("two VMs, TCP stream", "vms", 0, OVS, Least(1.8)),
    target("two VMs, transactions", "vms", 1, BRIDGE, Least(1.3)),
    target("two VMs, transactions", "vms", 1, OVS, Least(1.3)),
    target("100 000 packets/s, CPU left to spinning programs", "shared-100k", 0, OVS, Least(1.5)),
    Target {
        against: Against::LessCost("shared-idle"),
        ..alone("100 000 packets/s, CPU left, but for their own cost", "shared-100k", LEFT, Least(0.95))
    },
    target("AF_XDP uplink, TCP transmitted", "uplink-xdp", 0, OVS, Least(1.5)),
    target("AF_XDP uplink, TCP received", "uplink-xdp", 1, OVS, Least(1.5)),
    target("AF_XDP uplink, TCP transmitted", "uplink-xdp", 0, BRIDGE, Least(1.0)),
    target("AF_XDP uplink, TCP received", "uplink-xdp", 1, BRIDGE, Least(1.0)),
    target("AF_XDP uplink, CPU between, transmitting", "uplink-xdp", 3, OVS, Most(1.0)),
    target("AF_XDP uplink, CPU between, receiving", "uplink-xdp", 4, OVS, Most(1.0)),
    target("AF_XDP uplink, CPU between, transmitting", "uplink-xdp", 3, BRIDGE, Most(1.0)),
    target("AF_XDP uplink, CPU between, receiving", "uplink-xdp", 4, BRIDGE, Most(1.0)),
    alone("AF_XDP uplink, its process, % of a CPU", "uplink-xdp", 7, Most(100.0)),
    target("AF_PACKET uplink, TCP transmitted", "uplink-packet", 0, OVS, Least(1.5)),
    target("AF_PACKET uplink, TCP received", "uplink-packet", 1, OVS, Least(1.5)),
    target("AF_PACKET uplink, TCP transmitted", "uplink-packet", 0, BRIDGE, Least(1.0)),
    target("AF_PACKET uplink, TCP received", "uplink-packet", 1, BRIDGE, Least(1.0)),
    target("AF_PACKET uplink, CPU between, transmitting", "uplink-packet", 3, OVS, Most(1.0)),
    target("AF_PACKET uplink, CPU between, receiving", "uplink-packet", 4, OVS, Most(1.0)),
    target("AF_PACKET uplink, CPU between, transmitting", "uplink-packet", 3, BRIDGE, Most(1.0)),
    target("AF_PACKET uplink, CPU between, receiving", "uplink-packet", 4, BRIDGE, Most(1.0)),
    alone("AF_PACKET uplink, its process, % of a CPU", "uplink-packet", 7, Most(100.0)),
    target("AF_XDP uplink, 64-byte frames", "outside-xdp-64", PACKETS, OVS, Least(1.5)),
    target("AF_XDP uplink, 1514-byte frames", "outside-xdp-1514", PACKETS, OVS, Least(1.5)),
    target("AF_PACKET uplink, 64-byte frames", "outside-packet-64", PACKETS, OVS, Least(1.5)),
    target("AF_PACKET uplink, 1514-byte frames", "outside-packet-1514", PACKETS, OVS, Least(1.5)),
    // The scheduler's account is never quite 0.
    alone("idle, % of a CPU", "idle", 0, Most(0.1)),
    alone("idle, wake-ups a second and port", "idle", 1, Most(1.0)),
    alone("trickling receiver, packets kept, %", "attack-trickle", KEPT, Least(95.0)),
    alone("trickling receiver, p99 against tame", "attack-trickle", P99, Most(2.0)),
    alone("trickling receiver, first packet p99 against tame", "attack-trickle", FIRST_P99, Most(2.0)),
    alone("thousands of segments, packets kept, %", "attack-segments", KEPT, Least(95.0)),
    alone("thousands of segments, p99 against tame", "attack-segments", P99, Most(2.0)),
    alone("thousands of segments, first packet p99 against tame", "attack-segments", FIRST_P99, Most(2.0)),
    alone("flapping port, packets kept, %", "attack-flap", KEPT, Least(95.0)),
    alone("flapping port, p99 against tame", "attack-flap", P99, Most(2.0)),
    alone("flapping port, first packet p99 against tame", "attack-flap", FIRST_P99, Most(2.0)),
    alone("scan, packets kept, %", "attack-scan", KEPT, Least(95.0)),
    alone("scan, p99 against tame", "attack-scan", P99, Most(2.0)),
    alone("scan, first packet p99 against tame", "attack-scan", FIRST_P99, Most(2.0)),
    alone("broadcast storm, packets kept, %", "attack-storm", KEPT, Least(95.0)),
    alone("broadcast storm, p99 against tame", "attack-storm", P99, Most(2.0)),
    alone("broadcast storm, first packet p99 against tame", "attack-storm", FIRST_P99, Most(2.0)),
    alone("storm of 64 KiB broadcasts, packets kept, %", "attack-storm-large", KEPT, Least(95.0)),
    alone("storm of 64 KiB broadcasts, p99 against tame", "attack-storm-large", P99, Most(2.0)),
    alone("storm of 64 KiB broadcasts, first packet p99 against tame", "attack-storm-large", FIRST_P99, Most(2.0)),
    alone("flooded receiver, packets kept, %", "attack-incast", KEPT, Least(95.0)),
    alone("flooded receiver, p99 against tame", "attack-incast", P99, Most(2.0)),
    alone("flooded receiver, first packet p99 against tame", "attack-incast", FIRST_P99, Most(2.0)),
    alone("all attacks, packets kept, %", "attack-all", KEPT, Least(95.0)),
    alone("all attacks, p99 against tame", "attack-all", P99, Most(2.0)),
    alone("all attacks, first packet p99 against tame", "attack-all", FIRST_P99, Most(2.0)),
    alone("blocking call descriptor, packets kept, %", "frontend-call", KEPT, Least(95.0)),
    alone("blocking call descriptor, lost, %", "frontend-call", LOST, Most(0.0)),
    alone("sparse files, packets kept, %", "frontend-regions", KEPT, Least(95.0)),
    alone("sparse files, lost, %", "frontend-regions", LOST, Most(0.0)),
    alone("64 KiB against 64 B, modest guest's p99 against alone", "isolation-bytes-2", P99_BESIDE, Most(1.5)),
    alone("64 KiB against 64 B, worst share of its weight's, %", "isolation-bytes-2", SHARE, Least(95.0)),
    alone(
        "64 KiB against 64 B, 3 : 1, worst share of its weight's, %",
        "isolation-bytes-2-weights",
        SHARE,
        Least(95.0),
    ),
    alone("64 KiB against 1514 B, modest guest's p99 against alone", "isolation-bytes-2-frames", P99_BESIDE, Most(1.5)),
    alone("64 KiB against 1514 B, worst share of its weight's, %", "isolation-bytes-2-frames", SHARE, Least(95.0)),
    alone(
        "64 KiB against 1514 B, 3 : 1, worst share of its weight's, %",
        "isolation-bytes-2-frames-weights",
        SHARE,
        Least(95.0),
    ),
    alone(
        "64 KiB against 64 B, eight guests, modest guest's p99 against alone",
        "isolation-bytes-8",
        P99_BESIDE,
        Most(1.5),
    ),
    alone("64 KiB against 64 B, eight guests, worst share of its weight's, %", "isolation-bytes-8", SHARE, Least(95.0)),
    alone(
        "64 KiB against 1514 B, eight guests, modest guest's p99 against alone",
        "isolation-bytes-8-frames",
        P99_BESIDE,
        Most(1.5),
    ),
    alone(
        "64 KiB against 1514 B, eight guests, worst share of its weight's, %",
        "isolation-bytes-8-frames",
        SHARE,
        Least(95.0),
    ),
    alone("100 flows against one, modest guest's p99 against alone", "isolation-flows-2", P99_BESIDE, Most(1.5)),
    alone("100 flows against one, worst share of its weight's, %", "isolation-flows-2", SHARE, Least(95.0)),
    alone(
        "100 flows against one, eight guests, modest guest's p99 against alone",
        "isolation-flows-8",
        P99_BESIDE,
        Most(1.5),
    ),
    alone(
        "100 flows against one, eight guests, worst share of its weight's, %",
        "isolation-flows-8",
        SHARE,
        Least(95.0),
    ),
    alone("kick storm, modest guest's p99 against alone", "isolation-kicks-2", P99_BESIDE, Most(1.5)),
    alone("seven kick storms, modest guest's p99 against alone", "isolation-kicks-8", P99_BESIDE, Most(1.5)),
];

impl Target {
    /// The ratio (or the figure), if it was measured.
    fn measured(&self, results: &Results) -> Option<f64> {
        let scenario = played(results, self.scenario)?;
        match self.against {
            Against::Peer(peer) => {
                *scenario.ratios(self.figure).get(scenario.contenders.iter().position(|c| c.name == peer)?)?
            }
            Against::Nothing => scenario.shown(ours(scenario)?, self.figure),
            Against::Scenario(other) => {
                let [here, there] = [scenario, played(results, other)?].map(ours);
                let (here, there) = (here?, there?);
                let figure = &scenario.figures[self.figure];
                let best = |c: &ContenderResults| c.best_at(self.figure, figure.more_is_better, common(here, there)?);
                Some(best(here)? / best(there)?)
            }
            Against::LessCost(idle) => {
                let before = (*ours(played(results, idle)?)?.best.get(self.figure)?)?;
                let of = |figure: usize, round: &crate::round::Round| round.figures.get(figure).copied().flatten();
                // All of one round: what one took another could not have.
                let ratios = ours(scenario)?.rounds_at(scenario.distance).filter_map(|round| {
                    let [switch, guests] = OWN_COST.map(|figure| of(figure, round));
                    Some(of(self.figure, round)? / (before - switch? - guests?))
                });
                ratios.reduce(f64::max)
            }
        }
    }

    /// For people.
    fn peer(&self) -> String {
        match self.against {
            Against::Peer(peer) => peer.into(),
            Against::Nothing => "—".into(),
            Against::Scenario(other) => format!("{other}, lasthop"),
            Against::LessCost(idle) => format!("{idle}, less cost"),
        }
    }

    fn met(&self, value: f64) -> bool {
        match self.bound {
            Least(bound) => value >= bound,
            Most(bound) => value <= bound,
        }
    }
}

fn played<'a>(results: &'a Results, scenario: &str) -> Option<&'a ScenarioResults> {
    results.scenarios.iter().find(|s| s.name == scenario)
}

fn ours(scenario: &ScenarioResults) -> Option<&ContenderResults> {
    scenario.contenders.iter().find(|c| c.name == "lasthop")
}

/// The distance at which both have most rounds, all rounds where nothing was probed; nothing if there is no such distance.
fn common(a: &ContenderResults, b: &ContenderResults) -> Option<Option<Distance>> {
    if [a, b].iter().all(|c| c.rounds.iter().all(|r| r.round_trips_ns.is_empty())) {
        return Some(None);
    }
    let rounds = |distance| [a, b].map(|c| c.rounds_at(Some(distance)).count()).into_iter().min().unwrap_or(0);
    Distance::ALL.into_iter().rev().max_by_key(|d| rounds(*d)).filter(|d| rounds(*d) > 0).map(Some)
}

/// A table of the targets of what was played, measured, met; nothing when none was measured.
pub fn render(results: &Results) -> Option<String> {
    let mut rows =
        vec![["lasthop divided by the peer", "peer", "target", "measured", "met"].map(String::from).to_vec()];
    let mut any = false;
    for t in TARGETS.iter().filter(|t| results.scenarios.iter().any(|s| s.name == t.scenario)) {
        let (sign, bound) = match t.bound {
            Least(bound) => ('≥', bound),
            Most(bound) => ('≤', bound),
        };
        let aim = t.aim.map_or(String::new(), |aim| format!(", aim {}", number(aim)));
        let measured = t.measured(results);
        any |= measured.is_some();
        rows.push(vec![
            t.what.to_owned(),
            t.peer(),
            format!("{sign} {}{aim}", number(bound)),
            measured.map_or("—".to_owned(), number),
            measured.map_or("not measured", |m| if t.met(m) { "yes" } else { "no" }).to_owned(),
        ]);
    }
    any.then(|| align(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::Cpus;
    use crate::machine::Machine;
    use crate::results::ContenderResults;
    use crate::round::Round;
    use crate::scenario::all;

    #[test]
    fn every_target_names_a_figure_that_is_measured() {
        for t in &TARGETS {
            let scenario = all().find(|s| s.name == t.scenario).expect(t.scenario);
            let figure = scenario.figures()[t.figure];
            assert_eq!(figure.more_is_better, matches!(t.bound, Least(_)), "{}", t.what);
            match t.against {
                Against::Peer(p) => assert!(scenario.contenders.iter().any(|c| c.name() == p), "{}", t.what),
                Against::Nothing => {}
                Against::Scenario(other) | Against::LessCost(other) => {
                    let other = all().find(|s| s.name == other).expect(t.what);
                    assert_eq!(other.figures(), scenario.figures(), "{}", t.what);
                }
            }
            if let Against::LessCost(_) = t.against {
                let names = [t.figure, OWN_COST[0], OWN_COST[1]].map(|f| scenario.figures()[f].name);
                assert_eq!(names, ["left to others", "switch busy", "guests' CPU"]);
            }
        }
    }

    fn results(scenarios: Vec<ScenarioResults>) -> Results {
        let cpus = Cpus { guests: 0, switch: 1 };
        Results { version: "0", machine: Machine::look(), cpus, rounds: 1, seconds: 1, scenarios }
    }

    /// A scenario in which lasthop alone had these rounds, with their round trips between the CPUs.
    fn alone_in(name: &str, rounds: &[(&[f64], f64)]) -> ScenarioResults {
        let scenario = all().find(|s| s.name == name).unwrap();
        let mut played = ScenarioResults::new(scenario, vec![ContenderResults::new("lasthop", "lasthop", None)]);
        for (figures, trip) in rounds {
            played.add(0, Round::new(figures.iter().copied().map(Some).collect(), vec![*trip]));
        }
        played
    }

    fn line(text: &str, what: &str) -> String {
        text.lines().find(|l| l.contains(what)).unwrap_or_else(|| panic!("no {what}: {text}")).to_owned()
    }

    #[test]
    fn a_scenario_is_compared_with_another_at_the_same_distance() {
        let few = alone_in("acl-1", &[(&[10.0, 1.0, 80.0, 1.0], 100.0), (&[20.0, 1.0, 40.0, 1.0], 50.0)]);
        let many = [(&[9.0, 1.0, 82.0, 1.0][..], 100.0), (&[9.6, 1.0, 85.0, 1.0], 100.0)];
        let text = render(&results(vec![few, alone_in("acl-1000", &many)])).unwrap();
        let packets = line(&text, "1000 access rules against one, packets");
        assert!(packets.contains("acl-1, lasthop") && packets.contains(" 0.96 | yes |"), "{text}");
        assert!(line(&text, "1000 access rules against one, switch busy").contains(" 1.02 | yes |"), "{text}");
        let far = alone_in("acl-1", &[(&[10.0, 1.0, 80.0, 1.0], 500.0)]);
        assert_eq!(render(&results(vec![far, alone_in("acl-1000", &many)])), None, "never at one distance");
        assert_eq!(render(&results(vec![alone_in("acl-1000", &many)])), None, "the other was not played");
    }

    #[test]
    fn what_is_left_is_judged_less_what_the_packets_cost() {
        let idle = || alone_in("shared-idle", &[(&[99.0, 0.0, 1.0, 0.1, 0.1], 100.0)]);
        // The best of each figure would be 70, 5 and 20, and well above what was left of 99.
        let rounds = [(&[60.0, 100.0, 1.0, 5.0, 30.0][..], 100.0), (&[70.0, 100.0, 1.0, 5.5, 20.0], 100.0)];
        let text = render(&results(vec![idle(), alone_in("shared-100k", &rounds)])).unwrap();
        let row = line(&text, "but for their own cost");
        assert!(row.contains("shared-idle, less cost") && row.contains(" 0.95 |") && row.ends_with(" yes |"), "{text}");
        let waste = alone_in("shared-100k", &[(&[60.0, 100.0, 1.0, 5.0, 25.0], 100.0)]);
        assert!(line(&render(&results(vec![idle(), waste])).unwrap(), "own cost").ends_with(" no |"));
    }

    #[test]
    fn wake_ups_are_counted() {
        let text = render(&results(vec![alone_in("idle", &[(&[0.01, 1.2], 100.0)])])).unwrap();
        assert!(line(&text, "idle, wake-ups").contains("≤ 1.00 |     1.20 |  no |"), "{text}");
    }

    #[test]
    fn what_was_measured_is_judged() {
        let scenario = all().find(|s| s.name == "loop-64-split").unwrap();
        let results = |measured: &[(&'static str, f64, f64)]| {
            let contenders = measured.iter().map(|(name, ..)| ContenderResults::new(name, name, None)).collect();
            let mut played = ScenarioResults::new(scenario, contenders);
            for (i, (_, packets, busy)) in measured.iter().enumerate() {
                played.add(i, Round::new([*packets, 1.0, *busy, 1.0].map(Some).to_vec(), vec![]));
            }
            results(vec![played])
        };
        let text = render(&results(&[("lasthop", 20.0, 50.0), (OVS, 10.0, 100.0)])).unwrap();
        let line = |what: &str| text.lines().find(|l| l.contains(what)).unwrap().to_owned();
        assert!(
            line("64 B split, packets").contains(" 2.00 |") && line("64 B split, packets").contains("yes"),
            "{text}"
        );
        assert!(line("64 B split, switch busy").contains(" 0.50 |") && line("switch busy").contains(" no "), "{text}");
        let vhost = text.lines().find(|l| l.contains("64 B split, packets") && l.contains(VHOST)).unwrap();
        assert!(vhost.contains("not measured"), "a peer that is missing: {text}");
        assert!(!text.contains("idle"), "not played: {text}");
        assert_eq!(render(&results(&[("lasthop", 20.0, 50.0)])), None);
    }

    /// Both sides of each bound of the packet path.
    #[test]
    fn the_packet_path_is_judged_beside_its_peers() {
        for (what, name, peer, figure, bound) in [
            ("64 B split, packets", "loop-64-split", OVS, PACKETS, 1.6),
            ("64 B split, packets", "loop-64-split", VHOST, PACKETS, 1.0),
            ("64 KiB GSO, bytes", "size-gso-split", OVS, BYTES, 2.2),
            ("64 B split, switch busy", "loop-64-split", OVS, BUSY, 0.36),
            ("64 B packed, switch busy", "loop-64-packed", OVS, BUSY, 0.33),
            ("1472 B split, switch busy", "loop-1472-split", OVS, BUSY, 0.33),
        ] {
            for (ratio, met) in [(bound - 0.01, figure == BUSY), (bound + 0.01, figure != BUSY)] {
                let scenario = all().find(|s| s.name == name).unwrap();
                let contenders = ["lasthop", peer].map(|name| ContenderResults::new(name, name, None)).into();
                let mut played = ScenarioResults::new(scenario, contenders);
                played.add(0, Round::new(vec![Some(100.0 * ratio); 4], vec![]));
                played.add(1, Round::new(vec![Some(100.0); 4], vec![]));
                let text = render(&results(vec![played])).unwrap();
                let row = text.lines().find(|l| l.contains(what) && l.contains(peer)).unwrap();
                let sign = if figure == BUSY { '≤' } else { '≥' };
                assert!(row.contains(&format!("{sign} {bound:.2} |")), "{row}");
                assert!(row.ends_with(if met { " yes |" } else { " no |" }), "{ratio}: {row}");
            }
        }
    }
}
