//! What the switch counts, as others show it. The switch itself shows nobody anything.

use crate::{DropReason, PortTotals};

impl DropReason {
    /// The name that `lasthop stats` shows.
    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize][0]
    }

    /// One sentence that says what happened and, where there is one, what to do.
    pub fn explain(self) -> &'static str {
        Self::WORDS[self as usize][1]
    }
}

impl PortTotals {
    /// Packets dropped, all reasons.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().map(|(_, n)| n).sum()
    }
}
