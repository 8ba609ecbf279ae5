//! What threads that ask for copies and the engine talk to each other by. `tests/models` compiles the files that use it with loom's instead, and with
//! numbers that it gets to the end of.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Places of a queue: a burst's packets in two pieces each. What finds none is the processor's.
pub(super) const PLACES: u64 = 128;
/// How often whoever waits for its copies looks at them before it gives way to others, and how often it does that before it sleeps.
pub(super) const SPINS: u32 = 200;
pub(super) const GIVES_WAY: u32 = 30;

/// Until somebody wakes the calling thread, or for a moment.
pub(super) fn sleep() {
    std::thread::park_timeout(std::time::Duration::from_millis(1));
}

pub(super) fn give_way() {
    std::thread::yield_now();
}
