//! A queue of a port: its ring while there is one, the memory the ring's buffers lie in, whom to notify, what it counted.

use crate::journal::{Journal, OpenBurst};
use crate::patience::{Ahead, SenderPatience, Shortage};
use crate::{BURST, Chain, Chains, MAX_CHAINS, QueueError, QueueSetup, Ring, feature};
use lasthop_guestmem::GuestMemory;
use lasthop_guestmem::translations::Translations;
use lasthop_lock::Lock;
use lasthop_sys::PeerEvent;
use lasthop_types::{DropReason, PortCounters};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

/// How often chains are taken to see what a predecessor has shown, which the thread does that starts rings. Ordinary chains come 256 at a time,
/// and no more than 4096 are shown in one go; long ones come one at a time.
const LONGEST_WALK: usize = 32;

/// Entries that a driver keeps free for its longest packet: with fewer it stops (Linux: 2 and one for each fragment).
const SPARE: usize = 20;

/// What `lasthop port list` shows of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// Entries; 0 before the first start.
    pub size: u16,
    /// Packed layout.
    pub packed: bool,
    /// Has a ring.
    pub started: bool,
    /// The driver lets it be used.
    pub enabled: bool,
    /// A dummy is in its ring's place ([`Queue::rest`]).
    pub rests: bool,
    /// It has a ring, and nothing was ever written to the first descriptor as far as can be seen: no buffer has been made
    /// available, or this is not the memory that the driver writes to.
    pub blank: bool,
    /// Why it stopped, if it broke.
    pub error: Option<QueueError>,
}

/// One virtqueue of a port, shared by the thread that talks to the front-end and the workers. Its lock is held for a
/// burst at most; a thread that holds the lock of a queue that packets come from may take that of one queue that packets go
/// to, never the other way round.
#[derive(Debug)]
pub struct Queue {
    index: u16,
    ready: AtomicBool,
    inner: Lock<Inner>,
    /// What it counted; written by the lock's holder.
    pub counters: PortCounters,
}

#[derive(Debug, Default)]
struct Inner {
    /// In a place of its own: of a port's 32 queues few are ever started.
    started: Option<Box<StartedQueue>>,
    setup: Option<QueueSetup>,
    enabled: bool,
    error: Option<QueueError>,
    call: Option<PeerEvent>,
    err: Option<PeerEvent>,
    journal: Option<Arc<Journal>>,
    /// What translates its addresses, also while a dummy takes its ring's place. It is told when somebody is at work here; not of the call
    /// that brings it, whose answer the session process waits for.
    table: Option<Arc<Translations>>,
}

/// A started ring with its memory.
#[derive(Debug)]
pub struct StartedQueue {
    /// The ring.
    pub ring: Ring,
    /// The memory its buffers lie in.
    pub memory: Arc<GuestMemory>,
    /// Negotiated virtio feature bits.
    pub features: u64,
    /// Of the chains that will be taken next: which have been done before, out of turn.
    pub ahead: Ahead,
    /// Of a ring that packets come from: how long those that were put back have waited.
    pub sender_patience: SenderPatience,
    /// Of a ring that packets go to: what is known of its want of buffers.
    pub shortage: Shortage,
    /// Its own memory is being translated anew: meanwhile it has a dummy.
    pub rests: bool,
    base: u16,
    journal: Option<Arc<Journal>>,
    /// Chains of the burst that is noted in the journal.
    noted: u16,
}

impl StartedQueue {
    /// Notes that these chains, taken just now, are about to be delivered: should this process be killed before
    /// [`StartedQueue::complete`], they will not be delivered a second time.
    #[inline]
    pub fn note_burst(&mut self, chains: &[Chain]) {
        if let Some(journal) = &self.journal {
            let burst = self.ring.open_burst(chains);
            self.noted = burst.chains;
            journal.open(burst);
        }
    }

    /// Whether nothing behind these chains, just taken from it for a burst, is looked at while the first of them waits: they are a
    /// burst's worth, or all that a driver that wants room for its longest packet puts into a ring this small.
    pub fn is_window(&self, chains: &Chains<'_>) -> bool {
        let size = usize::from(self.ring.size());
        chains.is_full() || chains.list.len() >= (size - SPARE.min(size / 2)).min(BURST)
    }

