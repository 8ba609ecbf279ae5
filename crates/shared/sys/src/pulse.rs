//! Signs of life: a page that a process shares with its supervisor, with a counter for each thread that others wait for. A
//! thread counts when it begins a round of work and when it goes to sleep: one store to a cache line of its own, no message. The
//! supervisor looks at the page a few times a second, and believes none of it (`bin/lasthop/src/run/watchdog.rs`).

use crate::{SharedWords, current_thread};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};

/// Threads that fit, and the head. More go without.
const SLOTS: usize = 4096;
/// Bytes of a slot: a cache line, so that nobody waits for another thread's count.
const LINE: usize = 64;

/// The words of a slot.
type Slot = [AtomicU64; LINE / 8];
/// Of these a thread's number, 0 if the slot is free. Of the head, which is the first slot: nothing.
const THREAD: usize = 0;
/// And its count: odd while it is at work. Of the head: how many slots were ever used.
const BEATS: usize = 1;

static PAGE: OnceLock<SharedWords> = OnceLock::new();

/// Maps the page that the supervisor hands over, for the life of the process. `INVAL` if it is of another size.
pub fn map_pulse(fd: impl AsFd) -> Result<(), Errno> {
    PAGE.set(SharedWords::map(fd, SLOTS * LINE / 8)?).map_err(|_| Errno::EXIST)
}

/// The count of one thread.
#[derive(Debug)]
pub struct Beat(Option<&'static Slot>);

#[allow(clippy::new_without_default)] // It takes a place, which is no thing to be done by default.
impl Beat {
    /// Of the calling thread, which is at work. Without a page, or with none free, nothing is counted.
    pub fn new() -> Self {
        let (head, slots) = PAGE.get().and_then(|page| page.as_chunks().0.split_first()).unzip();
        let take = |slot: &Slot| slot[THREAD].compare_exchange(0, current_thread() as u64, AcqRel, Relaxed).is_ok();
        let taken = slots.and_then(|slots| slots.iter().enumerate().find(|(_, slot)| take(slot)));
        if let (Some(head), Some((at, _))) = (head, taken) {
            head[BEATS].fetch_max(at as u64 + 1, AcqRel);
        }
        let beat = Self(taken.map(|(_, slot)| slot));
        beat.work();
        beat
    }

    /// It begins a round of work.
    #[inline]
    pub fn work(&self) {
        self.count(|beats| (beats | 1).wrapping_add(2));
    }

    /// It goes to sleep, until there is work.
    #[inline]
    pub fn sleep(&self) {
        self.count(|beats| (beats | 1).wrapping_add(1));
    }

    #[inline]
    fn count(&self, next: impl Fn(u64) -> u64) {
        if let Some(slot) = self.0 {
            slot[BEATS].store(next(slot[BEATS].load(Relaxed)), Release);
        }
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot[THREAD].store(0, Release);
        }
    }
}

#[cfg(any(test, feature = "supervisor"))]
pub use page::{Pulse, Sign};

#[cfg(any(test, feature = "supervisor"))]
mod page {
    use super::{BEATS, LINE, SLOTS, THREAD};
    use crate::sealed_memfd;
    use rustix::io::{Errno, pread};
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    /// What a thread says of itself. Whoever runs in its process may have written this.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Sign {
        /// Its number, as the kernel counts.
        pub thread: u32,
        /// Different each time it begins a round of work, or goes to sleep.
        pub beats: u32,
    }

    impl Sign {
        /// It has work.
        pub fn is_at_work(self) -> bool {
            self.beats % 2 == 1
        }
    }

    /// The supervisor's end of a process's page.
    #[derive(Debug)]
    pub struct Pulse {
        page: OwnedFd,
        bytes: Vec<u8>,
    }

    impl Pulse {
        /// For a process that is to be started.
        pub fn new() -> Result<Self, Errno> {
            Ok(Self { page: sealed_memfd("lasthop-pulse", (SLOTS * LINE) as u64)?, bytes: Vec::new() })
        }

        /// Of a process that another program of this process has started.
        pub fn kept(page: OwnedFd) -> Self {
            Self { page, bytes: Vec::new() }
        }

        /// The threads there are, as they say.
        pub fn read(&mut self) -> impl Iterator<Item = Sign> {
            let mut head = [0; LINE];
            let used = if pread(&self.page, &mut head, 0) == Ok(LINE) { word(&head, BEATS) as usize } else { 0 };
            self.bytes.resize(used.min(SLOTS - 1) * LINE, 0);
            let read = pread(&self.page, &mut self.bytes[..], LINE as u64).unwrap_or(0);
            let lines = self.bytes.get(..read).unwrap_or_default().chunks_exact(LINE);
            lines
                .map(|line| Sign { thread: word(line, THREAD), beats: word(line, BEATS) })
                .filter(|sign| sign.thread != 0)
        }
    }

    impl AsFd for Pulse {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.page.as_fd()
        }
    }

    /// The low half of a word: who counts for long begins anew.
    fn word(line: &[u8], at: usize) -> u32 {
        line.get(8 * at..8 * at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_come_count_and_go() {
        assert_eq!(map_pulse(crate::memfd("other", 4096).unwrap()), Err(Errno::INVAL));
        drop(Beat::new());
        let mut pulse = Pulse::new().unwrap();
        map_pulse(&pulse).unwrap();
        assert_eq!(map_pulse(&pulse), Err(Errno::EXIST));
        let us = current_thread() as u32;
        let mut ours = || pulse.read().find(|sign| sign.thread == us);
        assert_eq!(ours(), None);
        let beat = Beat::new();
        let mut before = ours().unwrap();
        assert!(before.is_at_work());
        for at_work in [true, false, false, true, true] {
            if at_work {
                beat.work()
            } else {
                beat.sleep()
            }
            let now = ours().unwrap();
            assert_eq!((now.is_at_work(), now.beats != before.beats), (at_work, true));
            before = now;
        }
        let other = std::thread::spawn(|| {
            let _beat = Beat::new();
            current_thread() as u32
        });
        let other = other.join().unwrap();
        let threads: Vec<u32> = pulse.read().map(|sign| sign.thread).collect();
        assert!(threads.contains(&us) && !threads.contains(&other), "{threads:?}");
        drop(beat);
        assert_eq!(pulse.read().count(), 0);
        // Whatever is written there.
        rustix::io::pwrite(&pulse, &[0xff; 4096], 0).unwrap();
        assert!(pulse.read().count() >= 63);
    }
}
