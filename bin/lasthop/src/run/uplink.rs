//! One uplink as the supervisor sees it: a process for a device, the connection between it and the switch, and whether it
//! is alive.
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

mod standby;

use super::backoff::Backoff;
use super::child::{Child, Ended};
use super::store::SavedUplink;
use lasthop_ipc::{
    PortConfig, SupervisorToSwitch, SupervisorToUplink, SwitchToSupervisor, Token, UplinkCounters, UplinkDevice,
    UplinkInfo, UplinkToSupervisor,
};
use lasthop_sys::Epoll;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use standby::Standby;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// First wait before the switch is given another connection, and the longest.
const CONNECT_WAIT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// How long the switch may take to say that the connection of a dead uplink has ended.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);
/// How much later than the end of its connection the end of a process may be reported.
const END_LIMIT: Duration = Duration::from_millis(20);
/// How long the switch may take to answer an uplink.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long an uplink may take to end after it was asked.
const LEAVING_LIMIT: Duration = Duration::from_secs(2);

/// The switch, which uplinks are joined to.
pub type Switch = Child<SupervisorToSwitch, SwitchToSupervisor>;

#[derive(Debug)]
enum Link {
    Apart { join_at: Instant },
    Joined,
    Closing { until: Instant },
}

/// Why somebody waits for this uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It was added and has not been ready yet.
    Added(u64),
    /// It is to be gone.
    Deleted(u64),
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
    child: Child<SupervisorToUplink, UplinkToSupervisor>,
    link: Link,
    join_backoff: Backoff,
    device: Option<UplinkDevice>,
    /// Of the processes that have ended.
    before: UplinkCounters,
    /// Of the one that runs.
    counters: UplinkCounters,
    starts: u64,
    last_error: Option<String>,
    /// The process that runs, or was killed, is known to be of no use, and `last_error` says why.
    said_why: bool,
    /// How long it may take to answer, and what it has to answer until when.
    limit: Duration,
    ping: Option<Instant>,
    ping_number: u64,
    ping_at: Instant,
    /// The counters are as new as somebody wants them.
    fresh: bool,
    leaving: Option<Instant>,
    standby: Standby,
    /// Tokens of probes that came in.
    heard: Vec<Token>,
}

impl Uplink {
    /// One that does not run yet. `tokens`: under which `epoll` reports its channel and its end. `limit`: how long it may
    /// take to answer before it counts as hung.
    pub fn new(
        config: PortConfig,
        spec: SavedUplink,
        saved: bool,
        program: PathBuf,
        tokens: (u64, u64),
        limit: Duration,
    ) -> Self {
        let now = Instant::now();
        let name = format!("uplink {}: lasthop-uplink", spec.name);
        Self {
            child: Child::new(&name, program, arguments(&spec, false), tokens.0, tokens.1),
            config,
            spec,
            saved,
            waiting: None,
            link: Link::Apart { join_at: now },
            join_backoff: Backoff::new(CONNECT_WAIT.0, CONNECT_WAIT.1),
            device: None,
            before: UplinkCounters::default(),
            counters: UplinkCounters::default(),
            starts: 0,
            last_error: None,
            said_why: false,
            limit,
            ping: None,
            ping_number: 0,
            ping_at: now,
            fresh: true,
            leaving: None,
            standby: Standby::default(),
            heard: Vec::new(),
        }
    }

    /// Whether the process exists.
    pub fn is_up(&self) -> bool {
        self.child.is_up()
    }

    /// Whether it is going to be removed.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// The switch has ended, and every connection with it.
    pub fn switch_gone(&mut self, now: Instant) {
        self.join_backoff.reset();
        self.link = Link::Apart { join_at: now };
    }

    /// The switch says that the connection has ended.
    pub fn connection_closed(&mut self, now: Instant, reason: &str) {
        self.has_let_go();
        let wait = match self.link {
            Link::Closing { .. } => Duration::ZERO,
            Link::Joined => {
                if !self.said_why && self.may_join() {
                    self.last_error = Some(format!("the switch: {reason}"));
                }
                // If it is the process that has ended, its end will be reported in a moment.
                self.join_backoff.wait().max(END_LIMIT)
            }
            Link::Apart { .. } => return,
        };
        self.link = Link::Apart { join_at: now + wait };
    }

