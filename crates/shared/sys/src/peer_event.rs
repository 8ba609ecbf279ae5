//! Event counters that a peer gave us: its interrupts, its errors, its kicks.
//!
//! A peer shares the open file with us. It may clear O_NONBLOCK at any time (fcntl(2) acts on the file, not on the descriptor)
//! and fill the counter, and then write(2) sleeps for as long as it likes, in the middle of a burst, with locks held; no
//! check before the call helps, for it may do so after the check. So nothing is ever written to it. What signals it is the
//! kernel's own half of an eventfd, which KVM and vhost use too: `eventfd_signal` adds one, stays below the limit, and never
//! sleeps whatever the flags say. A process reaches that half by Linux AIO: an operation that is complete at once (a read of
//! nothing from a file of ours) with IOCB_FLAG_RESFD signals the eventfd named in it. And io_submit(2) takes nothing
//! but eventfds there, by looking at what kind of file it is: so a pipe, a socket or a file on a FUSE mount is found out
//! without asking it anything.
//!
//! It costs three times what write(2) does, once for each interrupt: 2.1 µs beside 0.6 µs in a busy virtual machine of two cores
//! (`what_a_signal_costs` below), whatever file is read and however many completions there is room for.
//!
//! It never sleeps, but it takes as long as there are many to wake: see `signal_cost.rs`.
//!
//! A context of AIO is a ring of completions in memory that the kernel shares with us. What it says is of no interest: when
//! the kernel finds no room, the reader's index is moved to the writer's. Both are only hints to the kernel, which
//! keeps count itself; a stale one delays, and breaks nothing.

use crate::Foreign;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// More threads than these need not signal at once: an operation each. The kernel lets all processes of a host have 65 536 (fs.aio-max-nr).
pub const SIGNALLING_THREADS: u32 = 1024;
/// How often a signal is tried while the kernel has no room, though it has been told that all completions are read.
const TRIES: u32 = 1000;
/// What the kernel's ring begins with (fs/aio.c, AIO_RING_MAGIC).
const RING_MAGIC: u32 = 0xa10a_10a1;

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;
/// Flags of an operation that no kernel knows (RWF_*): found out after the eventfd has been looked at and before anything is
/// done.
const UNKNOWN_FLAGS: u32 = 1 << 31;

/// `struct iocb` of linux/aio_abi.h, as little-endian machines have it.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Iocb {
    pub(crate) data: u64,
    pub(crate) key: u32,
    pub(crate) rw_flags: u32,
    pub(crate) opcode: u16,
    pub(crate) priority: i16,
    pub(crate) file: u32,
    pub(crate) buffer: u64,
    pub(crate) bytes: u64,
    pub(crate) offset: i64,
    pub(crate) reserved: u64,
    pub(crate) flags: u32,
    pub(crate) event: u32,
}
const _: () = assert!(size_of::<Iocb>() == 64 && cfg!(target_endian = "little"));

/// The head of the kernel's ring: `struct aio_ring` of fs/aio.c.
#[repr(C)]
struct AioRing {
    id: AtomicU32,
    entries: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: AtomicU32,
    compatible: AtomicU32,
    incompatible: AtomicU32,
}

/// A context, made once and never undone.
#[derive(Debug)]
pub(crate) struct Context {
    /// The kernel names a context by where its ring lies.
    ring: NonNull<AioRing>,
    /// From which nothing is read.
    source: OwnedFd,
}

// SAFETY: the ring is memory of the kernel's that is mapped for as long as the process lives, and only ever accessed
// atomically; io_submit(2) may be called by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// By which all peers' events are signalled.
static CONTEXT: OnceLock<Result<Context, Errno>> = OnceLock::new();

/// Why peers' events cannot be signalled in this process, or not by this descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerEventError {
    /// It is some other file, whose read, write and poll may take any time.
    #[error("the descriptor is not an eventfd, and nothing else can be signalled without waiting")]
    NotAnEvent,
    /// The kernel was built without AIO, or something forbids it.
    #[error(
        "io_setup: {0}; lasthop interrupts guests by Linux AIO, which cannot be made to wait: it needs a kernel with CONFIG_AIO, and a container that allows io_setup and io_submit"
    )]
    NoAio(Errno),
    /// The host's processes have too many operations already.
    #[error("io_setup: the host's limit for AIO is used up; raise it: sysctl fs.aio-max-nr=1048576")]
    Exhausted,
}

/// Makes what is needed to signal peers' events. Before the sandbox is entered, which does not allow it. `threads`: how many
/// may signal at a time; more wait for each other.
pub fn prepare_peer_events(threads: u32) -> Result<(), PeerEventError> {
    context(threads).map(|_| ())
}

fn context(operations: u32) -> Result<&'static Context, PeerEventError> {
    let why = |e: &Errno| if *e == Errno::AGAIN { PeerEventError::Exhausted } else { PeerEventError::NoAio(*e) };
    CONTEXT.get_or_init(|| Context::new(operations)).as_ref().map_err(why)
}

