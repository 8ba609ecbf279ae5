//! What a port is told to do, beside access lists: its VLANs, whose addresses it may use, whom it talks to.

mod engine;
mod queue_of;
mod values;

use crate::acl::Prefix;
use crate::batch::Batch;
use crate::membership::Membership;
use crate::rate::{Rate, Unit};
use crate::statics::{MAX_STATIC, StaticMac};
use crate::vlans::{ParseVlansError, Vlans, vlan_id};
pub use engine::{PortEngine, engine_name};
use lasthop_text::MacAddr;
use lasthop_text::parse_mac;
pub use queue_of::QueueOf;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use values::{connections, grants, max_cpu, max_ring, nat_ports, priority, weight};

/// Most Ethernet addresses, and most IP addresses, of one port: each packet that meets no flow is compared with all.
pub const MAX_ADDRESSES: usize = 64;

/// Settings of a port. The default is a port of a learning switch that needs no configuration. As text, in files too, names and values as
/// people write them: `vlan=10 isolated=on`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortSettings {
    /// Access port: of this VLAN alone, whose frames have no tag there.
    pub vlan: Option<u16>,
    /// Trunk: of these VLANs, whose frames have a tag there.
    pub trunk: Option<Vlans>,
    /// And of this one, whose frames have none; without `trunk`, of all others too.
    pub native: Option<u16>,
    /// It exchanges frames with uplinks only.
    pub isolated: bool,
    /// The Ethernet addresses that it may send from; any if there are none.
    pub macs: Vec<MacAddr>,
    /// The IP addresses that it may send from, and say in ARP and neighbour discovery to have; any if there are none.
    pub addrs: Vec<Prefix>,
    /// It may not answer as a DHCP server.
    pub no_dhcp_server: bool,
    /// It may not send router advertisements.
    pub no_ra: bool,
    /// What its guest may send.
    pub rate_from: Option<Rate>,
    /// What its guest may get.
    pub rate_to: Option<Rate>,
    /// What it gets of each uplink at least, while it has packets for that: bits a second, without a burst.
    pub min_rate: Option<Rate>,
    /// What its guest may send that is flooded: broadcast, multicast and unknown destinations.
    pub storm: Option<Rate>,
    /// How many connections it may open, of those that stateful access lists know.
    pub connections: Option<u32>,
    /// How many ports of a translated address it may hold towards one server.
    pub nat_ports: Option<u32>,
    /// How many ranges of I/O addresses its guest may have shared at a time, as far as they are remembered.
    pub grants: Option<u32>,
    /// How many entries a ring of its guest may have that is set up from now on.
    pub max_ring: Option<u16>,
    /// Its share of a thread that looks after several ports' rings, and of a receiver that is short of buffers;
    /// [`DEFAULT_WEIGHT`](lasthop_types::DEFAULT_WEIGHT) if nothing is said.
    pub weight: Option<u16>,
    /// Above those ports with a lower one, where shares go by weight; 0 if nothing is said.
    pub priority: Option<u8>,
    /// Hundredths of a processor that its packets may take; any number if nothing is said.
    pub max_cpu: Option<u16>,
    /// Hundredths of a processor that it may take to copy packets to its guest; any number if nothing is said.
    pub max_cpu_to: Option<u16>,
    /// The engine that looks after its rings. Any that polls if nothing is said, or there is none like that; and its own thread if none polls.
    pub engine: Option<PortEngine>,
    /// What is gathered before its guest kicks while it sends a stream; as all ports if nothing is said, which this crate does not know.
    pub tx_batch: Option<Batch>,
    /// What is gathered before its guest is interrupted while it runs.
    pub rx_batch: Option<Batch>,
    /// It neither sends nor receives, as if its cable was pulled.
    pub link_down: bool,
    /// Of multicasts it gets those that its guest wants, as far as that is known.
    pub snooping: bool,
    /// Addresses that live there, whether or not they say anything, and nowhere else. Of uplinks too.
    pub static_macs: Vec<StaticMac>,
    /// The uplink at which it has a queue of its own, whatever the load.
    pub queue_of: Option<QueueOf>,
}

