//! `lasthop top`: what each port carries and drops a second, and which processor time it takes, from the figures that `lasthop metrics`
//! tells.

mod rates;
mod screen;

use crate::client::{CliError, Instance};
use crate::list::figures;
use clap::Args;
use lasthop_sys::SignalFd;
pub use rates::short;
use rates::{Rates, Sort};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2, value_parser = crate::size::whole::<u64>(1..=3600))]
    delay: u64,
    /// End after so many looks
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = crate::size::whole::<u64>(1..=u64::MAX))]
    count: Option<u64>,
    /// What comes first
    #[arg(long, value_name = "name|packets|bytes|drops|cpu", default_value = "packets")]
    sort: Sort,
    /// A table each interval, though there is a terminal
    #[arg(long)]
    plain: bool,
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
}

/// Until it was looked so often, until a key or a signal ends it, or until nobody reads it any more.
pub fn top(args: &TopArgs) -> Result<(), CliError> {
    // Before any thread is started.
    let signals = SignalFd::new().map_err(|e| CliError::new(format!("signals: {e}")))?;
    let mut instance = Instance::connect(&args.run_dir)?;
    let mut rates = Rates::new(figures(&mut instance)?, Instant::now());
    if !args.plain && io::stdout().is_terminal() && io::stdin().is_terminal() {
        return screen::run(args, &mut instance, &mut rates, &signals);
    }
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        let until = Instant::now() + Duration::from_secs(args.delay);
        while Instant::now() < until {
            if signals.read().is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        rates.update(figures(&mut instance)?, Instant::now());
        let written = writeln!(io::stdout(), "{}{}", rates.table(args.sort), rates.processes());
        match written.and_then(|()| io::stdout().flush()) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(e) => return Err(CliError::new(format!("cannot write to standard output: {e}"))),
            Ok(()) => {}
        }
    }
    Ok(())
}
