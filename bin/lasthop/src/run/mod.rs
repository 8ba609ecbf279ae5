//! `lasthop run`: the supervisor. It owns the sockets and the list of ports, starts the switch and control, and
//! restarts whichever dies. One thread, no policy, and no guest memory.
//!
//! | file | does |
//! |---|---|
//! | `args` | the command line |
//! | `given` | the same, and the file of `--config` |
//! | `batch` | a time and a number of packets |
//! | `setup` | directories, locks, programs: everything that may be missing |
//! | `socket` | binding and connecting Unix sockets |
//! | `owner` | who may use a port |
//! | `store` | ports added at run time, on disk |
//! | `presence` | whether sockets are where they were made |
//! | `served` | the API's sockets, made anew where they are not |
//! | `service` | what a service manager is told |
//! | `settings` | settings of ports: kept, and sent to control and switch |
//! | `settings_text` | the same as options and arguments |
//! | `weights` | the switch is told the shares that settings come to |
//! | `queue_owners` | ports that have a queue of their own at an uplink |
//! | `port` | one port: its listener or its attempts to connect, and who is connected |
//! | `child` | one child process: start, channel |
//! | `closing` | how much is being closed on threads of its own |
//! | `backoff` | how long a process that ends at once is not started again |
//! | `replaced` | how often processes were replaced, and why: what `stats` shows |
//! | `sessions` | the ports' session processes, which speak vhost-user |
//! | `engines` | which CPUs do ports' work, changed while it is done |
//! | `devices` | switches with a small table of their own, each a `lasthop run` below this one |
//! | `wires` | interfaces of this host that devices have for themselves |
//! | `cable` | what joins a device's ports to the host's: one process |
//! | `driver` | one process of an uplink: what it was given, whether it lives |
//! | `uplink` | one uplink: its processes, the device that they share, its connection to the switch |
//! | `uplink/standby` | one that runs and is kept from the switch |
//! | `uplink/carrier` | one whose interface is missing, down or without a carrier |
//! | `uplink/taking` | one that answers, and takes nothing of what the switch has for it |
//! | `uplink/queues` | which ports have queues of their own there |
//! | `uplink/announcements` | when the stations behind one that took over are announced |
//! | `handover` | this process becomes another program, which goes on with all of it |
//! | `host_facts` | what the host does not let us have, and programs whose file was replaced |
//! | `kept` | access lists and mirrors, written once they hold |
//! | `links` | interfaces, as the kernel tells of them |
//! | `log_level` | which lines of the log are written |
//! | `segments` | which uplinks are on one network segment, and which of them has to be blocked |
//! | `probing` | probes sent and heard, and what follows |
//! | `uplinks` | all of them, and what people ask of them |
//! | `switch_log` | lines of the log that the switch has us write |
//! | `port_threads` | which thread of the switch is which port's |
//! | `threads` | processor time |
//! | `cgroup_accounting` | ports' threads in their VMs' control groups |
//! | `near` | ports' threads on the NUMA nodes of their VMs |
//! | `boost` | threads of the switch that have to leave the idle class |
//! | `watchdog` | whether the threads of a process go on |
//! | `hung_children` | what is done about a process whose threads do not |
//! | `renaming` | a port that is given another name |
//! | `renewal` | newly installed programs of control, uplinks and session processes take the place of those that run |
//! | `reload` | what is remembered, read again at SIGHUP |
//! | `upgrade` | another switch takes over while all goes on |
//! | `heard` | what the switch and control say |
//! | `supervisor` | the event loop that ties them together |

mod args;
mod backoff;
mod boost;
mod cable;
mod capture_file;
mod cgroup_accounting;
mod child;
mod closing;
mod devices;
mod dma;
mod driver;
mod engines;
mod given;
mod handover;
mod heard;
mod host_facts;
mod hung_children;
mod kept;
mod links;
mod log_level;
mod max_cpu;
mod mirrors;
mod near;
mod offload;
mod open_vswitch;
mod owner;
mod port;
mod port_threads;
mod ports;
mod presence;
mod probing;
mod queue_owners;
mod reload;
mod renaming;
mod renewal;
mod replaced;
mod segments;
mod served;
mod service;
mod sessions;
mod settings;
mod settings_text;
mod setup;
mod socket;
mod store;
mod supervisor;
mod switch_log;
mod threads;
mod upgrade;
mod uplink;
mod uplinks;
mod walk;
mod watchdog;
mod weights;
mod wires;

pub use args::{PortArg, RunArgs, check_uplink, driver, meant_device, new_name, nice, queues, vlan_list};
pub use devices::{DEVICES_DIR, FAR_SOCKET, HOST_SOCKET};
use lasthop_log::{Format, Log, levels};
pub use near::Near;
pub use open_vswitch::PACKET_PORT;
pub use owner::FileOwner;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
pub use store::SavedUplink;
use supervisor::{Next, Supervisor};
pub use upgrade::{MESSAGES, OTHER_MESSAGES};

/// Why `lasthop run` ends with an error. The text is one line: what is wrong; what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The arguments make no sense here.
    #[error("{0}")]
    Usage(String),
    /// Something needed is missing or failed.
    #[error("{0}")]
    Failed(String),
}

/// Runs until SIGTERM. Status 0 after a clean end, 1 when something failed, 2 when the arguments make no sense; then
/// one line on stderr says what is wrong and what to do. Call it from the first thread: the children die with it.
pub fn run(args: RunArgs) -> ExitCode {
    if args.take_over_check {
        // The one that runs hears what is said on standard error.
        return match handover::check() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                let _ = writeln!(std::io::stderr(), "{e}");
                ExitCode::FAILURE
            }
        };
    }
    args.log_format.into_iter().for_each(Format::make_current);
    let log = Log::new();
    log.end_with_panics();
    // Without a subscriber there is no log, and nothing else changes.
    levels::begin(&log);

    lasthop_sys::keep_descriptors_from_children();
    // Lines that others cause must not hold up the children's care when nobody reads them.
    // Threads that are made from here on, that of the log first, leave SIGTERM to the supervisor; of one that did not the process
    // would die at once, and its children be killed with it.
    let _ = lasthop_sys::SignalFd::new().map(drop);
    let no_thread = |e| RunError::Failed(format!("no thread for the log: {e}"));
    let begun = log.start(std::io::stderr()).map_err(no_thread);
    let result = begun.and_then(|()| begin(&args)).and_then(|s| go_on(s, &log));
    log.finish(Duration::from_millis(100));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // For people in every format; journald shows it among errors all the same.
            let priority = if args.log_format == Some(Format::Journald) { "<3>" } else { "" };
            let _ = writeln!(std::io::stderr(), "{priority}lasthop: {e}");
            match e {
                RunError::Usage(_) => ExitCode::from(2),
                RunError::Failed(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// The supervisor: a new one, or the one that another program of this process was.
fn begin(args: &RunArgs) -> Result<Supervisor, RunError> {
    match args.take_over {
        Some(number) => handover::take_over(args, number),
        None => setup::Setup::new(args).and_then(Supervisor::new),
    }
}

/// Runs it, until it ends or this process becomes another program.
fn go_on(mut supervisor: Supervisor, log: &Log) -> Result<(), RunError> {
    loop {
        let result = supervisor.run();
        if result.is_err() {
            supervisor.end_offload();
            supervisor.leave_no_rules();
        }
        match result? {
            Next::End => return Ok(()),
            Next::Become(successor) => {
                // Its threads end with this program.
                log.finish(Duration::from_millis(100));
                let why = successor.execute();
                supervisor.could_not_become_another(why);
            }
        }
    }
}
