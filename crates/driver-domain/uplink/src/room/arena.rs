//! The shared memory as the kernel is shown it: frames are read from a device into it and written to a device from it,
//! without a copy in between. No Rust reference to it is ever made: the switch maps it too.

use super::last_errno;
use crate::pair::{Extent, MAX_PIECES};
use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A mapping of the whole shared memory.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range; every access goes through the kernel, for which any process may change the bytes meanwhile.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `len` bytes of the memfd, which has as many.
    pub(crate) fn map(memfd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, memfd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// The run as the kernel wants it; `None` if it is not wholly inside.
    pub(super) fn iovec(&self, (offset, len): Extent) -> Option<libc::iovec> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        fits.then(|| libc::iovec { iov_base: self.base.as_ptr().wrapping_add(offset).cast(), iov_len: len })
    }

    /// read(2) into a run; how many bytes came.
    pub fn read(&self, fd: impl AsFd, run: Extent) -> Result<usize, Errno> {
        let iovec = self.iovec(run).ok_or(Errno::FAULT)?;
        // SAFETY: `iovec` checked that the range lies in the mapping, which lives as long as `self`.
        let n = unsafe { libc::read(fd.as_fd().as_raw_fd(), iovec.iov_base, iovec.iov_len) };
        usize::try_from(n).map_err(|_| last_errno())
    }

    /// writev(2) of runs; how many bytes went.
    pub fn write(&self, fd: impl AsFd, runs: &[Extent]) -> Result<usize, Errno> {
        let iovecs: Option<ArrayVec<_, MAX_PIECES>> = runs.iter().take(MAX_PIECES).map(|r| self.iovec(*r)).collect();
        let iovecs = iovecs.ok_or(Errno::FAULT)?;
        // SAFETY: as in `read`, for each of them; their number is that of the array.
        let n = unsafe { libc::writev(fd.as_fd().as_raw_fd(), iovecs.as_ptr(), iovecs.len() as libc::c_int) };
        usize::try_from(n).map_err(|_| last_errno())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever uses it holds an `Arc` of this.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
