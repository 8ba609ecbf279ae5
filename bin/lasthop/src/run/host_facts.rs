//! What the supervisor knows of the host and of the programs that run: what it had to go on without, and whose file has been replaced.

use super::boost::Boost;
use super::supervisor::Supervisor;
use lasthop_hostview::{HostMonitor, MonitorError};
use lasthop_management_ipc::{HostFacts, MAX_OUTDATED};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tracing::warn;

/// Of a program whose file has no name any more, procfs says so behind the name that it had.
const GONE: &str = " (deleted)";

/// What the host does not let us have, and why.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Missing {
    vms: Option<String>,
    helpers: Option<String>,
}

impl Missing {
    /// Where it is to be read what cores and VMs do, if the kernel lets us watch them; if not, says why, once.
    pub fn monitor(&mut self, bpf: bool) -> Result<HostMonitor, Errno> {
        if bpf {
            match HostMonitor::begin() {
                Ok(monitor) => return Ok(monitor),
                Err(e) => self.unknown(&e),
            }
        }
        HostMonitor::without_program()
    }

    /// They are watched from now on: once children are ready, who start meanwhile, and before the first front-end is connected.
    pub fn watch(&mut self, monitor: &mut HostMonitor) {
        if let Err(e) = monitor.watch() {
            self.unknown(&e);
        }
    }

    fn unknown(&mut self, e: &MonitorError) {
        warn!("not known which VMs run and which cores are idle: {e}; going on without");
        self.vms = Some(e.to_string());
    }

    /// The way by which the switch has its threads lifted out of the idle class, if there is one; if not, says why, once.
    pub fn boost(&mut self) -> Option<Boost> {
        let failed = |e: Errno| {
            warn!("no helpers on idle cores: {e}");
            self.helpers = Some(e.to_string());
        };
        Boost::new().map_err(failed).ok()
    }
}

impl Supervisor {
    /// What there is to know now.
    pub(super) fn host_facts(&self) -> HostFacts {
        let (vms_unknown, no_helpers) = (self.missing.vms.clone(), self.missing.helpers.clone());
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let offload = self.offload.as_ref().map(|offload| Box::new(offload.state()));
        let (outdated, state_faults) = (self.outdated(), self.store.faults());
        HostFacts { version, vms_unknown, no_helpers, outdated, state_faults, offload }
    }

    /// Processes whose program is not the one that would be started now.
    fn outdated(&self) -> Vec<String> {
        let one = |name: &str, pid: Option<u32>| pid.map(|pid| (name.to_owned(), pid));
        let run = one("run", Some(std::process::id()));
        let flower = one("flower", self.offload.as_ref().and_then(super::offload::Offload::pid));
        let children = [one("switch", self.switch.pid()), one("control", self.control.pid()), flower];
        let uplinks = self.uplinks.values().flat_map(|uplink| {
            let name = uplink.process();
            uplink.pids().map(move |pid| (name.clone(), pid))
        });
        let sessions = self.sessions.pids_by_port().filter_map(|(port, pid)| {
            let name = self.ports.get(&port).map(|port| &port.config.name);
            let name = name.or_else(|| self.uplinks.get(&port).map(|uplink| &uplink.spec.name))?;
            Some((format!("session {name}"), pid))
        });
        let all = run.into_iter().chain(children.into_iter().flatten()).chain(uplinks).chain(sessions);
        let mut outdated: Vec<_> = all.filter(|(_, pid)| is_outdated(*pid)).map(|(name, _)| name).collect();
        outdated.dedup();
        outdated.truncate(MAX_OUTDATED);
        outdated
    }
}

/// The file of this process's program has been removed or replaced. False where the kernel does not say.
fn is_outdated(pid: u32) -> bool {
    let program = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe"));
    program.is_ok_and(|program| program.as_os_str().as_encoded_bytes().ends_with(GONE.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_program_whose_file_was_replaced_is_outdated() {
        let dir = tempfile::tempdir().unwrap();
        let (program, new) = (dir.path().join("program"), dir.path().join("new"));
        std::fs::copy("/bin/cat", &program).unwrap();
        let start = || Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut first = start();
        assert!(!is_outdated(first.id()));
        // As a package manager puts a new one in its place.
        std::fs::copy("/bin/cat", &new).unwrap();
        std::fs::rename(&new, &program).unwrap();
        let mut second = start();
        assert!(is_outdated(first.id()) && !is_outdated(second.id()));
        for child in [&mut first, &mut second] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        assert!(!is_outdated(first.id()), "nothing is known of one that has ended");
    }
}
