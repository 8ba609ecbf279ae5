//! A channel to another process inside the event loop.

use lasthop_ipc::{Channel, ChannelError};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

/// Messages taken from the channel before they are answered: enough to answer a burst of misses together, few enough
/// that others get their turn.
const BATCH: usize = 64;
/// With more messages than this waiting to be sent, nothing is read: the other side has to take its answers first.
/// One message read may add as many as there are flows, so this bounds the queue to that and a little.
const PAUSE_READING: usize = 1024;

/// Why a link is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other process closed its end.
    #[error("the other end was closed")]
    Closed,
    /// The channel failed.
    #[error(transparent)]
    Channel(ChannelError),
    /// The event loop refused the descriptor.
    #[error("event loop: {0}")]
    Io(#[from] std::io::Error),
}

impl From<ChannelError> for LinkError {
    fn from(e: ChannelError) -> Self {
        match e {
            ChannelError::Closed => Self::Closed,
            e => Self::Channel(e),
        }
    }
}

#[derive(Debug)]
struct Fd<S, R>(Channel<S, R>);

impl<S, R> AsRawFd for Fd<S, R> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// One end of a channel with a queue of what is to be sent.
#[derive(Debug)]
pub(crate) struct Link<S, R> {
    fd: AsyncFd<Fd<S, R>>,
    queue: VecDeque<S>,
    failed: Option<ChannelError>,
    malformed: u64,
}

impl<S: Serialize, R: DeserializeOwned> Link<S, R> {
    /// Takes a socket that speaks these messages; inside the event loop only.
    pub fn new(socket: OwnedFd) -> Result<Self, LinkError> {
        rustix::io::ioctl_fionbio(&socket, true).map_err(std::io::Error::from)?;
        // What `new` is deprecated for, a type whose descriptor may change or close under the event loop, `Fd` is not:
        // it owns the socket until it is dropped, after the event loop has let go of it. `register` would be unsafe.
        #[allow(deprecated)]
        let fd = AsyncFd::new(Fd(Channel::new(socket)))?;
        Ok(Self { fd, queue: VecDeque::new(), failed: None, malformed: 0 })
    }

    /// Puts a message at the end of the queue.
    pub fn queue(&mut self, message: S) {
        self.queue.push_back(message);
    }

    /// Messages received so far that made no sense, since the last call.
    pub fn take_malformed(&mut self) -> u64 {
        std::mem::take(&mut self.malformed)
    }

    /// Sends what there is room for. A failure shows at the next [`Link::pump`].
    pub fn flush(&mut self) {
        send(&mut self.fd.get_mut().0, &mut self.queue, &mut self.failed);
    }

    /// Waits until something was received (then `into` has it) or sent. Nothing is lost when the future is dropped.
    /// On an error `into` may have messages that arrived before.
    pub async fn pump(&mut self, into: &mut Vec<(R, Option<OwnedFd>)>) -> Result<(), LinkError> {
        loop {
            if let Some(e) = self.failed.take() {
                return Err(e.into());
            }
            let interest = match self.queue.len() {
                0 => Interest::READABLE,
                1..=PAUSE_READING => Interest::READABLE | Interest::WRITABLE,
                _ => Interest::WRITABLE,
            };
            let mut guard = self.fd.ready_mut(interest).await?;
            let ready = guard.ready();
            let mut progress = false;
            if ready.is_writable() && interest.is_writable() {
                let before = self.queue.len();
                if send(&mut guard.get_inner_mut().0, &mut self.queue, &mut self.failed) {
                    guard.clear_ready_matching(Ready::WRITABLE);
                }
                progress = self.queue.len() < before;
            }
            if ready.is_readable() && interest.is_readable() {
                for _ in 0..BATCH {
                    match guard.get_inner_mut().0.recv() {
                        Ok(message) => into.push(message),
                        Err(ChannelError::WouldBlock) => {
                            guard.clear_ready_matching(Ready::READABLE);
                            break;
                        }
                        Err(ChannelError::Malformed(_)) => self.malformed += 1,
                        Err(e) => return Err(e.into()),
                    }
                    progress = true;
                }
            }
            if progress {
                return Ok(());
            }
        }
    }
}

/// Sends until the queue is empty, the channel fails, or there is no room: then true.
fn send<S: Serialize, R: DeserializeOwned>(
    channel: &mut Channel<S, R>,
    queue: &mut VecDeque<S>,
    failed: &mut Option<ChannelError>,
) -> bool {
    while let Some(message) = queue.front() {
        match channel.send(message, None) {
            Ok(()) => {}
            Err(ChannelError::WouldBlock) => return true,
            // Ours to have kept shorter; the other messages are not to blame.
            Err(e @ (ChannelError::TooLong | ChannelError::Malformed(_))) => tracing::error!("message not sent: {e}"),
            Err(e) => {
                *failed = Some(e);
                return false;
            }
        }
        queue.pop_front();
    }
    false
}
