//! Static addresses of the declarative file: each can be at one port or uplink only.

use super::Declared;
use super::minimums::value_there;
use super::plan::{Plan, Step, There};
use lasthop_api::Field;
use lasthop_policy::{PortSettings, STATIC_MAC};
use std::collections::{BTreeMap, BTreeSet};

impl Declared {
    /// Settings of each port and uplink, as far as static addresses go by them.
    fn told(&self) -> Vec<(&str, PortSettings)> {
        let settings = |pairs: &[(String, String)]| {
            let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            PortSettings::default().change(pairs).unwrap_or_default()
        };
        let ports = self.ports.iter().map(|port| (port.name.as_str(), settings(&port.settings)));
        ports.chain(self.uplink_settings.iter().map(|of| (of.uplink.as_str(), settings(&of.settings)))).collect()
    }

    /// Whether each static address is at one port.
    pub(super) fn check_macs(&self) -> Result<(), String> {
        let mut at = BTreeMap::new();
        for (name, settings) in self.told() {
            for (vlan, mac) in settings.static_addresses() {
                if let Some(other) = at.insert((vlan, mac), name) {
                    let vlan = if vlan == 0 { String::new() } else { format!(" in VLAN {vlan}") };
                    return Err(format!(
                        "{STATIC_MAC}: {mac} is at {other} and at {name}{vlan}; it can live at one of them"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl<'a> Plan<'a> {
    /// An address that is to live at another port goes from where it is first: it can be static at one only. What `there` is then.
    pub(super) fn free_macs(&mut self, declared: &'a Declared, there: &There) -> There {
        let mut then = there.clone();
        let wanted = declared.told();
        for port in &mut then.ports {
            let Some((name, _)) = wanted.iter().find(|(name, _)| *name == port.name) else { continue };
            let elsewhere: BTreeSet<_> =
                wanted.iter().filter(|(other, _)| other != name).flat_map(|(_, of)| of.static_addresses()).collect();
            let is = crate::shares::settings_of(port);
            let goes =
                |(n, _): &(usize, _)| is.static_addresses().nth(*n).is_some_and(|address| elsewhere.contains(&address));
            let entries = is.static_macs.iter().enumerate();
            let (go, stay): (Vec<_>, Vec<_>) = entries.partition(goes);
            if go.is_empty() {
                continue;
            }
            let stay = stay.into_iter().map(|(_, entry)| entry.to_string()).collect::<Vec<_>>().join(",");
            let value = if stay.is_empty() { "none".to_owned() } else { stay };
            let told = format!("~ port {name}: {STATIC_MAC} {} -> {value}", value_there(&port.settings, STATIC_MAC));
            port.settings.retain(|f| f.name != STATIC_MAC);
            if value != "none" {
                port.settings.push(Field { name: STATIC_MAC.into(), value: value.clone() });
            }
            self.push(Step::SetPort(name, vec![Field { name: STATIC_MAC.into(), value }]), told);
        }
        then
    }
}