impl Context {
    pub(crate) fn new(operations: u32) -> Result<Self, Errno> {
        // An eventfd refuses to read less than eight bytes, which is the quickest way to complete.
        let source = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word to `id`, and maps memory of its own at an address of its choice.
        if unsafe { libc::syscall(libc::SYS_io_setup, operations, &raw mut id) } < 0 {
            return Err(crate::sched::last_errno());
        }
        let address = usize::try_from(id).map_err(|_| Errno::INVAL)?;
        let ring = NonNull::new(std::ptr::with_exposed_provenance_mut::<AioRing>(address)).ok_or(Errno::INVAL)?;
        let context = Self { ring, source };
        let (magic, incompatible) = (&context.ring().magic, &context.ring().incompatible);
        // All kernels since 2.6 say so; others would have to be asked for their completions.
        if magic.load(Ordering::Relaxed) != RING_MAGIC || incompatible.load(Ordering::Relaxed) != 0 {
            return Err(Errno::NOSYS);
        }
        Ok(context)
    }

    fn ring(&self) -> &AioRing {
        // SAFETY: the kernel mapped at least a page there, page-aligned, and unmaps it at the end of the process.
        unsafe { self.ring.as_ref() }
    }

    /// As the kernel names it.
    pub(crate) fn id(&self) -> usize {
        self.ring.as_ptr().expose_provenance()
    }

    pub(crate) fn submit(&self, mut operation: Iocb) -> Result<(), Errno> {
        let mut list = [&raw mut operation];
        // SAFETY: one pointer to one operation, both of which live until the call returns; the kernel keeps neither, and the operation names no memory: it
        // reads nothing, or is a poll (`watches.rs`), whose `buffer` is no address.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.id(), 1 as libc::c_long, list.as_mut_ptr()) };
        if taken == 1 { Ok(()) } else { Err(crate::sched::last_errno()) }
    }

    /// Has an operation completed that signals `event`. Room for its completion is made when there is none.
    #[inline]
    fn signal(&self, event: BorrowedFd<'_>, rw_flags: u32) -> Result<(), Errno> {
        let (opcode, flags, file) = (IOCB_CMD_PREAD, IOCB_FLAG_RESFD, self.source.as_raw_fd().cast_unsigned());
        let event = event.as_raw_fd().cast_unsigned();
        for n in 0..TRIES {
            match self.submit(Iocb { opcode, rw_flags, file, flags, event, ..Iocb::default() }) {
                Err(Errno::AGAIN) => {
                    let AioRing { head, tail, .. } = self.ring();
                    head.store(tail.load(Ordering::Acquire), Ordering::Release);
                    if n > 0 {
                        // More threads than operations are in the middle of this; none of them waits for anything.
                        std::thread::yield_now();
                    }
                }
                taken => return taken,
            }
        }
        Err(Errno::AGAIN)
    }
}

/// An eventfd of a peer. Any thread may signal it, and never waits. It is closed aside, and signalled there as well if its peer
/// makes that slow.
#[derive(Debug)]
pub struct PeerEvent(Arc<Event>);

#[derive(Debug)]
struct Event {
    fd: Foreign,
    /// It is to be signalled aside.
    owed: AtomicBool,
}

/// A signal that is owed: it is given when this is dropped.
struct OwedSignal(Arc<Event>);

/// Of a thread's time so much is for signals that are slow: one part in this.
const SHARE: u32 = 16;
/// The longest pause after one. More would look like a close that does not end.
const PAUSE: Duration = Duration::from_millis(500);

impl Drop for OwedSignal {
    fn drop(&mut self) {
        // First: what is owed from now on needs another one.
        self.0.owed.store(false, Ordering::Release);
        if let Some(Ok(context)) = CONTEXT.get() {
            let took = self.0.fd.aside().signal_cost.signal_aside(|| _ = context.signal(self.0.fd.as_fd(), 0));
            if took > Duration::from_millis(1) {
                // All of this is a core's time, with interrupts off.
                std::thread::sleep((took * SHARE).min(PAUSE));
            }
        }
    }
}

impl PeerEvent {
    /// Takes a descriptor that a peer sent, if it is an eventfd. Nothing is done to it.
    pub fn new(fd: impl Into<Foreign>) -> Result<Self, PeerEventError> {
        let fd = fd.into();
        match context(SIGNALLING_THREADS)?.signal(fd.as_fd(), UNKNOWN_FLAGS) {
            Err(Errno::OPNOTSUPP) => Ok(Self(Arc::new(Event { fd, owed: AtomicBool::new(false) }))),
            _ => Err(PeerEventError::NotAnEvent),
        }
    }

