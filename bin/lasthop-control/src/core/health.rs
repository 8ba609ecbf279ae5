//! Ports that carry nothing although somebody is connected: why, as far as it can be known from what the switch says of them.
//!
//! The commonest mistake of all is guest memory that is not shared. It shows in two ways (seen with QEMU 7.2):
//!
//! * No memory backend: the driver starts, and the front-end hands over no memory region. The rings never start.
//! * `share=off`: the front-end hands over the file of its memory and maps it privately. The switch maps a file that nobody
//!   writes to: kicks come, and the rings stay as the file was made, all zeros.
//!
//! For the second, kicks have to be told from the one by which QEMU makes the switch look at each ring that has just started.
//! With EVENT_IDX a driver whose device does not answer kicks once and never again, so one more is all there is. Should the two
//! come before the switch has taken up the ring, they are one event, and nobody can tell: then both causes are named.
//!
//! A guest that is being moved to another host is no fault, and told as what it is: its front-end has what is written to memory logged
//! (LOG_ALL), and when its rings stop it is there, or about to be.

use super::{Core, Question};
use lasthop_ipc::{DatapathRequest, PortInfo, PortState};
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// How long a port may be in a state before something is said about it, in ms. Starting takes milliseconds.
const SETTLED_MS: u64 = 1000;
/// How long rings may be blank before something is said about it, in ms: guests set their interface up some time after its driver
/// has started.
const OPENED_MS: u64 = 5000;
/// Longest time between two looks at a port that carries nothing, in ms.
const MOST_MS: u64 = 64_000;
/// The same thing is not said again of the same port before, in ms: a front-end may come and go.
const SAY_AGAIN_MS: u64 = 60_000;
/// That a port is up is said so often at most, in ms.
const UP_AGAIN_MS: u64 = 1000;
/// A second front-end that was refused is told of for so long, in ms: one that keeps trying does so more often.
const REFUSED_MS: u64 = 60_000;
/// VHOST_F_LOG_ALL.
const LOG_ALL: u64 = 1 << 26;
/// VHOST_USER_F_PROTOCOL_FEATURES is between the front-end and us; every other feature is the driver's.
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// What was counted at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    kicks: u64,
    packets: u64,
}

impl Counted {
    fn of(port: &PortInfo) -> Self {
        let packets = port.from_guest.packets + port.to_guest.packets;
        Self { kicks: port.from_guest.notifications, packets }
    }
}

/// How far a guest is on its way to another host, as far as its features and rings tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Move {
    #[default]
    None,
    /// Its memory is copied while it runs.
    Copied,
    /// Its rings have stopped for it.
    Stopped,
}

impl Move {
    fn of(port: &PortInfo) -> Self {
        match port.state() {
            _ if port.features & LOG_ALL == 0 => Self::None,
            PortState::Up => Self::Copied,
            PortState::Connected => Self::Stopped,
            PortState::Waiting | PortState::Broken(_) => Self::None,
        }
    }

    /// One line for people.
    fn said(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Copied => Some(
                "migrating: its front-end has all that is written to the guest's memory logged (LOG_ALL), to move it to another host",
            ),
            Self::Stopped => Some(
                "moved: its rings have stopped while what is written to the guest's memory is logged (LOG_ALL), so it goes on at another host, or its driver was \
                 unloaded on the way; if the QEMU there has ended, `cont` in the monitor of this one lets the guest go on here",
            ),
        }
    }
}

#[derive(Debug)]
struct Record {
    state: PortState,
    since_ms: u64,
    /// As of the last time that it was not up.
    before: Counted,
    /// Kicks when it was first looked at in this state: later ones are the driver's.
    settled: Option<u64>,
    look_ms: Option<u64>,
    /// It is to be looked at as soon as the switch has said how it is.
    due: bool,
    wait_ms: u64,
    said: Option<(String, u64)>,
    /// Rings to send from that were started, and whether all started rings were blank, when it was last seen up.
    rings: (u64, bool),
    /// It was kicked in vain until its driver stopped the rings: the reason is the same, though the rings cannot show it now.
    was_in_vain: bool,
    /// When it was last said to be up.
    up_ms: Option<u64>,
    /// Whether it is on its way to another host, as last said, and when that was.
    moving: (Move, Option<u64>),
    /// What went wrong last, and when it was first told of; not known of what was told with the port.
    erred: Option<(String, Option<u64>)>,
    /// Who was last refused because somebody is connected, and when.
    second: Option<(String, u64)>,
}

/// What was seen of each guest's port.
#[derive(Debug, Default)]
pub(super) struct Health(BTreeMap<PortId, Record>);

