//! `lasthop set`: named sets of addresses that rules of access lists ask for.

use crate::SharedArgs;
use crate::client::{CliError, Instance, collect};
use crate::table::{Align, Table};
use clap::{Args, Subcommand};
use lasthop_api::{AddressSet, SetChanged, SwitchProxy};
use lasthop_policy::acl::{MAX_MEMBERS, check_set_name, read_member};
use lasthop_text::counted;
use serde::Serialize;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Addresses told in one call.
const PART: usize = 2000;
/// Longest file of addresses, in bytes: as many as there may be, and comments.
const MAX_FILE: u64 = MAX_MEMBERS as u64 * 64;

/// `lasthop set …`
#[derive(Debug, Subcommand)]
pub enum SetCommand {
    /// Put addresses and prefixes into a set, and make it if there is none
    ///
    /// Rules of access lists ask for it as `from @NAME` and `to @NAME`; it may have addresses of both IP versions. When the command
    /// returns, lists go by it: only flows that it may concern are judged anew. Addresses that are in it already stay. It is remembered.
    #[command(after_help = "Examples:\n  \
        lasthop set add admins 10.0.0.7 10.1.0.0/24 fd00::/64\n  \
        lasthop set add blocked --file blocked.txt\n  \
        lasthop set add web")]
    Add(ChangeArgs),
    /// Take addresses and prefixes out of a set
    ///
    /// Each as it was put in. Connections of stateful lists that it had let open end at their next packet.
    #[command(after_help = "Example:\n  lasthop set del admins 10.0.0.7")]
    Del(ChangeArgs),
    /// Remove a whole set; none that a rule names
    #[command(after_help = "Example:\n  lasthop set destroy admins")]
    Destroy {
        /// Its name
        name: String,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Show all sets, or the addresses of one
    #[command(after_help = "Examples:\n  lasthop set list\n  lasthop set list admins")]
    List {
        /// Its name
        name: Option<String>,
        #[command(flatten)]
        shared: SharedArgs,
    },
}

#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Its name: 1 to 63 letters, digits, '.', '_' or '-'
    name: String,
    /// IPv4 or IPv6 addresses and prefixes
    #[arg(value_name = "ADDRESS|PREFIX")]
    addresses: Vec<String>,
    /// A file with more of them, between spaces or in lines of their own, with # before comments; - for standard input
    #[arg(long)]
    file: Option<PathBuf>,
    #[command(flatten)]
    shared: SharedArgs,
}

impl ChangeArgs {
    /// All addresses, checked.
    fn read(&self) -> Result<Vec<String>, CliError> {
        let wrong = |message: String| CliError::usage(format!("{message}; nothing was changed"));
        check_set_name(&self.name).map_err(wrong)?;
        for address in &self.addresses {
            read_member(address).map_err(wrong)?;
        }
        let mut all = self.addresses.clone();
        if let Some(file) = &self.file {
            let text = read_file(file)?;
            for (number, line) in text.lines().enumerate() {
                for word in line.split('#').next().unwrap_or_default().split_whitespace() {
                    let at = |e| wrong(format!("{}, line {}: {e}", file.display(), number + 1));
                    read_member(word).map_err(at)?;
                    all.push(word.to_owned());
                }
            }
        }
        Ok(all)
    }
}

fn read_file(file: &Path) -> Result<String, CliError> {
    let wrong = |e: io::Error| {
        CliError::new(format!("{}: {e}; name a file of addresses, or - for standard input", file.display()))
    };
    let (mut text, limit) = (String::new(), MAX_FILE + 1);
    let read = if file == Path::new("-") {
        io::stdin().lock().take(limit).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(limit).read_to_string(&mut text))
    };
    match read.map_err(wrong)? as u64 {
        n if n > MAX_FILE => {
            Err(CliError::new(format!("{}: longer than {MAX_FILE} bytes; use wider prefixes", file.display())))
        }
        _ => Ok(text),
    }
}

/// `lasthop set list --json`
#[derive(Debug, Serialize)]
struct Sets {
    sets: Vec<AddressSet>,
}

