//! Memory for other processes whose size nobody can change.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// A new file of `size` zero bytes that lives in memory only, close-on-exec. It keeps that size whoever has it, so that who maps it need
/// not fear SIGBUS.
pub fn sealed_memfd(name: &str, size: u64) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, size)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}
