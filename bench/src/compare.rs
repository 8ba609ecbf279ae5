//! Rounds over all contenders, one after the other in each: the machine's speed changes with time, and so everyone meets
//! the same weather.

use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::distance::{self, Distance};
use crate::guests::load::Stage;
use crate::machine::{self, Machine};
use crate::results::{ContenderResults, Results, ScenarioResults};
use crate::round::Round;
use crate::scenario::Scenario;
use crate::table;
use indicatif::{ProgressBar, ProgressStyle};
use lasthop_harness::stop::{Failure, Outcome, check, failed};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// What to compare.
pub struct Plan {
    /// In this order.
    pub scenarios: Vec<Scenario>,
    /// Only these; all when empty.
    pub contenders: Vec<Contender>,
    /// Rounds.
    pub rounds: usize,
    /// Rounds after those at most, of contenders that have too few valid ones.
    pub more: usize,
    /// Length of each measurement.
    pub seconds: u64,
    /// The CPUs to use.
    pub cpus: Cpus,
    /// How long to wait before each measurement for others to be quiet, at most.
    pub quiet: Duration,
}

/// What a run came to.
pub struct Run {
    /// What was measured, if not all then up to where the user stopped it.
    pub results: Results,
    /// Whether he did.
    pub stopped: bool,
}

/// Measures a contender once in a scenario, on the stage that an earlier scenario of the same setup may have left.
type Play<'a> = &'a mut dyn FnMut(&Scenario, Contender, &mut Option<Stage>) -> Outcome<Round>;

/// Runs the plan; prints each table when its scenario is through, or when the user stops it.
pub fn run(plan: &Plan) -> Run {
    let mut results = Results {
        version: env!("CARGO_PKG_VERSION"),
        machine: Machine::look(),
        cpus: plan.cpus,
        rounds: plan.rounds,
        seconds: plan.seconds,
        scenarios: plan.scenarios.iter().map(|s| empty(plan, s)).collect(),
    };
    let load = results.machine.load_before;
    if load > 0.5 {
        eprintln!("note: the load average is {load}; figures that count want a machine with nothing else to do");
    }
    let measured = results.scenarios.iter().flat_map(|s| &s.contenders).filter(|c| c.missing.is_none()).count();
    let bar = progress(measured * plan.rounds);
    let mut stopped = false;
    let mut rest = &mut results.scenarios[..];
    for group in plan.scenarios.chunk_by(Scenario::shares_with) {
        let (here, later) = std::mem::take(&mut rest).split_at_mut(group.len());
        rest = later;
        let mut play = |scenario: &Scenario, who, stage: &mut _| measure(plan, scenario, who, stage);
        stopped = rounds(plan, group, here, &bar, &mut play) == Err(Failure::Stopped);
        bar.suspend(|| here.iter().for_each(|r| println!("{}", table::render(r))));
        if stopped {
            break;
        }
    }
    bar.finish_and_clear();
    results.machine.finish();
    Run { results, stopped }
}

fn empty(plan: &Plan, scenario: &Scenario) -> ScenarioResults {
    let wanted = |c: &&Contender| plan.contenders.is_empty() || plan.contenders.contains(c);
    let no_guests = machine::missing_guests(scenario.work);
    let contenders = scenario.contenders.iter().filter(wanted).map(|c| {
        let missing = no_guests.clone().or_else(|| machine::missing(*c, scenario.work));
        ContenderResults::new(c.name(), c.title(), missing)
    });
    ScenarioResults::new(scenario, contenders.collect())
}

/// Valid rounds to take the best of, unless fewer are asked for at all.
const ENOUGH: usize = 5;

/// The rounds of scenarios that share a stage: those asked for, then more of whoever has too few valid ones.
fn rounds(
    plan: &Plan,
    group: &[Scenario],
    results: &mut [ScenarioResults],
    bar: &ProgressBar,
    play: Play,
) -> Outcome<()> {
    for n in 1..=plan.rounds {
        let wanted = choose(results, |r, i| r.contenders[i].missing.is_none());
        round(&format!("{n}/{}", plan.rounds), group, results, &wanted, bar, play)?;
    }
    for n in 1..=plan.more {
        let wanted = choose(results, |r, i| r.is_short(i, ENOUGH.min(plan.rounds)));
        let measurements = wanted.iter().flatten().count();
        if measurements == 0 {
            break;
        }
        bar.inc_length(measurements as u64);
        round(&format!("again {n}/{}", plan.more), group, results, &wanted, bar, play)?;
    }
    Ok(())
}

/// By the scenarios, their contenders to be measured.
fn choose(results: &[ScenarioResults], wanted: impl Fn(&ScenarioResults, usize) -> bool) -> Vec<Vec<usize>> {
    results.iter().map(|r| (0..r.contenders.len()).filter(|i| wanted(r, *i)).collect()).collect()
}

/// One round of those who are wanted; `which` says which.
fn round(
    which: &str,
    group: &[Scenario],
    results: &mut [ScenarioResults],
    wanted: &[Vec<usize>],
    bar: &ProgressBar,
    play: Play,
) -> Outcome<()> {
    for who in Contender::ALL {
        let mut stage = None;
        for ((scenario, results), wanted) in group.iter().zip(&mut *results).zip(wanted) {
            let contender = wanted.iter().copied().find(|i| results.contenders[*i].name == who.name());
            let Some(contender) = contender else { continue };
            check()?;
            let what = format!("{} {which}: {}", scenario.name, who.title());
            bar.set_message(what.clone());
            match play(scenario, who, &mut stage) {
                Ok(round) => {
                    say(bar, &format!("{what}: {}", describe(scenario, &round)));
                    results.add(contender, round);
                }
                Err(Failure::Stopped) => return Err(Failure::Stopped),
                Err(Failure::Failed(why)) => {
                    say(bar, &format!("{what}: {why}"));
                    results.contenders[contender].failures.push(why);
                }
            }
            bar.inc(1);
        }
    }
    Ok(())
}