    /// Adds one. A counter that is full already says what we want to say.
    #[inline]
    pub fn signal(&self) {
        let Some(Ok(context)) = CONTEXT.get() else { return };
        let Event { fd, owed } = &*self.0;
        let cost = &fd.aside().signal_cost;
        if !cost.is_slow() {
            cost.signal(|| _ = context.signal(fd.as_fd(), 0));
        } else if !owed.swap(true, Ordering::AcqRel) {
            fd.aside().drop_aside(OwedSignal(self.0.clone()));
        }
    }
}

impl AsFd for PeerEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventFd;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use rustix::io::{fcntl_dupfd_cloexec, write};

    fn with_peer() -> (EventFd, PeerEvent) {
        let ours = EventFd::new().unwrap();
        let copy = ours.try_clone().unwrap();
        (copy, PeerEvent::new(OwnedFd::from(ours)).unwrap())
    }

    #[test]
    fn signals_arrive_and_the_look_at_it_is_none() {
        let (theirs, ours) = with_peer();
        assert!(!theirs.drain());
        ours.signal();
        assert!(theirs.drain());
        assert!(!theirs.drain());
    }

    /// Many more than there are completions, from several threads.
    #[test]
    fn none_is_lost() {
        let (theirs, ours) = with_peer();
        let each = 20_000;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..each).for_each(|_| ours.signal()));
            }
        });
        let mut count = [0; 8];
        rustix::io::read(&theirs, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 4 * each);
    }

    /// Whatever was signalled before: an eventfd is one while there is no room for completions as well.
    #[test]
    fn an_eventfd_is_known_for_one_at_any_time() {
        let (_theirs, ours) = with_peer();
        for n in 0..5000 {
            ours.signal();
            let other = EventFd::new().unwrap();
            assert!(PeerEvent::new(OwnedFd::from(other)).is_ok(), "after {n} signals");
        }
    }

    /// Its peer has made it wait and filled it after we took it. Without care this test does not end.
    #[test]
    fn a_full_counter_that_blocks_does_not() {
        let (theirs, ours) = with_peer();
        write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let flags = fcntl_getfl(&theirs).unwrap();
        fcntl_setfl(&theirs, flags - OFlags::NONBLOCK).unwrap();
        (0..10_000).for_each(|_| ours.signal());
        assert!(theirs.drain(), "it says what it said before");
    }

    /// A peer that watches its eventfd from thousands of places: soon nobody signals it who has something else to do, and it is
    /// signalled all the same. Another port's is signalled as always.
    #[test]
    fn one_that_is_slow_to_signal_is_signalled_aside() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum.or(Some(30_000)), ..limit });
        let (aside, other) = (crate::Aside::new("slow"), crate::Aside::new("quick"));
        let event = |aside: &Arc<crate::Aside>| {
            let theirs = EventFd::new().unwrap();
            let copy = fcntl_dupfd_cloexec(&theirs, 0).unwrap();
            (theirs, PeerEvent::new(Foreign::new(copy, aside)).unwrap())
        };
        let ((theirs, ours), (_quick, quick)) = (event(&aside), event(&other));
        // Each wakes one that is not awake yet.
        let watches: Vec<_> = (0..10_000).map_while(|_| crate::Epoll::new().ok()).collect();
        watches.iter().for_each(|epoll| epoll.add(&theirs, 0, crate::Trigger::Edge).unwrap());
        let mut signals = 0;
        while !aside.signal_cost.is_slow() {
            ours.signal();
            quick.signal();
            theirs.drain();
            signals += 1;
            assert!(signals < 100_000, "not found to be slow");
        }
        assert!(!other.signal_cost.is_slow());
        for _ in 0..3 {
            ours.signal();
            while !theirs.drain() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn only_eventfds_are_taken() {
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let epoll: OwnedFd = fcntl_dupfd_cloexec(crate::Epoll::new().unwrap(), 0).unwrap();
        let timer: OwnedFd = fcntl_dupfd_cloexec(crate::TimerFd::new().unwrap(), 0).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let memory = crate::memfd("not an event", 4096).unwrap();
        for fd in [pipe, socket.into(), epoll, timer, file.into(), memory] {
            assert_eq!(PeerEvent::new(fd).unwrap_err(), PeerEventError::NotAnEvent);
        }
    }

    /// `cargo test --release -p lasthop-sys -- --ignored --nocapture what_a_signal_costs`
    #[test]
    #[ignore = "a measurement"]
    fn what_a_signal_costs() {
        let (theirs, ours) = with_peer();
        for _ in 0..5 {
            let time = |what: &str, signal: &dyn Fn()| {
                let start = std::time::Instant::now();
                (0..200_000).for_each(|_| signal());
                println!("{what}: {} ns", start.elapsed().as_nanos() / 200_000);
            };
            time("write(2)", &|| theirs.signal());
            time("io_submit(2)", &|| ours.signal());
            theirs.drain();
        }
    }
}
