//! Interrupts held back while their guest runs (PhD figure 4.4).

use crate::helper::vm_of;
use crate::policy::{Batch, Interrupt, ReceiveTimer};
use lasthop_forward::{Coalesce, Datapath, Port};
use lasthop_sys::{TimerFd, hostview::HostView};
use lasthop_types::MAX_QUEUE_PAIRS;
use lasthop_virtqueue::Queue;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The receive timers of a port. Whoever delivers decides; what waits is paid by the port's own thread, so no debt is
/// lost with a helper that loses its core.
#[derive(Debug)]
pub(crate) struct Coalescing {
    datapath: Arc<Datapath>,
    batch: Batch,
    view: Option<HostView>,
    /// One for each queue to the guest. Locked only while that queue is.
    timers: [Mutex<ReceiveTimer>; MAX_QUEUE_PAIRS],
    /// Runs while any of them waits.
    pub(crate) timer: TimerFd,
}

impl Coalescing {
    pub(crate) fn new(datapath: Arc<Datapath>, batch: Batch, view: Option<HostView>) -> io::Result<Self> {
        Ok(Self { datapath, batch, view, timers: Default::default(), timer: TimerFd::new()? })
    }

    fn timer_of(&self, queue: &Queue) -> Option<MutexGuard<'_, ReceiveTimer>> {
        let timer = self.timers.get(usize::from(queue.index() / 2))?;
        Some(timer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The time is over: interrupts the guest for what waits.
    pub(crate) fn expire(&self, port: &Port) {
        for queue in port.queues.iter().step_by(2).filter(|queue| queue.is_ready()) {
            let guard = queue.lock();
            if self.timer_of(queue).is_some_and(|mut t| t.expired(&self.batch, self.datapath.now_ns())) {
                guard.call();
            }
        }
    }
}

impl Coalesce for Coalescing {
    fn interrupts_now(&self, port: &Port, queue: &Queue, packets: u32) -> bool {
        let Some(mut timer) = self.timer_of(queue) else { return true };
        let now_ns = self.datapath.now_ns();
        match timer.delivered(&self.batch, packets, vm_of(self.view, port), now_ns) {
            Interrupt::Now => true,
            Interrupt::At(then_ns) => {
                self.timer.set_ns(then_ns.saturating_sub(now_ns));
                false
            }
            Interrupt::Later => false,
        }
    }
}
