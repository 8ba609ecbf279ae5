//! Waiting for descriptors of our own, for each once, and however many there are.
//!
//! epoll(7) would do, were they not epolls themselves, in which peers' eventfds are watched. Of one within another the kernel follows all ways that a wake-up may go whenever something is
//! added to either: from each eventfd that is watched in it to all who watch that, of which its peer may have very many; under one mutex for the whole host. And whoever watched the eventfds of all
//! peers without that would add them and take them out again, and wait each time for the wake-ups that a peer makes long. A poll by Linux AIO looks at what it is given and no further:
//! one entry in one list, of a file that is ours.

use crate::peer_event::{Context, Iocb};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

const IOCB_CMD_POLL: u16 = 5;

/// Descriptors, each of which is reported once. Any thread watches; one waits. Or why none can be.
#[derive(Debug)]
pub struct Watches(Result<Context, Errno>);

impl Watches {
    /// For so many at a time, or a quarter or a 16th where the host has no room for more (fs.aio-max-nr), or none. Before the sandbox is entered, which does not allow it.
    pub fn new(most: u32) -> Self {
        Self(Context::new(most).or_else(|_| Context::new(most / 4)).or_else(|_| Context::new(most / 16)))
    }

    /// Reports `token`, once, when `fd` is readable: at once if it is. An error: it is not watched; there is no room (`AGAIN`), or the kernel cannot do it.
    pub fn watch(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        let (file, buffer) = (fd.as_fd().as_raw_fd().cast_unsigned(), libc::POLLIN as u64);
        let poll = Iocb { opcode: IOCB_CMD_POLL, data: token, file, buffer, ..Iocb::default() };
        self.0.as_ref().map_err(|error| *error)?.submit(poll)
    }

    /// What has been reported, once there is something; nothing when the time is over, or a signal has come. An error, at once: nothing will be.
    pub fn wait(&self, most: Duration) -> Result<Vec<u64>, Errno> {
        // `struct io_event` of linux/aio_abi.h in words; the first is what was given with the operation.
        let mut events = [[0_u64; 4]; 64];
        let until = libc::timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let (id, least, room) = (self.0.as_ref().map_err(|error| *error)?.id(), 1 as libc::c_long, events.len());
        // SAFETY: the kernel writes no more events than there is room for, and reads the time; both live until the call returns.
        let got =
            unsafe { libc::syscall(libc::SYS_io_getevents, id, least, room, events.as_mut_ptr(), &raw const until) };
        if got < 0 && crate::sched::last_errno() != Errno::INTR {
            return Err(crate::sched::last_errno());
        }
        Ok(events.iter().take(usize::try_from(got).unwrap_or(0)).map(|[token, ..]| *token).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoll, EventFd, Trigger};

    const LONG: Duration = Duration::from_secs(20);

    /// A host allows 65 536 operations to all processes together, unless it is told otherwise.
    #[test]
    fn where_there_is_no_room_nothing_is_watched_and_nothing_waited_for() {
        let watches = Watches::new(1 << 30);
        let error = watches.wait(LONG).unwrap_err();
        assert_eq!(watches.watch(EventFd::new().unwrap(), 1), Err(error));
        let all = std::fs::read_to_string("/proc/sys/fs/aio-max-nr").unwrap();
        let some = Watches::new(all.trim().parse::<u32>().unwrap().saturating_add(1));
        assert_eq!(some.watch(EventFd::new().unwrap(), 1), Ok(()), "a quarter, or a 16th");
    }

    #[test]
    fn what_is_watched_is_reported_once() {
        let watches = Watches::new(8);
        let (epoll, kick, mut ready) = (Epoll::new().unwrap(), EventFd::new().unwrap(), Vec::new());
        epoll.add(&kick, 1, Trigger::Edge).unwrap();
        for round in 0..100 {
            watches.watch(&epoll, round).unwrap();
            assert_eq!(watches.wait(Duration::ZERO), Ok(vec![]));
            kick.signal();
            kick.signal();
            assert_eq!(watches.wait(LONG), Ok(vec![round]));
            assert_eq!(watches.wait(Duration::from_millis(1)), Ok(vec![]));
            // It was signalled before it is watched.
            watches.watch(&epoll, 7).unwrap();
            assert_eq!(watches.wait(LONG), Ok(vec![7]));
            epoll.wait(&mut ready, None).unwrap();
            assert_eq!(ready, [1]);
        }
    }

    #[test]
    fn more_than_there_is_room_for_are_refused_until_some_have_been_reported() {
        let watches = Watches::new(8);
        let kick = EventFd::new().unwrap();
        let fill = || (0..100_000).position(|token| watches.watch(&kick, token) == Err(Errno::AGAIN)).unwrap();
        let room = fill();
        assert!(room >= 8);
        kick.signal();
        let mut all = 0;
        while all < room {
            all += watches.wait(LONG).unwrap().len();
        }
        kick.drain();
        assert!(fill() > 0);
    }

    /// A peer has its eventfd watched from many places. Where one epoll is put into another the kernel looks at them all, and refuses; a watch does not look.
    #[test]
    fn from_how_many_places_a_peer_is_watched_is_not_looked_at() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum.or(Some(30_000)), ..limit });
        let (theirs, watches) = (EventFd::new().unwrap(), Watches::new(8));
        let watching = || {
            let epoll = Epoll::new().unwrap();
            epoll.add(&theirs, 0, Trigger::Edge).unwrap();
            epoll
        };
        let (outer, ours) = (Epoll::new().unwrap(), watching());
        let others: Vec<_> = (0..1000).map(|_| watching()).collect();
        let refused = others.iter().position(|epoll| outer.add(epoll, 0, Trigger::Edge).is_err());
        assert!(refused.is_some(), "the kernel allows 500 ways of two steps");
        assert_eq!(Epoll::new().unwrap().add(&ours, 0, Trigger::Edge), Err(Errno::INVAL));
        watches.watch(&ours, 5).unwrap();
        theirs.signal();
        assert_eq!(watches.wait(LONG), Ok(vec![5]));
    }
}
