//! An uplink that answers, and takes nothing of what the switch has for it.
//!
//! Its own word is worth nothing here. The switch's counters say that nothing is taken, and the kernel says of the open device
//! whether it would take anything: then it is the process that does not. A device that takes nothing is no fault of the process,
//! and another one would fare no better.

use super::{Link, Uplink};
use std::time::Duration;

/// So many times the limit within which a process has to answer, and at least so long.
const LIMITS: u32 = 5;
const SHORTEST: Duration = Duration::from_secs(5);

impl Uplink {
    /// Control says that the port has taken nothing for so long. The process is replaced if the device would have taken
    /// something, now and the last time: a device that has come free a moment ago is about to be served.
    pub fn takes_nothing(&mut self, taken_nothing: Duration) {
        let limit = (self.driver.limit() * LIMITS).max(SHORTEST);
        if taken_nothing < limit || !matches!(self.link, Link::Joined) || !self.driver.is_ready() {
            return;
        }
        let room = self.kept.as_ref().map(|kept| kept.has_room());
        let before = std::mem::replace(&mut self.had_room, room == Some(true));
        let seconds = taken_nothing.as_secs();
        match room {
            Some(true) if before => {
                self.complain(format!("it has taken nothing for {seconds} s, and its device is free; replacing it"));
                self.said_why = true;
                self.had_room = false;
                self.driver.kill_for("took nothing, and its device was free");
            }
            Some(true) => {}
            Some(false) => self.complain("it takes nothing, because its device takes nothing: is the link up?".into()),
            None => self.complain("it takes nothing, or its device does: which of them cannot be known".into()),
        }
    }
}
