//! What locks are made of, and how patient they are. `tests/models` compiles `lock.rs` with loom's and with little patience.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};

/// How often a lock is tried before its holder is looked for: some microseconds.
pub(crate) const SPINS: usize = 256;
/// A holder that keeps it for so many back-offs has been stopped: more than the largest burst takes.
pub(crate) const LONG: usize = 40;
/// For so many back-offs, or looks, a newcomer yields to a thread that has waited.
pub(crate) const GIVEN: usize = 8;
/// How often a writer tries before new readers have to wait, too: about a second.
pub(crate) const READER_PREFERENCE: usize = 25_000 * SPINS;

/// Between one look for the holder and the next.
pub(crate) fn back_off() {
    std::thread::sleep(std::time::Duration::from_micros(20));
}

/// As the standard library's, for what needs no code to begin with.
macro_rules! constant_thread_local {
    ($visibility:vis static $name:ident: $of:ty = $first:expr;) => {
        std::thread_local! { $visibility static $name: $of = const { $first } }
    };
}
pub(crate) use constant_thread_local as thread_local;
