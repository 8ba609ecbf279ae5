//! What `lasthop run` tells the switch where nobody says otherwise: for the simulator, and for tests. The switch is told.

use crate::policy::{Batch, Hysteresis};

impl Default for Batch {
    /// The papers' figures: 125 µs, 64 packets.
    fn default() -> Self {
        Self { period_ns: 125_000, packets: 64 }
    }
}

impl Default for Hysteresis {
    /// The papers' 5 µs; the limit is about what it costs to sleep and to be woken again, twice: two guests that ask and
    /// answer in turns look that slow until a helper looks after both.
    fn default() -> Self {
        Self { base_ns: 5_000, limit_ns: 50_000 }
    }
}

#[cfg(test)]
impl Default for crate::Settings {
    /// Ports' own threads, and nothing beside them.
    fn default() -> Self {
        Self { told: told(), view: None, prompter: None, watches: lasthop_sys::Watches::new(64) }
    }
}

#[cfg(test)]
pub(crate) fn told() -> lasthop_ipc::SwitchSettings {
    lasthop_ipc::SwitchSettings {
        helpers: Vec::new(),
        poll: Vec::new(),
        hysteresis_us: (5, 50),
        not_idle: false,
        cgroup_accounting: false,
        drawn_timer: false,
        patience_ms: (2, 10),
        max_guest_memory: 0,
        idle_us: 10_000_000,
        max_flows: 1,
    }
}
