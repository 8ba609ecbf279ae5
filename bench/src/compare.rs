//! Rounds over all contenders, one after the other in each: the machine's speed changes with time, and so everyone meets
//! the same weather.

use crate::distance::{self, Distance};
use crate::guests::load::Stage;
use crate::machine::{self, Machine};
use crate::results::{ContenderResults, Results, Round, ScenarioResults};
use crate::scenario::{Contender, Cpus, Scenario};
use crate::stop::{Failure, Outcome, check, failed};
use crate::{plot, table};
use indicatif::{ProgressBar, ProgressStyle};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

/// What to compare.
pub struct Plan {
    /// In this order.
    pub scenarios: Vec<Scenario>,
    /// Only these; all when empty.
    pub contenders: Vec<Contender>,
    /// Rounds.
    pub rounds: usize,
    /// Rounds after those at most, of contenders that have too few at the distance of the CPUs at which they are compared.
    pub more: usize,
    /// Length of each measurement.
    pub seconds: u64,
    /// The CPUs to use.
    pub cpus: Cpus,
    /// Where JSON and SVG files go.
    pub out: Option<PathBuf>,
}

/// Runs the plan; prints each table when its scenario is through. When the user stops it, what has been measured is
/// shown and written all the same.
pub fn run(plan: &Plan) -> Outcome<Results> {
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
        stopped = rounds(plan, group, here, &bar) == Err(Failure::Stopped);
        bar.suspend(|| here.iter().for_each(|r| println!("{}", table::render(r))));
        if stopped {
            break;
        }
    }
    bar.finish_and_clear();
    results.machine.finish();
    if let Some(dir) = &plan.out {
        write(&results, dir)?;
    }
    if stopped { Err(Failure::Stopped) } else { Ok(results) }
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

/// Rounds at one distance that are enough to take the best of: more would cost a run on a machine that never rests up to
/// twice its time, for little.
fn enough(rounds: usize) -> usize {
    rounds.min(3).max(rounds / 2)
}

fn rounds(plan: &Plan, group: &[Scenario], results: &mut [ScenarioResults], bar: &ProgressBar) -> Outcome<()> {
    for n in 1..=plan.rounds {
        let present = |r: &ScenarioResults, i: usize| r.contenders[i].missing.is_none();
        let wanted = choose(results, present);
        round(plan, &format!("{n}/{}", plan.rounds), group, results, &wanted, bar)?;
    }
    for n in 1..=plan.more {
        let wanted = choose(results, |r, i| r.is_short(i, enough(plan.rounds)));
        let measurements = wanted.iter().flatten().count();
        if measurements == 0 {
            break;
        }
        bar.inc_length(measurements as u64);
        round(plan, &format!("again {n}/{}", plan.more), group, results, &wanted, bar)?;
    }
    Ok(())
}

/// By the scenarios, their contenders to be measured.
fn choose(results: &[ScenarioResults], wanted: impl Fn(&ScenarioResults, usize) -> bool) -> Vec<Vec<usize>> {
    results.iter().map(|r| (0..r.contenders.len()).filter(|i| wanted(r, *i)).collect()).collect()
}

/// One round of those who are wanted; `which` says which.
fn round(
    plan: &Plan,
    which: &str,
    group: &[Scenario],
    results: &mut [ScenarioResults],
    wanted: &[Vec<usize>],
    bar: &ProgressBar,
) -> Outcome<()> {
    for who in Contender::ALL {
        let mut stage = None;
        for ((scenario, results), wanted) in group.iter().zip(&mut *results).zip(wanted) {
            let contender = wanted.iter().copied().find(|i| results.contenders[*i].name == who.name());
            let Some(contender) = contender else { continue };
            check()?;
            let what = format!("{} {which}: {}", scenario.name, who.title());
            bar.set_message(what.clone());
            match measure(plan, scenario, who, &mut stage) {
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

fn write(results: &Results, dir: &PathBuf) -> Outcome<()> {
    let at = |file: String| dir.join(file);
    let json = serde_json::to_string_pretty(results).map_err(failed)?;
    let file = at("compare.json".into());
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&file, json + "\n"))
        .map_err(|e| failed(format!("cannot write {}: {e}", file.display())))?;
    for scenario in results.scenarios.iter().filter(|s| s.contenders.iter().any(|c| !c.rounds.is_empty())) {
        let file = at(format!("{}.svg", scenario.name));
        plot::draw(scenario, &file).map_err(|e| failed(format!("cannot draw {}: {e}", file.display())))?;
    }
    eprintln!("written: {}/compare.json and an SVG file for each scenario", dir.display());
    Ok(())
}
