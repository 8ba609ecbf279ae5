use super::*;
use lasthop_api::Field;
use proptest::prelude::*;

fn wanted(ports: &[(u32, u8)]) -> Vec<Wanted> {
    let wanted = |(port, &(weight, priority))| Wanted { port, weight, priority, least: 0, uplink: false };
    (0..).zip(ports).map(wanted).collect()
}

fn of(ports: &[(u32, u8)]) -> Vec<u32> {
    weights(wanted(ports), None).into_values().collect()
}

#[test]
fn each_port_has_fifteen_times_what_is_below_it_and_equals_share_by_weight() {
    assert_eq!(of(&[(100, 0), (100, 1)]), [100, 1500]);
    assert_eq!(of(&[(100, 0), (300, 0), (100, 2), (50, 2)]), [100, 300, 12_000, 6_000]);
    assert_eq!(of(&[(100, 2), (100, 1), (100, 0)]), [24_000, 1500, 100]);
    for ports in [&[][..], &[(7, 0)], &[(100, 1), (300, 1)]] {
        assert_eq!(of(ports), [0; 0], "the weights that they have");
    }
}

#[test]
fn numbers_end_at_a_bound() {
    let mut ports = vec![(1000, 0); 998];
    ports.extend([(1, 1), (1000, 1), (1, 2)]);
    let weights = of(&ports);
    let lower: u64 = weights[..998].iter().map(|n| u64::from(*n)).sum();
    assert!(u64::from(weights[998]) >= 15 * lower);
    assert_eq!(weights[998..], [14_970_000, u32::MAX, u32::MAX], "as far as they go");
}

/// 60 of 100 for the first, and a third of the 40 that are left for each.
#[test]
fn a_port_has_its_minimum_and_its_part_of_what_is_left() {
    let mut ports = wanted(&[(100, 0), (100, 0), (100, 0), (100, 0)]);
    ports[0].least = 60;
    ports[3].uplink = true;
    let of = |ports: &[Wanted]| weights(ports.to_vec(), Some(100)).into_values().collect::<Vec<_>>();
    assert_eq!(of(&ports), [220, 40, 40, 100], "what comes from the uplink has the weight that it had");
    assert_eq!(weights(ports.clone(), None), BTreeMap::new(), "nobody knows of what");
    ports[1].least = 60;
    assert_eq!(of(&ports), [150, 150, 1, 100], "all get less by the same part");
}

/// What guests send each other shares with what comes from an uplink: that kept 100 while their weights became 100 times as fine, or a thousandth.
#[test]
fn an_uplink_keeps_its_part_when_weights_become_finer_or_coarser() {
    let of = |ports: &[(u32, u8)], least, takes| {
        let mut ports = wanted(ports);
        ports[0].least = least;
        ports.last_mut().unwrap().uplink = true;
        weights(ports, Some(takes)).into_values().collect::<Vec<_>>()
    };
    assert_eq!(of(&[(1, 0), (1, 0), (100, 0)], 0, 1), [0; 0], "no minimum");
    assert_eq!(of(&[(1, 0), (1, 0), (100, 0)], 50, 100), [150, 50, 10_000]);
    // There are no numbers for all weights: they are divided by 5.
    let mut ports = vec![(1000, 0); 998];
    ports.extend([(1, 1), (1000, 1), (1, 2), (100, 0)]);
    let weights = of(&ports, 1, 1_000_000);
    assert_eq!((weights[1], weights[1001]), (200, 20), "a tenth of a guest's, as before");
}

fn told<'a>(name: &'a str, port: u32, uplink: bool, settings: &'a PortSettings) -> Told<'a> {
    Told { name, port, uplink, settings: Some(settings) }
}

fn set(settings: &[(&str, &str)]) -> PortSettings {
    PortSettings::default().change(settings.iter().copied()).unwrap()
}

