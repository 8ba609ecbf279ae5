//! lasthop, as people start it.

use super::{Spent, Switch};
use crate::stop::Outcome;
use lasthop_tests_vm::{Lasthop, Port};

/// A running lasthop. It has no core of its own to count idle polls on: all its processor time is busy time.
pub struct Ours {
    lasthop: Lasthop,
    before: u64,
}

impl Ours {
    /// A learning switch on these CPUs.
    pub fn start(ports: &[Port], cpus: &str) -> Self {
        Self { lasthop: Lasthop::start_with(ports, &["--cpus", cpus]), before: 0 }
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
}
