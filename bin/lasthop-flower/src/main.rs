//! `lasthop-flower`: between the switch and control, it gives flows between representors to the kernel's classifier flower, and with it to the card behind them
//! (docs/uplinks.md, "Established flows in the kernel or a card"). Started by `lasthop run --hw-offload`; sees what control sees of packets, and no guest's memory. Of the
//! host it can reach one socket of rtnetlink, and for that it keeps the capability CAP_NET_ADMIN.

mod between;
mod server;

use lasthop_ipc::Channel;
use lasthop_log::{Log, levels};
use lasthop_management_ipc::OffloadToSupervisor;
use lasthop_sys::inherited_fd;
use lasthop_sys::sandbox::Program;
use lasthop_tc::{Netlink, Policy};
use rustix::fs::{FlockOperation, flock};
use rustix::thread::CapabilitySet;
use server::{Server, Supervisor};
use std::error::Error;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

/// What it is told by its arguments.
struct Arguments {
    supervisor: OwnedFd,
    /// Of which there is one, so that none begins before another has ended.
    lock: OwnedFd,
    policy: Policy,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let (mut supervisor, mut lock, mut policy) = (None, None, Policy::None);
    while let Some((option, value)) = words.next().zip(words.next()) {
        let fd = || value.parse().ok().and_then(inherited_fd);
        match option.as_str() {
            "--supervisor-fd" => supervisor = Some(fd()?),
            "--lock-fd" => lock = Some(fd()?),
            "--pulse-fd" => lasthop_sys::map_pulse(fd()?).ok()?,
            "--tc-policy" => policy = Policy::from_name(&value)?,
            _ => return None,
        }
    }
    Some(Arguments { supervisor: supervisor?, lock: lock?, policy })
}

fn main() -> ExitCode {
    let log = Log::new();
    log.end_with_panics();
    levels::begin(&log);
    let Some(arguments) = arguments(std::env::args().skip(1)) else {
        eprintln!("lasthop-flower: --supervisor-fd N --lock-fd N [--tc-policy POLICY]; it is started by `lasthop run`");
        return ExitCode::from(2);
    };
    let mut supervisor: Supervisor = Channel::new(arguments.supervisor);
    let result = begin(arguments.policy, &arguments.lock, &log)
        .and_then(|netlink| Server::new(netlink, arguments.policy)?.serve(&mut supervisor));
    let status = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The supervisor writes it to the log.
            let _ = supervisor.send(&OffloadToSupervisor::Failed(error.to_string()), None);
            ExitCode::FAILURE
        }
    };
    log.finish(Duration::from_millis(100));
    status
}

/// Opens what it needs, and gives up all else.
fn begin(policy: Policy, lock: &OwnedFd, log: &Log) -> Result<Netlink, Box<dyn Error>> {
    flock(lock, FlockOperation::LockExclusive).map_err(|e| format!("the lock of --hw-offload: {e}"))?;
    let netlink = Netlink::open().map_err(|e| format!("rtnetlink: {e}"))?;
    let report = Program::FLOWER.enter_sandbox_keeping(CapabilitySet::NET_ADMIN)?;
    // Threads made from here on are born inside the sandbox.
    log.start(std::io::stderr())?;
    tracing::info!("tc-policy={}; sandbox: {report}", policy.name());
    Ok(netlink)
}