fn describe(scenario: &Scenario, round: &Round) -> String {
    let figures = scenario.figures().iter().zip(&round.figures).map(|(figure, value)| {
        let value = value.map_or("—".into(), table::number);
        format!("{value} {}", figure.unit)
    });
    let figures = figures.collect::<Vec<_>>().join(", ");
    match distance::range(&round.round_trips_ns) {
        Some(trips) => format!("{figures}; {} ({trips})", round.distance.map_or("CPUs moved", Distance::name)),
        None => figures,
    }
}

/// The test harness that boots VMs reports failures by panicking; here they are a contender's failed round.
fn measure(plan: &Plan, scenario: &Scenario, who: Contender, stage: &mut Option<Stage>) -> Outcome<Round> {
    // A stage that is there already plays on, and is nothing to wait for.
    if stage.is_none() && !machine::wait_for_quiet(plan.quiet)? {
        eprintln!("note: others were busy for {:?}, measured all the same", plan.quiet);
    }
    let result = catch_unwind(AssertUnwindSafe(|| scenario.measure(who, plan.cpus, plan.seconds, stage)));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(failed(text.unwrap_or("it panicked")))
    });
    // A stop that somebody else noticed first, as a failure of his.
    check().and(result)
}

fn progress(measurements: usize) -> ProgressBar {
    let bar = ProgressBar::new(measurements as u64);
    let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {pos}/{len} {wide_msg} (about {eta} left)");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    // Seldom, so that the bar takes nothing from what is measured.
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

fn say(bar: &ProgressBar, line: &str) {
    bar.suspend(|| eprintln!("{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::all;

    /// One cache and far apart.
    const NEAR: f64 = 100.0;
    const FAR: f64 = 500.0;

    /// Plays a script: what the nth measurement of each contender of `size-64-split` comes to. Returns who was measured, in
    /// order, and the results.
    fn played(
        plan: [usize; 2],
        script: impl Fn(Contender, usize) -> Outcome<Round>,
    ) -> (Vec<&'static str>, ScenarioResults) {
        let scenario = *all().find(|s| s.name == "size-64-split").unwrap();
        let [rounds_wanted, more] = plan;
        let cpus = Cpus { guests: 0, switch: 1 };
        let plan = Plan {
            scenarios: vec![scenario],
            contenders: vec![],
            rounds: rounds_wanted,
            more,
            seconds: 1,
            cpus,
            quiet: Duration::ZERO,
        };
        let contenders = scenario.contenders.iter().map(|c| ContenderResults::new(c.name(), c.title(), None));
        let mut results = [ScenarioResults::new(&scenario, contenders.collect())];
        let mut measured = Vec::new();
        let mut play = |_: &Scenario, who: Contender, _: &mut Option<Stage>| {
            let before = measured.iter().filter(|name| **name == who.name()).count();
            measured.push(who.name());
            script(who, before)
        };
        rounds(&plan, &[scenario], &mut results, &ProgressBar::hidden(), &mut play).unwrap();
        let [results] = results;
        (measured, results)
    }

    fn at(trip: f64) -> Outcome<Round> {
        Ok(Round::new(vec![Some(1.0); 4], vec![trip]))
    }

    fn count(measured: &[&str], name: &str) -> usize {
        measured.iter().filter(|n| **n == name).count()
    }

    #[test]
    fn everybody_takes_turns() {
        let (measured, results) = played([5, 10], |_, _| at(NEAR));
        assert_eq!(measured, ["lasthop", "ovs-flows", "dpdk-vhost"].repeat(5), "and not once more");
        assert!(results.contenders.iter().all(|c| c.valid_rounds(results.distance) == 5));
        assert_eq!(played([1, 2], |_, _| at(NEAR)).0.len(), 3, "fewer are asked for");
        assert_eq!(played([7, 2], |_, _| at(NEAR)).0.len(), 21, "more are asked for");
    }

    #[test]
    fn rounds_at_another_distance_or_without_result_are_made_up_for() {
        let (measured, results) = played([5, 10], |who, n| match (who, n) {
            (Contender::Lasthop, 0 | 3) => at(FAR),
            (Contender::DpdkVhost, 1..=4) => Err(failed("it fell")),
            _ => at(NEAR),
        });
        assert_eq!(["lasthop", "ovs-flows", "dpdk-vhost"].map(|name| count(&measured, name)), [7, 5, 9]);
        assert_eq!(measured[15..19], ["lasthop", "dpdk-vhost", "lasthop", "dpdk-vhost"], "in turns");
        assert!(results.contenders.iter().all(|c| c.valid_rounds(results.distance) == 5));
    }

    #[test]
    fn a_run_ends_on_whatever_machine() {
        let moving = |_, n: usize| {
            at(if n.is_multiple_of(5) {
                NEAR
            } else if n.is_multiple_of(2) {
                FAR
            } else {
                50.0
            })
        };
        assert!(played([5, 10], moving).0.len() <= 3 * 15);
        let (measured, results) = played([5, 10], |who, _| match who {
            Contender::Ovs(_) => Err(failed("it never starts")),
            _ => at(NEAR),
        });
        assert_eq!(count(&measured, "ovs-flows"), 6, "given up");
        assert_eq!(results.contenders[1].failures.len(), 6);
        let never = |who, _| if who == Contender::Lasthop { at(NEAR) } else { at(FAR) };
        assert_eq!(played([5, 10], never).0.len(), 3 * 15, "no distance at which everybody was");
    }
}