/// Names of settings, as [`PortSettings::change`] and the option `--port` know them.
pub const SETTINGS: &[&str] = &[
    "vlan",
    "trunk",
    "native",
    "isolated",
    "mac",
    "addr",
    "no-dhcp-server",
    "no-ra",
    "rate-from",
    RATE_TO,
    MIN_RATE,
    "storm",
    "connections",
    "nat-ports",
    "grants",
    "max-ring",
    "weight",
    "priority",
    MAX_CPU,
    MAX_CPU_TO,
    ENGINE,
    "tx-batch",
    "rx-batch",
    "link",
    "snooping",
    STATIC_MAC,
    QUEUE_OF,
];

/// Those of them that the switch carries out by itself: they hold whoever decides about packets.
pub const OF_SWITCH: &[&str] =
    &["rate-from", RATE_TO, MIN_RATE, "weight", "priority", MAX_CPU, MAX_CPU_TO, ENGINE, "tx-batch", "rx-batch"];
/// The same in words.
pub const OF_SWITCH_WORDS: &str = "rates, weight, priority, processor time, engine and batching";

/// What a port's guest may get; of an uplink, what it takes.
pub const RATE_TO: &str = "rate-to";

/// What a port gets of each uplink at least.
pub const MIN_RATE: &str = "min-rate";

/// How much of a processor a port's packets may take.
pub const MAX_CPU: &str = "max-cpu";

/// How much of a processor it may take to copy packets to a port's guest.
pub const MAX_CPU_TO: &str = "max-cpu-to";

/// Which engine looks after a port's rings.
pub const ENGINE: &str = "engine";

/// Addresses that live at a port, or an uplink, for good.
pub const STATIC_MAC: &str = "static-mac";

/// The settings that uplinks have, too.
pub const OF_UPLINKS: &[&str] = &[RATE_TO, ENGINE, STATIC_MAC];
/// The same in words.
pub const OF_UPLINKS_WORDS: &str = "rate-to, engine and static-mac";

/// The one that needs an uplink with room for it.
pub const QUEUE_OF: &str = "queue-of";

/// Those of them that are on or off.
pub const FLAGS: &[&str] = &["isolated", "no-dhcp-server", "no-ra", "snooping"];

