//! One uplink as the supervisor sees it: a process for a device, perhaps one that stands by, the open device that one leaves
//! to the other, and the connection to the switch.
//!
//! ```text
//!          ready, switch up                 connection closed
//!  Apart ------------------> Joined ---------------------------> Apart
//!                              |                                   ^
//!                              | the process ended                 | closed, or nothing heard for a second
//!                              +--------------> Closing -----------+
//! ```
//!
//! Whether it may be joined at all is the business of `standby.rs`.

mod announcements;
mod carrier;
mod claim;
mod counted;
mod handed;
mod queues;
mod renewed;
mod standby;
mod taking;

use super::backoff::Backoff;
use super::child::{Child, Ended};
use super::closing::close_aside;
use super::driver::{Driver, Heard, Kept, Start};
use super::sessions::Sessions;
use super::store::SavedUplink;
use carrier::Carrier;
pub use claim::Claim;
use counted::add;
pub use handed::UplinkState;
use lasthop_ipc::{SupervisorToSwitch, SwitchToSupervisor};
use lasthop_management_ipc::{DeviceState, PortConfig, UplinkInfo};
use lasthop_sys::Epoll;
use lasthop_text::MacAddr;
use lasthop_types::MAX_QUEUE_PAIRS;
use lasthop_uplink_ipc::{QueueOwner, SupervisorToUplink, UplinkCounters, UplinkDevice, UplinkDriver};
pub use renewed::Before;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use standby::Standby;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// First wait before the switch is given another connection, and the longest.
const CONNECT_WAIT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// How long the switch may take to say that the connection of a dead uplink has ended.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);
/// How much later than the end of its connection the end of a process may be reported.
const END_LIMIT: Duration = Duration::from_millis(20);
/// How long the switch may take to answer an uplink.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long an uplink may take to end after it was asked; when everything ends, a part of what all have.
pub const LEAVING_LIMIT: Duration = Duration::from_secs(2);
pub const ENDING_LIMIT: Duration = Duration::from_millis(700);
/// How long after a connection was made a spare is started: its start is work that packets would wait for.
const SPARE_WAIT: Duration = Duration::from_millis(50);

/// Longest text of what is wrong that control is told, in characters: it is told that of all uplinks at once.
const LONGEST_ERROR: usize = 300;

/// The switch, which uplinks are joined to.
pub type Switch = Child<SupervisorToSwitch, SwitchToSupervisor>;

#[derive(Debug)]
enum Link {
    Apart { join_at: Instant },
    Joined,
    Closing { until: Instant },
}

/// Why somebody waits for this uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It was added and has not been ready yet.
    Added(u64),
    /// It is to be gone.
    Deleted(u64),
    /// The same, and it is a guest's port.
    PortDeleted(u64),
    /// It was added and does not work, for this reason.
    Failed(u64, String),
}

/// What its processes are called in the log.
fn processes(spec: &SavedUplink) -> String {
    format!("{} {}: lasthop-uplink", spec.kind(), spec.name)
}

/// An uplink.
#[derive(Debug)]
pub struct Uplink {
    /// Its port as children know it.
    pub config: PortConfig,
    /// As it was asked for.
    pub spec: SavedUplink,
    /// Whether it is remembered in the state directory.
    pub saved: bool,
    /// A call of the API that waits for it.
    pub waiting: Option<Waiting>,
    /// The process that carries packets, or is to.
    driver: Driver,
    /// The one that is to take over from it, if there is to be one.
    spare: Option<Driver>,
    /// In the place of that one, while there is none.
    idle: Option<Driver>,
    /// One stands by to take over with a new program.
    renewing: bool,
    spare_at: Instant,
    /// The open device.
    kept: Option<Kept>,
    link: Link,
    /// Ours of the switch's end of the connection, to end it whatever becomes of the switch.
    copy: Option<OwnedFd>,
    /// Since when nobody carries packets, or nobody is known to.
    apart_since: Option<Instant>,
    join_backoff: Backoff,
    device: Option<UplinkDevice>,
    /// Of the processes that have ended.
    before: UplinkCounters,
    /// A process of it has been started.
    was_started: bool,
    last_error: Option<String>,
    spare_trouble: Option<String>,
    /// The process that runs, or was killed, is known to be of no use, and `last_error` says why.
    said_why: bool,
    leaving: Option<Instant>,
    /// The last time that it took nothing, its device would have taken something.
    had_room: bool,
    /// A device that it made has been removed, or a process was started to do that.
    removed: bool,
    standby: Standby,
    carrier: Carrier,
    /// That no other lasthop uses its interface.
    claim: Option<Claim>,
    /// The address of the TAP device of this name that an earlier run has made.
    pub made: Option<MacAddr>,
    /// Somebody waits for its first process, and is told what it says.
    pub at_once: bool,
    /// Ports that have queues of their own there, as its process was told, or will be when it is ready.
    owners: Vec<QueueOwner>,
    /// For which of them each of its queues is, as its process says and the switch was told: by that queue they send.
    kept_for: [u32; MAX_QUEUE_PAIRS],
}

