//! Memory that two processes write, neither of which trusts the other: only ever read and written as whole atomic words, so that
//! whatever the other does at the same moment, a word is what it was at some moment.

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words of a file that the supervisor has made and sealed, mapped for as long as this lives.
#[derive(Debug)]
pub struct SharedWords(NonNull<AtomicU64>, usize);

// SAFETY: nothing but a mapping that lives as long as this, of which only `&[AtomicU64]` are handed out.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps what the supervisor hands over, which may be closed afterwards. `INVAL` if it is no file of so many words.
    pub fn map(fd: impl AsFd, words: usize) -> Result<Self, Errno> {
        let size = fstat(&fd)?.st_size;
        if size == (words * 8) as i64 {
            Self::new(fd, words, ProtFlags::READ | ProtFlags::WRITE)
        } else {
            Err(Errno::INVAL)
        }
    }

    /// The same to be read only, of what has so many words whatever fstat(2) says: a map of eBPF has no size there.
    pub fn map_to_read(fd: impl AsFd, words: usize) -> Result<Self, Errno> {
        Self::new(fd, words, ProtFlags::READ)
    }

    fn new(fd: impl AsFd, words: usize, rights: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping, unmapped in `drop` alone.
        let base = unsafe { mmap(std::ptr::null_mut(), words * 8, rights, MapFlags::SHARED, fd, 0)? };
        Ok(Self(NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, words))
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped for as long as `self` is there; the supervisor sees to it that the file keeps its size. Any bytes
        // are an atomic number, and who else has the file writes it as such or with whole words all the same.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.1) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and borrowed by nobody any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), self.1 * 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealed_memfd;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_are_one_memory_and_its_size_stays() {
        let fd = sealed_memfd("test", 8192).unwrap();
        assert_eq!(SharedWords::map(&fd, 512).unwrap_err(), Errno::INVAL);
        let (a, b) = (SharedWords::map(&fd, 1024).unwrap(), SharedWords::map(&fd, 1024).unwrap());
        a[1023].store(7, Relaxed);
        assert_eq!((b.len(), b[1023].load(Relaxed), b[0].load(Relaxed)), (1024, 7, 0));
        for size in [0, 4096, 16_384] {
            assert_eq!(rustix::fs::ftruncate(&fd, size), Err(Errno::PERM));
        }
        drop((a, fd));
        assert_eq!(b[1023].load(Relaxed), 7);
    }
}