pub fn set(command: &SetCommand) -> Result<String, CliError> {
    match command {
        SetCommand::Add(args) => {
            let addresses = args.read()?;
            let changed = change(&mut args.shared.instance()?, &args.name, &addresses, &[])?;
            args.shared.show(&changed, said)
        }
        SetCommand::Del(args) => {
            let addresses = args.read()?;
            if addresses.is_empty() {
                let name = &args.name;
                return Err(CliError::usage(format!(
                    "which addresses are to leave @{name}? Name them, or remove the whole set with `lasthop set destroy {name}`"
                )));
            }
            let changed = change(&mut args.shared.instance()?, &args.name, &[], &addresses)?;
            args.shared.show(&changed, said)
        }
        SetCommand::Destroy { name, shared } => {
            let removed = destroy(&mut shared.instance()?, name)?;
            shared.show(&removed, |_| format!("set {name}: removed\n"))
        }
        SetCommand::List { name, shared } => {
            let sets = Sets { sets: sets(&mut shared.instance()?, name.as_deref())? };
            shared.show(&sets, |sets| match name {
                Some(_) => {
                    sets.sets.iter().flat_map(|set| &set.addresses).map(|address| format!("{address}\n")).collect()
                }
                None => table(&sets.sets),
            })
        }
    }
}

/// Has addresses join a set and leave it, by several calls where there are many.
pub fn change(instance: &mut Instance, name: &str, add: &[String], del: &[String]) -> Result<SetChanged, CliError> {
    let [add, del] = [add, del].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
    // Those that leave go first: they make room.
    let mut parts: Vec<(&[&str], &[&str])> = del.chunks(PART).map(|part| (&[][..], part)).collect();
    parts.extend(add.chunks(PART).map(|part| (part, &[][..])));
    if add.len() + del.len() <= PART {
        // All of it or nothing.
        parts = vec![(&add, &del)];
    }
    let mut all = SetChanged::default();
    for (add, del) in parts {
        let done = instance.ask(async |c| c.set_change(name, add, del).await)?;
        all = SetChanged {
            made: all.made || done.made,
            added: all.added + done.added,
            removed: all.removed + done.removed,
            flows: all.flows + done.flows,
            ..done
        };
    }
    Ok(all)
}

/// Removes a set.
pub fn destroy(instance: &mut Instance, name: &str) -> Result<SetChanged, CliError> {
    instance.ask(async |c| c.set_del(name).await)
}

/// All sets, or one, each with all of its addresses.
pub fn sets(instance: &mut Instance, name: Option<&str>) -> Result<Vec<AddressSet>, CliError> {
    let entries = instance.ask(async |c| collect(c.set_list(name).await, |page| page.sets).await)?;
    let mut sets: Vec<AddressSet> = Vec::new();
    for entry in entries {
        match sets.last_mut() {
            Some(last) if last.name == entry.name => last.addresses.extend(entry.addresses),
            _ => sets.push(entry),
        }
    }
    Ok(sets)
}

fn said(changed: &SetChanged) -> String {
    let made = if changed.made { "made; " } else { "" };
    let flows = match changed.flows {
        0 => String::new(),
        n => format!("; {} judged anew", counted(n, "flow")),
    };
    let SetChanged { name, addresses, added, removed, .. } = changed;
    format!("set {name}: {made}{added} joined, {removed} left, it has {addresses} now{flows}\n")
}

fn table(sets: &[AddressSet]) -> String {
    if sets.is_empty() {
        return "no sets of addresses; make one with `lasthop set add NAME ADDRESS...`\n".into();
    }
    let mut table = Table::new(&[("NAME", Align::Left), ("ADDRESSES", Align::Right), ("USED BY", Align::Left)]);
    for set in sets {
        let used_by = if set.used_by.is_empty() { "-".to_owned() } else { set.used_by.join("; ") };
        table.row(vec![set.name.clone(), set.addresses.len().to_string(), used_by]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_and_what_there_is() {
        let changed = SetChanged { name: "web".into(), made: true, addresses: 2, added: 2, removed: 0, flows: 1 };
        assert_eq!(said(&changed), "set web: made; 2 joined, 0 left, it has 2 now; 1 flow judged anew\n");
        let set = |name: &str, used_by: &[&str]| AddressSet {
            name: name.into(),
            addresses: vec!["10.0.0.1".into()],
            used_by: used_by.iter().map(|s| (*s).into()).collect(),
        };
        assert_eq!(
            table(&[set("db", &[]), set("web", &["port vm1, to-guest"])]),
            "NAME  ADDRESSES  USED BY\n\
             db            1  -\n\
             web           1  port vm1, to-guest\n"
        );
        assert!(table(&[]).contains("lasthop set add"));
    }
}
