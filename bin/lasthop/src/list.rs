//! `lasthop port list`, `flow list`.

use crate::SharedArgs;
use crate::client::{CliError, Instance, collect};
use crate::no_effect::{Note, notes};
use crate::run::PACKET_PORT;
use crate::settings::value_of;
use crate::shares::{Share, shares};
use crate::table::{Align, Table, duration};
use lasthop_api::{Drops, Field, Flow, Mirror, Port, RatesOf, SwitchProxy, SwitchStats, Translation, Uplink};
use lasthop_policy::MAX_CPU;
use lasthop_text::counted;
use serde::Serialize;

/// `lasthop port list --json`
#[derive(Debug, Serialize)]
struct Ports {
    ports: Vec<Port>,
    interfaces: Vec<Uplink>,
    /// Rates that Open vSwitch has set; they go before those that ports are told.
    rates: Vec<RatesOf>,
    /// By which weights guests share what several of them want.
    shares: Vec<Share>,
    /// Settings that do nothing where their port is now, or that keep its guest away when it sets its rings up again.
    no_effect: Vec<Note>,
}

/// `lasthop flow list --json`
#[derive(Debug, Serialize)]
struct Flows {
    flows: Vec<Flow>,
}

/// Asks for all ports.
pub fn all_ports(instance: &mut Instance) -> Result<Vec<Port>, CliError> {
    instance.ask(async |c| collect(c.port_list().await, |page| page.ports).await)
}

/// Whether Open vSwitch decides: then what the learning switch alone knows is empty for good.
pub fn ovs_decides(instance: &mut Instance) -> Result<bool, CliError> {
    Ok(instance.ask(async |c| c.stats().await)?.open_vswitch.is_some())
}

/// What the processes of those of these ports say that are interfaces: of uplinks and of guests.
pub fn interfaces(instance: &mut Instance, ports: &[Port]) -> Result<Vec<Uplink>, CliError> {
    if !ports.iter().any(|port| port.uplink || port.device.is_some()) {
        return Ok(Vec::new());
    }
    Ok(instance.ask(async |c| c.uplink_list().await)?.uplinks)
}

/// Ports, interfaces and figures of the whole switch, as nearly of one moment as can be.
#[derive(Debug)]
pub struct Figures {
    pub ports: Vec<Port>,
    pub interfaces: Vec<Uplink>,
    pub switch: SwitchStats,
}

/// Asks for all of it.
pub fn figures(instance: &mut Instance) -> Result<Figures, CliError> {
    // In this order: control knows the caches' figures from what the switch said with its ports.
    let ports = all_ports(instance)?;
    let switch = instance.ask(async |c| c.stats().await)?;
    let interfaces = interfaces(instance, &ports)?;
    Ok(Figures { ports, interfaces, switch })
}

pub fn ports(shared: &SharedArgs) -> Result<String, CliError> {
    let mut instance = shared.instance()?;
    let ports = all_ports(&mut instance)?;
    let interfaces = interfaces(&mut instance, &ports)?;
    let mirrors = instance.ask(async |c| c.mirror_list().await)?.mirrors;
    let switch = instance.ask(async |c| c.stats().await)?;
    let (shares, no_effect) = (shares(&ports), notes(&mut instance, &switch.host, &ports)?);
    let rates = switch.deciders.unwrap_or_default().rates;
    shared.show(&Ports { ports, interfaces, rates, shares, no_effect }, |p| {
        port_table(&p.ports, &p.interfaces)
            + &p.shares
                .iter()
                .filter(|of| of.weight != of.own)
                .map(|of| format!("{}: {}\n", of.port, of.told()))
                .collect::<String>()
            + &p.no_effect.iter().map(|note| note.told() + "\n").collect::<String>()
            + &destinations(&p.ports, &mirrors)
            + &p.rates.iter().map(|of| format!("{}: {}\n", of.port, rates_of(of))).collect::<String>()
    })
}

