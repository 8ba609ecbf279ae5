//! What was measured, and what follows from it. This is also the JSON file.

use crate::machine::Machine;
use crate::scenario::{Cpus, Figure};
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
    /// Rounds asked for.
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
    /// Each round's figures.
    pub rounds: Vec<Vec<Option<f64>>>,
    /// What went wrong in rounds that have no figures.
    pub failures: Vec<String>,
    /// The best round, for each figure by itself.
    pub best: Vec<Option<f64>>,
    /// The middle round, for each figure by itself.
    pub median: Vec<Option<f64>>,
}

impl ContenderResults {
    /// One that has not been measured yet.
    pub fn new(name: &'static str, title: &'static str, missing: Option<String>) -> Self {
        Self { name, title, missing, rounds: vec![], failures: vec![], best: vec![], median: vec![] }
    }

    /// Adds a round and brings best and median up to date.
    pub fn add(&mut self, figures: &[Figure], round: Vec<Option<f64>>) {
        self.rounds.push(round);
        let mut sorted = figures.iter().enumerate().map(|(i, figure)| {
            let mut values: Vec<f64> = self.rounds.iter().filter_map(|r| *r.get(i)?).collect();
            values.sort_by(f64::total_cmp);
            if figure.more_is_better {
                values.reverse();
            }
            values
        });
        (self.best, self.median) = sorted.by_ref().map(|v| (v.first().copied(), v.get(v.len() / 2).copied())).unzip();
    }
}

impl ScenarioResults {
    /// For each contender, lasthop's best divided by its best; nothing for lasthop itself and where one is unknown.
    pub fn ratios(&self, figure: usize) -> Vec<Option<f64>> {
        let best = |c: &ContenderResults| c.best.get(figure).copied().flatten();
        let ours = self.contenders.iter().find(|c| c.name == "lasthop").and_then(best);
        let ratio = |c: &ContenderResults| match (ours, best(c)) {
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

    /// lasthop, a slower peer, a missing and a failing one.
    pub fn sample() -> ScenarioResults {
        let contender = |name, rounds: &[[f64; 2]]| {
            let mut c = ContenderResults::new(name, name, None);
            rounds.iter().for_each(|r| c.add(&FIGURES, r.iter().copied().map(Some).collect()));
            c
        };
        let mut failing = contender("failing", &[]);
        failing.failures.push("it\nfell".into());
        let missing = ContenderResults::new("absent", "absent", Some("no such program".into()));
        let contenders = vec![
            contender("lasthop", &[[15.0, 60.0], [20.0, 50.0], [18.0, 55.0]]),
            contender("peer", &[[10.0, 220.0], [8.0, 200.0], [9.0, 210.0]]),
            missing,
            failing,
        ];
        ScenarioResults { name: "loop", title: "a loop", figures: &FIGURES, contenders }
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
