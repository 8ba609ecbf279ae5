//! What is recorded: differences of counters between two looks, added up for each minute.

use super::file::{History, Minute, Place, Row};
use crate::list::Figures;
use lasthop_api::{Drops, Port};
use std::collections::BTreeMap;
use std::io;

/// Figures of one look, and when that was in ms since 1970.
#[derive(Debug)]
struct Look {
    figures: Figures,
    at_ms: u64,
}

/// Puts what is looked at into the file.
#[derive(Debug)]
pub struct Recorder {
    history: History,
    places: Vec<Place>,
    row: Row,
    before: Option<Look>,
}

/// What was counted since. A counter that is less than before was begun anew, with the switch: it counts from 0.
fn since(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// Drops of a port and of its interface, by reason.
fn drops(figures: &Figures, port: &Port) -> BTreeMap<String, u64> {
    let interface = figures.interfaces.iter().find(|interface| interface.id == port.id);
    let of_interface: &[Drops] = interface.map_or(&[], |interface| &interface.drops);
    let mut all = BTreeMap::new();
    for drops in port.from_guest.drops.iter().chain(&port.to_guest.drops).chain(of_interface) {
        *all.entry(drops.reason.clone()).or_default() += drops.packets;
    }
    all
}

/// Adds a look to what there is of the minute.
fn add(minute: &mut Minute, port: &Port, now: &Look, before: Option<&Look>) {
    minute.looks = minute.looks.saturating_add(1);
    minute.up = minute.up.saturating_add(u16::from(port.state == "up"));
    // What was counted before the first look is of no minute.
    let Some(before) = before else { return };
    let nothing = Port::default();
    let was = before.figures.ports.iter().find(|was| was.id == port.id).unwrap_or(&nothing);
    let from =
        [since(port.from_guest.packets, was.from_guest.packets), since(port.from_guest.bytes, was.from_guest.bytes)];
    let to = [since(port.to_guest.packets, was.to_guest.packets), since(port.to_guest.bytes, was.to_guest.bytes)];
    minute.from = (minute.from.0 + from[0], minute.from.1 + from[1]);
    minute.to = (minute.to.0 + to[0], minute.to.1 + to[1]);
    let elapsed_ms = now.at_ms.saturating_sub(before.at_ms).max(1);
    minute.peak_bits = minute.peak_bits.max((from[1] + to[1]).saturating_mul(8000) / elapsed_ms);
    let cpu_ns = since(port.cpu_ns.unwrap_or(0), was.cpu_ns.unwrap_or(0));
    minute.cpu_ms = minute.cpu_ms.saturating_add(u32::try_from(cpu_ns / 1_000_000).unwrap_or(u32::MAX));
    let earlier = drops(&before.figures, was);
    let mut most = 0;
    for (reason, packets) in drops(&now.figures, port) {
        let more = since(packets, earlier.get(&reason).copied().unwrap_or(0));
        minute.dropped += more;
        if more > most {
            (most, minute.reason) = (more, reason);
        }
    }
}

impl Recorder {
    /// Goes on with what the file has of this minute.
    pub fn new(history: History, at_ms: u64) -> io::Result<(Self, usize)> {
        let (places, damaged) = history.places()?;
        let mut recorder = Self { history, places, row: Row::default(), before: None };
        recorder.turn(at_ms)?;
        Ok((recorder, damaged))
    }

    /// The row of this minute, which the file may have from before.
    fn turn(&mut self, at_ms: u64) -> io::Result<()> {
        let minute = at_ms / 60_000;
        if self.row.minute != minute {
            let known = self.history.row(minute)?.ok().flatten();
            self.row = known.unwrap_or_else(|| Row { minute, ..Row::default() });
            self.row.ports.resize(self.history.shape.ports as usize, Minute::default());
        }
        Ok(())
    }

    /// The place of this port: its own, a free one, or that of a port whose last minute has been overwritten.
    fn place(&mut self, name: &str) -> io::Result<Option<usize>> {
        let minute = self.row.minute;
        let oldest = minute.saturating_sub(self.history.shape.minutes.into());
        let own = self.places.iter().position(|place| place.name == name);
        let free = || self.places.iter().position(|place| place.name.is_empty() || place.last <= oldest);
        let Some(n) = own.or_else(free) else { return Ok(None) };
        let place = &mut self.places[n];
        if place.name != name {
            *place = Place { name: name.to_owned(), since: minute, last: 0 };
        }
        if place.last != minute {
            place.last = minute;
            self.history.write_place(n, place)?;
        }
        Ok(Some(n))
    }

    /// A look, at which lasthop has answered or not. It is in the file when this returns.
    pub fn look(&mut self, figures: Option<Figures>, at_ms: u64) -> io::Result<()> {
        self.turn(at_ms)?;
        self.row.asked += 1;
        if let Some(figures) = figures {
            self.row.answered += 1;
            let now = Look { figures, at_ms };
            let before = self.before.take();
            let mut left_out = 0;
            for port in &now.figures.ports {
                match self.place(&port.name)? {
                    Some(n) => {
                        if let Some(minute) = self.row.ports.get_mut(n) {
                            add(minute, port, &now, before.as_ref());
                        }
                    }
                    None => left_out += 1,
                }
            }
            self.row.left_out = self.row.left_out.max(left_out);
            self.before = Some(now);
        }
        self.history.write_row(&self.row)
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::Shape;
    use super::*;
    use lasthop_api::{SwitchStats, Totals};

    const SHAPE: Shape = Shape { minutes: 60, ports: 2 };

    fn port(id: u32, packets: u64, dropped: u64, state: &str) -> Port {
        let drops = vec![
            Drops { reason: "acl".into(), packets: dropped },
            Drops { reason: "no_buffers".into(), packets: dropped / 3 },
        ];
        let totals = Totals { packets, bytes: packets * 100, drops, ..Totals::default() };
        let cpu_ns = Some(packets * 1_000_000);
        Port { id, name: format!("vm{id}"), state: state.into(), from_guest: totals, cpu_ns, ..Port::default() }
    }

    fn figures(ports: Vec<Port>) -> Option<Figures> {
        Some(Figures { ports, interfaces: vec![], switch: SwitchStats::default() })
    }

    #[test]
    fn each_minute_has_what_was_counted_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let open = |at_ms| Recorder::new(crate::history::file::open_again(&path, SHAPE).0, at_ms).unwrap().0;
        let mut recorder = open(600_000);
        recorder.look(figures(vec![port(1, 1000, 0, "up")]), 600_000).unwrap();
        recorder.look(figures(vec![port(1, 1500, 3, "up")]), 610_000).unwrap();
        recorder.look(None, 620_000).unwrap();
        recorder.look(figures(vec![port(1, 1510, 3, "waiting"), port(2, 5, 0, "up")]), 650_000).unwrap();
        drop(recorder);
        // Another goes on in the same minute; it does not know what was counted between.
        let mut recorder = open(655_000);
        recorder.look(figures(vec![port(1, 1600, 3, "up")]), 655_000).unwrap();
        // Another switch counts from 0.
        recorder.look(figures(vec![port(1, 7, 0, "up")]), 665_000).unwrap();
        drop(recorder);
        let history = History::open(&path).unwrap();
        let row = history.row(10).unwrap().unwrap().unwrap();
        assert_eq!((row.asked, row.answered, row.left_out), (5, 4, 0));
        let expected = Minute {
            from: (510, 51_000),
            dropped: 4,
            peak_bits: 50_000 * 8 / 10,
            looks: 4,
            up: 3,
            cpu_ms: 510,
            reason: "acl".into(),
            ..Minute::default()
        };
        assert_eq!(row.ports[0], expected);
        assert_eq!((row.ports[1].from, row.ports[1].looks), ((5, 500), 1), "it is new since the last look");
        let next = history.row(11).unwrap().unwrap().unwrap();
        assert_eq!((next.ports[0].from, next.ports[0].dropped), ((7, 700), 0));
    }

    #[test]
    fn a_place_is_given_on_when_nothing_of_its_port_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let mut recorder = Recorder::new(History::open_or_make(&path, SHAPE).unwrap().0, 60_000).unwrap().0;
        let all = |ids: &[u32]| figures(ids.iter().map(|id| port(*id, 1, 0, "up")).collect());
        recorder.look(all(&[1, 2, 3]), 60_000).unwrap();
        assert_eq!(recorder.row.left_out, 1);
        recorder.look(all(&[2, 3]), 60 * 60_000).unwrap();
        assert_eq!((recorder.row.left_out, &recorder.places[0].name[..]), (1, "vm1"), "its minute is there");
        recorder.look(all(&[2, 3]), 61 * 60_000).unwrap();
        assert_eq!(recorder.row.left_out, 0);
        assert_eq!(recorder.places[0], Place { name: "vm3".into(), since: 61, last: 61 });
    }
}
