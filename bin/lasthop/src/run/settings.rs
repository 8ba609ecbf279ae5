//! What ports are told to do (`lasthop port set`): checked and kept here, carried out by control.

use super::supervisor::Supervisor;
use lasthop_ipc::{Limit, PortConfig, SupervisorToSwitch};
use lasthop_management_ipc::{Settings, SupervisorToControl};
use lasthop_policy::{FLAGS, PortSettings, Rate, SETTINGS, Unit};
use lasthop_types::PortId;
use tracing::info;

/// These changes made to what a port was told; nothing: to the default.
pub fn changed(before: Option<&PortSettings>, changes: &Settings) -> Result<PortSettings, String> {
    let changes = changes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    before.cloned().unwrap_or_default().change(changes)
}

/// Options of a `--port` that are settings (`lasthop port set`), and the text without them. A list has an option for each of its
/// members, since commas separate options, or ':' between VLANs.
pub fn take_settings(text: &str) -> Result<(String, Settings), String> {
    let name = |word: &&str| SETTINGS.contains(&word.split_once('=').map_or(*word, |(name, _)| name));
    let (settings, rest): (Vec<&str>, Vec<&str>) = text.split(',').partition(name);
    let pair = |word: &str| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None if FLAGS.contains(&word) => Ok((word.to_owned(), "on".to_owned())),
        None => Err(format!("{word} needs a value; write {word}={}", value_of(word))),
    };
    let settings = settings.into_iter().map(pair).collect::<Result<Settings, String>>()?;
    changed(None, &settings)?;
    Ok((rest.join(","), settings))
}

/// What is written behind the name of a setting, as in the help of its option.
fn value_of(setting: &str) -> &'static str {
    match setting {
        "vlan" | "native" => "ID",
        "trunk" => "LIST, with ':' between its VLANs",
        "mac" => "MAC",
        "addr" => "IP",
        _ => "RATE",
    }
}

fn limit(rate: Option<Rate>) -> Limit {
    let Some(rate) = rate else { return Limit::default() };
    let (amount, burst_ns) = (rate.per_second(), rate.burst_ns());
    match rate.unit {
        Unit::Bits => Limit { bytes: amount, packets: 0, burst_ns },
        Unit::Packets => Limit { bytes: 0, packets: amount, burst_ns },
    }
}

impl Supervisor {
    pub(super) fn remember_settings(&mut self, name: &str, settings: PortSettings) {
        if settings.is_default() {
            self.settings.remove(name);
        } else {
            self.settings.insert(name.to_owned(), settings);
        }
    }

    /// Somebody tells a port something.
    pub(super) fn set_port(&mut self, name: &str, changes: &Settings) -> Result<PortConfig, String> {
        let config = self.guest_port(name)?;
        let before = self.settings.get(name).cloned();
        let settings = changed(before.as_ref(), changes)?;
        self.remember_settings(name, settings);
        if let Err(e) = self.save(None, None) {
            self.remember_settings(name, before.unwrap_or_default());
            return Err(e);
        }
        self.tell_port(config.id, name);
        Ok(config)
    }

    /// A port that is there is told something else.
    pub(super) fn tell_port(&mut self, port: PortId, name: &str) {
        let shown = self.settings.get(name).map_or_else(|| "nothing".to_owned(), ToString::to_string);
        info!("port {name}: told {shown}");
        self.tell_settings(port, name);
        self.tell_limits(port, name);
    }

    pub(super) fn guest_port(&self, name: &str) -> Result<PortConfig, String> {
        if let Some(port) = self.ports.values().find(|port| port.config.name == name) {
            return Ok(port.config.clone());
        }
        match self.uplinks.values().find(|uplink| uplink.spec.name == name && !uplink.is_leaving()) {
            Some(uplink) if uplink.spec.guest => Ok(uplink.config.clone()),
            Some(_) => Err(format!(
                "{name} is an uplink; `lasthop uplink set {name} --vlans LIST` says which VLANs it carries"
            )),
            None => Err(format!("there is no port {name}; `lasthop port list` shows those there are")),
        }
    }

    /// Tells the switch what the port may send, get and flood.
    pub(super) fn tell_limits(&mut self, port: PortId, name: &str) {
        let limits = self.settings.get(name).map(|set| [set.rate_from, set.rate_to, set.storm].map(limit));
        self.switch.send(SupervisorToSwitch::Limits(port, limits.unwrap_or_default()), None);
    }

    /// Tells a switch that is new.
    pub(super) fn tell_all_limits(&mut self) {
        let set = self.configs().into_iter().filter(|config| self.settings.contains_key(&config.name));
        for config in set.collect::<Vec<_>>() {
            self.tell_limits(config.id, &config.name);
        }
    }

    /// Tells control.
    pub(super) fn tell_settings(&mut self, port: PortId, name: &str) {
        let text = self.settings.get(name).map(ToString::to_string).unwrap_or_default();
        self.control.send(SupervisorToControl::Settings { port, text }, None);
    }

    /// Tells a control that is new of all ports that are told something.
    pub(super) fn tell_all_settings(&mut self) {
        let set = self.configs().into_iter().filter(|config| self.settings.contains_key(&config.name));
        for config in set.collect::<Vec<_>>() {
            self.tell_settings(config.id, &config.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::parse_port;
    use super::*;

    #[test]
    fn settings_are_among_the_options() {
        let settings = |text: &str| {
            let port = parse_port(text).unwrap();
            (changed(None, &port.settings).unwrap().to_string(), port.client, port.device.map(|d| d.device))
        };
        assert_eq!(settings("a=/x,client,vlan=10,isolated"), ("vlan=10 isolated=on".into(), true, None));
        assert_eq!(settings("a=device:veth1,trunk=10:20-30"), ("trunk=10:20-30".into(), false, Some("veth1".into())));
        let (shown, ..) = settings("a=/x,mac=52:54:00:00:00:01,addr=10.0.0.1,addr=fd00::1");
        assert_eq!(shown, "mac=52:54:00:00:00:01 addr=10.0.0.1,fd00::1");
    }
}
