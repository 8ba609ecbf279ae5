//! `lasthop-cable`: a cable between a port of the host's switch and a port of a device. Started by `lasthop run` for each device; sees the two
//! connections and its own memory, which both switches are told of like a guest's. When either is gone it ends, and is started again.

use lasthop_cable_core::Cable;
use lasthop_log::{Log, levels};
use lasthop_sys::sandbox::Program;
use lasthop_vhostuser::{Frontend, FrontendError};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long a switch may take to answer: one that is being started again is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// First and longest wait before it is tried again to connect.
const WAITS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

fn main() -> ExitCode {
    let log = Log::new();
    log.end_with_panics();
    levels::begin(&log);
    let Some(paths) = paths(std::env::args_os().skip(1).map(PathBuf::from).collect()) else {
        eprintln!("lasthop-cable: two paths of sockets; this program is started by `lasthop run`");
        return ExitCode::from(2);
    };
    let Err(error) = run(&paths, &log);
    tracing::warn!("cable between {} and {}: {error}", paths[0].display(), paths[1].display());
    // What was said last is what matters, if anybody reads it.
    log.finish(Duration::from_millis(100));
    ExitCode::FAILURE
}

fn paths(arguments: Vec<PathBuf>) -> Option<[PathBuf; 2]> {
    arguments.try_into().ok()
}

fn run(paths: &[PathBuf; 2], log: &Log) -> Result<std::convert::Infallible, Box<dyn Error>> {
    let mut cable = Cable::new()?;
    // The other way round, as they are plugged in: a switch that waits for the first word is not kept waiting for the other's start.
    let second = connect(&paths[1])?;
    let mut fronts = [connect(&paths[0])?, second];
    let report = Program::CABLE.enter_sandbox()?;
    // Threads made from here on are born inside the sandbox.
    log.start(std::io::stderr())?;
    for left_out in &report.left_out {
        // Said for the switch already, at the level that is seen.
        tracing::debug!("sandbox: going on without {left_out}");
    }
    cable.plug_in(&mut fronts)?;
    tracing::info!("cable between {} and {} is plugged in", paths[0].display(), paths[1].display());
    Err(cable.carry(&fronts).into())
}

/// Connects, however long it takes until somebody listens there.
fn connect(path: &PathBuf) -> Result<Frontend, Box<dyn Error>> {
    let [mut wait, most] = WAITS;
    loop {
        match Frontend::connect(path) {
            Ok(front) => {
                set_socket_timeout(&front, Timeout::Recv, Some(PATIENCE))?;
                return Ok(front);
            }
            Err(FrontendError::Io(_)) => std::thread::sleep(wait),
            Err(e) => return Err(format!("{}: {e}", path.display()).into()),
        }
        wait = (wait * 2).min(most);
    }
}
