//! What a ring does whose packets were to be copied by a DMA engine, and were not.

use crate::Ring;
use crate::ring::Layout;

impl Ring {
    /// Nothing that was staged is to be shown: the ring stops.
    pub fn forget_staged(&mut self) {
        match &mut self.0 {
            Layout::Split(r) => r.forget_staged(),
            Layout::Packed(r) => r.forget_staged(),
        }
    }
}

impl crate::split::SplitRing {
    fn forget_staged(&mut self) {
        self.next_used = self.published;
    }
}

impl crate::packed::PackedRing {
    fn forget_staged(&mut self) {
        self.next_used.retreat(self.staged_slots, self.size);
        self.staged.clear();
        (self.staged_chains, self.staged_slots, self.staged_written) = (0, 0, 0);
    }
}
