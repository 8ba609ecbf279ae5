//! `lasthop port export` and `lasthop port import`: what goes along with a VM that moves to another host.

use crate::SharedArgs;
use crate::acl::tell_text;
use crate::client::{CliError, Instance, collect};
use crate::list::all_ports;
use clap::Args;
use lasthop_api::{Connection, Field, PortAdopted, Station, SwitchProxy};
use lasthop_policy::PortSettings;
use lasthop_text::counted;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The form of these files; there is one.
const FORM: u32 = 1;
/// Told in one call; control takes 256.
const PART: usize = 100;
/// Longest file, in bytes: the lists and 1 048 576 connections of some 600 each.
const MAX_FILE: u64 = 1 << 30;
const DIRECTIONS: [&str; 2] = ["from-guest", "to-guest"];

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The port that the VM leaves
    name: String,
    #[command(flatten)]
    shared: SharedArgs,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The port that the VM comes to; it has to be there
    name: String,
    /// What `lasthop port export` printed, or - for standard input
    file: PathBuf,
    #[command(flatten)]
    shared: SharedArgs,
}

/// The file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Moved {
    /// [`FORM`].
    lasthop_port: u32,
    /// The port's name where the VM comes from.
    name: String,
    settings: Vec<Field>,
    /// The port's own access lists, by [`DIRECTIONS`]; null: it has none.
    lists: [Option<String>; 2],
    stations: Vec<Station>,
    connections: Vec<Connection>,
}

/// `lasthop port export`
pub fn export(args: &ExportArgs) -> Result<String, CliError> {
    let (name, mut instance) = (&args.name, args.shared.instance()?);
    let settings = settings_of(&mut instance, name)?;
    let rules = instance.ask(async |c| collect(c.acl_show(&[name], false).await, |page| page.rules).await)?;
    let list = |direction: &str| {
        let own = rules.iter().filter(|r| r.port.as_ref() == Some(name) && r.direction == direction);
        let lines: Vec<_> = own.map(|rule| format!("{}\n", rule.text)).collect();
        (!lines.is_empty()).then(|| lines.concat())
    };
    let macs = instance.ask(async |c| collect(c.mac_list().await, |page| page.macs).await)?;
    let stations = macs.into_iter().filter(|mac| mac.port == *name && !mac.is_static);
    let connections = instance
        .ask(async |c| collect(c.conntrack_list(Some(name), None, None, None).await, |p| p.connections).await)?;
    let moved = Moved {
        lasthop_port: FORM,
        name: name.clone(),
        settings,
        lists: DIRECTIONS.map(list),
        stations: stations.map(|mac| Station { mac: mac.mac, vlan: mac.vlan }).collect(),
        connections,
    };
    let text = serde_json::to_string_pretty(&moved).map_err(|e| CliError::new(e.to_string()))?;
    Ok(text + "\n")
}

/// `lasthop port import`
pub fn import(args: &ImportArgs) -> Result<String, CliError> {
    let moved = read(&args.file)?;
    let (name, mut instance) = (&args.name, args.shared.instance()?);
    let settings = changes(settings_of(&mut instance, name)?, &moved.settings);
    // Lists go first: they are what connections are judged by, and the part that may be refused.
    let mut before = Vec::new();
    for (direction, text) in DIRECTIONS.iter().zip(&moved.lists) {
        let Some(text) = text else { continue };
        tell_text(&mut instance, text)?;
        let loaded = instance.ask(async |c| c.acl_load("lasthop", "deny", &[name], Some(direction), None, None).await);
        loaded.map_err(|e| {
            let loaded = holds(&before);
            CliError::new(format!("access list {direction}: {e}; settings and connections were not changed{loaded}"))
        })?;
        before.push(*direction);
    }
    if !settings.is_empty() {
        let set = instance.ask(async |c| c.port_set(name, &settings).await);
        set.map_err(|e| CliError::new(format!("settings: {e}; connections were not taken{}", holds(&before))))?;
    }
    let mut all = PortAdopted::default();
    let connections = moved.connections.into_iter().map(|connection| renamed(connection, &moved.name, name));
    let connections: Vec<_> = connections.collect();
    let parts = moved.stations.chunks(PART).map(|part| (part, &[][..]));
    for (stations, connections) in parts.chain(connections.chunks(PART).map(|part| (&[][..], part))) {
        let some = instance.ask(async |c| c.port_adopt(name, stations, connections).await)?;
        add(&mut all, some);
    }
    args.shared.show(&all, |all| said(name, settings.len(), moved.lists.iter().flatten().count(), all))
}

/// The lists that hold although what came behind them was refused.
fn holds(loaded: &[&str]) -> String {
    if loaded.is_empty() { String::new() } else { format!(", and the {} list is the file's", loaded.join(" and ")) }
}

/// What a port is told.
fn settings_of(instance: &mut Instance, name: &str) -> Result<Vec<Field>, CliError> {
    let ports = all_ports(instance)?.into_iter().find(|port| port.name == name);
    let port = ports.ok_or_else(|| {
        CliError::new(format!("there is no port named {name:?}; make it with `lasthop port add {name} SOCKET`"))
    })?;
    Ok(port.settings)
}

