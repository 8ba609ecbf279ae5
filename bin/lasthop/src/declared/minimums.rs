//! Minimum rates of the declarative file, and the rates of uplinks that they are of. Less comes first, then what uplinks take, then more: so on the
//! way nobody is promised more than there is, which a running lasthop refuses.

use super::Declared;
use super::plan::{Plan, Step, There, settings_of};
use crate::settings::{bits, value_of};
use lasthop_api::{Field, Port};
use lasthop_management_ipc::Settings;
use lasthop_policy::{MIN_RATE, RATE_TO, Rate};
use std::collections::BTreeSet;

/// What a setting of a running port is; `none` if nothing is set.
pub(super) fn value_there<'a>(settings: &'a [Field], name: &str) -> &'a str {
    value_of(settings, name).unwrap_or("none")
}

/// The same of what a file says.
pub(super) fn value_in<'a>(settings: &'a Settings, name: &str) -> &'a str {
    settings.iter().find(|(of, _)| of == name).map_or("none", |(_, value)| value)
}

impl Declared {
    /// Whether all minimum rates together are no more than each uplink takes, as far as the file says what that is.
    pub(super) fn check_minimums(&self) -> Result<(), String> {
        let least = self.ports.iter().filter_map(|port| bits(value_in(&port.settings, MIN_RATE)));
        let wanted = least.fold(0, u64::saturating_add);
        for of in &self.uplink_settings {
            let takes = value_in(&of.settings, RATE_TO);
            if bits(takes).is_some_and(|takes| takes < wanted) {
                let wanted = Rate::of_bits(wanted);
                return Err(format!(
                    "[uplink.{}]: {RATE_TO} = {takes:?}, and ports are to get {wanted} of it at least ({MIN_RATE}); raise the one or lower the others",
                    of.uplink
                ));
            }
        }
        Ok(())
    }
}

impl<'a> Plan<'a> {
    pub(super) fn lower_minimums(&mut self, declared: &'a Declared, there: &There, replaced: &BTreeSet<String>) {
        self.set_minimums(declared, there, replaced, |is, wanted| bits(wanted).unwrap_or(0) < bits(is).unwrap_or(0));
    }

    pub(super) fn raise_minimums(&mut self, declared: &'a Declared, there: &There, replaced: &BTreeSet<String>) {
        self.set_minimums(declared, there, replaced, |is, wanted| bits(wanted).unwrap_or(0) > bits(is).unwrap_or(0));
    }

    fn set_minimums(
        &mut self,
        declared: &'a Declared,
        there: &There,
        replaced: &BTreeSet<String>,
        now: fn(&str, &str) -> bool,
    ) {
        for port in &declared.ports {
            let is_there = |p: &&Port| p.name == port.name && !replaced.contains(&p.name);
            let is = there.ports.iter().find(is_there).map_or("none", |port| value_there(&port.settings, MIN_RATE));
            let wanted = settings_of(port).into_iter().find(|(name, _)| *name == MIN_RATE);
            let wanted = wanted.map_or_else(|| "none".to_owned(), |(_, value)| value);
            if now(is, &wanted) {
                let told = format!("~ port {}: {MIN_RATE} {is} -> {wanted}", port.name);
                self.push(Step::SetPort(&port.name, vec![Field { name: MIN_RATE.into(), value: wanted }]), told);
            }
        }
    }

    /// Settings of uplinks.
    pub(super) fn set_uplinks(&mut self, declared: &'a Declared, there: &There, replaced: &BTreeSet<String>) {
        for of in &declared.uplink_settings {
            let port = there.ports.iter().find(|p| p.name == of.uplink && !replaced.contains(&p.name));
            for (name, value) in &of.settings {
                let is = port.map_or("none", |port| value_there(&port.settings, name));
                if is != value {
                    let told = format!("~ uplink {}: {name} {is} -> {value}", of.uplink);
                    let field = Field { name: name.clone(), value: value.clone() };
                    self.push(Step::SetPort(&of.uplink, vec![field]), told);
                }
            }
        }
    }
}