    /// Does what is due: starts the process, joins it to the switch, asks whether it lives.
    pub fn step(&mut self, epoll: &Epoll, switch: &mut Switch, now: Instant) {
        self.child.check_hang(now);
        if self.leaving.is_some_and(|at| at <= now) {
            self.child.kill();
        }
        if self.leaving.is_none() && self.child.is_due(now) {
            let ours = self.device.as_ref().is_some_and(|d| d.created);
            self.child.set_arguments(arguments(&self.spec, ours));
            match self.child.start(epoll, Vec::new()) {
                Ok(()) => self.starts += 1,
                Err(e) => {
                    self.complain(format!("cannot start lasthop-uplink: {e}"));
                    self.child.start_later(now);
                }
            }
        }
        if matches!(self.link, Link::Closing { until } if until <= now) {
            self.link = Link::Apart { join_at: now };
        }
        self.step_standby(now);
        if self.child.is_ready() {
            self.join(switch, now);
            self.ask(now);
        }
        self.child.flush(epoll);
    }

    /// Gives the switch and the process a connection to each other.
    fn join(&mut self, switch: &mut Switch, now: Instant) {
        let due = matches!(self.link, Link::Apart { join_at } if join_at <= now);
        if !due || !switch.is_up() || self.leaving.is_some() || !self.may_join() {
            return;
        }
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let pair = pair.and_then(|(ours, theirs)| {
            // The switch must not wait for an uplink; the uplink's conversation is one question after the other.
            set_socket_timeout(&ours, Timeout::Recv, Some(ANSWER_LIMIT))?;
            fcntl_setfl(&theirs, fcntl_getfl(&theirs)? | OFlags::NONBLOCK)?;
            Ok((ours, theirs))
        });
        match pair {
            Ok((ours, theirs)) => {
                switch.send(SupervisorToSwitch::Connection(self.config.id, None), Some(theirs));
                self.child.send(SupervisorToUplink::Connection, Some(ours));
                self.link = Link::Joined;
            }
            Err(e) => {
                self.complain(format!("cannot be joined to the switch: {e}"));
                self.link = Link::Apart { join_at: now + self.join_backoff.wait() };
            }
        }
    }

    fn ask(&mut self, now: Instant) {
        if let Some(until) = self.ping {
            if until <= now {
                self.ping = None;
                self.complain(format!("it has not answered for {} ms; replacing it", self.limit.as_millis()));
                self.said_why = true;
                self.child.kill();
            }
        } else if self.ping_at <= now {
            self.ping_number += 1;
            self.child.send(SupervisorToUplink::Ping(self.ping_number), None);
            self.ping = Some(now + self.limit);
        }
    }

    /// Takes what it says. True if it has become ready; an error is why it cannot be used.
    pub fn hear(&mut self, epoll: &Epoll, now: Instant) -> Result<bool, String> {
        let mut became_ready = false;
        for message in self.child.receive(epoll, now) {
            match message {
                UplinkToSupervisor::Ready(device) => {
                    let created = device.created || self.device.as_ref().is_some_and(|d| d.created);
                    self.child.set_ready();
                    self.ping_at = now + self.limit / 2;
                    let UplinkDevice { driver, mode, mac, .. } = &device;
                    info!("uplink {}: {} ({}, {mode}), {mac}", self.spec.name, self.spec.device, driver.name());
                    // The next start must not choose anew: the interface may be gone, and a TAP device is no substitute.
                    self.spec.driver.get_or_insert_with(|| driver.name().into());
                    self.device = Some(UplinkDevice { created, ..device });
                    became_ready = true;
                }
                UplinkToSupervisor::Pong { number, counters } => {
                    if number == self.ping_number {
                        self.ping = None;
                        self.ping_at = now + self.limit / 2;
                    }
                    (self.counters, self.fresh) = (counters, true);
                }
                UplinkToSupervisor::Heard(token) => self.heard.push(token),
                UplinkToSupervisor::Failed(why) => {
                    self.complain(why.clone());
                    self.said_why = true;
                    return Err(why);
                }
            }
        }
        Ok(became_ready)
    }

