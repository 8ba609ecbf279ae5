//! What `lasthop run` tells the switch where nobody says otherwise: for the simulator, and for tests. The switch is told.

use crate::Settings;
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

impl Default for Settings {
    /// Ports' own threads, and nothing beside them.
    fn default() -> Self {
        let (view, prompter, hysteresis) = (None, None, Hysteresis::default());
        Self {
            helpers: Vec::new(),
            poll: Vec::new(),
            hysteresis,
            view,
            prompter,
            not_idle: false,
            drawn_timer: false,
            cgroup_accounting: false,
        }
    }
}