/// What is to be told a port that is told `now`, so that it is told what `wanted` says and nothing else.
fn changes(now: Vec<Field>, wanted: &[Field]) -> Vec<Field> {
    let gone = now.iter().filter(|field| wanted.iter().all(|of| of.name != field.name));
    let gone: Vec<_> = gone.map(|field| Field { name: field.name.clone(), value: "none".into() }).collect();
    let new = wanted.iter().filter(|field| !now.contains(field)).cloned();
    gone.into_iter().chain(new).collect()
}

/// A connection of a port that has another name here.
fn renamed(mut of: Connection, was: &str, is: &str) -> Connection {
    // A neighbour there that has the port's name here is not this port.
    let other = format!("{is}@{was}");
    for end in [Some(&mut of.from), of.to.as_mut()].into_iter().flatten() {
        *end = if end == was {
            is.to_owned()
        } else if end == is {
            other.clone()
        } else {
            std::mem::take(end)
        };
    }
    of
}

fn read(file: &Path) -> Result<Moved, CliError> {
    let wrong = |why: String| {
        let file = if file == Path::new("-") { "standard input".into() } else { file.display().to_string() };
        CliError::new(format!("{file}: {why}; nothing was changed; name a file that `lasthop port export` has written"))
    };
    let mut text = String::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(MAX_FILE + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
    };
    if read.map_err(|e| wrong(e.to_string()))? as u64 > MAX_FILE {
        return Err(wrong(format!("longer than {} MiB", MAX_FILE >> 20)));
    }
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Moved, String> {
    let moved: Moved = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if moved.lasthop_port != FORM {
        return Err(format!("form {}, and this lasthop reads form {FORM}", moved.lasthop_port));
    }
    let pairs = moved.settings.iter().map(|field| (field.name.as_str(), field.value.as_str()));
    PortSettings::default().change(pairs)?;
    Ok(moved)
}

fn add(all: &mut PortAdopted, some: PortAdopted) {
    all.stations += some.stations;
    all.connections += some.connections;
    all.known += some.known;
    for not in some.not_taken {
        match all.not_taken.iter_mut().find(|known| known.reason == not.reason) {
            Some(known) => known.number += not.number,
            None => all.not_taken.push(not),
        }
    }
}

fn said(name: &str, settings: usize, lists: usize, all: &PortAdopted) -> String {
    let (addresses, connections) = (counted(all.stations, "address"), counted(all.connections, "connection"));
    let [settings, lists] = [(settings, "setting"), (lists, "access list")].map(|(n, what)| counted(n as u64, what));
    let known = if all.known > 0 { format!(", {} known already", all.known) } else { String::new() };
    let mut text = format!("port {name}: {settings} changed, {lists} loaded, {addresses}, {connections}{known}\n");
    for not in &all.not_taken {
        text += &format!("{} not taken: {}\n", not.number, not.reason);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(name: &str, value: &str) -> Field {
        Field { name: name.into(), value: value.into() }
    }

    #[test]
    fn a_port_is_told_what_is_new_and_what_is_over() {
        let now = vec![field("vlan", "10"), field("isolated", "on")];
        let wanted = [field("vlan", "20"), field("storm", "1kpps")];
        assert_eq!(changes(now, &wanted), [field("isolated", "none"), field("vlan", "20"), field("storm", "1kpps")]);
    }

    #[test]
    fn ends_are_named_as_they_are_here() {
        let of = |from: &str, to: Option<&str>| Connection {
            from: from.into(),
            to: to.map(Into::into),
            ..Connection::default()
        };
        assert_eq!(renamed(of("vm1", Some("net")), "vm1", "a"), of("a", Some("net")));
        assert_eq!(renamed(of("a", Some("vm1")), "vm1", "a"), of("a@vm1", Some("a")), "another VM had that name there");
        assert_eq!(renamed(of("vm1", None), "vm1", "vm1"), of("vm1", None));
    }

    #[test]
    fn what_is_no_export_says_so() {
        let wrong = |text: &str| parse(text).unwrap_err();
        assert!(wrong("").contains("EOF"));
        let of = |form: u32, settings: &str| {
            format!(
                r#"{{"lasthop_port":{form},"name":"a","settings":[{settings}],"lists":[null,null],"stations":[],"connections":[]}}"#
            )
        };
        assert!(parse(&of(1, "")).is_ok());
        assert!(wrong(&of(2, "")).contains("form 2"));
        assert!(wrong(&of(1, r#"{"name":"vlan","value":"5000"}"#)).contains("5000"));
        assert!(wrong(&of(1, "").replace("stations", "station")).contains("station"));
    }

    proptest! {
        #[test]
        fn whatever_a_file_holds_it_is_read_or_refused(text in ".{0,400}") {
            let _ = parse(&text);
        }
    }
}
