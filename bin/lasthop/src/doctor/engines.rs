//! Engines (`lasthop engine`): CPUs that do ports' work, and cannot, or not as they should.

use super::facts::{Facts, setting};
use super::finding::Finding;
use lasthop_api::Engine;
use lasthop_management_ipc::EngineKind;
use lasthop_policy::ENGINE;
use std::collections::BTreeMap;

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
    troubled.chain(astray).chain(far(facts)).chain(refused(facts)).collect()
}

/// Ports whose threads the kernel does not let be where their VMs are.
fn refused<'f>(facts: &'f Facts<'_>) -> impl Iterator<Item = Finding> + use<'f> {
    facts.ports().filter_map(|port| {
        let place = port.place.as_ref().filter(|place| place.state == "refused" && place.thread_cpus.is_some())?;
        let what = "its thread cannot be bound to CPUs near its VM";
        let remedy = "give `lasthop run` the right to (root, CAP_SYS_NICE, or the same user as its switch), and the thread's control group (cpuset) CPUs there; it is \
                      tried again each minute. Or have no thread be near: `lasthop engine near off`";
        Some(Finding::at(&port.name, "near-refused", what).seen(place.said()).remedy(remedy))
    })
}

/// Ports whose work is done on another NUMA node than the one where their VM is: by a core that polls, or by their threads, which have no CPU there.
fn far<'f>(facts: &'f Facts<'_>) -> impl Iterator<Item = Finding> + use<'f> {
    let engines = &facts.now.engines.engines;
    // How many ports were told to go to each core.
    let mut sent: BTreeMap<&str, usize> = BTreeMap::new();
    facts.ports().filter_map(move |port| {
        let place = port.place.as_ref()?;
        let (name, cpus, node) = (&port.name, &place.vm_cpus, place.node.map(|node| node.to_string()));
        let polls = || engines.iter().filter(|engine| engine.kind == EngineKind::Poll.name());
        let is_there = |engine: &&Engine| engine.nodes.is_some() && engine.nodes == node;
        // One without a thread has no ports, and gets none.
        let polls_there = |engine: &&Engine| is_there(engine) && engine.cpu_ns.is_some();
        // That with the fewest ports, those counted that come to it by what is said here.
        let mut nearest = || {
            let ports = |engine: &&Engine| engine.ports.len() + sent.get(&*engine.name).copied().unwrap_or(0);
            let near = polls().filter(polls_there).min_by_key(ports)?;
            *sent.entry(&near.name).or_default() += 1;
            Some(near)
        };
        let moved = |to: &str| facts.lasthop(&format!("engine move {name} {to}"));
        if place.state == "no-cpu" && place.thread_cpus.is_some() {
            let what = "its VM runs where ports' threads have no CPU: its thread is far from it".to_owned();
            let finding = Finding::at(name, "engine-far", what).seen(place.said());
            return Some(match nearest() {
                Some(near) => finding
                    .remedy(format!(
                        "have {} poll its rings, which is there: all ports pause for that; or let threads run there, too (`lasthop engine add ports`, or \
                         `lasthop engine del poll`, with some of the CPUs {cpus})",
                        near.name
                    ))
                    .command(moved(&near.name)),
                None => finding.remedy(format!(
                    "let them run there, too, if lasthop is to: `lasthop engine add ports` with some of the CPUs {cpus}; or run the VM elsewhere"
                )),
            });
        }
        let its: Vec<&Engine> = polls().filter(|engine| engine.ports.contains(name)).collect();
        let far = its.iter().find(|engine| node.is_some() && engine.nodes.is_some() && !is_there(engine))?;
        let what = format!("{} polls its rings, and is on another NUMA node than its VM", far.name);
        let seen = format!("{} is on node {}; {}", far.name, far.nodes.as_deref().unwrap_or_default(), place.said());
        let finding = Finding::at(name, "engine-far", what).seen(seen);
        Some(match nearest() {
            Some(near) => finding
                .remedy(format!("have {} poll them, which is on its node: all ports pause for that", near.name))
                .command(moved(&near.name)),
            None => finding.remedy(format!(
                "have a core of its node poll, one of the CPUs {cpus}: `lasthop engine add poll`, then `lasthop engine move {name}`; or run the VM elsewhere"
            )),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Seen, testutil::*};
    use super::*;
    use lasthop_api::{EngineList, Place, Port};

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

    #[test]
    fn a_port_whose_engine_is_on_another_node_than_its_vm_is_told() {
        let place = |port: Port, state: &str, node: Option<u32>, thread: Option<&str>| {
            let thread_cpus = thread.map(Into::into);
            let vm_cpus = node.map_or_else(String::new, |node| format!("{}-{}", 2 * node, 2 * node + 1));
            Port { place: Some(Place { state: state.into(), node, vm_cpus, thread_cpus, why: None }), ..port }
        };
        let mut now = seen(&[
            place(up("a"), "near", Some(0), None),
            place(up("b"), "near", Some(1), None),
            place(up("c"), "spread", None, None),
            place(up("d"), "near", Some(2), None),
            up("e"),
        ]);
        let engine = |name: &str, nodes: &str, ports: &[&str]| Engine {
            name: name.into(),
            kind: name.split('-').next().unwrap().into(),
            cpu_ns: Some(1),
            nodes: Some(nodes.into()),
            ports: ports.iter().map(ToString::to_string).collect(),
            ..Engine::default()
        };
        let told = |now: &Seen| {
            let found = findings(&facts(now, now));
            assert!(found.iter().all(|f| f.kind == "engine-far"));
            found.into_iter().map(|f| (f.port.unwrap_or_default(), f.command)).collect::<Vec<_>>()
        };
        let polls = |ports: [&[&str]; 2]| {
            vec![engine("poll-1", "0", ports[0]), engine("poll-2", "1", ports[1]), engine("ports", "0-2", &[])]
        };
        now.engines.engines = polls([&["a", "c", "e"], &["b"]]);
        assert_eq!(told(&now), []);
        now.engines.engines = polls([&["b", "d", "e"], &["a", "c"]]);
        let moved = |port: &str, to: &str| (port.to_owned(), Some(format!("lasthop engine move {port} {to}")));
        assert_eq!(told(&now), [moved("a", "poll-1"), moved("b", "poll-2"), ("d".into(), None)]);
        // Several cores of a node have their share of them.
        let mut several = polls([&["b", "d", "e"], &["a", "c"]]);
        several.insert(1, engine("poll-3", "0", &[]));
        // One whose thread could not be bound has no ports, and is to get none.
        several.push(Engine { cpu_ns: None, ..engine("poll-4", "0", &[]) });
        now = seen(&["a", "c", "f", "g", "h"].map(|name| place(up(name), "near", Some(0), None)));
        several[2].ports = ["a", "c", "f", "g", "h"].map(Into::into).to_vec();
        now.engines.engines = several;
        let to = ["poll-3", "poll-3", "poll-3", "poll-1", "poll-3"];
        assert_eq!(
            told(&now),
            ["a", "c", "f", "g", "h"].iter().zip(to).map(|(port, to)| moved(port, to)).collect::<Vec<_>>()
        );
        // Threads that have no CPU there; one that has, and one without a thread.
        now = seen(&[
            place(up("a"), "no-cpu", Some(1), Some("0-1")),
            place(up("b"), "near", Some(0), Some("0-1")),
            place(up("c"), "no-cpu", Some(1), None),
        ]);
        now.engines.engines = vec![engine("ports", "0", &["a", "b"])];
        assert_eq!(told(&now), [("a".into(), None)]);
        // One that the kernel does not let be there.
        now = seen(&[place(up("a"), "refused", Some(1), Some("0-1")), place(up("b"), "refused", Some(1), None)]);
        let found = findings(&facts(&now, &now));
        assert_eq!(
            found.iter().map(|f| (f.kind, f.port.as_deref())).collect::<Vec<_>>(),
            [("near-refused", Some("a"))]
        );
        assert!(found[0].remedy.contains("CAP_SYS_NICE") && found[0].evidence[0].contains("cannot be bound there"));
        now = seen(&[place(up("a"), "no-cpu", Some(1), Some("0-1")), place(up("b"), "near", Some(0), Some("0-1"))]);
        // All CPUs that they had there poll.
        now.engines.engines = vec![engine("poll-2", "1", &[]), engine("ports", "0", &["a", "b"])];
        assert_eq!(told(&now), [moved("a", "poll-2")]);
    }
}
