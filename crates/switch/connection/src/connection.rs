//! The channel to a session process: one question at a time, and each is answered before the next is looked at.

use crate::messages::{Answer, Ask, LONGEST};
use crate::rings::{End, Event, Rings};
use lasthop_guestmem::GuestMemory;
use lasthop_ipc::{Channel, ChannelError};
use lasthop_sys::Foreign;
use rustix::net::{Shutdown, shutdown};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked at whether enough is unmapped.
const LOOK: Duration = Duration::from_millis(1);
/// Who waits for so long is told of.
const LONG: Duration = Duration::from_millis(100);

/// An answer that is owed: until events are acted on, and until enough of what was mapped before is unmapped, also by a question that was
/// refused in the end.
///
/// What is let go of is unmapped aside, and stays mapped until then: a front-end that changes its memory faster than the kernel
/// unmaps what was there could have any number of such tables. So it has two at most: the one that it has, and the one before.
#[derive(Debug)]
struct Wait {
    answer: Answer,
    since: Instant,
    /// When to look again.
    next: Instant,
    told: bool,
}

/// One connection of a front-end to a port. Owned by one thread. Dropping it stops all rings and lets go of what is the guest's;
/// the session process hears where the rings stopped.
#[derive(Debug)]
pub struct Connection {
    /// Closed aside, with what lies in it unread.
    channel: Channel<Answer, Ask, Foreign>,
    rings: Rings,
    wait: Option<Wait>,
}

impl Connection {
    /// Takes the channel to the session process.
    pub fn new(channel: Foreign, rings: Rings) -> Self {
        Self { channel: Channel::within(channel, LONGEST), rings, wait: None }
    }

    /// Carries out the next thing that the session process asks, and true if there was one: act on `events` and call it again, for
    /// only then is it answered. Call it as long as the channel is readable (watch it level-triggered), and at the deadline. After an
    /// error the connection is over: drop it; what `events` holds is still valid.
    pub fn ready(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<bool, End> {
        self.settle(now, events)?;
        let mut came = Vec::new();
        let ask = self.channel.recv_with(&mut came);
        // Closed aside, whatever is wrong with the message.
        let fds: Vec<_> = came.into_iter().map(|fd| Foreign::new(fd, &self.rings.aside)).collect();
        let ask = match ask {
            Err(ChannelError::WouldBlock) => return Ok(false),
            Err(ChannelError::Closed) => return Err(End::ProcessGone),
            ask => ask.map_err(End::rules)?,
        };
        if self.wait.is_some() {
            return Err(End::rules("it asks before it is answered"));
        }
        let answer = self.rings.carry_out(ask, fds, events)?;
        self.wait = Some(Wait { answer, since: now, next: now, told: false });
        Ok(true)
    }

    /// Gives the answer that waits, once it may be given: call it when events are acted on. It may be told something itself.
    pub fn settle(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), End> {
        if self.rings.aside.is_stuck() {
            return Err(End::Unclosed);
        }
        let Some(wait) = &mut self.wait else { return Ok(()) };
        match self.rings.excess() {
            Some((bytes, regions)) => {
                wait.next = now + LOOK;
                if now.saturating_duration_since(wait.since) >= LONG && !std::mem::replace(&mut wait.told, true) {
                    let line = format!(
                        "the front-end's requests wait: with memory that it has replaced and the kernel has not unmapped yet, {} MiB in {regions} regions are mapped; if it changes its memory all the time, end it",
                        bytes >> 20
                    );
                    events.push(Event::Wrong { line, of_memory: false });
                }
            }
            None => {
                // There is always room: it asks a few things at most before it reads the answers.
                match self.channel.send(&wait.answer, None) {
                    Err(ChannelError::Closed) => return Err(End::ProcessGone),
                    sent => sent.map_err(|error| End::rules(format!("it cannot be answered: {error}")))?,
                }
                self.wait = None;
            }
        }
        Ok(())
    }

    /// When to call [`Connection::ready`] though nothing was asked.
    pub fn deadline(&self) -> Option<Instant> {
        self.wait.as_ref().map(|wait| wait.next)
    }

    /// Virtio and protocol features that were negotiated.
    pub fn features(&self) -> (u64, u64) {
        self.rings.features
    }

    /// Guest memory as it is now.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.rings.memory
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.channel.send(&Answer::Ended { stopped: self.rings.stop() }, None);
        // It is closed aside, and the supervisor has a copy: the session process is to see the end now.
        let _ = shutdown(&self.channel, Shutdown::Both);
    }
}
