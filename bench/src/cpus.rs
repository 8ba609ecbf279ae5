//! The CPUs of a comparison.

use serde::Serialize;

/// Which CPUs are used; nothing that is started here leaves them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cpus {
    /// DPDK guests, and what a switch does besides forwarding.
    pub guests: usize,
    /// The switch's forwarding thread.
    pub switch: usize,
}

impl Cpus {
    /// Those of guests and those of switches.
    pub fn each(self) -> (Vec<usize>, Vec<usize>) {
        (vec![self.guests], vec![self.switch])
    }

    /// As a list for people and programs.
    pub fn both(self) -> String {
        format!("{},{}", self.guests.min(self.switch), self.guests.max(self.switch))
    }
}
