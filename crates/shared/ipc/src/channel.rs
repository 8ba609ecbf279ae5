//! A `SOCK_SEQPACKET` socket that carries one type each way.

use crate::ring::Nonsense;
use lasthop_sys::{receive_with_fds, send_with_fds};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Serialize, de::DeserializeOwned};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest message, in bytes. Below the kernel's default send buffer, so that a message always fits.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end is gone.
    #[error("the other process closed its end")]
    Closed,
    /// Nothing to receive, or no room to send, on a non-blocking channel: wait for the descriptor, then try again.
    #[error("would block")]
    WouldBlock,
    /// The other end sent something that is not a message of this version.
    #[error("malformed message: {0}")]
    Malformed(postcard::Error),
    /// The other end has written into shared memory what cannot be.
    #[error("the other process {0}")]
    Nonsense(&'static str),
    /// The message is longer than the channel takes ([`MAX_MESSAGE`], or as [`Channel::within`] says).
    #[error("message too long")]
    TooLong,
    /// Any other error of the socket.
    #[error("socket: {0}")]
    Io(Errno),
}

impl From<Nonsense> for ChannelError {
    fn from(Nonsense(what): Nonsense) -> Self {
        Self::Nonsense(what)
    }
}

impl From<Errno> for ChannelError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::AGAIN => Self::WouldBlock,
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            Errno::MSGSIZE => Self::TooLong,
            e => Self::Io(e),
        }
    }
}

/// One end: sends `S`, receives `R`. Non-blocking if made so; one thread at a time. `F` owns the socket.
#[derive(Debug)]
pub struct Channel<S, R, F = OwnedFd> {
    socket: F,
    buffer: Vec<u8>,
    longest: usize,
    types: PhantomData<fn(S) -> R>,
}

impl<S: Serialize, R: DeserializeOwned, F: AsFd> Channel<S, R, F> {
    /// Takes a seqpacket socket made by [`Channel::pair`] in this or another process.
    pub fn new(socket: F) -> Self {
        Self::within(socket, MAX_MESSAGE)
    }

    /// The same for messages of so many bytes at most, which is what is kept for one.
    pub fn within(socket: F, longest: usize) -> Self {
        Self { socket, buffer: Vec::new(), longest, types: PhantomData }
    }

    /// Sends one message, with a descriptor if given. All or nothing.
    pub fn send(&mut self, message: &S, fd: Option<BorrowedFd<'_>>) -> Result<(), ChannelError> {
        self.send_with(message, fd.as_slice())
    }

    /// The same with several descriptors, 32 at most.
    pub fn send_with(&mut self, message: &S, fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        // Longer than the message, and so never filled with zeros again for the next that comes.
        self.buffer.resize(self.longest, 0);
        let bytes = postcard::to_slice(message, &mut self.buffer).map_err(|e| match e {
            postcard::Error::SerializeBufferFull => ChannelError::TooLong,
            e => ChannelError::Malformed(e),
        })?;
        send_with_fds(&self.socket, bytes, fds, SendFlags::empty())?;
        Ok(())
    }

    /// Receives one message and the descriptor that came with it, if one did.
    pub fn recv(&mut self) -> Result<(R, Option<OwnedFd>), ChannelError> {
        let mut fds = Vec::new();
        let message = self.recv_with(&mut fds)?;
        Ok((message, fds.into_iter().next()))
    }

    /// The same with all descriptors that came, also when there is something wrong with the message. Which of them are
    /// missing because this process may have no more is not told.
    pub fn recv_with(&mut self, fds: &mut Vec<OwnedFd>) -> Result<R, ChannelError> {
        self.buffer.resize(self.longest, 0);
        let (bytes, _) = receive_with_fds(&self.socket, &mut self.buffer, fds, RecvFlags::empty())?;
        if bytes == 0 {
            return Err(ChannelError::Closed);
        }
        postcard::from_bytes(&self.buffer[..bytes]).map_err(ChannelError::Malformed)
    }
}

impl<S, R, F: AsFd> AsFd for Channel<S, R, F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SupervisorToSwitch, SwitchToSupervisor};
    use lasthop_types::PortId;

    type Supervisor = Channel<SupervisorToSwitch, SwitchToSupervisor>;
    type Switch = Channel<SwitchToSupervisor, SupervisorToSwitch>;

    #[test]
    fn message_and_descriptor_arrive_together() {
        let (a, b) = Supervisor::pair().unwrap();
        let (mut supervisor, mut switch) = (Supervisor::new(a), Switch::new(b));
        assert!(matches!(switch.recv(), Err(ChannelError::WouldBlock)));
        let (carried, _other) = Supervisor::pair().unwrap();
        supervisor.send(&SupervisorToSwitch::Connection(PortId(7), Some(2)), Some(carried.as_fd())).unwrap();
        supervisor.send(&SupervisorToSwitch::Shutdown, None).unwrap();
        let (message, fd) = switch.recv().unwrap();
        assert_eq!(message, SupervisorToSwitch::Connection(PortId(7), Some(2)));
        assert!(fd.is_some());
        assert_eq!(switch.recv().unwrap().0, SupervisorToSwitch::Shutdown);
        drop(supervisor);
        assert!(matches!(switch.recv(), Err(ChannelError::Closed)));
    }

    #[test]
    fn garbage_is_an_error_and_the_channel_goes_on() {
        let (a, b) = Supervisor::pair().unwrap();
        let mut switch = Switch::new(b);
        rustix::net::send(&a, &[0xff; 9], SendFlags::empty()).unwrap();
        assert!(matches!(switch.recv(), Err(ChannelError::Malformed(_))));
        assert!(matches!(switch.recv(), Err(ChannelError::WouldBlock)));
    }
}
