//! In place of `crate::sync` of `crates/shared/lock` and `crates/switch/schedule`.

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, Ordering::Relaxed};
pub(crate) use loom::sync::{Mutex, MutexGuard, Notify, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use loom::thread_local;
pub(crate) use std::sync::{TryLockError, TryLockResult};

use lasthop_guestmem::Weak;
use std::io;
use std::sync::Arc;

pub(crate) const SPINS: usize = 1;
pub(crate) const LONG: usize = 2;
pub(crate) const GIVEN: usize = 1;
pub(crate) const READER_PREFERENCE: usize = 2;

pub(crate) fn back_off() {
    loom::thread::yield_now();
}

/// A counter: whoever waits for it sees what came before it was signalled.
#[derive(Clone)]
pub(crate) struct EventFd(Arc<Notify>);

impl std::fmt::Debug for EventFd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventFd")
    }
}

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Notify::new())))
    }

    pub(crate) fn signal(&self) {
        self.0.notify();
    }
}

/// Of system calls, which do not fail here.
#[derive(Debug)]
pub(crate) struct Errno;

impl From<Errno> for io::Error {
    fn from(_: Errno) -> Self {
        io::Error::other("a system call")
    }
}

pub(crate) enum Trigger {
    Edge,
}

/// With one descriptor.
#[derive(Default)]
pub(crate) struct Epoll(std::sync::Mutex<Option<EventFd>>);

impl Epoll {
    pub(crate) fn add(&self, event: &EventFd, _token: u64, _: Trigger) -> Result<(), Errno> {
        *self.0.lock().expect("nobody panics with it") = Some(event.clone());
        Ok(())
    }

    pub(crate) fn wait(&self) {
        let event = self.0.lock().expect("nobody panics with it").clone();
        event.expect("something is watched").0.wait();
    }
}

/// For a mailbox, which needs of a lock only that one at a time has it (`locks` has the real one).
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("nobody panics with it")
    }
}

std::thread_local! {
    // loom runs all threads of a model on one.
    static WEAK: std::cell::Cell<Option<Weak>> = const { std::cell::Cell::new(None) };
}

/// From now on the calling thread's models of [`AtomicU64`]s and fences do without this.
pub(crate) fn weaken(weak: Option<Weak>) {
    WEAK.set(weak);
}

pub(crate) fn unless(weak: Weak, order: Ordering) -> Ordering {
    if WEAK.get() == Some(weak) { Relaxed } else { order }
}

/// Of what reads and writes at once.
pub(crate) fn both(order: Ordering) -> Ordering {
    match (order, WEAK.get()) {
        (Ordering::AcqRel, Some(Weak::Acquire)) => Ordering::Release,
        (Ordering::AcqRel, Some(Weak::Release)) => Ordering::Acquire,
        _ => order,
    }
}

/// Words of memory that processes share.
#[derive(Debug)]
pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) fn new(word: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(word))
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.load(unless(Weak::Acquire, order))
    }

    pub(crate) fn store(&self, word: u64, order: Ordering) {
        self.0.store(word, unless(Weak::Release, order));
    }
}

pub(crate) fn fence(order: Ordering) {
    if unless(Weak::Fence, order) != Relaxed {
        loom::sync::atomic::fence(order);
    }
}
