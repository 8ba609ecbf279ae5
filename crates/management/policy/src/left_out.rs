//! Which ports the floods of others do not reach, by VLANs, isolation or access lists: no frame is dropped there, so no counter tells of
//! it. A first ARP request that does not arrive is the most usual thing to be found out.

use crate::Learning;
use crate::flows::Cause;
use lasthop_flow::Action;
use lasthop_frame::FlowMask;
use lasthop_types::{DropReason, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// Flooded flows of one port that are looked at: those of one VLAN are much alike.
const FLOWS: usize = 8;
/// Receivers that are looked at, for all flows: some milliseconds.
const LOOKS: usize = 100_000;

/// What the floods of a port leave out in a VLAN, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Where they come from.
    pub from: PortId,
    /// Their VLAN; 0: none.
    pub vlan: u16,
    /// [`DropReason::Vlan`], [`DropReason::Isolated`] or [`DropReason::Acl`].
    pub reason: DropReason,
    /// Ports that are up and are not reached, in order.
    pub to: Vec<PortId>,
    /// More of the first of them.
    pub why: String,
}

impl Learning {
    /// What the flooded flows that there are leave out, but for what goes from uplink to uplink. A sample where there are many. `name`
    /// gives a port's name.
    pub fn left_out_of_floods(&self, name: impl Fn(PortId) -> String) -> Vec<LeftOut> {
        let others: Vec<PortId> = self.flooded().collect();
        let mut found: BTreeMap<(PortId, u16, DropReason), (BTreeSet<PortId>, String)> = BTreeMap::new();
        let mut looks = 0;
        for from in self.flows.owners(Cause::Floods) {
            let mut at = 0;
            for _ in 0..FLOWS {
                let Some(id) = self.flows.next(Cause::Floods, from, at) else { break };
                let Some(flow) = self.flows.get(id) else { break };
                at = id.saturating_add(1);
                // What reaches nobody is dropped, and counted.
                if flow.drops().is_some() {
                    continue;
                }
                if looks >= LOOKS {
                    break;
                }
                looks += others.len();
                let reached: BTreeSet<PortId> = flow.actions.iter().filter_map(output).collect();
                for to in others.iter().filter(|to| **to != from && !reached.contains(to)) {
                    if !self.wants(*to, flow.vlan, &flow.key, &mut FlowMask::default()) {
                        continue;
                    }
                    let why = || self.why_not_to(*to, flow.vlan, &flow.key, &name);
                    let (reason, why) = match (self.apart(from, *to), why()) {
                        (Some(DropReason::BetweenUplinks), _) => continue,
                        (Some(reason), why) => (reason, why.unwrap_or_default()),
                        (None, Some(why)) => (DropReason::Vlan, why),
                        (None, None) => {
                            (DropReason::Acl, format!("the to-guest access list of {} denies it", name(*to)))
                        }
                    };
                    let entry = found.entry((from, flow.vlan, reason)).or_insert_with(|| (BTreeSet::new(), why));
                    entry.0.insert(*to);
                }
            }
        }
        let left_out = |((from, vlan, reason), (to, why)): (_, (BTreeSet<PortId>, String))| LeftOut {
            from,
            vlan,
            reason,
            to: to.into_iter().collect(),
            why,
        };
        found.into_iter().map(left_out).collect()
    }
}

fn output(action: &Action) -> Option<PortId> {
    match action {
        Action::Output(port) => Some(*port),
        _ => None,
    }
}
