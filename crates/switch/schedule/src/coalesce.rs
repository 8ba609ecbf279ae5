//! Interrupts held back while their guest runs (PhD figure 4.4).

use crate::helper::{GUARD_NS, Helpers, vm_of};
use crate::policy::{Batch, Interrupt, ReceiveTimer, Vm};
use lasthop_forward::{Coalesce, Port};
use lasthop_lock::Lock;
use lasthop_sys::TimerFd;
use lasthop_types::MAX_QUEUE_PAIRS;
use lasthop_virtqueue::Queue;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};

pub(crate) const NOBODY: usize = usize::MAX;
/// Of an interrupt that nobody waits for.
const NEVER: u64 = u64::MAX;

/// The receive timers of a port. The thread that delivers decides whether to interrupt now. A deferred interrupt is sent by the port's own
/// thread, so none is lost with a helper that loses its core; or by the core that polls the port's rings, which looks at the clock and at the VM
/// each time it has been round its rings.
#[derive(Debug)]
pub(crate) struct Coalescing {
    helpers: Arc<Helpers>,
    /// Helper that sends the deferred interrupt when the guest blocks.
    told: AtomicUsize,
    /// The one that polls the port's rings; nobody: the port has a ring of its own, and its thread, or the one to come, waits for the timer.
    pub(crate) poller: AtomicUsize,
    /// When the first is due of the interrupts that are held back. Whoever changes it from [`NEVER`], or finds it late, has somebody look then. Relaxed:
    /// for an interrupt it is brought forward with the lock of its timer held, and put back to never before all of these are locked and looked at.
    pub(crate) due_ns: AtomicU64,
    /// One for each queue to the guest. Locked only while that queue is.
    timers: [Lock<ReceiveTimer>; MAX_QUEUE_PAIRS],
    /// Runs while any of them waits for the port's thread.
    pub(crate) timer: TimerFd,
}

impl Coalescing {
    pub(crate) fn new(helpers: Arc<Helpers>) -> io::Result<Self> {
        let (told, poller, due_ns) = (NOBODY.into(), NOBODY.into(), NEVER.into());
        Ok(Self { helpers, told, poller, due_ns, timers: Default::default(), timer: TimerFd::new()? })
    }

    fn timer_of(&self, queue: &Queue) -> Option<MutexGuard<'_, ReceiveTimer>> {
        Some(self.timers.get(usize::from(queue.index() / 2))?.lock())
    }

    /// An interrupt waits until then. True: whoever looks is to be told, as it is the first; or as whoever was to look at the one before has not: it was
    /// stopped.
    fn wait_until(&self, then_ns: u64, now_ns: u64, poller: usize) -> bool {
        let before_ns = self.due_ns.fetch_min(then_ns, Relaxed);
        let is_late = now_ns > before_ns.saturating_add(GUARD_NS);
        // One of those who find it late, and once in that time.
        let is_again = is_late && self.due_ns.compare_exchange(before_ns, now_ns, Relaxed, Relaxed).is_ok();
        let is_to_be_told = before_ns == NEVER || is_again;
        if poller == NOBODY && (is_to_be_told || then_ns < before_ns) {
            // A timer that has run out, and of which nobody has heard yet, is forgotten when it is set: then it is over at once.
            self.timer.set_ns(if is_again { 1 } else { then_ns.saturating_sub(now_ns) });
        }
        is_to_be_told
    }
}

impl Coalesce for Coalescing {
    fn interrupts_now(&self, port: &Arc<Port>, queue: &Queue, packets: u32, wanted: bool) -> bool {
        // A driver that was not told does not say again that it wants to be: what it is owed grows all the same.
        let Some(mut timer) = self.timer_of(queue).filter(|timer| wanted || timer.owed > 0) else { return wanted };
        let (now_ns, vm) = (self.helpers.datapath.now_ns(), vm_of(self.helpers.settings.view, port));
        let due = timer.delivered(&Batch::of(&port.batches[1]), packets, vm, now_ns);
        if let (Interrupt::At(then_ns), Vm::Running(core)) = (due, vm) {
            let poller = self.poller.load(Relaxed);
            if self.wait_until(then_ns, now_ns, poller) {
                // Work before blocking (PhD §4.3.5): nobody waits for the timer once the guest sleeps.
                let looks = if poller == NOBODY { self.helpers.on(core) } else { Some(poller) };
                // Relaxed: told twice or told late, a helper finds the same; the letter's way has an order of its own.
                let untold = looks.filter(|n| self.told.swap(*n, Relaxed) != *n || poller != NOBODY);
                untold.into_iter().for_each(|n| self.helpers.interrupt_when_due(n, port));
            }
        }
        due == Interrupt::Now
    }

    fn look(&self, port: &Port, blocked: bool) -> bool {
        let vm = if blocked { Vm::Blocked } else { vm_of(self.helpers.settings.view, port) };
        let (now_ns, due_ns) = (self.helpers.datapath.now_ns(), self.due_ns.load(Relaxed));
        // Never: whoever looks at all of them now may be stopped for long.
        if matches!(vm, Vm::Running(_)) && due_ns != NEVER && now_ns < due_ns {
            // The timer may have been set for another. A core that polls ceases to look, if it is not its port any more.
            let is_polled = self.poller.load(Relaxed) != NOBODY;
            if !is_polled {
                self.timer.set_ns(due_ns - now_ns);
            }
            return is_polled;
        }
        if blocked {
            self.told.store(NOBODY, Relaxed);
        }
        self.due_ns.store(NEVER, Relaxed);
        let mut next_ns = NEVER;
        for queue in port.queues.iter().step_by(2).filter(|queue| queue.is_ready()) {
            let guard = queue.lock();
            match self.timer_of(queue).map(|mut timer| timer.due(&Batch::of(&port.batches[1]), vm, now_ns)) {
                Some(Interrupt::Now) => guard.call(),
                Some(Interrupt::At(then_ns)) => next_ns = next_ns.min(then_ns),
                _ => {}
            }
        }
        next_ns != NEVER && self.wait_until(next_ns, now_ns, self.poller.load(Relaxed))
    }
}
