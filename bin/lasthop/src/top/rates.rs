//! Differences of figures, a second.

use crate::list::Figures;
use crate::settings::{bits, value_of};
use crate::table::{Align, Table};
use lasthop_api::{Drops, Port};
use lasthop_policy::MIN_RATE;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Looks that a sparkline shows.
pub const HISTORY: usize = 60;

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    Name,
    Packets,
    Bytes,
    Drops,
    Cpu,
}

/// A port, each number of a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub name: String,
    /// `uplink`, or nothing.
    pub kind: &'static str,
    pub state: String,
    /// Packets and bytes that its guest sent.
    pub from: (f64, f64),
    /// Bits of them that it is to get of an uplink at least; none if nothing is said.
    pub least: Option<u64>,
    /// And that were delivered to it.
    pub to: (f64, f64),
    pub drops: f64,
    /// Percent of a core that its thread takes; none if it has none.
    pub cpu: Option<f64>,
    /// Packets both ways, the last look last.
    pub history: VecDeque<u64>,
}

/// The last figures, and what they come to beside those before.
pub struct Rates {
    last: Figures,
    at: Instant,
    rows: BTreeMap<u32, Row>,
    /// Percent of a core, by what takes it.
    cpu: Vec<(&'static str, f64)>,
}

fn all(drops: &[Drops]) -> u64 {
    drops.iter().map(|drops| drops.packets).sum()
}

/// What a port and its interface dropped.
fn dropped(figures: &Figures, port: &Port) -> u64 {
    let interface = figures.interfaces.iter().find(|interface| interface.id == port.id);
    all(&port.from_guest.drops) + all(&port.to_guest.drops) + interface.map_or(0, |interface| all(&interface.drops))
}

impl Rates {
    /// Of figures as they were then. There are no rates yet.
    pub fn new(last: Figures, at: Instant) -> Self {
        Self { last, at, rows: BTreeMap::new(), cpu: Vec::new() }
    }

    /// Compares with newer figures. A counter that is less than before was begun anew, with the switch: it counts from 0.
    pub fn update(&mut self, now: Figures, at: Instant) {
        let seconds = at.duration_since(self.at).as_secs_f64().max(0.001);
        let rate =
            |now: u64, before: u64| if now >= before { (now - before) as f64 / seconds } else { now as f64 / seconds };
        let percent = |now, before| rate(now, before) / 1e7;
        let before: BTreeMap<u32, &Port> = self.last.ports.iter().map(|port| (port.id, port)).collect();
        let mut rows = BTreeMap::new();
        for port in &now.ports {
            let nothing = Port::default();
            // What a new port has counted so far it has since the last look.
            let was = before.get(&port.id).copied().unwrap_or(&nothing);
            let mut row = Row {
                name: port.name.clone(),
                kind: if port.uplink { "uplink" } else { "" },
                state: port.state.clone(),
                from: (
                    rate(port.from_guest.packets, was.from_guest.packets),
                    rate(port.from_guest.bytes, was.from_guest.bytes),
                ),
                least: value_of(&port.settings, MIN_RATE).and_then(bits),
                to: (rate(port.to_guest.packets, was.to_guest.packets), rate(port.to_guest.bytes, was.to_guest.bytes)),
                drops: rate(dropped(&now, port), dropped(&self.last, was)),
                cpu: port.cpu_ns.map(|cpu| percent(cpu, was.cpu_ns.unwrap_or(0))),
                history: self.rows.remove(&port.id).map(|row| row.history).unwrap_or_default(),
            };
            row.history.push_back((row.from.0 + row.to.0) as u64);
            if row.history.len() > HISTORY {
                row.history.pop_front();
            }
            rows.insert(port.id, row);
        }
        let were = self.last.switch.cpu.parts();
        self.cpu = now
            .switch
            .cpu
            .parts()
            .iter()
            .zip(were)
            .map(|((name, now), (_, before))| (*name, percent(*now, before)))
            .collect();
        (self.rows, self.last, self.at) = (rows, now, at);
    }

    /// All ports in this order; those that are alike by name.
    pub fn rows(&self, sort: Sort) -> Vec<&Row> {
        let mut rows: Vec<_> = self.rows.values().collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        let key = |row: &Row| match sort {
            Sort::Name => 0.0,
            Sort::Packets => row.from.0 + row.to.0,
            Sort::Bytes => row.from.1 + row.to.1,
            Sort::Drops => row.drops,
            Sort::Cpu => row.cpu.unwrap_or(0.0),
        };
        rows.sort_by_key(|row| Reverse((key(row) * 1000.0) as u64));
        rows
    }