#[test]
fn minimums_are_of_what_uplinks_say_that_they_take() {
    let (vm, nothing) = (set(&[("min-rate", "70M")]), PortSettings::default());
    let of = |net: &[(&str, &str)], other: Option<&[(&str, &str)]>| {
        let (net, other) = (set(net), other.map(set));
        let mut ports = vec![told("vm", 1, false, &vm), told("net", 2, true, &net), told("idle", 3, false, &nothing)];
        ports.extend(other.iter().map(|other| told("other", 4, true, other)));
        let minimums = Minimums::of(&ports);
        (minimums.unkept().unwrap_or_default(), minimums)
    };
    let (kept, at_100) = of(&[("rate-to", "100M")], None);
    assert_eq!(kept, "");
    let (why, at_60) = of(&[("rate-to", "60M")], Some(&[("rate-to", "100M")]));
    assert!(why.contains("70M at least (min-rate), and uplink net takes 60M (rate-to): lower"), "{why}");
    for silent in [&[][..], &[("rate-to", "20kpps")]] {
        let (why, none) = of(silent, None);
        assert!(why.contains("none says how many bits a second that is: `lasthop port set net --rate-to"), "{why}");
        assert!(none.are_no_worse_than(&of(silent, None).1));
        assert!(!at_60.are_no_worse_than(&none), "what is said for the first time is to be enough");
        assert!(!none.are_no_worse_than(&at_100));
    }
    assert!(at_100.are_no_worse_than(&at_60) && !at_60.are_no_worse_than(&at_100));
    let (kept, beside) = of(&[], Some(&[("rate-to", "100M")]));
    assert_eq!((&*kept, &*beside.unsaid), ("", &["net".to_owned()][..]));
    let alone = Minimums::of(&[told("vm", 1, false, &vm)]);
    assert!(alone.unkept().is_some_and(|why| why.contains("there is no uplink: add one")));
    assert!(Minimums::of(&[told("idle", 1, false, &nothing)]).unkept().is_none());
}

#[test]
fn shares_are_shown_beside_ports_own_weights() {
    let port = |name: &str, id, uplink, settings: &[(&str, &str)]| {
        let field = |(name, value): &(&str, &str)| Field { name: (*name).into(), value: (*value).into() };
        let settings = settings.iter().map(field).collect();
        Port { name: name.into(), id, uplink, settings, ..Port::default() }
    };
    let ports = [
        port("a", 1, false, &[("min-rate", "60M")]),
        port("b", 2, false, &[]),
        port("c", 3, false, &[]),
        port("net", 4, true, &[("rate-to", "100M")]),
    ];
    let told: Vec<_> = shares(&ports).iter().map(|of| (of.own, of.told())).collect();
    let b = (100, "weight 40 of 300 of all guests, where they share".to_owned());
    assert_eq!(
        told,
        [
            (100, "weight 220 of 300 of all guests, where they share, at least 60M of an uplink".to_owned()),
            b.clone(),
            b
        ]
    );
    let nothing_said: Vec<_> = shares(&ports[..3]).iter().map(Share::told).collect();
    assert_eq!(nothing_said, ["weight 100 of 300 of all guests, where they share"; 3]);
}

proptest! {
    /// Whoever of the others has packets.
    #[test]
    fn minimums_that_fit_are_kept(
        ports in prop::collection::vec((1..=1000u32, 0..1000u64, 0..3u8, any::<bool>()), 1..40),
        spare in 0..1000u64,
    ) {
        let wanted = |(n, &(weight, least, priority, _)): (u32, &(u32, u64, u8, bool))| {
            Wanted { port: n, weight, priority: priority / 2, least: least * 1_000_000, uplink: false }
        };
        let all: Vec<_> = (0..).zip(&ports).map(wanted).collect();
        let takes = all.iter().map(|port| port.least).sum::<u64>() + spare * 1_000_000;
        let weights = weights(all.clone(), Some(takes));
        let weight = |port: &Wanted| f64::from(weights.get(&port.port).copied().unwrap_or(port.weight));
        let at_work = |port: &&Wanted| ports[port.port as usize].3;
        let sum: f64 = all.iter().filter(at_work).map(weight).sum();
        // A hundredth of the mean is what whole numbers cost.
        let mean = takes as f64 / all.len() as f64;
        for port in all.iter().filter(at_work) {
            let gets = weight(port) / sum * takes as f64;
            prop_assert!(gets >= port.least as f64 - 0.01 * mean.max(port.least as f64) - 1.0, "{port:?} gets {gets}");
        }
    }
}
