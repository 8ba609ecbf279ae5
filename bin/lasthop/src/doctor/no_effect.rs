//! Settings that do nothing where a port is now, and those that keep its guest away when it sets its rings up again.

use super::facts::{Facts, setting};
use super::finding::Finding;
use crate::no_effect::{Note, Place, TX_BATCH};

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let place = Place { engines: &facts.now.engines, vms_unknown: facts.now.switch.host.vms_unknown.as_deref() };
    // Shares may be meant for what is scarce at times.
    let notes = facts.ports().flat_map(|port| place.notes(port).into_iter().map(move |note| (port, note)));
    let notes = notes.filter(|(_, note)| !note.is_of_sharing());
    notes.map(|(port, note)| finding(facts, &note, setting(port, note.setting).unwrap_or_default())).collect()
}

fn finding(facts: &Facts<'_>, note: &Note, told: &str) -> Finding {
    let Note { port, setting, what } = note;
    let kind = if note.locks_out() { "max-ring" } else { "no-effect" };
    let taken_back = facts.lasthop(&format!("port set {port} --{setting} none"));
    let finding = Finding::at(port, kind, what.clone()).seen(format!("told {setting}={told}"));
    let remedy = if *setting == TX_BATCH {
        "take the setting back; or `lasthop engine move` gives the port a thread of its own, for which its guest kicks"
    } else if note.locks_out() {
        "before its VM reboots, is started again or is moved, and before lasthop is started again, start it with shorter rings, or raise max-ring; or take the setting back"
    } else {
        "take the setting back; or let lasthop see when VMs run: `no-ebpf` says what keeps it from that, unless it was started with `--no-bpf`; a device never does"
    };
    finding.remedy(remedy).command(taken_back)
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::{Engine, EngineList, Queue};

    #[test]
    fn what_does_nothing_is_a_finding_and_a_share_is_none() {
        let mut a =
            told(up("a"), &[("tx-batch", "250,32"), ("rx-batch", "250,32"), ("weight", "300"), ("max-ring", "256")]);
        (a.vm, a.queues) = (Some("running".into()), vec![Queue { size: 1024, enabled: true, ..Queue::default() }]);
        let mut now = seen(&[a, told(up("b"), &[("weight", "300")])]);
        let engine = Engine {
            name: "poll-1".into(),
            kind: "poll".into(),
            cpu_ns: Some(1),
            ports: vec!["a".into()],
            ..Engine::default()
        };
        now.engines = EngineList { engines: vec![engine], ..EngineList::default() };
        let found = findings(&facts(&now, &now));
        assert_eq!(
            found.iter().map(|f| (f.kind, f.port.as_deref())).collect::<Vec<_>>(),
            [("no-effect", Some("a")), ("max-ring", Some("a"))]
        );
        assert_eq!(found[0].evidence, ["told tx-batch=250,32"]);
        assert_eq!(found[1].command.as_deref(), Some("lasthop port set a --max-ring none"));
        // Each with what helps against its own cause.
        assert!(found[0].remedy.contains("engine move") && !found[0].remedy.contains("no-ebpf"), "{found:?}");
        let mut unseen = told(up("c"), &[("rx-batch", "250,32")]);
        unseen.vm = None;
        let now = seen(&[unseen]);
        let found = findings(&facts(&now, &now));
        assert!(found[0].remedy.contains("no-ebpf") && !found[0].remedy.contains("engine move"), "{found:?}");
    }
}
