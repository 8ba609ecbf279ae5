//! Settings of ports (`lasthop port set`): checked and kept here, carried out by control, rates by the switch.

use super::max_cpu::Way;
use super::settings_text::changed;
use super::supervisor::Supervisor;
use super::uplink::Uplink;
use lasthop_ipc::{PortLimits, RateLimit, SupervisorToSwitch};
use lasthop_management_ipc::{PortConfig, Settings, SupervisorToControl};
use lasthop_policy::{Batch, ENGINE, OF_UPLINKS, OF_UPLINKS_WORDS, PortEngine, PortSettings, Rate, Unit};
use lasthop_session_ipc::Bounds;
use lasthop_types::{MAX_QUEUE_PAIRS, PortId};
use std::collections::BTreeSet;
use tracing::info;

fn limit(rate: Option<Rate>) -> RateLimit {
    let Some(rate) = rate else { return RateLimit::default() };
    let (amount, burst_ns) = (rate.per_second(), rate.burst_ns());
    match rate.unit {
        Unit::Bits => RateLimit { bytes: amount, packets: 0, burst_ns },
        Unit::Packets => RateLimit { bytes: 0, packets: amount, burst_ns },
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

    /// `lasthop port set`: checks, saves and sends a port's settings.
    pub(super) fn set_port(&mut self, name: &str, changes: &Settings) -> Result<PortConfig, String> {
        let config = match self.uplink_port(name) {
            // Of an uplink no more can be said here.
            Some(config) if changes.iter().all(|(name, _)| OF_UPLINKS.contains(&name.as_str())) => config,
            _ => self.guest_port(name)?,
        };
        let before = self.settings.get(name).cloned();
        let settings = changed(before.as_ref(), changes)?;
        self.check_static_addresses(name, &settings)?;
        self.check_carried(name, &settings)?;
        self.check_minimums(name, &settings)?;
        if before.as_ref().and_then(|before| before.queue_of.as_ref()) != settings.queue_of.as_ref() {
            self.check_queue_of(name, &settings)?;
        }
        if settings.engine != before.as_ref().and_then(|set| set.engine) {
            return Err(format!(
                "{ENGINE}: another switch has to take over; `lasthop engine move` does that, and EngineMove of the API"
            ));
        }
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
        // It shows what is gathered.
        self.tell_control_ports();
    }

    pub(super) fn uplink_port(&self, name: &str) -> Option<PortConfig> {
        let mut uplinks = self.uplinks.values();
        let uplink = uplinks.find(|uplink| uplink.spec.name == name && !uplink.spec.guest && !uplink.is_leaving())?;
        Some(uplink.config.clone())
    }

    /// An address is static at one port only.
    pub(super) fn check_static_addresses(&self, name: &str, settings: &PortSettings) -> Result<(), String> {
        let wanted: BTreeSet<_> = settings.static_addresses().collect();
        let there = self.each_config().filter(|config| config.name != name);
        for config in there {
            let others = self.settings.get(&config.name).into_iter().flat_map(PortSettings::static_addresses);
            if let Some((vlan, mac)) = others.into_iter().find(|address| wanted.contains(address)) {
                let vlan = if vlan == 0 { String::new() } else { format!(" in VLAN {vlan}") };
                return Err(format!(
                    "{mac} is static at {}{vlan} already; `lasthop mac del {mac}` removes it there",
                    config.name
                ));
            }
        }
        Ok(())
    }

    /// A static address of an uplink is in a VLAN that it carries.
    fn check_carried(&self, name: &str, settings: &PortSettings) -> Result<(), String> {
        let uplink = self.uplinks.values().find(|uplink| uplink.spec.name == name && !uplink.is_leaving());
        let Some(vlans) = uplink.and_then(|uplink| uplink.spec.vlans.as_ref()) else { return Ok(()) };
        match settings.static_addresses().find(|(vlan, _)| !vlans.contains(*vlan)) {
            None => Ok(()),
            Some((0, mac)) => {
                Err(format!("{mac}: {name} carries no frames without a tag; say with --vlan where it lives"))
            }
            Some((vlan, mac)) => Err(format!(
                "{mac}: {name} does not carry VLAN {vlan}; `lasthop uplink set {name} --vlans {vlans}:{vlan}` has it do so"
            )),
        }
    }

    pub(super) fn guest_port(&self, name: &str) -> Result<PortConfig, String> {
        if let Some(port) = self.ports.values().find(|port| port.config.name == name) {
            return Ok(port.config.clone());
        }
        match self.uplinks.values().find(|uplink| uplink.spec.name == name && !uplink.is_leaving()) {
            Some(uplink) if uplink.spec.guest => Ok(uplink.config.clone()),
            Some(_) => Err(format!(
                "{name} is an uplink, which has {OF_UPLINKS_WORDS} alone; `lasthop uplink set {name} --vlans LIST` says which VLANs it carries"
            )),
            None => Err(format!("there is no port {name}; `lasthop port list` shows those there are")),
        }
    }

    /// Sends the port's rates and its weight to the switch, and its guest's bounds to its session process.
    pub(super) fn tell_limits(&mut self, port: PortId, name: &str) {
        self.follow_cpu_bounds(port, name);
        let settings = self.settings.get(name);
        let bounds = settings.map(|set| Bounds { grants: set.grants, max_ring: set.max_ring });
        self.sessions.set_bounds(port, bounds.unwrap_or_default());
        let limits = settings.map(|set| [set.rate_from, set.rate_to, set.storm].map(limit));
        let [from, to, storm] = limits.unwrap_or_default();
        let [others_from, others_to] = self.limited.get(name).copied().unwrap_or_default();
        let from = self.cpu_bounds.hold(Way::From, port, others_from.unwrap_or(from));
        let to = self.cpu_bounds.hold(Way::To, port, others_to.unwrap_or(to));
        let rates = [from, to, storm];
        let weight = self.weights.get(&port.0).copied().unwrap_or_else(|| self.own_weight(name));
        let batches = self.batches(port, name).map(|batch| (batch.us, batch.packets));
        let poll_cpu = PortEngine::told(settings.and_then(|set| set.engine));
        let kept_for = self.uplinks.get(&port.0).map_or([0; MAX_QUEUE_PAIRS], Uplink::kept_for);
        let limits = PortLimits { rates, weight, poll_cpu, batches, kept_for };
        self.tell_switch(SupervisorToSwitch::Limits(port, limits));
    }

    /// What is gathered for this port: transmit, receive.
    pub(super) fn batches(&self, port: PortId, name: &str) -> [Batch; 2] {
        let of_port = self.ports.get(&port.0).and_then(|port| port.tx_batch);
        let set = self.settings.get(name);
        let transmit = set.and_then(|set| set.tx_batch).or(of_port).unwrap_or(self.tx_batch);
        [transmit, set.and_then(|set| set.rx_batch).unwrap_or(self.rx_batch)]
    }

    /// Open vSwitch limits a port, or does not any more.
    pub(super) fn limit_port(&mut self, name: String, limits: [Option<RateLimit>; 2]) {
        let Some(config) = self.each_config().find(|config| config.name == name).cloned() else { return };
        let text = |limit: Option<RateLimit>| match limit {
            Some(RateLimit { bytes: 0, packets, .. }) => format!("{packets} packets a second"),
            Some(RateLimit { bytes, packets: 0, .. }) => format!("{} bits a second", bytes * 8),
            Some(RateLimit { bytes, packets, .. }) => format!("{} bits and {packets} packets a second", bytes * 8),
            None => "no limit".to_owned(),
        };
        let [from, to] = limits.map(text);
        info!("port {name}: Open vSwitch sets {from} for what comes from there, and {to} for what goes there");
        if limits == [None; 2] {
            self.limited.remove(&name);
        } else {
            self.limited.insert(name.clone(), limits);
        }
        self.tell_limits(config.id, &name);
    }

    /// Sends the port's settings to control.
    pub(super) fn tell_settings(&mut self, port: PortId, name: &str) {
        let text = self.settings.get(name).map(ToString::to_string).unwrap_or_default();
        self.control.send(SupervisorToControl::Settings { port, text }, None);
    }

    /// Sends the settings of all ports that have any to a new control.
    pub(super) fn tell_all_settings(&mut self) {
        let set = self.each_config().filter(|config| self.settings.contains_key(&config.name));
        for config in set.cloned().collect::<Vec<_>>() {
            self.tell_settings(config.id, &config.name);
        }
    }
}
