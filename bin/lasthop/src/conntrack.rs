//! `lasthop conntrack`: the connections that stateful access lists know, or Open vSwitch's rules, in Linux' columns.

use crate::SharedArgs;
use crate::client::{CliError, collect};
use clap::{Args, Subcommand};
use lasthop_api::{Connection, ConntrackStats, Direction, SwitchProxy};
use serde::Serialize;
use std::net::IpAddr;

#[derive(Debug, Subcommand)]
pub enum ConntrackCommand {
    /// Show connections, one a line, as `conntrack -L` of Linux does
    #[command(after_help = "Examples:\n  lasthop conntrack list\n  lasthop conntrack list --port vm1 --proto tcp")]
    List(FilterArgs),
    /// End connections: their flows go, and their next packets are judged as those of new ones
    #[command(after_help = "Examples:\n  lasthop conntrack flush\n  lasthop conntrack flush --addr 10.0.0.1")]
    Flush(FilterArgs),
    /// Show how many there are and may be, by port, and why packets were of none
    #[command(after_help = "Example:\n  lasthop conntrack stats")]
    Stats(SharedArgs),
}

/// Which connections; all without any option.
#[derive(Debug, Args)]
pub struct FilterArgs {
    /// Those opened or answered from this port
    #[arg(long, value_name = "NAME", add = crate::completions::ports())]
    port: Option<String>,
    /// Those of this VLAN, which is their zone; 0: without one. Where Open vSwitch decides: of this zone of its
    #[arg(long, value_name = "ID", visible_alias = "zone", value_parser = zone, allow_negative_numbers = true)]
    vlan: Option<u16>,
    /// Those of this protocol: tcp, udp, sctp, icmp, icmpv6 or a number
    #[arg(long, value_name = "PROTO", value_parser = protocol)]
    proto: Option<String>,
    /// Those from or to this address
    #[arg(long, value_name = "IP", value_parser = address)]
    addr: Option<String>,
    #[command(flatten)]
    shared: SharedArgs,
}

fn zone(text: &str) -> Result<u16, String> {
    // Zones of Open vSwitch go further; control knows who decides.
    text.parse().map_err(|_| format!("{text} is neither a VLAN id nor a zone; use 1 to 4094, or 0 for connections without a VLAN; where Open vSwitch decides, a zone up to 65535"))
}

fn protocol(text: &str) -> Result<String, String> {
    let is_one = ["tcp", "udp", "sctp", "icmp", "icmpv6"].contains(&text) || text.parse::<u8>().is_ok();
    let wrong = || format!("{text:?} is no protocol; use tcp, udp, sctp, icmp, icmpv6 or a number up to 255");
    if is_one { Ok(text.to_owned()) } else { Err(wrong()) }
}

fn address(text: &str) -> Result<String, String> {
    let wrong = |_| format!("{text:?} is no address; use one such as 10.0.0.1 or fd00::1, not a prefix");
    text.parse::<IpAddr>().map(|_| text.to_owned()).map_err(wrong)
}

/// `lasthop conntrack list --json`
#[derive(Debug, Serialize)]
struct Connections {
    connections: Vec<Connection>,
}

pub fn conntrack(command: &ConntrackCommand) -> Result<String, CliError> {
    match command {
        ConntrackCommand::List(args) => list(args),
        ConntrackCommand::Flush(args) => flush(args),
        ConntrackCommand::Stats(shared) => {
            let stats = shared.instance()?.ask(async |c| c.conntrack_stats().await)?;
            shared.show(&stats, figures)
        }
    }
}

fn list(args: &FilterArgs) -> Result<String, CliError> {
    let FilterArgs { port, vlan, proto, addr, shared } = args;
    let mut instance = shared.instance()?;
    let connections = instance.ask(async |c| {
        let pages = c.conntrack_list(port.as_deref(), *vlan, proto.as_deref(), addr.as_deref()).await;
        collect(pages, |page| page.connections).await
    })?;
    let filtered = port.is_some() || vlan.is_some() || proto.is_some() || addr.is_some();
    let all = if connections.is_empty() && filtered {
        instance.ask(async |c| c.conntrack_stats().await)?.connections
    } else {
        0
    };
    shared.show(&Connections { connections }, |c| match &c.connections[..] {
        [] if all > 0 => format!("none of these; {} in all\n", lasthop_text::counted(all, "connection")),
        [] => "no connections; `lasthop conntrack stats` says whether anybody asks about any\n".into(),
        connections => connections.iter().map(line).collect(),
    })
}

fn flush(args: &FilterArgs) -> Result<String, CliError> {
    let FilterArgs { port, vlan, proto, addr, shared } = args;
    let mut instance = shared.instance()?;
    let flushed =
        instance.ask(async |c| c.conntrack_flush(port.as_deref(), *vlan, proto.as_deref(), addr.as_deref()).await)?;
    shared.show(&flushed, |f| format!("{} ended\n", lasthop_text::counted(f.connections, "connection")))
}

