//! Interrupts held back while their guest runs (PhD figure 4.4).

use crate::helper::{Helpers, vm_of};
use crate::policy::{Batch, Interrupt, ReceiveTimer, Vm};
use lasthop_forward::{Coalesce, Port};
use lasthop_lock::Lock;
use lasthop_sys::TimerFd;
use lasthop_types::MAX_QUEUE_PAIRS;
use lasthop_virtqueue::Queue;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
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
    /// The port has a thread. Written before the queues' locks are taken in [`Coalescing::rest`], and read with one of them.
    pub(crate) awake: AtomicBool,
}

impl Coalescing {
    pub(crate) fn new(helpers: Arc<Helpers>) -> io::Result<Self> {
        let (told, timers, awake) = (NOBODY.into(), Default::default(), false.into());
        Ok(Self { helpers, told, timers, timer: TimerFd::new()?, awake })
    }

    /// The port has no thread from now on: no interrupt is held back, and what is held back is given.
    pub(crate) fn rest(&self, port: &Port) {
        self.awake.store(false, Relaxed);
        self.expire(port);
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
            // Nobody does it later; and packets come so fast that somebody should.
            _ if !self.awake.load(Relaxed) => {
                self.helpers.news.send((port.id, 0, 0));
                timer.expired(&Batch::of(&port.batches[1]), now_ns)
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::Settings;
    use lasthop_forward::Datapath;
    use lasthop_sys::PeerEvent;
    use lasthop_types::PortId;
    use lasthop_virtqueue::driver::{NetConfig, NetDriver};
    use std::os::fd::AsFd;

    #[test]
    fn what_is_held_back_is_given_when_the_port_s_thread_ends() {
        let datapath = Arc::new(Datapath::new(1, lasthop_forward::PATIENCE_MS).unwrap());
        let helpers = Arc::new(Helpers::new(datapath.clone(), Settings::default()).unwrap());
        let (driver, port) = (NetDriver::new(NetConfig::default()).unwrap(), Port::new(PortId(1), "x".into()));
        let (of, queue) = (&driver.queues()[0], &port.queues[0]);
        queue.start(&of.layout.setup(0, driver.config().features()), driver.memory().clone()).unwrap();
        queue.set_enabled(true);
        queue.set_call(Some(PeerEvent::new(of.call.as_fd().try_clone_to_owned().unwrap()).unwrap()));
        port.batches[1].store(1_000_000 << 16 | 64, Relaxed);
        let coalescing = Coalescing::new(helpers).unwrap();
        let deliver = || {
            let _guard = queue.lock();
            let now_ns = datapath.now_ns() + 1_000_000_000;
            coalescing.timer_of(queue).unwrap().delivered(&Batch::of(&port.batches[1]), 1, Vm::Running(0), now_ns)
        };
        assert_eq!(deliver(), Interrupt::Now);
        assert!(matches!(deliver(), Interrupt::At(_)));
        let given = || queue.counters.notifications.get();
        assert_eq!(given(), 0);
        coalescing.rest(&port);
        assert_eq!(given(), 1);
        // Nothing is owed any more.
        coalescing.rest(&port);
        assert_eq!(given(), 1);
    }
}