    /// Shows the driver all that was staged, as [`Ring::publish`], and closes what [`StartedQueue::note_burst`] opened.
    #[inline]
    pub fn complete(&mut self) -> bool {
        self.note_staged();
        let call = self.ring.publish();
        let Some(journal) = &self.journal else { return call };
        journal.close(self.base, self.ring.position() as u16);
        if self.ahead.done != 0 {
            let chains = 64 - self.ahead.done.leading_zeros() as u16;
            journal.open(self.ring.open_ahead(chains));
        }
        call
    }

    /// Before the first packet comes for it: those that do not wait for buffers are to find some. A driver that fills its ring only when it
    /// has started kicks once, which the session process hears, and has the ring looked up anew.
    fn ask_ahead(&mut self, index: u16, starts: bool) {
        if self.memory.is_translated() && index.is_multiple_of(2) {
            self.ring.ask_ahead(&self.memory, true, &mut Chains::default());
            if starts {
                // What breaks the ring is found in its turn.
                let _ = self.ring.enable_kicks(0);
            } else {
                self.ring.disable_kicks();
            }
        }
    }

    /// Notes what is about to be shown, beside what [`StartedQueue::note_burst`] has noted.
    #[inline]
    pub(crate) fn note_staged(&mut self) {
        if let Some(journal) = &self.journal
            && let Some(staged) = self.ring.staged(std::mem::take(&mut self.noted))
        {
            journal.open(staged);
        }
    }

    /// Completes the chains of a burst that a killed predecessor may have delivered; returns how many.
    fn skip(&mut self, open: &OpenBurst) -> usize {
        let position = self.ring.position() as u16;
        let mut left = if position == open.begin {
            open.chains
        } else if position == self.ring.behind(open) {
            // Killed after it showed what it was to show and before it closed the note.
            open.chains.saturating_sub(open.shown)
        } else {
            0
        };
        // A burst has no more. A note that says otherwise is damaged, and not worth a walk of the whole ring on the main thread.
        left = left.min(MAX_CHAINS as u16);
        let mut skipped = 0;
        while left > 0 {
            let mut chains = Chains::default();
            let broken = self.ring.pop(&self.memory, &mut chains, usize::from(left)).is_err();
            self.ring.stage_read(&chains.list);
            left = left.saturating_sub(chains.list.len() as u16);
            skipped += chains.list.len();
            if broken {
                break;
            }
            if chains.list.is_empty() {
                if skipped >= usize::from(open.shown) || !self.ring.finish_showing(open) {
                    break;
                }
                left = open.chains.saturating_sub(open.shown).min(MAX_CHAINS as u16);
            }
        }
        self.ring.publish();
        skipped
    }

    /// A ring that packets go to: if a predecessor was killed while it showed some of them, those that it had not come
    /// to are given back empty (how much was written is not known) and the others stand.
    fn give_back_unshown(&mut self, open: &OpenBurst) {
        if self.ring.position() as u16 != open.begin {
            return;
        }
        let memory = self.memory.clone();
        let mut taken: Vec<Chain> = Vec::new();
        for _ in 0..LONGEST_WALK {
            if taken.len() >= usize::from(open.shown) {
                break;
            }
            let mut chains = Chains::default();
            let most = usize::from(open.shown) - taken.len();
            let broken = self.ring.pop_writable(&memory, &mut chains, most).is_err();
            taken.extend(&chains.list);
            if broken || chains.list.is_empty() {
                break;
            }
        }
        if taken.len() < usize::from(open.shown) && self.ring.is_half_shown(open) {
            taken.iter().for_each(|chain| self.ring.stage_used(chain, 0));
            self.ring.finish_showing(open);
        } else {
            self.ring.unpop(&taken);
        }
    }
}

impl Queue {
    /// A stopped queue. `index` is its vring index, for messages.
    pub fn new(index: u16) -> Self {
        Self { index, ready: AtomicBool::new(false), inner: Lock::default(), counters: PortCounters::default() }
    }

