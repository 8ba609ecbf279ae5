//! `lasthop doctor`: what is wrong, what shows it, and what to do about it.
//!
//! It looks twice, some seconds apart: a counter says how much was lost since the switch began, and not whether anything is lost now. What goes
//! on is a finding; what is over is told as such. The checks are pure functions over what the API said, one file a family:
//!
//! | file | looks at |
//! |---|---|
//! | `facts` | both looks, and what rose between them |
//! | `finding` | a finding, and how it is written |
//! | `engines` | CPUs that do ports' work |
//! | `devices` | devices of `--device`: cut off, or with a DMA engine that hangs |
//! | `front_end` | VMs: memory, drivers, rings, buffers |
//! | `interface` | uplinks and devices that are guests: cables, segments, MTUs |
//! | `rules` | what somebody has told ports and lists: denials, forged addresses, VLANs, cables that are pulled |
//! | `load` | rates, receivers, mirrors |
//! | `bounds` | bounds of processor time |
//! | `no_effect` | settings that do nothing where a port is, or keep its guest away |
//! | `minimums` | minimum rates, and what uplinks take |
//! | `tables` | addresses used twice, tables that are full |
//! | `translation` | guests with an IOMMU of their own: pages that are not answered, not granted, or stale |
//! | `offload` | flows in the kernel or a card |
//! | `moves` | guests on their way to another host, which is no fault |
//! | `processes` | programs: versions, restarts, rights, and whether what is told is remembered |
//! | `open_vswitch` | Open vSwitch, where it decides |
//! | `unknown` | what cannot be known, and drops that are over |

mod bounds;
mod devices;
mod engines;
mod facts;
mod finding;
mod front_end;
mod interface;
mod load;
mod minimums;
mod moves;
mod no_effect;
mod offload;
mod open_vswitch;
mod processes;
mod rules;
mod tables;
mod translation;
mod unknown;

use crate::SharedArgs;
use crate::client::{CliError, Instance, PATIENCE};
use crate::list::{Figures, figures};
use clap::Args;
use facts::{Facts, Seen};
use finding::Finding;
use lasthop_api::SwitchProxy;
use lasthop_text::counted;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only what concerns this port or uplink [default: everything]
    #[arg(add = crate::completions::ports())]
    port: Option<String>,
    /// How long to look, in seconds: what was lost meanwhile is a finding
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 2, value_parser = crate::size::whole::<u64>(1..=3600))]
    seconds: u64,
    /// What was lost since the switch started counts like what is lost now; look once
    #[arg(long, conflicts_with = "seconds")]
    since_start: bool,
    #[command(flatten)]
    shared: SharedArgs,
}

/// `lasthop doctor --json`
#[derive(Debug, Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// What could not be found out, and how to.
    not_known: Vec<String>,
    /// What was lost before, and is not now.
    over: Vec<String>,
    /// Guests that are being moved to another host, or have been: no fault.
    moves: Vec<String>,
    /// How many ports, uplinks among them, were looked at.
    ports: usize,
}

/// What is to be printed, and whether anything was found.
pub fn doctor(args: &DoctorArgs) -> Result<(String, bool), CliError> {
    let mut instance = args.shared.instance()?;
    let run_dir = &args.shared.run_dir;
    let before = if args.since_start { Seen::default() } else { look(&mut instance, run_dir)? };
    let begun = Instant::now();
    if let Some(port) = &args.port
        && !args.since_start
        && !before.ports.iter().any(|p| p.name == *port)
    {
        return Err(no_such(&before, port));
    }
    if !args.since_start {
        std::thread::sleep(Duration::from_secs(args.seconds));
    }
    let mut now = look(&mut instance, run_dir)?;
    let seconds = (!args.since_start).then(|| begun.elapsed().as_secs_f64());
    crate::device::ask_all(&mut now.devices, run_dir, true, PATIENCE);
    for device in &mut now.devices {
        device.cable = crate::device::cable_process(run_dir, &device.name);
    }
    if let Some(port) = args.port.as_ref().filter(|port| !now.ports.iter().any(|p| p.name == **port)) {
        return Err(no_such(&now, port));
    }
    let run_dir = run_dir.display().to_string();
    let facts = Facts { before: &before, now: &now, seconds, run_dir: &run_dir, named: args.port.as_deref() };
    let report = report(&facts);
    let found = !report.findings.is_empty();
    let how_long = if args.since_start { None } else { Some(args.seconds) };
    Ok((args.shared.show(&report, |report| render(report, args.port.as_deref(), how_long))?, found))
}

fn no_such(seen: &Seen, port: &str) -> CliError {
    if seen.switch.deciders.as_ref().is_some_and(|deciders| deciders.without.iter().any(|name| name == port)) {
        return CliError::new(format!(
            "Open vSwitch has a port {port}, which is neither a VM's nor an interface here: `lasthop port add {port} SOCKET` for a VM; if it is of no use any more: \
             `ovs-vsctl del-port {port}`"
        ));
    }
    CliError::new(format!("there is no port named {port:?}; `lasthop port list` shows those there are"))
}

/// All that is looked at, once.
fn look(instance: &mut Instance, run_dir: &Path) -> Result<Seen, CliError> {
    let Figures { ports, interfaces, switch } = figures(instance)?;
    let mirrors = instance.ask(async |c| c.mirror_list().await)?.mirrors;
    let connections = instance.ask(async |c| c.conntrack_stats().await)?;
    let ovs_socket = switch.open_vswitch.as_ref().and_then(|_| crate::ovs::socket_fault(run_dir));
    let devices = crate::device::found(run_dir);
    let engines = instance.ask(async |c| c.engine_list().await)?;
    Ok(Seen { ports, interfaces, switch, mirrors, connections, ovs_socket, devices, engines })
}

/// All checks, those first without which the others make little sense.
fn report(facts: &Facts<'_>) -> Report {
    let families = [
        processes::findings(facts),
        open_vswitch::findings(facts),
        devices::findings(facts),
        engines::findings(facts),
        offload::findings(facts),
        front_end::findings(facts),
        translation::findings(facts),
        interface::findings(facts),
        rules::findings(facts),
        tables::findings(facts),
        load::findings(facts),
        bounds::findings(facts),
        minimums::findings(facts),
        no_effect::findings(facts),
    ];
    let concerns = |finding: &Finding| facts.named.is_none_or(|port| finding.concerns(port, facts));
    let findings = families.into_iter().flatten().filter(concerns).collect();
    let (not_known, over, moves) = (unknown::not_known(facts), unknown::over(facts), moves::moves(facts));
    Report { findings, not_known, over, moves, ports: facts.named.map_or(facts.now.ports.len(), |_| 1) }
}

fn render(report: &Report, port: Option<&str>, seconds: Option<u64>) -> String {
    let mut out: String = report.findings.iter().map(Finding::render).collect();
    if report.findings.is_empty() {
        let what = port.map_or_else(|| counted(report.ports as u64, "port"), |port| format!("port {port}"));
        let how_long = seconds.map_or_else(String::new, |s| format!(" for {}", counted(s, "second")));
        out.push_str(&format!("nothing found: looked at {what}{how_long}\n"));
    }
    for (what, lines) in [("move", &report.moves), ("not known", &report.not_known), ("over", &report.over)] {
        lines.iter().for_each(|line| out.push_str(&format!("{what}: {line}\n")));
    }
    out
}