impl Uplink {
    /// One that does not run yet. `tokens`: under which `epoll` reports the channels and the ends of its two processes.
    /// `limit`: within which it is found out that one hangs.
    pub fn new(
        config: PortConfig,
        spec: SavedUplink,
        saved: bool,
        program: &Path,
        tokens: [(u64, u64); 2],
        limit: Duration,
    ) -> Self {
        let now = Instant::now();
        let name = processes(&spec);
        let [driver, spare] = tokens.map(|tokens| Driver::new(&name, program.to_owned(), tokens, limit));
        let (spare, idle) = if spec.spare { (Some(spare), None) } else { (None, Some(spare)) };
        Self {
            driver,
            spare,
            idle,
            renewing: false,
            spare_at: now,
            kept: None,
            config,
            spec,
            saved,
            waiting: None,
            link: Link::Apart { join_at: now },
            copy: None,
            apart_since: None,
            join_backoff: Backoff::new(CONNECT_WAIT.0, CONNECT_WAIT.1),
            device: None,
            before: UplinkCounters::default(),
            was_started: false,
            last_error: None,
            spare_trouble: None,
            said_why: false,
            leaving: None,
            had_room: false,
            removed: false,
            standby: Standby::default(),
            carrier: Carrier::default(),
            claim: None,
            made: None,
            at_once: false,
            owners: Vec::new(),
            kept_for: Default::default(),
        }
    }