    /// If the process has ended: how. It will be started again, unless it is leaving.
    pub fn reap(&mut self, epoll: &Epoll, now: Instant) -> Option<Ended> {
        let ended = self.child.reap(epoll, now)?;
        self.link = match self.link {
            Link::Joined => Link::Closing { until: now + CLOSING_LIMIT },
            _ => Link::Apart { join_at: now },
        };
        (self.ping, self.ping_at, self.fresh) = (None, now, true);
        add(&mut self.before, std::mem::take(&mut self.counters));
        if !std::mem::take(&mut self.said_why) {
            self.last_error = Some(ended.what.clone());
        }
        Some(ended)
    }

    /// Somebody wants its counters as they are now: asks for them. See [`Uplink::is_fresh`].
    pub fn refresh(&mut self, now: Instant) {
        if self.child.is_ready() {
            (self.ping, self.ping_at, self.fresh) = (None, now, false);
        }
    }

    /// Whether it has told its counters since [`Uplink::refresh`], or cannot.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Asks it to end for good and to take along a device that it has made.
    pub fn leave(&mut self, now: Instant) {
        self.leaving = Some(now + LEAVING_LIMIT);
        self.child.send(SupervisorToUplink::Shutdown { remove: true }, None);
    }

    /// Sends what waits.
    pub fn flush(&mut self, epoll: &Epoll) {
        self.child.flush(epoll);
    }

    /// When [`Uplink::step`] next has something to do, if no event comes first.
    pub fn deadline(&self, switch_up: bool) -> Option<Instant> {
        if self.leaving.is_some() {
            return self.leaving;
        }
        let join_at = match self.link {
            Link::Apart { join_at } if switch_up && self.child.is_ready() && self.may_join() => Some(join_at),
            Link::Closing { until } => Some(until),
            _ => None,
        };
        let ping = if self.child.is_ready() { Some(self.ping.unwrap_or(self.ping_at)) } else { None };
        self.child.deadline().into_iter().chain(join_at).chain(ping).chain(self.standby_deadline()).min()
    }

    /// As `lasthop uplink list` shows it.
    pub fn info(&self) -> UplinkInfo {
        let mut counters = self.before.clone();
        add(&mut counters, self.counters.clone());
        UplinkInfo {
            name: self.spec.name.clone(),
            port: self.config.id,
            device: self.spec.device.clone(),
            nice: self.spec.nice,
            running: self.child.is_ready(),
            about: self.device.clone(),
            pid: self.child.pid(),
            restarts: self.starts.saturating_sub(1),
            last_error: self.last_error.clone(),
            blocked_by: self.behind().cloned(),
            counters,
        }
    }

    /// Says what is wrong, once.
    fn complain(&mut self, what: String) {
        if self.last_error.as_ref() != Some(&what) {
            warn!("uplink {}: {what}", self.spec.name);
            self.last_error = Some(what);
        }
    }
}

fn arguments(spec: &SavedUplink, ours: bool) -> Vec<String> {
    let mut words = vec!["--supervisor-fd".to_owned(), "3".into(), "--device".into(), spec.device.clone()];
    if let Some(driver) = &spec.driver {
        words.extend(["--driver".into(), driver.clone()]);
    }
    words.extend(["--queues".into(), spec.queues.to_string(), "--nice".into(), spec.nice.to_string()]);
    if ours {
        words.push("--ours".into());
    }
    if spec.no_gro {
        words.push("--no-gro".into());
    }
    words
}

fn add(sum: &mut UplinkCounters, more: UplinkCounters) {
    sum.to_network_packets += more.to_network_packets;
    sum.to_network_bytes += more.to_network_bytes;
    sum.from_network_packets += more.from_network_packets;
    sum.from_network_bytes += more.from_network_bytes;
    // Whose queues they were goes with the process that gave them away.
    sum.queues.iter_mut().for_each(|queue| queue.mac = None);
    sum.queues.resize_with(sum.queues.len().max(more.queues.len()), Default::default);
    for (sum, more) in sum.queues.iter_mut().zip(more.queues) {
        (sum.mac, sum.size) = (more.mac, more.size);
        sum.packets += more.packets;
        sum.dropped += more.dropped;
    }
    sum.merged += more.merged;
    for drop in more.drops {
        match sum.drops.iter_mut().find(|d| d.reason == drop.reason) {
            Some(same) => same.packets += drop.packets,
            None => sum.drops.push(drop),
        }
    }
}
