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
        });
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
        if now_ms.saturating_sub(record.since_ms) < SETTLED_MS {
            return None;
        }
        match port.state() {
            PortState::Connected => Some(not_up(port)),
            PortState::Up if record.is_kicked_in_vain(port) => Some(kicked_in_vain(port)),
            PortState::Up if now_ms.saturating_sub(record.since_ms) >= OPENED_MS && record.is_blank(port) => {
                Some(blank(port))
            }
            _ => None,
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
        let note = note.filter(|_| has_driver(port))?;
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
        return "its guest's virtio-net driver has not started: nothing passes before the guest has booted and loaded it".into();
    }
    if port.memory_regions == 0 {
        if let Some(why) = port.last_error.as_ref().filter(|error| error.of_memory) {
            return format!(
                "its front-end has handed over no memory that could be taken; what was refused last: {}",
                why.line
            );
        }
        let what = "its memory is not shared with lasthop: its driver has started, and the front-end has handed over no memory";
        return format!("{what}; {}", remedy(&port.name));
    }
    if port.queues.is_empty() {
        return "its driver has started, and its front-end has not started the rings; look at the front-end's log"
            .into();
    }
    "its rings are stopped: the guest is rebooting, or its virtio-net driver was unloaded".into()
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
mod tests {
    use super::*;
    use lasthop_ipc::{LastError, QueueInfo};

    const DRIVER: u64 = 1 << 32 | PROTOCOL_FEATURES;

    fn port(state: PortState, features: u64, memory_regions: u32, kicks: u64) -> PortInfo {
        let ring = |index| QueueInfo { index, size: 256, packed: false, enabled: true, blank: true, error: None };
        let mut port = PortInfo {
            id: PortId(1),
            name: "vm1".into(),
            queues: if state == PortState::Up { vec![ring(0), ring(1)] } else { Vec::new() },
            connected: state != PortState::Waiting,
            up: state == PortState::Up,
            broken: None,
            features,
            protocol_features: 0,
            mtu: 0,
            memory_bytes: 0,
            memory_regions,
            translation: None,
            last_error: None,
            from_guest: Default::default(),
            to_guest: Default::default(),
            waiting: 0,
            vm: None,
        };
        port.from_guest.notifications = kicks;
        port
    }

    /// A port that waited, was connected at 0 and is like this since 10 ms.
    fn health(port: &PortInfo) -> Health {
        let mut health = Health::default();
        health.port_is(&self::port(PortState::Waiting, 0, 0, 0), 0);
        health.port_is(&self::port(PortState::Connected, 0, 0, 0), 0);
        health.port_is(port, 10);
        health
    }

    #[test]
    fn no_memory_at_all() {
        let connected = port(PortState::Connected, DRIVER, 0, 0);
        let mut health = health(&connected);
        assert_eq!(health.note(&connected, 900), None, "it may still come");
        let note = health.note(&connected, 1000).unwrap();
        assert!(note.contains("not shared") && note.contains("share=on") && note.contains("attach vm1"), "{note}");
        assert!(health.is_due(1000) && !health.is_due(1000));
        assert!(health.look(&connected, 1000).unwrap().starts_with("port vm1: its memory is not shared"));
        let later = health.deadline_ms().unwrap();
        assert!(health.is_due(later));
        assert_eq!(health.look(&connected, later), None, "it is said once");
        let much_later = later + SAY_AGAIN_MS;
        assert!(health.is_due(much_later) && health.look(&connected, much_later).is_some());
    }

    /// It was handed over, and could not be taken: whoever looks is not told of another cause.
    #[test]
    fn memory_that_was_refused_is_said_to_have_been() {
        let mut connected = port(PortState::Connected, DRIVER, 0, 0);
        let error = |line: &str, of_memory| Some(LastError { line: line.into(), of_memory });
        connected.last_error = error("SET_MEM_TABLE: memory region at 0x0 is of a file on a disk", true);
        let note = health(&connected).note(&connected, 1000).unwrap();
        assert!(note.contains("that could be taken") && note.ends_with("is of a file on a disk"), "{note}");
        connected.last_error = error("queue 0: what it says is as good as SET_MEM_TABLE", false);
        assert!(health(&connected).note(&connected, 1000).unwrap().contains("not shared"));
    }

    #[test]
    fn a_guest_that_boots_is_no_news() {
        let connected = port(PortState::Connected, PROTOCOL_FEATURES, 0, 0);
        let mut health = health(&connected);
        assert!(health.note(&connected, 1000).unwrap().contains("driver has not started"));
        assert!(health.is_due(1000));
        assert_eq!(health.look(&connected, 1000), None, "and nothing for the log");
    }

