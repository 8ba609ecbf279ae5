//! Closes descriptors and unmaps memory on a thread of its own: close(2) may block for ever.
//!
//! Not even SIGKILL ends such a close: a file of a FUSE mount asks whoever serves that mount first, a
//! TCP socket with SO_LINGER waits for its peer, and the last to let go of a huge file frees all its pages. So whatever a peer
//! sent us (and the connection itself, in which more may lie unread) is closed by a thread that does nothing else. Each port that has something
//! to be closed has one: one that is stuck holds up that port's descriptors and nobody else's. It ends when there has been nothing for a moment.
//!
//! In the switch, where others than the main thread have something to be closed, and in processes that would not try again, all of these are started by one more, `closers`
//! ([`prepare_to_drop_aside`]): whoever has something to be closed may be of another class, on a core where somebody polls, or in a VM's control group. Where no thread can be had,
//! that is tried again until there is one. `closers` itself closes nothing: it would have to wait for ever, too.

#[cfg(any(test, feature = "programs", feature = "supervisor"))]
mod others;

use crate::signal_cost::SignalCost;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, Thread};
use std::time::{Duration, Instant};

/// What takes longer than this to be dropped is not what a VM's front-end sends.
const LONG: Duration = Duration::from_secs(1);
/// Most things that may wait to be dropped. A front-end that behaves has a few dozen descriptors in all.
const MANY: usize = 1024;
/// A thread that has had nothing for so long ends: what one front-end sends, or leaves behind, comes at once.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 1000 });
/// When a thread is tried again that could not be had.
const AGAIN: Duration = Duration::from_secs(1);
const STACK: usize = 64 << 10;

/// A value to drop, and whether its drop may take long.
type Thing = (Box<dyn Send>, bool);

/// Drops one port's things, in order, on a thread of its own, which is there while there are some. Any thread may use it;
/// nothing here waits for that thread.
#[derive(Debug)]
pub struct Aside {
    things: Sender<Thing>,
    work: Arc<Work>,
    /// How long signals take that this port's peers are sent.
    pub(crate) signal_cost: SignalCost,
}

/// What its thread has of it.
#[derive(Debug)]
struct Work {
    name: String,
    things: Mutex<Receiver<Thing>>,
    /// A thread has it, or has been asked for.
    served: AtomicBool,
    waiting: AtomicUsize,
    /// When the thread began with what it is about, in milliseconds of [`now_ms`]; 0: it waits for work, or that may last.
    since_ms: AtomicU64,
}

impl Aside {
    /// `name`: for the thread, as `close-NAME`.
    pub fn new(name: &str) -> Arc<Self> {
        let (things, receiver) = channel();
        let (served, waiting, since_ms, signal_cost) = Default::default();
        let work = Work { name: format!("close-{name}"), things: Mutex::new(receiver), served, waiting, since_ms };
        Arc::new(Self { things, work: Arc::new(work), signal_cost })
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
        self.work.waiting.fetch_add(1, Ordering::Relaxed);
        // The receiver lives as long as we do.
        let _ = self.things.send(thing);
        // AcqRel, as in `serve`: of the two swaps one comes first. If ours does, the thread finds what we have sent.
        if !self.work.served.swap(true, Ordering::AcqRel) {
            if let Some((ask, starter)) = STARTER.get() {
                let _ = ask.send(self.work.clone());
                starter.unpark();
            } else if self.work.clone().start().is_err() {
                self.work.served.store(false, Ordering::Release);
            }
        }
    }

    /// Something does not end, or too much waits: nothing more should be taken from whoever it came from.
    pub fn is_stuck(&self) -> bool {
        let since_ms = self.work.since_ms.load(Ordering::Relaxed);
        let long = since_ms != 0 && now_ms().saturating_sub(since_ms) > LONG.as_millis() as u64;
        long || self.work.waiting.load(Ordering::Acquire) > MANY
    }
}

