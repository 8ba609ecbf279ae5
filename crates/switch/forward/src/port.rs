//! A port as the packet path sees it.

use crate::rate::{Meter, RateLimiter};
use crate::upcall::Upcalls;
pub use lasthop_frame::feature;
use lasthop_types::{DEFAULT_WEIGHT, MAX_QUEUE_PAIRS, PortCounters, PortId, PortTotals};
use lasthop_virtqueue::Queue;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Bytes of virtio-net header in front of each frame, given the negotiated features (§5.1.6.1).
pub fn header_len(features: u64) -> usize {
    if features & (feature::VERSION_1 | feature::MRG_RXBUF) != 0 { 12 } else { 10 }
}

/// One port. Shared; its queues have locks of their own.
///
/// Its own words are Relaxed: each says something by itself. Whether a queue is there is looked at once more with its lock held; an MTU or a VM
/// that has just changed holds for the next packets.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// Rings: `2 * pair` to the guest, `2 * pair + 1` from it.
    pub queues: Arc<[Arc<Queue>]>,
    /// Packets that wait for control's answer.
    pub upcalls: Upcalls,
    /// What became of packets from the guest that had waited for control, and what the switch itself sent as if it came from
    /// there. Written by the thread that talks to control, and by no other; queues' counters belong to their locks' holders.
    pub answers: PortCounters,
    /// What it may send: beyond that its ring waits to be read.
    pub sends: RateLimiter,
    /// What it may get: beyond that packets wait for it, or are lost, as if it had no buffers.
    pub gets: RateLimiter,
    /// What of its packets may be flooded.
    pub floods: RateLimiter,
    /// Its share of a thread that looks after several ports' rings, beside theirs.
    pub weight: AtomicU32,
    /// The CPU on which its rings are to be polled that are looked after from now on; if none polls there, any does. `POLLED_NOWHERE`: its own thread has them.
    pub poll_cpu: AtomicU16,
    /// What is gathered before its guest kicks in a stream, and before it is interrupted: microseconds, and in the low 16 bits packets.
    pub batches: [AtomicU64; 2],
    /// Of each pair: for packets from which port alone its queue to the guest is; 0: for those of all ports that have none. Call
    /// [`Port::refresh`] after a change.
    pub kept_for: [AtomicU32; MAX_QUEUE_PAIRS],
    /// Largest IP packet the guest takes, as the front-end said; 0 if it did not.
    mtu: AtomicU16,
    /// Bit per pair whose queue to the guest is ready; in the upper half those of pairs that are kept for a port.
    pairs_ready: AtomicU32,
    coalescing: OnceLock<Arc<dyn Coalesce>>,
    vm: AtomicU32,
}

/// Decides when a guest that wants to be interrupted is.
pub trait Coalesce: fmt::Debug + Send + Sync {
    /// `packets` more have been delivered. `wanted`: the driver asks to be interrupted for them. True: interrupt now. False: the one that decides does it
    /// later, if it is wanted. Called with the lock of the queue to the guest held.
    fn interrupts_now(&self, port: &Arc<Port>, queue: &Queue, packets: u32, wanted: bool) -> bool;
    /// Interrupts the guest, if that is owed, for what has waited long enough, or for all if it has `blocked`. True: the caller is to look
    /// again. Called without locks.
    fn look(&self, port: &Port, blocked: bool) -> bool;
}

impl Port {
    /// A port whose queues are all stopped.
    pub fn new(id: PortId, name: String) -> Self {
        Self {
            id,
            name,
            queues: (0..2 * MAX_QUEUE_PAIRS as u16).map(|i| Arc::new(Queue::new(i))).collect(),
            upcalls: Upcalls::default(),
            answers: PortCounters::default(),
            sends: RateLimiter::default(),
            gets: RateLimiter::default(),
            floods: RateLimiter::default(),
            weight: AtomicU32::new(DEFAULT_WEIGHT),
            poll_cpu: AtomicU16::new(u16::MAX),
            batches: Default::default(),
            kept_for: Default::default(),
            mtu: AtomicU16::new(0),
            pairs_ready: AtomicU32::new(0),
            coalescing: OnceLock::new(),
            vm: AtomicU32::new(u32::MAX),
        }
    }

    /// Has somebody else decide when the guest is interrupted; from then on for good.
    pub fn set_coalescing(&self, coalescing: Arc<dyn Coalesce>) {
        let _ = self.coalescing.set(coalescing);
    }

    /// Under which number the supervisor watches its VM, if it does.
    pub fn vm(&self) -> Option<u32> {
        Some(self.vm.load(Relaxed)).filter(|vm| *vm != u32::MAX)
    }

