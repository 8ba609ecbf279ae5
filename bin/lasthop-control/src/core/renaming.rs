//! `lasthop port rename`: the supervisor gives a port another name, and what goes by it here follows. Flows, addresses and connections
//! go by the port's number, and stay. The switch is not told: until the next one is started, it reports the port under the old name.

use super::{Answer, Core, busy, refuse};
use lasthop_api::{ApiError, PortChanged};
use lasthop_ipc::PortInfo;
use lasthop_management_ipc::ControlToSupervisor;
use lasthop_types::PortId;

impl Core {
    /// The port of this name.
    pub(super) fn find(&self, name: &str) -> Option<PortId> {
        let configured = self.configs.values().find(|c| c.name == name).map(|c| c.id);
        let reported = || self.infos.values().find(|info| info.name == name && !self.configs.contains_key(&info.id));
        configured.or_else(|| reported().map(|info| info.id))
    }

    /// What the port is called, or its number.
    pub(super) fn name(&self, id: PortId) -> String {
        let configured = self.configs.get(&id).map(|c| c.name.clone());
        configured.or_else(|| self.infos.get(&id).map(|i| i.name.clone())).unwrap_or_else(|| format!("#{id}"))
    }

    /// Asks the supervisor, which keeps what goes by the name.
    pub(super) fn rename(&mut self, name: String, to: String, answer: Answer<PortChanged>) {
        // Lists that were kept meanwhile would be those of the old name.
        if self.pending.is_some() {
            let message = "a change of access lists is under way; try again in a second".into();
            return refuse(answer, ApiError::Busy { message });
        }
        if self.renaming.is_some() {
            return refuse(answer, busy());
        }
        let mut number = None;
        self.request((answer, false, None), |request| {
            number = Some(request);
            ControlToSupervisor::PortRename { request, name, to }
        });
        self.renaming = number;
    }

    /// The supervisor has done it.
    pub(super) fn renamed(&mut self, port: PortId, from: &str, to: &str) {
        self.book.rename_port(from, to);
        self.mirroring.rename_port(from, to);
        if let Some(config) = self.configs.get_mut(&port) {
            to.clone_into(&mut config.name);
        }
        if let Some(info) = self.infos.get_mut(&port) {
            to.clone_into(&mut info.name);
        }
        // The same lists as before: no flow depends on whose they are called.
        self.set_lists(port);
    }

    /// A report of the switch's, under the name that the port has now.
    pub(super) fn name_anew(&self, port: &mut PortInfo) {
        if let Some(config) = self.configs.get(&port.id) {
            port.name.clone_from(&config.name);
        }
    }
}
