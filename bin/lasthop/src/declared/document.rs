//! The form of the declarative file.

use super::{Declared, UplinkSettings, engines, lists, mirrors, sets};
use crate::run::{FileOwner, PortArg, SavedUplink, check_uplink, meant_device};
use lasthop_management_ipc::Settings;
use lasthop_policy::acl::Scope;
use lasthop_policy::{OF_UPLINKS, PortSettings, SETTINGS, check_new_name};
use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Tables that a file may have.
const TABLES: &str = "[port.NAME], [uplink.NAME], [mirror.NAME], [set.NAME], [engines], [guests] and [uplinks]";
/// What a port's table may have beside settings.
const OF_PORTS: &[&str] = &["socket", "device", "client", "owner", "driver", "queues", "nice", "spare", "acl", "rules"];
const OF_UPLINK_TABLES: &[&str] = &["device", "driver", "queues", "nice", "gro", "spare", "vlans"];

/// Reads the text of a file in the directory `dir`.
pub(super) fn read(text: &str, dir: &Path) -> Result<Declared, String> {
    let document: Table = text.parse().map_err(|e: toml::de::Error| located(text, &e))?;
    let mut declared = Declared::default();
    for (name, value) in document {
        match name.as_str() {
            "port" => {
                for (name, table) in tables(value, "port")? {
                    let at = format!("[port.{name}]");
                    let of = Fields::new(table, at, OF_PORTS, SETTINGS)?;
                    port(name, of, dir, &mut declared)?;
                }
            }
            "uplink" => {
                for (name, table) in tables(value, "uplink")? {
                    let mut of = Fields::new(table, format!("[uplink.{name}]"), OF_UPLINK_TABLES, OF_UPLINKS)?;
                    declared.uplink_settings.push(uplink_settings(name.clone(), &mut of)?);
                    declared.uplinks.push(uplink(name, of)?);
                }
            }
            "mirror" => {
                for (name, table) in tables(value, "mirror")? {
                    let of = Fields::new(table, format!("[mirror.{name}]"), mirrors::OF_MIRRORS, &[])?;
                    let mirror = mirrors::mirror(name, of, &declared.mirrors)?;
                    declared.mirrors.push(mirror);
                }
            }
            "set" => {
                for (name, table) in tables(value, "set")? {
                    let of = Fields::new(table, format!("[set.{name}]"), sets::OF_SETS, &[])?;
                    declared.sets.push(sets::set(name, of)?);
                }
            }
            "engines" => {
                let Value::Table(table) = value else { return Err("engines is no table; write [engines]".into()) };
                declared.engines = engines::engines(Fields::new(table, "[engines]".into(), engines::OF_ENGINES, &[])?)?;
            }
            "guests" | "uplinks" => {
                let scope = if name == "guests" { Scope::Guests } else { Scope::Uplinks };
                let Value::Table(table) = value else { return Err(format!("{name} is no table; write [{name}]")) };
                let mut of = Fields::new(table, format!("[{name}]"), &["acl", "rules"], &[])?;
                declared.lists.extend(lists::of(scope, &mut of, dir)?);
            }
            _ => return Err(format!("there is no table [{name}]; there are {TABLES}")),
        }
    }
    check_apart(&declared)?;
    declared.check_macs()?;
    declared.check_minimums()?;
    declared.check_engines()?;
    Ok(declared)
}

/// What the parser says, with the line first, as in other files of lasthop's, and what stands there, of which the parser says little.
fn located(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map_or(0, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count());
    let there = text.lines().nth(before).unwrap_or_default().trim();
    format!("line {}: {there:?}: {}", before + 1, error.message().trim().replace('\n', ", "))
}

