//! Engines (`lasthop engine`): CPUs that do ports' work, and cannot, or not as they should.

use super::facts::{Facts, setting};
use super::finding::Finding;
use lasthop_management_ipc::EngineKind;
use lasthop_policy::ENGINE;

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let engines = &facts.now.engines.engines;
    let troubled = engines.iter().filter_map(|engine| {
        let why = engine.trouble.as_ref()?;
        let what = format!("the engine {} does not serve its ports as it should", engine.name);
        // These are many CPUs, and what is wrong there is that all of them poll.
        let remedy = match engine.kind == EngineKind::Ports.name() {
            true => {
                "give threads of ports a CPU that does not poll: add one (`lasthop engine add ports CPU`), or take one from those that poll (`lasthop engine \
                 del poll CPU`); or have these ports polled, too (`lasthop engine move PORT none`)"
            }
            false => {
                "keep others off its CPU (isolcpus=, or a cpuset of its own), put the CPU online again, or have another do the work: `lasthop engine \
                 add`, then `lasthop engine del`"
            }
        };
        let finding = Finding::of_all("engine", what).seen(why.clone()).remedy(remedy);
        Some(engine.ports.iter().fold(finding, |finding, port| finding.also(port)))
    });
    let astray = facts.ports().filter_map(|port| {
        let set = setting(port, ENGINE)?;
        if facts.now.engines.poll.is_empty() || engines.iter().any(|engine| engine.name == set) {
            return None;
        }
        let what = format!("it is to be polled by {set}, and there is no such engine: others do its work");
        let polls = format!("CPUs that poll: {}", facts.now.engines.poll);
        let remedy = "add the engine again (`lasthop engine add`), or take the setting back";
        let command = facts.lasthop(&format!("engine move {} none", port.name));
        Some(Finding::at(&port.name, "no-such-engine", what).seen(polls).remedy(remedy).command(command))
    });
    troubled.chain(astray).collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::{Engine, EngineList};

    #[test]
    fn an_engine_in_trouble_and_a_port_without_its_engine_are_told() {
        let mut now = seen(&[up("a"), told(up("b"), &[("engine", "poll-3")]), told(up("c"), &[("engine", "poll-2")])]);
        let engine = |name: &str, trouble: Option<&str>| Engine {
            name: name.into(),
            ports: vec!["a".into()],
            trouble: trouble.map(Into::into),
            ..Engine::default()
        };
        now.engines = EngineList {
            engines: vec![engine("poll-1", None), engine("poll-2", Some("others run on CPU 2"))],
            poll: "1-2".into(),
            ..EngineList::default()
        };
        let found = findings(&facts(&now, &now));
        assert_eq!(
            found.iter().map(|f| (f.kind, f.port.as_deref())).collect::<Vec<_>>(),
            [("engine", None), ("no-such-engine", Some("b"))]
        );
        assert_eq!(found[0].also, ["a"]);
        assert_eq!(found[1].command.as_deref(), Some("lasthop engine move b none"));
        assert!(found[0].remedy.contains("isolcpus") && !found[0].remedy.contains("engine add ports"), "{found:?}");
    }

    /// Where all CPUs of ports' threads poll, nobody is to be kept off, and no CPU is offline.
    #[test]
    fn threads_of_ports_that_have_no_cpu_of_their_own_are_to_be_given_one() {
        let mut now = seen(&[up("a")]);
        let trouble = Some("all its CPUs poll (0-1)".into());
        let ports = Engine {
            name: "ports".into(),
            kind: "ports".into(),
            trouble,
            ports: vec!["a".into()],
            ..Engine::default()
        };
        now.engines = EngineList { engines: vec![ports], poll: "0-1".into(), ..EngineList::default() };
        let found = findings(&facts(&now, &now));
        assert_eq!(
            (found.len(), found[0].kind, found[0].evidence.join(" ")),
            (1, "engine", "all its CPUs poll (0-1)".into())
        );
        let remedy = &found[0].remedy;
        assert!(!remedy.contains("isolcpus") && !remedy.contains("online"), "{remedy}");
        for helps in ["engine add ports CPU", "engine del poll CPU", "engine move PORT none"] {
            assert!(remedy.contains(helps), "{remedy}");
        }
    }
}
