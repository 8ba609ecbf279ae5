//! `lasthop port export` and `lasthop port import`: what goes along with a VM that moves to another host.

use crate::SharedArgs;
use crate::acl::tell_text;
use crate::client::{CliError, Instance, collect};
use crate::list::all_ports;
use clap::Args;
use lasthop_api::{Field, PortAdopted, Station, SwitchProxy};
use lasthop_moved::{DIRECTIONS, FORM, Moved, changes};
use lasthop_text::counted;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Addresses, and connections, told in one call: so many of some 600 bytes fit into a message to control (64 KiB), which takes 256 at most.
const PART: usize = 100;
/// Longest file, in bytes: the lists and 1 048 576 connections of some 600 each.
const MAX_FILE: u64 = 1 << 30;
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The port that the VM leaves
    #[arg(add = crate::completions::guests())]
    name: String,
    #[command(flatten)]
    shared: SharedArgs,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The port that the VM comes to; it has to be there
    #[arg(add = crate::completions::guests())]
    name: String,
    /// What `lasthop port export` printed, or - for standard input
    file: PathBuf,
    #[command(flatten)]
    shared: SharedArgs,
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
    moved.to_text().map_err(CliError::new)
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
    let connections = moved.connections_at(name);
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
    Moved::read(&text).map_err(wrong)
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
    text += if all.not_taken.is_empty() {
        "run it once more after the guest has stopped at the source, if this was before that; nothing else is left to do\n"
    } else {
        "run it once more after the guest has stopped at the source, if this was before that; what is not taken then begins anew when the guest sends it, as far \
         as lists let it, and one who waits for an answer has to connect again\n"
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::NotTaken;

    #[test]
    fn reasons_add_up() {
        let not = |reason: &str, number| NotTaken { reason: reason.into(), number };
        let mut all = PortAdopted { connections: 3, not_taken: vec![not("a", 1)], ..PortAdopted::default() };
        let some = PortAdopted {
            connections: 1,
            known: 2,
            not_taken: vec![not("b", 2), not("a", 4)],
            ..PortAdopted::default()
        };
        add(&mut all, some);
        let said = said("vm1", 0, 2, &all);
        assert_eq!(
            said,
            "port vm1: 0 settings changed, 2 access lists loaded, 0 addresses, 4 connections, 2 known already\n5 not taken: a\n2 not taken: b\n\
             run it once more after the guest has stopped at the source, if this was before that; what is not taken then begins anew when the guest sends it, \
             as far as lists let it, and one who waits for an answer has to connect again\n"
        );
        all.not_taken.clear();
        assert!(super::said("vm1", 0, 2, &all).ends_with("if this was before that; nothing else is left to do\n"));
    }
}
