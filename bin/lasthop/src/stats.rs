//! `lasthop stats`.

mod offload;
mod open_vswitch;

use crate::SharedArgs;
use crate::client::CliError;
use crate::list::{Figures, figures, not_carried};
use crate::settings::value_of;
use crate::table::{Align, Table, duration};
use lasthop_api::{Denied, Drops, Field, LeftOut, Port, Replaced, SwitchStats, Totals, Uplink};
use lasthop_policy::{MAX_CPU_TO, RATE_TO};
use lasthop_text::counted;
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
#[derive(Debug, Default, Serialize)]
struct Stats {
    switch: SwitchStats,
    sum: Sum,
    ports: Vec<Port>,
    interfaces: Vec<Uplink>,
}

/// All ports together. `from_guest + replicated = to_guest + dropped + waiting`; `unaccounted` is the difference. It is
/// not 0 when packets moved while one port after the other was read, or when the counters are wrong.
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
    fn of(ports: &[Port], switch: &SwitchStats) -> Self {
        let mut sum = Self::default();
        let removed = (&switch.removed_from_guest, &switch.removed_to_guest);
        for (from, to) in ports.iter().map(|p| (&p.from_guest, &p.to_guest)).chain([removed]) {
            sum.from_guest += from.packets;
            sum.replicated += from.replicated;
            sum.to_guest += to.packets;
            for d in from.drops.iter().chain(&to.drops) {
                sum.dropped += d.packets;
                *sum.drops.entry(d.reason.clone()).or_default() += d.packets;
            }
        }
        sum.waiting = ports.iter().map(|p| p.waiting).sum();
        let out = i128::from(sum.to_guest) + i128::from(sum.dropped) + i128::from(sum.waiting);
        sum.unaccounted = i128::from(sum.from_guest) + i128::from(sum.replicated) - out;
        sum
    }
}

pub fn stats(args: &StatsArgs) -> Result<String, CliError> {
    let mut instance = args.shared.instance()?;
    let Figures { ports, interfaces, mut switch } = figures(&mut instance)?;
    within_counts(&mut switch.denied, &ports);
    let stats = Stats { sum: Sum::of(&ports, &switch), switch, ports, interfaces };
    args.shared.show(&stats, |s| render(s, args.verbose))
}

/// Details never say more than the counters of their port. The switch counts the packets of a flow, and a flow that comes to drop had let
/// packets through before: of those that came between two looks at it, control cannot tell which were which. What is too much is taken
/// from flows of which control has seen no dropped packet, then from the oldest.
fn within_counts(denied: &mut Vec<Denied>, ports: &[Port]) {
    let mut order: Vec<usize> = (0..denied.len()).collect();
    order.sort_by_key(|n| (denied[*n].packet.is_none(), denied[*n].age_ms));
    let mut left: BTreeMap<(String, String), u64> = BTreeMap::new();
    for n in order {
        let d = &mut denied[n];
        let Some(port) = ports.iter().find(|port| port.name == d.port) else { continue };
        let counted = || {
            let drops = port.from_guest.drops.iter().chain(&port.to_guest.drops);
            drops.filter(|drops| drops.reason == d.reason).map(|drops| drops.packets).sum()
        };
        let left = left.entry((d.port.clone(), d.reason.clone())).or_insert_with(counted);
        d.packets = d.packets.min(*left);
        *left -= d.packets;
    }
    denied.retain(|d| d.packets > 0);
}

fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

/// What floods leave out takes no more lines, unless somebody wants all.
const FEW: usize = 3;

/// The row of what ports counted that were removed.
const REMOVED: &str = "removed ports";

/// The process that decides, in the list of those that were replaced, and what people call it who run the learning switch.
pub const CONTROL: &str = "control";

/// Where among the [`cells`] of a row drops are.
const DROPPED: usize = 4;

fn sum_of(drops: &[Drops]) -> u64 {
    drops.iter().map(|d| d.packets).sum()
}

fn all_drops(totals: &Totals) -> u64 {
    sum_of(&totals.drops)
}