    /// Cells of a row, as people read them.
    pub fn cells(row: &Row) -> [String; 10] {
        let cpu = row.cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}"));
        let name = if row.kind.is_empty() { row.name.clone() } else { format!("{} ({})", row.name, row.kind) };
        let [from, to] = [row.from, row.to].map(|(packets, bytes)| (short(packets), short(bytes * 8.0)));
        let least = row.least.map_or_else(|| "-".to_owned(), |bits| short(bits as f64));
        [name, row.state.clone(), from.0, from.1, least, to.0, to.1, short(row.drops), cpu, String::new()]
    }

    /// Headings of [`Rates::cells`].
    pub const HEADS: [&str; 10] = ["PORT", "STATE", "FROM/s", "bit/s", "MIN", "TO/s", "bit/s", "DROPS/s", "CPU%", ""];

    /// A table of all ports.
    pub fn table(&self, sort: Sort) -> String {
        let align = |n: usize| if n < 2 { Align::Left } else { Align::Right };
        let columns: Vec<_> = (0..9).map(|n| (Self::HEADS[n], align(n))).collect();
        let mut table = Table::new(&columns);
        self.rows(sort).into_iter().for_each(|row| table.row(Self::cells(row)[..9].to_vec()));
        table.render()
    }

    /// A line of what takes processor time.
    pub fn processes(&self) -> String {
        let total: f64 = self.cpu.iter().map(|(_, cpu)| cpu).sum();
        let parts: Vec<_> = self.cpu.iter().map(|(name, cpu)| format!("{cpu:.1} {name}")).collect();
        format!("CPU%: {} = {total:.1}\n", parts.join(" + "))
    }
}

/// A number with a unit of thousands, of four characters or so.
pub fn short(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.1}G", n / 1e9),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{Field, Totals};
    use std::time::Duration;

    fn port(id: u32, packets: u64, dropped: u64) -> Port {
        let drops = vec![Drops { reason: "acl".into(), packets: dropped }];
        let totals = Totals { packets, bytes: packets * 100, drops, ..Totals::default() };
        Port { id, name: format!("vm{id}"), from_guest: totals, cpu_ns: Some(packets * 1_000_000), ..Port::default() }
    }

    fn figures(ports: Vec<Port>) -> Figures {
        Figures { ports, interfaces: vec![], switch: lasthop_api::SwitchStats::default() }
    }

    #[test]
    fn rates_are_of_a_second() {
        let start = Instant::now();
        let promised =
            |port: Port| Port { settings: vec![Field { name: MIN_RATE.into(), value: "70M".into() }], ..port };
        let mut rates = Rates::new(figures(vec![port(1, 1000, 5), port(2, 7, 0)]), start);
        rates.update(
            figures(vec![promised(port(1, 3000, 9)), port(2, 7, 0), port(3, 40, 0)]),
            start + Duration::from_secs(2),
        );
        let rows = rates.rows(Sort::Packets);
        let told: Vec<_> = rows.iter().map(|row| (&row.name[..], row.from, row.drops, row.cpu)).collect();
        assert_eq!(told[0], ("vm1", (1000.0, 100_000.0), 2.0, Some(100.0)));
        assert_eq!(told[1], ("vm3", (20.0, 2000.0), 0.0, Some(2.0)), "new since the last look");
        assert_eq!(told[2].1, (0.0, 0.0));
        assert_eq!(rates.rows(Sort::Name).iter().map(|row| &row.name[..]).collect::<Vec<_>>(), ["vm1", "vm2", "vm3"]);
        let table = rates.table(Sort::Drops);
        assert!(table.lines().nth(1).unwrap().starts_with("vm1") && table.contains("800.0k"), "{table}");
        let least: Vec<_> = rates.rows(Sort::Name).into_iter().map(|row| Rates::cells(row)[4].clone()).collect();
        assert_eq!((Rates::HEADS[4], &least[..]), ("MIN", &["70.0M", "-", "-"].map(String::from)[..]));
        // Another switch counts from 0; what is gone is gone.
        rates.update(figures(vec![port(1, 30, 0)]), start + Duration::from_secs(3));
        let rows = rates.rows(Sort::Packets);
        assert_eq!((rows.len(), rows[0].from.0), (1, 30.0));
        assert_eq!(rows[0].history, [1000, 30]);
    }
}