impl PortSettings {
    /// With these settings, each a name and a value as people write it, changed; what is not named stays. `none`, or `off`, takes a setting back.
    /// The error says which is wrong and what to write.
    pub fn change<'a>(&self, changes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, String> {
        let (mut new, mut named) = (self.clone(), Vec::new());
        for (name, value) in changes {
            let first = !named.contains(&name);
            if !first && !matches!(name, "mac" | "addr" | STATIC_MAC) {
                return Err(format!("{name} is there twice"));
            }
            new.set(name, value, first).map_err(|e| {
                // `lasthop mac add` says it with a sign, which people have not written.
                let value = if name == STATIC_MAC { value.trim_start_matches(['+', '-']) } else { value };
                format!("{name}={value}: {e}")
            })?;
            named.push(name);
        }
        let is_named = |name: &str| named.contains(&name);
        // An access port becomes a trunk, or the other way round, by naming what it is to be. What is taken back makes it neither: a port
        // without a VLAN of its own carries all of them.
        if is_named("vlan") && new.vlan.is_some() {
            new.trunk = new.trunk.filter(|_| is_named("trunk"));
            new.native = new.native.filter(|_| is_named("native"));
        } else if is_named("trunk") && new.trunk.is_some() || is_named("native") && new.native.is_some() {
            new.vlan = None;
        }
        new.check().map(|()| new)
    }

    fn set(&mut self, name: &str, value: &str, first: bool) -> Result<(), String> {
        match name {
            "vlan" => self.vlan = one_vlan(value)?,
            "native" => self.native = one_vlan(value)?,
            "trunk" => self.trunk = trunk(value)?,
            "isolated" => self.isolated = on(value)?,
            "no-dhcp-server" => self.no_dhcp_server = on(value)?,
            "no-ra" => self.no_ra = on(value)?,
            "rate-from" => self.rate_from = rate(value)?,
            RATE_TO => self.rate_to = rate(value)?,
            MIN_RATE => self.min_rate = min_rate(value)?,
            "storm" => self.storm = rate(value)?,
            "connections" => self.connections = if is_none(value) { None } else { Some(connections(value)?) },
            "nat-ports" => self.nat_ports = if is_none(value) { None } else { Some(nat_ports(value)?) },
            "grants" => self.grants = if is_none(value) { None } else { Some(grants(value)?) },
            "max-ring" => self.max_ring = if is_none(value) { None } else { Some(max_ring(value)?) },
            "weight" => self.weight = if is_none(value) { None } else { Some(weight(value)?) },
            "priority" => self.priority = if is_none(value) { None } else { Some(priority(value)?) },
            MAX_CPU => self.max_cpu = if is_none(value) { None } else { max_cpu(value)? },
            MAX_CPU_TO => self.max_cpu_to = if is_none(value) { None } else { max_cpu(value)? },
            ENGINE => self.engine = if is_none(value) { None } else { Some(value.parse()?) },
            "tx-batch" => self.tx_batch = batch(value)?,
            "rx-batch" => self.rx_batch = batch(value)?,
            "snooping" => self.snooping = on(value)?,
            "link" => self.link_down = link(value)?,
            STATIC_MAC => self.set_static(value, first)?,
            QUEUE_OF => self.queue_of = if is_none(value) { None } else { Some(value.parse()?) },
            "mac" => list(&mut self.macs, value, first, own_address)?,
            "addr" => list(&mut self.addrs, value, first, address)?,
            _ => return Err(format!("there is no such setting; there are {}", SETTINGS.join(", "))),
        }
        Ok(())
    }

    /// Whether they agree with each other.
    fn check(&self) -> Result<(), String> {
        if self.vlan.is_some() && (self.trunk.is_some() || self.native.is_some()) {
            return Err(
                "a port is an access port (vlan) or a trunk (trunk, native), not both; leave one of them out".into()
            );
        }
        if self.trunk.as_ref().is_some_and(|vlans| vlans.contains(0)) {
            return Err("a trunk has no `untagged`; native=VLAN says what frames without a tag belong to".into());
        }
        if self.macs.len() > MAX_ADDRESSES || self.addrs.len() > MAX_ADDRESSES {
            return Err(format!("more than {MAX_ADDRESSES} addresses; use prefixes, or access lists"));
        }
        if !self.addrs.is_empty() && self.macs.is_empty() {
            return Err(
                "addresses (addr) are bound to those that send them; say with mac which Ethernet addresses may".into(),
            );
        }
        if let (Some(least), Some(most)) = (self.min_rate, self.rate_from)
            && most.unit == Unit::Bits
            && least.rate > most.rate
        {
            return Err(format!("it is to get {least} of an uplink (min-rate), and may send {most} (rate-from)"));
        }
        self.check_static()
    }

    /// `+` in front adds one to those there are, `-` takes one out.
    fn set_static(&mut self, value: &str, first: bool) -> Result<(), String> {
        if let Some(text) = value.strip_prefix('+') {
            let new = text.parse()?;
            if self.static_macs.contains(&new) {
                return Err("it is static at this port already".to_owned());
            }
            self.static_macs.push(new);
        } else if let Some(text) = value.strip_prefix('-') {
            let gone: StaticMac = text.parse()?;
            let before = self.static_macs.len();
            self.static_macs.retain(|other| *other != gone);
            if self.static_macs.len() == before {
                return Err(format!("{gone} is not static there; `lasthop mac list` shows where it lives"));
            }
        } else {
            list(&mut self.static_macs, value, first, |text| text.parse().map_err(|e| format!("{e}, {OR_NONE}")))?;
        }
        self.static_macs.sort_unstable();
        Ok(())
    }

    /// Static addresses, each in the VLAN that it belongs to.
    pub fn static_addresses(&self) -> impl Iterator<Item = (u16, MacAddr)> + '_ {
        let untagged = self.vlan.or(self.native).unwrap_or(0);
        self.static_macs.iter().map(move |entry| (entry.vlan.unwrap_or(untagged), entry.mac))
    }

    fn check_static(&self) -> Result<(), String> {
        if self.static_macs.len() > MAX_STATIC {
            return Err(format!("more than {MAX_STATIC} static addresses; let the others be learned"));
        }
        let member = self.membership();
        let mut stray =
            self.static_macs.iter().zip(self.static_addresses()).filter(|(_, (vlan, _))| !member.is_member(*vlan));
        if let Some((entry, (vlan, _))) = stray.next() {
            let (what, add) = match vlan {
                0 => ("frames without a tag".to_owned(), "add it with the VLAN of its station"),
                _ => (format!("VLAN {vlan}"), "add it for a VLAN of the port"),
            };
            let vlans = self.vlans();
            return Err(format!(
                "{STATIC_MAC}={entry}: the port does not carry {what} ({vlans}); {add}, or take it out first"
            ));
        }
        let mut addresses: Vec<_> = self.static_addresses().collect();
        addresses.sort_unstable();
        match addresses.array_windows().find(|[one, other]| one == other) {
            Some([(vlan, mac), _]) => Err(format!("{STATIC_MAC}: {mac} is there twice in VLAN {vlan}; once is enough")),
            None => Ok(()),
        }
    }

    /// Nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Names and values of what is set, in the order of [`SETTINGS`].
    pub fn values(&self) -> Vec<(&'static str, String)> {
        let text = |n: &dyn ToString| n.to_string();
        let flag = |on: bool| on.then(|| "on".to_owned());
        let joined = |texts: Vec<String>| (!texts.is_empty()).then(|| texts.join(","));
        let values = [
            self.vlan.map(|n| text(&n)),
            self.trunk.as_ref().map(|vlans| text(vlans)),
            self.native.map(|n| text(&n)),
            flag(self.isolated),
            joined(self.macs.iter().map(|mac| text(mac)).collect()),
            joined(self.addrs.iter().map(|addr| text(addr)).collect()),
            flag(self.no_dhcp_server),
            flag(self.no_ra),
            self.rate_from.map(|rate| text(&rate)),
            self.rate_to.map(|rate| text(&rate)),
            self.min_rate.map(|rate| text(&rate)),
            self.storm.map(|rate| text(&rate)),
            self.connections.map(|n| text(&n)),
            self.nat_ports.map(|n| text(&n)),
            self.grants.map(|n| text(&n)),
            self.max_ring.map(|n| text(&n)),
            self.weight.map(|n| text(&n)),
            self.priority.map(|n| text(&n)),
            self.max_cpu.map(|n| text(&n)),
            self.max_cpu_to.map(|n| text(&n)),
            self.engine.map(|engine| text(&engine)),
            self.tx_batch.map(|batch| text(&batch)),
            self.rx_batch.map(|batch| text(&batch)),
            self.link_down.then(|| "down".to_owned()),
            flag(self.snooping),
            joined(self.static_macs.iter().map(|entry| text(entry)).collect()),
            self.queue_of.as_ref().map(ToString::to_string),
        ];
        SETTINGS.iter().zip(values).filter_map(|(name, value)| value.map(|value| (*name, value))).collect()
    }

    /// What is set of VLANs, as text.
    pub(crate) fn vlans(&self) -> String {
        let of_vlans = |(name, value): (&str, String)| {
            ["vlan", "trunk", "native"].contains(&name).then(|| format!("{name}={value}"))
        };
        self.values().into_iter().filter_map(of_vlans).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn membership(&self) -> Membership {
        match (self.vlan, &self.trunk, self.native) {
            (Some(vlan), ..) => Membership::access(vlan),
            (None, vlans, native) => Membership::trunk(vlans.clone(), native),
        }
    }
}