impl Health {
    /// When a port has to be looked at.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.0.values().filter_map(|record| record.look_ms).min()
    }

    /// The switch says so. True if it is news for the log that the port is up: a guest may come and go as it likes, and is given
    /// a line a second.
    pub fn port_is(&mut self, port: &PortInfo, now_ms: u64) -> bool {
        let counted = Counted::of(port);
        let record = self.0.entry(port.id).or_insert_with(|| Record {
            state: PortState::Waiting,
            since_ms: now_ms,
            before: counted,
            settled: None,
            look_ms: None,
            due: false,
            wait_ms: SETTLED_MS,
            said: None,
            rings: (0, false),
            was_in_vain: false,
            up_ms: None,
            moving: Default::default(),
            erred: port.last_error.as_ref().map(|error| (error.line.clone(), None)),
            second: None,
        });
        if let Some(error) = &port.last_error
            && record.erred.as_ref().is_none_or(|(line, _)| *line != error.line)
        {
            record.erred = Some((error.line.clone(), Some(now_ms)));
        }
        match (&record.state, &port.state()) {
            (_, PortState::Up) => (record.rings, record.was_in_vain) = (rings(port), false),
            (PortState::Up, PortState::Connected) => {
                let (started, blank) = record.rings;
                record.was_in_vain = blank && record.is_kicked(counted, started);
            }
            (PortState::Connected, PortState::Connected) => {}
            _ => record.was_in_vain = false,
        }
        if port.state() != PortState::Up {
            record.before = counted;
        }
        if record.state != port.state() {
            record.state = port.state();
            (record.since_ms, record.settled, record.wait_ms) = (now_ms, None, SETTLED_MS);
            let silent = matches!(port.state(), PortState::Up | PortState::Connected);
            record.look_ms = silent.then_some(now_ms.saturating_add(SETTLED_MS));
            let quiet = record.up_ms.is_none_or(|at| now_ms.saturating_sub(at) >= UP_AGAIN_MS);
            if port.state() == PortState::Up && quiet {
                record.up_ms = Some(now_ms);
                return true;
            }
        }
        false
    }

    /// What is news for the log of a guest's way to another host; a line a second at most, for a front-end may log as it likes.
    pub fn move_news(&mut self, port: &PortInfo, now_ms: u64) -> Option<&'static str> {
        let (now, record) = (Move::of(port), self.0.get_mut(&port.id)?);
        let (before, said_ms) = record.moving;
        if now == before || said_ms.is_some_and(|at| now_ms.saturating_sub(at) < UP_AGAIN_MS && now != Move::Stopped) {
            return None;
        }
        record.moving = (now, Some(now_ms));
        // A device may come up, or its driver be loaded again, while its memory is logged.
        if (before, now) == (Move::None, Move::Stopped) {
            return None;
        }
        // A source that has ended, or whose guest goes on, is said to have.
        let goes_on = port.state() == PortState::Up && before != Move::None;
        now.said().or(goes_on.then_some("migrating no longer: its guest stays here, and nothing is logged"))
    }

    /// Somebody was refused at a port because a front-end is connected: who.
    pub fn second_refused(&mut self, port: PortId, who: String, now_ms: u64) {
        if let Some(record) = self.0.get_mut(&port) {
            record.second = Some((who, now_ms));
        }
    }

    /// How long ago what went wrong last was first told of, in ms, if that is known.
    pub fn erred_ms_ago(&self, port: PortId, now_ms: u64) -> Option<u64> {
        let (_, at) = self.0.get(&port)?.erred.as_ref()?;
        at.map(|at| now_ms.saturating_sub(at))
    }

    pub fn forget(&mut self, port: PortId) {
        self.0.remove(&port);
    }

    /// Whether the switch is to be asked. Should it not answer, it is asked again a second later.
    pub fn is_due(&mut self, now_ms: u64) -> bool {
        let mut any = false;
        for record in self.0.values_mut().filter(|record| record.look_ms.is_some_and(|at| at <= now_ms)) {
            (record.due, record.look_ms) = (true, Some(now_ms.saturating_add(SETTLED_MS)));
            any = true;
        }
        any
    }

    /// What is wrong with a port, in one line that says what to do, if anything is known to be.
    pub fn note(&self, port: &PortInfo, now_ms: u64) -> Option<String> {
        let record = self.0.get(&port.id).filter(|record| record.state == port.state())?;
        if record.was_in_vain {
            return Some(kicked_in_vain(port));
        }
        if let Some(said) = Move::of(port).said() {
            return Some(said.into());
        }
        if now_ms.saturating_sub(record.since_ms) < SETTLED_MS {
            return None;
        }
        match port.state() {
            PortState::Connected => Some(not_up(port)),
            PortState::Up if record.is_kicked_in_vain(port) => Some(kicked_in_vain(port)),
            PortState::Up if now_ms.saturating_sub(record.since_ms) >= OPENED_MS && record.is_blank(port) => {
                Some(blank(port))
            }
            _ => record.second(now_ms),
        }
    }

    /// A look at a port; a note that is to be written to the log.
    fn look(&mut self, port: &PortInfo, now_ms: u64) -> Option<String> {
        let note = self.note(port, now_ms);
        let record = self.0.get_mut(&port.id)?;
        if !std::mem::take(&mut record.due) {
            return None;
        }
        record.settled.get_or_insert(port.from_guest.notifications);
        if port.state() == PortState::Up {
            record.rings = rings(port);
        }
        // Once packets pass, its memory is shared.
        let passes = Counted::of(port).packets > record.before.packets;
        record.wait_ms = (2 * record.wait_ms).min(MOST_MS);
        record.look_ms = (!passes).then_some(now_ms.saturating_add(record.wait_ms));
        // That a driver is not there yet is usual, and a matter for who asks.
        let note = note.filter(|_| has_driver(port) && Move::of(port) == Move::None)?;
        let again = |(said, at): &(String, u64)| *said != note || now_ms.saturating_sub(*at) >= SAY_AGAIN_MS;
        if record.said.as_ref().is_some_and(|said| !again(said)) {
            return None;
        }
        let line = format!("port {}: {note}", port.name);
        record.said = Some((note, now_ms));
        Some(line)
    }
}

