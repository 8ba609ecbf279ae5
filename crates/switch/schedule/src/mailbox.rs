//! Letters to a thread that sleeps in epoll.

use crate::sync::{AtomicBool, Epoll, EventFd, Lock, Ordering, Trigger};
use std::io;

/// Letters that a thread has not read yet. Anyone sends; one thread takes.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    letters: Lock<Vec<T>>,
    any: AtomicBool,
    wake: EventFd,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { letters: Lock::default(), any: AtomicBool::new(false), wake: EventFd::new()? })
    }

    /// Has `epoll` report letters as `token`.
    pub(crate) fn register(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        Ok(epoll.add(&self.wake, token, Trigger::Edge)?)
    }

    pub(crate) fn send(&self, letter: T) {
        self.letters.lock().push(letter);
        // Release, and Acquire in `take`: who finds the note finds the letter. A swap, so that a `take` at the same moment comes
        // either before, and leaves the note, or after. Whoever has left a note that is still there wakes the reader for both.
        if !self.any.swap(true, Ordering::AcqRel) {
            self.wake.signal();
        }
    }

    /// The same, in place of letters that have not been read and are of no use beside it.
    pub(crate) fn replace(&self, letter: T, is_of_no_use: impl Fn(&T) -> bool) {
        // Dropped at the end, without the lock.
        let _before: Vec<T> = self.letters.lock().extract_if(.., |before| is_of_no_use(before)).collect();
        self.send(letter);
    }

    /// How many letters have not been read.
    pub(crate) fn waiting(&self) -> usize {
        self.letters.lock().len()
    }

    /// What has come; costs one load if nothing has.
    #[inline]
    pub(crate) fn take(&self) -> Vec<T> {
        // Relaxed: a note that is not seen yet is in the next round, for the thread has been woken.
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.letters.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Notes whether its mailbox's lock was free when it was dropped.
    struct Letter(Arc<Mailbox<Letter>>, Arc<[AtomicUsize; 2]>);

    impl Drop for Letter {
        fn drop(&mut self) {
            self.1[usize::from(self.0.letters.try_lock().is_some())].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// To drop a letter may close descriptors, which others would wait for.
    #[test]
    fn what_is_replaced_is_dropped_without_the_lock() {
        let (mailbox, dropped) = (Arc::new(Mailbox::new().unwrap()), Arc::default());
        let letter = || Letter(mailbox.clone(), Arc::clone(&dropped));
        (0..3).for_each(|_| mailbox.send(letter()));
        mailbox.replace(letter(), |_| true);
        assert_eq!(dropped.each_ref().map(|count| count.load(Ordering::Relaxed)), [0, 3], "with it, and without");
        assert_eq!(mailbox.take().len(), 1);
    }
}
