//! What was measured, and what follows from it. This is also the JSON file.

use crate::cpus::Cpus;
use crate::distance::Distance;
use crate::figure::{Figure, Shown};
use crate::machine::Machine;
use crate::round::Round;
use crate::scenario::Scenario;
use serde::Serialize;

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Of the bench.
    pub version: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// The CPUs used.
    pub cpus: Cpus,
    /// Rounds asked for; contenders of which some were not valid have more.
    pub rounds: usize,
    /// Seconds each measurement lasts.
    pub seconds: u64,
    /// In the order they ran.
    pub scenarios: Vec<ScenarioResults>,
}

/// One comparison.
#[derive(Debug, Serialize)]
pub struct ScenarioResults {
    /// As on the command line.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What each number below is.
    pub figures: &'static [Figure],
    /// Which rounds' figures are shown and judged.
    pub shows: Shown,
    /// Between the CPUs, in the rounds that best and median are of; null: all rounds, there is no distance at which everybody
    /// was measured.
    pub distance: Option<Distance>,
    /// lasthop first.
    pub contenders: Vec<ContenderResults>,
}

/// One switch in one comparison.
#[derive(Debug, Serialize)]
pub struct ContenderResults {
    /// As on the command line.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// Why it did not take part, if it did not.
    pub missing: Option<String>,
    /// Those that have figures.
    pub rounds: Vec<Round>,
    /// What went wrong in rounds that have no figures.
    pub failures: Vec<String>,
    /// The best of the scenario's distance, for each figure by itself.
    pub best: Vec<Option<f64>>,
    /// The middle one of the scenario's distance, for each figure by itself.
    pub median: Vec<Option<f64>>,
}

impl ContenderResults {
    /// One that has not been measured yet.
    pub fn new(name: &'static str, title: &'static str, missing: Option<String>) -> Self {
        Self { name, title, missing, rounds: vec![], failures: vec![], best: vec![], median: vec![] }
    }

    /// Its rounds at a distance, or all.
    pub fn rounds_at(&self, distance: Option<Distance>) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(move |r| distance.is_none() || r.distance == distance)
    }

    /// How many rounds of a distance, or of all, whichever of its figures comes from fewest comes from. A figure that it never
    /// has does not count.
    pub fn valid_rounds(&self, distance: Option<Distance>) -> usize {
        let has = |r: &Round, figure: usize| r.figures.get(figure).copied().flatten().is_some();
        let figures = 0..self.rounds.iter().map(|r| r.figures.len()).max().unwrap_or(0);
        let known = figures.filter(|f| self.rounds.iter().any(|r| has(r, *f)));
        known.map(|f| self.rounds_at(distance).filter(|r| has(r, f)).count()).min().unwrap_or(0)
    }

    /// Its values of a figure at a distance, or all, the best first.
    fn sorted(&self, figure: usize, more_is_better: bool, distance: Option<Distance>) -> Vec<f64> {
        let mut values: Vec<f64> = self.rounds_at(distance).filter_map(|r| *r.figures.get(figure)?).collect();
        values.sort_by(f64::total_cmp);
        if more_is_better {
            values.reverse();
        }
        values
    }

    /// The best of a figure at a distance, or of all.
    pub fn best_at(&self, figure: usize, more_is_better: bool, distance: Option<Distance>) -> Option<f64> {
        self.sorted(figure, more_is_better, distance).first().copied()
    }

    fn settle(&mut self, figures: &[Figure], distance: Option<Distance>) {
        let sorted = figures.iter().enumerate().map(|(i, f)| self.sorted(i, f.more_is_better, distance));
        (self.best, self.median) = sorted.map(|v| (v.first().copied(), v.get(v.len() / 2).copied())).unzip();
    }
}

impl ScenarioResults {
    /// One in which nothing has been measured yet.
    pub fn new(scenario: &Scenario, contenders: Vec<ContenderResults>) -> Self {
        let (name, title, figures) = (scenario.name, scenario.title, scenario.figures());
        Self { name, title, figures, shows: scenario.shows(), distance: None, contenders }
    }

    /// Adds a contender's round and brings distance, best and median up to date.
    pub fn add(&mut self, contender: usize, round: Round) {
        self.contenders[contender].rounds.push(round);
        self.distance = self.common();
        self.contenders.iter_mut().for_each(|c| c.settle(self.figures, self.distance));
    }

    /// The figure that stands for a contender's.
    pub fn shown(&self, contender: &ContenderResults, figure: usize) -> Option<f64> {
        let of = if self.shows == Shown::Best { &contender.best } else { &contender.median };
        of.get(figure).copied().flatten()
    }

