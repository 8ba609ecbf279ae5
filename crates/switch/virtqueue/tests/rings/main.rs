//! The rings, device side against driver side, against another implementation, and against drivers and devices that
//! lie. Everything goes through the public API; hostile drivers write to the ring's memory.

mod garbage;
mod hostile;
mod loopback;
mod net;
mod notify;
mod oracle;
mod rig;
mod start;

use lasthop_guestmem::GuestMemory;
use lasthop_virtqueue::{Chains, QueueError, ReceiveBuffers, Reserved, Ring};

/// One reservation by itself: takes chains one at a time and leaves in `chains` those that hold the bytes.
trait Reserve {
    fn reserve<'m>(
        &mut self,
        memory: &'m GuestMemory,
        chains: &mut Chains<'m>,
        need: usize,
        join: bool,
    ) -> Result<Reserved, QueueError>;
}

impl Reserve for Ring {
    fn reserve<'m>(
        &mut self,
        memory: &'m GuestMemory,
        chains: &mut Chains<'m>,
        need: usize,
        join: bool,
    ) -> Result<Reserved, QueueError> {
        let mut room = ReceiveBuffers::new();
        let result = room.reserve(self, memory, need, join, 1);
        room.give_back(self);
        *chains = room.into_chains();
        result
    }
}