    /// Its vring index: even ones carry packets to the guest, odd ones from it.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Starts the ring. A broken or stopped queue becomes whole again.
    pub fn start(&self, setup: &QueueSetup, memory: Arc<GuestMemory>) -> Result<(), QueueError> {
        let mut guard = self.lock();
        guard.inner.setup = Some(*setup);
        guard.inner.table = memory.table();
        let journal = guard.inner.journal.clone();
        let mut record = journal.as_ref().and_then(|j| j.read());
        let ring = Ring::new(setup, &memory, record.as_mut()).inspect_err(|e| guard.fail(*e))?;
        let (features, base) = (setup.features, setup.base as u16);
        let (ahead, sender_patience, shortage, rests) = Default::default();
        let mut started =
            StartedQueue { ring, memory, features, base, journal, noted: 0, ahead, sender_patience, shortage, rests };
        // A burst that was not published to a guest is simply lost.
        match record.and_then(|record| record.open) {
            Some(open) if self.index % 2 == 1 => {
                let skipped = started.skip(&open) as u64;
                self.counters.packets.add(skipped);
                self.counters.drops.add(DropReason::Recovered, skipped);
            }
            Some(open) => started.give_back_unshown(&open),
            None => {}
        }
        started.ring.disable_kicks();
        started.complete();
        started.ask_ahead(self.index, true);
        guard.inner.error = None;
        guard.inner.started = Some(Box::new(started));
        guard.refresh();
        Ok(())
    }

    /// Stops the ring, when no burst is on it; returns its position for GET_VRING_BASE (where it would have started,
    /// if it broke or never ran). Clears an error.
    pub fn stop(&self) -> Option<u32> {
        let mut guard = self.lock();
        let position = guard.inner.started.take().map(|mut started| {
            let done = std::mem::take(&mut started.ahead).done;
            if done != 0 {
                // Whoever goes on from here would take those anew that were done out of turn: those before them are given up.
                let taken = started.skip(&started.ring.open_ahead(64 - done.leading_zeros() as u16));
                self.counters.drops.add(DropReason::NoBuffers, taken.saturating_sub(done.count_ones() as usize) as u64);
                started.complete();
            }
            started.ring.position()
        });
        guard.inner.error = None;
        guard.refresh();
        position
    }

    /// As [`Queue::stop`], for a front-end that learns the position: whatever it starts here next stands where it says. What the journal
    /// says is of no use any more, and would mislead: a guest that was elsewhere meanwhile comes back with the same rings.
    pub fn hand_over(&self) -> Option<u32> {
        let position = self.stop();
        if let Some(journal) = &self.lock().inner.journal {
            journal.forget();
        }
        position
    }

    /// Replaces the memory under a running ring: its addresses are looked up anew, its position stays.
    pub fn set_memory(&self, memory: Arc<GuestMemory>) -> Result<(), QueueError> {
        self.move_to(false, |setup| Ok((setup, memory)))
    }

    fn move_to(
        &self,
        rests: bool,
        place: impl FnOnce(QueueSetup) -> Result<(QueueSetup, Arc<GuestMemory>), QueueError>,
    ) -> Result<(), QueueError> {
        let mut guard = self.lock();
        let (Some(started), Some(setup)) = (&guard.inner.started, guard.inner.setup) else { return Ok(()) };
        let place = place(QueueSetup { base: started.ring.position(), ..setup });
        let moved = place.and_then(|(setup, memory)| Ok((Ring::new(&setup, &memory, None)?, memory)));
        let (ring, memory) = moved.inspect_err(|e| guard.fail(*e))?;
        guard.inner.table = memory.table().or(guard.inner.table.take());
        if let Some(started) = &mut guard.inner.started {
            (started.ring, started.memory, started.noted, started.rests) = (ring, memory, 0, rests);
            started.ask_ahead(self.index, false);
        }
        Ok(())
    }

    /// Takes the ring's own memory from under it until [`Queue::set_memory`]. A dummy takes its place (PhD 3.4.3), in which the driver has
    /// nothing available (zeros in a packed ring, two indices alike in a split one): packets wait, and nobody touches the driver's ring.
    pub fn rest(&self) -> Result<(), QueueError> {
        self.move_to(true, |setup| {
            // No part is longer than the first.
            let part = 16 * u64::from(setup.size);
            let memory = GuestMemory::anonymous(3 * part).map_err(|_| QueueError::MemoryFault)?;
            for index in [part + 2, 2 * part + 2] {
                memory.slice(index, 2).map_err(QueueError::RingMemory)?.store_u16(0, setup.base as u16);
            }
            Ok((QueueSetup { desc: 0, driver: part, device: 2 * part, ..setup }, Arc::new(memory)))
        })
    }

