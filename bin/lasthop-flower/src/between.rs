//! The ends of rings to the switch and to control, and what passes from one to the other. To the switch it speaks as control does, to control as the switch does.
//! What is said passes in its order, and none of it before [`Beside`] has seen it: so when the switch is told that a flow goes, and when control hears that
//! all it has said has taken effect, the kernel has no rule of that flow.

use lasthop_ipc::{ChannelError, ControlEnd, FromControl, SwitchEnd, ToControl};
use lasthop_offload::{Beside, Lost, Table};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Messages taken from one side in a turn.
const BURST: usize = 64;
/// Flows given to the table in a turn: some milliseconds of a card that takes its time.
const FLOWS: usize = 16;

/// Why it cannot go on.
pub enum Broken {
    /// One of the two ends is of no more use; both are joined anew by the supervisor.
    End(ChannelError),
    /// The table is.
    Table(Lost),
}

impl From<ChannelError> for Broken {
    fn from(e: ChannelError) -> Self {
        Self::End(e)
    }
}

impl From<Lost> for Broken {
    fn from(e: Lost) -> Self {
        Self::Table(e)
    }
}

/// Both ends.
#[derive(Debug)]
pub struct Between {
    pub switch: ControlEnd,
    pub control: SwitchEnd,
    /// To control, for which there is no room yet.
    up: Option<ToControl>,
    /// To the switch.
    down: VecDeque<FromControl>,
}

impl Between {
    /// Joins them. Flows that the switch has already nobody here has heard of: they are judged anew.
    pub fn new(switch: OwnedFd, control: OwnedFd) -> Result<Self, ChannelError> {
        let (switch, control) = (ControlEnd::new(switch)?, SwitchEnd::new(control)?);
        Ok(Self { switch, control, up: None, down: VecDeque::from([FromControl::ClearFlows]) })
    }

    /// All flows are to be judged anew, as more of them may be elsewhere now.
    pub fn clear_flows(&mut self) {
        self.down.push_back(FromControl::ClearFlows);
    }

    /// One end's socket is readable.
    pub fn woken(&mut self, is_switch: bool) -> Result<(), ChannelError> {
        let woken = if is_switch { self.switch.woken() } else { self.control.woken() };
        would_block(woken).map(drop)
    }

    /// Passes on some of what either side has said, and gives the table some flows; whether there is nothing more, or no room for it.
    pub fn turn(&mut self, beside: &mut Beside<impl Table>) -> Result<bool, Broken> {
        for _ in 0..BURST {
            if !self.sends_down()? {
                break;
            }
            let Some(message) = would_block(self.control.recv())? else { break };
            beside.from_control(&message)?;
            self.down.push_back(message);
        }
        for _ in 0..BURST {
            if !self.sends_up()? {
                break;
            }
            let Some(mut message) = would_block(self.switch.recv())? else { break };
            beside.to_control(&mut message)?;
            self.up = Some(message);
        }
        let (down, up) = (self.sends_down()?, self.sends_up()?);
        self.switch.flush()?;
        self.control.flush()?;
        // Packets wait for what has passed; flows do not.
        let more = beside.step(FLOWS)?;
        // Where there is no room the other side wakes us when there is.
        let control_rests = !down || self.control.rest()?;
        let switch_rests = !up || self.switch.rest()?;
        Ok(control_rests && switch_rests && !more)
    }

    /// Sends what waits for the switch, if there is room for all of it.
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
