//! What the switch does not need: a session process tries again, and tests have peers without a port.

use super::{Aside, Foreign};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

impl Aside {
    /// Tries again to start a thread where none could be had for what waits, in a process that has not [prepared](super::prepare_to_drop_aside). Whether that is to
    /// be done once more, in a moment.
    pub fn try_again(&self) -> bool {
        let refused = || {
            let nobody = !self.work.served.swap(true, Ordering::AcqRel) && self.work.clone().start().is_err();
            if nobody {
                self.work.served.store(false, Ordering::Release);
            }
            nobody
        };
        self.work.waiting.load(Ordering::Acquire) > 0 && refused()
    }
}

/// Of a peer without a port: all of these share one thread.
impl From<OwnedFd> for Foreign {
    fn from(fd: OwnedFd) -> Self {
        static PORTLESS: OnceLock<Arc<Aside>> = OnceLock::new();
        Self::new(fd, PORTLESS.get_or_init(|| Aside::new("peers")))
    }
}
