//! Completion records, in the layout of [`super::layout`].

use super::layout::NONE;
use super::sync::{AtomicU8, AtomicU32, Ordering};

/// What became of one.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct Completion {
    status: AtomicU8,
    /// What only other operations have, and what a fault was.
    result: [u8; 3],
    bytes: AtomicU32,
    /// Where a page was not there, and what only other operations have.
    others: [u64; 3],
}

impl Completion {
    /// Before it is asked for.
    pub fn clear(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.status.store(NONE, Ordering::Relaxed);
    }

    /// So many bytes are copied.
    pub fn write(&self, status: u8, bytes: u32) {
        self.bytes.store(bytes, Ordering::Relaxed);
        // Release: whoever sees it sees what was copied.
        self.status.store(status, Ordering::Release);
    }

    /// Its status, which is [`NONE`] at first, and how many bytes were copied.
    #[inline]
    pub fn read(&self) -> (u8, u32) {
        let status = self.status.load(Ordering::Acquire);
        (status, self.bytes.load(Ordering::Relaxed))
    }
}
