//! `lasthop mac`: where stations live.

use crate::SharedArgs;
use crate::client::{CliError, collect};
use crate::list::ovs_decides;
use crate::table::{Align, Table, duration};
use clap::Subcommand;
use lasthop_api::{Group, Mac, SwitchProxy};
use lasthop_policy::StaticMac;
use serde::Serialize;

/// `lasthop mac …`
#[derive(Debug, Subcommand)]
pub enum MacCommand {
    /// Show all addresses: learned ones and static ones
    #[command(after_help = "Example:\n  lasthop mac list")]
    List(SharedArgs),
    /// Show who wants which multicasts, and where multicast routers are, as far as some port has `snooping`
    #[command(after_help = "Example:\n  lasthop mac groups")]
    Groups(SharedArgs),
    /// Have an address live at a port for good: it is known before it says anything, and neither ages nor moves
    ///
    /// It is a setting of the port (`static-mac`), remembered with it and forgotten with it. Packets from that address are forwarded from
    /// other ports as well; `lasthop port set --mac` is what forbids them.
    #[command(after_help = "Examples:\n  \
        lasthop mac add 52:54:00:12:34:56 --port vm1\n  \
        lasthop mac add 52:54:00:12:34:57 --port net --vlan 10")]
    Add {
        /// The address
        mac: String,
        /// Where it lives; uplinks too
        #[arg(long, add = crate::completions::ports())]
        port: String,
        /// Its VLAN [default: that of frames without a tag at the port]
        #[arg(long, value_name = "ID", allow_negative_numbers = true)]
        vlan: Option<String>,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Forget an address, static or learned
    #[command(after_help = "Example:\n  lasthop mac del 52:54:00:12:34:56")]
    Del {
        /// The address
        mac: String,
        /// Its VLAN, 0 for none; needed where the address is known in several
        #[arg(long, value_name = "ID", value_parser = vlan, allow_negative_numbers = true)]
        vlan: Option<u16>,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Forget all addresses that were learned, or those of a port or a VLAN; static ones stay
    #[command(
        after_help = "Examples:\n  lasthop mac flush\n  lasthop mac flush --port vm1\n  lasthop mac flush --vlan 10"
    )]
    Flush {
        /// Only those learned there
        #[arg(long, add = crate::completions::ports())]
        port: Option<String>,
        /// Only those of this VLAN, 0 for those of none
        #[arg(long, value_name = "ID", value_parser = vlan, allow_negative_numbers = true)]
        vlan: Option<u16>,
        #[command(flatten)]
        shared: SharedArgs,
    },
}

/// `lasthop mac list --json`
#[derive(Debug, Serialize)]
struct Macs {
    macs: Vec<Mac>,
}

/// `lasthop mac groups --json`
#[derive(Debug, Serialize)]
struct Groups {
    groups: Vec<Group>,
}

fn vlan(text: &str) -> Result<u16, String> {
    let vlan = text.parse().ok().filter(|vlan| *vlan <= 4094);
    vlan.ok_or_else(|| "write a VLAN id, 1 to 4094, or 0 for addresses without a VLAN".into())
}

/// The VLAN of an address, behind it.
fn in_vlan(vlan: u16) -> String {
    if vlan == 0 { String::new() } else { format!(" in VLAN {vlan}") }
}

