//! How many ports of a translated address each port of the switch holds. A port of the address is one for each server (address, protocol and port) that is spoken to, so it
//! is counted by server: who would keep others from one has to have all of that one's.

use super::Learning;
use super::deciding::Decided;
use super::tracking::tuple;
use lasthop_classifier::{Found, Seen};
use lasthop_conntrack::{Nat, Refusal, Tuple};
use lasthop_frame::ethertype::{IPV4, IPV6};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::PortId;
use std::collections::HashMap;
use std::net::IpAddr;

/// Ports of an address from which sources are chosen, where a line names none: [1024, 65535].
const PORTS: u32 = 64_512;
/// Of an address that others use too, a port of the switch holds one part in so many, unless it is told otherwise.
const PART: u32 = 4;

/// A port of the switch, and a connection's first packet as it is delivered, without its source port.
type Held = (PortId, Tuple);

/// Connections that hold ports of translated addresses.
#[derive(Debug, Default)]
pub(super) struct Shares {
    of: HashMap<u64, Held>,
    held: HashMap<Held, u32>,
}

fn held(port: PortId, delivered: &Tuple) -> Held {
    let [_, dst] = delivered.ports();
    (
        port,
        Tuple::new(
            [delivered.src(), delivered.dst()],
            [0, dst],
            delivered.proto(),
            delivered.is_v6(),
            delivered.zone(),
        ),
    )
}

impl Shares {
    /// A port of the switch has opened a connection that is this as it is delivered.
    pub fn begun(&mut self, number: u64, port: PortId, delivered: &Tuple) {
        let held = held(port, delivered);
        if self.of.insert(number, held).is_none() {
            *self.held.entry(held).or_insert(0) += 1;
        }
    }

    /// A connection has ended.
    pub fn over(&mut self, number: u64) {
        let Some(held) = self.of.remove(&number) else { return };
        if let Some(n) = self.held.get_mut(&held) {
            *n -= 1;
            if *n == 0 {
                self.held.remove(&held);
            }
        }
    }

    fn held(&self, port: PortId, delivered: &Tuple) -> u32 {
        self.held.get(&held(port, delivered)).copied().unwrap_or(0)
    }
}

/// Of these targets of translation, each of a port, those that are of several.
pub(super) fn shared(targets: &[([IpAddr; 2], PortId)]) -> Vec<[IpAddr; 2]> {
    let mut ordered = targets.to_vec();
    ordered.sort();
    ordered.dedup();
    let mut shared = Vec::new();
    // The range that reaches farthest of those before, and whose it is.
    let mut before: Option<([IpAddr; 2], PortId)> = None;
    for (range, port) in ordered {
        let Some((other, whose)) = before else {
            before = Some((range, port));
            continue;
        };
        if other[1] >= range[0] && whose != port {
            shared.extend([other, range]);
        }
        if range[1] > other[1] {
            before = Some((range, port));
        }
    }
    shared
}

impl Learning {
    /// Whether an address is one that sources are translated to; of several ports of the switch, if `shared`.
    fn is_target(&self, delivered: &Tuple, shared: bool) -> bool {
        let classifier = if shared { &self.shared } else { &self.outside };
        let eth_type = if delivered.is_v6() { IPV6 } else { IPV4 };
        let back = FlowKey { eth_type, ip_dst: delivered.src(), ..FlowKey::default() };
        matches!(classifier.first_match(&back, &mut Seen::of(&FlowMask::default())), Found::Pattern(_))
    }

    /// How many ports of its source's address a connection's opener may hold towards that server; `None`: as many as there are.
    fn share(&self, port: PortId, nat: &Nat, original: &Tuple, delivered: &Tuple) -> Option<u32> {
        let alone = original.src() != delivered.src() && !self.is_target(delivered, true);
        let ports = match nat {
            Nat::Source(range) | Nat::Both(range, _) => range.ports,
            _ => None,
        };
        let span = ports.map_or(PORTS, |[low, high]| u32::from(high.saturating_sub(low)) + 1);
        let told = self.guest_settings(port).and_then(|settings| settings.nat_ports);
        told.or((!alone).then_some((span / PART).max(1)))
    }

    /// Whether a packet would open a connection that holds a port of an address of which its own port holds as many as it may; counts it, if so.
    pub(super) fn is_over_share(&self, key: &FlowKey, decided: &Decided) -> bool {
        let over = self.full_share(key, decided.vlan, &decided.nat).is_some();
        if let Some(connections) = self.connections.as_ref().filter(|_| over) {
            connections.tracker.count(Refusal::AddressShare);
        }
        over
    }

    /// How many ports of an address a port holds that may hold no more, if the connection that a packet would open takes one.
    pub(super) fn full_share(&self, key: &FlowKey, vlan: u16, nat: &Nat) -> Option<u32> {
        let connections = self.connections.as_ref()?;
        let original = tuple(key, vlan);
        let delivered = connections.tracker.plan(nat, &original)?;
        if !self.takes_a_port(&original, &delivered) {
            return None;
        }
        let most = self.share(key.port(), nat, &original, &delivered)?;
        Some(connections.shares.held(key.port(), &delivered)).filter(|held| *held >= most)
    }

    /// A port has opened a connection, which may hold a port of a translated address.
    pub(super) fn share_begins(&mut self, number: u64, port: PortId, original: &Tuple, delivered: &Tuple) {
        let takes = self.takes_a_port(original, delivered);
        if let Some(connections) = self.connections.as_mut().filter(|_| takes) {
            connections.shares.begun(number, port, delivered);
        }
    }

    fn takes_a_port(&self, original: &Tuple, delivered: &Tuple) -> bool {
        original.src() != delivered.src() || self.is_target(delivered, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_shared_and_a_ports_own_are_not() {
        let at = |n: u8| IpAddr::from([192, 0, 2, n]);
        let of = |ranges: &[(u8, u8, u32)]| {
            shared(&ranges.iter().map(|(a, b, port)| ([at(*a), at(*b)], PortId(*port))).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(1, 9, 1), (10, 10, 2), (2, 3, 1)]), Vec::<[IpAddr; 2]>::new());
        assert_eq!(of(&[(1, 9, 1), (9, 12, 2)]), [[at(1), at(9)], [at(9), at(12)]]);
        assert_eq!(of(&[(5, 5, 1), (5, 5, 2)]), [[at(5), at(5)]; 2]);
    }
}
