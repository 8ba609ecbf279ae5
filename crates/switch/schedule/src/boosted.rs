//! A helper in the way of others: put into the normal class by the supervisor, and back into the idle class by itself.

use crate::sync::{AtomicBool, Ordering};

/// Whether the supervisor has been asked for a helper since that last put itself back.
#[derive(Debug, Default)]
pub(crate) struct Boosted(AtomicBool);

impl Boosted {
    /// Somebody needs the helper: true if the supervisor has to be asked.
    pub(crate) fn ask(&self) -> bool {
        // AcqRel, as in `put_back`: who asks anew does so after the helper has gone back to the idle class.
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Somebody has needed it.
    pub(crate) fn is_asked(&self) -> bool {
        // Relaxed: the helper looks again in its next round.
        self.0.load(Ordering::Relaxed)
    }

    /// The helper puts itself back by `set_idle`. Only then may it be asked for again: asked for before, it would be idle and
    /// be taken as asked for, and the next to find it stopped with a lock would ask nobody.
    pub(crate) fn put_back(&self, set_idle: impl FnOnce()) {
        set_idle();
        self.0.swap(false, Ordering::AcqRel);
    }
}
