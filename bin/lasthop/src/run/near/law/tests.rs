use super::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn list(text: &str) -> CpuList {
    text.parse().unwrap()
}

/// Two nodes of two caches each, finest first.
fn host() -> Vec<Domain> {
    let domain = |node, cpus| Domain { node: Some(node), cpus: list(cpus) };
    vec![domain(0, "0-1"), domain(0, "2-3"), domain(1, "4-5"), domain(1, "6-7"), domain(0, "0-3"), domain(1, "4-7")]
}

/// Two nodes alone.
fn nodes() -> Vec<Domain> {
    host().split_off(4)
}

fn look(law: &mut Law, domains: &[Domain], used: &[(usize, u64)]) -> bool {
    law.looked(domains, &used.iter().copied().collect())
}

fn looks(law: &mut Law, domains: &[Domain], used: &[(usize, u64)]) -> Option<Place> {
    for _ in 0..LOOKS {
        look(law, domains, used);
    }
    law.place()
}

#[test]
fn a_vm_is_where_it_has_run_at_three_looks_in_a_row() {
    let (mut law, nodes) = (Law::default(), nodes());
    assert_eq!(law.place(), None);
    assert!(!look(&mut law, &nodes, &[(5, 9)]) && !look(&mut law, &nodes, &[(6, 9)]));
    assert_eq!(law.cpus(&nodes, &list("0-7")), list("0-7"), "it is not known yet");
    assert!(!look(&mut law, &nodes, &[]), "who has not run is nowhere else");
    assert!(look(&mut law, &nodes, &[(5, 90), (1, 10)]));
    assert_eq!((law.place(), law.cpus(&nodes, &list("0-7"))), (Some(Place::At(1)), list("4-7")));
    // A look that says otherwise in between begins anew.
    for used in [[(0, 9)], [(0, 9)], [(4, 9)], [(0, 9)], [(0, 9)]] {
        assert!(!look(&mut law, &nodes, &used));
    }
    assert!(look(&mut law, &nodes, &[(0, 9)]));
    assert_eq!(law.place(), Some(Place::At(0)));
}

#[test]
fn what_lies_between_a_half_and_three_quarters_changes_nothing() {
    let (mut law, nodes) = (Law::default(), nodes());
    assert_eq!(looks(&mut law, &nodes, &[(0, 70), (4, 30)]), Some(Place::Spread));
    assert_eq!(looks(&mut law, &nodes, &[(0, 75), (4, 25)]), Some(Place::At(0)));
    assert_eq!(looks(&mut law, &nodes, &[(0, 50), (4, 50)]), Some(Place::At(0)));
    assert_eq!(looks(&mut law, &nodes, &[(0, 49), (4, 51)]), Some(Place::Spread));
    assert_eq!(looks(&mut law, &nodes, &[(0, 26), (4, 74)]), Some(Place::Spread));
    assert_eq!(looks(&mut law, &nodes, &[(0, 25), (4, 75)]), Some(Place::At(1)));
}

#[test]
fn a_vm_of_several_caches_is_at_their_node() {
    let (mut law, host) = (Law::default(), host());
    assert_eq!(looks(&mut law, &host, &[(4, 50), (7, 50)]), Some(Place::At(5)));
    assert_eq!(looks(&mut law, &host, &[(4, 5), (7, 95)]), Some(Place::At(3)), "the cache is nearer");
    assert_eq!(looks(&mut law, &host, &[(4, 45), (7, 55)]), Some(Place::At(3)), "more than half of it is there");
    assert_eq!(looks(&mut law, &host, &[(4, 55), (7, 45)]), Some(Place::At(5)));
    // Where ports' threads have none of its cache's CPUs, those of its node are the nearest.
    let at = Law::knowing(Place::At(3));
    assert_eq!(at.cpus(&host, &list("0-4")), list("4"));
    assert_eq!(at.cpus(&host, &list("0-3")), list("0-3"), "none is near");
}

