//! The socket: whole messages in, replies out, never waiting.

use crate::message::{HEADER_LEN, Header, MAX_BODY, MAX_FDS, SyntaxError, check_header, flag};
use crate::outcome::SessionError;
use lasthop_sys::{Aside, Foreign, receive_with_fds, send_with_fds};
use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long the rest of a message may take once its first byte is here.
pub const HALF_MESSAGE: Duration = Duration::from_secs(1);
/// How long a front-end may be connected without a word. QEMU and DPDK speak at once.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Header, body and descriptors of a message; only the header has been judged.
pub(crate) type Message = (Header, Vec<u8>, Vec<Foreign>);

/// A stream socket with the beginning of the message that is on its way.
#[derive(Debug)]
pub(crate) struct Transport {
    socket: Foreign,
    buffer: [u8; HEADER_LEN + MAX_BODY],
    filled: usize,
    /// Descriptors of the message that is on its way: ours from the moment they arrive.
    fds: Vec<Foreign>,
    /// When the first byte of that message came.
    since: Instant,
    /// Whether a whole message ever came.
    spoke: bool,
}

impl Transport {
    pub(crate) fn new(socket: Foreign, now: Instant) -> Self {
        Self { socket, buffer: [0; HEADER_LEN + MAX_BODY], filled: 0, fds: Vec::new(), since: now, spoke: false }
    }

    /// Where what came over it is let go of.
    pub(crate) fn aside(&self) -> &Arc<Aside> {
        self.socket.aside()
    }

    /// The next whole message, if it is here. The socket need not be in non-blocking mode.
    pub(crate) fn receive(&mut self, now: Instant) -> Result<Option<Message>, SessionError> {
        loop {
            // Never read past the message: what follows may come with descriptors of its own.
            let mut end = HEADER_LEN;
            if let Ok((header, _)) = Header::read_from_prefix(&self.buffer[..self.filled]) {
                check_header(&header)?;
                end += header.size as usize;
                if self.filled == end {
                    (self.spoke, self.filled) = (true, 0);
                    let body = self.buffer[HEADER_LEN..end].to_vec();
                    return Ok(Some((header, body, std::mem::take(&mut self.fds))));
                }
            }
            if self.socket.aside().is_stuck() {
                return Err(SessionError::Unclosed);
            }
            let (room, mut came) = (&mut self.buffer[self.filled..end], Vec::new());
            let received = receive_with_fds(&self.socket, room, &mut came, RecvFlags::DONTWAIT);
            self.fds.extend(came.into_iter().map(|fd| Foreign::new(fd, self.socket.aside())));
            let (bytes, flags) = match received {
                Err(Errno::AGAIN) => return Ok(None),
                received => received?,
            };
            if flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_FDS {
                return Err(SyntaxError::Truncated.into());
            }
            match (bytes, self.filled) {
                (0, 0) => return Err(SessionError::Closed),
                (0, _) => return Err(SessionError::ClosedMidMessage),
                (_, 0) => self.since = now,
                _ => {}
            }
            self.filled += bytes;
        }
    }

    /// Sends a reply at once or not at all: a front-end that waits for its replies always has room for one.
    pub(crate) fn reply(&self, code: u32, body: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), SessionError> {
        let header = Header { request: code, flags: flag::VERSION | flag::REPLY, size: body.len() as u32 };
        let bytes = [header.as_bytes(), body].concat();
        match send_with_fds(&self.socket, &bytes, fd.as_slice(), SendFlags::DONTWAIT) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err(SessionError::RepliesUnread),
            Err(e) => Err(e.into()),
        }
    }

    /// When to call [`Transport::expire`], if nothing comes before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match (self.filled, self.spoke) {
            (0, true) => None,
            (0, false) => Some(self.since + SILENCE),
            _ => Some(self.since + HALF_MESSAGE),
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
