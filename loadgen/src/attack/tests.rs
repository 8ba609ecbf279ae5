use super::*;

#[test]
fn each_attack_has_two_ports_and_all_of_them_all() {
    assert!(Attack::EACH.iter().all(|a| a.ports() == PORTS && a.parts() == [*a]));
    assert_eq!(Attack::All.ports(), PORTS * Attack::EACH.len());
    assert_eq!((Attack::Trickle.lures(), Attack::All.lures(), Attack::Storm.lures()), (Some(0), Some(0), None));
}

#[test]
fn attackers_are_wild_only_while_there_is_traffic() {
    let mut settings = Settings::new(vec![], super::super::Pattern::BothWays);
    for phase in Phase::ALL {
        let expected = match phase {
            Phase::Warm => Mood::Prepare,
            Phase::Measure | Phase::After => Mood::Wild,
            _ => Mood::Quiet,
        };
        assert_eq!(mood(&settings, phase), expected, "{phase:?}");
    }
    settings.tame = true;
    assert!(Phase::ALL.iter().all(|p| matches!(mood(&settings, *p), Mood::Quiet | Mood::Tame)));
}

#[test]
fn tallies_are_told_apart() {
    let before = Tally { sent: 1, received: 2, messages: 3, turns: 4, overrun_ns: 5 };
    let after = Tally { sent: 11, received: 22, messages: 33, turns: 44, overrun_ns: 55 };
    assert_eq!(after.since(before), Tally { sent: 10, received: 20, messages: 30, turns: 40, overrun_ns: 50 });
}