/// `vm1: 3 denied by rule 1 "deny icmp", 2 s ago (icmp 10.0.0.1 > 10.0.0.2)`
pub fn denial(d: &Denied, decider: &str) -> String {
    let text = d.text.as_ref().map_or_else(String::new, |text| format!(" {text:?}"));
    let why = match (d.rule, &d.direction) {
        (Some(0), _) => format!("denied by{text}"),
        (Some(n), _) => format!("denied by rule {n}{text}"),
        (None, Some(_)) => "denied for malformed headers".to_owned(),
        (None, None) => {
            let setting = d.setting.as_ref().map_or_else(String::new, |setting| format!(" by {setting}"));
            format!("dropped as {}{setting}", d.reason)
        }
    };
    // Whose list, unless it is the one that everybody expects.
    let of = match (&d.list, d.direction.as_deref()) {
        (Some(list), Some(direction)) => format!(" of the {direction} list of {list}"),
        (None, Some("to-guest")) => " of the to-guest list".to_owned(),
        _ => String::new(),
    };
    let unseen = || format!("{decider} has seen none of them");
    let packet = d.packet.clone().unwrap_or_else(unseen);
    format!("{}: {} {why}{of}, {} ago ({packet})", d.port, d.packets, age(d.age_ms))
}

/// `left out: floods of vm1 in VLAN 10 do not reach vm2: port vm2 does not carry VLAN 10 (vlan=20)`
fn left_out(l: &LeftOut) -> String {
    let vlan = if l.vlan == 0 { String::new() } else { format!(" in VLAN {}", l.vlan) };
    let more = match l.ports.saturating_sub(l.to.len() as u64) {
        _ if l.ports == 1 => String::new(),
        0 => format!(" ({})", l.reason),
        more => format!(" and {more} more ({})", l.reason),
    };
    format!("left out: floods of {}{vlan} do not reach {}{more}: {}\n", l.port, l.to.join(", "), l.why)
}

/// The first of what floods leave out, or all.
fn all_left_out(stats: &SwitchStats, verbose: bool) -> String {
    let shown = if verbose { usize::MAX } else { FEW };
    let mut out: String = stats.left_out.iter().take(shown).map(left_out).collect();
    if let Some(more) = stats.left_out.len().checked_sub(shown).filter(|more| *more > 0) {
        out.push_str(&format!("left out: {more} more; `lasthop stats --verbose` shows them\n"));
    }
    out
}

/// `replaced: switch, 2 times, last 3 s ago (ended: signal: 9 (SIGKILL))`
fn replaced(r: &Replaced, decider: &str) -> Option<String> {
    let process = if r.process == CONTROL { decider } else { &r.process };
    let times = counted(r.times, "time");
    Some(format!("replaced: {process}, {times}, last {} ago ({})\n", age(r.age_ms?), r.why.as_deref()?))
}

/// What the process is called that decides.
fn decider(stats: &SwitchStats) -> &'static str {
    if stats.open_vswitch.is_some() { "lasthop-ovs" } else { CONTROL }
}

fn age(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..120 => format!("{s} s"),
        s => format!("{} min", s / 60),
    }
}

/// A VM is connected there; an interface is none.
fn has_vm(port: &Port) -> bool {
    port.device.is_none() && !port.uplink && matches!(port.state.as_str(), "connected" | "up" | "broken")
}

fn render(stats: &Stats, verbose: bool) -> String {
    let decider = decider(&stats.switch);
    let mut out = counters(stats, verbose);
    if let Some(drops) = drops(stats, verbose) {
        out.push('\n');
        out.push_str(&drops);
    }
    if !stats.switch.denied.is_empty() {
        out.push('\n');
        stats.switch.denied.iter().for_each(|denied| out.push_str(&format!("{}\n", denial(denied, decider))));
    }
    out.push('\n');
    out.push_str(&sums(stats, verbose));
    out.push_str(&open_vswitch::untaken(&stats.switch));
    out.push_str(&offload::passing(&stats.switch));
    stats.switch.replaced.iter().filter_map(|r| replaced(r, decider)).for_each(|line| out.push_str(&line));
    if !stats.switch.switch_connected {
        out.push_str("the switch process is not connected; counters are not known now\n");
    }
    if verbose {
        out.push_str(&of_control(stats));
    }
    out
}

/// The numbers of one row.
fn cells(from: &Totals, to: &Totals, verbose: bool) -> Vec<u64> {
    let mut cells = vec![from.packets, from.bytes, to.packets, to.bytes, all_drops(from) + all_drops(to)];
    if verbose {
        cells.extend([from.replicated, from.missed, to.segments, to.checksums]);
        cells.extend([from.notifications, to.notifications, from.held, ms(from.busy_ns), ms(to.busy_ns)]);
    }
    cells
}

