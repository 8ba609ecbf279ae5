//! lasthop, as people start it.

use super::{Extras, Spent, Switch};
use crate::stop::{Outcome, failed};
use lasthop_tests_vm::{Lasthop, Port, proc};

/// A running lasthop. It has no core of its own to count idle polls on: all its processor time is busy time.
pub struct Ours {
    lasthop: Lasthop,
    before: u64,
}

impl Ours {
    /// A learning switch on these CPUs.
    pub fn start(ports: &[Port], cpus: &str, extras: Extras<'_>) -> Outcome<Self> {
        let lasthop = Lasthop::start_with(ports, &["--cpus", cpus]);
        if let Some(list) = extras.list {
            let file = tempfile::NamedTempFile::new().map_err(failed)?;
            std::fs::write(&file, list.classbench()).map_err(failed)?;
            let path = file.path().display().to_string();
            let out = lasthop.try_command(&["acl", "load", &path, "--format", "classbench"]);
            if !out.status.success() {
                return Err(failed(format!("lasthop acl load: {}", String::from_utf8_lossy(&out.stderr).trim())));
            }
        }
        Ok(Self { lasthop, before: 0 })
    }
}

impl Switch for Ours {
    fn begin(&mut self) -> Outcome<()> {
        self.before = self.lasthop.cpu_ns();
        Ok(())
    }

    fn spent(&mut self, _packets: f64) -> Outcome<Spent> {
        let ns = self.lasthop.cpu_ns().saturating_sub(self.before) as f64;
        Ok(Spent { cpu_ns: ns, busy_ns: ns })
    }

    fn memory_kib(&self) -> u64 {
        self.lasthop.pids().into_iter().map(proc::private_kib).sum()
    }
}