/// Rates of a port that Open vSwitch has set.
pub fn rates_of(of: &RatesOf) -> String {
    let from = of.from.iter().map(|rate| format!("{rate} from there"));
    let both: Vec<_> = from.chain(of.to.iter().map(|rate| format!("{rate} to there"))).collect();
    format!("Open vSwitch sets {}, which goes before what `lasthop port set` says", both.join(", "))
}

/// Which ports get copies and nothing else: what such a guest sends is dropped.
fn destinations(ports: &[Port], mirrors: &[Mirror]) -> String {
    let of = |port: &Port| -> Vec<&str> {
        mirrors.iter().filter(|mirror| mirror.to == port.name).map(|mirror| mirror.name.as_str()).collect()
    };
    let named = ports.iter().filter(|port| !port.uplink).map(|port| (port, of(port)));
    named
        .filter(|(_, mirrors)| !mirrors.is_empty())
        .map(|(port, mirrors)| {
            format!("{}: gets copies by mirror {} and nothing else\n", port.name, mirrors.join(", "))
        })
        .collect()
}

pub fn flows(shared: &SharedArgs) -> Result<String, CliError> {
    let flows = shared.instance()?.ask(async |c| collect(c.flow_list().await, |page| page.flows).await)?;
    shared.show(&Flows { flows }, |f| flow_table(&f.flows))
}

fn mode(port: &Port) -> &'static str {
    match (port.uplink, &port.device, port.client) {
        (true, ..) => "uplink",
        (_, Some(_), _) => "device",
        (.., true) => "connect",
        (.., false) => "listen",
    }
}

/// Packets that this port's interface or its process did not carry.
pub fn not_carried<'a>(interfaces: &'a [Uplink], port: &str) -> &'a [Drops] {
    interfaces.iter().find(|interface| interface.name == port).map_or(&[], |interface| &interface.drops)
}

/// Undelivered packets, both directions, and those that its interface did not carry.
fn dropped(port: &Port, interfaces: &[Uplink]) -> u64 {
    let of_switch = port.from_guest.drops.iter().chain(&port.to_guest.drops);
    of_switch.chain(not_carried(interfaces, &port.name)).map(|d| d.packets).sum()
}

/// What is known of the addresses that a guest's IOMMU translates, and whether packets wait for more.
fn translation(port: &Port) -> String {
    let Some(t) = &port.translation else { return String::new() };
    let (name, known, misses, taken) = (&port.name, t.ranges, t.misses, t.invalidations);
    let mut lines = format!(
        "{name}: its guest's IOMMU translates addresses: {known} ranges known, {misses} asked for, {taken} invalidations{}\n",
        protects(t)
    );
    // A guest that maps each buffer for one use has some at any time.
    if t.unanswered > 0 {
        let pages = counted(t.unanswered, "page");
        lines += &format!(
            "{name}: {pages} asked for at this moment; `lasthop doctor {name}` looks whether they are answered\n"
        );
    }
    if t.refused > 0 {
        let pages = counted(t.refused, "page");
        lines += &format!("{name}: its guest used {pages} that it has not granted, says its front-end\n");
    }
    lines
}

/// What to think of a guest that has taken nothing back.
pub fn protects(t: &Translation) -> &'static str {
    if t.ranges > 0 && t.invalidations == 0 {
        " (nothing was ever taken back: pass-through, or an IOMMU that the guest has no driver for, protects from nothing)"
    } else {
        ""
    }
}

/// What went wrong last, and when if that is known.
pub fn trouble(port: &Port, word: &str) -> Option<String> {
    let why = port.last_error.as_ref().filter(|_| port.state != "up")?;
    let age = port.last_error_age_ms.map_or_else(String::new, |ms| format!(", {} ago", duration(ms)));
    Some(format!("{word}{age}: {why}"))
}