pub fn mac(command: &MacCommand) -> Result<String, CliError> {
    match command {
        MacCommand::List(shared) => {
            let mut instance = shared.instance()?;
            let macs = instance.ask(async |c| collect(c.mac_list().await, |page| page.macs).await)?;
            let elsewhere = macs.is_empty() && ovs_decides(&mut instance)?;
            shared.show(&Macs { macs }, |m| match elsewhere {
                true => "no addresses: Open vSwitch learns them here; `ovs-appctl fdb/show BRIDGE` shows them\n".into(),
                false => table(&m.macs),
            })
        }
        MacCommand::Groups(shared) => {
            let mut instance = shared.instance()?;
            let groups = instance.ask(async |c| collect(c.group_list().await, |page| page.groups).await)?;
            let elsewhere = groups.is_empty() && ovs_decides(&mut instance)?;
            shared.show(&Groups { groups }, |g| match elsewhere {
                true => {
                    "no groups: Open vSwitch listens to them here; `ovs-appctl mdb/show BRIDGE` shows them\n".into()
                }
                false => group_table(&g.groups),
            })
        }
        MacCommand::Add { mac, port, vlan, shared } => {
            let text = vlan.as_ref().map_or_else(|| mac.clone(), |vlan| format!("{mac}@{vlan}"));
            let entry: StaticMac = text.parse().map_err(CliError::usage)?;
            let mac = entry.mac.to_string();
            let mut instance = shared.instance()?;
            let before = instance.ask(async |c| collect(c.mac_list().await, |page| page.macs).await)?;
            let changed = instance.ask(async |c| c.mac_add(&mac, port, entry.vlan).await)?;
            let at = in_vlan(entry.vlan.unwrap_or(0));
            let moved = taken_over(&before, &entry, port);
            shared.show(&changed, |_| format!("{mac}: static at {port}{at}{moved}\n"))
        }
        MacCommand::Del { mac, vlan, shared } => {
            let gone = shared.instance()?.ask(async |c| c.mac_del(mac, *vlan).await)?;
            let how = if gone.is_static { "static" } else { "learned" };
            shared.show(&gone, |m| format!("{}: forgotten; it was {how} at {}{}\n", m.mac, m.port, in_vlan(m.vlan)))
        }
        MacCommand::Flush { port, vlan, shared } => {
            let flushed = shared.instance()?.ask(async |c| c.mac_flush(port.as_deref(), *vlan).await)?;
            shared.show(&flushed, |f| {
                let (n, es) = (f.macs, if f.macs == 1 { "" } else { "es" });
                format!("{n} address{es} forgotten\n")
            })
        }
    }
}

/// That a station was heard at another port, which gets nothing for it any more.
fn taken_over(before: &[Mac], entry: &StaticMac, port: &str) -> String {
    let mac = entry.mac.to_string();
    let is_it =
        |m: &&Mac| m.mac == mac && entry.vlan.is_none_or(|vlan| vlan == m.vlan) && m.port != port && !m.is_static;
    before.iter().find(is_it).map_or_else(String::new, |m| {
        format!("; it was learned at {}, and what is sent to it no longer goes there", m.port)
    })
}

fn table(macs: &[Mac]) -> String {
    if macs.is_empty() {
        return "no addresses learned; they appear with the first packets\n".into();
    }
    let mut table =
        Table::new(&[("MAC", Align::Left), ("VLAN", Align::Right), ("PORT", Align::Left), ("AGE", Align::Right)]);
    for m in macs {
        let vlan = if m.vlan == 0 { "-".into() } else { m.vlan.to_string() };
        let held = if m.held { " (held: it moved too often)" } else { "" };
        let age = if m.is_static { "static".into() } else { duration(m.age_ms) + held };
        table.row(vec![m.mac.clone(), vlan, m.port.clone(), age]);
    }
    table.render()
}

fn group_table(groups: &[Group]) -> String {
    if groups.is_empty() {
        return "no groups; they appear where a port has `lasthop port set NAME --snooping` and a multicast router asks\n".into();
    }
    let columns = ["VLAN", "FAMILY", "GROUP", "PORTS"];
    let mut table = Table::new(&columns.map(|name| (name, if name == "VLAN" { Align::Right } else { Align::Left })));
    for g in groups {
        let vlan = if g.vlan == 0 { "-".into() } else { g.vlan.to_string() };
        let group = g.group.clone().unwrap_or_else(|| "all (routers)".into());
        let ports: Vec<_> = g.members.iter().map(|m| format!("{} ({})", m.port, duration(m.for_ms))).collect();
        table.row(vec![vlan, g.family.clone(), group, ports.join(", ")]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_that_is_taken_over_is_named() {
        let known = |port: &str, vlan, is_static| Mac {
            mac: "52:54:00:00:00:01".into(),
            port: port.into(),
            vlan,
            is_static,
            ..Mac::default()
        };
        let entry: StaticMac = "52:54:00:00:00:01".parse().unwrap();
        let said = taken_over(&[known("c2", 0, false)], &entry, "c1");
        assert_eq!(said, "; it was learned at c2, and what is sent to it no longer goes there");
        assert_eq!(taken_over(&[known("c1", 0, false)], &entry, "c1"), "");
        assert_eq!(taken_over(&[known("c2", 0, true)], &entry, "c1"), "", "that one stays");
        let tagged = StaticMac { vlan: Some(7), ..entry };
        assert_eq!(taken_over(&[known("c2", 8, false)], &tagged, "c1"), "");
    }
}
