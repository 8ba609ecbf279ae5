//! Guests whose packets cost what a test says, looked at once a second.

use super::*;
use proptest::prelude::*;

const SECOND: f64 = 1e9;

/// A guest that is looked at, and a thread that does nothing but move its packets.
struct Guest {
    law: Law,
    most: f64,
    /// What its threads get done together: nanoseconds a second.
    able: f64,
    /// What was spent in each second, in parts of the bound.
    spent: Vec<f64>,
}

impl Guest {
    fn new(percent: f64) -> Self {
        Self { law: Law::default(), most: percent * SECOND / 100.0, able: SECOND, spent: Vec::new() }
    }

    /// A second in which it would send so many units, of which each costs what `cost` says at the rate that they come, and the same besides
    /// whatever it sends.
    fn second(&mut self, wanted: f64, cost: impl Fn(f64) -> f64, besides: f64) {
        // What a thread gets done in a second.
        let mut able = wanted;
        while able * cost(able) + besides > self.able && able > 1.0 {
            able *= 0.999;
        }
        let rate = able.min(self.law.limit().unwrap_or(f64::MAX));
        let spent = rate * cost(rate) + besides;
        self.spent.push(spent / self.most);
        self.law.look(self.most, Look { seconds: 1.0, spent, rate });
    }

    fn seconds(&mut self, seconds: usize, wanted: f64, cost: f64) -> &[f64] {
        (0..seconds).for_each(|_| self.second(wanted, |_| cost, 0.0));
        &self.spent[self.spent.len() - seconds..]
    }
}

const FLOOD: f64 = 1e8;

#[test]
fn a_flood_is_within_its_bound_after_a_second() {
    let mut guest = Guest::new(10.0);
    let spent = guest.seconds(30, FLOOD, 100.0);
    assert!(spent[0] > 9.9, "nobody knew what it would send: {spent:?}");
    assert!(spent[1..].iter().all(|part| (0.95..=1.05).contains(part)), "{spent:?}");
    assert!(!guest.law.is_missed());
}

/// Fewer packets come in smaller bursts, and cost more each.
#[test]
fn a_cost_that_rises_when_packets_are_fewer_is_found() {
    let mut guest = Guest::new(5.0);
    for _ in 0..30 {
        guest.second(FLOOD, |rate| 80.0 + 4e7 / rate, 0.0);
    }
    assert!(guest.spent[5..].iter().all(|part| (0.8..=1.2).contains(part)), "{:?}", guest.spent);
}

#[test]
fn a_cost_that_changes_is_followed() {
    let mut guest = Guest::new(20.0);
    guest.seconds(10, FLOOD, 100.0);
    let dearer = guest.seconds(10, FLOOD, 2000.0);
    assert!(dearer[0] > 4.9, "nobody knew what they would cost: {dearer:?}");
    assert!(dearer[2..].iter().all(|part| (0.9..=1.1).contains(part)), "{dearer:?}");
    // Up again it goes step by step.
    let cheaper = guest.seconds(12, FLOOD, 100.0);
    assert!(cheaper[6..].iter().all(|part| (0.9..=1.1).contains(part)), "{cheaper:?}");
}

#[test]
fn who_sends_little_is_held_to_nothing() {
    let mut guest = Guest::new(10.0);
    guest.seconds(30, 100_000.0, 100.0);
    assert_eq!(guest.law, Law::default());
    guest.seconds(1, FLOOD, 100.0);
    assert!(guest.law.limit().is_some());
    // What was spent of nine seconds more than the bound is made up for in as many.
    guest.seconds(8, 0.0, 100.0);
    assert!(guest.law.limit().is_some());
    guest.seconds(2, 0.0, 100.0);
    assert_eq!(guest.law.limit(), None);
}

