//! `lasthop-bench compare`: lasthop and its peers on this machine, measured in turns.

mod acl;
mod compare;
mod contender;
mod cpus;
mod distance;
mod figure;
mod files;
mod guests;
mod machine;
mod paper;
mod pipelines;
mod plot;
mod record;
mod results;
mod round;
mod scenario;
mod switch;
mod table;
mod target;
mod work;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use compare::Run;
use contender::Contender;
use cpus::Cpus;
use files::Files;
use lasthop_harness::stop;
use rustix::thread::{CpuSet, sched_setaffinity};
use scenario::Scenario;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use stop::{Failure, Outcome, failed};

/// Measurements of lasthop beside its peers.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run lasthop and its peers in turns, several rounds, and show the best of each
    ///
    /// lasthop's binaries are taken from LASTHOP_BIN_DIR, from beside this program, or from the release build. Tables go
    /// to stdout; behind a peer's figure stands, in brackets, lasthop's divided by it.
    ///
    /// Where a hypervisor moves the two CPUs about, figures compare only when a cache line took about as long from one to
    /// the other and back (about 50 ns in one core, 100 to 400 at one cache, 500 far apart). That is probed around most
    /// measurements; what is compared are rounds at the same distance, and the line below a table says which, and how many of
    /// each contender. Who has fewer than five of them after all rounds, or than --rounds, is measured again, at most twice
    /// as often as there were rounds; so is who failed.
    Compare(Compare),
}

#[derive(clap::Args)]
struct Compare {
    /// One round of one second each and none again, to see that everything works; the figures say little
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "record"])]
    quick: bool,
    /// Rounds; the machine's speed varies, so fewer than five say little
    ///
    /// Contenders that have fewer than five valid ones, or than are asked for, are measured again, up to twice as many times.
    /// Valid is what has all figures, at the distance between the CPUs at which all are compared.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of each measurement, in seconds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=40))]
    seconds: u16,
    /// Before a switch is started, wait until whatever else runs takes less than a tenth of the CPUs, at most so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    quiet: u16,
    /// Only this scenario, or those of this group; may be given several times
    #[arg(long = "scenario", value_name = "NAME", value_parser = PossibleValuesParser::new(scenario::names()))]
    scenarios: Vec<String>,
    /// Only this contender; may be given several times
    #[arg(long = "only", value_name = "NAME", value_parser = PossibleValuesParser::new(Contender::ALL.map(Contender::name)))]
    contenders: Vec<String>,
    /// Directory for compare.json and one SVG file for each scenario; a run that is stopped writes what it has
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Put the tables into this Markdown file, between its two `<!-- lasthop-bench: … -->` lines; instead of DIR, the
    /// directory beside it of the same name gets the other files, which its pictures are. A run that is stopped changes
    /// none of them
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    record: Option<PathBuf>,
    /// CPU of the DPDK guests; VMs use both
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    guest_cpu: usize,
    /// CPU of the switch
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    switch_cpu: usize,
}

fn main() -> ExitCode {
    let Command::Compare(arguments) = Arguments::parse().command;
    match compare(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Stopped) => {
            eprintln!("lasthop-bench: stopped");
            // As a shell would report the signal.
            ExitCode::from(130)
        }
        Err(Failure::Failed(why)) => {
            eprintln!("lasthop-bench: {why}");
            ExitCode::from(2)
        }
    }
}

/// True when every round of everyone who takes part has its figures.
fn compare(arguments: &Compare) -> Outcome<bool> {
    if !rustix::process::geteuid().is_root() {
        return Err(failed("needs root for huge pages, network namespaces and TAP devices: run it with sudo"));
    }
    let cpus = Cpus { guests: arguments.guest_cpu, switch: arguments.switch_cpu };
    stay_on(cpus)?;
    if let Some(file) = &arguments.record {
        record::check(file)?;
    }
    lasthop_guestmem::install_fault_handler();
    // Failures of the VM harness are reported where they are caught.
    std::panic::set_hook(Box::new(|_| ()));
    stop::watch()?;
    let chosen = |s: &Scenario| {
        arguments.scenarios.is_empty() || arguments.scenarios.iter().any(|n| n == s.name || n == s.group())
    };
    let plan = compare::Plan {
        scenarios: scenario::all().copied().filter(chosen).collect(),
        contenders: Contender::ALL.into_iter().filter(|c| arguments.contenders.iter().any(|n| n == c.name())).collect(),
        rounds: if arguments.quick { 1 } else { arguments.rounds.into() },
        more: if arguments.quick { 0 } else { 2 * usize::from(arguments.rounds) },
        seconds: if arguments.quick { 1 } else { arguments.seconds.into() },
        cpus,
        quiet: Duration::from_secs(arguments.quiet.into()),
    };
    let Run { results, stopped } = compare::run(&plan);
    if !stopped && let Some(targets) = target::render(&results) {
        println!("targets\n\n{targets}");
    }
    if let Some(papers) = paper::render(&results) {
        println!("the papers' figures\n\n{papers}");
    }
    let mut files = Files::default();
    if let Some(dir) = &arguments.out {
        files.add_results(&results, dir)?;
    }
    if let Some(page) = arguments.record.as_ref().filter(|_| !stopped) {
        files.add_results(&results, &page.with_extension(""))?;
        files.add(page, record::page(&results, page)?);
    }
    files.replace()?;
    if stopped {
        return Err(Failure::Stopped);
    }
    Ok(results.scenarios.iter().flat_map(|s| &s.contenders).all(|c| c.failures.is_empty()))
}

/// Keeps this process and all it starts on the two CPUs.
fn stay_on(cpus: Cpus) -> Outcome<()> {
    let allowed = machine::cpus();
    if cpus.guests == cpus.switch {
        return Err(failed(
            "guests and switch on the same CPU would only wait for each other: see --guest-cpu, --switch-cpu",
        ));
    }
    // Both end up in 64-bit masks.
    if let Some(cpu) = [cpus.guests, cpus.switch].into_iter().find(|c| *c >= 64 || !allowed.contains(c)) {
        return Err(failed(format!("there is no CPU {cpu} among the first 64 that this process may use")));
    }
    let mut set = CpuSet::new();
    set.set(cpus.guests);
    set.set(cpus.switch);
    sched_setaffinity(None, &set).map_err(failed)
}