    /// Says so.
    pub fn set_vm(&self, vm: Option<u32>) {
        self.vm.store(vm.unwrap_or(u32::MAX), Relaxed);
    }

    pub(crate) fn interrupts_now(self: &Arc<Self>, queue: &Queue, packets: u32, wanted: bool) -> bool {
        self.coalescing.get().map_or(wanted, |c| c.interrupts_now(self, queue, packets, wanted))
    }

    /// [`Coalesce::look`].
    pub fn look_after_guest(&self, blocked: bool) -> bool {
        self.coalescing.get().is_some_and(|c| c.look(self, blocked))
    }

    /// The queue that carries packets to the guest for traffic with this hash that comes `from` a port, if there is one: any flow always
    /// takes the same while the set of queues stays, and whom they are kept for.
    #[inline]
    pub fn queue_to_guest(&self, hash: u64, from: PortId) -> Option<&Queue> {
        let ready = self.pairs_ready.load(Relaxed);
        if ready == 1 {
            return self.queues.first().map(|q| &**q);
        }
        let mut bits = ready & u32::from(u16::MAX);
        if ready != bits {
            let own = self.kept_for.iter().position(|port| port.load(Relaxed) == from.0);
            bits = own.filter(|own| ready >> (MAX_QUEUE_PAIRS + own) & 1 != 0).map_or(bits, |own| 1 << own);
        }
        let count = u64::from(bits.count_ones());
        if count == 0 {
            return None;
        }
        let mut nth = (hash >> 32).wrapping_mul(count) >> 32;
        while nth > 0 {
            bits &= bits - 1;
            nth -= 1;
        }
        self.queues.get(2 * bits.trailing_zeros() as usize).map(|q| &**q)
    }

    /// More than one queue to the guest is ready.
    #[inline]
    pub fn is_multi_queue(&self) -> bool {
        let ready = self.pairs_ready.load(Relaxed);
        ready & ready.wrapping_sub(1) != 0
    }

    /// Looks which queues are ready; call after any of them started, stopped, broke or was enabled.
    pub fn refresh(&self) {
        let mut ready = 0;
        for (pair, (queue, of)) in self.queues.iter().step_by(2).zip(&self.kept_for).enumerate() {
            ready |= u32::from(queue.is_ready()) << if of.load(Relaxed) == 0 { pair } else { MAX_QUEUE_PAIRS + pair };
        }
        self.pairs_ready.store(ready, Relaxed);
    }

    /// Some queue to the guest is ready.
    pub fn is_up(&self) -> bool {
        self.pairs_ready.load(Relaxed) != 0
    }

    /// The guest's MTU; 0 if unknown.
    pub fn mtu(&self) -> u16 {
        self.mtu.load(Relaxed)
    }

    /// Sets the guest's MTU.
    pub fn set_mtu(&self, mtu: u16) {
        self.mtu.store(mtu, Relaxed);
    }

    /// Counters summed over queues: from the guest, to the guest.
    pub fn totals(&self) -> (PortTotals, PortTotals) {
        let mut sums = Default::default();
        self.add_to(&mut sums);
        sums
    }

    /// Adds them to the `sums` of several ports.
    pub fn add_to(&self, (from_guest, to_guest): &mut (PortTotals, PortTotals)) {
        for (i, queue) in self.queues.iter().enumerate() {
            let sum = if i % 2 == 0 { &mut *to_guest } else { &mut *from_guest };
            sum.add(&queue.counters);
        }
        from_guest.add(&self.answers);
    }
}

/// All ports, and flows' meters, found by number. A change makes a new one where somebody has this.
#[derive(Clone, Debug, Default)]
pub struct PortTable {
    by_id: Vec<Option<Arc<Port>>>,
    /// Meters of flows.
    pub(crate) meters: BTreeMap<u32, Arc<Meter>>,
}

/// Highest port number a table holds.
const MAX_PORT: usize = 65_535;

impl PortTable {
    /// The port with this number.
    #[inline]
    pub fn get(&self, id: PortId) -> Option<&Arc<Port>> {
        self.by_id.get(id.0 as usize)?.as_ref()
    }

    /// From now on the port with this number is this one.
    pub(crate) fn put(&mut self, id: PortId, port: Option<Arc<Port>>) {
        let at = (id.0 as usize).min(MAX_PORT + 1);
        self.by_id.resize(self.by_id.len().max(at + 1).min(MAX_PORT + 1), None);
        self.by_id.get_mut(at).into_iter().for_each(|place| place.clone_from(&port));
    }
}
