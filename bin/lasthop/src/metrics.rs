//! `lasthop metrics`: what the other commands show, in the format that Prometheus reads, once or for whoever asks over HTTP.
//!
//! It is a client of the API like any command, with a process of its own: nothing that matters to packets listens to a network. A user
//! who may look only (`lasthop run --read-group`) is enough for it.

mod devices;
mod http;
mod offload;
mod text;

use crate::client::{CliError, Instance};
use crate::device::Found;
use crate::list::{Figures, figures};
use clap::Args;
use lasthop_api::{ConntrackStats, SwitchProxy};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Answer `GET /metrics` here until Ctrl-C: `unix:PATH`, or an address and a port such as 127.0.0.1:9477. Anybody who reaches it may
    /// read
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH")]
    listen: Option<http::Listen>,
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
}

/// How long a device may take to answer. One that hangs has no figures then, and the host still has its own in the ten seconds that scrapers wait.
const OF_DEVICE: Duration = Duration::from_secs(2);

/// All that is told.
#[derive(Debug)]
struct Told {
    figures: Figures,
    connections: ConntrackStats,
    devices: Vec<Found>,
}

/// Asks a running instance, and its devices.
fn ask(run_dir: &Path) -> Result<Told, CliError> {
    let mut instance = Instance::connect(run_dir)?;
    let figures = figures(&mut instance)?;
    let connections = instance.ask(async |c| c.conntrack_stats().await)?;
    let mut devices = crate::device::found(run_dir);
    crate::device::ask_all(&mut devices, run_dir, false, OF_DEVICE);
    Ok(Told { figures, connections, devices })
}

pub fn metrics(args: &MetricsArgs) -> Result<String, CliError> {
    match &args.listen {
        Some(listen) => http::serve(listen, &args.run_dir).map(|()| String::new()),
        None => ask(&args.run_dir).map(|told| text::write(Some(&told))),
    }
}
