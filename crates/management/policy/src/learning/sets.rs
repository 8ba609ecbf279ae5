//! Sets of addresses that lists name, and what follows when they change: flows go that may say otherwise now, and no others.
//!
//! A flow says what becomes of all packets that agree with it in the bits that it took to know. Where none of these has one of the addresses
//! that joined or left, lists say of all of them what they said before.

use super::tracking::tuple;
use super::{Effects, Learning};
use crate::flows::{Id, Installed, Verdict};
use lasthop_classifier::Addresses;
use lasthop_classifier::addresses::span;
use lasthop_conntrack::Tuple;
use lasthop_frame::ethertype::{ARP, IPV4, IPV6};
use lasthop_types::PortId;
use std::collections::BTreeSet;

/// Flows that are removed one by one. Where more are concerned all flows are removed at once, which is one message to the switch.
const MOST: usize = 4096;

/// How far a look through all flows is that a change of a set may concern ([`Learning::addresses_changed`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetRound {
    from: Id,
    /// Flows that have been removed.
    pub removed: usize,
}

/// Ports whose lists name a set, by direction.
type Users = [BTreeSet<PortId>; 2];

impl Learning {
    /// These addresses have joined the set with this name, or left it. Ports whose lists name it have been told their new lists
    /// ([`Learning::set_lists`]). Removes the flows that this may concern; packets are judged anew then. Connections go on
    /// as after a change of lists. It looks at each flow once, 50 ns or so each: at the next `many` of them. True if there are more: they may say
    /// what the set before said, until they have been looked at.
    pub fn addresses_changed(
        &mut self,
        set: &str,
        changed: &Addresses,
        round: &mut SetRound,
        many: usize,
        out: &mut Effects,
    ) -> bool {
        let (mut users, mut sides) = (Users::default(), [false; 2]);
        for (port, lists) in &self.lists {
            for (users, list) in users.iter_mut().zip(lists) {
                let Some(as_what) = list.as_ref().and_then(|(_, list)| list.sets().get(set)) else { continue };
                users.insert(*port);
                sides = [sides[0] | as_what[0], sides[1] | as_what[1]];
            }
        }
        if changed.is_empty() || users.iter().all(BTreeSet::is_empty) {
            return false;
        }
        let translates = self.lists.values().flatten().flatten().any(|(_, list)| !list.translations().is_empty());
        let begins = round.from == 0;
        let (concerned, next) = self.flows.some(round.from, many, |flow| {
            (translates && flow.drops().is_some() || self.may_have(flow, changed, sides))
                && may_be_decided_by(flow, &users)
        });
        if round.removed + concerned.len() > MOST {
            round.removed += self.flows.len();
            self.clear_flows(out);
            return false;
        }
        if begins {
            if let Some(connections) = &mut self.connections {
                connections.lists_changed();
            }
            self.epoch += 1;
        }
        concerned.iter().for_each(|id| self.del_flow(*id, out));
        round.removed += concerned.len();
        round.from = next.unwrap_or_default();
        next.is_some()
    }

    /// Some packet of the flow, or the first one of its connection, may have one of these addresses: as source, as destination.
    fn may_have(&self, flow: &Installed, changed: &Addresses, [source, destination]: [bool; 2]) -> bool {
        let (key, mask) = (&flow.key, &flow.mask.0);
        // A list that names a set has looked at this.
        if mask.eth_type != u16::MAX || !matches!(key.eth_type, IPV4 | IPV6 | ARP) {
            return false;
        }
        let touches = |address: [u8; 16], mask: [u8; 16]| {
            let span = span(key.eth_type, u128::from_be_bytes(address), u128::from_be_bytes(mask));
            changed.touches(key.eth_type, span)
        };
        if flow.connection == 0 {
            return source && touches(key.ip_src, mask.ip_src) || destination && touches(key.ip_dst, mask.ip_dst);
        }
        let known = self.connections.as_ref().and_then(|of| of.recall(&tuple(key, flow.vlan)).known());
        let ends = |tuple: &Tuple| {
            source && touches(tuple.src(), [0xff; 16]) || destination && touches(tuple.dst(), [0xff; 16])
        };
        known.is_none_or(|known| ends(&known.original) || ends(&known.delivered))
    }
}

/// Whether its packets pass by a list that names the set.
fn may_be_decided_by(flow: &Installed, [senders, receivers]: &Users) -> bool {
    let sends = senders.contains(&flow.port());
    match flow.verdict {
        // It may be judged by what its connection's first packet was, the other way round.
        _ if flow.connection != 0 => true,
        None | Some(Verdict::Hairpin) => sends,
        Some(Verdict::To(port)) => sends || receivers.contains(&port),
        Some(Verdict::Flood | Verdict::Sought(_)) => sends || !receivers.is_empty(),
    }
}
