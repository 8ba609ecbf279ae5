//! What the switch has no use for: how the supervisor makes channels and rings, and control's end of these.

use crate::rings::{MessageRings, VERSION, WORDS};
use crate::{Channel, ChannelError, FromControl, PortInfo, ToControl};
use lasthop_sys::{sealed_memfd, send_with_fds};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use serde::{Serialize, de::DeserializeOwned};
use std::os::fd::{AsFd, OwnedFd};

impl<S: Serialize, R: DeserializeOwned> Channel<S, R> {
    /// Two connected sockets, close-on-exec and non-blocking.
    pub fn pair() -> Result<(OwnedFd, OwnedFd), ChannelError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
    }
}

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

/// What state a port is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No front-end is connected.
    Waiting,
    /// Connected; the driver has not enabled its queues.
    Connected,
    /// Carrying packets.
    Up,
    /// Stopped; the text says why. Reset or reconnect by the front-end clears it.
    Broken(String),
}

impl PortInfo {
    /// What of all it says comes first.
    pub fn state(&self) -> PortState {
        match &self.broken {
            _ if !self.connected => PortState::Waiting,
            Some(why) => PortState::Broken(why.clone()),
            None if self.up => PortState::Up,
            None => PortState::Connected,
        }
    }
}
