//! Event counters (eventfd(2)) of our own: wake-ups between our threads. Those that a peer gave us are [`crate::PeerEvent`]s.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd that only we, or processes of ours, hold: non-blocking, and nobody makes it anything else. Any thread may
/// signal, any thread may drain.
#[derive(Debug)]
pub struct EventFd(pub(crate) OwnedFd);

impl EventFd {
    /// A new counter at 0, close-on-exec.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Adds one. A counter that is full already says what we want to say, so errors are ignored.
    #[inline]
    pub fn signal(&self) {
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Sets the count back to 0; true if it was not 0.
    pub fn drain(&self) -> bool {
        read(&self.0, &mut [0u8; 8]).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