/// A row for each port, and one for those that were removed.
fn counters(stats: &Stats, verbose: bool) -> String {
    let mut columns = vec!["FROM GUEST", "BYTES", "TO GUEST", "BYTES", "DROPPED"];
    if verbose {
        columns.extend([
            "REPLICATED",
            "MISSED",
            "SEGMENTS",
            "CHECKSUMS",
            "KICKS",
            "INTERRUPTS",
            "HELD",
            "BUSY MS",
            "COPIED MS",
            "CPU MS",
        ]);
    }
    let columns = columns.into_iter().map(|name| (name, Align::Right));
    let mut table = Table::new(&std::iter::once(("PORT", Align::Left)).chain(columns).collect::<Vec<_>>());
    let mut row = |name: &str, cells: Vec<u64>, cpu_ns: Option<u64>| {
        let cpu = verbose.then(|| cpu_ns.map_or("-".into(), |ns| ms(ns).to_string()));
        let numbers = cells.into_iter().map(|n| n.to_string()).chain(cpu);
        table.row(std::iter::once(name.to_owned()).chain(numbers).collect());
    };
    for p in &stats.ports {
        let mut cells = cells(&p.from_guest, &p.to_guest, verbose);
        cells[DROPPED] += sum_of(not_carried(&stats.interfaces, &p.name));
        row(&p.name, cells, p.cpu_ns);
    }
    let (from, to) = (&stats.switch.removed_from_guest, &stats.switch.removed_to_guest);
    if from.packets + to.packets + all_drops(from) + all_drops(to) > 0 {
        row(REMOVED, cells(from, to, verbose), None);
    }
    table.render()
}

/// What was dropped, where and why, if anything was.
fn drops(stats: &Stats, verbose: bool) -> Option<String> {
    let mut table = Table::new(&[("DROPPED", Align::Right), ("PORT", Align::Left), ("REASON", Align::Left)]);
    let mut any = false;
    let removed = (REMOVED, &stats.switch.removed_from_guest, &stats.switch.removed_to_guest);
    let ports = stats.ports.iter().map(|p| (p.name.as_str(), &p.from_guest, &p.to_guest));
    let told = |name: &str| stats.ports.iter().find(|p| p.name == name).map_or(&[][..], |p| &p.settings);
    for (name, from, to) in ports.chain([removed]) {
        for (direction, totals) in [("from", from), ("to", to)] {
            for d in &totals.drops {
                any = true;
                let mut reason = d.reason.clone() + &limit(told(name), &d.reason);
                if let Some(r) = DROP_REASONS.iter().find(|r| verbose && r.name() == d.reason) {
                    reason = format!("{reason}: {}", r.explain());
                }
                table.row(vec![d.packets.to_string(), format!("{direction} {name}"), reason]);
            }
        }
    }
    for interface in &stats.interfaces {
        for d in &interface.drops {
            any = true;
            table.row(vec![d.packets.to_string(), format!("outside {}", interface.name), d.reason.clone()]);
        }
    }
    any.then(|| table.render())
}

/// The setting that says how much may pass, where that is why packets are dropped.
fn limit(settings: &[Field], reason: &str) -> String {
    let names: &[&str] = match reason {
        "storm" => &["storm"],
        "rate" => &[RATE_TO, MAX_CPU_TO],
        _ => &[],
    };
    let told = names.iter().filter_map(|name| Some(format!("{name}={}", value_of(settings, name)?)));
    let told = told.collect::<Vec<_>>().join(" or ");
    if told.is_empty() { told } else { format!(" ({told})") }
}

/// Whether the counters add up, what floods leave out, what VMs do, and processor time.
fn sums(stats: &Stats, verbose: bool) -> String {
    let (sum, s) = (&stats.sum, &stats.switch);
    let mut out = format!(
        "sum: {} in + {} replicated = {} out + {} dropped + {} waiting\n",
        sum.from_guest, sum.replicated, sum.to_guest, sum.dropped, sum.waiting
    );
    if sum.unaccounted != 0 {
        out.push_str(&format!("     {} unaccounted for: packets moved while ports were read\n", sum.unaccounted));
    }
    let outside: u64 = stats.interfaces.iter().map(|interface| sum_of(&interface.drops)).sum();
    if outside > 0 {
        let packets = counted(outside, "packet");
        out.push_str(&format!("     {packets} dropped outside the switch, by ports' interfaces: beside this sum\n"));
    }
    if s.floods_left_out > 0 {
        out.push_str(&format!(
            "left out: uplink to uplink, in {}: nothing goes from one uplink to another; containers and the host \
             itself are ports (`lasthop port add NAME --device DEVICE`)\n",
            counted(s.floods_left_out, "flooded flow")
        ));
    }
    out.push_str(&all_left_out(s, verbose));
    let doing = |what: Option<&str>| stats.ports.iter().filter(|p| p.vm.as_deref() == what && has_vm(p)).count();
    let (running, blocked, unknown) = (doing(Some("running")), doing(Some("blocked")), doing(None));
    out.push_str(&format!("VMs: {running} running, {blocked} blocked, {unknown} not known\n"));
    let cpu = &s.cpu;
    let named = |part: &'static str| if part == "control" { decider(s) } else { part };
    let parts: Vec<String> = cpu.parts().into_iter().map(|(part, ns)| format!("{} {}", ms(ns), named(part))).collect();
    out.push_str(&format!("CPU ms: {} = {}\n", parts.join(" + "), ms(cpu.total_ns)));
    out
}

