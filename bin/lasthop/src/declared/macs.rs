//! Static addresses of the declarative file. Those of ports are settings like others; of an uplink they are the only one.

use super::plan::{Plan, Step, There};
use super::{Declared, UplinkMacs};
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
        ports.chain(self.uplink_macs.iter().map(|of| (of.uplink.as_str(), settings(&[of.setting()])))).collect()
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

impl UplinkMacs {
    /// As a setting.
    pub fn setting(&self) -> (String, String) {
        let value = if self.macs.is_empty() { "none".to_owned() } else { self.macs.clone() };
        (STATIC_MAC.to_owned(), value)
    }
}

fn macs_of(settings: &[Field]) -> &str {
    settings.iter().find(|f| f.name == STATIC_MAC).map_or("none", |f| f.value.as_str())
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
            let pairs = port.settings.iter().map(|f| (f.name.as_str(), f.value.as_str()));
            let is = PortSettings::default().change(pairs).unwrap_or_default();
            let goes =
                |(n, _): &(usize, _)| is.static_addresses().nth(*n).is_some_and(|address| elsewhere.contains(&address));
            let entries = is.static_macs.iter().enumerate();
            let (go, stay): (Vec<_>, Vec<_>) = entries.partition(goes);
            if go.is_empty() {
                continue;
            }
            let stay = stay.into_iter().map(|(_, entry)| entry.to_string()).collect::<Vec<_>>().join(",");
            let value = if stay.is_empty() { "none".to_owned() } else { stay };
            let told = format!("~ port {name}: {STATIC_MAC} {} -> {value}", macs_of(&port.settings));
            port.settings.retain(|f| f.name != STATIC_MAC);
            if value != "none" {
                port.settings.push(Field { name: STATIC_MAC.into(), value: value.clone() });
            }
            self.push(Step::SetPort(name, vec![Field { name: STATIC_MAC.into(), value }]), told);
        }
        then
    }

    /// Static addresses of uplinks.
    pub(super) fn set_macs(&mut self, declared: &'a Declared, there: &There, replaced: &BTreeSet<String>) {
        for of in &declared.uplink_macs {
            let port = there.ports.iter().find(|p| p.name == of.uplink && !replaced.contains(&p.name));
            let (is, (name, value)) = (port.map_or("none", |port| macs_of(&port.settings)), of.setting());
            if is != value {
                let told = format!("~ uplink {}: {STATIC_MAC} {is} -> {value}", of.uplink);
                self.push(Step::SetPort(&of.uplink, vec![Field { name, value }]), told);
            }
        }
    }
}
