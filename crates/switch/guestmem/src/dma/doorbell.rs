//! How the engine sleeps, and is woken for work.

use super::sync::{AtomicBool, Ordering, fence};

/// Whether it sleeps, or is about to.
#[derive(Debug)]
pub(super) struct Doorbell {
    pub(super) sleeps: AtomicBool,
}

impl Doorbell {
    /// Whoever has asked for a copy ([`super::queue::Queue::submit`]) wakes the engine if this says so: one of all who ask meanwhile.
    #[inline]
    pub(super) fn is_to_be_rung(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed)
    }

    /// Sleeps by `park`, from which whoever finds that the bell is to be rung wakes it, unless it has work. The engine.
    pub(super) fn sleep_unless(&self, has_work: impl FnOnce() -> bool, park: impl FnOnce()) {
        // Swaps, as the other side's is one: loom does not put a plain store in order with those.
        self.sleeps.swap(true, Ordering::Relaxed);
        // Who asks for a copy does that first, and then looks whether we sleep; we do it the other way round.
        fence(Ordering::SeqCst);
        if !has_work() {
            park();
        }
        self.sleeps.swap(false, Ordering::Relaxed);
    }
}
