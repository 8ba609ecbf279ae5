//! Bounds of processor time: the switch counts what ports' packets take, the supervisor holds guests back by it. Neither asks the other.

use super::{Command, Core, Question};
use lasthop_ipc::{DatapathRequest, PortInfo};
use lasthop_management_ipc::{ControlToSupervisor, CpuBound, PortWork};
use lasthop_types::{PortId, PortTotals};
use std::collections::{BTreeMap, BTreeSet};

/// How often it is looked what was used, in ms.
const LOOK_MS: u64 = 1000;

/// Ports with a bound, and how it is kept: of what their guests send, and of what is copied to them.
#[derive(Debug, Default)]
pub(super) struct Spending {
    bounded: [BTreeSet<PortId>; 2],
    /// As the supervisor last said.
    bounds: [BTreeMap<PortId, CpuBound>; 2],
    next_ms: Option<u64>,
}

impl Spending {
    /// When to look again, as long as there is a port with a bound.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.next_ms
    }

    /// The port has these bounds, or none any more. Said before there is such a port.
    pub fn set_bounded(&mut self, port: PortId, bounded: [bool; 2], now_ms: u64) {
        for ((ports, bounds), bounded) in self.bounded.iter_mut().zip(&mut self.bounds).zip(bounded) {
            if bounded {
                ports.insert(port);
                self.next_ms.get_or_insert(now_ms);
            } else {
                ports.remove(&port);
                bounds.remove(&port);
            }
        }
        self.next_ms = self.next_ms.filter(|_| self.bounded.iter().any(|ports| !ports.is_empty()));
    }

    /// The supervisor says how they are kept.
    pub fn bounds_are(&mut self, bounds: [Vec<CpuBound>; 2]) {
        self.bounds = bounds.map(|bounds| bounds.into_iter().map(|bound| (bound.port, bound)).collect());
    }

    /// How those of a port are.
    pub fn bounds(&self, port: PortId) -> [Option<&CpuBound>; 2] {
        [0, 1].map(|way| self.bounds[way].get(&port).filter(|_| self.bounded[way].contains(&port)))
    }

    /// Whether it is time to look.
    fn is_due(&mut self, now_ms: u64) -> bool {
        let due = self.next_ms.is_some_and(|at| at <= now_ms);
        if due {
            self.next_ms = Some(now_ms.saturating_add(LOOK_MS));
        }
        due
    }
}

impl Core {
    /// Asks the switch if it is time to.
    pub(super) fn watch_spending(&mut self, now_ms: u64) {
        let asked = self.questions.values().any(|q| matches!(q, Question::Spending { .. }));
        if self.spending.is_due(now_ms) && self.attached && !asked {
            self.ask(DatapathRequest::Ports, Question::Spending { ports: Vec::new() });
        }
    }

    /// The switch's ports are like this.
    pub(super) fn spent(&mut self, ports: &[PortInfo]) {
        let work = |port: &PortInfo, of: &PortTotals, woken| PortWork {
            port: port.id,
            busy_ns: of.busy_ns,
            packets: of.packets,
            bytes: of.bytes,
            woken,
        };
        let [from, to] = &self.spending.bounded;
        let from = ports.iter().filter(|port| from.contains(&port.id)).map(|port| {
            work(port, &port.from_guest, port.from_guest.notifications.saturating_add(port.from_guest.held))
        });
        let to = ports.iter().filter(|port| to.contains(&port.id)).map(|port| work(port, &port.to_guest, 0));
        self.commands.push(Command::Supervisor(ControlToSupervisor::Done([from.collect(), to.collect()])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_each_second_as_long_as_there_is_a_bound() {
        let (mut spending, [a, b]) = (Spending::default(), [PortId(1), PortId(2)]);
        assert!(spending.deadline_ms().is_none() && !spending.is_due(5));
        spending.set_bounded(a, [true, false], 10);
        spending.set_bounded(b, [false, true], 400);
        assert!(spending.is_due(10) && !spending.is_due(1009) && spending.is_due(1010));
        let bound = CpuBound { port: a, most_ns: 1, spent_ns: 2, held_to: None, missed_ms: None, missed: 0 };
        let of_b = CpuBound { port: b, ..bound };
        spending.bounds_are([vec![bound], vec![of_b]]);
        assert_eq!((spending.bounds(a), spending.bounds(b)), ([Some(&bound), None], [None, Some(&of_b)]));
        spending.set_bounded(a, [false; 2], 1500);
        // What the supervisor has sent before it knew.
        spending.bounds_are([vec![bound], vec![of_b]]);
        assert_eq!((spending.bounds(a), spending.deadline_ms()), ([None; 2], Some(2010)));
        spending.set_bounded(b, [false; 2], 1600);
        assert_eq!(spending.deadline_ms(), None);
    }
}
