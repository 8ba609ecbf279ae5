//! Where copies are made by a DMA engine ([`lasthop_guestmem::dma`]): it is polled once for each time that a receiver's ring is filled, before
//! the receiver is told, and not before: "polling only when the receiving VM is notified" (Ram, PhD thesis, 4.6.1). In whatever order copies were
//! completed, used entries are shown in theirs (rule 5), for all are shown at once; and the senders' buffers are given back afterwards.
//!
//! What waits for control is copied by the processor, which sums it for that: it lies in a place that another thread reads.

use crate::deliver::Target;
use lasthop_guestmem::dma;
use lasthop_types::DropReason;
use lasthop_virtqueue::QueueError;

impl Target<'_> {
    /// Waits for the copies of all packets of this visit. Those of a receiver whose memory a copy was lost for are none: its ring breaks and says why, and
    /// its driver is shown none of them.
    pub(crate) fn await_copies(&mut self) {
        if !dma::settle(self.memory) {
            self.counters.drops.add(DropReason::ReceiverBroken, self.packets);
            (self.packets, self.bytes) = (0, 0);
            self.started.ring.forget_staged();
            self.broken = Some(QueueError::Dma);
        }
    }
}
