//! A map's value in this process's memory.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The value of a map, as words that programs read and write at any time. Any thread may use it; it lives on after the map.
#[derive(Debug)]
pub struct MappedValue {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: memory that is only ever accessed atomically.
unsafe impl Send for MappedValue {}
// SAFETY: as above.
unsafe impl Sync for MappedValue {}

impl MappedValue {
    /// `fd`: of an array that may be mapped, with one value of `bytes` bytes; or a file of as many, which must not be
    /// shortened.
    pub fn map(fd: impl AsFd, bytes: usize) -> Result<Self, Errno> {
        let (words, protection) = (bytes / 8, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(std::ptr::null_mut(), words * 8, protection, MapFlags::SHARED, fd, 0) }?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, words })
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped, page-aligned, for as long as `self` lives; the kernel does not shorten a map.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for MappedValue {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever uses it borrows `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}
