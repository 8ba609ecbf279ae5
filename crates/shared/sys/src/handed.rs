//! What is handed to other processes: memory (memfd_create(2)), and second descriptors of counters. The switch is handed such things, and
//! makes none.

use crate::EventFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

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
