//! Uplinks that take nothing: whatever is sent to their port is dropped for want of buffers, again and again, and nothing is
//! delivered. Counters of the switch say so; what the uplink itself says does not count.

use super::{Command, Core, Question};
use lasthop_ipc::{DatapathRequest, PortInfo, PortState};
use lasthop_management_ipc::ControlToSupervisor;
use lasthop_types::{DropReason, PortId};
use std::collections::BTreeMap;

/// Until the next look, while one seems to take nothing, in ms.
const LOOK_MS: u64 = 2500;

#[derive(Clone, Copy, Debug)]
struct Seen {
    delivered: u64,
    dropped: u64,
    /// The first and the last of looks in a row between which it took nothing.
    nothing_ms: Option<(u64, u64)>,
}

/// What was seen of each uplink's port when it was last looked at.
#[derive(Debug, Default)]
pub(super) struct StuckUplinks {
    seen: BTreeMap<PortId, Seen>,
    next_ms: Option<u64>,
}

impl StuckUplinks {
    /// When to look again, if that is sooner than the flows are looked at.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.next_ms
    }

    /// Whether it is time to.
    fn is_due(&mut self, now_ms: u64) -> bool {
        self.next_ms.take_if(|at| *at <= now_ms).is_some()
    }

    /// Takes a look at the counters of a port: for how long at least it has taken nothing, in ms.
    ///
    /// Something was dropped before each look and after the one before, and nothing delivered in between. Had buffers come back
    /// meanwhile, the next packet would have been delivered; so none came from some moment before the first of these looks to
    /// some moment after the last but one.
    fn look(&mut self, port: PortId, delivered: u64, dropped: u64, now_ms: u64) -> u64 {
        let Some(seen) = self.seen.get_mut(&port).filter(|seen| seen.delivered == delivered && seen.dropped <= dropped)
        else {
            self.seen.insert(port, Seen { delivered, dropped, nothing_ms: None });
            return 0;
        };
        if seen.dropped == dropped {
            return 0;
        }
        let (first, last) = seen.nothing_ms.unwrap_or((now_ms, now_ms));
        (seen.dropped, seen.nothing_ms) = (dropped, Some((first, now_ms)));
        self.next_ms = Some(now_ms.saturating_add(LOOK_MS));
        last - first
    }
}

impl Core {
    /// Has a look at the uplinks' ports if it is time to, or whenever the flows are looked at.
    pub(super) fn watch_uplinks(&mut self, at_once: bool, now_ms: u64) {
        let asked = self.questions.values().any(|q| matches!(q, Question::StuckUplinks { .. }));
        if (self.stuck_uplinks.is_due(now_ms) || at_once) && self.attached && !self.devices.is_empty() && !asked {
            self.ask(DatapathRequest::Ports, Question::StuckUplinks { ports: Vec::new() });
        }
    }

    /// The switch's ports are like this.
    pub(super) fn watched(&mut self, ports: &[PortInfo], now_ms: u64) {
        self.stuck_uplinks.seen.retain(|id, _| self.devices.contains_key(id));
        for port in ports.iter().filter(|port| self.devices.contains_key(&port.id)) {
            if port.state() != PortState::Up {
                self.stuck_uplinks.seen.remove(&port.id);
                continue;
            }
            let drops = port.to_guest.drops.iter().find(|(reason, _)| *reason == DropReason::NoBuffers);
            let for_ms = self.stuck_uplinks.look(port.id, port.to_guest.packets, drops.map_or(0, |(_, n)| *n), now_ms);
            if for_ms > 0 {
                self.commands.push(Command::Supervisor(ControlToSupervisor::TakesNothing { uplink: port.id, for_ms }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(3);

    #[test]
    fn a_port_takes_nothing_while_all_that_is_sent_is_dropped() {
        let mut stuck_uplinks = StuckUplinks::default();
        assert_eq!(stuck_uplinks.look(PORT, 1000, 0, 10_000), 0);
        // At some moment before this look there was no buffer: that may have been for a moment only.
        assert_eq!(stuck_uplinks.look(PORT, 1000, 5, 20_000), 0);
        assert_eq!(stuck_uplinks.deadline_ms(), Some(22_500));
        assert_eq!(stuck_uplinks.look(PORT, 1000, 9, 22_500), 0);
        assert_eq!(stuck_uplinks.look(PORT, 1000, 20, 25_000), 2500);
        assert_eq!(stuck_uplinks.look(PORT, 1000, 21, 27_500), 5000);
    }

    #[test]
    fn a_port_that_takes_a_packet_now_and_then_is_slow_and_no_more() {
        let mut stuck_uplinks = StuckUplinks::default();
        for n in 0..100 {
            assert_eq!(stuck_uplinks.look(PORT, 1000 + n, 500 * n, 2500 * n), 0);
        }
        assert_eq!(stuck_uplinks.deadline_ms(), None);
    }

    #[test]
    fn silence_says_nothing_and_a_new_switch_counts_anew() {
        let mut stuck_uplinks = StuckUplinks::default();
        stuck_uplinks.look(PORT, 1000, 0, 10_000);
        stuck_uplinks.look(PORT, 1000, 5, 20_000);
        assert!(stuck_uplinks.is_due(22_500) && !stuck_uplinks.is_due(22_500));
        // Nobody has sent it anything since: nobody looks again before the flows are looked at.
        assert_eq!(stuck_uplinks.look(PORT, 1000, 5, 22_500), 0);
        assert_eq!(stuck_uplinks.deadline_ms(), None);
        assert_eq!(stuck_uplinks.look(PORT, 1000, 6, 30_000), 0);
        assert_eq!(stuck_uplinks.look(PORT, 1000, 7, 40_000), 10_000);
        assert_eq!(stuck_uplinks.look(PORT, 0, 0, 50_000), 0);
        assert_eq!(stuck_uplinks.look(PORT, 0, 1, 60_000), 0);
    }
}
