//! Counters that one thread at a time writes and any thread reads.

use crate::drop::DropReason;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A 64-bit count. `add` is a plain load and store: callers hold the lock of the queue the counter belongs to,
/// so there is one writer at a time; readers need no lock.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. One writer at a time.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count so far. Any thread.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What one queue counted; a queue pair has one for each direction. The law, summed over a switch:
/// `from_guest.packets + replicated = to_guest.packets + all drops + waiting for control`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFigures<Count, Drops> {
    /// Packets taken from (or delivered to) the guest. A 64 KiB packet counts once.
    pub packets: Count,
    /// Their bytes, without the virtio-net header.
    pub bytes: Count,
    /// from_guest only: deliveries beyond the first that packets with several destinations caused.
    pub replicated: Count,
    /// from_guest only: packets handed to control because no flow matched.
    pub missed: Count,
    /// to_guest only: frames written because a packet had to be cut up for this receiver.
    pub segments: Count,
    /// to_guest only: checksums completed because this receiver wants them complete.
    pub checksums: Count,
    /// from_guest: descriptors of the packets taken, an indirect one included; each time that a packet's were read. to_guest: pieces of memory that frames
    /// were written to, of which each has a descriptor of its own, unless it crosses from one region into another.
    pub descriptors: Count,
    /// from_guest only: bytes that were read of the packets to decide about them, virtio-net headers included.
    pub headers: Count,
    /// Kicks received (from_guest) or interrupts sent (to_guest).
    pub notifications: Count,
    /// from_guest: nanoseconds in which packets from it were switched, to wherever they went. Written by the worker
    /// that serves the queue, of which there is one. to_guest: those of them, and of the thread that talks to control, in which packets were written
    /// to it: with its lock held, and until its driver was shown them.
    pub busy_ns: Count,
    /// from_guest only: how often the queue was not read, because its port had sent all that its settings let it.
    pub held: Count,
    /// Undelivered packets by reason.
    pub drops: Drops,
}

/// A queue's own, which the thread that holds it writes and others read.
pub type PortCounters = PortFigures<Counter, DropCounters>;
/// A sum over queues, as it travels to `lasthop stats`. Drops are those of a count above zero, in the order of [`crate::DROP_REASONS`].
pub type PortTotals = PortFigures<u64, Vec<(DropReason, u64)>>;

/// What flow caches have counted: a thread's own, in [`Counter`]s that it writes and others read, or a sum of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheFigures<Count = u64> {
    /// Places for flows. A cache grows.
    pub entries: Count,
    /// Places that have been filled. What was there may be dead; it goes when its place is needed.
    pub used: Count,
    /// Lookups that found their flow there.
    pub hits: Count,
    /// Lookups that found it in the wildcard table, and put it there.
    pub misses: Count,
    /// Flows that had to go for want of room, though they lived.
    pub evicted: Count,
}

impl CacheFigures {
    /// Adds what a thread's cache counted.
    pub fn add(&mut self, c: &CacheFigures<Counter>) {
        self.entries += c.entries.get();
        self.used += c.used.get();
        self.hits += c.hits.get();
        self.misses += c.misses.get();
        self.evicted += c.evicted.get();
    }
}

/// One counter per [`DropReason`].
#[derive(Debug, Default)]
pub struct DropCounters([Counter; DropReason::COUNT]);

impl DropCounters {
    /// Adds `n` packets under `reason`. One writer at a time.
    #[inline]
    pub fn add(&self, reason: DropReason, n: u64) {
        if let Some(c) = self.0.get(reason as usize) {
            c.add(n);
        }
    }

    /// Packets dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0.get(reason as usize).map_or(0, Counter::get)
    }
}

impl PortTotals {
    /// Adds what one queue counted.
    pub fn add(&mut self, c: &PortCounters) {
        self.packets += c.packets.get();
        self.bytes += c.bytes.get();
        self.replicated += c.replicated.get();
        self.missed += c.missed.get();
        self.segments += c.segments.get();
        self.checksums += c.checksums.get();
        self.descriptors += c.descriptors.get();
        self.headers += c.headers.get();
        self.notifications += c.notifications.get();
        self.busy_ns += c.busy_ns.get();
        self.held += c.held.get();
        for reason in crate::DROP_REASONS {
            let n = c.drops.get(*reason);
            match self.drops.iter_mut().find(|(r, _)| r == reason) {
                Some((_, sum)) => *sum += n,
                None if n > 0 => self.drops.push((*reason, n)),
                None => {}
            }
        }
        self.drops.sort_by_key(|(r, _)| *r as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_over_queues() {
        let (a, b) = (PortCounters::default(), PortCounters::default());
        a.packets.add(3);
        b.packets.add(4);
        a.drops.add(DropReason::Policy, 1);
        b.drops.add(DropReason::TooShort, 2);
        b.drops.add(DropReason::Policy, 5);
        let mut t = PortTotals::default();
        t.add(&a);
        t.add(&b);
        assert_eq!((t.packets, t.dropped()), (7, 8));
        assert_eq!(t.drops, [(DropReason::TooShort, 2), (DropReason::Policy, 6)]);
    }
}
