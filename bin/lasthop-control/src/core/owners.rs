//! Which addresses are behind ports that have a queue of their own at an uplink (`port set --queue-of`): learned here, and told to the
//! supervisor, which tells the uplink.

use super::{Command, Core};
use lasthop_frame::FlowKey;
use lasthop_management_ipc::ControlToSupervisor;
use lasthop_policy::PortSettings;
use lasthop_types::PortId;
use lasthop_uplink_ipc::{OWNED_STATIONS, VlanMac};
use std::collections::{BTreeMap, BTreeSet};

/// By port: the addresses that the supervisor was told.
pub(super) type Owners = BTreeMap<PortId, BTreeSet<VlanMac>>;

/// Most ports that the supervisor is told of: all in one message.
const MOST_PORTS: usize = 256;

/// Addresses that are a port's whether or not it has said anything: those that it is told. Another may send from them, and have them learned, unless
/// they are static.
fn own_addresses(settings: &PortSettings) -> impl Iterator<Item = VlanMac> {
    let untagged = settings.vlan.or(settings.native).unwrap_or(0);
    settings.macs.iter().map(move |mac| (untagged, *mac)).chain(settings.static_addresses())
}

impl Core {
    /// Looks through all addresses, and tells what is other than before. An earlier control's flows say where addresses live: before
    /// they have, nothing is known.
    pub(super) fn look_at_owners(&mut self, now_ms: u64) {
        if !self.reconciled {
            return;
        }
        let mut found = Owners::new();
        for id in self.configs.keys().filter(|id| !self.uplinks.contains_key(id)) {
            if found.len() == MOST_PORTS {
                break;
            }
            if let Some(settings) = self.policy.settings(*id).filter(|settings| settings.queue_of.is_some()) {
                found.insert(*id, own_addresses(settings).take(OWNED_STATIONS).collect());
            }
        }
        if found.is_empty() && self.owners.is_empty() {
            return;
        }
        for mac in self.policy.macs(now_ms) {
            if let Some(stations) = found.get_mut(&mac.port).filter(|stations| stations.len() < OWNED_STATIONS) {
                stations.insert((mac.vlan, mac.mac));
            }
        }
        if found != self.owners {
            self.owners = found;
            self.tell_owners();
        }
    }

    /// A frame with this key has come from a port, and its address was learned if it could be.
    pub(super) fn owner_sends(&mut self, key: &FlowKey) {
        let Some(stations) = self.owners.get_mut(&key.port()) else { return };
        let new = self.policy.source_of(key).filter(|_| stations.len() < OWNED_STATIONS);
        if new.is_some_and(|station| stations.insert(station)) {
            self.tell_owners();
        }
    }

    fn tell_owners(&mut self) {
        let owners = self.owners.iter().map(|(port, stations)| (*port, stations.iter().copied().collect()));
        self.commands.push(Command::Supervisor(ControlToSupervisor::Owners(owners.collect())));
    }
}