/// It stayed bound to the place that it had left for as long as no three looks in a row said the same.
#[test]
fn a_vm_that_leaves_its_place_for_several_others_is_there_no_more() {
    let nodes: Vec<_> = (0..4).map(|node| Domain { node: Some(node), cpus: list(&format!("{node}")) }).collect();
    let mut law = Law::knowing(Place::At(0));
    assert!(!look(&mut law, &nodes, &[(1, 9)]) && !look(&mut law, &nodes, &[(2, 9)]));
    assert!(look(&mut law, &nodes, &[(3, 9)]));
    assert_eq!((law.place(), law.cpus(&nodes, &list("0-3"))), (Some(Place::Spread), list("0-3")));
    // It goes on like that, and that is nothing new; then it comes to rest.
    assert!([1, 2, 1, 3, 3].iter().all(|cpu| !look(&mut law, &nodes, &[(*cpu, 9)])));
    assert!(look(&mut law, &nodes, &[(3, 9)]));
    assert_eq!(law.place(), Some(Place::At(3)));
    // One look in which it is back begins anew.
    assert!([1, 2, 3, 0, 1].iter().all(|cpu| !look(&mut law, &nodes, &[(*cpu, 9)])));
    // A look at a third place before it comes to rest is waited for.
    let mut law = Law::knowing(Place::At(0));
    assert!([2, 1, 1].iter().all(|cpu| !look(&mut law, &nodes, &[(*cpu, 9)])));
    assert!(look(&mut law, &nodes, &[(1, 9)]));
    assert_eq!(law.place(), Some(Place::At(1)));
    // Not for ever.
    let mut law = Law::knowing(Place::At(0));
    let looks = [1, 1, 2, 2, 1, 1, 2, 2].iter().take_while(|cpu| !look(&mut law, &nodes, &[(**cpu, 9)])).count();
    assert_eq!((looks, law.place()), (2, Some(Place::Spread)));
    // One that has never been anywhere for long is known to be everywhere.
    let mut law = Law::default();
    for cpu in [0, 1, 2] {
        look(&mut law, &nodes, &[(cpu, 9)]);
    }
    assert_eq!(law.place(), Some(Place::Spread));
}

#[test]
fn a_vm_that_wanders_among_caches_is_at_their_node() {
    let (mut law, host) = (Law::knowing(Place::At(0)), host());
    assert!([4, 6].iter().all(|cpu| !look(&mut law, &host, &[(*cpu, 9)])));
    assert!(look(&mut law, &host, &[(4, 9)]));
    assert_eq!((law.place(), law.cpus(&host, &list("0-7"))), (Some(Place::At(5)), list("4-7")));
    // It goes on, and is there; a cache of the other node in between is all over the host.
    assert!([6, 4, 6, 4].iter().all(|cpu| !look(&mut law, &host, &[(*cpu, 9)])));
    let mut law = Law::knowing(Place::At(0));
    for cpu in [4, 2, 6] {
        look(&mut law, &host, &[(cpu, 9)]);
    }
    assert_eq!(law.place(), Some(Place::Spread));
}

/// The kernel counts as waiting what a quota has a thread stand still.
#[test]
fn a_thread_that_a_quota_stops_stays_with_its_vm() {
    let (second, ms) = (Duration::from_secs(1), 1_000_000);
    let (mut law, mut now) = (Law::knowing(Place::At(1)), Instant::now());
    let mut look = |law: &mut Law, waited: u64, stopped: bool| {
        now += second;
        law.waited([10 * ms, waited * ms], second, now, || stopped);
        (law.is_free(), law.is_throttled())
    };
    // The first of them finds nothing to hold the count against.
    assert_eq!(look(&mut law, 900, false), (false, false));
    (0..100).for_each(|_| assert_eq!(look(&mut law, 900, true), (false, true)));
    assert_eq!(law.cpus(&nodes(), &list("0-7")), list("4-7"));
    // It is said for a while longer.
    assert_eq!(look(&mut law, 0, false), (false, true));
    for _ in 0..CALM {
        look(&mut law, 0, true);
    }
    assert_eq!(look(&mut law, 900, false), (false, false));
    // Others do keep the CPUs busy.
    look(&mut law, 900, false);
    assert_eq!(look(&mut law, 900, false), (true, false));
}

