//! What lasthop is to reach beside its peers, and whether it does.

use crate::results::{Results, ScenarioResults};
use crate::table::{align, number};

/// A bound on lasthop's figure, divided by a peer's.
struct Target {
    what: &'static str,
    scenario: &'static str,
    figure: usize,
    /// Without one the figure itself counts.
    peer: Option<&'static str>,
    bound: Bound,
    aim: Option<f64>,
}

#[derive(Clone, Copy)]
enum Bound {
    Least(f64),
    Most(f64),
}
use Bound::{Least, Most};

const fn target(what: &'static str, scenario: &'static str, figure: usize, peer: &'static str, bound: Bound) -> Target {
    Target { what, scenario, figure, peer: Some(peer), bound, aim: None }
}

/// A bound on the figure itself.
const fn alone(what: &'static str, scenario: &'static str, figure: usize, bound: Bound) -> Target {
    Target { what, scenario, figure, peer: None, bound, aim: None }
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

const TARGETS: [Target; 44] = [
    target("64 B split, packets", "loop-64-split", PACKETS, OVS, Least(1.5)),
    target("64 B split, packets", "loop-64-split", PACKETS, VHOST, Least(0.95)),
    target("64 B packed, packets", "loop-64-packed", PACKETS, OVS, Least(1.6)),
    target("64 B packed, packets", "loop-64-packed", PACKETS, VHOST, Least(0.95)),
    aiming(0.33, target("64 B split, switch busy", "loop-64-split", BUSY, OVS, Most(0.45))),
    aiming(2.8, target("1472 B split, packets", "loop-1472-split", PACKETS, OVS, Least(2.3))),
    target("1472 B split, packets", "loop-1472-split", PACKETS, VHOST, Least(2.0)),
    target("64 KiB GSO, bytes", "size-gso-split", BYTES, OVS, Least(2.5)),
    target("1000 access rules, 100 000 flows, packets", "acl-1000-flows", PACKETS, "ovs-list", Least(2.0)),
    // Where the guests are the slower side, this says what packets cannot.
    target("1000 access rules, 100 000 flows, switch busy", "acl-1000-flows", BUSY, "ovs-list", Most(0.5)),
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
];

impl Target {
    /// The ratio (or the figure), if it was measured.
    fn measured(&self, results: &Results) -> Option<f64> {
        let scenario: &ScenarioResults = results.scenarios.iter().find(|s| s.name == self.scenario)?;
        let at = |name: &str| scenario.contenders.iter().position(|c| c.name == name);
        match self.peer {
            Some(peer) => *scenario.ratios(self.figure).get(at(peer)?)?,
            None => *scenario.contenders.get(at("lasthop")?)?.best.get(self.figure)?,
        }
    }

    fn met(&self, value: f64) -> bool {
        match self.bound {
            Least(bound) => value >= bound,
            Most(bound) => value <= bound,
        }
    }
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
            t.peer.unwrap_or("—").to_owned(),
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
    use crate::machine::Machine;
    use crate::results::{ContenderResults, Round};
    use crate::scenario::{ALL, Cpus};

    #[test]
    fn every_target_names_a_figure_that_is_measured() {
        for t in &TARGETS {
            let scenario = ALL.iter().find(|s| s.name == t.scenario).expect(t.scenario);
            let figure = scenario.figures()[t.figure];
            assert_eq!(figure.more_is_better, matches!(t.bound, Least(_)), "{}", t.what);
            assert!(t.peer.is_none_or(|p| scenario.contenders.iter().any(|c| c.name() == p)), "{}", t.what);
        }
    }

    #[test]
    fn what_was_measured_is_judged() {
        let scenario = ALL.iter().find(|s| s.name == "loop-64-split").unwrap();
        let results = |measured: &[(&'static str, f64, f64)]| {
            let contenders = measured.iter().map(|(name, ..)| ContenderResults::new(name, name, None)).collect();
            let mut played = ScenarioResults::new(scenario, contenders);
            for (i, (_, packets, busy)) in measured.iter().enumerate() {
                played.add(i, Round::new([*packets, 1.0, *busy, 1.0].map(Some).to_vec(), vec![]));
            }
            Results {
                version: "0",
                machine: Machine::look(),
                cpus: Cpus { guests: 0, switch: 1 },
                rounds: 1,
                seconds: 1,
                scenarios: vec![played],
            }
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
}
