//! `lasthop-sim`: the scheduling policy on modelled hosts.

use clap::{Args, Parser, Subcommand};
use lasthop_sim::{Costs, PAPER, Report, TODAY, paper, parse_table, today};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// lasthop's scheduling policy, the very code, on hosts that are not at hand, by a virtual clock
///
/// Costs of operations are inputs, each with its source (`lasthop-sim inputs`); everything else comes out. The same
/// inputs and the same seed give the same bytes. docs/simulation.md describes the model and what it leaves out.
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Examples:
  lasthop-sim paper                             the thesis' evaluation beside its values, on stdout
  lasthop-sim paper --out /tmp/paper            the same with its figures as SVG files
  lasthop-sim today --scene cores-1024          one host of today, each mechanism switched off alone
  lasthop-sim inputs today > my.json            today's costs, to be changed …
  lasthop-sim today --costs my.json --seed 2    … and used"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play the thesis' evaluation (§4.5) on its 32-core server, beside KVM's vhost-net and Xen's driver domain
    Paper {
        #[command(flatten)]
        run: Run,
    },
    /// Play hosts of 128 and 1024 cores with 1000 VMs and bursts, and switch each mechanism off alone
    Today {
        #[command(flatten)]
        run: Run,
        /// Only this scene; may be given several times
        #[arg(long = "scene", value_name = "NAME", value_parser = today::SCENES.map(|scene| scene.name))]
        scenes: Vec<String>,
    },
    /// Print the costs that a set uses, each with its unit and its source
    Inputs {
        /// Which set's
        #[arg(value_parser = ["paper", "today"])]
        set: String,
        /// As a Markdown table instead of the JSON file that --costs takes
        #[arg(long)]
        table: bool,
        /// Put the table into this Markdown file, between its two `<!-- lasthop-sim inputs-SET: … -->` lines
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Run {
    /// Directory for the text and its figures; without it, the text goes to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Put the text into this Markdown file, between its two `<!-- lasthop-sim …: … -->` lines, and the figures into the
    /// directory beside it of the same name
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    record: Option<PathBuf>,
    /// Costs to use instead of the built-in ones: a file as `lasthop-sim inputs` prints it
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Run {
    fn costs(&self, built_in: &str) -> Result<Costs, String> {
        let Some(file) = &self.costs else { return Costs::parse(built_in) };
        let name = file.display();
        let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {name}: {e}"))?;
        Costs::parse(&text).map_err(|e| format!("{name}: {e}"))
    }

    fn deliver(&self, report: &Report) -> Result<(), String> {
        match (&self.out, &self.record) {
            (Some(dir), _) => report.write(dir),
            (_, Some(file)) => report.record(file),
            _ => {
                print!("{}", report.text.replace("DRAWINGS/", ""));
                Ok(())
            }
        }
    }
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Paper { run } => play_paper(&run),
        Command::Today { run, scenes } => play_today(&run, &scenes),
        Command::Inputs { set, table, record } => show_inputs(&set, table, record.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("lasthop-sim: {why}");
            ExitCode::FAILURE
        }
    }
}

fn play_paper(run: &Run) -> Result<(), String> {
    let costs = run.costs(PAPER)?;
    let results = paper::Results::play(&costs, run.seed, |what| eprintln!("{what} …"));
    run.deliver(&paper::report(&results, run.seed))
}

fn play_today(run: &Run, chosen: &[String]) -> Result<(), String> {
    let costs = run.costs(TODAY)?;
    let scenes = today::SCENES.into_iter().filter(|s| chosen.is_empty() || chosen.iter().any(|c| c == s.name));
    let played: Vec<_> = scenes
        .map(|scene| {
            eprintln!("{} …", scene.title);
            let rows = today::ABLATIONS.map(|(name, on)| today::play(&scene, &costs, name, on, run.seed));
            (scene, rows.to_vec())
        })
        .collect();
    run.deliver(&today::report(&played, run.seed))
}

fn show_inputs(set: &str, as_table: bool, record: Option<&Path>) -> Result<(), String> {
    let (text, name) = if set == "paper" { (PAPER, "inputs-paper") } else { (TODAY, "inputs-today") };
    if !as_table && record.is_none() {
        print!("{text}");
        return Ok(());
    }
    let inputs = parse_table(text)?;
    let mut rows = String::from("| cost | value | what | source |\n|---|---:|---|---|\n");
    for (name, meaning) in Costs::MEANING {
        let Some(input) = inputs.get(*name) else { continue };
        rows += &format!("| `{name}` | {} {} | {} | {} |\n", input.value, input.unit, meaning.trim(), input.source);
    }
    match record {
        Some(file) => Report { name, text: rows, drawings: Vec::new() }.record(file),
        None => {
            print!("{rows}");
            Ok(())
        }
    }
}