/// The thread that starts all others of this process, if it has one. It is parked, and not asleep in the channel: who sends while somebody sleeps there takes a lock, which
/// all would share, and may be a helper that loses its core with it.
static STARTER: OnceLock<(Sender<Arc<Work>>, Thread)> = OnceLock::new();

/// Starts the thread that starts all others: they are of the class, on the cores and in the control group of the thread that calls this. For a process whose threads differ in
/// that, or that have nobody who [tries again](Aside::try_again); to be called once. In others whoever has something to be dropped starts a thread for it.
pub fn prepare_to_drop_aside() -> io::Result<()> {
    let (ask, asked) = channel();
    let starter = Builder::new().name("closers".into()).stack_size(STACK).spawn(move || {
        let mut refused = Vec::<Arc<Work>>::new();
        loop {
            refused.extend(asked.try_iter());
            // What refuses one thread refuses others.
            let started = refused.iter().take_while(|work| Arc::clone(work).start().is_ok()).count();
            refused.drain(..started);
            std::thread::park_timeout(if refused.is_empty() { Duration::MAX } else { AGAIN });
        }
    })?;
    STARTER.set((ask, starter.thread().clone())).or(Ok(()))
}

impl Work {
    fn start(self: Arc<Self>) -> io::Result<()> {
        Builder::new().name(self.name.clone()).stack_size(STACK).spawn(move || self.serve()).map(drop)
    }

    /// Drops what there is and what comes, until nothing has for [`IDLE`].
    fn serve(&self) {
        let things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        let finish = |(thing, may_last): Thing| {
            self.since_ms.store(if may_last { 0 } else { now_ms() }, Ordering::Relaxed);
            drop(thing);
            self.since_ms.store(0, Ordering::Relaxed);
            self.waiting.fetch_sub(1, Ordering::Release);
        };
        std::iter::from_fn(|| things.recv_timeout(IDLE).ok()).for_each(finish);
        // Who comes from here on asks for another thread, which waits for the lock.
        self.served.swap(false, Ordering::AcqRel);
        things.try_iter().for_each(finish);
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

    fn threads(name: &str) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks
            .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name))
            .count()
    }

    #[test]
    fn a_thread_is_there_while_there_is_something() {
        let (port, (tell, told)) = (Aside::new("brief"), channel());
        for _ in 0..3 {
            // Many at once: one thread.
            let (end, ended) = channel();
            port.drop_aside(Slow(ended, tell.clone()));
            (0..100).for_each(|_| port.drop_aside(Quick(tell.clone())));
            while threads("close-brief") == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(threads("close-brief"), 1);
            drop(end);
            assert_eq!(told.recv(), Ok("slow"));
            (0..100).for_each(|_| assert_eq!(told.recv(), Ok("quick")));
            while threads("close-brief") > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(port.work.waiting.load(Ordering::Acquire), 0);
        }
    }

    /// Threads end at once here, so most things come just as one ends; others than whoever has something start them from some time on.
    #[test]
    fn nothing_is_left_where_a_thread_ends() {
        let (port, (tell, told)) = (Aside::new("edge"), channel());
        for prepared in [false, true] {
            if prepared {
                prepare_to_drop_aside().unwrap();
            }
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for n in 0..10_000 {
                            port.drop_aside(Quick(tell.clone()));
                            (0..n % 64).for_each(|_| std::hint::spin_loop());
                        }
                    });
                }
            });
            for n in 0..30_000 {
                assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok("quick"), "{n}");
            }
        }
        assert!(!port.try_again());
    }

    #[test]
    fn what_no_thread_could_be_had_for_is_tried_again() {
        let (port, (tell, told)) = (Aside::new("again"), channel());
        // As if somebody were about to be refused one.
        port.work.served.store(true, Ordering::Relaxed);
        port.drop_aside(Quick(tell));
        assert!(told.try_recv().is_err() && !port.try_again());
        port.work.served.store(false, Ordering::Relaxed);
        assert!(!port.try_again(), "there is one now, or one was asked for");
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok("quick"));
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
