//! One process of an uplink: what it was given, whether it lives, what it has carried.

#[cfg(test)]
mod tests;

use super::child::ChildState;
use super::child::{Child, Ended};
use super::closing::Came;
use super::handover::{Fd, Giver, Moment, Taker};
use super::store::SavedUplink;
use lasthop_sys::Epoll;
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::{COUNTERS_PAGE, SupervisorToUplink, Token, UplinkCounters, UplinkDevice, UplinkToSupervisor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Most descriptors of a device: more than any driver has for 16 queues.
const MAX_KEPT: usize = 64;

/// An open device, as one process of an uplink leaves it to the next: what must not be closed when a process ends, because
/// frames wait in it, and because closing and opening it takes longer than all the rest.
#[derive(Debug)]
pub struct Kept {
    /// In the order in which the driver wants them back. Closed aside where it is dropped: with the last of them the kernel takes down the device's queues, and
    /// they are what the process says that they are.
    descriptors: Came,
    device: UplinkDevice,
}

/// What another program of this process goes on with.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptState {
    descriptors: Vec<Fd>,
    device: UplinkDevice,
}

/// The same of a process.
#[derive(Debug, Serialize, Deserialize)]
pub struct DriverState {
    child: ChildState,
    inherited: bool,
    counters: UplinkCounters,
    page: Option<Fd>,
    heard: Moment,
    answered: bool,
    pings: u64,
}

impl Kept {
    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &mut Giver) -> KeptState {
        let descriptors = self.descriptors.all().iter().map(|fd| giver.fd(fd)).collect();
        KeptState { descriptors, device: self.device.clone() }
    }

    /// Goes on with it.
    pub fn resumed(KeptState { descriptors, device }: KeptState, taker: &Taker) -> Result<Self, String> {
        let descriptors = descriptors.into_iter().map(|fd| taker.fd(fd)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { descriptors: Came::new(descriptors), device })
    }

    /// Whether the kernel would take a frame on each of its queues. What is no queue of a device always says so.
    pub fn has_room(&self) -> bool {
        let mut fds: Vec<_> = self.descriptors.all().iter().map(|d| PollFd::new(d, PollFlags::OUT)).collect();
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds.iter().all(|fd| fd.revents().contains(PollFlags::OUT))
    }
}

/// What [`Driver::hear`] has heard.
#[derive(Debug)]
pub enum Heard {
    /// It is ready; the device, if it has opened it itself.
    Ready(UplinkDevice, Option<Kept>),
    /// It cannot be used, and why.
    Failed(String),
}

/// How a process is to open its device.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// We made it: it is to be removed with the uplink.
    pub ours: bool,
    /// Somebody has set it down, and it is to stay so.
    pub leave_down: bool,
    /// The address of a TAP device of this name that we made: one that has it is ours, one that is made gets it.
    pub mac: Option<MacAddr>,
}

/// A process, running or not.
#[derive(Debug)]
pub struct Driver {
    child: Child<SupervisorToUplink, UplinkToSupervisor>,
    /// What it keeps of the device, before it is ready.
    descriptors: Came,
    /// It was given its predecessor's device.
    inherited: bool,
    /// What it has carried, as last heard, and the page in which it counts.
    counters: UplinkCounters,
    page: Option<OwnedFd>,
    /// Which port each of its queues is kept for, as last heard; 0: for none.
    queue_owners: Vec<u32>,
    /// Within which it is found out that it hangs.
    limit: Duration,
    /// When it last showed that it lives.
    heard: Instant,
    /// It has answered since it started.
    answered: bool,
    /// The number of the last question, and when it was asked if it is not answered.
    ping: (u64, Option<Instant>),
    /// The answer is overdue, but may lie here unread.
    late: bool,
    /// Tokens of probes that came in.
    tokens: Vec<(Token, u16)>,
    /// The counters are as new as somebody wants them.
    fresh: bool,
}

