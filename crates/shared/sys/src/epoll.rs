//! Waiting for many descriptors (epoll(7)).

use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// When a watched descriptor reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// For as long as it is readable.
    Level,
    /// Once for every change: a kick need not be read back, which saves a system call each.
    Edge,
    /// For as long as it is readable or writable.
    ReadWrite,
}

/// An epoll instance. `add`, `modify` and `delete` may be called from any thread while another waits.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// A new, empty instance.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Watches `fd` and reports it as `token`.
    pub fn add(&self, fd: impl AsFd, token: u64, trigger: Trigger) -> Result<(), Errno> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(token), flags(trigger))
    }

    /// Changes how a watched `fd` reports.
    pub fn modify(&self, fd: impl AsFd, token: u64, trigger: Trigger) -> Result<(), Errno> {
        epoll::modify(&self.0, fd, epoll::EventData::new_u64(token), flags(trigger))
    }

    /// Stops watching `fd`. Closing every copy of a descriptor does the same, but peers keep copies.
    pub fn delete(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.0, fd)
    }

    /// Whether something is ready, which it still is for whoever waits next.
    pub fn is_ready(&self) -> bool {
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
    }

    /// Waits until something is ready or the time is over (`None`: for ever). What is (one that hung up or failed, too)
    /// replaces what was in `ready`, by its token. A signal ends the wait early with nothing ready.
    pub fn wait(&self, ready: &mut Vec<u64>, timeout: Option<Duration>) -> Result<(), Errno> {
        ready.clear();
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 64];
        // One that is too long for the kernel is as good as none.
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        match epoll::wait(&self.0, &mut events, timeout.as_ref()) {
            Ok((events, _)) => ready.extend(events.iter().map(|e| e.data.u64())),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn flags(trigger: Trigger) -> epoll::EventFlags {
    match trigger {
        Trigger::Level => epoll::EventFlags::IN,
        Trigger::Edge => epoll::EventFlags::IN | epoll::EventFlags::ET,
        Trigger::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventFd;

    #[test]
    fn edge_reports_each_signal_once_without_a_read() {
        let (epoll, event) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        epoll.add(&event, 5, Trigger::Edge).unwrap();
        let mut ready = Vec::new();
        for _ in 0..3 {
            event.signal();
            epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            assert_eq!(ready, [5]);
            epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            assert_eq!(ready, []);
        }
    }

    #[test]
    fn a_look_takes_nothing_away() {
        let (epoll, event, mut ready) = (Epoll::new().unwrap(), EventFd::new().unwrap(), Vec::new());
        epoll.add(&event, 5, Trigger::Edge).unwrap();
        for _ in 0..3 {
            assert!(!epoll.is_ready());
            event.signal();
            assert!(epoll.is_ready() && epoll.is_ready());
            epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            assert_eq!(ready, [5]);
        }
    }

    /// epoll_wait(2) counts in whole milliseconds, rounded up; a transmit timer of 125 µs would be of no use.
    #[test]
    fn a_wait_may_be_shorter_than_a_millisecond() {
        let (epoll, mut ready) = (Epoll::new().unwrap(), Vec::new());
        let short = |_| {
            let since = std::time::Instant::now();
            epoll.wait(&mut ready, Some(Duration::from_micros(50))).unwrap();
            since.elapsed() < Duration::from_millis(1)
        };
        // On a busy machine any may last longer, but not every one.
        assert!((0..2000).any(short));
    }
}
