//! What a queue pair receives: a socket on every queue of the interface, and the fill rings that all pairs share.
//!
//! ```text
//!               pair 0   pair 1   pair 2          Each queue's fill ring is filled with slots of its own, and gets them back
//!  queue 0        x        o        o             from whichever pair carried them. A socket's ring and what a pair may keep
//!  queue 1        o        x        o             of a queue's slots are bounded, so that no pair can take so many that the
//!  queue 2        o        o        x             others' frames find none: a flood for one guest is the flood of its pair.
//! ```
//!
//! `x`: the queue's first socket, which also sends; `o`: sockets beside it ([`Plan::bind_more`]).

use super::CHUNK;
use crate::memory::MemoryConfig;
use crate::pair::Pair;
use crate::room::{Fill, Plan, Receiver};
use crate::survival::ledger::{Holder, Ledger, note};
use lasthop_uplink_ipc::xdp_ring;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Entries of a ring of the shared memory.
const RING: u16 = 512;
/// Frames that may be on their way into a socket's ring, beside those in one.
const MARGIN: u16 = 256;

/// Frames that a socket's ring can keep, and as many may be with the switch.
pub fn ring_of(pairs: u16) -> u16 {
    xdp_ring(pairs)
}

/// Memory of so many pairs.
pub fn memory(pairs: u16) -> MemoryConfig {
    let slots = if pairs == 1 { 1536 } else { pairs * 2 * ring_of(pairs) + MARGIN };
    MemoryConfig { pairs, ring: RING, buffer: 2048, slot: CHUNK, slots, ledger: pairs == 1 }
}

/// Entries of the receive ring and of the fill ring of a queue's first socket.
pub fn rings(pairs: u16) -> (u32, u32) {
    (ring_of(pairs).into(), u32::from(memory(pairs).slots).next_power_of_two())
}

/// A queue of the interface, as all pairs use it.
#[derive(Debug)]
pub struct Home {
    /// Where its UMEM begins in the shared memory.
    pub umem: usize,
    fill: Mutex<Fill>,
}

impl Home {
    /// `umem`: where it begins in the shared memory.
    pub fn new(umem: usize, fill: Fill) -> Self {
        Self { umem, fill: Mutex::new(fill) }
    }
}

/// One socket of a pair.
#[derive(Debug)]
pub struct Inbox {
    pub receiver: Receiver,
    home: Arc<Home>,
    /// Slots of this queue that are with the switch, or on the way back.
    held: u32,
}

impl Inbox {
    /// A socket of this queue.
    pub fn new(receiver: Receiver, home: Arc<Home>) -> Self {
        Self { receiver, home, held: 0 }
    }

    /// The next frame's place in the shared memory and its length.
    pub fn take(&mut self) -> Option<(usize, usize)> {
        let (at, len) = self.receiver.received()?;
        self.held += 1;
        Some((self.home.umem.checked_add(usize::try_from(at).ok()?)?, len as usize))
    }

    /// Whether the switch has as many slots of this queue as it may.
    pub fn is_full(&self) -> bool {
        self.held >= self.receiver.size()
    }
}

/// All sockets of a pair, in the order of the interface's queues.
#[derive(Debug)]
pub struct Inboxes {
    pub all: Vec<Inbox>,
    /// Reports those that are not the pair's first socket.
    others: Option<OwnedFd>,
    /// Which one is served first: another one each time.
    pub first: usize,
    /// Frames taken from them, and slots given back, since the start.
    pub taken: u64,
    pub returned: u64,
}

impl Inboxes {
    /// `own`: which of them is the pair's first socket.
    pub fn new(all: Vec<Inbox>, own: usize) -> Result<Self, Errno> {
        let mut others = None;
        for (_, inbox) in all.iter().enumerate().filter(|(i, _)| *i != own) {
            if others.is_none() {
                others = Some(epoll::create(epoll::CreateFlags::CLOEXEC)?);
            }
            if let Some(epoll) = &others {
                epoll::add(epoll, inbox.receiver.as_fd(), EventData::new_u64(0), EventFlags::IN)?;
            }
        }
        Ok(Self { all, others, first: 0, taken: 0, returned: 0 })
    }

    /// The kernel gets all slots that a pair has at its start.
    pub fn start(&mut self, pair: &mut Pair, ledger: Option<&Ledger>) {
        self.fill(pair, ledger);
        self.returned = 0;
    }

    /// Readable when a socket is that is not the pair's first.
    pub fn others(&self) -> Option<BorrowedFd<'_>> {
        self.others.as_ref().map(AsFd::as_fd)
    }

    /// Frames that wait in all of them.
    pub fn waiting(&self) -> u64 {
        self.all.iter().map(|inbox| u64::from(inbox.receiver.waiting())).sum()
    }

    /// Frames that the switch has, or that are on the way back.
    pub fn held(&self) -> u64 {
        self.all.iter().map(|inbox| u64::from(inbox.held)).sum()
    }

    /// One of them is half full, or there is half of what all of them keep.
    pub fn is_filling(&self, bound: Option<u32>) -> bool {
        self.all.iter().any(|inbox| inbox.receiver.waiting() > inbox.receiver.size() / 2)
            || bound.is_some_and(|bound| self.waiting() > u64::from(bound / 2))
    }

    /// Spare slots go to the kernel, each to the queue it belongs to.
    pub fn fill(&mut self, pair: &mut Pair, ledger: Option<&Ledger>) {
        let mut next = pair.from_network.take_spare();
        while let Some(mut slot) = next {
            // As many as belong to the same queue, under one lock.
            let queue = pair.from_network.pair_of(slot);
            let Some(inbox) = self.all.get_mut(queue) else { return };
            let mut fill = inbox.home.fill.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let at = pair.from_network.slot(slot).0;
                note(ledger, at, Holder::Fill(fill.next()));
                if !fill.add((at - inbox.home.umem) as u64) {
                    // There is room for all slots of a queue, unless the process before this one has put in others.
                    note(ledger, at, Holder::Us);
                    pair.from_network.put_back(slot);
                    next = None;
                    break;
                }
                inbox.held = inbox.held.saturating_sub(1);
                self.returned += 1;
                next = pair.from_network.take_spare();
                match next {
                    Some(other) if pair.from_network.pair_of(other) == queue => slot = other,
                    _ => break,
                }
            }
            fill.publish();
        }
    }
}

/// How to bind the sockets of a queue. `umem`: its part of the shared memory.
pub fn plan(umem: crate::pair::Extent, index: u32, queue: u16, pairs: u16) -> Plan {
    let (receive, fill) = rings(pairs);
    Plan { umem, chunk: CHUNK, index, queue: queue.into(), receive, fill }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MAX_QUEUES;

    #[test]
    fn slots_suffice_whatever_one_pair_keeps() {
        for pairs in 1..=MAX_QUEUES {
            let (memory, ring) = (memory(pairs), u32::from(ring_of(pairs)));
            // In a socket's ring, and with the switch: no more than its ring has entries, nor than the socket's.
            let kept = ring + ring.min(u32::from(RING));
            let all = u32::from(pairs) * kept;
            assert!(u32::from(memory.slots) >= all + if pairs > 1 { u32::from(MARGIN) } else { 0 }, "{pairs} pairs");
            assert!(ring.is_power_of_two());
        }
    }
}
