//! Between the switch and control. What is said passes in its order, and none of it before [`Beside`] has seen it: so when the switch is told that a flow
//! goes, and when control hears that all it has said has taken effect, the kernel has no rule of that flow.

use lasthop_ipc::{ChannelError, FromControl, ToControl};
use lasthop_offload::{Beside, Lost, Table};
use lasthop_relay::{Relay, Station};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

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

/// Joins them. Flows that the switch has already nobody here has heard of: they are judged anew.
pub fn join(switch: OwnedFd, control: OwnedFd) -> Result<Relay, ChannelError> {
    let mut relay = Relay::new(switch, control)?;
    relay.say(FromControl::ClearFlows);
    Ok(relay)
}

/// Passes on some of what either side has said, and gives the table some flows; whether there is nothing more, or no room for it.
pub fn turn(relay: &mut Relay, beside: &mut Beside<impl Table>) -> Result<bool, Broken> {
    let rests = relay.turn(&mut Hears(beside))?;
    // Packets wait for what has passed; flows do not.
    let more = beside.step(FLOWS)?;
    Ok(rests && !more)
}

/// Has the table beside the switch hear of all that passes.
struct Hears<'a, T>(&'a mut Beside<T>);

impl<T: Table> Station for Hears<'_, T> {
    type Broken = Broken;

    fn goes_down(&mut self, message: &FromControl) -> Result<(), Broken> {
        Ok(self.0.from_control(message)?)
    }

    fn comes_up(&mut self, mut message: ToControl, _: &mut VecDeque<FromControl>) -> Result<Option<ToControl>, Broken> {
        self.0.to_control(&mut message)?;
        Ok(Some(message))
    }
}