/// As `name=value`, in the order of [`SETTINGS`]; nothing for the default.
impl fmt::Display for PortSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.values().into_iter().map(|(name, value)| format!("{name}={value}"));
        f.write_str(&set.collect::<Vec<_>>().join(" "))
    }
}

impl TryFrom<String> for PortSettings {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let words = text.split_ascii_whitespace().map(|word| word.split_once('=').unwrap_or((word, "")));
        Self::default().change(words)
    }
}

impl From<PortSettings> for String {
    fn from(settings: PortSettings) -> Self {
        settings.to_string()
    }
}

/// It takes a setting back.
fn is_none(value: &str) -> bool {
    matches!(value, "none" | "off")
}

/// How errors end.
const OR_NONE: &str = "or none to take it back";

fn one_vlan(value: &str) -> Result<Option<u16>, String> {
    if is_none(value) {
        return Ok(None);
    }
    let instead = format!("write one, 1 to 4094 (several: trunk), {OR_NONE}");
    vlan_id(value).map(Some).map_err(|e| e.but(&instead))
}

fn trunk(value: &str) -> Result<Option<Vlans>, String> {
    if is_none(value) {
        return Ok(None);
    }
    let instead = match value {
        "0" => "native=VLAN says what frames without a tag belong to".to_owned(),
        _ => format!("write ids and ranges such as 10,20-30, {OR_NONE}"),
    };
    value.replace(',', ":").parse().map(Some).map_err(|e: ParseVlansError| e.but(&instead))
}

