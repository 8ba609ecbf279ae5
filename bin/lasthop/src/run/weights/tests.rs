use super::*;
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
    assert_eq!(weights(ports.clone(), Some(100)).into_iter().collect::<Vec<_>>(), [(0, 220), (1, 40), (2, 40)]);
    assert_eq!(weights(ports.clone(), None), BTreeMap::new(), "nobody knows of what");
    ports[1].least = 60;
    let too_much = weights(ports, Some(100));
    assert_eq!(too_much.into_values().collect::<Vec<_>>(), [150, 150, 1], "all get less by the same part");
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
