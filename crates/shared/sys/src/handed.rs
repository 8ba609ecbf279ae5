//! What is handed to other processes: memory (memfd_create(2)), and second descriptors of counters. The switch is handed such things, and
//! makes none.

use crate::EventFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::os::fd::{BorrowedFd, OwnedFd};

/// A new file of `size` zero bytes that lives in memory only, close-on-exec. `name` shows in /proc/PID/maps.
pub fn memfd(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, size)?;
    Ok(fd)
}

/// A new file of `size` zero bytes that lives in memory only, close-on-exec. It keeps that size whoever has it, so that who maps it need
/// not fear SIGBUS.
pub fn sealed_memfd(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, size)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// A new file with these bytes that lives in memory only, close-on-exec. Nobody can change them, nor the file's size.
pub fn sealed_with(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        written += rustix::io::pwrite(&fd, rest, written as u64)?;
    }
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(fd)
}

/// Calls `job` with the descriptor of this number, if there is one.
fn with_descriptor<T>(number: i32, job: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
    if number < 3 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is used for one call of fcntl(2) that fails with EBADF where nothing is open, and closes nothing.
    job(unsafe { BorrowedFd::borrow_raw(number) })
}

/// A second descriptor of what another program of this process has left open under this number, close-on-exec. `BADF`: nothing is open there, or it is
/// one of 0 to 2.
pub fn duplicate(number: i32) -> Result<OwnedFd, Errno> {
    with_descriptor(number, |fd| fcntl_dupfd_cloexec(fd, 3))
}

/// Whether the descriptor of this number stays open when a program is executed.
pub fn set_descriptor_flags(number: i32, flags: FdFlags) -> Result<(), Errno> {
    with_descriptor(number, |fd| fcntl_setfd(fd, flags))
}

impl EventFd {
    /// A second descriptor of the same counter.
    pub fn try_clone(&self) -> Result<Self, Errno> {
        Ok(Self(rustix::io::fcntl_dupfd_cloexec(&self.0, 0)?))
    }
}

impl From<EventFd> for OwnedFd {
    fn from(e: EventFd) -> Self {
        e.0
    }
}
