//! Bounds of processor time: guests that are held back by them, and those that are not kept.

use super::facts::{Facts, setting};
use super::finding::Finding;
use lasthop_api::{CpuBound, Port};
use lasthop_policy::MAX_CPU;
use lasthop_text::counted;

/// What a bound that is not kept is called.
const MISSED: &str = "max-cpu-missed";

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    facts.ports().filter_map(|port| of_port(facts, port, port.cpu_bound.as_ref()?)).collect()
}

fn of_port(facts: &Facts<'_>, port: &Port, bound: &CpuBound) -> Option<Finding> {
    let (name, told) = (&port.name, setting(port, MAX_CPU)?);
    let took = format!("told {MAX_CPU}={told}, took {} % of a processor in the last second", percent(bound.spent_ns));
    let held = bound.held_to().map(|rate| format!("held to {rate}"));
    let set = |to| facts.lasthop(&format!("port set {name} --{MAX_CPU} {to}"));
    let [taken_back, larger] = ["none", "PERCENT"].map(set);
    if let Some(ms) = bound.missed_ms {
        let how = match held {
            Some(_) => format!(
                "what its packets cost is not for its rate to say any more: look whether they meet no flow (`{}`: MISSED), go to many ports, or kick for nothing; give it a larger bound, or move the VM to a host \
                 with more room (migration.md)",
                facts.lasthop("stats --verbose")
            ),
            None => "give it a larger bound, or move the VM to a host with more room (migration.md)".to_owned(),
        };
        let finding = Finding::at(name, MISSED, "its packets take more processor time than they are to").seen(took);
        let for_how_long = format!("not kept for {}", counted(ms / 1000, "second"));
        return Some(held.into_iter().fold(finding.seen(for_how_long), Finding::seen).remedy(how));
    }
    let rise = facts.counter(port, |p| p.from_guest.held);
    let held = held.filter(|_| rise.now > 0)?;
    Some(
        Finding::at(
            name,
            MAX_CPU,
            "its guest sends more than its packets may take of a processor, and what is more waits there",
        )
        .seen(took)
        .seen(format!("{held}, {} while this command looked", counted(rise.now, "time")))
        .remedy(format!("give it a larger bound (`{larger}`), or take it back"))
        .command(taken_back),
    )
}

/// With a tenth.
fn percent(ns: u64) -> String {
    format!("{}.{}", ns / 10_000_000, ns / 1_000_000 % 10)
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;

    fn site(bound: CpuBound, held: u64) -> Vec<Finding> {
        let looks = [0, held].map(|held| {
            let mut port = told(up("a"), &[(MAX_CPU, "20")]);
            port.from_guest.held = held;
            port.cpu_bound = Some(bound.clone());
            seen(&[port])
        });
        findings(&facts(&looks[0], &looks[1]))
    }

    #[test]
    fn a_guest_that_is_held_back_is_a_finding_while_it_is() {
        let bound = CpuBound { most_ns: 200_000_000, spent_ns: 198_765_432, ..CpuBound::default() };
        assert_eq!(site(bound.clone(), 5), [], "not by this");
        let held = CpuBound { packets_per_second: Some(70_000), bytes_per_second: Some(71_680_000), ..bound };
        assert_eq!(site(held.clone(), 0), [], "it has nothing to send");
        let [finding] = &site(held, 5)[..] else { panic!("one finding") };
        assert_eq!((finding.kind, finding.port.as_deref()), (MAX_CPU, Some("a")));
        assert_eq!(finding.evidence[0], "told max-cpu=20, took 19.8 % of a processor in the last second");
        assert_eq!(finding.evidence[1], "held to 70000 short packets a second, 5 times while this command looked");
        assert_eq!(finding.command.as_deref(), Some("lasthop port set a --max-cpu none"));
    }

    #[test]
    fn a_bound_that_is_not_kept_is_a_finding_of_its_own() {
        let bound = CpuBound { spent_ns: 450_000_000, missed_ms: Some(7300), ..CpuBound::default() };
        let [finding] = &site(bound.clone(), 0)[..] else { panic!("one finding") };
        assert_eq!((finding.kind, &*finding.evidence[1]), (MISSED, "not kept for 7 seconds"));
        let [finding] = &site(CpuBound { bytes_per_second: Some(1_024_000), ..bound }, 5)[..] else {
            panic!("one finding")
        };
        assert_eq!(finding.evidence[2], "held to 1024000 bytes a second");
        assert!(finding.remedy.contains("lasthop stats --verbose`: MISSED"), "{}", finding.remedy);
    }
}