/// In the mean it is the bound, though nobody knows of a second before it is over.
#[test]
fn who_rests_in_between_gets_no_more_than_the_bound_for_long() {
    // Where a second of a flood takes more than a minute of the bound, and where several threads take more than a processor.
    for (percent, processors) in [(10.0, 1.0), (5.0, 1.0), (1.0, 1.0), (5.0, 8.0), (1.0, 8.0)] {
        let a_second = processors * 100.0 / percent;
        for rest in [1, 3, 6, 8, 9, 60, 65, a_second as usize] {
            let mut guest = Guest { able: processors * SECOND, ..Guest::new(percent) };
            // Long enough for the first second to be made up for.
            for _ in 0..(20.0 * a_second) as usize / (1 + rest) + 1 {
                guest.seconds(1, FLOOD, 100.0);
                guest.seconds(rest, 0.0, 100.0);
            }
            let mean = guest.spent.iter().sum::<f64>() / guest.spent.len() as f64;
            assert!(mean <= 1.2, "{mean} of {percent} %, resting for {rest} s, with {processors}");
        }
    }
}

/// As by its own `rate-from`: its packets take less than they may, and it is held back by nothing else before long.
#[test]
fn who_is_held_back_by_something_else_is_left_to_that() {
    let mut guest = Guest::new(10.0);
    guest.seconds(3, FLOOD, 100.0);
    guest.seconds(30, 700_000.0, 100.0);
    assert_eq!(guest.law.limit(), None);
}

#[test]
fn nobody_is_held_to_less_than_the_floor_and_then_it_is_said() {
    let mut guest = Guest::new(1.0);
    // A hundredth of a processor is 10 ms a second, and the floor takes 50.
    let spent = guest.seconds(6, FLOOD, 50_000.0);
    assert!(spent[2..].iter().all(|part| (4.9..=5.1).contains(part)), "{spent:?}");
    assert!(guest.law.is_at_floor() && guest.law.is_missed());
    guest.seconds(4, FLOOD, 5000.0);
    assert!(guest.law.is_missed(), "for a moment");
    guest.seconds(4, FLOOD, 5000.0);
    assert!(!guest.law.is_missed());
}

#[test]
fn what_its_rate_has_no_part_in_is_said() {
    let mut guest = Guest::new(10.0);
    for _ in 0..25 {
        guest.second(FLOOD, |_| 100.0, 0.15 * SECOND);
    }
    assert!(guest.law.is_missed() && guest.law.is_at_floor());
}

#[test]
fn a_moment_above_the_bound_is_no_miss() {
    let mut guest = Guest::new(10.0);
    for _ in 0..20 {
        for cost in [1000.0, 100.0, 100.0] {
            guest.seconds(1, FLOOD, cost);
            assert!(!guest.law.is_missed());
        }
    }
}

proptest! {
    /// Whatever the bound and the cost are, and though each look is wrong by a tenth.
    #[test]
    fn it_settles_within_a_fifth(
        percent in 1.0..100.0f64, cost in 20.0..8000.0f64, rises in 0.0..2.0f64,
        wrong in prop::collection::vec(0.9..1.1f64, 60),
    ) {
        let most = percent * SECOND / 100.0;
        prop_assume!(cost * (1.0 + rises) * (FLOOR as f64) < most / 2.0);
        let mut guest = Guest::new(percent);
        let full = SECOND / cost;
        for wrong in &wrong {
            // Twice as dear, or thrice, when there are few.
            guest.second(FLOOD, |rate| wrong * cost * (1.0 + rises * (1.0 - (rate / full).min(1.0))), 0.0);
        }
        for mean in guest.spent[10..].windows(5).map(|looks| looks.iter().sum::<f64>() / 5.0) {
            prop_assert!((0.8..=1.2).contains(&mean) || percent > 80.0 && mean <= 1.2, "{mean}: {:?}", guest.spent);
        }
        prop_assert!(!guest.law.is_missed());
    }

    /// Whatever it sends and costs: the rate is never below the floor, and no number is none.
    #[test]
    fn nobody_is_starved(looks in prop::collection::vec((0.0..1e7f64, 0.0..2e9f64, 0.3..20.0f64), 1..200), percent in 1.0..6400.0f64) {
        let mut law = Law::default();
        for (rate, spent, seconds) in looks {
            law.look(percent * SECOND / 100.0, Look { seconds, spent, rate });
            prop_assert!(law.limit().is_none_or(|limit| limit >= FLOOR as f64 && limit.is_finite()));
        }
    }
}