#[test]
fn a_thread_that_finds_its_vms_cpus_busy_may_run_anywhere_for_a_while() {
    let (nodes, ports, start) = (nodes(), list("0-7"), Instant::now());
    let mut law = Law::knowing(Place::At(1));
    let (second, ms) = (Duration::from_secs(1), 1_000_000);
    let mut at = start;
    let mut look = |law: &mut Law, ran, waited| {
        at += second;
        law.waited([ran * ms, waited * ms], second, at, || false);
        law.is_free()
    };
    // Less than it ran, or next to nothing.
    for (ran, waited) in [(100, 99), (100, 99), (100, 99), (1, 20), (1, 20), (1, 20)] {
        assert!(!look(&mut law, ran, waited));
    }
    let mut leave = |law: &mut Law| {
        assert!(!look(law, 30, 60) && !look(law, 30, 60) && look(law, 30, 60));
        assert_eq!(law.cpus(&nodes, &ports), ports);
        1 + (0..2000).take_while(|_| look(law, 30, 60)).count()
    };
    assert_eq!([leave(&mut law), leave(&mut law), leave(&mut law)], [30, 60, 120]);
    assert_eq!(law.cpus(&nodes, &ports), list("4-7"));
    let last = (0..5).map(|_| leave(&mut law)).last();
    assert_eq!(last, Some(16 * 60));
    for _ in 0..CALM {
        at += second;
        law.waited([ms, 0], second, at, || false);
    }
    (0..LOOKS).for_each(|_| law.waited([30 * ms, 60 * ms], second, at, || false));
    law.waited([0, 0], second, at + LEAVE - second, || false);
    assert!(law.is_free());
    law.waited([0, 0], second, at + LEAVE, || false);
    assert!(!law.is_free(), "it is as the first time");
    // Of a VM that is nowhere there is nothing to leave.
    let mut spread = Law::knowing(Place::Spread);
    (0..9).for_each(|_| spread.waited([0, 900 * ms], second, at, || false));
    assert!(!spread.is_free());
}

fn cpus() -> impl Strategy<Value = CpuList> {
    vec(0..12usize, 0..8).prop_map(|cpus| cpus.into_iter().collect())
}

proptest! {
    /// Whatever a host is like and a VM does: never no CPU, never one that is not of ports' threads.
    #[test]
    fn a_thread_has_some_cpu_and_only_such_of_ports(
        domains in vec((any::<Option<u32>>(), cpus()), 0..6),
        ports in cpus().prop_filter("some", |cpus| !cpus.is_empty()),
        looks in vec((btree_map(0..12usize, 0..=u64::MAX / 16, 0..6), 0..2_000_000_000u64, 0..2_000_000_000u64), 0..40),
    ) {
        let domains: Vec<_> = domains.into_iter().map(|(node, cpus)| Domain { node, cpus }).collect();
        let (mut law, mut now) = (Law::default(), Instant::now());
        for (used, ran, waited) in looks {
            now += Duration::from_secs(1);
            law.looked(&domains, &used);
            law.waited([ran, waited], Duration::from_secs(1), now, || ran % 7 == 0);
            let cpus = law.cpus(&domains, &ports);
            prop_assert!(!cpus.is_empty());
            prop_assert!(cpus.without(&ports).is_empty());
            if let Some(Place::At(at)) = law.place() && !law.is_free() && cpus != ports {
                let near = domains.iter().any(|domain| cpus.without(&domain.cpus).is_empty() && (*domain == domains[at] || domains[at].is_finer_than(domain)));
                prop_assert!(near, "{cpus} is not near {:?}", domains[at]);
            }
        }
    }
}