impl Driver {
    /// One that does not run. `tokens`: under which `epoll` reports its channel and its end.
    pub fn new(name: &str, program: PathBuf, tokens: (u64, u64), limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            child: Child::new(name, program, Vec::new(), tokens.0, tokens.1),
            descriptors: Came::default(),
            inherited: false,
            counters: UplinkCounters::default(),
            queue_owners: Vec::new(),
            page: None,
            limit,
            heard: now,
            answered: false,
            ping: (0, None),
            late: false,
            tokens: Vec::new(),
            fresh: true,
        }
    }

    /// Its process, which another program may take the place of.
    pub fn child(&mut self) -> &mut Child<SupervisorToUplink, UplinkToSupervisor> {
        &mut self.child
    }

    /// Whether it runs another file than the one at its program's place.
    pub fn is_outdated(&self) -> bool {
        self.child.is_outdated()
    }

    /// How often in a row it has ended before it was ready.
    pub fn failed_starts(&self) -> u32 {
        self.child.failed_starts()
    }

    /// What of it is half done, so that no other program can go on with it.
    pub fn unsettled(&self) -> Option<String> {
        self.child.unsettled()
    }

    /// Of one that is settled. A question that it has not answered is asked again.
    pub fn hand_over(&self, giver: &mut Giver) -> DriverState {
        DriverState {
            child: self.child.hand_over(giver),
            inherited: self.inherited,
            counters: self.counters.clone(),
            page: self.page.as_ref().map(|page| giver.fd(page)),
            heard: giver.moment(self.heard),
            answered: self.answered,
            pings: self.ping.0,
        }
    }

    /// This one, which does not run, is the one that was handed over.
    pub fn resume(&mut self, state: DriverState, epoll: &Epoll, taker: &Taker) -> Result<(), String> {
        self.child.resume(state.child, epoll, taker)?;
        self.page = state.page.map(|page| taker.fd(page)).transpose()?;
        (self.inherited, self.counters, self.answered) = (state.inherited, state.counters, state.answered);
        (self.heard, self.ping) = (taker.at(state.heard), (state.pings, None));
        Ok(())
    }

    /// Calls it something else.
    pub fn rename(&mut self, name: &str) {
        self.child.rename(name);
    }

    /// Whether the process exists.
    pub fn is_up(&self) -> bool {
        self.child.is_up()
    }

    /// Whether it has opened the device, or is ready to take it over.
    pub fn is_ready(&self) -> bool {
        self.child.is_ready()
    }

    /// Its number.
    pub fn pid(&self) -> Option<u32> {
        self.child.pid()
    }

    /// Whether it should be started now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.child.is_due(now)
    }

    /// Starts it. `kept` is its predecessor's device.
    pub fn start(
        &mut self,
        epoll: &Epoll,
        spec: &SavedUplink,
        kept: Option<&Kept>,
        how: Start,
        now: Instant,
    ) -> io::Result<()> {
        self.child.set_arguments(arguments(spec, kept, how));
        let started = self.give(kept).and_then(|given| self.child.start(epoll, given));
        if started.is_err() {
            self.child.start_later(now);
        }
        self.inherited = kept.is_some();
        started
    }

    /// It cannot be started now: try again later.
    pub fn start_later(&mut self, now: Instant) {
        self.child.start_later(now);
    }

    /// What it starts with: a page to count in, and its predecessor's device.
    fn give(&mut self, kept: Option<&Kept>) -> io::Result<Vec<OwnedFd>> {
        let page = lasthop_sys::memfd("lasthop-counters", COUNTERS_PAGE as u64)?;
        let kept = kept.map_or(&[][..], |kept| kept.descriptors.all());
        let given = std::iter::once(&page).chain(kept).map(OwnedFd::try_clone).collect();
        self.page = Some(page);
        given
    }

    /// Sends a message.
    pub fn send(&mut self, message: SupervisorToUplink, fd: Option<OwnedFd>) {
        self.child.send(message, fd);
    }

    /// Sends what waits.
    pub fn flush(&mut self, epoll: &Epoll) {
        self.child.flush(epoll);
    }

    /// Ends it at once.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// Ends it at once, because this is wrong with it.
    pub fn kill_for(&mut self, fault: &str) {
        self.child.kill_for(fault);
    }

    /// Asks whether it lives, and kills it if it does not. `Some` if it was killed.
    pub fn check_alive(&mut self, epoll: &Epoll, now: Instant) -> Option<String> {
        self.child.check_hang(now);
        if !self.child.is_ready() {
            return None;
        }
        match self.ping.1 {
            // Asked in the middle of the limit, so that it is over when half of it has passed since.
            Some(asked) if asked + self.limit / 2 <= now => {
                if !std::mem::replace(&mut self.late, true) {
                    return None;
                }
                self.ping.1 = None;
                let fault = format!("it has not answered for {} ms", self.limit.as_millis());
                self.child.kill_for(&format!("hung: {fault}"));
                return Some(format!("{fault}; replacing it"));
            }
            None if !self.late && self.heard + self.limit / 2 <= now => {
                self.ping = (self.ping.0 + 1, Some(now));
                self.child.send(SupervisorToUplink::Ping(self.ping.0), None);
                self.child.flush(epoll);
            }
            _ => {}
        }
        None
    }

    /// Takes what it says.
    pub fn hear(&mut self, epoll: &Epoll, now: Instant) -> Option<Heard> {
        let mut messages = self.child.receive_with_fds(epoll, now).into_iter();
        // Whoever speaks to it now may have taken it over. What comes along unwanted is closed aside, all of it by one thread, as is what lies behind a
        // message that ends this.
        let mut others = Came::default();
        let heard = self.hear_all(&mut messages, &mut others, now);
        messages.for_each(|(_, fd)| others.append(fd));
        heard
    }

    fn hear_all(
        &mut self,
        messages: &mut impl Iterator<Item = (UplinkToSupervisor, Came)>,
        others: &mut Came,
        now: Instant,
    ) -> Option<Heard> {
        let mut heard = None;
        for (message, fd) in messages {
            let message = message.bounded();
            if !fd.all().is_empty() && !matches!(message, UplinkToSupervisor::Keep) {
                others.append(fd);
                return Some(Heard::Failed("it gives away a file with what needs none".into()));
            }
            let unwanted = self.child.is_ready() || self.inherited || self.descriptors.all().len() >= MAX_KEPT;
            match message {
                UplinkToSupervisor::Keep => {
                    if unwanted {
                        others.append(fd);
                        return Some(Heard::Failed("it gives away what nobody wants".into()));
                    }
                    self.descriptors.append(fd);
                }
                // Each time files are written.
                UplinkToSupervisor::Ready(_) if self.child.is_ready() => {
                    return Some(Heard::Failed("it says twice that its device is open".into()));
                }
                UplinkToSupervisor::Ready(device) => {
                    self.child.set_ready();
                    (self.heard, self.answered, self.ping.1, self.late) = (now, false, None, false);
                    let descriptors = std::mem::take(&mut self.descriptors);
                    let kept = (!descriptors.all().is_empty()).then(|| Kept { descriptors, device: device.clone() });
                    heard = Some(Heard::Ready(device, kept));
                }
                UplinkToSupervisor::Pong { number, counters } => {
                    if number == self.ping.0 {
                        (self.ping.1, self.heard, self.answered, self.late) = (None, now, true, false);
                        self.fresh = true;
                    }
                    self.counters = counters;
                }
                UplinkToSupervisor::QueueOwners(ports) => self.queue_owners = ports,
                UplinkToSupervisor::Heard { token, vlan } => self.tokens.push((token, vlan)),
                UplinkToSupervisor::Failed(why) => {
                    self.child.set_fault(&why);
                    return Some(Heard::Failed(why));
                }
            }
        }
        heard
    }

    /// If the process has ended: how, and whether its device is in a good state for the next.
    pub fn reap(&mut self, epoll: &Epoll, now: Instant) -> Option<(Ended, bool)> {
        let ended = self.child.reap(epoll, now)?;
        self.descriptors = Came::default();
        self.tokens.clear();
        self.queue_owners.clear();
        let mut bytes = [0; COUNTERS_PAGE];
        if let Some(page) = self.page.take()
            && let Ok(read) = rustix::io::pread(&page, &mut bytes, 0)
        {
            self.counters.read_page(bytes.get(..read).unwrap_or_default());
        }
        (self.ping.1, self.fresh) = (None, true);
        // One that hung before it ever answered may hang because of what it was given.
        let sound = ended.was_killed && (self.answered || !self.inherited || ended.planned);
        Some((ended, sound))
    }

    /// Within which it is found out that it hangs.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// When it last showed that it lives.
    pub fn last_heard(&self) -> Instant {
        self.heard
    }

    /// Tokens of probes that came in since it was last asked, and the VLAN each came on.
    pub fn take_tokens(&mut self) -> Vec<(Token, u16)> {
        std::mem::take(&mut self.tokens)
    }

    /// What it has carried since it was last asked this.
    pub fn take_counters(&mut self) -> UplinkCounters {
        std::mem::take(&mut self.counters)
    }

    /// What it has carried, as last heard.
    pub fn counters(&self) -> &UplinkCounters {
        &self.counters
    }

    /// Which port each of its queues is kept for, as last heard; 0: for none.
    pub fn queue_owners(&self) -> &[u32] {
        &self.queue_owners
    }

    /// Somebody wants its counters as they are now: asks for them. See [`Driver::is_fresh`].
    pub fn refresh(&mut self, now: Instant) {
        if self.child.is_ready() {
            self.fresh = false;
            let asked = self.ping.1.unwrap_or(now);
            self.ping = (self.ping.0 + 1, Some(asked));
            self.child.send(SupervisorToUplink::Ping(self.ping.0), None);
        }
    }

    /// Whether it has told its counters since [`Driver::refresh`], or cannot.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// When [`Driver::check_alive`] has something to do, or it is to be started.
    pub fn deadline(&self) -> Option<Instant> {
        let watch = self.ping.1.unwrap_or(self.heard) + self.limit / 2;
        // One that is late and no longer asked is being killed.
        let watch = (self.child.is_ready() && (self.ping.1.is_some() || !self.late)).then_some(watch);
        self.child.deadline().into_iter().chain(watch).min()
    }
}

fn arguments(spec: &SavedUplink, kept: Option<&Kept>, how: Start) -> Vec<String> {
    let mut words = ["--supervisor-fd", "3", "--counters-fd", "4", "--device", &spec.device].map(String::from).to_vec();
    // What is handed down is used as it was opened; what is opened anew is looked at anew.
    let driver = kept.map(|kept| kept.device.driver.name().into()).or_else(|| spec.driver.clone());
    if let Some(driver) = driver {
        words.extend(["--driver".into(), driver]);
    }
    words.extend(["--queues".into(), spec.queues.to_string(), "--nice".into(), spec.nice.to_string()]);
    if let Some(Kept { descriptors, device }) = kept {
        words.extend(["--kept".to_owned(), descriptors.all().len().to_string(), "--mode".into(), device.mode.clone()]);
    }
    if how.ours {
        words.push("--ours".into());
    }
    if let Some(mac) = how.mac {
        words.extend(["--made".into(), mac.to_string()]);
    }
    if how.leave_down {
        words.push("--leave-down".into());
    }
    if spec.no_gro {
        words.push("--no-gro".into());
    }
    words
}
