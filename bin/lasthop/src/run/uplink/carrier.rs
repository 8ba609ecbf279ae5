//! Whether an uplink's interface is there, up, and has a carrier. Without one of these the uplink is kept from the switch, as
//! one that stands by is: its port is not up, floods leave it out, what is for it is dropped as `port_down`, and another uplink
//! of the same segment takes its place. Sent out all the same, frames would be counted as carried and end in a queue that the
//! kernel empties into nothing.

use super::{Link, Uplink};
use lasthop_management_ipc::LinkState;
use lasthop_uplink_ipc::{SupervisorToUplink, UplinkDriver};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The shortest time between two changes that are followed. The other end of a veth pair belongs to a container, which may pull
/// its "cable" as often as it likes; each change costs a line of the log, a connection to the switch, and every flood's flow.
const SETTLE: Duration = Duration::from_millis(250);

/// What the kernel says of the interface.
#[derive(Debug)]
pub struct Carrier {
    /// As it is gone by.
    pub(super) now: LinkState,
    /// As it was last heard of.
    pub(super) heard: LinkState,
    /// Before this nothing new is gone by.
    pub(super) settled_at: Option<Instant>,
    /// It was up while it was open: from then on every change is news.
    pub(super) was_up: bool,
    /// That it is not up was said.
    pub(super) told: bool,
    /// Somebody has set it down since then: it stays down when its process opens it anew.
    pub(super) set_down: bool,
}

impl Default for Carrier {
    fn default() -> Self {
        Self { now: LinkState::Up, heard: LinkState::Up, settled_at: None, was_up: false, told: false, set_down: false }
    }
}

impl Uplink {
    /// The kernel says that the interface is in this state now.
    pub fn set_link(&mut self, state: LinkState) {
        self.carrier.heard = state;
        // One of that name that comes later is another one.
        self.carrier.set_down &= state != LinkState::Missing;
    }

    /// How its interface is.
    pub fn link_state(&self) -> LinkState {
        self.carrier.now
    }

    /// Whether its interface can carry frames.
    pub fn has_carrier(&self) -> bool {
        self.carrier.now == LinkState::Up
    }

    /// What is wrong: of the interface, or what was last wrong with its processes.
    pub(super) fn trouble(&self) -> Option<String> {
        why(self.carrier.now, &self.spec.device).or_else(|| self.last_error.clone())
    }

    /// Whether somebody has set it down, who would not want us to bring it up again.
    pub(super) fn was_set_down(&self) -> bool {
        self.carrier.set_down
    }

    /// Starting a process would be in vain: its interface is missing, and it is none that the process makes. One that somebody
    /// waits for is started once all the same, because it says best what is wrong.
    pub(super) fn waits_for_device(&self) -> bool {
        self.carrier.heard == LinkState::Missing && !self.makes_device() && (!self.at_once || self.was_started)
    }

    fn makes_device(&self) -> bool {
        self.spec.driver.as_deref() == Some(UplinkDriver::Tap.name())
    }

    /// Goes by what was last heard, if it is time to.
    pub(super) fn step_carrier(&mut self, now: Instant) {
        self.carrier.was_up |= self.carrier.now == LinkState::Up && self.driver.is_ready();
        self.carrier.settled_at.take_if(|at| *at <= now);
        let (before, state) = (self.carrier.now, self.carrier.heard);
        if before == state || self.carrier.settled_at.is_some() {
            return;
        }
        self.carrier.now = state;
        // Its first process makes it and brings it up: that it is missing or down before is no news. Where somebody waits for that
        // process, it says what is wrong, and nothing waits for the interface then.
        let news = match state {
            LinkState::Missing => self.carrier.was_up || !(self.makes_device() || self.at_once),
            LinkState::NoCarrier => self.carrier.was_up || self.driver.is_ready(),
            LinkState::Down => self.carrier.was_up,
            LinkState::Up => self.carrier.told,
        };
        self.carrier.told = news && state != LinkState::Up;
        if self.carrier.was_up {
            self.carrier.settled_at = Some(now + SETTLE);
        }
        self.carrier.set_down = self.carrier.was_up && state == LinkState::Down && before != LinkState::Missing;
        let (kind, name, device) = (self.spec.kind(), &self.spec.name, &self.spec.device);
        match why(state, device) {
            Some(why) => {
                if news {
                    warn!("{kind} {name}: {why}");
                    self.last_error = Some(why);
                }
                self.standby.announcements.stop();
                if before == LinkState::Up {
                    self.leave_switch(now);
                }
            }
            None => {
                if news {
                    info!("{kind} {name}: {device} is up again");
                    self.last_error = Some(format!("{device} was {}; it is up again", before.name()));
                }
                if self.carrier.was_up {
                    // The cable may be in another switch now, which has to learn who is behind it.
                    self.standby.announcements.start();
                }
                self.join_backoff.reset();
                if self.behind().is_none() {
                    self.standby.may_stay();
                }
            }
        }
    }

    /// Has the process leave the switch.
    pub(super) fn leave_switch(&mut self, now: Instant) {
        if self.driver.is_ready() {
            self.driver.send(SupervisorToUplink::Listen, None);
        }
        if matches!(self.link, Link::Joined) {
            self.standby.must_leave(now);
        }
    }

    /// When [`Uplink::step_carrier`] has something to do.
    pub(super) fn carrier_deadline(&self) -> Option<Instant> {
        self.carrier.settled_at.filter(|_| self.carrier.now != self.carrier.heard)
    }
}

/// What is wrong with an interface in this state, and what to do.
fn why(state: LinkState, device: &str) -> Option<String> {
    match state {
        LinkState::Up => None,
        LinkState::NoCarrier => Some(format!("{device} has no carrier: is the cable in, and is the other end up?")),
        LinkState::Down => Some(format!("{device} is set down; `ip link set {device} up` brings it back")),
        LinkState::Missing => {
            Some(format!("there is no interface {device}; it is used as soon as it is there (`ip link`)"))
        }
    }
}
