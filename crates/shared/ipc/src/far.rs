//! What the switch has no use for: control's end of the rings, and how the supervisor makes them.

use crate::rings::{MessageRings, VERSION, WORDS};
use crate::{Channel, ChannelError, FromControl, ToControl};
use lasthop_sys::{sealed_memfd, send_with_fds};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::SendFlags;
use std::os::fd::{AsFd, OwnedFd};

/// Two connected ends for switch and control, alike: sockets, close-on-exec and non-blocking, in each of which the memory of the rings
/// lies ready to be received first.
pub fn ring_pair() -> Result<(OwnedFd, OwnedFd), ChannelError> {
    let (a, b) = Channel::<ToControl, FromControl>::pair()?;
    let size = WORDS as u64 * 8;
    let memory = sealed_memfd("lasthop-rings", size)?;
    // All of it now: neither end is to find later that there is no memory for a message.
    fallocate(&memory, FallocateFlags::empty(), 0, size)?;
    rustix::io::pwrite(&memory, &VERSION.to_ne_bytes(), 0)?;
    for end in [&a, &b] {
        send_with_fds(end, &[0], &[memory.as_fd()], SendFlags::empty())?;
    }
    Ok((a, b))
}

/// Control's end.
pub type ControlEnd = MessageRings<FromControl, ToControl>;
