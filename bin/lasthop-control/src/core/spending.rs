//! Bounds of processor time: the switch counts what ports' packets take, the supervisor holds guests back by it. Neither asks the other.

use super::{Command, Core, Question};
use lasthop_ipc::{DatapathRequest, PortInfo};
use lasthop_management_ipc::{ControlToSupervisor, CpuBound, PortWork};
use lasthop_types::PortId;
use std::collections::{BTreeMap, BTreeSet};

/// How often it is looked what was used, in ms.
const LOOK_MS: u64 = 1000;

/// Ports with a bound, and how it is kept.
#[derive(Debug, Default)]
pub(super) struct Spending {
    bounded: BTreeSet<PortId>,
    /// As the supervisor last said.
    bounds: BTreeMap<PortId, CpuBound>,
    next_ms: Option<u64>,
}

impl Spending {
    /// When to look again, as long as there is a port with a bound.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.next_ms
    }

    /// The port has a bound, or none any more. Said before there is such a port.
    pub fn set_bounded(&mut self, port: PortId, bounded: bool, now_ms: u64) {
        if bounded {
            self.bounded.insert(port);
            self.next_ms.get_or_insert(now_ms);
        } else {
            self.bounded.remove(&port);
            self.bounds.remove(&port);
        }
        self.next_ms = self.next_ms.filter(|_| !self.bounded.is_empty());
    }

    /// The supervisor says how they are kept.
    pub fn bounds_are(&mut self, bounds: Vec<CpuBound>) {
        self.bounds = bounds.into_iter().map(|bound| (bound.port, bound)).collect();
    }

    /// How that of a port is.
    pub fn bound(&self, port: PortId) -> Option<&CpuBound> {
        self.bounds.get(&port).filter(|_| self.bounded.contains(&port))
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
        let work = |port: &PortInfo| {
            let from = &port.from_guest;
            let woken = from.notifications.saturating_add(from.held);
            PortWork { port: port.id, busy_ns: from.busy_ns, packets: from.packets, bytes: from.bytes, woken }
        };
        let bounded = ports.iter().filter(|port| self.spending.bounded.contains(&port.id));
        let done = bounded.map(work).collect();
        self.commands.push(Command::Supervisor(ControlToSupervisor::Done(done)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_each_second_as_long_as_there_is_a_bound() {
        let (mut spending, [a, b]) = (Spending::default(), [PortId(1), PortId(2)]);
        assert!(spending.deadline_ms().is_none() && !spending.is_due(5));
        spending.set_bounded(a, true, 10);
        spending.set_bounded(b, true, 400);
        assert!(spending.is_due(10) && !spending.is_due(1009) && spending.is_due(1010));
        let bound = CpuBound { port: a, most_ns: 1, spent_ns: 2, held_to: None, missed_ms: None, missed: 0 };
        spending.bounds_are(vec![bound]);
        assert_eq!((spending.bound(a), spending.bound(b)), (Some(&bound), None));
        spending.set_bounded(a, false, 1500);
        // What the supervisor has sent before it knew.
        spending.bounds_are(vec![bound]);
        assert_eq!((spending.bound(a), spending.deadline_ms()), (None, Some(2010)));
        spending.set_bounded(b, false, 1600);
        assert_eq!(spending.deadline_ms(), None);
    }
}
