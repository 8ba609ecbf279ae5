//! Counts the bytes that were moved to, from and within guest memory: for tests that show how often a payload moves.

use std::cell::Cell;

thread_local! {
    static MOVED: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that this thread has moved so far, wherever from and to; words of rings and arrays of a fixed length, which
/// headers are read and written by, are left out.
pub fn moved() -> u64 {
    MOVED.get()
}

pub(crate) fn add(bytes: usize) {
    MOVED.set(MOVED.get() + bytes as u64);
}
