//! What ports are told to do: kept by the supervisor, carried out by policy.

use super::{Answer, Core, Unconfirmed, give, refuse};
use crate::view;
use lasthop_api::{ApiError, Field, PortChanged};
use lasthop_management_ipc::PortConfig;
use lasthop_policy::{Effects, PortSettings};
use lasthop_types::PortId;

/// What somebody waits for, of the supervisor.
#[derive(Debug)]
pub(super) struct PortRequest {
    pub answer: Answer<PortChanged>,
    /// It is answered when the switch goes by it.
    pub in_force: bool,
    /// What goes with a port that is to go.
    pub forgets: Option<Vec<Field>>,
}

impl Core {
    /// What a port of this name is told to do.
    pub(super) fn settings_of(&self, name: &str) -> Vec<Field> {
        let port = self.configs.values().find(|config| config.name == name);
        view::settings(port.and_then(|port| self.policy.settings(port.id)))
    }

    /// A port is told something.
    pub(super) fn settings_are(&mut self, port: PortId, text: String, now_ms: u64, out: &mut Effects) {
        match PortSettings::try_from(text) {
            Ok(settings) => {
                let bounded = [settings.max_cpu, settings.max_cpu_to].map(|bound| bound.is_some());
                self.spending.set_bounded(port, bounded, now_ms);
                self.policy.set_settings(port, settings, now_ms, out);
            }
            // The supervisor has read it, so this does not happen.
            Err(e) => tracing::error!("settings of port {port}: {e}; it goes on as before"),
        }
    }

    /// The supervisor has done what was asked of a port, or not.
    pub(super) fn port_reply(&mut self, request: u64, result: Result<PortConfig, String>, now_ms: u64) {
        // Whoever asked for another name may have gone meanwhile.
        self.renaming.take_if(|renaming| *renaming == request);
        let Some(PortRequest { answer, in_force, forgets }) = self.requests.remove(&request) else { return };
        match result {
            Err(message) => refuse(answer, ApiError::PortRefused { message }),
            Ok(p) => {
                let settings = forgets.unwrap_or_else(|| view::settings(self.policy.settings(p.id)));
                let changed = PortChanged { name: p.name, id: p.id.0, path: p.path, client: p.client, settings };
                if in_force {
                    // What follows from it has been sent before.
                    self.when_confirmed(Unconfirmed::Port(changed, answer), now_ms);
                } else {
                    give(answer, changed);
                }
            }
        }
    }
}
