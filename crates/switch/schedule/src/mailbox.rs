//! Letters to a thread that sleeps in epoll.

use crate::sync::{AtomicBool, Epoll, EventFd, Lock, Ordering, Trigger};
use std::io;

/// Letters that a thread has not read yet. Anyone sends; one thread takes.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    /// `None`: nobody reads them any more.
    letters: Lock<Option<Vec<T>>>,
    any: AtomicBool,
    wake: EventFd,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let letters = Lock::default();
        *letters.lock() = Some(Vec::new());
        Ok(Self { letters, any: AtomicBool::new(false), wake: EventFd::new()? })
    }

    /// Has `epoll` report letters as `token`.
    pub(crate) fn register(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        Ok(epoll.add(&self.wake, token, Trigger::Edge)?)
    }

    /// False: it is closed.
    pub(crate) fn send(&self, letter: T) -> bool {
        if self.letters.lock().as_mut().map(|letters| letters.push(letter)).is_none() {
            return false;
        }
        // Release, and Acquire in `take`: who finds the note finds the letter. A swap, so that a `take` at the same moment comes
        // either before, and leaves the note, or after. Whoever has left a note that is still there wakes the reader for both.
        if !self.any.swap(true, Ordering::AcqRel) {
            self.wake.signal();
        }
        true
    }

    /// The reader goes, unless there are letters: true. Who sends one from then on hears of it.
    pub(crate) fn close(&self) -> bool {
        self.letters.lock().take_if(|letters| letters.is_empty()).is_some()
    }

    /// How many letters have not been read.
    pub(crate) fn waiting(&self) -> usize {
        self.letters.lock().as_ref().map_or(0, Vec::len)
    }

    /// What has come; costs one load if nothing has.
    #[inline]
    pub(crate) fn take(&self) -> Vec<T> {
        // Relaxed: a note that is not seen yet is in the next round, for the thread has been woken.
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        self.letters.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }
}
