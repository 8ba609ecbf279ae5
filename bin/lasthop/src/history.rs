//! `lasthop history`: what each port carried and dropped, minute by minute, for a day or more, in a file of a fixed length.
//!
//! `record` is a client of the API with a process of its own; `show` reads the file alone, whether or not a lasthop runs.

mod file;
mod record;
mod show;

use crate::client::{CliError, Instance, signalled_before};
use crate::list::{Figures, figures};
use clap::{Args, Subcommand};
use file::{History, Shape};
use lasthop_sys::SignalFd;
use lasthop_text::counted;
use record::Recorder;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the package's service keeps it.
const FILE: &str = "/var/lib/lasthop-history/history";
const MINUTES_A_DAY: u32 = 1440;

#[derive(Debug, Subcommand)]
pub enum HistoryCommand {
    /// Write down what every port does, until Ctrl-C
    ///
    /// It needs no more rights than to look. The file has its whole length from the beginning: 7.5 MB for 64 ports and a day. A damaged one is put
    /// aside.
    #[command(
        after_help = "Examples:\n  lasthop history record\n  lasthop history record --file /srv/history --days 7 --ports 32"
    )]
    Record(RecordArgs),
    /// Show when ports were busy, dropped, or were down
    #[command(after_help = "Examples:\n  lasthop history show\n  lasthop history show vm1 --since 2h\n  \
        lasthop history show vm1 --since 10m --step 1 --json")]
    Show(show::ShowArgs),
}

#[derive(Debug, Args)]
pub struct RecordArgs {
    /// The file
    #[arg(long, value_name = "FILE", default_value = FILE)]
    file: PathBuf,
    /// For how long it has room, if it is made now
    #[arg(long, value_name = "DAYS", default_value_t = 1, value_parser = crate::size::whole::<u32>(1..=31))]
    days: u32,
    /// For how many ports it has room, if it is made now
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = crate::size::whole::<u32>(1..=4096))]
    ports: u32,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = crate::size::whole::<u64>(1..=60))]
    interval: u64,
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
}

pub fn history(command: &HistoryCommand) -> Result<String, CliError> {
    match command {
        HistoryCommand::Record(args) => record(args),
        HistoryCommand::Show(args) => show::show(args),
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

fn ask(instance: &mut Option<Instance>, run_dir: &Path) -> Result<Figures, CliError> {
    let mut asked = match instance.take() {
        Some(instance) => instance,
        None => Instance::connect(run_dir)?,
    };
    let figures = figures(&mut asked)?;
    *instance = Some(asked);
    Ok(figures)
}

/// Until SIGINT or SIGTERM.
fn record(args: &RecordArgs) -> Result<String, CliError> {
    // Before any thread is started.
    let signals = SignalFd::new().map_err(|e| CliError::new(format!("signals: {e}")))?;
    let path = args.file.display();
    let failed =
        |e: std::io::Error| CliError::new(format!("{path}: {e}; name another file with --file, where there is room"));
    let wanted = Shape { minutes: args.days * MINUTES_A_DAY, ports: args.ports };
    let (history, aside) = History::open_or_make(&args.file, wanted).map_err(failed)?;
    if let Some((aside, why)) = aside {
        eprintln!("{path}: {why}; it is {} now, and a new one is begun", aside.display());
    }
    let shape = history.shape;
    if shape != wanted {
        let (minutes, ports) = (counted(shape.minutes.into(), "minute"), counted(shape.ports.into(), "port"));
        eprintln!("{path} has room for {minutes} of {ports}, and goes on so; for another, move it away");
    }
    let (mut recorder, damaged) = Recorder::new(history, now_ms()).map_err(failed)?;
    if damaged > 0 {
        eprintln!("{path}: {} of a port damaged, and free now", counted(damaged as u64, "entry"));
    }
    let (mut instance, mut away, mut full) = (None, false, false);
    let every = Duration::from_secs(args.interval);
    let mut next = Instant::now();
    eprintln!("ready: {path}");
    loop {
        if Instant::now() >= next {
            next = Instant::now() + every;
            let asked = ask(&mut instance, &args.run_dir);
            match &asked {
                Err(e) if !std::mem::replace(&mut away, true) => eprintln!("lasthop: {e}; trying again"),
                Err(_) => {}
                Ok(_) => away = false,
            }
            match recorder.look(asked.ok(), now_ms()) {
                Err(e) if !std::mem::replace(&mut full, true) => eprintln!("lasthop: {path}: {e}; trying again"),
                Err(_) => {}
                Ok(()) => full = false,
            }
        }
        if signalled_before(&signals, next)? {
            return Ok(String::new());
        }
    }
}