fn on(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        _ if is_none(value) => Ok(false),
        _ => Err("write on or off".into()),
    }
}

fn link(value: &str) -> Result<bool, String> {
    match value {
        "down" => Ok(true),
        "up" | "none" => Ok(false),
        // Taking the setting back plugs the cable in, and off reads as the opposite.
        _ => Err("write up or down, or none to take it back, which is up".into()),
    }
}

fn rate(value: &str) -> Result<Option<Rate>, String> {
    if is_none(value) { Ok(None) } else { value.parse().map(Some).map_err(|e| format!("{e}, {OR_NONE}")) }
}

fn min_rate(value: &str) -> Result<Option<Rate>, String> {
    if is_none(value) { Ok(None) } else { Rate::of_bits_alone(value).map(Some).map_err(|e| format!("{e}, {OR_NONE}")) }
}

/// `off` is a value here.
fn batch(value: &str) -> Result<Option<Batch>, String> {
    if value == "none" { Ok(None) } else { value.parse().map(Some).map_err(|e| format!("{e}, {OR_NONE}")) }
}

fn own_address(text: &str) -> Result<MacAddr, String> {
    let wrong = |_| format!("write an Ethernet address such as 52:54:00:12:34:56, {OR_NONE}");
    let mac = parse_mac(text).map_err(wrong)?;
    if mac.is_unicast_source() { Ok(mac) } else { Err(format!("{mac} is no station's address; write that of a card")) }
}

/// One address, or all that begin alike. An address within its network, as `ip addr` shows it, may be meant either way: it is refused.
fn address(text: &str) -> Result<Prefix, String> {
    let (addr, length) = text.split_once('/').map_or((text, None), |(addr, length)| (addr, Some(length)));
    if addr.parse::<IpAddr>().is_err() {
        return Err(format!(
            "{text:?} is no IP address; write one such as 10.0.0.1 or fd00::1, a prefix such as 10.0.0.0/8, {OR_NONE}"
        ));
    }
    let prefix = crate::acl::prefix(text).map_err(|e| format!("{}: write {e}", length.unwrap_or_default()))?;
    crate::acl::host_bits(text, &prefix).map_or(Ok(prefix), Err)
}

/// Values with commas between them. The first in a command replaces what was set before.
fn list<T: PartialEq>(
    to: &mut Vec<T>,
    value: &str,
    first: bool,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<(), String> {
    if first {
        to.clear();
    }
    for text in value.split(',').filter(|text| !is_none(text)) {
        let new = parse(text)?;
        if !to.contains(&new) {
            to.push(new);
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "settings/tests.rs"]
mod tests;