/// What control has done, and which ports have met a limit.
fn of_control(stats: &Stats) -> String {
    let s = &stats.switch;
    let mut out = format!(
        "{}: up {}, {}, {}, epoch {}, {} answered, {} sent, {} withdrawn\n",
        decider(s),
        duration(s.uptime_ms),
        counted(s.macs, "address"),
        counted(s.flows, "flow"),
        s.epoch,
        counted(s.misses, "miss"),
        counted(s.flows_put, "flow"),
        s.flows_deleted
    );
    let c = &s.caches;
    out.push_str(&format!(
        "flow caches: {} of {} filled; {} found a flow there, {} in the table of {}; {} driven out\n",
        c.used,
        counted(c.entries, "place"),
        counted(c.hits, "lookup"),
        c.misses,
        counted(s.masks, "mask"),
        counted(c.evicted, "flow")
    ));
    for p in stats.ports.iter().filter(|p| p.sources_over_limit + p.moves_refused > 0) {
        out.push_str(&format!(
            "{}: {} from addresses over its limit of {}, {} from addresses held elsewhere\n",
            p.name,
            counted(p.sources_over_limit, "packet"),
            p.mac_limit,
            p.moves_refused
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{CpuTimes, Totals};

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
                Totals { packets: 10, replicated: 3, drops: drops("acl", 2), ..Totals::default() },
                Totals { packets: 4, ..Totals::default() },
            ),
            port(
                "b",
                Totals { packets: 1, ..Totals::default() },
                Totals { packets: 6, drops: drops("no_buffers", 1), ..Totals::default() },
            ),
        ];
        assert_eq!(Sum::of(&ports, &SwitchStats::default()).unaccounted, 1);
        ports[1].waiting = 1;
        (ports[1].state, ports[1].vm) = ("up".into(), Some("blocked".into()));
        let sum = Sum::of(&ports, &SwitchStats::default());
        assert_eq!((sum.from_guest, sum.replicated, sum.to_guest, sum.dropped), (11, 3, 10, 3));
        assert_eq!((sum.waiting, sum.unaccounted), (1, 0));
        ports[0].cpu_ns = Some(7_900_000);
        let cpu = CpuTimes { ports_ns: 7_900_000, helpers_ns: 4_200_000, total_ns: 12_100_000, ..CpuTimes::default() };
        let text = render(
            &Stats { switch: SwitchStats { cpu, ..SwitchStats::default() }, sum, ports, interfaces: Vec::new() },
            true,
        );
        let last = |port: &str| text.lines().find(|l| l.starts_with(port)).and_then(|l| l.split(' ').next_back());
        assert_eq!((last("a "), last("b ")), (Some("7"), Some("-")), "{text}");
        let parts =
            "CPU ms: 7 ports + 4 helpers + 0 main + 0 other + 0 control + 0 uplinks + 0 sessions + 0 supervisor = 12\n";
        assert!(text.contains(parts), "{text}");
        assert!(text.contains("sum: 11 in + 3 replicated = 10 out + 3 dropped + 1 waiting\n"), "{text}");
        assert!(text.contains("VMs: 0 running, 1 blocked, 0 not known\n"), "{text}");
        assert!(text.contains("from a  acl: A rule of an access list denied"), "{text}");
        assert!(text.contains("to b    no_buffers: The receiver"), "{text}");
    }

    #[test]
    fn a_limit_is_named_where_it_drops() {
        let mut a = port(
            "a",
            Totals { drops: drops("storm", 7), ..Totals::default() },
            Totals { drops: drops("rate", 5), ..Totals::default() },
        );
        let set = |name: &str, value: &str| Field { name: name.into(), value: value.into() };
        a.settings = vec![set("rate-to", "1M"), set("storm", "10pps")];
        let text = super::drops(&Stats { ports: vec![a], ..Stats::default() }, false).unwrap();
        assert!(text.contains("7  from a  storm (storm=10pps)\n"), "{text}");
        assert!(text.contains("5  to a    rate (rate-to=1M)\n"), "{text}");
    }

    /// Veths and uplinks were VMs that nothing is known of.
    #[test]
    fn interfaces_are_no_vms() {
        let up = |name: &str| Port { state: "up".into(), ..port(name, Totals::default(), Totals::default()) };
        let device = Some("veth1".to_owned());
        let ports = vec![up("vm1"), Port { device, ..up("c1") }, Port { uplink: true, ..up("net") }];
        let text = render(
            &Stats { switch: SwitchStats::default(), sum: Sum::default(), ports, interfaces: Vec::new() },
            false,
        );
        assert!(text.contains("VMs: 0 running, 0 blocked, 1 not known\n"), "{text}");
    }

    /// Of packets longer than a container's MTU nothing was said.
    #[test]
    fn what_interfaces_dropped_is_shown_beside_the_sum() {
        let ports = vec![port("b", Totals::default(), Totals { packets: 3, ..Totals::default() })];
        let interfaces =
            vec![Uplink { name: "b".into(), guest: true, drops: drops("too_long", 3), ..Uplink::default() }];
        let text = render(&Stats { ports, interfaces, ..Stats::default() }, false);
        assert!(text.lines().any(|l| l.split_whitespace().eq(["b", "0", "0", "3", "0", "3"])), "{text}");
        assert!(text.contains("      3  outside b  too_long\n"), "{text}");
        assert!(text.contains("     3 packets dropped outside the switch"), "{text}");
    }

    #[test]
    fn what_removed_ports_counted_is_part_of_the_sum() {
        let ports =
            [port("a", Totals { packets: 10, ..Totals::default() }, Totals { packets: 2, ..Totals::default() })];
        let switch = SwitchStats {
            removed_from_guest: Totals { packets: 1, replicated: 1, drops: drops("acl", 1), ..Totals::default() },
            removed_to_guest: Totals { packets: 8, drops: drops("no_buffers", 1), ..Totals::default() },
            ..SwitchStats::default()
        };
        let sum = Sum::of(&ports, &switch);
        assert_eq!((sum.from_guest, sum.to_guest, sum.dropped, sum.unaccounted), (11, 10, 2, 0));
        let text = render(&Stats { switch, sum, ports: ports.into(), interfaces: Vec::new() }, false);
        assert!(text.contains("removed ports") && text.contains("from removed ports  acl"), "{text}");
        assert!(!text.contains("unaccounted"), "{text}");
    }

    #[test]
    fn processes_that_were_replaced_are_shown_and_no_others() {
        let replaced = |process: &str, times, age_ms, why: Option<&str>| Replaced {
            process: process.into(),
            times,
            age_ms,
            why: why.map(Into::into),
        };
        let switch = SwitchStats {
            replaced: vec![
                replaced("switch", 2, Some(3500), Some("ended: signal: 9 (SIGKILL)")),
                replaced("uplink net", 1, Some(600_000), Some("hung: it has not answered for 8 ms")),
                replaced("control", 0, None, None),
            ],
            ..SwitchStats::default()
        };
        let text = render(&Stats { switch, sum: Sum::default(), ..Stats::default() }, false);
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with("replaced:")).collect();
        let of_switch = "replaced: switch, 2 times, last 3 s ago (ended: signal: 9 (SIGKILL))";
        let of_uplink = "replaced: uplink net, 1 time, last 10 min ago (hung: it has not answered for 8 ms)";
        assert_eq!(lines, [of_switch, of_uplink]);
    }

    #[test]
    fn where_open_vswitch_decides_nothing_is_said_of_control() {
        let switch = SwitchStats {
            open_vswitch: Some(Vec::new()),
            replaced: vec![Replaced {
                process: "control".into(),
                times: 1,
                age_ms: Some(3000),
                why: Some("hung".into()),
            }],
            denied: vec![Denied { port: "vm1".into(), packets: 3, reason: "meter".into(), ..Denied::default() }],
            ..SwitchStats::default()
        };
        let text = render(&Stats { switch, ..Stats::default() }, true);
        assert!(text.contains("replaced: lasthop-ovs, 1 time") && text.contains("\nlasthop-ovs: up "), "{text}");
        assert!(text.contains("(lasthop-ovs has seen none of them)") && text.contains(" 0 lasthop-ovs + "), "{text}");
        assert!(!text.contains("control"), "{text}");
    }

    #[test]
    fn a_denial_names_the_rule_the_packet_and_its_age() {
        let rule = Denied {
            port: "vm1".into(),
            packets: 3,
            reason: "acl".into(),
            direction: Some("from-guest".into()),
            rule: Some(1),
            text: Some("deny icmp".into()),
            age_ms: 2000,
            packet: Some("icmp 10.0.0.1 > 10.0.0.2".into()),
            ..Denied::default()
        };
        assert_eq!(denial(&rule, CONTROL), "vm1: 3 denied by rule 1 \"deny icmp\", 2 s ago (icmp 10.0.0.1 > 10.0.0.2)");
        let own = Denied { list: Some("vm2".into()), direction: Some("to-guest".into()), ..rule.clone() };
        assert!(denial(&own, CONTROL).contains("denied by rule 1 \"deny icmp\" of the to-guest list of vm2, "));
        let default = Denied { rule: Some(0), text: Some("default deny".into()), ..rule.clone() };
        assert!(denial(&default, CONTROL).contains("3 denied by \"default deny\", "));
        let vlan = Denied { reason: "vlan".into(), direction: None, rule: None, text: None, ..rule };
        assert!(denial(&vlan, CONTROL).contains("3 dropped as vlan, 2 s ago"));
        let spoofed = Denied { reason: "spoofed".into(), setting: Some("mac".into()), ..vlan.clone() };
        assert!(denial(&spoofed, CONTROL).contains("3 dropped as spoofed by mac, 2 s ago (icmp"));
        let unseen = Denied { packet: None, ..vlan };
        assert_eq!(denial(&unseen, CONTROL), "vm1: 3 dropped as vlan, 2 s ago (control has seen none of them)");
    }

    /// A flood went out, then both ports: its flow drops now, and the switch has dropped nothing.
    #[test]
    fn details_say_no_more_than_the_ports_have_counted() {
        let denied = |reason: &str, packets, packet: Option<&str>| Denied {
            port: "vm1".into(),
            packets,
            reason: reason.into(),
            packet: packet.map(str::to_owned),
            ..Denied::default()
        };
        let mut port = Port { name: "vm1".into(), ..Port::default() };
        port.from_guest.drops = vec![Drops { reason: "port_down".into(), packets: 403 }];
        let seen = denied("port_down", 402, Some("icmp 10.0.0.1 > 10.0.0.2"));
        let elsewhere = Denied { port: "gone".into(), ..denied("acl", 5, None) };
        let mut all =
            vec![denied("no_other_port", 3, None), denied("port_down", 3, None), seen.clone(), elsewhere.clone()];
        within_counts(&mut all, &[port]);
        assert_eq!(all, [denied("port_down", 1, None), seen, elsewhere]);
    }

    #[test]
    fn what_floods_leave_out_is_said_in_a_few_lines() {
        let one = |port: &str, ports: u64, reason: &str| LeftOut {
            port: port.into(),
            vlan: 0,
            reason: reason.into(),
            to: (0..ports.min(4)).map(|n| format!("vm{}", n + 5)).collect(),
            ports,
            why: "vm5 is isolated: it talks to uplinks only".into(),
        };
        let left_out =
            vec![one("vm1", 1, "isolated"), one("vm2", 9, "isolated"), one("vm3", 1, "acl"), one("vm4", 1, "acl")];
        let stats = Stats { switch: SwitchStats { left_out, ..SwitchStats::default() }, ..Stats::default() };
        let lines = |verbose| {
            let text = render(&stats, verbose);
            text.lines().filter(|l| l.starts_with("left out:")).map(str::to_owned).collect::<Vec<_>>()
        };
        let said = [
            "left out: floods of vm1 do not reach vm5: vm5 is isolated: it talks to uplinks only",
            "left out: floods of vm2 do not reach vm5, vm6, vm7, vm8 and 5 more (isolated): vm5 is isolated: it talks to uplinks only",
        ];
        assert_eq!(lines(false)[..2], said);
        assert_eq!(lines(false)[3..], ["left out: 1 more; `lasthop stats --verbose` shows them"]);
        assert_eq!(lines(true).len(), 4);
    }
}
