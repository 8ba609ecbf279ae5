//! `lasthop stats`.

use crate::SharedArgs;
use crate::client::CliError;
use crate::list::{all_ports, dropped};
use crate::table::{Align, Table, duration};
use lasthop_api::{Port, SwitchProxy, SwitchStats};
use lasthop_types::DROP_REASONS;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, clap::Args)]
pub struct StatsArgs {
    /// Say what each drop reason means and show every counter
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    shared: SharedArgs,
}

/// `lasthop stats --json`
#[derive(Debug, Serialize)]
struct Stats {
    switch: SwitchStats,
    sum: Sum,
    ports: Vec<Port>,
}

/// All ports together. `from_guest + replicated = to_guest + dropped + waiting`; `unaccounted` is the difference. It is
/// not 0 when packets moved while one port after the other was read, when a port was removed with its counters, or when
/// the counters are wrong.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Sum {
    from_guest: u64,
    replicated: u64,
    to_guest: u64,
    dropped: u64,
    waiting: u64,
    unaccounted: i128,
    drops: BTreeMap<String, u64>,
}

impl Sum {
    fn of(ports: &[Port]) -> Self {
        let mut sum = Self::default();
        for p in ports {
            sum.from_guest += p.from_guest.packets;
            sum.replicated += p.from_guest.replicated;
            sum.to_guest += p.to_guest.packets;
            sum.dropped += dropped(p);
            sum.waiting += p.waiting;
            for d in p.from_guest.drops.iter().chain(&p.to_guest.drops) {
                *sum.drops.entry(d.reason.clone()).or_default() += d.packets;
            }
        }
        let out = i128::from(sum.to_guest) + i128::from(sum.dropped) + i128::from(sum.waiting);
        sum.unaccounted = i128::from(sum.from_guest) + i128::from(sum.replicated) - out;
        sum
    }
}

pub fn stats(args: &StatsArgs) -> Result<String, CliError> {
    let mut instance = args.shared.instance()?;
    let ports = all_ports(&mut instance)?;
    let switch = instance.ask(async |c| c.stats().await)?;
    let stats = Stats { switch, sum: Sum::of(&ports), ports };
    args.shared.show(&stats, |s| render(s, args.verbose))
}

fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

/// Somebody is connected there.
fn has_guest(port: &Port) -> bool {
    matches!(port.state.as_str(), "connected" | "up" | "broken")
}