    #[test]
    fn kicks_that_lead_to_nothing() {
        let up = |kicks| port(PortState::Up, DRIVER, 1, kicks);
        let health_of = || health(&up(0));
        // QEMU's own kick of a ring that starts.
        assert_eq!(health_of().note(&up(1), 5000), None);
        let note = health_of().note(&up(2), 5000).unwrap();
        assert!(note.contains("not shared") && note.contains("zeros") && note.contains("share=on"), "{note}");
        assert_eq!(health_of().note(&up(2), 500), None, "its packets may be on their way");
        // Of several queue pairs each is kicked once.
        let mut many = up(2);
        many.queues.extend_from_within(..);
        assert_eq!(health_of().note(&many, 5000), None);
        // A kick long after the start is the driver's, whoever kicked at the start.
        let mut late = health_of();
        assert!(late.is_due(1010));
        assert_eq!(late.look(&up(0), 1010), None);
        assert!(late.note(&up(1), 5000).is_some());
        // What has ever passed shows that the memory is shared.
        let mut busy = up(9);
        busy.from_guest.packets = 1;
        assert_eq!(health_of().note(&busy, 5000), None);
        let mut filled = up(9);
        filled.queues[0].blank = false;
        assert_eq!(health_of().note(&filled, 5000), None);
    }

    /// The guest's kick fell together with QEMU's own, or its interface is down.
    #[test]
    fn rings_that_stay_blank_for_long_have_two_causes() {
        let up = port(PortState::Up, DRIVER, 1, 1);
        let health = health(&up);
        assert_eq!(health.note(&up, 10 + OPENED_MS - 1), None, "it may still be set up");
        let note = health.note(&up, 10 + OPENED_MS).unwrap();
        assert!(note.contains("interface up") && note.contains("not shared") && note.contains("share=on"), "{note}");
        let mut filled = up.clone();
        filled.queues[0].blank = false;
        assert_eq!(health.note(&filled, 9000), None);
        let mut stopped = up;
        stopped.queues.clear();
        assert_eq!(health.note(&stopped, 9000), None);
    }

    /// The driver closed the device, or was reset, and the note became that of a guest that reboots.
    #[test]
    fn kicks_that_led_to_nothing_are_still_known_when_the_driver_stops() {
        let up = |kicks| port(PortState::Up, DRIVER, 1, kicks);
        let closed = |kicks| port(PortState::Connected, PROTOCOL_FEATURES, 1, kicks);
        let note = |kicks_up, kicks_closed, packets| {
            let mut health = health(&up(0));
            assert!(health.is_due(1010));
            health.look(&up(kicks_up), 1010);
            let mut closed = closed(kicks_closed);
            closed.from_guest.packets = packets;
            health.port_is(&closed, 1500);
            health.note(&closed, 1500)
        };
        assert!(note(1, 2, 0).is_some_and(|note| note.contains("not shared") && note.contains("zeros")));
        assert_eq!(note(1, 1, 0), None, "QEMU's own kick");
        assert_eq!(note(1, 2, 1), None, "something has passed");
        // With the next start it is looked at anew.
        let mut health = health(&up(0));
        for state in [up(5), closed(5), up(6), closed(6)] {
            health.port_is(&state, 20);
        }
        assert_eq!(health.note(&closed(6), 30), None, "QEMU's own kick of the second start");
    }

    #[test]
    fn counters_of_the_guest_before_do_not_count() {
        let mut old = port(PortState::Waiting, 0, 0, 70);
        old.from_guest.packets = 50;
        let mut health = Health::default();
        health.port_is(&old, 0);
        let mut new = port(PortState::Up, DRIVER, 1, 71);
        new.from_guest.packets = 50;
        health.port_is(&new, 10);
        assert_eq!(health.note(&new, 5000), None);
        new.from_guest.notifications = 72;
        assert!(health.note(&new, 5000).is_some());
    }

    #[test]
    fn a_port_that_flaps_fills_no_log() {
        let (up, down) = (port(PortState::Up, DRIVER, 1, 0), port(PortState::Connected, DRIVER, 1, 0));
        let mut health = Health::default();
        let said = (0..3000).filter(|ms| {
            let news = health.port_is(&up, *ms);
            health.port_is(&down, *ms);
            news
        });
        assert_eq!(said.count(), 3);
    }

    #[test]
    fn a_port_that_carries_is_not_looked_at_again() {
        let mut up = port(PortState::Up, DRIVER, 1, 0);
        let mut health = health(&up);
        up.from_guest.packets = 1;
        assert!(health.is_due(1010));
        assert_eq!(health.look(&up, 1010), None);
        assert_eq!(health.deadline_ms(), None);
    }
}
