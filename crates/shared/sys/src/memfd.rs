//! Memory that can be handed to another process (memfd_create(2)).

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// A new file of `size` zero bytes that lives in memory only, close-on-exec. `name` shows in /proc/PID/maps.
pub fn memfd(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, size)?;
    Ok(fd)
}
