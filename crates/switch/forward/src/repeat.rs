//! Packets that repeat the one before, and the three ways in which a packet is classified.
//!
//! In packets a second 1 > 2 > 3, and each leaves what it cannot do to the next. Instructions are of a packet of 64 bytes on split rings with
//! all that is done for it (docs/decisions/packet-path.md):
//!
//! 1. [`pass`](mod@crate::pass), 185: packets that look like the one before are neither classified nor planned, but read, compared and
//!    written in one loop, with the receiver's lock held. Takes for granted that the one before met a flow that looks at the link layer alone.
//! 2. [`Forwarder::classify_known`](crate::burst::Forwarder::classify_known), 465, or 538 where flows look at addresses and ports: packets
//!    in one piece, of flows that are in this thread's cache, for receivers that are planned already or (897) have several queues. Takes for granted no packet of the
//!    burst that has waited.
//! 3. [`CurrentFlow::decide`](crate::current_flow::CurrentFlow::decide), 789 and 888 before there was the second: everything else, and the first packet for each
//!    receiver. Takes nothing for granted.
//!
//! [`fill`](crate::visit) has the three ways in which a packet is written.
//!
//! When is a packet like the one before? The one before met a flow that looks at the link layer alone and sends to one port
//! ([`Decision::To`](crate::current_flow::Decision::To)), its delivery is the last one planned, and nothing about that port asks for more than the
//! link layer (several queues do). Then a packet with the same link layer meets the same flow and goes to the same ring.

use crate::packet::Packet;
use crate::pass::{Head, Passed, is_like, simple_frame};
use lasthop_frame::is_plain_l2;
use lasthop_virtqueue::Chains;

/// What is known in a burst of the last packet and those like it: all that the first way remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repeat {
    /// The planned receiver of the last packet, if packets like it go there too.
    pub(crate) destination: Option<usize>,
    /// The first packet that may be like it, once they are to be passed on.
    pub(crate) next: usize,
    /// How the last packet begins.
    pub(crate) like: Head,
    /// How many bytes of those like it are enough for one turn of the locks; 0 if none are to be passed on.
    pub(crate) most: usize,
    /// Packets of the burst that were passed on, and the bytes of their frames.
    pub(crate) passed: u64,
    pub(crate) bytes: u64,
}

impl Repeat {
    /// Has the next delivery pass on those behind `packet`, the last one, from the `next` of the burst on. False if it goes where others
    /// do not follow it, or too few are like it for a visit to their receiver of their own. Frames of this sender lie behind a header of
    /// [`VnetHdr::LEN`](lasthop_frame::VnetHdr::LEN).
    #[inline]
    pub(crate) fn begin(&mut self, packet: &Packet, chains: &Chains<'_>, next: usize, most: usize) -> bool {
        let begins = self.destination.is_some() && Self::may_begin(packet, chains, next);
        if begins {
            (self.next, self.like, self.most) = (next, packet.head(), most);
        }
        begins
    }

    /// They have been: the first of them, so many.
    #[inline]
    pub(crate) fn note(&mut self, passed: Passed) -> u64 {
        let set = !(u64::MAX << passed.packets) << self.next;
        self.passed |= set;
        self.bytes += passed.bytes as u64;
        set
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
