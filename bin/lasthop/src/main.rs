//! The command people type: `lasthop run` starts the switch, everything else asks a running one.

mod run;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "lasthop", version, about = "The last-hop switch for virtual machines")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the switch in the foreground until SIGTERM
    Run(run::RunArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(args),
    }
}
