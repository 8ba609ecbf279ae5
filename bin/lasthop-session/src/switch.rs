//! The switch, as this process sees it: a channel, one for each connection of the front-end.

use lasthop_connection::{Answer, Ask, LONGEST};
use lasthop_ipc::{Channel, ChannelError};
use lasthop_log::{Level, Log};
use lasthop_sys::{Beat, Foreign};
use lasthop_vhostuser::{Lost, Switch};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// Asks, and waits for the answer. Without a limit: a switch that hangs is found out and ended by the supervisor, and so is its channel.
#[derive(Debug)]
pub struct Remote {
    channel: Channel<Ask, Answer>,
    beat: Rc<Beat>,
    log: Log,
    /// Name of the port.
    port: Rc<str>,
}

impl Remote {
    /// `beat`: the sign of life of this thread, which waits for want of work while it waits for the switch.
    pub fn new(channel: OwnedFd, beat: Rc<Beat>, log: Log, port: &str) -> Self {
        Self { channel: Channel::within(channel, LONGEST), beat, log, port: port.into() }
    }
}

impl Switch for Remote {
    fn tell(&mut self, ask: Ask, fds: Vec<Foreign>) -> Result<(), Lost> {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        match self.channel.send_with(&ask, &borrowed) {
            // It has ended the connection, and said so before.
            Ok(()) | Err(ChannelError::Closed) => Ok(()),
            Err(error) => {
                crate::say(&self.log, Level::ERROR, &self.port, format_args!("the switch cannot be asked: {error}"));
                Err(Lost)
            }
        }
    }

    fn answer(&mut self) -> Result<Answer, Lost> {
        loop {
            if let Some(answer) = self.hear()? {
                return Ok(answer);
            }
            self.beat.sleep();
            let _ = poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], None);
            self.beat.work();
        }
    }

    fn hear(&mut self) -> Result<Option<Answer>, Lost> {
        match self.channel.recv() {
            Ok((answer, _)) => Ok(Some(answer)),
            Err(ChannelError::WouldBlock) => Ok(None),
            Err(_) => Err(Lost),
        }
    }
}

impl AsFd for Remote {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
