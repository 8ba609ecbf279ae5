//! An uplink that runs and is kept from the switch: it listens whether it is on the segment of another, or it is and
//! stands by.

use super::super::segments;
use super::announcements::Announcements;
use super::{Link, Uplink};
use lasthop_uplink_ipc::{SupervisorToUplink, Token, VlanMac};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long a new uplink listens before it is joined to the switch, if there is another: probes go there and back.
const LISTEN: Duration = Duration::from_millis(300);
/// How long an uplink may take to leave the switch.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// Why it is kept from the switch, if it is.
#[derive(Debug, Default)]
pub struct Standby {
    /// It has been up before.
    pub(super) known: bool,
    pub(super) listen_until: Option<Instant>,
    /// The uplink that carries the frames of the same segment.
    pub(super) behind: Option<String>,
    pub(super) leave_by: Option<Instant>,
    /// In which the network is told of the stations behind it.
    pub(super) announcements: Announcements,
}

impl Standby {
    /// It was told to leave the switch.
    pub(super) fn must_leave(&mut self, now: Instant) {
        self.leave_by = Some(now + LEAVE_LIMIT);
    }

    /// It need not any more.
    pub(super) fn may_stay(&mut self) {
        self.leave_by = None;
    }
}

impl Uplink {
    /// Whether its process is there and has opened the device.
    pub fn is_ready(&self) -> bool {
        self.driver.is_ready()
    }

    /// Its process has become ready. `alone`: there is no uplink before it whose segment it could be on.
    pub fn stand_by(&mut self, alone: bool, now: Instant) {
        let new = !std::mem::replace(&mut self.standby.known, true);
        if new && !alone && self.standby.behind.is_none() {
            self.standby.listen_until = Some(now + LISTEN);
        }
        if let Some(other) = &self.standby.behind {
            self.last_error = Some(why(other));
        }
        if !self.may_join() {
            self.driver.send(SupervisorToUplink::Listen, None);
        }
    }

    /// Has it send a probe, in the turn of this round on VLANs that it carries, too.
    pub fn probe(&mut self, instance: Token, token: Token, round: usize) {
        let vlans = self.spec.vlans.as_ref().map_or_else(Vec::new, |vlans| segments::turn(vlans, round));
        self.driver.send(SupervisorToUplink::Probe { instance, token, vlans }, None);
    }

    /// Tokens of probes that came in since it was last asked, and the VLAN each came on.
    pub fn take_heard(&mut self) -> Vec<(Token, u16)> {
        self.driver.take_tokens()
    }

    /// It must not carry frames because `other` does on the same segment; or it may. True if that is new.
    pub fn set_behind(&mut self, other: Option<&str>, now: Instant) -> bool {
        if self.standby.behind.as_deref() == other {
            return false;
        }
        let (kind, name) = (self.spec.kind(), &self.spec.name);
        match other {
            Some(other) => {
                warn!("{kind} {name}: {}", why(other));
                self.last_error = Some(why(other));
                self.standby.announcements.stop();
                self.leave_switch(now);
            }
            None => {
                let other = self.standby.behind.as_deref().unwrap_or_default();
                info!("{kind} {name}: not blocked any more");
                self.last_error = Some(format!("was blocked: on the same segment as uplink {other}"));
                self.join_backoff.reset();
                self.standby.leave_by = None;
                self.standby.announcements.start();
            }
        }
        self.standby.behind = other.map(Into::into);
        true
    }

    /// Another one carried frames that it alone carries from now on.
    pub fn replaces(&mut self) {
        self.standby.announcements.start();
    }

    /// Whether the stations behind it are to be announced now. `alone`: no other one is still to leave the switch.
    pub fn is_to_announce(&mut self, alone: bool, now: Instant) -> bool {
        let can = alone && self.carries();
        self.standby.announcements.is_due(can, now)
    }

    /// Has it announce these.
    pub fn announce(&mut self, macs: Vec<VlanMac>) {
        if self.carries() {
            self.driver.send(SupervisorToUplink::Announce(macs), None);
        }
    }

    /// Whether it is joined to the switch, and is to stay so.
    pub fn carries(&self) -> bool {
        matches!(self.link, Link::Joined) && self.may_join() && self.leaving.is_none()
    }

    /// It must not carry frames, and the switch may still take some from it.
    pub fn is_leaving_switch(&self) -> bool {
        !matches!(self.link, Link::Apart { .. }) && !self.may_join()
    }

    /// Whether it may be joined to the switch.
    pub(super) fn may_join(&self) -> bool {
        self.standby.behind.is_none() && self.standby.listen_until.is_none() && self.has_carrier()
    }

    /// It is new, and listens whether it is on another one's segment.
    pub(super) fn is_probing(&self) -> bool {
        self.standby.listen_until.is_some()
    }

    /// The uplink that carries the frames in its place.
    pub fn behind(&self) -> Option<&String> {
        self.standby.behind.as_ref()
    }

    /// The switch says that there is no connection any more.
    pub(super) fn has_left(&mut self) {
        self.standby.leave_by = None;
    }

    /// Ends what has lasted long enough.
    pub(super) fn step_standby(&mut self, now: Instant) {
        self.standby.listen_until.take_if(|until| *until <= now);
        if self.standby.leave_by.take_if(|by| *by <= now).is_some() {
            self.complain("it does not let go of the switch; replacing it".into());
            self.said_why = true;
            self.driver.kill_for("did not let go of the switch");
        }
    }

    /// When [`Uplink::step_standby`] has something to do.
    pub(super) fn standby_deadline(&self) -> impl Iterator<Item = Instant> {
        self.standby.listen_until.into_iter().chain(self.standby.leave_by).chain(self.standby.announcements.deadline())
    }

    /// Says what is wrong with the process that stands by, once.
    pub(super) fn complain_of_spare(&mut self, what: String) {
        if self.spare_trouble.as_ref() != Some(&what) {
            warn!("{} {}: its spare: {what}", self.spec.kind(), self.spec.name);
            self.spare_trouble = Some(what);
        }
    }
}

fn why(other: &str) -> String {
    format!("on the same segment as uplink {other}; blocked")
}
