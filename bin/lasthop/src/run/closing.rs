//! How much is being closed on threads of its own, because its close(2) may last: files of a dead FUSE mount that a front-end has sent, sockets that linger, a mount
//! namespace. execve(2) waits for such a thread, and nothing can end it. So no other program is executed while anything is left.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Release when one is closed, Acquire where that is asked: whoever sees 0 sees the close done.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Something on its way to a thread that drops it.
#[derive(Debug)]
pub struct Closing<T> {
    // Dropped in this order.
    _thing: T,
    _counted: Counted,
}

impl<T> Closing<T> {
    /// It counts as left until it has been dropped.
    pub fn new(thing: T) -> Self {
        LEFT.fetch_add(1, Ordering::Relaxed);
        Self { _thing: thing, _counted: Counted }
    }
}

#[derive(Debug)]
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        LEFT.fetch_sub(1, Ordering::Release);
    }
}

/// Closes what the kernel takes its time to close, which nobody should wait for.
pub fn close_aside(descriptors: Vec<OwnedFd>) {
    if !descriptors.is_empty() {
        drop_aside(descriptors);
    }
}

/// Drops what holds descriptors, by a thread of its own.
pub fn drop_aside(thing: impl Send + 'static) {
    // Without a thread it is done here, and takes as long.
    let thing = Closing::new(thing);
    let _ = std::thread::Builder::new().name("close".into()).spawn(move || drop(thing));
}

/// Descriptors that a process has sent, which may be any file there is. They are closed aside wherever this is dropped.
#[derive(Debug, Default)]
pub struct Came(Vec<OwnedFd>);

impl Came {
    /// What came. Closed aside as well if it is dropped here.
    pub fn new(descriptors: impl IntoIterator<Item = OwnedFd>) -> Self {
        Self(descriptors.into_iter().collect())
    }

    /// They.
    pub fn all(&self) -> &[OwnedFd] {
        &self.0
    }

    /// Those of another, too.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

impl Drop for Came {
    fn drop(&mut self) {
        close_aside(std::mem::take(&mut self.0));
    }
}

/// Whether anything is left.
pub fn is_anything_left() -> bool {
    LEFT.load(Ordering::Acquire) > 0
}
