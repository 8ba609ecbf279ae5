//! The socket: whole messages in, replies out, never waiting.

use crate::command::{Command, parse};
use crate::message::{HEADER_LEN, Header, MAX_BODY, MAX_FDS, Request, SyntaxError, check_header, flag};
use crate::outcome::SessionError;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long the rest of a message may take once its first byte is here.
pub const HALF_MESSAGE: Duration = Duration::from_secs(1);
/// How long a front-end may be connected without a word. QEMU and DPDK speak at once.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Longest reply: a header and an inflight description.
const MAX_REPLY: usize = HEADER_LEN + 24;

/// One message of the front-end. `command` is `Err` with the number when nobody knows the request.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) code: u32,
    pub(crate) need_reply: bool,
    pub(crate) command: Option<(Request, Command)>,
}

/// A stream socket with the beginning of the message that is on its way.
#[derive(Debug)]
pub(crate) struct Transport {
    socket: OwnedFd,
    buffer: [u8; HEADER_LEN + MAX_BODY],
    filled: usize,
    /// Descriptors of the message that is on its way: ours from the moment they arrive.
    fds: Vec<OwnedFd>,
    /// When the first byte of that message came.
    since: Instant,
    /// Whether a whole message ever came.
    spoke: bool,
}

impl Transport {
    pub(crate) fn new(socket: OwnedFd, now: Instant) -> Self {
        let buffer = [0; HEADER_LEN + MAX_BODY];
        Self { socket, buffer, filled: 0, fds: Vec::with_capacity(MAX_FDS), since: now, spoke: false }
    }

    /// The next whole message, if it is here. The socket need not be in non-blocking mode.
    pub(crate) fn receive(&mut self, now: Instant) -> Result<Option<Envelope>, SessionError> {
        loop {
            // Never read past the message: what follows may come with descriptors of its own.
            let (header, end) = match Header::read_from_prefix(&self.buffer[..self.filled]) {
                Ok((header, _)) => (Some(header), HEADER_LEN + header.size.get() as usize),
                Err(_) => (None, HEADER_LEN),
            };
            if let Some(header) = header
                && self.filled == end
            {
                self.spoke = true;
                return self.finish(&header, end).map(Some);
            }
            match self.fill(end) {
                Ok(0) if self.filled == 0 => return Err(SessionError::Closed),
                Ok(0) => return Err(SessionError::ClosedMidMessage),
                Ok(n) => {
                    if self.filled == 0 {
                        self.since = now;
                    }
                    self.filled += n;
                }
                Err(SessionError::Io(Errno::AGAIN)) => return Ok(None),
                Err(e) => return Err(e),
            }
            if self.filled == HEADER_LEN
                && let Ok((header, _)) = Header::read_from_prefix(&self.buffer)
            {
                check_header(&header)?;
            }
        }
    }

    fn finish(&mut self, header: &Header, end: usize) -> Result<Envelope, SessionError> {
        self.filled = 0;
        let fds = std::mem::replace(&mut self.fds, Vec::with_capacity(MAX_FDS));
        let code = header.request.get();
        let body = self.buffer.get(HEADER_LEN..end).unwrap_or_default();
        let command = match Request::from_code(code) {
            Some(request) => Some((request, parse(request, body, fds)?)),
            None => None,
        };
        Ok(Envelope { code, need_reply: header.flags.get() & flag::NEED_REPLY != 0, command })
    }

    fn fill(&mut self, end: usize) -> Result<usize, SessionError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let Some(room) = self.buffer.get_mut(self.filled..end) else {
            return Err(SessionError::Io(Errno::MSGSIZE));
        };
        let received = loop {
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match recvmsg(&self.socket, &mut [IoSliceMut::new(room)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(received) => break received,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_FDS {
            return Err(SyntaxError::Truncated.into());
        }
        Ok(received.bytes)
    }

    /// Sends a reply at once or not at all: a front-end that waits for its replies always has room for one.
    pub(crate) fn reply(&self, code: u32, body: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), SessionError> {
        let header = Header {
            request: code.into(),
            flags: (flag::VERSION | flag::REPLY).into(),
            size: u32::try_from(body.len()).unwrap_or(0).into(),
        };
        let mut bytes = [0; MAX_REPLY];
        let len = HEADER_LEN + body.len();
        bytes[..HEADER_LEN].copy_from_slice(header.as_bytes());
        bytes.get_mut(HEADER_LEN..len).ok_or(SessionError::Io(Errno::MSGSIZE))?.copy_from_slice(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        loop {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            return match sendmsg(&self.socket, &[IoSlice::new(&bytes[..len])], &mut control, flags) {
                Err(Errno::INTR) => continue,
                Ok(sent) if sent == len => Ok(()),
                Ok(_) | Err(Errno::AGAIN) => Err(SessionError::RepliesUnread),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// When to call [`Transport::expire`], if nothing comes before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.filled > 0 {
            Some(self.since + HALF_MESSAGE)
        } else if !self.spoke {
            Some(self.since + SILENCE)
        } else {
            None
        }
    }

    /// An error if the deadline has passed.
    pub(crate) fn expire(&self, now: Instant) -> Result<(), SessionError> {
        match self.deadline() {
            Some(deadline) if now >= deadline && self.filled > 0 => Err(SessionError::HalfMessage),
            Some(deadline) if now >= deadline => Err(SessionError::Silent),
            _ => Ok(()),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
