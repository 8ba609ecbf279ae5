//! Packets of a burst by destination, and which of them are done: delivered, dropped or handed to control.

use crate::repeat::Repeat;
use arrayvec::ArrayVec;
use lasthop_types::PortId;
pub(crate) use lasthop_virtqueue::bit;

/// Receivers that packets are collected for before they are delivered.
const MAX_DESTINATIONS: usize = 64;
/// Receivers that packets of one burst may wait for.
const MAX_WAITED_FOR: usize = 8;

/// What is to be delivered where. A burst has as many packets as a word has bits, so sets of them are words.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    destinations: ArrayVec<Destination, MAX_DESTINATIONS>,
    /// Receivers for which packets of this burst wait: those that follow must not overtake them.
    waited_for: ArrayVec<(PortId, u16), MAX_WAITED_FOR>,
    /// The last packet, and those that are like it.
    pub(crate) repeat: Repeat,
    /// Packets that have no other destination than the one they are planned for, so they may wait for it.
    may_wait: u64,
    /// Packets delivered or dropped.
    pub(crate) done: u64,
    /// Some wait for buffers.
    pub(crate) short: bool,
    /// They wait for a receiver that may not get more for now.
    pub(crate) limited: bool,
    /// They wait for a receiver whose buffers are being translated.
    pub(crate) translated: bool,
    /// Some wait for their turn: enough has been done for their receiver with its lock held.
    pub(crate) put_off: bool,
    /// What it took, in the last deliveries, to walk receivers' descriptors that hold nothing.
    pub(crate) wasted_work: usize,
}

/// One receiver's ring and the packets for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) port: PortId,
    /// Index of the vring, and [`COPIES`] if it gets copies for a mirror.
    pub(crate) queue: u16,
    /// The port has no other queue to its guest, and gets no copies.
    only: bool,
    pub(crate) packets: u64,
}

/// Beside the index of a vring: it gets copies for a mirror, by which no packet is done, and which wait for nothing. A bit that no index
/// has, so that to look for a destination takes what it takes without mirrors.
pub(crate) const COPIES: u16 = 1 << 15;

/// The packets of a set, in their order.
#[derive(Clone)]
pub(crate) struct Members(pub(crate) u64);

impl Iterator for Members {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let i = self.0.trailing_zeros() as usize;
        let is_some = self.0 != 0;
        self.0 &= self.0.wrapping_sub(1);
        is_some.then_some(i)
    }
}

impl Plan {
    /// Forgets the last burst. `done` is what was done of this one before.
    pub(crate) fn start(&mut self, done: u64) {
        self.clear();
        self.waited_for.clear();
        (self.done, self.short, self.limited, self.translated, self.put_off) = (done, false, false, false, false);
        self.repeat = Repeat::default();
    }

    /// Notes that packet `i` is delivered or dropped.
    #[inline]
    pub(crate) fn set_done(&mut self, i: usize) {
        self.done |= bit(i);
    }

    /// Whether packet `i` has no other destination than the one it is planned for.
    #[inline]
    pub(crate) fn may_wait(&self, i: usize) -> bool {
        self.may_wait & bit(i) != 0
    }

    /// A packet before has to wait for this receiver.
    #[inline]
    pub(crate) fn is_waited_for(&self, port: PortId, queue: u16) -> bool {
        self.waited_for.contains(&(port, queue))
    }

    /// Has this burst's packets wait for a receiver; false if packets wait for too many already.
    pub(crate) fn wait_for(&mut self, port: PortId, queue: u16) -> bool {
        self.waited_for.try_push((port, queue)).is_ok()
    }

    /// Adds a delivery. False when there is no room (a receiver too many, or a second copy for one): make those that are
    /// there, then add it again.
    #[inline]
    pub(crate) fn add(&mut self, packet: usize, may_wait: bool, port: PortId, queue: u16, only: bool) -> bool {
        let known = self.destinations.iter().rposition(|d| d.port == port && d.queue == queue);
        let n = known.unwrap_or(self.destinations.len());
        let destination = Destination { port, queue, only, packets: 0 };
        if known.is_none() && self.destinations.try_push(destination).is_err() {
            return false;
        }
        let Some(destination) = self.destinations.get_mut(n).filter(|d| d.packets & bit(packet) == 0) else {
            return false;
        };
        destination.packets |= bit(packet);
        self.may_wait |= if may_wait { bit(packet) } else { 0 };
        self.repeat.destination = (may_wait && only).then_some(n);
        true
    }

    /// Adds a delivery, the only one of its packet, to a port that has one queue and some packets before it; false if that has to be
    /// asked for. They have not been delivered, so nothing holds up this one that does not hold up them.
    #[inline(always)]
    pub(crate) fn add_to_known(&mut self, packet: usize, port: PortId) -> bool {
        let is_known = |destination: &Destination| destination.port == port && destination.only;
        let last = self.repeat.destination.filter(|n| self.destinations.get(*n).is_some_and(is_known));
        let Some(n) = last.or_else(|| self.destinations.iter().position(is_known)) else { return false };
        if let Some(destination) = self.destinations.get_mut(n) {
            destination.packets |= bit(packet);
        }
        self.may_wait |= bit(packet);
        self.repeat.destination = Some(n);
        true
    }

    /// The `n`th receiver.
    #[inline]
    pub(crate) fn destination(&self, n: usize) -> Option<Destination> {
        self.destinations.get(n).copied()
    }

    /// All deliveries have been made.
    pub(crate) fn clear(&mut self) {
        (self.repeat.destination, self.repeat.most) = (None, 0);
        self.may_wait = 0;
        self.destinations.clear();
    }
}
