//! `lasthop port list`, `flow list`.

use crate::SharedArgs;
use crate::client::{CliError, Instance, collect};
use crate::table::{Align, Table, duration};
use lasthop_api::{Field, Flow, Port, SwitchProxy};
use lasthop_types::counted;
use serde::Serialize;

/// `lasthop port list --json`
#[derive(Debug, Serialize)]
struct Ports {
    ports: Vec<Port>,
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

pub fn ports(shared: &SharedArgs) -> Result<String, CliError> {
    let ports = Ports { ports: all_ports(&mut shared.instance()?)? };
    shared.show(&ports, |p| port_table(&p.ports))
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

/// Undelivered packets, both directions.
pub fn dropped(port: &Port) -> u64 {
    port.from_guest.drops.iter().chain(&port.to_guest.drops).map(|d| d.packets).sum()
}

fn port_table(ports: &[Port]) -> String {
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
            dropped(p).to_string(),
            place(p),
        ]);
        if !p.settings.is_empty() {
            notes.push_str(&format!("{}: {}\n", p.name, fields(&p.settings)));
        }
        if p.from_guest.held > 0 {
            let times = counted(p.from_guest.held, "time");
            notes.push_str(&format!("{}: held {times} by rate-from: its guest sends more than that\n", p.name));
        }
        if let Some(why) = &p.error {
            notes.push_str(&format!("{}: broken: {why}\n", p.name));
        }
        if let Some(note) = &p.note {
            notes.push_str(&format!("{}: {note}\n", p.name));
        }
        for q in &p.queues {
            if let Some(why) = &q.error {
                notes.push_str(&format!("{}: queue {} stopped: {why}\n", p.name, q.index));
            }
        }
        if let Some(why) = p.last_error.as_ref().filter(|_| p.state != "up") {
            let what = if p.device.is_some() { "last trouble" } else { "last connection" };
            notes.push_str(&format!("{}: {what}: {why}\n", p.name));
        }
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
        table.row(vec![f.packets.to_string(), f.bytes.to_string(), duration(f.idle_ms), actions(f), fields(&f.fields)]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{Drops, Queue, Totals};

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
            from_guest: Totals { held: 3, ..totals(5, vec![Drops { reason: "policy".into(), packets: 2 }]) },
            to_guest: totals(7, vec![Drops { reason: "no_buffers".into(), packets: 3 }]),
            ..Port::default()
        };
        assert_eq!(
            port_table(&[port]),
            "NAME  STATE   MODE    VM      QUEUES  MACS  FROM GUEST  TO GUEST  DROPPED  SOCKET OR DEVICE\n\
             vm1   broken  listen  cpu 12       1     0           5         7        5  /run/vm1.sock\n\
             vm1: held 3 times by rate-from: its guest sends more than that\n\
             vm1: broken: ring 1: the available index jumped by 700\n\
             vm1: queue 1 stopped: here\n"
        );
    }

    #[test]
    fn flows_that_drop_say_so() {
        let field = |name: &str, value: &str| Field { name: name.into(), value: value.into() };
        let flow = Flow { fields: vec![field("in_port", "vm1"), field("vlan", "none")], ..Flow::default() };
        assert_eq!(
            flow_table(&[flow]),
            "PACKETS  BYTES  IDLE  TO    FIELDS\n      0      0   0ms  drop  in_port=vm1 vlan=none\n"
        );
    }
}