/// As Linux writes it, and behind that what it does not know.
fn line(of: &Connection) -> String {
    let state = of.state.as_ref().map_or_else(String::new, |state| format!("{state} "));
    let unreplied = if of.replied { "" } else { "[UNREPLIED] " };
    let assured = if of.assured { " [ASSURED]" } else { "" };
    let zone = if of.vlan == 0 { String::new() } else { format!(" zone={}", of.vlan) };
    let to = of.to.as_deref().unwrap_or("-");
    format!(
        "{:<8} {} {} {state}{} {unreplied}{}{assured}{zone} from={} to={to} flows={}\n",
        of.proto,
        of.proto_number,
        of.seconds_left,
        direction(of, &of.original),
        direction(of, &of.reply),
        of.from,
        of.flows
    )
}

fn direction(of: &Connection, direction: &Direction) -> String {
    let Direction { src, dst, sport, dport } = direction;
    let names = if of.proto.starts_with("icmp") { ["type", "code"] } else { ["sport", "dport"] };
    let ports = names.iter().zip([sport, dport]).filter_map(|(name, n)| n.map(|n| format!(" {name}={n}")));
    format!("src={src} dst={dst}{}", ports.collect::<String>())
}

fn figures(stats: &ConntrackStats) -> String {
    if stats.no_memory {
        return "there is no memory for the table of connections, so nothing of IP passes stateful access lists; give this host memory, or \
                `lasthop run` a smaller --connections, and load the lists again\n"
            .into();
    }
    if !stats.tracking {
        return "no access list asks about connections; one with a line `stateful` does (see docs/acl.md)\n".into();
    }
    let ConntrackStats { connections, capacity, created, expired, evicted, .. } = stats;
    let mut text = format!(
        "{connections} of {capacity} connections; {created} opened, {expired} timed out, {evicted} gave way to others\n"
    );
    for port in &stats.ports {
        text += &format!("{}: {} of {} opened from there\n", port.port, port.connections, port.limit);
    }
    for refused in &stats.refused {
        text += &format!("{} refused: {}\n", lasthop_text::counted(refused.packets, "packet"), refused.reason);
    }
    if stats.recorded == Some(false) {
        text += "no record: should lasthop-ovs be killed, all of these are gone and ovs-vswitchd has to be restarted; the log of `lasthop run` says why\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{Drops, PortConnections};

    #[test]
    fn connections_are_shown_as_linux_does() {
        let way = |src: &str, dst: &str, sport, dport| Direction {
            src: src.into(),
            dst: dst.into(),
            sport: Some(sport),
            dport: Some(dport),
        };
        let tcp = Connection {
            proto: "tcp".into(),
            proto_number: 6,
            state: Some("ESTABLISHED".into()),
            vlan: 5,
            from: "vm1".into(),
            to: Some("vm2".into()),
            original: way("10.0.0.1", "10.0.0.2", 40_000, 80),
            reply: way("10.0.0.2", "10.0.0.1", 80, 40_000),
            replied: true,
            assured: true,
            seconds_left: 431_990,
            flows: 2,
        };
        assert_eq!(
            line(&tcp),
            "tcp      6 431990 ESTABLISHED src=10.0.0.1 dst=10.0.0.2 sport=40000 dport=80 src=10.0.0.2 dst=10.0.0.1 \
             sport=80 dport=40000 [ASSURED] zone=5 from=vm1 to=vm2 flows=2\n"
        );
        let ping = Connection {
            proto: "icmp".into(),
            proto_number: 1,
            state: None,
            vlan: 0,
            to: None,
            original: way("10.0.0.1", "10.0.0.2", 8, 0),
            reply: way("10.0.0.2", "10.0.0.1", 0, 0),
            replied: false,
            assured: false,
            seconds_left: 29,
            flows: 1,
            ..tcp
        };
        assert_eq!(
            line(&ping),
            "icmp     1 29 src=10.0.0.1 dst=10.0.0.2 type=8 code=0 [UNREPLIED] src=10.0.0.2 dst=10.0.0.1 type=0 code=0 \
             from=vm1 to=- flows=1\n"
        );
    }

    #[test]
    fn figures_say_whether_anybody_asks() {
        assert!(figures(&ConntrackStats::default()).starts_with("no access list asks"));
        let none = ConntrackStats { no_memory: true, ..ConntrackStats::default() };
        assert!(figures(&none).starts_with("there is no memory for the table"));
        let stats = ConntrackStats {
            tracking: true,
            connections: 3,
            capacity: 10,
            created: 5,
            expired: 2,
            refused: vec![Drops { reason: "unrelated".into(), packets: 1 }],
            ports: vec![PortConnections { port: "vm1".into(), connections: 3, limit: 8 }],
            ..ConntrackStats::default()
        };
        assert_eq!(
            figures(&stats),
            "3 of 10 connections; 5 opened, 2 timed out, 0 gave way to others\nvm1: 3 of 8 opened from there\n1 packet refused: unrelated\n"
        );
        for (recorded, says) in [(None, false), (Some(true), false), (Some(false), true)] {
            let stats = ConntrackStats { tracking: true, recorded, ..ConntrackStats::default() };
            assert_eq!(figures(&stats).contains("\nno record: should lasthop-ovs be killed"), says);
        }
    }
}