fn port_table(ports: &[Port], interfaces: &[Uplink]) -> String {
    if ports.is_empty() {
        return "no ports; make one with `lasthop port add NAME PATH`, or `--device DEVICE`\n".into();
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("MODE", Align::Left),
        ("VM", Align::Left),
        ("QUEUES", Align::Right),
        ("MACS", Align::Right),
        ("FROM GUEST", Align::Right),
        ("TO GUEST", Align::Right),
        ("DROPPED", Align::Right),
        ("SOCKET OR DEVICE", Align::Left),
    ]);
    let mut notes = String::new();
    for p in ports {
        let enabled = p.queues.iter().filter(|q| q.enabled).count();
        table.row(vec![
            p.name.clone(),
            p.state.clone(),
            mode(p).into(),
            vm(p),
            enabled.to_string(),
            p.macs.to_string(),
            p.from_guest.packets.to_string(),
            p.to_guest.packets.to_string(),
            dropped(p, interfaces).to_string(),
            place(p),
        ]);
        if !p.settings.is_empty() {
            notes.push_str(&format!("{}: {}\n", p.name, fields(&p.settings)));
        }
        if p.from_guest.held > 0 {
            let (name, times) = (&p.name, counted(p.from_guest.held, "time"));
            // Where Open vSwitch decides, rates are in its database; else it was set, and is not any more.
            let set = ["rate-from", MAX_CPU].into_iter().filter(|name| value_of(&p.settings, name).is_some());
            notes.push_str(&match set.collect::<Vec<_>>().join(" or ") {
                set if set.is_empty() => {
                    format!("{name}: was held {times}; no rate-from is set now, where Open vSwitch decides it may have set a rate\n")
                }
                set => format!("{name}: held {times} by {set}: its guest sends more than that\n"),
            });
        }
        for d in not_carried(interfaces, &p.name) {
            let packets = counted(d.packets, "packet");
            notes.push_str(&format!("{}: {packets} dropped by its interface: {}\n", p.name, d.reason));
        }
        if let Some(why) = &p.error {
            notes.push_str(&format!("{}: broken: {why}\n", p.name));
        }
        notes.push_str(&translation(p));
        if let Some(note) = &p.note {
            notes.push_str(&format!("{}: {note}\n", p.name));
        }
        for q in &p.queues {
            if let Some(why) = &q.error {
                notes.push_str(&format!("{}: queue {} stopped: {why}\n", p.name, q.index));
            }
        }
        let what = if p.device.is_some() { "last trouble" } else { "last connection" };
        notes.extend(trouble(p, what).map(|line| format!("{}: {line}\n", p.name)));
    }
    table.render() + &notes
}

/// Its socket, or its interface and how that is used.
fn place(port: &Port) -> String {
    match (&port.device, &port.driver) {
        (Some(device), Some(driver)) => format!("{device} ({driver})"),
        (Some(device), None) => device.clone(),
        (None, _) if port.uplink => "-".into(),
        (None, _) => port.path.clone(),
    }
}

/// What its VM does; `-` if that is not known.
fn vm(port: &Port) -> String {
    match (&port.vm, port.vm_cpu) {
        (Some(_), Some(cpu)) => format!("cpu {cpu}"),
        (Some(state), None) => state.clone(),
        (None, _) => "-".into(),
    }
}

/// `name=value` pairs.
pub fn fields(fields: &[Field]) -> String {
    fields.iter().map(|f| format!("{}={}", f.name, f.value)).collect::<Vec<_>>().join(" ")
}

/// Ports, or that there are none.
pub fn outputs(outputs: &[String]) -> String {
    if outputs.is_empty() { "drop".into() } else { outputs.join(",") }
}

/// What a flow does: why it drops, the ports it goes to, and what is changed before.
fn actions(flow: &Flow) -> String {
    match &flow.actions[..] {
        [] => outputs(&flow.outputs),
        actions => actions.join(","),
    }
}

/// Behind such a flow's fields.
const OWN_WAY: &str = "  (lasthop's own: from lasthop-ovs to that port)";

/// Where Open vSwitch decides, a flow for what comes from `lasthop-ovs`: none of Open vSwitch's.
fn is_own_way(flow: &Flow) -> bool {
    flow.fields.iter().any(|field| field.name == "in_port" && field.value == PACKET_PORT)
}