fn render(stats: &Stats, verbose: bool) -> String {
    let number = |name| (name, Align::Right);
    let mut columns = vec![
        ("PORT", Align::Left),
        number("FROM GUEST"),
        number("BYTES"),
        number("TO GUEST"),
        number("BYTES"),
        number("DROPPED"),
    ];
    if verbose {
        columns.extend(
            ["REPLICATED", "MISSED", "SEGMENTS", "CHECKSUMS", "KICKS", "INTERRUPTS", "BUSY MS", "CPU MS"].map(number),
        );
    }
    let mut table = Table::new(&columns);
    for p in &stats.ports {
        let (from, to) = (&p.from_guest, &p.to_guest);
        let mut cells = vec![from.packets, from.bytes, to.packets, to.bytes, dropped(p)];
        if verbose {
            cells.extend([from.replicated, from.missed, to.segments, to.checksums]);
            cells.extend([from.notifications, to.notifications, ms(from.busy_ns)]);
        }
        let cpu = verbose.then(|| p.cpu_ns.map_or("-".into(), |ns| ms(ns).to_string()));
        let numbers = cells.into_iter().map(|n| n.to_string()).chain(cpu);
        table.row(std::iter::once(p.name.clone()).chain(numbers).collect());
    }
    let mut out = table.render();

    let mut drops = Table::new(&[("DROPPED", Align::Right), ("PORT", Align::Left), ("REASON", Align::Left)]);
    let mut any = false;
    for p in &stats.ports {
        for (direction, totals) in [("from", &p.from_guest), ("to", &p.to_guest)] {
            for d in &totals.drops {
                any = true;
                let mut reason = d.reason.clone();
                if let Some(r) = DROP_REASONS.iter().find(|r| verbose && r.name() == d.reason) {
                    reason = format!("{reason}: {}", r.explain());
                }
                drops.row(vec![d.packets.to_string(), format!("{direction} {}", p.name), reason]);
            }
        }
    }
    if any {
        out.push('\n');
        out.push_str(&drops.render());
    }

    let (sum, s) = (&stats.sum, &stats.switch);
    out.push_str(&format!(
        "\nsum: {} in + {} replicated = {} out + {} dropped + {} waiting\n",
        sum.from_guest, sum.replicated, sum.to_guest, sum.dropped, sum.waiting
    ));
    if sum.unaccounted != 0 {
        out.push_str(&format!(
            "     {} unaccounted for: packets moved while ports were read, or a port was removed\n",
            sum.unaccounted
        ));
    }
    let doing = |what: Option<&str>| stats.ports.iter().filter(|p| p.vm.as_deref() == what && has_guest(p)).count();
    out.push_str(&format!(
        "VMs: {} running, {} blocked, {} not known\n",
        doing(Some("running")),
        doing(Some("blocked")),
        doing(None)
    ));
    let cpu = &s.cpu;
    out.push_str(&format!(
        "CPU ms: {} ports + {} helpers + {} main + {} other + {} control + {} uplinks + {} supervisor = {}\n",
        ms(cpu.ports_ns),
        ms(cpu.helpers_ns),
        ms(cpu.main_ns),
        ms(cpu.other_ns),
        ms(cpu.control_ns),
        ms(cpu.uplinks_ns),
        ms(cpu.supervisor_ns),
        ms(cpu.total_ns)
    ));
    if !s.switch_connected {
        out.push_str("the switch process is not connected; counters are not known now\n");
    }
    if verbose {
        out.push_str(&format!(
            "control: up {}, {} addresses, {} flows, epoch {}, {} misses answered, {} flows sent, {} withdrawn\n",
            duration(s.uptime_ms),
            s.macs,
            s.flows,
            s.epoch,
            s.misses,
            s.flows_put,
            s.flows_deleted
        ));
        for p in stats.ports.iter().filter(|p| p.sources_over_limit + p.moves_refused > 0) {
            out.push_str(&format!(
                "{}: {} packets from addresses over its limit of {}, {} from addresses held elsewhere\n",
                p.name, p.sources_over_limit, p.mac_limit, p.moves_refused
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{CpuTimes, Drops, Totals};

    fn port(name: &str, from: Totals, to: Totals) -> Port {
        Port { name: name.into(), from_guest: from, to_guest: to, ..Port::default() }
    }

    fn drops(reason: &str, packets: u64) -> Vec<Drops> {
        vec![Drops { reason: reason.into(), packets }]
    }

    #[test]
    fn adds_up() {
        let mut ports = vec![
            port(
                "a",
                Totals { packets: 10, replicated: 3, drops: drops("policy", 2), ..Totals::default() },
                Totals { packets: 4, ..Totals::default() },
            ),
            port(
                "b",
                Totals { packets: 1, ..Totals::default() },
                Totals { packets: 6, drops: drops("no_buffers", 1), ..Totals::default() },
            ),
        ];
        assert_eq!(Sum::of(&ports).unaccounted, 1);
        ports[1].waiting = 1;
        (ports[1].state, ports[1].vm) = ("up".into(), Some("blocked".into()));
        let sum = Sum::of(&ports);
        assert_eq!((sum.from_guest, sum.replicated, sum.to_guest, sum.dropped), (11, 3, 10, 3));
        assert_eq!((sum.waiting, sum.unaccounted), (1, 0));
        ports[0].cpu_ns = Some(7_900_000);
        let cpu = CpuTimes { ports_ns: 7_900_000, helpers_ns: 4_200_000, total_ns: 12_100_000, ..CpuTimes::default() };
        let text = render(&Stats { switch: SwitchStats { cpu, ..SwitchStats::default() }, sum, ports }, true);
        let last = |port: &str| text.lines().find(|l| l.starts_with(port)).and_then(|l| l.split(' ').next_back());
        assert_eq!((last("a "), last("b ")), (Some("7"), Some("-")), "{text}");
        let parts = "CPU ms: 7 ports + 4 helpers + 0 main + 0 other + 0 control + 0 uplinks + 0 supervisor = 12\n";
        assert!(text.contains(parts), "{text}");
        assert!(text.contains("sum: 11 in + 3 replicated = 10 out + 3 dropped + 1 waiting\n"), "{text}");
        assert!(text.contains("VMs: 0 running, 1 blocked, 0 not known\n"), "{text}");
        assert!(text.contains("from a  policy: A flow said to drop the packet."), "{text}");
        assert!(text.contains("to b    no_buffers: The receiver"), "{text}");
    }
}
