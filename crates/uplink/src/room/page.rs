//! The page that this process counts in, which the supervisor reads when it has ended.

use lasthop_ipc::{COUNTERS_NAME, COUNTERS_PAGE, COUNTERS_ROW};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapping of the page.
#[derive(Debug)]
pub struct CounterPage(NonNull<u8>);

// SAFETY: a mapping of our own that is accessed by atomic operations only.
unsafe impl Send for CounterPage {}
// SAFETY: as above.
unsafe impl Sync for CounterPage {}

impl CounterPage {
    /// Maps it. The file is that long: the supervisor has made it, and nobody makes it shorter but who wants to end by it.
    pub fn map(memfd: impl AsFd) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(std::ptr::null_mut(), COUNTERS_PAGE, protection, MapFlags::SHARED, memfd, 0) }?;
        Ok(Self(NonNull::new(base.cast()).ok_or(Errno::NOMEM)?))
    }

    /// Names a row; longer names are cut, and rows that do not exist are left out.
    pub fn name(&self, row: usize, name: &str) {
        let mut bytes = [0; COUNTERS_NAME];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        for (i, word) in bytes.as_chunks().0.iter().enumerate() {
            if let Some(at) = self.word(row * COUNTERS_ROW + i * 8) {
                at.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
        }
    }

    /// Adds to a row's number.
    pub fn add(&self, row: usize, more: u64) {
        if let Some(number) = self.word(row * COUNTERS_ROW + COUNTERS_NAME) {
            // Little-endian where the supervisor reads it, which is this machine: every one that lasthop runs on is.
            number.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// A row's number.
    pub fn get(&self, row: usize) -> u64 {
        self.word(row * COUNTERS_ROW + COUNTERS_NAME).map_or(0, |number| number.load(Ordering::Relaxed))
    }

    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let fits = offset.is_multiple_of(8) && offset < COUNTERS_PAGE;
        // SAFETY: a multiple of 8 below the length of the mapping, which is a multiple of 8 and lives as long as `self`.
        fits.then(|| unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(offset).cast()) })
    }
}

impl Drop for CounterPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, used by nobody after.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), COUNTERS_PAGE) };
    }
}
