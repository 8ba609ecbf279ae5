//! `lasthop log`: which lines of the log are written, while it is written.

use crate::SharedArgs;
use crate::client::CliError;
use crate::table::{Align, Table};
use clap::{Args, Subcommand};
use lasthop_api::{LogLevel, LogLevelList, SwitchProxy};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LogArgs {
    #[command(subcommand)]
    command: Option<LogCommand>,
    #[command(flatten)]
    shared: SharedArgs,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Write lines from this level on
    ///
    /// Until it is told otherwise, or `lasthop run` ends: a control that is replaced goes on so. `default` is what RUST_LOG said at the start.
    #[command(
        after_help = "Examples:\n  lasthop log level debug\n  lasthop log level control=debug run=warn\n  lasthop log level default"
    )]
    Level {
        /// error, warn, info, debug, trace or default; for `run` (the supervisor, which writes the switch's lines), for `control`, or for both
        #[arg(value_name = "[PROCESS=]LEVEL", required = true)]
        levels: Vec<String>,
        #[command(flatten)]
        shared: SharedArgs,
    },
}

/// Processes that can be told.
const PROCESSES: [&str; 2] = ["run", "control"];

pub fn log(args: &LogArgs) -> Result<String, CliError> {
    let (levels, shared) = match &args.command {
        None => (Vec::new(), &args.shared),
        Some(LogCommand::Level { levels, shared }) => (levels.iter().flat_map(|word| wanted(word)).collect(), shared),
    };
    let mut instance = shared.instance()?;
    let list = instance.ask(async |c| c.log_levels(&levels).await)?;
    shared.show(&list, |LogLevelList { levels }| {
        let mut table = Table::new(&[("PROCESS", Align::Left), ("LEVEL", Align::Left)]);
        levels.iter().for_each(|one| table.row(vec![one.process.clone(), one.level.clone()]));
        table.render()
    })
}

/// Of one process, or of all.
fn wanted(word: &str) -> Vec<LogLevel> {
    let of = |process: &str, level: &str| LogLevel { process: process.into(), level: level.into() };
    match word.split_once('=') {
        Some((process, level)) => vec![of(process, level)],
        None => PROCESSES.iter().map(|process| of(process, word)).collect(),
    }
}
