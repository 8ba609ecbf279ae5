//! `lasthop show PORT`: everything of one port or uplink on one screen.

mod features;
mod screen;

use crate::SharedArgs;
use crate::client::{CliError, Instance, collect};
use crate::list::{all_ports, interfaces};
use crate::no_effect::{Note, Place};
use crate::shares::{Share, shares};
use clap::Args;
use lasthop_api::{AclRule, Denied, Flow, Mac, Mirror, Port, PortConnections, RatesOf, Replaced, SwitchProxy, Uplink};
use serde::Serialize;

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A port or an uplink
    #[arg(add = crate::completions::ports())]
    port: String,
    #[command(flatten)]
    shared: SharedArgs,
}

/// `lasthop show PORT --json`
#[derive(Debug, Default, Serialize)]
struct Shown {
    /// As in `lasthop port list`.
    port: Port,
    /// Names of the features that its `features` and `protocol_features` are.
    feature_names: Vec<String>,
    protocol_feature_names: Vec<String>,
    /// As in `lasthop uplink list`, where the port is an interface.
    interface: Option<Uplink>,
    /// Addresses that live there.
    macs: Vec<Mac>,
    /// Rules of the access lists that it is judged by.
    rules: Vec<AclRule>,
    /// Mirrors that copy its packets, or to which it gets copies.
    mirrors: Vec<Mirror>,
    /// Flows whose packets come from there, or go there.
    flows: Vec<Flow>,
    /// Connections that it has opened, where lists ask about them.
    connections: Option<PortConnections>,
    /// What flows have dropped of what came from there.
    denied: Vec<Denied>,
    /// Its processes, and how often each was replaced.
    replaced: Vec<Replaced>,
    /// Open vSwitch decides.
    open_vswitch: bool,
    /// Rates that it has set.
    rates: Option<RatesOf>,
    /// By which weight its guest shares what several want; none of an uplink.
    share: Option<Share>,
    /// What of its settings does nothing, as in `lasthop port list`.
    no_effect: Vec<Note>,
    /// The engine that polls its rings; none if it has a thread of its own.
    polled_by: Option<String>,
    /// Why interrupts of its guest are not held back, if they are not.
    not_held_back: Option<String>,
}

/// `lasthop show PORT`
pub fn show(args: &ShowArgs) -> Result<String, CliError> {
    let (mut instance, _) = crate::device::ports::at(&args.shared.run_dir, &args.port)?;
    let shown = ask(&mut instance, &args.port)?;
    args.shared.show(&shown, screen::render)
}

/// The same, as text.
pub fn text(instance: &mut Instance, name: &str) -> Result<String, CliError> {
    ask(instance, name).map(|shown| screen::render(&shown))
}

fn ask(instance: &mut Instance, name: &str) -> Result<Shown, CliError> {
    let ports = all_ports(instance)?;
    let of_interfaces = interfaces(instance, &ports)?;
    let share = shares(&ports).into_iter().find(|of| of.port == name);
    let Some(port) = ports.into_iter().find(|port| port.name == name) else {
        let message = format!("there is no port named {name:?}; `lasthop port list` shows those there are");
        return Err(CliError::new(message));
    };
    let switch = instance.ask(async |c| c.stats().await)?;
    let engines = instance.ask(async |c| c.engine_list().await)?;
    let unknown = switch.host.vms_unknown.clone();
    let place = Place { engines: &engines, vms_unknown: unknown.as_deref() };
    let macs = instance.ask(async |c| collect(c.mac_list().await, |page| page.macs).await)?;
    let rules = instance.ask(async |c| collect(c.acl_show(&[name], false).await, |page| page.rules).await)?;
    let mirrors = instance.ask(async |c| c.mirror_list().await)?.mirrors;
    let flows = instance.ask(async |c| collect(c.flow_list().await, |page| page.flows).await)?;
    let connections = instance.ask(async |c| c.conntrack_stats().await)?;
    Ok(Shown {
        feature_names: features::virtio(&port.features),
        protocol_feature_names: features::protocol(&port.protocol_features),
        interface: of_interfaces.into_iter().find(|interface| interface.name == name),
        macs: macs.into_iter().filter(|mac| mac.port == name).collect(),
        rules,
        mirrors: mirrors.into_iter().filter(|mirror| concerns(mirror, name)).collect(),
        flows: busiest(flows.into_iter().filter(|flow| is_of(flow, name)).collect()),
        connections: connections.ports.into_iter().find(|port| port.port == name),
        denied: switch.denied.into_iter().filter(|denied| denied.port == name).collect(),
        replaced: switch.replaced.into_iter().filter(|replaced| is_process_of(&replaced.process, name)).collect(),
        open_vswitch: switch.open_vswitch.is_some(),
        no_effect: place.notes(&port),
        polled_by: place.polled_by(&port),
        not_held_back: place.not_held_back(&port),
        rates: switch.deciders.and_then(|deciders| deciders.rates.into_iter().find(|of| of.port == name)),
        share,
        port,
    })
}

fn concerns(mirror: &Mirror, port: &str) -> bool {
    mirror.to == port || mirror.from.iter().any(|from| from == port)
}

fn is_of(flow: &Flow, port: &str) -> bool {
    let comes = |field: &lasthop_api::Field| field.name == "in_port" && field.value == port;
    flow.fields.iter().any(comes) || flow.outputs.iter().any(|to| to == port)
}

fn busiest(mut flows: Vec<Flow>) -> Vec<Flow> {
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.packets));
    flows
}

/// `session NAME`, `uplink NAME`, `port NAME`.
fn is_process_of(process: &str, port: &str) -> bool {
    process.split_once(' ').is_some_and(|(_, name)| name == port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::Field;

    #[test]
    fn what_is_of_a_port() {
        let flow = |from: &str, to: &str, packets| Flow {
            fields: vec![Field { name: "in_port".into(), value: from.into() }],
            outputs: vec![to.into()],
            packets,
            ..Flow::default()
        };
        let flows = [flow("a", "b", 1), flow("b", "a", 7), flow("b", "c", 9)];
        let of_a = busiest(flows.into_iter().filter(|flow| is_of(flow, "a")).collect());
        assert_eq!(of_a.iter().map(|flow| flow.packets).collect::<Vec<_>>(), [7, 1]);
        let mirror = Mirror { from: vec!["a".into()], to: "ids".into(), ..Mirror::default() };
        assert!(concerns(&mirror, "a") && concerns(&mirror, "ids") && !concerns(&mirror, "b"));
        assert!(is_process_of("session a", "a") && is_process_of("uplink a", "a"));
        assert!(!is_process_of("control", "control") && !is_process_of("session ab", "a"));
    }
}
