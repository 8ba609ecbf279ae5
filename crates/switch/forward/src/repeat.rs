//! Packets that repeat the one before, the three ways to judge a packet, and the three ways to a receiver's ring.
//!
//! In packets a second 1 > 2 > 3, and each hands what it cannot do to the next; instructions are of packets of 64 bytes on split rings
//! (docs/decisions/packet-path.md). Judged:
//!
//! 1. [`pass`](mod@crate::pass): packets that look like the one before are neither classified nor planned,
//!    but read, compared and written in one loop, with the receiver's lock held: 193 with all that is done for them.
//! 2. [`Forwarder::classify_known`](crate::burst::Forwarder::classify_known): whatever their flows, packets that this thread has a flow
//!    for, to ports that are planned already: 477 with all that is done for them, 553 where flows look at addresses and ports. 789 and 888
//!    in the third way.
//! 3. [`Run::decide`](crate::run::Run::decide): everything else, and the first packet for each receiver.
//!
//! Delivered:
//!
//! 1. [`pass`](mod@crate::pass), as above.
//! 2. [`Target::deliver_at_once`](crate::deliver::Target::deliver_at_once): of packets that were judged, those that ask for nothing,
//!    from one piece of memory to one buffer at hand.
//! 3. [`Target::deliver`](crate::deliver::Target::deliver): everything else: chains of several buffers, offloads, segments.
//!
//! When is a packet like the one before? The one before met a flow that looks at the link layer alone and sends to one port
//! ([`Decision::To`](crate::run::Decision::To)), its delivery is the last one planned, and nothing about that port asks for more than the
//! link layer (several queues do: [`Plan::no_repeat`](crate::plan::Plan::no_repeat)). Then a packet with
//! the same link layer meets the same flow and goes to the same ring.

use crate::packet::Packet;
use crate::pass::{Head, is_like, simple_frame};
use lasthop_frame::is_plain_l2;
use lasthop_virtqueue::Chains;

/// Packets of a burst that may be like the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeat {
    /// The planned receiver of the one before.
    pub(crate) group: usize,
    /// The first of them.
    pub(crate) next: usize,
    /// How the one before begins.
    pub(crate) like: Head,
    /// How many bytes of them are enough for one turn of the locks.
    pub(crate) most: usize,
}

/// Packets that were delivered as [`Repeat`] says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) packets: usize,
    pub(crate) bytes: usize,
}

impl Repeat {
    /// Those behind `packet`, which goes to the planned receiver `group`, from the `next` of the burst on. None if too few are like
    /// it for a visit to their receiver of their own. Frames of this sender lie behind a header of [`VnetHdr::LEN`](lasthop_frame::VnetHdr::LEN).
    #[inline]
    pub(crate) fn of(packet: &Packet, group: usize, chains: &Chains<'_>, next: usize, most: usize) -> Option<Self> {
        Self::may_begin(packet, chains, next).then(|| Self { group, next, like: packet.head(), most })
    }

    /// Whether enough packets from the `next` on are like `packet`, as far as can be seen: what is read here is read anew.
    #[inline]
    pub(crate) fn may_begin(packet: &Packet, chains: &Chains<'_>, next: usize) -> bool {
        let like = packet.head();
        let is_like = |chain| simple_frame(chain).is_some_and(|(_, head)| is_like(head, like));
        // It has a link layer and was not edited: there was one action.
        is_plain_l2(packet.as_read())
            && chains.list.get(next..next + 3).is_some_and(|chains| chains.iter().all(is_like))
    }
}
