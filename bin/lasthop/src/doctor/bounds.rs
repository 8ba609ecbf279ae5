//! Bounds of processor time: guests that are held back by them, and those that are not kept.

use super::facts::{Facts, Way, setting};
use super::finding::Finding;
use lasthop_api::Port;
use lasthop_policy::{MAX_CPU, MAX_CPU_TO};
use lasthop_text::counted;

/// What a bound that is not kept is called.
const MISSED: &str = "max-cpu-missed";
const MISSED_TO: &str = "max-cpu-to-missed";

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let of_port = |port| [of_port(facts, port), copies_to(facts, port)];
    facts.ports().flat_map(of_port).flatten().collect()
}

/// What a guest sends.
fn of_port(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let (name, told, bound) = (&port.name, setting(port, MAX_CPU)?, port.cpu_bound.as_ref()?);
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
        return Some(held.into_iter().fold(finding.seen(not_kept_for(ms)), Finding::seen).remedy(how));
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

/// What is copied to a guest.
fn copies_to(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let (name, told, bound) = (&port.name, setting(port, MAX_CPU_TO)?, port.copy_bound.as_ref()?);
    let spent = percent(bound.spent_ns);
    let took = format!("told {MAX_CPU_TO}={told}, copies to it took {spent} % of a processor in the last second");
    let held = bound.held_to().map(|rate| format!("held to {rate}"));
    let set = |to| facts.lasthop(&format!("port set {name} --{MAX_CPU_TO} {to}"));
    let [taken_back, larger] = ["none", "PERCENT"].map(set);
    if let Some(ms) = bound.missed_ms {
        let finding =
            Finding::at(name, MISSED_TO, "copies to its guest take more processor time than they are to").seen(took);
        return Some(held.into_iter().fold(finding.seen(not_kept_for(ms)), Finding::seen).remedy(format!(
            "give it a larger bound (`{larger}`): no guest is held to less than 1000 packets a second; or say by access lists who may send to it"
        )));
    }
    let lost = facts.drops(port, Way::To, "rate");
    // Who has packets for this guest alone waits, and nothing is dropped: then it is known by how much it gets.
    let held = held.filter(|_| lost.now > 0 || bound.presses)?;
    let what = "more is sent to its guest than may be copied in its part of a processor: what is more waits at who sends it, or is dropped as rate";
    Some(
        Finding::at(name, MAX_CPU_TO, what)
            .seen(took)
            .seen(format!("{held}, {}", lost.said("dropped as rate")))
            .remedy(format!("give it a larger bound (`{larger}`), or take it back"))
            .command(taken_back),
    )
}

fn not_kept_for(ms: u64) -> String {
    format!("not kept for {}", counted(ms / 1000, "second"))
}

/// With a tenth.
fn percent(ns: u64) -> String {
    format!("{}.{}", ns / 10_000_000, ns / 1_000_000 % 10)
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::{CpuBound, Drops};

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
    fn a_guest_that_gets_less_is_a_finding_while_it_is_held_back() {
        let bound = CpuBound {
            most_ns: 200_000_000,
            spent_ns: 98_765_432,
            packets_per_second: Some(7000),
            ..CpuBound::default()
        };
        let site = |bound: &CpuBound, lost: u64| {
            let looks = [0, lost].map(|packets| {
                let mut port = told(up("a"), &[(MAX_CPU_TO, "10")]);
                port.to_guest.drops = vec![Drops { reason: "rate".into(), packets }];
                port.copy_bound = Some(bound.clone());
                seen(&[port])
            });
            findings(&facts(&looks[0], &looks[1]))
        };
        assert_eq!(site(&bound, 0), [], "all that comes gets there");
        assert_eq!(site(&CpuBound { packets_per_second: None, ..bound.clone() }, 5), [], "not by this");
        let [finding] = &site(&bound, 5)[..] else { panic!("one finding") };
        assert_eq!((finding.kind, finding.port.as_deref()), (MAX_CPU_TO, Some("a")));
        assert_eq!(
            finding.evidence[0],
            "told max-cpu-to=10, copies to it took 9.8 % of a processor in the last second"
        );
        assert!(finding.evidence[1].starts_with("held to 7000 packets a second, 5 "), "{}", finding.evidence[1]);
        assert_eq!(finding.command.as_deref(), Some("lasthop port set a --max-cpu-to none"));
        // What is nearly all that it may take is no finding, as long as it gets less than it is held to.
        let steady = CpuBound { spent_ns: 180_000_000, ..bound.clone() };
        assert_eq!(site(&steady, 0), [], "all that comes gets there");
        // Its senders wait, and nothing is dropped.
        let full = CpuBound { spent_ns: 190_000_000, presses: true, ..bound.clone() };
        let [finding] = &site(&full, 0)[..] else { panic!("one finding") };
        assert_eq!(finding.kind, MAX_CPU_TO);
        let [finding] = &site(&CpuBound { missed_ms: Some(7300), ..bound }, 0)[..] else { panic!("one finding") };
        assert_eq!((finding.kind, &*finding.evidence[1]), (MISSED_TO, "not kept for 7 seconds"));
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
