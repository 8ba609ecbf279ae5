//! Counts the bytes that were moved to, from and within guest memory, and the addresses that were looked up: for tests that show how
//! often a payload moves, and how many descriptors are walked.

use std::cell::Cell;

thread_local! {
    static MOVED: Cell<u64> = const { Cell::new(0) };
    static LOOKED_UP: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that this thread has moved so far, wherever from and to; words of rings and arrays of a fixed length, which
/// headers are read and written by, are left out.
pub fn moved() -> u64 {
    MOVED.get()
}

pub(crate) fn add(bytes: usize) {
    MOVED.set(MOVED.get() + bytes as u64);
}

/// Bytes that were summed as well.
pub(crate) fn add_summed(bytes: usize) {
    add(bytes);
    #[cfg(feature = "dma")]
    crate::dma::summed();
}

/// Addresses that this thread has looked up so far.
pub fn looked_up() -> u64 {
    LOOKED_UP.get()
}

pub(crate) fn look_up() {
    LOOKED_UP.set(LOOKED_UP.get() + 1);
}
