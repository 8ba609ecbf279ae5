//! `lasthop mirror`: copies of packets for another port.

use crate::SharedArgs;
use crate::client::CliError;
use crate::table::{Align, Table};
use clap::{Args, Subcommand};
use lasthop_api::{Mirror, MirrorList, SwitchProxy};

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
        lasthop mirror add out --from vm1 --to ids --direction from-guest")]
    Add(AddArgs),
    /// Remove a mirror; its destination becomes a port like others
    #[command(after_help = "Example:\n  lasthop mirror del web")]
    Del {
        /// Its name
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
    #[arg(long, value_name = "PORT,...", required = true, value_delimiter = ',')]
    from: Vec<String>,
    /// The port that gets the copies
    #[arg(long, value_name = "PORT")]
    to: String,
    /// What is copied: what those ports' guests send, as they send it, what is sent to them, as they get it, or both
    #[arg(long, value_name = "from-guest|to-guest|both", default_value = "both")]
    direction: String,
    #[command(flatten)]
    shared: SharedArgs,
}

pub fn mirror(command: &MirrorCommand) -> Result<String, CliError> {
    match command {
        MirrorCommand::Add(AddArgs { name, from, to, direction, shared }) => {
            // `--from ""` names no port.
            let from: Vec<_> = from.iter().map(String::as_str).filter(|port| !port.is_empty()).collect();
            let added = shared.instance()?.ask(async |c| c.mirror_add(name, &from, to, direction).await)?;
            shared.show(&added, |added| said(added, "added"))
        }
        MirrorCommand::Del { name, shared } => {
            let removed = shared.instance()?.ask(async |c| c.mirror_del(name).await)?;
            shared.show(&removed, |_| format!("mirror {name}: removed\n"))
        }
        MirrorCommand::List(shared) => {
            let list = shared.instance()?.ask(async |c| c.mirror_list().await)?;
            shared.show(&list, table)
        }
    }
}

fn said(list: &MirrorList, what: &str) -> String {
    let line = |mirror: &Mirror| match &mirror.note {
        Some(note) => format!("mirror {}: {what}; {note}\n", mirror.name),
        None => format!("mirror {}: {what}\n", mirror.name),
    };
    list.mirrors.iter().map(line).collect()
}

fn table(list: &MirrorList) -> String {
    if list.mirrors.is_empty() {
        return "no mirrors; make one with `lasthop mirror add NAME --from PORT,... --to PORT`\n".into();
    }
    let mut table = Table::new(&["NAME", "DIRECTION", "TO", "FROM"].map(|name| (name, Align::Left)));
    let mut notes = String::new();
    for mirror in &list.mirrors {
        table.row(vec![mirror.name.clone(), mirror.direction.clone(), mirror.to.clone(), mirror.from.join(",")]);
        notes.extend(mirror.note.iter().map(|note| format!("{}: {note}\n", mirror.name)));
    }
    table.render() + &notes
}