    /// Those that have rounds.
    pub fn measured(&self) -> impl Iterator<Item = &ContenderResults> {
        self.contenders.iter().filter(|c| !c.rounds.is_empty())
    }

    /// The distance at which everybody has rounds: the one where whoever has fewest has most.
    fn common(&self) -> Option<Distance> {
        let rounds = |distance| {
            let each = || self.measured().map(move |c| c.rounds_at(Some(distance)).count());
            (each().min().unwrap_or(0), each().sum::<usize>())
        };
        // Of equals the nearest.
        let best = Distance::ALL.into_iter().rev().max_by_key(|distance| rounds(*distance))?;
        (rounds(best).0 > 0).then_some(best)
    }

    /// Round trips between the CPUs, in nanoseconds, of all rounds that count.
    pub fn round_trips_ns(&self) -> Vec<f64> {
        let rounds = self.contenders.iter().flat_map(|c| c.rounds_at(self.distance));
        rounds.flat_map(|r| r.round_trips_ns.iter().copied()).collect()
    }

    /// Whether a contender that takes part is short of `enough` valid rounds: those that have its figures, at the distance at
    /// which everybody is compared where distances were probed. One that never came to a round is given up when it has
    /// failed more often than that.
    pub fn is_short(&self, contender: usize, enough: usize) -> bool {
        let probed = self.measured().any(|c| c.rounds.iter().any(|r| !r.round_trips_ns.is_empty()));
        let c = &self.contenders[contender];
        let valid = if probed && self.distance.is_none() { 0 } else { c.valid_rounds(self.distance) };
        let given_up = c.rounds.is_empty() && c.failures.len() > enough;
        c.missing.is_none() && !given_up && valid < enough
    }