    /// It has another name. Its processes go on.
    pub fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.config.name);
        name.clone_into(&mut self.spec.name);
        let name = processes(&self.spec);
        self.driver.rename(&name);
        self.spare.iter_mut().chain(&mut self.idle).for_each(|spare| spare.rename(&name));
    }

    /// Whether a process of it exists.
    pub fn is_up(&self) -> bool {
        self.driver.is_up() || self.spare_is_up()
    }

    fn spare_is_up(&self) -> bool {
        self.spare.as_ref().is_some_and(Driver::is_up)
    }

    /// Whether it is a representor that its process has joined to its TAP device, so that nothing of it goes to the host's own stack.
    pub fn is_representor(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.driver == UplinkDriver::Tc)
    }

    /// Whether it is going to be removed.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// The switch has ended, and every connection with it.
    pub fn switch_gone(&mut self, now: Instant) {
        self.join_backoff.reset();
        self.hang_up();
        self.part(Link::Apart { join_at: now }, now);
    }

    fn part(&mut self, link: Link, now: Instant) {
        if matches!(self.link, Link::Joined) {
            self.apart_since.get_or_insert(now);
        }
        self.link = link;
    }

    /// The switch is ending: the process need not wait until that is done, if it ever is.
    pub fn hang_up(&mut self) {
        if let Some(copy) = self.copy.take() {
            let _ = shutdown(&copy, Shutdown::Both);
            close_aside(vec![copy]);
        }
    }

    /// The switch says that the connection has ended.
    pub fn connection_closed(&mut self, now: Instant, reason: &str) {
        self.hang_up();
        self.has_left();
        let wait = match self.link {
            Link::Closing { .. } => Duration::ZERO,
            Link::Joined => {
                if !self.said_why && self.may_join() {
                    info!("port {}: connection ended: {reason}", self.config.name);
                    self.last_error = Some(format!("the switch: {reason}"));
                }
                // If it is the process that has ended, its end will be reported in a moment.
                self.join_backoff.wait().max(END_LIMIT)
            }
            Link::Apart { .. } => return,
        };
        self.part(Link::Apart { join_at: now + wait }, now);
    }

    /// Does what is due: starts processes, joins the one that carries to the switch, asks whether they live.
    pub fn step(&mut self, epoll: &Epoll, switch: &mut Switch, sessions: &mut Sessions, now: Instant) {
        if let Some(why) = self.driver.check_alive(epoll, now) {
            self.apart_since = Some(self.driver.last_heard());
            self.complain(why);
            self.said_why = true;
        }
        if let Some(why) = self.spare.as_mut().and_then(|spare| spare.check_alive(epoll, now)) {
            self.complain_of_spare(why);
        }
        self.hasten(now);
        self.claim.iter().for_each(Claim::answer);
        if self.leaving.is_none() {
            self.step_carrier(now);
            self.start(epoll, now);
        }
        if matches!(self.link, Link::Closing { until } if until <= now) {
            self.link = Link::Apart { join_at: now };
        }
        self.step_standby(now);
        if self.driver.is_ready() {
            self.join(switch, sessions, now);
        }
        self.flush(epoll);
    }

    fn start(&mut self, epoll: &Epoll, now: Instant) {
        let ours = self.device.as_ref().is_some_and(|d| d.created);
        let how = Start { ours, leave_down: self.was_set_down(), mac: self.made };
        if self.waits_for_device() {
            return;
        }
        // Who is to open the device needs the last one to have closed it.
        if self.driver.is_due(now) && (self.kept.is_some() || !self.spare_is_up()) {
            if let Err(why) = self.claim_device() {
                self.driver.start_later(now);
                return self.complain(why);
            }
            match self.driver.start(epoll, &self.spec, self.kept.as_ref(), how, now) {
                Ok(()) => self.was_started = true,
                Err(e) => self.complain(format!("cannot start lasthop-uplink: {e}")),
            }
        } else if self.spare_is_wanted()
            && let Some(spare) = self.spare.as_mut().filter(|spare| self.spare_at <= now && spare.is_due(now))
            && let Err(e) = spare.start(epoll, &self.spec, self.kept.as_ref(), how, now)
        {
            self.complain_of_spare(format!("cannot start: {e}"));
        }
    }

    fn claim_device(&mut self) -> Result<(), String> {
        self.claim = Claim::renew(self.claim.take(), &self.spec.device)?;
        Ok(())
    }

    /// There is something that one could take over.
    fn spare_is_wanted(&self) -> bool {
        self.kept.is_some() && (matches!(self.link, Link::Joined) || !self.may_join()) && self.leaving.is_none()
    }

    /// Gives the switch and the process a connection to each other.
    fn join(&mut self, switch: &mut Switch, sessions: &mut Sessions, now: Instant) {
        let due = matches!(self.link, Link::Apart { join_at } if join_at <= now);
        if let Some(why) = sessions.trouble(self.config.id).filter(|_| due) {
            return self.complain(why);
        }
        if !due || !switch.is_up() || !sessions.is_up(self.config.id) || self.leaving.is_some() || !self.may_join() {
            return;
        }
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let pair = pair.and_then(|(ours, theirs)| {
            // Nobody must wait for an uplink; the uplink's conversation is one question after the other.
            set_socket_timeout(&ours, Timeout::Recv, Some(ANSWER_LIMIT))?;
            fcntl_setfl(&theirs, fcntl_getfl(&theirs)? | OFlags::NONBLOCK)?;
            Ok((ours, theirs))
        });
        let joined = pair.map_err(io::Error::from).and_then(|(ours, theirs)| {
            self.hang_up();
            self.copy = theirs.try_clone().ok();
            Ok((ours, sessions.connect(self.config.id, theirs)?))
        });
        match joined {
            Ok((ours, channel)) => {
                switch.send(SupervisorToSwitch::Connection(self.config.id, None), Some(channel));
                let away = self.apart_since.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
                let away_ms = away.as_millis() as u64;
                self.driver.send(SupervisorToUplink::Connection { away_ms }, Some(ours));
                self.link = Link::Joined;
                self.spare_at = now + SPARE_WAIT;
            }
            Err(e) => {
                self.complain(format!("cannot be joined to the switch: {e}"));
                self.link = Link::Apart { join_at: now + self.join_backoff.wait() };
            }
        }
    }

    /// Takes what it says. True if it has become ready; an error is why it cannot be used.
    pub fn hear(&mut self, epoll: &Epoll, now: Instant) -> Result<bool, String> {
        match self.spare.as_mut().and_then(|spare| spare.hear(epoll, now)) {
            Some(Heard::Ready(..)) => debug!("{} {}: its spare stands by", self.spec.kind(), self.spec.name),
            Some(Heard::Failed(why)) => self.complain_of_spare(why),
            None => {}
        }
        match self.driver.hear(epoll, now) {
            Some(Heard::Ready(device, kept)) => {
                let created = device.created || self.device.as_ref().is_some_and(|d| d.created);
                let UplinkDevice { driver, mode, mac, .. } = &device;
                info!(
                    "{} {}: {} ({}, {mode}), {mac}",
                    self.spec.kind(),
                    self.spec.name,
                    self.spec.device,
                    driver.name()
                );
                if device.made_now && self.made.is_some() {
                    self.complain(format!(
                        "{} had been deleted and was made anew: its addresses and routes are gone, and it is in no bridge; give \
                         it again what it had (`ip addr add`, `ip link set … master`)",
                        self.spec.device
                    ));
                }
                self.made = created.then_some(device.mac);
                // An interface that its process has made had no number before.
                self.claim_device().unwrap_or_else(|why| self.complain(why));
                self.device = Some(UplinkDevice { created, ..device });
                self.tell_owners();
                match kept {
                    // It would keep a device that is to go.
                    Some(kept) if self.leaving.is_some() => drop(kept),
                    Some(kept) => self.kept = Some(kept),
                    None => {}
                }
                Ok(true)
            }
            Some(Heard::Failed(why)) => {
                self.complain(why.clone());
                self.said_why = true;
                Err(why)
            }
            None => Ok(false),
        }
    }

    /// If the process that carries has ended: how. Its spare takes its place, or it is started again, unless the uplink is
    /// leaving.
    pub fn reap(&mut self, epoll: &Epoll, now: Instant) -> Option<Ended> {
        let ended = self.reap_both(epoll, now);
        self.put_spare_away();
        ended
    }

    fn reap_both(&mut self, epoll: &Epoll, now: Instant) -> Option<Ended> {
        if let Some((ended, _)) = self.spare.as_mut().and_then(|spare| spare.reap(epoll, now))
            && self.leaving.is_none()
            && self.kept.is_some()
            && !ended.planned
        {
            // Its number would make every line a new one.
            debug!("{}; it stood by", ended.what);
            self.complain_of_spare("has ended; starting another".into());
        }
        let (ended, sound) = self.driver.reap(epoll, now)?;
        let link = match self.link {
            Link::Joined => Link::Closing { until: now + CLOSING_LIMIT },
            _ => Link::Apart { join_at: now },
        };
        self.part(link, now);
        add(&mut self.before, self.driver.take_counters());
        if !std::mem::take(&mut self.said_why) && !ended.planned {
            self.last_error = Some(ended.what.clone());
        }
        if self.leaving.is_some() {
            self.removed |= ended.well;
            return Some(ended);
        }
        if !sound {
            // It may have ended because of the device as it was: it is opened anew.
            self.kept = None;
            self.spare.iter().for_each(Driver::kill);
        } else if let Some(spare) = self.spare.as_mut().filter(|spare| spare.is_up()) {
            std::mem::swap(&mut self.driver, spare);
            if self.driver.is_ready() && !self.may_join() {
                self.driver.send(SupervisorToUplink::Listen, None);
            }
        }
        Some(ended)
    }

    /// Somebody wants its counters as they are now: asks for them. See [`Uplink::is_fresh`].
    pub fn refresh(&mut self, now: Instant) {
        self.driver.refresh(now);
    }

    /// Whether it has told its counters since [`Uplink::refresh`], or cannot.
    pub fn is_fresh(&self) -> bool {
        self.driver.is_fresh()
    }

    /// Asks it to end for good within `limit`, and to take along a device that it has made if that is to be removed.
    pub fn leave(&mut self, now: Instant, limit: Duration, remove: bool) {
        self.leaving = Some(now + limit);
        self.spare.iter().for_each(Driver::kill);
        self.kept = None;
        self.driver.send(SupervisorToUplink::Shutdown { remove }, None);
    }

    /// Ends it if it was asked to end long enough ago.
    pub fn hasten(&mut self, now: Instant) {
        if self.leaving.is_some_and(|at| at <= now) {
            self.driver.kill();
        }
    }

    /// It is leaving, and if no process of it is left that did what it was asked, one more is started, which has no other work
    /// than to take along a device that was made here. Once; false when nothing is left to be done.
    pub fn remove_device(&mut self, epoll: &Epoll, now: Instant, limit: Duration) -> bool {
        if self.is_up() {
            return true;
        }
        let made = self.device.as_ref().is_some_and(|d| d.created);
        if std::mem::replace(&mut self.removed, true) || !made {
            return false;
        }
        if let Err(e) =
            self.driver.start(epoll, &self.spec, None, Start { ours: true, leave_down: true, mac: self.made }, now)
        {
            warn!(
                "{} {}: {} is left behind: cannot start lasthop-uplink: {e}",
                self.spec.kind(),
                self.spec.name,
                self.spec.device
            );
            return false;
        }
        self.leaving = Some(now + limit);
        self.driver.send(SupervisorToUplink::Shutdown { remove: true }, None);
        self.flush(epoll);
        true
    }

    /// Sends what waits.
    pub fn flush(&mut self, epoll: &Epoll) {
        self.driver.flush(epoll);
        if let Some(spare) = &mut self.spare {
            spare.flush(epoll);
        }
    }

    /// When [`Uplink::step`] next has something to do, if no event comes first.
    pub fn deadline(&self, switch_up: bool) -> Option<Instant> {
        if self.leaving.is_some() {
            return self.leaving;
        }
        let join_at = match self.link {
            Link::Apart { join_at } if switch_up && self.driver.is_ready() && self.may_join() => Some(join_at),
            Link::Closing { until } => Some(until),
            _ => None,
        };
        let waits_for_spare = !self.driver.is_up() && self.kept.is_none() && self.spare_is_up();
        let waits = waits_for_spare || (!self.driver.is_up() && self.waits_for_device());
        let driver = self.driver.deadline().filter(|_| !waits);
        let spare = self.spare.as_ref().and_then(|spare| match spare.deadline() {
            at if spare.is_up() => at,
            at if self.spare_is_wanted() => at.max(Some(self.spare_at)),
            _ => None,
        });
        [driver, spare, join_at]
            .into_iter()
            .flatten()
            .chain(self.standby_deadline())
            .chain(self.carrier_deadline())
            .min()
    }

    /// What its processes are called where it is told how often they were replaced.
    pub fn process(&self) -> String {
        format!("{} {}", self.spec.kind(), self.spec.name)
    }

    /// Its processes: the one that carries packets and one that stands by.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.driver.pid().into_iter().chain(self.spare.as_ref().and_then(Driver::pid))
    }

    /// As `lasthop uplink list` shows it; `restarts`: how often a process of it has been replaced.
    pub fn info(&self, restarts: u64) -> UplinkInfo {
        let mut counters = self.before.clone();
        add(&mut counters, self.driver.counters().clone());
        UplinkInfo {
            name: self.spec.name.clone(),
            device: self.device_state(),
            guest: self.spec.guest,
            nice: self.spec.nice,
            no_gro: self.spec.no_gro,
            running: self.driver.is_ready(),
            probing: self.is_probing(),
            about: self.device.clone(),
            pid: self.driver.pid(),
            restarts,
            spare: self.spare.as_ref().filter(|_| self.spec.spare).map(Driver::is_ready),
            blocked_by: self.behind().cloned(),
            counters,
        }
    }

    /// What is to be shown of its interface.
    pub fn device_state(&self) -> DeviceState {
        DeviceState {
            port: self.config.id,
            device: self.spec.device.clone(),
            driver: self.device.as_ref().map(|device| device.driver),
            link: self.link_state(),
            // It may be the process's own words.
            last_error: self.trouble().map(|why| why.chars().take(LONGEST_ERROR).collect()),
        }
    }

    /// Says what is wrong, once.
    fn complain(&mut self, what: String) {
        if self.last_error.as_ref() != Some(&what) {
            warn!("{} {}: {what}", self.spec.kind(), self.spec.name);
            self.last_error = Some(what);
        }
    }
}
