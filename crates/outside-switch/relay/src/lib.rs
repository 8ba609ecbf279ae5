//! What stands between a data plane and its control: to the data plane it speaks as control does, to control as the data plane does, over rings like those
//! that are between the two where nobody is (docs/control-rings.md). What either side says passes in its order, and none of it before the
//! [`Station`] has seen it.
//!
//! *Bounds.* Of each side 64 messages are taken in a turn. While there is no room for what one side has said nothing more is taken from it, and nothing from
//! the data plane while more than 64 of the station's own messages wait for room there. Used by one thread.

use lasthop_ipc::{ChannelError, ControlEnd, FromControl, SwitchEnd, ToControl};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Messages taken from one side in a turn.
const BURST: usize = 64;
/// So many messages may wait for room at the data plane while more is taken from it. Not none: it may wait for us to take what it says before it reads
/// on, and then nobody would move.
const WAITING: usize = 64;

/// Who is in between.
pub trait Station {
    /// Why it cannot go on.
    type Broken: From<ChannelError>;

    /// Control has said this, which goes to the data plane after this call.
    ///
    /// # Errors
    ///
    /// The station cannot go on, and neither does the message.
    fn goes_down(&mut self, message: &FromControl) -> Result<(), Self::Broken>;

    /// The data plane has said this. What is returned goes to control; what is put into `down` goes to the data plane.
    ///
    /// # Errors
    ///
    /// The station cannot go on, and neither does the message.
    fn comes_up(
        &mut self,
        message: ToControl,
        down: &mut VecDeque<FromControl>,
    ) -> Result<Option<ToControl>, Self::Broken>;
}

/// Both ends, and what waits between them.
#[derive(Debug)]
pub struct Relay {
    /// Towards the data plane, as control has it.
    pub switch: ControlEnd,
    /// Towards control, as the data plane has it.
    pub control: SwitchEnd,
    /// To control, for which there is no room yet.
    up: Option<ToControl>,
    /// To the data plane: what control has said, one message at most, and what the station says.
    down: VecDeque<FromControl>,
}

impl Relay {
    /// Takes the ends of rings to the data plane and to control.
    ///
    /// # Errors
    ///
    /// A descriptor is no such end, or its memory cannot be mapped.
    pub fn new(switch: OwnedFd, control: OwnedFd) -> Result<Self, ChannelError> {
        let (switch, control) = (ControlEnd::new(switch)?, SwitchEnd::new(control)?);
        Ok(Self { switch, control, up: None, down: VecDeque::new() })
    }

    /// The station says this to the data plane, after all that control has said.
    pub fn say(&mut self, message: FromControl) {
        self.down.push_back(message);
    }

    /// Messages that wait for room at the data plane.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.down.len()
    }

    /// The socket towards the data plane is readable.
    ///
    /// # Errors
    ///
    /// That end is of no more use.
    pub fn switch_woken(&mut self) -> Result<(), ChannelError> {
        would_block(self.switch.woken()).map(drop)
    }

    /// The socket towards control is readable.
    ///
    /// # Errors
    ///
    /// That end is of no more use.
    pub fn control_woken(&mut self) -> Result<(), ChannelError> {
        would_block(self.control.woken()).map(drop)
    }

    /// Passes on some of what either side has said. True: there is nothing more, or no room for it, and whoever has either next wakes us; false: to be
    /// called again before this thread sleeps.
    ///
    /// # Errors
    ///
    /// One end is of no more use, or the station cannot go on.
    pub fn turn<S: Station>(&mut self, station: &mut S) -> Result<bool, S::Broken> {
        for _ in 0..BURST {
            if !self.sends_down()? {
                break;
            }
            let Some(message) = would_block(self.control.recv())? else { break };
            station.goes_down(&message)?;
            self.down.push_back(message);
        }
        for _ in 0..BURST {
            if self.is_full()? || !self.sends_up()? {
                break;
            }
            let Some(message) = would_block(self.switch.recv())? else { break };
            self.up = station.comes_up(message, &mut self.down)?;
        }
        let (full, down, up) = (self.is_full()?, self.sends_down()?, self.sends_up()?);
        self.switch.flush()?;
        self.control.flush()?;
        // Where there is no room the other side wakes us when there is.
        let control_rests = !down || self.control.rest()?;
        Ok(control_rests && (full || !up || self.switch.rest()?))
    }

    /// Whether as much as may waits for the data plane, after what there is room for has been sent.
    fn is_full(&mut self) -> Result<bool, ChannelError> {
        Ok(!self.sends_down()? && self.down.len() > WAITING)
    }

    /// Sends what waits for the data plane, if there is room for all of it.
    fn sends_down(&mut self) -> Result<bool, ChannelError> {
        while let Some(message) = self.down.front() {
            match self.switch.send(message) {
                Err(ChannelError::WouldBlock) => return Ok(false),
                // It was short enough for one ring, so it is for the other.
                result => result?,
            }
            self.down.pop_front();
        }
        Ok(true)
    }

    fn sends_up(&mut self) -> Result<bool, ChannelError> {
        let Some(message) = &self.up else { return Ok(true) };
        match self.control.send(message) {
            Err(ChannelError::WouldBlock) => Ok(false),
            result => {
                result?;
                self.up = None;
                Ok(true)
            }
        }
    }
}

/// What has come, if something has.
fn would_block<T>(result: Result<T, ChannelError>) -> Result<Option<T>, ChannelError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(ChannelError::WouldBlock) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