    /// For each contender, lasthop's figure that is shown divided by its own; nothing for lasthop itself and where one is unknown.
    pub fn ratios(&self, figure: usize) -> Vec<Option<f64>> {
        let shown = |c: &ContenderResults| self.shown(c, figure);
        let ours = self.contenders.iter().find(|c| c.name == "lasthop").and_then(shown);
        let ratio = |c: &ContenderResults| match (ours, shown(c)) {
            (Some(ours), Some(theirs)) if c.name != "lasthop" && theirs > 0.0 => Some(ours / theirs),
            _ => None,
        };
        self.contenders.iter().map(ratio).collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const FIGURES: [Figure; 2] = [
        Figure { name: "packets", unit: "Mpps", more_is_better: true },
        Figure { name: "switch CPU", unit: "ns/packet", more_is_better: false },
    ];

    /// One cache.
    const NEAR: f64 = 100.0;
    const FAR: f64 = 500.0;

    /// A round's figures, and the round trip if it is known.
    type Sample = ([f64; 2], Option<f64>);

    /// Contenders and their rounds.
    pub fn scenario(contenders: &[(&'static str, &[Sample])]) -> ScenarioResults {
        let none = contenders.iter().map(|(name, _)| ContenderResults::new(name, name, None)).collect();
        let mut results = ScenarioResults {
            name: "loop",
            title: "a loop",
            figures: &FIGURES,
            shows: Shown::Best,
            distance: None,
            contenders: none,
        };
        for (i, (_, rounds)) in contenders.iter().enumerate() {
            for (figures, trip) in *rounds {
                results.add(i, Round::new(figures.map(Some).to_vec(), trip.iter().copied().collect()));
            }
        }
        results
    }

    /// lasthop, a slower peer, a missing and a failing one.
    pub fn sample() -> ScenarioResults {
        let mut results = scenario(&[
            ("lasthop", &[([15.0, 60.0], None), ([20.0, 50.0], None), ([18.0, 55.0], None)]),
            ("peer", &[([10.0, 220.0], None), ([8.0, 200.0], None), ([9.0, 210.0], None)]),
            ("absent", &[]),
            ("failing", &[]),
        ]);
        results.contenders[2].missing = Some("no such program".into());
        results.contenders[3].failures.push("it\nfell".into());
        results
    }

    /// lasthop was near three times, and the peer once.
    pub fn moved() -> ScenarioResults {
        let near = |ns| (ns, Some(NEAR));
        let mut results = scenario(&[
            ("lasthop", &[near([10.0, 90.0]), near([12.0, 80.0]), near([11.0, 85.0]), ([30.0, 10.0], Some(47.0))]),
            ("peer", &[([5.0, 300.0], Some(FAR)), near([9.0, 100.0])]),
            ("failing", &[]),
        ]);
        results.contenders[2].failures = vec!["it fell".into(); 2];
        results.add(1, Round::new(vec![Some(20.0), Some(50.0)], vec![47.0, 118.0]));
        results
    }

    #[test]
    fn best_and_median_are_of_the_common_distance() {
        let s = moved();
        assert_eq!(s.distance, Some(Distance::OneCache));
        assert_eq!(s.contenders[0].best, [Some(12.0), Some(80.0)]);
        assert_eq!(s.contenders[0].median, [Some(11.0), Some(85.0)]);
        assert_eq!(s.contenders[1].best, [Some(9.0), Some(100.0)], "neither far nor while they moved");
        assert_eq!(s.round_trips_ns(), [NEAR; 4]);
    }

    #[test]
    fn whoever_has_fewest_rounds_chooses_the_distance() {
        let rounds = |near: usize, far: usize| -> Vec<_> {
            let of = |ns, n| std::iter::repeat_n(([1.0, 1.0], Some(ns)), n);
            of(NEAR, near).chain(of(FAR, far)).collect()
        };
        let common = |a: [usize; 2], b: [usize; 2]| {
            scenario(&[("lasthop", &rounds(a[0], a[1])), ("peer", &rounds(b[0], b[1])), ("failing", &[])]).distance
        };
        assert_eq!(common([4, 1], [1, 4]), Some(Distance::OneCache), "equals: the nearest");
        assert_eq!(common([4, 2], [1, 2]), Some(Distance::Apart));
        assert_eq!(common([2, 2], [1, 2]), Some(Distance::Apart));
        assert_eq!(common([1, 2], [1, 1]), Some(Distance::Apart), "equally few: the most altogether");
        assert_eq!(common([3, 0], [0, 3]), None);
        assert_eq!(common([3, 0], [0, 0]), Some(Distance::OneCache), "one that never came to a round has no say");
        assert_eq!(scenario(&[]).distance, None);
    }

    #[test]
    fn without_a_common_distance_all_rounds_count() {
        let s = scenario(&[
            ("lasthop", &[([10.0, 90.0], Some(NEAR)), ([20.0, 50.0], Some(47.0))]),
            ("peer", &[([5.0, 200.0], Some(FAR))]),
        ]);
        assert_eq!(s.distance, None);
        assert_eq!(s.contenders[0].best, [Some(20.0), Some(50.0)]);
    }

    #[test]
    fn those_with_too_few_rounds_at_the_distance_are_short() {
        let s = moved();
        let short = |enough| [0, 1, 2].map(|contender| s.is_short(contender, enough));
        assert_eq!(short(1), [false; 3]);
        assert_eq!(short(2), [false, true, true]);
        assert_eq!(short(4), [true, true, true]);
        let mut apart = scenario(&[("lasthop", &[([1.0, 1.0], Some(NEAR))]), ("peer", &[([1.0, 1.0], Some(FAR))])]);
        assert!(apart.is_short(0, 1) && apart.is_short(1, 1));
        apart.contenders[0].failures.push("it fell".into());
        assert!(apart.is_short(0, 1), "a failed round is made up for");
        let unprobed = sample();
        assert_eq!([3, 4].map(|enough| unprobed.is_short(0, enough)), [false, true]);
        assert!(!unprobed.is_short(2, 1), "what is missing is not waited for");
    }

    #[test]
    fn a_figure_that_was_not_got_is_got_in_another_round() {
        let mut s = scenario(&[("lasthop", &[([1.0, 1.0], None)])]);
        s.add(0, Round::new(vec![Some(2.0), None], vec![]));
        assert_eq!(s.contenders[0].best, [Some(2.0), Some(1.0)], "what is there counts");
        assert_eq!(s.contenders[0].valid_rounds(None), 1);
        assert!(s.is_short(0, 2) && !s.is_short(0, 1));
        let mut never = scenario(&[("lasthop", &[])]);
        (0..2).for_each(|_| never.add(0, Round::new(vec![Some(2.0), None], vec![])));
        assert_eq!(never.contenders[0].valid_rounds(None), 2, "one that it never has is not waited for");
    }

    #[test]
    fn best_and_median_go_by_what_is_better() {
        let s = sample();
        assert_eq!(s.contenders[0].best, [Some(20.0), Some(50.0)]);
        assert_eq!(s.contenders[0].median, [Some(18.0), Some(55.0)]);
        assert_eq!(s.contenders[1].best, [Some(10.0), Some(200.0)]);
    }

    #[test]
    fn ratios_are_lasthop_to_the_peer() {
        let s = sample();
        assert_eq!(s.ratios(0), [None, Some(2.0), None, None]);
        assert_eq!(s.ratios(1), [None, Some(0.25), None, None]);
    }

    #[test]
    fn without_lasthop_there_are_no_ratios() {
        let mut s = sample();
        s.contenders.remove(0);
        assert_eq!(s.ratios(0), [None, None, None]);
    }
}
