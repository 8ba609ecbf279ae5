//! Interrupts held back while their guest runs (PhD figure 4.4).

use crate::helper::{Helpers, vm_of};
use crate::policy::{Batch, Interrupt, ReceiveTimer, Vm};
use lasthop_forward::{Coalesce, Port};
use lasthop_lock::Lock;
use lasthop_sys::TimerFd;
use lasthop_types::MAX_QUEUE_PAIRS;
use lasthop_virtqueue::Queue;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};

const NOBODY: usize = usize::MAX;

/// The receive timers of a port. The thread that delivers decides whether to interrupt now. A deferred interrupt is sent by the port's own
/// thread, so none is lost with a helper that loses its core.
#[derive(Debug)]
pub(crate) struct Coalescing {
    helpers: Arc<Helpers>,
    /// Helper that sends the deferred interrupt when the guest blocks.
    told: AtomicUsize,
    /// One for each queue to the guest. Locked only while that queue is.
    timers: [Lock<ReceiveTimer>; MAX_QUEUE_PAIRS],
    /// Runs while any of them waits.
    pub(crate) timer: TimerFd,
}

impl Coalescing {
    pub(crate) fn new(helpers: Arc<Helpers>) -> io::Result<Self> {
        Ok(Self { helpers, told: NOBODY.into(), timers: Default::default(), timer: TimerFd::new()? })
    }

    fn timer_of(&self, queue: &Queue) -> Option<MutexGuard<'_, ReceiveTimer>> {
        Some(self.timers.get(usize::from(queue.index() / 2))?.lock())
    }

    /// The time is over: interrupts the guest for what waits.
    pub(crate) fn expire(&self, port: &Port) {
        let batch = Batch::of(&port.batches[1]);
        for queue in port.queues.iter().step_by(2).filter(|queue| queue.is_ready()) {
            let guard = queue.lock();
            if self.timer_of(queue).is_some_and(|mut t| t.expired(&batch, self.helpers.datapath.now_ns())) {
                guard.call();
            }
        }
    }
}

impl Coalesce for Coalescing {
    fn interrupts_now(&self, port: &Arc<Port>, queue: &Queue, packets: u32) -> bool {
        let Some(mut timer) = self.timer_of(queue) else { return true };
        let (now_ns, vm) = (self.helpers.datapath.now_ns(), vm_of(self.helpers.settings.view, port));
        match timer.delivered(&Batch::of(&port.batches[1]), packets, vm, now_ns) {
            Interrupt::Now => true,
            Interrupt::At(then_ns) => {
                self.timer.set_ns(then_ns.saturating_sub(now_ns));
                // Work before blocking (PhD §4.3.5): nobody waits for the timer once the guest sleeps.
                if let Vm::Running(core) = vm
                    && let Some(helper) = self.helpers.on(core)
                    // Relaxed: told twice or told late, a helper finds the same; the letter's way has an order of its own.
                    && self.told.swap(helper, Relaxed) != helper
                {
                    self.helpers.interrupt_when_blocked(helper, port);
                }
                false
            }
            Interrupt::Later => false,
        }
    }

    fn blocked(&self, port: &Port) {
        self.told.store(NOBODY, Relaxed);
        self.expire(port);
    }
}
