//! A `SOCK_SEQPACKET` socket that carries one type each way.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
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
    /// The message is longer than [`MAX_MESSAGE`].
    #[error("message too long")]
    TooLong,
    /// Any other error of the socket.
    #[error("socket: {0}")]
    Io(Errno),
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

/// One end: sends `S`, receives `R`. Non-blocking if made so; one thread at a time.
#[derive(Debug)]
pub struct Channel<S, R> {
    socket: OwnedFd,
    buffer: Vec<u8>,
    types: PhantomData<fn(S) -> R>,
}

impl<S: Serialize, R: DeserializeOwned> Channel<S, R> {
    /// Takes a seqpacket socket made by [`Channel::pair`] in this or another process.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: Vec::new(), types: PhantomData }
    }

    /// Two connected sockets, close-on-exec and non-blocking.
    pub fn pair() -> Result<(OwnedFd, OwnedFd), ChannelError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
    }

    /// Sends one message, with a descriptor if given. All or nothing.
    pub fn send(&mut self, message: &S, fd: Option<BorrowedFd<'_>>) -> Result<(), ChannelError> {
        let buffer = std::mem::take(&mut self.buffer);
        let mut bytes = buffer;
        bytes.clear();
        let bytes = postcard::to_extend(message, bytes).map_err(ChannelError::Malformed)?;
        let sent = self.send_bytes(&bytes, fd);
        self.buffer = bytes;
        sent
    }

    fn send_bytes(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), ChannelError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(ChannelError::TooLong);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Receives one message and the descriptor that came with it, if one did.
    pub fn recv(&mut self) -> Result<(R, Option<OwnedFd>), ChannelError> {
        self.buffer.resize(MAX_MESSAGE, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let iov = &mut [IoSliceMut::new(&mut self.buffer)];
            match recvmsg(&self.socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(r) => break r,
            }
        };
        let fd = control
            .drain()
            .find_map(|m| if let RecvAncillaryMessage::ScmRights(mut fds) = m { fds.next() } else { None });
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        let message = postcard::from_bytes(&self.buffer[..received.bytes]).map_err(ChannelError::Malformed)?;
        Ok((message, fd))
    }
}

impl<S, R> AsFd for Channel<S, R> {
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
