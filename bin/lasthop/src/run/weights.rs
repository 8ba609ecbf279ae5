//! What ports' settings come to as weights ([`shares`](crate::shares)): the switch is told when that changes, and who watches the log when minimum rates
//! cannot be kept.

use super::supervisor::Supervisor;
use crate::shares::{Minimums, Told, own_weight, weights_of};
use lasthop_management_ipc::PortConfig;
use lasthop_policy::PortSettings;
use tracing::{info, warn};

/// What was last said of minimum rates that are not kept.
#[derive(Debug, Default)]
pub(super) struct Unkept {
    /// Something has changed since.
    look: bool,
    said: Option<String>,
}

impl Supervisor {
    /// A port's weight among those of its priority.
    pub(super) fn own_weight(&self, name: &str) -> u32 {
        own_weight(self.settings.get(name))
    }

    /// Tells the switch of ports whose shares have changed because others have come or gone, or have other settings.
    pub(super) fn tell_weights(&mut self, configs: &[PortConfig]) {
        let told: Vec<_> = configs.iter().map(|config| self.told(config)).collect();
        let new = weights_of(&told);
        let before = std::mem::replace(&mut self.weights, new);
        for config in configs {
            if before.get(&config.id.0) != self.weights.get(&config.id.0) {
                self.tell_limits(config.id, &config.name);
            }
        }
        self.unkept.look = true;
    }

    fn told<'a>(&'a self, config: &'a PortConfig) -> Told<'a> {
        Told {
            name: &config.name,
            port: config.id.0,
            uplink: self.uplink_port(&config.name).is_some(),
            settings: self.settings.get(&config.name),
        }
    }

    /// Says that minimum rates are not kept, once, and that they are again. Nobody could set them so: the command line says it, or a file that was read again,
    /// or an uplink has gone. After all that changes with one event: in between they may be more than there is.
    pub(super) fn warn_of_minimums(&mut self) {
        if !std::mem::take(&mut self.unkept.look) {
            return;
        }
        let told: Vec<_> = self.each_config().map(|config| self.told(config)).collect();
        let now = Minimums::of(&told).unkept();
        if now != self.unkept.said {
            match &now {
                Some(why) => warn!("{why}"),
                None => info!("minimum rates are no more than uplinks take now"),
            }
            self.unkept.said = now;
        }
    }

    /// Refuses settings by which ports are to get more at least than an uplink takes, or which take away from what they were promised.
    pub(super) fn check_minimums(&self, name: &str, settings: &PortSettings) -> Result<(), String> {
        let before: Vec<_> = self.each_config().map(|config| self.told(config)).collect();
        let mut after: Vec<_> = before.iter().filter(|told| told.name != name).copied().collect();
        // A new one has no number yet, and is none of an uplink's: those have no settings when they are made.
        let (port, uplink) =
            before.iter().find(|told| told.name == name).map_or((u32::MAX, false), |told| (told.port, told.uplink));
        after.push(Told { name, port, uplink, settings: Some(settings) });
        let (before, after) = (Minimums::of(&before), Minimums::of(&after));
        match after.unkept() {
            Some(why) if !after.are_no_worse_than(&before) => Err(format!("with that {why}")),
            _ => Ok(()),
        }
    }
}
