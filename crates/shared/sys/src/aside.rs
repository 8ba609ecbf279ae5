//! Closes descriptors and unmaps memory on a thread of its own: close(2) may block for ever.
//!
//! Not even SIGKILL ends such a close: a file of a FUSE mount asks whoever serves that mount first, a
//! TCP socket with SO_LINGER waits for its peer, and the last to let go of a huge file frees all its pages. So whatever a peer
//! sent us (and the connection itself, in which more may lie unread) is closed by a thread that does nothing else. There is
//! one of these for each port that has had a peer: one that is stuck holds up that port's descriptors and nobody else's.

use crate::signal_cost::SignalCost;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What takes longer than this to be dropped is not what a VM's front-end sends.
const LONG: Duration = Duration::from_secs(1);
/// Most things that may wait to be dropped. A front-end that behaves has a few dozen descriptors in all.
const MANY: usize = 1024;

/// A value to drop, and whether its drop may take long.
type Thing = (Box<dyn Send>, bool);

/// Drops one port's things, in order, on a thread of its own, which is started with the first. Any thread may use it;
/// nothing here waits for that thread.
#[derive(Debug)]
pub struct Aside {
    name: String,
    things: Sender<Thing>,
    /// Until the thread runs.
    not_started: Mutex<Option<Receiver<Thing>>>,
    progress: Arc<Progress>,
    /// How long signals take that this port's peers are sent.
    pub(crate) signal_cost: SignalCost,
}

#[derive(Debug, Default)]
struct Progress {
    waiting: AtomicUsize,
    /// When the thread began with what it is about, in milliseconds of [`now_ms`]; 0: it waits for work, or that may last.
    since_ms: AtomicU64,
}

impl Aside {
    /// `name`: for the thread, as `close-NAME`.
    pub fn new(name: &str) -> Arc<Self> {
        let (things, receiver) = channel();
        let (not_started, progress) = (Mutex::new(Some(receiver)), Arc::default());
        Arc::new(Self {
            name: format!("close-{name}"),
            things,
            not_started,
            progress,
            signal_cost: SignalCost::default(),
        })
    }

    /// Drops it soon, on the thread.
    pub fn drop_aside(&self, thing: impl Send + 'static) {
        self.push((Box::new(thing), false));
    }

    /// The same for memory, whose unmapping may take long by the kernel's work alone. However long it takes, the port is not stuck.
    pub fn unmap_aside(&self, thing: impl Send + 'static) {
        self.push((Box::new(thing), true));
    }

    fn push(&self, thing: Thing) {
        self.progress.waiting.fetch_add(1, Ordering::Relaxed);
        // The receiver lives as long as we do: in the thread, or here.
        let _ = self.things.send(thing);
        let mut not_started = self.not_started.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(things) = not_started.take() {
            *not_started = self.start(things);
        }
    }

    /// `None`, or what the thread was to have: it is tried again with the next thing, and until then nothing is closed.
    fn start(&self, things: Receiver<Thing>) -> Option<Receiver<Thing>> {
        let (progress, slot) = (self.progress.clone(), Arc::new(Mutex::new(Some(things))));
        let theirs = slot.clone();
        let thread = std::thread::Builder::new().name(self.name.clone()).stack_size(64 << 10).spawn(move || {
            let things = theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
            for (thing, may_last) in things.iter().flatten() {
                progress.since_ms.store(if may_last { 0 } else { now_ms() }, Ordering::Relaxed);
                drop(thing);
                progress.since_ms.store(0, Ordering::Relaxed);
                progress.waiting.fetch_sub(1, Ordering::Release);
            }
        });
        match thread {
            Ok(_) => None,
            Err(_) => slot.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }

    /// Something does not end, or too much waits: nothing more should be taken from whoever it came from.
    pub fn is_stuck(&self) -> bool {
        let since_ms = self.progress.since_ms.load(Ordering::Relaxed);
        let long = since_ms != 0 && now_ms().saturating_sub(since_ms) > LONG.as_millis() as u64;
        long || self.progress.waiting.load(Ordering::Acquire) > MANY
    }
}

/// Milliseconds since the first call, from 1 on.
fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

/// A descriptor that somebody else chose. It is closed aside, and until it is known what it is nothing is asked of it that
/// reaches its file system: no fstat(2), no read, no poll.
#[derive(Debug)]
pub struct Foreign {
    fd: ManuallyDrop<OwnedFd>,
    aside: Arc<Aside>,
}

impl Foreign {
    /// `aside`: the one of its port.
    pub fn new(fd: OwnedFd, aside: &Arc<Aside>) -> Self {
        Self { fd: ManuallyDrop::new(fd), aside: aside.clone() }
    }

    /// Where whatever comes from the same peer is to be dropped.
    pub fn aside(&self) -> &Arc<Aside> {
        &self.aside
    }
}

/// Of a peer without a port: all of these share one thread.
impl From<OwnedFd> for Foreign {
    fn from(fd: OwnedFd) -> Self {
        static PORTLESS: OnceLock<Arc<Aside>> = OnceLock::new();
        Self::new(fd, PORTLESS.get_or_init(|| Aside::new("peers")))
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: `fd` is taken here only, and nobody can use `self` afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        self.aside.drop_aside(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::RecvTimeoutError;

    /// Its end takes as long as somebody else likes.
    struct Slow(Receiver<()>, Sender<&'static str>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
            let _ = self.1.send("slow");
        }
    }

    struct Quick(Sender<&'static str>);

    impl Drop for Quick {
        fn drop(&mut self) {
            let _ = self.0.send("quick");
        }
    }

    #[test]
    fn nobody_waits_for_what_does_not_close_and_its_port_is_known() {
        let (port, other) = (Aside::new("x"), Aside::new("y"));
        let (end, ended) = channel();
        let (tell, told) = channel();
        port.drop_aside(Slow(ended, tell.clone()));
        port.drop_aside(Quick(tell.clone()));
        other.drop_aside(Quick(tell));
        assert_eq!(told.recv(), Ok("quick"), "the other port's");
        assert_eq!(told.recv_timeout(Duration::from_millis(10)), Err(RecvTimeoutError::Timeout));
        while !port.is_stuck() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!other.is_stuck());
        end.send(()).unwrap();
        assert_eq!((told.recv(), told.recv()), (Ok("slow"), Ok("quick")), "in order");
        while port.is_stuck() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn memory_may_take_its_time() {
        let (port, other) = (Aside::new("x"), Aside::new("y"));
        let (ends, told) = ([channel(), channel()], channel());
        let [(end, ended), (other_end, other_ended)] = ends;
        port.unmap_aside(Slow(ended, told.0.clone()));
        other.drop_aside(Slow(other_ended, told.0));
        while !other.is_stuck() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!port.is_stuck());
        drop((end, other_end));
        assert_eq!((told.1.recv(), told.1.recv()), (Ok("slow"), Ok("slow")));
    }

    #[test]
    fn too_much_at_once_is_stuck_as_well() {
        let port = Aside::new("x");
        let (end, ended) = channel();
        port.drop_aside(Slow(ended, channel().0));
        (0..MANY).for_each(|_| port.drop_aside(()));
        assert!(port.is_stuck());
        drop(end);
        while port.is_stuck() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_foreign_descriptor_is_closed() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(Foreign::from(OwnedFd::from(theirs)));
        let mut byte = [0];
        assert_eq!(std::io::Read::read(&mut &ours, &mut byte).unwrap(), 0);
    }
}