    /// Where to keep what must be known should this process be killed. Before the first start.
    pub fn set_journal(&self, journal: Journal) {
        self.lock().inner.journal = Some(Arc::new(journal));
    }

    /// Whom to interrupt.
    pub fn set_call(&self, call: Option<PeerEvent>) {
        self.lock().inner.call = call;
    }

    /// Whom to tell when the ring breaks.
    pub fn set_err(&self, err: Option<PeerEvent>) {
        self.lock().inner.err = err;
    }

    /// SET_VRING_ENABLE.
    pub fn set_enabled(&self, enabled: bool) {
        let mut guard = self.lock();
        guard.inner.enabled = enabled;
        guard.refresh();
    }

    /// What state it is in.
    pub fn status(&self) -> QueueStatus {
        let guard = self.lock();
        QueueStatus {
            size: guard.inner.setup.map_or(0, |s| s.size),
            packed: guard.inner.setup.is_some_and(|s| s.has(feature::PACKED)),
            started: guard.inner.started.is_some(),
            enabled: guard.inner.enabled,
            rests: guard.inner.started.as_ref().is_some_and(|started| started.rests),
            blank: guard.inner.started.as_ref().is_some_and(|started| started.ring.is_blank()),
            error: guard.inner.error,
        }
    }

    /// Started and enabled, as far as can be seen without the lock.
    #[inline]
    pub fn is_ready(&self) -> bool {
        // Relaxed: a hint; a thread that goes by it takes the lock and looks again.
        self.ready.load(Ordering::Relaxed)
    }

    /// Waits for the lock, which is held for a burst at most.
    #[inline]
    pub fn lock(&self) -> QueueGuard<'_> {
        self.held(self.inner.lock())
    }

    /// Takes the lock if nobody has it: otherwise somebody is on it already (PhD §4.4.3).
    #[inline]
    pub fn try_lock(&self) -> Option<QueueGuard<'_>> {
        Some(self.held(self.inner.try_lock()?))
    }

    #[inline]
    fn held<'q>(&'q self, inner: MutexGuard<'q, Inner>) -> QueueGuard<'q> {
        if let Some(table) = &inner.table {
            table.set_at_work(self.index, true);
        }
        QueueGuard { inner, queue: self }
    }
}

/// The queue's lock, held.
#[derive(Debug)]
pub struct QueueGuard<'q> {
    inner: MutexGuard<'q, Inner>,
    queue: &'q Queue,
}

impl Drop for QueueGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(table) = &self.inner.table {
            table.set_at_work(self.queue.index, false);
        }
    }
}

impl QueueGuard<'_> {
    /// The ring, if packets may pass.
    #[inline]
    pub fn started(&mut self) -> Option<&mut StartedQueue> {
        if self.inner.enabled { self.inner.started.as_deref_mut() } else { None }
    }

    /// Interrupts the guest. Never waits, whatever its front-end does to the descriptor.
    #[inline]
    pub fn call(&self) {
        if let Some(call) = &self.inner.call {
            call.signal();
            // Of a queue that packets come from, the guest's kicks are counted and not our answers.
            if self.queue.index.is_multiple_of(2) {
                self.queue.counters.notifications.add(1);
            }
        }
    }

    /// Stops the ring for good (until it is started anew) and tells the front-end.
    pub fn fail(&mut self, error: QueueError) {
        self.inner.started = None;
        self.inner.error = Some(error);
        if let Some(err) = &self.inner.err {
            err.signal();
        }
        self.refresh();
    }

    /// The guest is interrupted where packets may not pass any more: nobody looks after an interrupt that was held back until then.
    fn refresh(&mut self) {
        let ready = self.inner.enabled && self.inner.started.is_some();
        if self.queue.ready.swap(ready, Ordering::Relaxed) && !ready {
            self.call();
        }
    }
}
