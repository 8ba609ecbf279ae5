//! Engines alone, without a switch.

use super::*;

fn list(text: &str) -> CpuList {
    text.parse().unwrap()
}

fn engines(poll: &str, helper: &str, ports: &str) -> Engines {
    let lists = [poll, helper, ports].map(|text| Some(text.to_owned()));
    Engines::default().set(&lists, &list("0-7")).unwrap()
}

fn told(engines: &Engines) -> (Vec<usize>, Vec<usize>) {
    let mut settings = SwitchSettings {
        helpers: Vec::new(),
        poll: Vec::new(),
        hysteresis_us: (5, 50),
        not_idle: false,
        cgroup_accounting: false,
        drawn_timer: false,
        patience_ms: (10, 2),
        max_guest_memory: 0,
        max_flows: 1,
        idle_us: 10_000_000,
    };
    engines.tell(&mut settings, &list("0-7"));
    (settings.poll, settings.helpers)
}

#[test]
fn engines_come_go_and_move() {
    let allowed = list("0-7");
    let change = |engines: &Engines, change| engines.changed(&change, &allowed);
    let (poll, helper) = (EngineKind::Poll, EngineKind::Helper);
    let none = Engines::default();
    assert_eq!(told(&none), (vec![], (0..8).collect()));
    let one = change(&none, EngineChange::Add(poll, "3,5".into())).unwrap();
    assert_eq!(told(&one), (vec![3, 5], vec![0, 1, 2, 4, 6, 7]), "no helper where a core polls");
    for engine in [None, Some(PortEngine::Poll(5)), Some(PortEngine::Ports)] {
        assert!(
            one.check_engine(engine).is_ok()
                && none.check_engine(engine).is_ok() == (engine != Some(PortEngine::Poll(5)))
        );
    }
    let four = Some(PortEngine::Poll(4));
    assert!(one.check_engine(four).unwrap_err().contains("CPUs that poll are 3,5"));
    assert!(none.check_engine(four).unwrap_err().contains("no core polls"));
    let without = change(&one, EngineChange::Del(helper, "0-2".into())).unwrap();
    assert_eq!(told(&without), (vec![3, 5], vec![4, 6, 7]));
    let one_back = change(&without, EngineChange::Add(helper, "1".into())).unwrap();
    assert_eq!(told(&one_back), (vec![3, 5], vec![1, 4, 6, 7]));
    let polls_no_more = change(&one_back, EngineChange::Del(poll, "3,5".into())).unwrap();
    assert_eq!(told(&polls_no_more), (vec![], vec![1, 3, 4, 5, 6, 7]), "helpers of cores that polled are there again");
    let gone = change(&one, EngineChange::Del(poll, "3,5".into())).unwrap();
    assert_eq!(gone, none, "as before");
    let fewer = change(&gone, EngineChange::Del(helper, "0-5".into())).unwrap();
    assert_eq!(told(&fewer), (vec![], vec![6, 7]));
    let bounded = change(&fewer, EngineChange::Set([None, Some("all".into()), Some("2-3".into())])).unwrap();
    assert_eq!(told(&bounded), (vec![], vec![2, 3]));
}

#[test]
fn what_cannot_be_is_refused() {
    let allowed = list("0-7");
    let some = engines("3", "all", "2-4");
    let (poll, helper, ports) = (EngineKind::Poll, EngineKind::Helper, EngineKind::Ports);
    for (change, word) in [
        (EngineChange::Add(poll, "x".into()), "x"),
        (EngineChange::Add(poll, "9".into()), "CPU 9 cannot be used here"),
        (EngineChange::Add(poll, "5".into()), "choose from 2-4"),
        (EngineChange::Add(poll, "3".into()), "there is a poll engine on CPU 3 already"),
        (EngineChange::Del(poll, "4".into()), "there is no poll engine on CPU 4"),
        (EngineChange::Add(helper, "2".into()), "there is a helper engine on CPU 2 already"),
        (EngineChange::Add(helper, "3".into()), "CPU 3 polls and has no cycles left for a helper"),
        (EngineChange::Del(helper, "3".into()), "there is no helper engine on CPU 3"),
        (EngineChange::Del(ports, "3".into()), "the poll engine on CPU 3 would be where the switch may not run"),
        (EngineChange::Del(ports, "2-4".into()), "no CPU would be left"),
        (EngineChange::Set([Some("2,8".into()), None, None]), "poll CPU 8 cannot be used"),
        (EngineChange::Near("socket".into()), "there are off, node, cache"),
    ] {
        let error = some.changed(&change, &allowed).unwrap_err();
        assert!(error.contains(word), "{change:?}: {error}");
    }
}