impl Record {
    fn second(&self, now_ms: u64) -> Option<String> {
        let (who, at) = self.second.as_ref()?;
        let age_ms = now_ms.saturating_sub(*at);
        (age_ms < REFUSED_MS).then(|| {
            format!(
                "a second front-end was refused {} s ago, for one is connected: {who}; end the one that is not to be there, or give it a port of its own",
                age_ms / 1000
            )
        })
    }

    /// Its guest has shown no buffer since its rings were started.
    fn is_blank(&self, port: &PortInfo) -> bool {
        rings(port).1 && Counted::of(port).packets == self.before.packets
    }

    fn is_kicked_in_vain(&self, port: &PortInfo) -> bool {
        let (started, blank) = rings(port);
        blank && self.is_kicked(Counted::of(port), started)
    }

    /// Its guest has kicked, so many rings being started, and no packet has passed.
    fn is_kicked(&self, now: Counted, started: u64) -> bool {
        let kicks = now.kicks.saturating_sub(self.before.kicks);
        let kicked = kicks > started || self.settled.is_some_and(|settled| now.kicks > settled);
        kicked && now.packets == self.before.packets
    }
}

/// How many rings to send from are started, and whether there are started rings and all of them are blank.
fn rings(port: &PortInfo) -> (u64, bool) {
    let rings = port.queues.iter().filter(|queue| queue.enabled);
    let started = rings.clone().filter(|queue| queue.index % 2 == 1).count() as u64;
    (started, rings.clone().next().is_some() && rings.clone().all(|queue| queue.blank))
}

fn kicked_in_vain(port: &PortInfo) -> String {
    let what = "its memory is not shared with lasthop: its guest kicks, and all that is seen of its rings is zeros";
    format!("{what}; {}", remedy(&port.name))
}

fn blank(port: &PortInfo) -> String {
    let what = "all that is seen of its rings is zeros: its guest has not set the interface up yet, or its memory is not shared with lasthop";
    format!("{what}; {}", remedy(&port.name))
}

fn has_driver(port: &PortInfo) -> bool {
    port.features & !PROTOCOL_FEATURES != 0
}

/// Why a port with a front-end does not come up.
fn not_up(port: &PortInfo) -> String {
    if !has_driver(port) {
        return "its guest's virtio-net driver has not started: nothing passes before the guest has booted and loaded it, or a VM that is moved here (QEMU: -incoming) has arrived".into();
    }
    if port.memory_regions == 0 {
        if let Some(why) = port.last_error.as_ref().filter(|error| error.of_memory) {
            return format!(
                "its front-end has handed over no memory that could be taken; what was refused last: {}",
                why.line.trim_start_matches("refused: ")
            );
        }
        let what = "its memory is not shared with lasthop: its driver has started, and the front-end has handed over no memory";
        return format!("{what}; {}", remedy(&port.name));
    }
    if port.queues.is_empty() {
        return "its driver has started, and its front-end has not started the rings; look at the front-end's log"
            .into();
    }
    "its rings are stopped: its machine is paused, the guest is rebooting, or its virtio-net driver was unloaded".into()
}

fn remedy(name: &str) -> String {
    format!(
        "QEMU: -object memory-backend-memfd,id=ID,share=on,size=…, and -machine memory-backend=ID; Cloud Hypervisor: shared=on; libvirt: \
         <access mode='shared'/>; `lasthop attach {name}` prints the lines"
    )
}

impl Core {
    /// Asks how ports are that carry nothing, if it is time to.
    pub(super) fn look_at_health(&mut self, now_ms: u64) {
        let asked = self.questions.values().any(|q| matches!(q, Question::StuckUplinks { .. }));
        if self.health.is_due(now_ms) && self.attached && !asked {
            self.ask(DatapathRequest::Ports, Question::StuckUplinks { ports: Vec::new() });
        }
    }

    /// The switch's ports are like this.
    pub(super) fn check_health(&mut self, ports: &[PortInfo], now_ms: u64) {
        for port in ports {
            if let Some(line) = self.health.look(port, now_ms) {
                tracing::warn!("{line}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
