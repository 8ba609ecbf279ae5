//! The rings to the switch inside the event loop: what has come in batches, what is to be sent in one go.

use crate::link::LinkError;
use lasthop_ipc::{ChannelError, ControlEnd, FromControl, ToControl};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use tokio::io::unix::AsyncFd;

/// Messages taken before they are answered: enough to answer a burst of misses together, few enough that others get their turn.
const BATCH: usize = 64;
/// With more messages than this waiting to be sent, nothing is read: the switch has to take its answers first.
/// One message read may add as many as there are flows, so this bounds the queue to that and a little.
const PAUSE_READING: usize = 1024;

#[derive(Debug)]
struct Fd(ControlEnd);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Our end, with a queue of what there is no room for.
#[derive(Debug)]
pub(crate) struct SwitchLink {
    fd: AsyncFd<Fd>,
    queue: VecDeque<FromControl>,
    failed: Option<ChannelError>,
}

impl SwitchLink {
    /// Takes an end that the supervisor has made; inside the event loop only.
    pub fn new(socket: OwnedFd) -> Result<Self, LinkError> {
        // As in `Link::new`: the end owns its socket until the event loop has let go of it.
        #[allow(deprecated)]
        let fd = AsyncFd::new(Fd(ControlEnd::new(socket)?))?;
        Ok(Self { fd, queue: VecDeque::new(), failed: None })
    }

    /// Puts a message at the end of the queue.
    pub fn queue(&mut self, message: FromControl) {
        self.queue.push_back(message);
    }

    /// Messages that wait for room.
    pub fn unsent(&self) -> usize {
        self.queue.len()
    }

    /// Sends what there is room for, all at once. A failure shows at the next [`SwitchLink::pump`].
    pub fn flush(&mut self) {
        let rings = &mut self.fd.get_mut().0;
        while let Some(message) = self.queue.front() {
            match rings.send(message) {
                Ok(()) => {}
                Err(ChannelError::WouldBlock) => break,
                // Ours to have kept shorter; the other messages are not to blame.
                Err(e @ (ChannelError::TooLong | ChannelError::Malformed(_))) => {
                    tracing::error!("message not sent: {e}");
                }
                Err(e) => return self.failed = Some(e),
            }
            self.queue.pop_front();
        }
        self.failed = rings.flush().err();
    }

    /// Waits until something was received (then `into` has it) or sent. Nothing is lost when the future is dropped.
    /// On an error `into` may have messages that arrived before.
    pub async fn pump(&mut self, into: &mut Vec<ToControl>) -> Result<(), LinkError> {
        loop {
            // Where there is always something to hear, others get their turn all the same.
            tokio::task::consume_budget().await;
            let unsent = self.queue.len();
            self.flush();
            if let Some(e) = self.failed.take() {
                return Err(e.into());
            }
            let reads = unsent <= PAUSE_READING;
            let rings = &mut self.fd.get_mut().0;
            while reads && into.len() < BATCH {
                match rings.recv() {
                    Ok(message) => into.push(message),
                    Err(ChannelError::WouldBlock) => break,
                    Err(e) => return Err(e.into()),
                }
            }
            if !into.is_empty() || self.queue.len() < unsent {
                return Ok(());
            }
            if reads && !rings.rest()? {
                continue;
            }
            let mut guard = self.fd.readable_mut().await?;
            loop {
                match guard.get_inner_mut().0.woken() {
                    Ok(()) => {}
                    Err(ChannelError::WouldBlock) => break guard.clear_ready(),
                    // What it has said before is of use to nobody any more: it says all of it again to the next one.
                    Err(e) => return Err(e.into()),
                }
            }
        }
    }
}
