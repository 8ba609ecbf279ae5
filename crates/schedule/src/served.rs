//! A vring that packets come from, and who looks after it.

use crate::policy::Arrivals;
use lasthop_forward::{Forwarder, Outcome, Port};
use lasthop_sys::EventFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Known to its port's thread and to the helper that keeps it or is to keep it.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) port: Arc<Port>,
    pub(crate) queue: u16,
    /// Without one the guest is polled.
    pub(crate) kick: Option<EventFd>,
    keeper: AtomicUsize,
    /// Some helper has been told of it and may take it.
    offered: AtomicBool,
    /// Plus one: the helper that has not read yet what it was told of it.
    told: AtomicUsize,
}

const OWN_THREAD: usize = 0;
const NOBODY: usize = usize::MAX;

impl Served {
    /// Kept by its port's thread.
    pub(crate) fn new(port: Arc<Port>, queue: u16, kick: Option<EventFd>) -> Self {
        Self { port, queue, kick, keeper: OWN_THREAD.into(), offered: false.into(), told: 0.into() }
    }

    /// The helper that keeps it, if one does.
    pub(crate) fn helper(&self) -> Option<usize> {
        match self.keeper.load(Ordering::Acquire) {
            OWN_THREAD | NOBODY => None,
            n => Some(n - 1),
        }
    }

    /// Says that helper `n` is told of it; true if it has to be, for the last time is over. From now on, and while one keeps
    /// it, its port's thread looks after it at times.
    pub(crate) fn offer(&self, n: usize) -> bool {
        self.offered.store(true, Ordering::Release);
        self.told.swap(n + 1, Ordering::AcqRel) != n + 1
    }

    /// It is on offer.
    pub(crate) fn is_offered(&self) -> bool {
        self.offered.load(Ordering::Acquire)
    }

    /// Takes the offer back; false if it has been taken up.
    pub(crate) fn withdraw(&self) -> bool {
        self.offered.swap(false, Ordering::AcqRel)
    }

    /// Helper `n`, who has been told of it, takes it, if it is still on offer and its port's thread has it.
    pub(crate) fn take_up(&self, n: usize) -> bool {
        let _ = self.told.compare_exchange(n + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        self.withdraw() && self.take(n)
    }

    /// Helper `n`, who has just given it back, takes it again.
    pub(crate) fn take(&self, n: usize) -> bool {
        self.keeper.compare_exchange(OWN_THREAD, n + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Helper `n` gives it back, or has it taken away. False if it does not keep it.
    pub(crate) fn give_back(&self, n: usize) -> bool {
        self.keeper.compare_exchange(n + 1, OWN_THREAD, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Nobody is to look after it any more.
    pub(crate) fn let_go(&self) {
        self.keeper.store(NOBODY, Ordering::Release);
    }

    /// Moves a burst; `now_ns` goes on by what it takes. Its own thread or its keeper.
    #[inline]
    pub(crate) fn run(&self, forwarder: &mut Forwarder, arrivals: &mut Arrivals, now_ns: &mut u64) -> Outcome {
        let outcome = forwarder.run(&self.port, self.queue, *now_ns / 1_000_000);
        if outcome.packets > 0 {
            let since = std::mem::replace(now_ns, forwarder.now_ns());
            arrivals.found(outcome.packets, *now_ns);
            if let Some(queue) = self.port.queues.get(usize::from(self.queue)) {
                queue.counters.busy_ns.add(now_ns.saturating_sub(since));
            }
        }
        outcome
    }
}
