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
    use super::super::Event;
    use super::*;
    use lasthop_ipc::{DatapathReply, FromControl, ToControl};
    use lasthop_management_ipc::SupervisorToControl;

    fn port(id: u32) -> PortInfo {
        let mut port = PortInfo {
            id: PortId(id),
            name: format!("vm{id}"),
            queues: Vec::new(),
            connected: true,
            up: true,
            broken: None,
            features: 0,
            protocol_features: 0,
            mtu: 0,
            memory_bytes: 0,
            memory_regions: 1,
            translation: None,
            last_error: None,
            from_guest: PortTotals::default(),
            to_guest: PortTotals::default(),
            waiting: 0,
            vm: None,
        };
        let [from, to] = [&mut port.from_guest, &mut port.to_guest];
        (from.busy_ns, from.packets, from.bytes, from.notifications, from.held) = (100, 10, 600, 3, 4);
        (to.busy_ns, to.packets, to.bytes, to.notifications) = (50, 5, 300, 9);
        port
    }

    /// One port has a bound of what its guest sends, another one of what is copied to its guest, the third none.
    #[test]
    fn the_supervisor_is_told_of_each_bound_what_it_is_of() {
        let mut core = Core::new(0);
        core.handle(Event::SwitchAttached, 0);
        for (id, text) in [(1, "max-cpu=20"), (2, "max-cpu-to=5"), (3, "weight=7")] {
            let text = text.to_owned();
            core.handle(Event::Supervisor(SupervisorToControl::Settings { port: PortId(id), text }), 0);
        }
        core.commands();
        core.handle(Event::Timer, 0);
        let asked = core.commands().into_iter().find_map(|command| match command {
            Command::Switch(message) => match *message {
                FromControl::Ask { request, question: DatapathRequest::Ports } => Some(request),
                _ => None,
            },
            _ => None,
        });
        let request = asked.expect("it is looked at once");
        let removed = (PortTotals::default(), PortTotals::default(), Default::default());
        let replies = [
            (false, DatapathReply::Ports([1, 2, 3].map(port).to_vec())),
            (true, DatapathReply::Removed { from_guest: removed.0, to_guest: removed.1, caches: removed.2 }),
        ];
        core.hear_switch(replies.into_iter().map(|(last, reply)| ToControl::Reply { request, last, reply }), 1);
        let said = core.commands().into_iter().find_map(|command| match command {
            Command::Supervisor(ControlToSupervisor::Done(done)) => Some(done),
            _ => None,
        });
        let from = PortWork { port: PortId(1), busy_ns: 100, packets: 10, bytes: 600, woken: 7 };
        let to = PortWork { port: PortId(2), busy_ns: 50, packets: 5, bytes: 300, woken: 0 };
        assert_eq!(said, Some([vec![from], vec![to]]));
        core.handle(Event::Supervisor(SupervisorToControl::Settings { port: PortId(2), text: String::new() }), 2);
        assert_eq!(core.spending.bounded.each_ref().map(BTreeSet::len), [1, 0]);
    }

    #[test]
    fn it_is_looked_each_second_as_long_as_there_is_a_bound() {
        let (mut spending, [a, b]) = (Spending::default(), [PortId(1), PortId(2)]);
        assert!(spending.deadline_ms().is_none() && !spending.is_due(5));
        spending.set_bounded(a, [true, false], 10);
        spending.set_bounded(b, [false, true], 400);
        assert!(spending.is_due(10) && !spending.is_due(1009) && spending.is_due(1010));
        let bound =
            CpuBound { port: a, most_ns: 1, spent_ns: 2, held_to: None, presses: false, missed_ms: None, missed: 0 };
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
