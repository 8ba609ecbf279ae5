//! An uplink that goes on under another program of this process.

use super::super::backoff::Backoff;
use super::super::driver::{Driver, DriverState, Kept, KeptState};
use super::super::handover::{Fd, Giver, Moment, Taker};
use super::super::store::SavedUplink;
use super::announcements::Announcements;
use super::carrier::Carrier;
use super::standby::Standby;
use super::{Claim, Link, Uplink, processes};
use lasthop_management_ipc::{LinkState, PortConfig};
use lasthop_sys::Epoll;
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::{UplinkCounters, UplinkDevice};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// What there is to know of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct UplinkState {
    /// Its port as children know it.
    pub config: PortConfig,
    spec: SavedUplink,
    saved: bool,
    driver: DriverState,
    spare: Option<DriverState>,
    spare_at: Moment,
    kept: Option<KeptState>,
    link: LinkKind,
    copy: Option<Fd>,
    apart_since: Option<Moment>,
    join_backoff: Backoff,
    device: Option<UplinkDevice>,
    before: UplinkCounters,
    was_started: bool,
    last_error: Option<String>,
    spare_trouble: Option<String>,
    said_why: bool,
    had_room: bool,
    removed: bool,
    standby: StandbyState,
    carrier: CarrierState,
    claim: Option<(u32, Fd)>,
    made: Option<MacAddr>,
    at_once: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum LinkKind {
    Apart(Moment),
    Joined,
    Closing(Moment),
}

#[derive(Debug, Serialize, Deserialize)]
struct StandbyState {
    known: bool,
    listen_until: Option<Moment>,
    behind: Option<String>,
    leave_by: Option<Moment>,
    announcements: (u32, Option<Moment>),
}

#[derive(Debug, Serialize, Deserialize)]
struct CarrierState {
    now: LinkState,
    heard: LinkState,
    settled_at: Option<Moment>,
    was_up: bool,
    told: bool,
    set_down: bool,
}

impl Uplink {
    /// What of it is half done, so that no other program can go on with it.
    pub fn unsettled(&self) -> Option<String> {
        if self.waiting.is_some() || self.is_leaving() {
            return Some(format!("{} is being added or removed", self.process()));
        }
        self.driver.unsettled().or_else(|| self.spare.as_ref().and_then(Driver::unsettled))
    }

    /// Of one that is settled.
    pub fn hand_over(&self, giver: &mut Giver) -> UplinkState {
        let Standby { known, listen_until, behind, leave_by, announcements } = &self.standby;
        let (left, at) = announcements.to_come();
        let Carrier { now, heard, settled_at, was_up, told, set_down } = &self.carrier;
        let moment = |at: &Option<_>| at.map(|at| giver.moment(at));
        let link = match self.link {
            Link::Apart { join_at } => LinkKind::Apart(giver.moment(join_at)),
            Link::Joined => LinkKind::Joined,
            Link::Closing { until } => LinkKind::Closing(giver.moment(until)),
        };
        let standby = StandbyState {
            known: *known,
            listen_until: moment(listen_until),
            behind: behind.clone(),
            leave_by: moment(leave_by),
            announcements: (left, moment(&at)),
        };
        let carrier = CarrierState {
            now: *now,
            heard: *heard,
            settled_at: moment(settled_at),
            was_up: *was_up,
            told: *told,
            set_down: *set_down,
        };
        UplinkState {
            config: self.config.clone(),
            spec: self.spec.clone(),
            saved: self.saved,
            spare_at: giver.moment(self.spare_at),
            apart_since: moment(&self.apart_since),
            driver: self.driver.hand_over(giver),
            spare: self.spare.as_ref().map(|spare| spare.hand_over(giver)),
            kept: self.kept.as_ref().map(|kept| kept.hand_over(giver)),
            link,
            copy: self.copy.as_ref().map(|copy| giver.fd(copy)),
            join_backoff: self.join_backoff.clone(),
            device: self.device.clone(),
            before: self.before.clone(),
            was_started: self.was_started,
            last_error: self.last_error.clone(),
            spare_trouble: self.spare_trouble.clone(),
            said_why: self.said_why,
            had_room: self.had_room,
            removed: self.removed,
            standby,
            carrier,
            claim: self.claim.as_ref().map(|claim| claim.hand_over(giver)),
            made: self.made,
            at_once: self.at_once,
        }
    }

    /// Goes on with it. The others as for [`Uplink::new`].
    pub fn resumed(
        state: UplinkState,
        program: &Path,
        tokens: [(u64, u64); 2],
        limit: Duration,
        epoll: &Epoll,
        taker: &Taker,
    ) -> Result<Self, String> {
        let mut uplink = Self::new(state.config, state.spec, state.saved, program, tokens, limit);
        uplink.driver.resume(state.driver, epoll, taker)?;
        match (&mut uplink.spare, state.spare) {
            (Some(spare), Some(state)) => spare.resume(state, epoll, taker)?,
            // One that was to stand by for a change alone.
            (None, Some(state)) => {
                let mut spare = Driver::new(&processes(&uplink.spec), program.to_owned(), tokens[1], limit);
                spare.resume(state, epoll, taker)?;
                (uplink.spare, uplink.idle) = (Some(spare), None);
            }
            _ => {}
        }
        let at = |moment: Option<Moment>| moment.map(|moment| taker.at(moment));
        uplink.spare_at = taker.at(state.spare_at);
        uplink.kept = state.kept.map(|kept| Kept::resumed(kept, taker)).transpose()?;
        uplink.link = match state.link {
            LinkKind::Apart(join_at) => Link::Apart { join_at: taker.at(join_at) },
            LinkKind::Joined => Link::Joined,
            LinkKind::Closing(until) => Link::Closing { until: taker.at(until) },
        };
        uplink.copy = state.copy.map(|copy| taker.fd(copy)).transpose()?;
        uplink.apart_since = at(state.apart_since);
        (uplink.join_backoff, uplink.device, uplink.before) = (state.join_backoff, state.device, state.before);
        (uplink.was_started, uplink.said_why) = (state.was_started, state.said_why);
        (uplink.last_error, uplink.spare_trouble) = (state.last_error, state.spare_trouble);
        (uplink.had_room, uplink.removed) = (state.had_room, state.removed);
        let StandbyState { known, listen_until, behind, leave_by, announcements: (left, next) } = state.standby;
        let announcements = Announcements::that_come(left, at(next));
        uplink.standby =
            Standby { known, listen_until: at(listen_until), behind, leave_by: at(leave_by), announcements };
        let CarrierState { now, heard, settled_at, was_up, told, set_down } = state.carrier;
        uplink.carrier = Carrier { now, heard, settled_at: at(settled_at), was_up, told, set_down };
        uplink.claim = state.claim.map(|claim| Claim::resumed(claim, taker)).transpose()?;
        (uplink.made, uplink.at_once) = (state.made, state.at_once);
        Ok(uplink)
    }
}