/// Names and sockets that are there twice.
fn check_apart(declared: &Declared) -> Result<(), String> {
    let (mut names, mut paths) = (HashMap::new(), HashMap::new());
    let ports = declared.ports.iter().map(|port| (&port.name, "port"));
    for (name, kind) in ports.chain(declared.uplinks.iter().map(|uplink| (&uplink.name, "uplink"))) {
        if names.insert(name, kind).is_some() {
            return Err(format!("{name} is a port and an uplink; choose another name for one of them"));
        }
    }
    for port in declared.ports.iter().filter(|port| port.device.is_none()) {
        if let Some(other) = paths.insert(&port.path, &port.name) {
            let path = port.path.display();
            return Err(format!("{path} is the socket of {other} and of {}; a port has one of its own", port.name));
        }
    }
    Ok(())
}

fn tables(value: Value, kind: &str) -> Result<Vec<(String, Table)>, String> {
    let Value::Table(all) = value else { return Err(format!("{kind} is no table; write [{kind}.NAME]")) };
    all.into_iter()
        .map(|(name, value)| match value {
            Value::Table(table) => Ok((name, table)),
            _ => Err(format!("{kind}.{name} is no table; write [{kind}.{name}]")),
        })
        .collect()
}

/// What stands in one table.
pub(super) struct Fields {
    table: Table,
    /// As it stands in the file.
    at: String,
}

impl Fields {
    fn new(table: Table, at: String, known: &[&str], settings: &[&str]) -> Result<Self, String> {
        if let Some(name) =
            table.keys().find(|name| !known.contains(&name.as_str()) && !settings.contains(&name.as_str()))
        {
            let all: Vec<_> = known.iter().chain(settings).copied().collect();
            return Err(format!("{at}: there is no {name}; there are {}", all.join(", ")));
        }
        Ok(Self { table, at })
    }

    /// Which table it is, as it stands in the file.
    pub(super) fn at(&self) -> &str {
        &self.at
    }

    /// An error about one of its fields.
    pub(super) fn wrong(&self, name: &str, what: impl Display) -> String {
        format!("{} {name}: {what}", self.at)
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.table.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, format!("{other} is no text; write {name} = \"…\""))),
        }
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, String> {
        match self.table.remove(name) {
            None => Ok(None),
            Some(Value::Boolean(on)) => Ok(Some(on)),
            Some(other) => Err(self.wrong(name, format!("{other} is neither true nor false"))),
        }
    }

    fn number<T: TryFrom<i64>>(&mut self, name: &str) -> Result<Option<T>, String> {
        match self.table.remove(name) {
            None => Ok(None),
            Some(Value::Integer(n)) if let Ok(n) = T::try_from(n) => Ok(Some(n)),
            Some(other) => Err(self.wrong(name, format!("{other} is no number that fits here"))),
        }
    }

    /// A value as it would be written on the command line: a list's members between `separator`, flags as on and off.
    pub(super) fn words(&mut self, name: &str, separator: &str) -> Result<Option<String>, String> {
        let Some(value) = self.table.remove(name) else { return Ok(None) };
        let word = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Integer(n) => Some(n.to_string()),
            Value::Boolean(on) => Some(if *on { "on" } else { "off" }.to_owned()),
            _ => None,
        };
        let words = match &value {
            Value::Array(values) => {
                values.iter().map(word).collect::<Option<Vec<_>>>().map(|words| words.join(separator))
            }
            value => word(value),
        };
        let wrong = || self.wrong(name, format!("{value} is neither text, number, true or false, nor a list of these"));
        words.ok_or_else(wrong).map(Some)
    }
}

fn port(name: String, mut of: Fields, dir: &Path, declared: &mut Declared) -> Result<(), String> {
    check_new_name(&name).map_err(|e| format!("{}: {e}", of.at))?;
    declared.lists.extend(lists::of(Scope::Port(name.clone()), &mut of, dir)?);
    let settings = settings(&mut of)?;
    let (socket, device) = (of.text("socket")?, of.text("device")?);
    let mut port = PortArg {
        name: name.clone(),
        path: PathBuf::new(),
        client: false,
        owner: None,
        device: None,
        settings,
        of_device: None,
    };
    match (socket, device) {
        (Some(path), None) => {
            refuse(&of, &["driver", "queues", "nice", "spare"], "goes with device, and there is none")?;
            if !Path::new(&path).is_absolute() {
                let device = meant_device(&path).map_or(String::new(), |device| format!(", or device = \"{device}\""));
                return Err(of.wrong("socket", format!("{path:?} is not an absolute path; write it from / on{device}")));
            }
            port.path = path.into();
            port.client = of.flag("client")?.unwrap_or(false);
            port.owner = parsed::<FileOwner>(&mut of, "owner")?;
        }
        (None, Some(device)) => {
            refuse(&of, &["client", "owner"], "goes with socket, and there is none")?;
            port.device = Some(SavedUplink { guest: true, ..interface(name, device, &mut of)? });
        }
        (None, None) => return Err(format!("{}: neither socket nor device; write socket = \"/run/…\"", of.at)),
        (Some(_), Some(_)) => return Err(format!("{}: socket and device; a port is one of both", of.at)),
    }
    declared.ports.push(port);
    Ok(())
}

