//! `lasthop mirror`: copies of packets for another port.

use crate::SharedArgs;
use crate::client::{CliError, Instance};
use crate::table::{Align, Table};
use clap::{Args, Subcommand};
use lasthop_api::{Mirror, MirrorList, Port, SwitchProxy, Uplink};
use lasthop_policy::MAX_SAMPLE;
use lasthop_text::counted;
use lasthop_uplink_ipc::UplinkDriver;
use std::collections::BTreeMap;

/// `lasthop mirror …`
#[derive(Debug, Subcommand)]
pub enum MirrorCommand {
    /// Have a port get copies of other ports' packets
    ///
    /// The ports need not exist yet. A destination gets nothing but copies; what its guest sends is dropped, as `mirror_port`. What it
    /// cannot take is lost there, as `mirror_copy`, and costs the packets themselves nothing. It is remembered; when the command
    /// returns, packets are copied.
    #[command(after_help = "Examples:\n  \
        lasthop mirror add web --from vm1,vm2 --to ids\n  \
        lasthop mirror add out --from vm1 --to ids --direction from-guest\n  \
        lasthop mirror add some --from net --to flows --sample 1/1000\n  \
        lasthop mirror add log --from vm1 --to /var/log/vm1.pcap --max-size 100M")]
    Add(AddArgs),
    /// Remove a mirror; its destination becomes a port like others
    #[command(after_help = "Example:\n  lasthop mirror del web")]
    Del {
        /// Its name
        #[arg(add = crate::completions::mirrors())]
        name: String,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Show all mirrors
    #[command(after_help = "Example:\n  lasthop mirror list --json")]
    List(SharedArgs),
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Its name
    name: String,
    /// The ports whose packets are copied; uplinks too
    #[arg(long, value_name = "PORT,...", required = true, value_delimiter = ',', add = crate::completions::ports())]
    from: Vec<String>,
    /// The port that gets the copies; or a file, with a `/` in its name: then a port of the mirror's name is made of it
    #[arg(long, value_name = "PORT|FILE", add = crate::completions::ports())]
    to: String,
    /// Of a file: how long it may be before it goes on in FILE.1, and then in FILE again, such as 100M [default: any length]
    #[arg(long, value_name = "SIZE", value_parser = file_size)]
    max_size: Option<String>,
    /// What is copied: what those ports' guests send, as they send it, what is sent to them, as they get it, or both
    #[arg(long, value_name = "from-guest|to-guest|both", default_value = "both", value_parser = direction)]
    direction: String,
    /// Copy one of N packets, by chance; the destination gets that part of all its mirrors [default: all packets]
    #[arg(long, value_name = "1/N", value_parser = sample)]
    sample: Option<u32>,
    #[command(flatten)]
    shared: SharedArgs,
}

/// One of how many packets.
pub fn sample(text: &str) -> Result<u32, String> {
    let of = text.strip_prefix("1/").and_then(|of| of.parse().ok()).filter(|of| (1..=MAX_SAMPLE).contains(of));
    of.ok_or_else(|| {
        format!("{text:?}: write 1/N, such as 1/100 for one packet of a hundred; N is {MAX_SAMPLE} at most")
    })
}

fn direction(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is no direction; use from-guest, to-guest or both");
    if ["from-guest", "to-guest", "both"].contains(&text) { Ok(text.to_owned()) } else { Err(wrong()) }
}

pub fn mirror(command: &MirrorCommand) -> Result<String, CliError> {
    match command {
        MirrorCommand::Add(AddArgs { name, from, to, max_size, direction, sample, shared }) => {
            // `--from ""` names no port.
            let from: Vec<_> = from.iter().map(String::as_str).filter(|port| !port.is_empty()).collect();
            let (mut instance, is_file) = (shared.instance()?, to.contains('/'));
            if is_file {
                add_file(&mut instance, name, to, max_size.as_deref())?;
            } else if max_size.is_some() {
                return Err(CliError::usage(format!(
                    "--max-size is for a file, and {to} is a port; a file has a `/` in its name"
                )));
            }
            let port = if is_file { name } else { to };
            let ports = if is_file { Vec::new() } else { crate::list::all_ports(&mut instance)? };
            let cut = cut_off(&ports, to).or_else(|| waits(&ports, to));
            let added = instance.ask(async |c| c.mirror_add(name, &from, port, direction, *sample, None).await);
            if added.is_err() && is_file {
                instance.ask(async |c| c.port_del(name).await)?;
            }
            shared.show(&added?, |added| said(added, &format!("added{}", cut.unwrap_or_default())))
        }
        MirrorCommand::Del { name, shared } => {
            let mut instance = shared.instance()?;
            let removed = instance.ask(async |c| c.mirror_del(name).await)?;
            let made = removed.mirrors.iter().any(|mirror| mirror.to == *name);
            if made && files(&mut instance)?.contains_key(name) {
                instance.ask(async |c| c.port_del(name).await)?;
            }
            shared.show(&removed, |_| format!("mirror {name}: removed\n"))
        }
        MirrorCommand::List(shared) => {
            let mut instance = shared.instance()?;
            let list = instance.ask(async |c| c.mirror_list().await)?;
            let files = files(&mut instance)?;
            shared.show(&list, |list| table(list, &files))
        }
    }
}

/// A size of a file, as it was written.
pub fn file_size(text: &str) -> Result<String, String> {
    let known = UplinkDriver::file_limit(&format!("file:{text}"));
    known
        .map(|_| text.to_owned())
        .ok_or_else(|| "write a number of bytes, 64K at least, such as 500K, 100M or 2G".into())
}

/// The driver of a capture file.
pub fn file_driver(max_size: Option<&str>) -> String {
    let size = max_size.map_or_else(String::new, |size| format!(":{size}"));
    format!("{}{size}", UplinkDriver::File.name())
}

/// Makes a port of the mirror's name of a file.
fn add_file(instance: &mut Instance, name: &str, file: &str, max_size: Option<&str>) -> Result<(), CliError> {
    let path = std::path::absolute(file).map_err(|e| CliError::new(format!("{file}: {e}; give an absolute path")))?;
    let Some(path) = path.to_str() else {
        return Err(CliError::usage(format!("{file}: the path is not UTF-8; choose another")));
    };
    crate::run::new_name(name).map_err(|e| CliError::usage(format!("mirror {name:?}: {e}")))?;
    let driver = file_driver(max_size);
    instance.ask(async |c| c.port_add_device(name, path, Some(&driver), 1, 0, false, &[]).await).map(drop)
}

/// Ports that are capture files, by name.
fn files(instance: &mut Instance) -> Result<BTreeMap<String, Uplink>, CliError> {
    let all = instance.ask(async |c| c.uplink_list().await)?.uplinks;
    let files = all.into_iter().filter(|port| port.driver.as_deref() == Some(UplinkDriver::File.name()));
    Ok(files.map(|port| (port.name.clone(), port)).collect())
}

/// What a file has got, and what it could not take.
fn written(file: &Uplink) -> String {
    let drops = file.drops.iter().map(|drops| format!(", {} dropped there ({})", drops.packets, drops.reason));
    let drops: String = drops.collect();
    format!("{} in {}{drops}", counted(file.to_network.packets, "packet"), file.device)
}

fn said(list: &MirrorList, what: &str) -> String {
    let line = |mirror: &Mirror| match &mirror.note {
        Some(note) => format!("mirror {}: {what}; {note}\n", mirror.name),
        None => format!("mirror {}: {what}\n", mirror.name),
    };
    list.mirrors.iter().map(line).collect()
}

/// That a guest which has been heard is one no more: its port gets copies, and what it sends is dropped.
fn cut_off(ports: &[Port], to: &str) -> Option<String> {
    let port = ports.iter().find(|port| port.name == to && !port.uplink && port.state == "up" && port.macs > 0)?;
    Some(format!("; {} gets nothing but copies from now on, and its guest is cut off", port.name))
}

/// That nobody is there yet who could take copies.
fn waits(ports: &[Port], to: &str) -> Option<String> {
    let port = ports.iter().find(|port| port.name == to && port.state == "waiting")?;
    Some(format!("; {} waits for its guest, and nothing is copied until that is there", port.name))
}

fn table(list: &MirrorList, files: &BTreeMap<String, Uplink>) -> String {
    if list.mirrors.is_empty() {
        return "no mirrors; make one with `lasthop mirror add NAME --from PORT,... --to PORT`\n".into();
    }
    let mut table = Table::new(&["NAME", "DIRECTION", "TO", "FROM"].map(|name| (name, Align::Left)));
    let mut notes = String::new();
    for mirror in &list.mirrors {
        if mirror.sample != 1 {
            notes += &format!("{}: one packet of {} is copied\n", mirror.name, mirror.sample);
        }
        table.row(vec![mirror.name.clone(), mirror.direction.clone(), mirror.to.clone(), mirror.from.join(",")]);
        notes.extend(files.get(&mirror.to).map(|file| format!("{}: {}\n", mirror.name, written(file))));
        notes.extend(mirror.note.iter().map(|note| format!("{}: {note}\n", mirror.name)));
    }
    table.render() + &notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_is_cut_off_is_told_of() {
        let port = |state: &str, macs| Port { name: "c3".into(), state: state.into(), macs, ..Port::default() };
        let said = cut_off(&[port("up", 1)], "c3").unwrap();
        assert_eq!(said, "; c3 gets nothing but copies from now on, and its guest is cut off");
        for other in [port("up", 0), port("waiting", 1), Port { uplink: true, ..port("up", 1) }] {
            assert_eq!(cut_off(&[other], "c3"), None);
        }
        let said = waits(&[port("waiting", 0)], "c3").unwrap();
        assert_eq!(said, "; c3 waits for its guest, and nothing is copied until that is there");
        assert_eq!((waits(&[port("up", 0)], "c3"), waits(&[], "c3")), (None, None));
    }
}
