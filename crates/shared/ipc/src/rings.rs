//! The connection of switch and control: a ring of messages each way in memory that both have mapped, and a socket on which who sleeps is
//! woken and by whose end each sees that of the other. docs/control-rings.md.

use crate::ring::{Consumer, HEAD, LINE, Nonsense, Place, Producer};
use crate::{ChannelError, FromControl, ToControl};
use lasthop_sys::{SharedWords, receive_with_fds};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Serialize, de::DeserializeOwned};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::IntoBytes;

/// What the first word of the memory says: "lhring", and the version of all that docs/control-rings.md says.
pub const VERSION: u64 = u64::from_be_bytes(*b"lhring\0\x03");
/// Lines of each ring.
const LINES: u64 = 2048;
/// So many lines may be taken up by packets that wait: with more on their way to control, whoever missed last would wait for too long.
const UPCALL_LINES: u64 = 512;
/// Bytes of a message's first word, which says how long it is.
const BEGINNING: usize = 8;
const PAGE: usize = 512;
const RING: usize = LINES as usize * LINE;
/// Words of the memory.
pub const WORDS: usize = PAGE + 2 * RING;

/// What goes through one of the rings.
pub trait Message {
    /// Which.
    const RING: Place;

    /// It is one of those that must not fill the ring.
    fn is_upcall(&self) -> bool {
        false
    }
}

impl Message for ToControl {
    const RING: Place = Place { head: 16, data: PAGE, lines: LINES };

    fn is_upcall(&self) -> bool {
        matches!(self, Self::Upcall(_))
    }
}

impl Message for FromControl {
    const RING: Place = Place { head: 16 + HEAD, data: PAGE + RING, lines: LINES };
}

/// One end: sends `S`, receives `R`. One thread at a time; nothing blocks.
#[derive(Debug)]
pub struct MessageRings<S, R> {
    socket: OwnedFd,
    memory: SharedWords,
    out: Producer,
    into: Consumer,
    bytes: Vec<u8>,
    words: Vec<u64>,
    types: PhantomData<fn(S) -> R>,
}

impl<S: Message + Serialize, R: Message + DeserializeOwned> MessageRings<S, R> {
    /// Takes an end that the supervisor has made, in which the memory lies ready.
    pub fn new(socket: OwnedFd) -> Result<Self, ChannelError> {
        let mut came = Vec::new();
        receive_with_fds(&socket, &mut [0], &mut came, RecvFlags::DONTWAIT)?;
        let memory = SharedWords::map(came.pop().ok_or(ChannelError::Closed)?, WORDS)?;
        if memory[0].load(Relaxed) != VERSION {
            return Err(Nonsense("has rings of another version").into());
        }
        let (out, into) = (Producer::new(S::RING), Consumer::new(R::RING));
        Ok(Self { socket, memory, out, into, bytes: Vec::new(), words: Vec::new(), types: PhantomData })
    }

    /// Puts a message into the ring; the other end learns of it by [`MessageRings::flush`]. `WouldBlock`: it is to be sent again when this
    /// end is woken.
    pub fn send(&mut self, message: &S) -> Result<(), ChannelError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend([0; BEGINNING]);
        self.bytes = postcard::to_extend(message, bytes).map_err(ChannelError::Malformed)?;
        let len = self.bytes.len();
        if len.div_ceil(LINE * 8) as u64 > S::RING.most() {
            return Err(ChannelError::TooLong);
        }
        self.bytes[4..BEGINNING].copy_from_slice(&(len as u32).to_ne_bytes());
        let most = if message.is_upcall() { UPCALL_LINES } else { LINES };
        if self.out.put(&self.memory, &self.bytes, most)? { Ok(()) } else { Err(ChannelError::WouldBlock) }
    }

    /// The next message. `WouldBlock`: there is none now.
    pub fn recv(&mut self) -> Result<R, ChannelError> {
        let len = self.into.take(&self.memory, &mut self.words)?.ok_or(ChannelError::WouldBlock)?;
        let bytes = self.words.as_bytes().get(BEGINNING..len).unwrap_or_default();
        postcard::from_bytes(bytes).map_err(|_| Nonsense("sent what is no message").into())
    }

    /// Has the other end have what was sent, and the room of what was received; wakes it if it waits for either.
    pub fn flush(&mut self) -> Result<(), ChannelError> {
        if self.out.publish(&self.memory) | self.into.free(&self.memory) {
            match send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // Full: it has not heard yet that it was woken before.
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// To be called before this end sleeps until its socket is readable; nothing may be left to be flushed. False: there is a message.
    pub fn rest(&mut self) -> Result<bool, ChannelError> {
        Ok(self.into.rest(&self.memory)?)
    }

    /// The socket is readable: this end was woken, or the other is gone. `WouldBlock`: neither.
    pub fn woken(&mut self) -> Result<(), ChannelError> {
        match recv(&self.socket, &mut [0; 8], RecvFlags::DONTWAIT)? {
            (0, _) => Err(ChannelError::Closed),
            _ => Ok(()),
        }
    }
}

impl<S, R> AsFd for MessageRings<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