/// Ports' threads and the main one keep off cores that poll, where there are others.
#[test]
fn a_core_that_polls_is_left_to_that() {
    let left = |poll: &str, ports: &str| {
        engines(poll, "all", ports).of_threads_among(&list("0-7")).map(|cpus| cpus.to_string())
    };
    assert_eq!(left("none", "all"), None);
    assert_eq!(left("none", "2-4").as_deref(), Some("2-4"));
    assert_eq!(left("3", "2-4").as_deref(), Some("2,4"));
    assert_eq!(left("3", "all").as_deref(), Some("0-2,4-7"));
    assert_eq!(left("2-4", "2-4").as_deref(), Some("2-4"), "there is no other");
    assert_eq!(left("0-7", "all"), None);
    let trouble = |poll: &str, ports: &str| engines(poll, "all", ports).trouble_of_ports(&list("0-7"));
    assert_eq!((trouble("none", "all"), trouble("3", "2-4"), trouble("0-6", "all")), (None, None, None));
    assert!(trouble("2-4", "2-4").unwrap().contains("all its CPUs poll (2-4)"));
    assert!(trouble("0-7", "all").unwrap().contains("all its CPUs poll (0-7)"));
    // Nothing is known of CPUs, and so nothing of what is wrong there.
    assert_eq!(Engines::default().trouble_of_ports(&CpuList::default()), None);
}

#[test]
fn what_was_set_at_run_time_holds_until_the_command_line_says_something_else() {
    let allowed = list("0-7");
    let (given, now) = (engines("3", "all", "all"), engines("4", "all", "all"));
    let remembered = || Some(EnginesOfRun { given: given.clone(), now: now.clone() });
    let start_beside = |given: &Engines, of_file, allowed: &CpuList, devices: &str| {
        let (engines, is_forgotten) = EnginesOfRun::new(given.clone(), of_file, remembered(), allowed, &list(devices));
        assert_eq!(engines.given, *given);
        (engines.now, is_forgotten)
    };
    let start = |given: &Engines, of_file, allowed: &CpuList| start_beside(given, of_file, allowed, "6");
    assert_eq!(start(&given, false, &allowed), (now.clone(), false));
    let other = engines("5", "all", "all");
    assert_eq!(start(&other, false, &allowed), (other.clone(), true));
    assert_eq!(start(&given, true, &allowed), (given.clone(), true), "the file wins");
    assert_eq!(start(&given, false, &list("0-3")), (given.clone(), true), "CPU 4 has gone");
    assert_eq!(start_beside(&given, false, &allowed, "4,6"), (given.clone(), true), "a device polls on CPU 4");
    let none = EnginesOfRun::new(given.clone(), false, None, &allowed, &list("6"));
    assert_eq!((none.0.now, none.1), (given, false));
}

/// A device that polls was told nothing of helpers, or what the host was, by programs before: nobody has asked for anything else since.
#[test]
fn what_was_set_in_a_device_holds_beside_what_it_is_told_of_helpers_since() {
    let allowed = list("0-7");
    let start = |kept: [&Engines; 2], given: &Engines, is_device| {
        let kept = EnginesOfRun { given: kept[0].clone(), now: kept[1].clone() }.beside(given, is_device);
        EnginesOfRun::new(given.clone(), false, Some(kept), &allowed, &CpuList::default())
    };
    let given = engines("3", "none", "all");
    let holds = |now: &Engines| (EnginesOfRun { given: given.clone(), now: now.clone() }, false);
    for helpers in ["all", "1-2"] {
        let kept = [&engines("3", helpers, "all"), &engines("3,4", helpers, "all")];
        assert_eq!(start(kept, &given, true), holds(&engines("3,4", "none", "all")), "helpers {helpers}");
        assert_eq!(start(kept, &given, false).0.now, given, "somebody who types it means it");
    }
    let kept = [&engines("3", "all", "all"), &engines("3", "5", "all")];
    assert_eq!(start(kept, &given, true), holds(&engines("3", "5", "all")), "those were asked for");
    let taken = [&engines("3", "all", "all"), &engines("none", "all", "all")];
    assert_eq!(
        start(taken, &given, true),
        holds(&engines("none", "all", "all")),
        "it works by helpers: no core polls any more"
    );
    let other = engines("4", "none", "all");
    assert_eq!(start(kept, &other, true).0.now, other, "its engines= is another");
    let all = engines("none", "all", "all");
    assert_eq!(start([&engines("none", "1", "all"), &engines("2", "1", "all")], &all, true).0.now, all);
}

#[test]
fn engines_are_written_as_people_do() {
    let near_cache = Engines::default().changed(&EngineChange::Near("cache".into()), &list("0-7")).unwrap();
    assert_eq!(near_cache.near, Near::Cache);
    for some in [Engines::default(), engines("3", "none", "2-4"), engines("none", "2,4", "all"), near_cache] {
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(serde_json::from_str::<Engines>(&text).unwrap(), some, "{text}");
    }
    assert_eq!(engines("3", "none", "2-4").to_string(), "poll 3, helper none, ports 2-4, near node");
    assert!(serde_json::from_str::<Engines>(r#"{"poll":"x"}"#).is_err());
}