fn flow_table(flows: &[Flow]) -> String {
    if flows.is_empty() {
        return "no flows; they appear with the first packets\n".into();
    }
    let mut table = Table::new(&[
        ("PACKETS", Align::Right),
        ("BYTES", Align::Right),
        ("IDLE", Align::Right),
        ("TO", Align::Left),
        ("FIELDS", Align::Left),
    ]);
    for f in flows {
        let mark = if is_own_way(f) { OWN_WAY } else { "" };
        let fields = format!("{}{mark}", fields(&f.fields));
        table.row(vec![f.packets.to_string(), f.bytes.to_string(), duration(f.idle_ms), actions(f), fields]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{Queue, Totals};

    #[test]
    fn a_broken_port_says_why() {
        let totals = |packets, drops| Totals { packets, drops, ..Totals::default() };
        let port = Port {
            name: "vm1".into(),
            state: "broken".into(),
            error: Some("ring 1: the available index jumped by 700".into()),
            path: "/run/vm1.sock".into(),
            vm: Some("running".into()),
            vm_cpu: Some(12),
            queues: vec![Queue { index: 1, enabled: true, error: Some("here".into()), ..Queue::default() }],
            settings: vec![Field { name: "rate-from".into(), value: "1M".into() }],
            from_guest: Totals { held: 3, ..totals(5, vec![Drops { reason: "policy".into(), packets: 2 }]) },
            to_guest: totals(7, vec![Drops { reason: "no_buffers".into(), packets: 3 }]),
            ..Port::default()
        };
        let untold = Port { settings: Vec::new(), ..port.clone() };
        let text = port_table(&[untold], &[]);
        assert!(
            text.contains("vm1: was held 3 times; no rate-from is set now"),
            "the rate is not set any more: {text}"
        );
        assert_eq!(
            port_table(&[port], &[]),
            "NAME  STATE   MODE    VM      QUEUES  MACS  FROM GUEST  TO GUEST  DROPPED  SOCKET OR DEVICE\n\
             vm1   broken  listen  cpu 12       1     0           5         7        5  /run/vm1.sock\n\
             vm1: rate-from=1M\n\
             vm1: held 3 times by rate-from: its guest sends more than that\n\
             vm1: broken: ring 1: the available index jumped by 700\n\
             vm1: queue 1 stopped: here\n"
        );
    }

    /// What the process of a container's veth, a tunnel or an uplink had dropped was shown nowhere.
    #[test]
    fn what_an_interface_dropped_is_dropped() {
        let port = |name: &str| Port { name: name.into(), device: Some(name.into()), ..Port::default() };
        let drops = vec![Drops { reason: "too_long".into(), packets: 3 }];
        let interfaces = [Uplink { name: "c1".into(), guest: true, drops, ..Uplink::default() }];
        let text = port_table(&[port("c1"), port("c2")], &interfaces);
        let dropped =
            |name: &str| text.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_whitespace().rev().nth(1));
        assert_eq!((dropped("c1 "), dropped("c2 ")), (Some("3"), Some("0")), "{text}");
        assert!(text.ends_with("c1: 3 packets dropped by its interface: too_long\n"), "{text}");
    }

    #[test]
    fn flows_that_drop_say_so() {
        let field = |name: &str, value: &str| Field { name: name.into(), value: value.into() };
        let flow = Flow { fields: vec![field("in_port", "vm1"), field("vlan", "none")], ..Flow::default() };
        assert_eq!(
            flow_table(&[flow]),
            "PACKETS  BYTES  IDLE  TO    FIELDS\n      0      0   0ms  drop  in_port=vm1 vlan=none\n"
        );
        let own = Flow { fields: vec![field("in_port", "ovs-packets")], ..Flow::default() };
        assert!(flow_table(&[own]).contains("in_port=ovs-packets  (lasthop's own"));
    }
}
