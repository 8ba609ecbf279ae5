//! Ports that have a queue of their own at an uplink whatever the load (`port set --queue-of`): who may, and what their uplinks are told.

use super::store::SavedUplink;
use super::supervisor::Supervisor;
use lasthop_management_ipc::PortConfig;
use lasthop_policy::PortSettings;
use lasthop_text::counted;
use lasthop_types::PortId;
use lasthop_uplink_ipc::{QueueOwner, UplinkDriver, VlanMac, xdp_ring};
use std::collections::BTreeMap;
use tracing::warn;

/// How many queues an uplink has that guests can have for themselves.
fn own_queues(spec: &SavedUplink) -> Result<usize, String> {
    let name = &spec.name;
    if spec.driver.as_deref() != Some(UplinkDriver::AfXdp.name()) {
        return Err(format!(
            "{name} has no queues that guests can have for themselves: only af_xdp with several queues has; \
             `lasthop uplink add NAME {} --driver af_xdp --queues N` makes one",
            spec.device
        ));
    }
    match usize::from(spec.queues).saturating_sub(1) {
        0 => Err(format!("{name} has one queue, which all share; give it several (queues=N) when it is made")),
        several => Ok(several),
    }
}

/// A port that is to have a queue.
#[derive(Debug)]
struct Owner {
    port: PortId,
    name: String,
    /// Frames that may wait in it.
    size: Option<u16>,
}

impl Supervisor {
    /// Whether the port can have the queue that these settings say it has.
    pub(super) fn check_queue_of(&self, name: &str, settings: &PortSettings) -> Result<(), String> {
        let Some(wanted) = &settings.queue_of else { return Ok(()) };
        let net = &wanted.uplink;
        let of_name = |spec: &&SavedUplink| spec.name == *net && !spec.guest;
        let there = self.uplinks.values().filter(|uplink| !uplink.is_leaving()).map(|uplink| &uplink.spec);
        let Some(spec) = there.clone().find(of_name) else {
            return Err(format!(
                "queue-of={net}: there is no uplink {net}; `lasthop uplink list` shows those there are"
            ));
        };
        let queues = own_queues(spec).map_err(|e| format!("queue-of={net}: {e}"))?;
        let most = u32::from(xdp_ring(spec.queues)) * u32::from(spec.queues);
        if let Some(size) = wanted.size.filter(|size| u32::from(*size) > most) {
            return Err(format!(
                "queue-of={net}:{size}: a queue of {net} keeps {most} frames at most; write {net}:{most} or less, or {net} for all it has"
            ));
        }
        let others: Vec<_> =
            self.owners(net).into_iter().map(|owner| owner.name).filter(|other| other != name).collect();
        if others.len() < queues {
            return Ok(());
        }
        Err(format!(
            "queue-of={net}: {net} has {}, of which one is shared and the others are kept for {}; `lasthop port set NAME --queue-of none` \
             takes one back",
            counted(queues as u64 + 1, "queue"),
            others.join(", ")
        ))
    }

    /// Ports that are to have a queue at an uplink, those first that have been there for longer.
    fn owners(&self, net: &str) -> Vec<Owner> {
        let owner = |config: &PortConfig| {
            let wanted = self.settings.get(&config.name)?.queue_of.as_ref().filter(|wanted| wanted.uplink == net)?;
            Some(Owner { port: config.id, name: config.name.clone(), size: wanted.size })
        };
        let mut owners: Vec<_> = self.each_config().filter_map(owner).collect();
        owners.sort_by_key(|owner| owner.port);
        owners
    }

    /// Control says which addresses are behind ports that have queues.
    pub(super) fn owners_are(&mut self, stations: Vec<(PortId, Vec<VlanMac>)>) {
        self.stations = stations.into_iter().map(|(port, stations)| (port.0, stations)).collect();
        self.tell_owners();
    }

    /// Tells uplinks which ports have queues there, where that is not what they know.
    pub(super) fn tell_owners(&mut self) {
        if self.stations.is_empty() && !self.settings.values().any(|set| set.queue_of.is_some()) {
            return self.uplinks.values_mut().for_each(|uplink| uplink.keep_queues(Vec::new()));
        }
        let mut wanted: BTreeMap<u32, Vec<QueueOwner>> = BTreeMap::new();
        for (id, uplink) in &self.uplinks {
            if uplink.spec.guest {
                continue;
            }
            let stations = |port: PortId| self.stations.get(&port.0).cloned().unwrap_or_default();
            let most = own_queues(&uplink.spec).unwrap_or(0);
            let owners = self.owners(&uplink.spec.name).into_iter().take(most);
            let owners = owners.map(|Owner { port, size, .. }| QueueOwner {
                port: port.0,
                stations: stations(port),
                size: size.map(u32::from),
            });
            wanted.insert(*id, owners.collect());
        }
        for (id, owners) in wanted {
            if let Some(uplink) = self.uplinks.get_mut(&id) {
                uplink.keep_queues(owners);
            }
        }
    }

    /// An uplink's process may have said for whom its queues are: the switch is told by which of them these ports send.
    pub(super) fn tell_kept(&mut self, id: u32) {
        if let Some(uplink) = self.uplinks.get_mut(&id)
            && uplink.learn_kept()
        {
            let PortConfig { id, name, .. } = uplink.config.clone();
            self.tell_limits(id, &name);
        }
    }

    /// Says which ports have no queue although they are to have one: the uplink may be another than when that was said.
    pub(super) fn warn_of_queues(&self) {
        for config in self.each_config() {
            if let Some(settings) = self.settings.get(&config.name)
                && let Err(why) = self.check_queue_of(&config.name, settings)
            {
                warn!("port {}: it shares its uplink's queue with others: {why}", config.name);
            }
        }
    }
}