fn refuse(of: &Fields, names: &[&str], why: &str) -> Result<(), String> {
    names.iter().find(|name| of.table.contains_key(**name)).map_or(Ok(()), |name| Err(of.wrong(name, why)))
}

fn parsed<T: std::str::FromStr<Err: Display>>(of: &mut Fields, name: &str) -> Result<Option<T>, String> {
    let text = of.words(name, ",")?;
    text.map(|text| text.parse().map_err(|e| of.wrong(name, e))).transpose()
}

/// Those of these settings that the file names, as it says them.
fn given_of(names: &[&str], of: &mut Fields) -> Result<Settings, String> {
    let mut given = Vec::new();
    for name in names {
        given.extend(of.words(name, ",")?.map(|value| ((*name).to_owned(), value)));
    }
    Ok(given)
}

fn pairs_of(settings: &Settings) -> impl Iterator<Item = (&str, &str)> {
    settings.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

/// All settings: those that the file does not name are taken back.
fn settings(of: &mut Fields) -> Result<Settings, String> {
    let given = given_of(SETTINGS, of)?;
    PortSettings::default().change(pairs_of(&given)).map_err(|e| format!("{} {e}", of.at))?;
    let others = SETTINGS.iter().filter(|name| !given.iter().any(|(given, _)| given == *name));
    let taken_back: Vec<_> = others.map(|name| ((*name).to_owned(), "none".to_owned())).collect();
    Ok(given.into_iter().chain(taken_back).collect())
}

fn interface(name: String, device: String, of: &mut Fields) -> Result<SavedUplink, String> {
    let vlans = of.words("vlans", ":")?;
    let vlans = vlans.map(|list| list.parse().map_err(|e| of.wrong("vlans", e))).transpose()?;
    let uplink = SavedUplink {
        name,
        device,
        driver: of.text("driver")?,
        queues: of.number("queues")?.unwrap_or(1),
        nice: of.number("nice")?.unwrap_or(0),
        no_gro: !of.flag("gro")?.unwrap_or(true),
        spare: of.flag("spare")?.unwrap_or(false),
        vlans,
        guest: false,
        for_ovs: false,
    };
    check_uplink(&uplink).map_err(|e| format!("{}: {e}", of.at))?;
    Ok(uplink)
}

fn uplink_settings(uplink: String, of: &mut Fields) -> Result<UplinkSettings, String> {
    let given = given_of(OF_UPLINKS, of)?;
    let set = PortSettings::default().change(pairs_of(&given)).map_err(|e| format!("{} {e}", of.at))?.values();
    let value = |name: &str| set.iter().find(|(n, _)| *n == name).map_or_else(|| "none".to_owned(), |(_, v)| v.clone());
    let settings = OF_UPLINKS.iter().map(|name| ((*name).to_owned(), value(name))).collect();
    Ok(UplinkSettings { uplink, settings })
}

fn uplink(name: String, mut of: Fields) -> Result<SavedUplink, String> {
    check_new_name(&name).map_err(|e| format!("{}: {e}", of.at))?;
    let device = of.text("device")?.ok_or_else(|| format!("{}: no device; write device = \"eth1\"", of.at))?;
    interface(name, device, &mut of)
}

#[cfg(test)]
#[path = "document/tests.rs"]
mod tests;
