//! Figures as OpenMetrics 1.0 writes them. A name that is here stays: dashboards and alarms are made of it.
//!
//! Each port has a bounded number of series: the drop reasons that there are, twice, and some thirty more.

use super::Told;
use lasthop_api::{ConntrackStats, CpuBound, Drops, Port, SwitchStats, Totals, Translation, Uplink};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt::{self, Debug};

/// The figures; only that there are none where no instance answers.
pub fn write(told: Option<&Told>) -> String {
    let mut registry = Registry::with_prefix("lasthop");
    registry.register_collector(Box::new(Families(told.map(all).unwrap_or_else(absent))));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// A number of a series: what only grows until the process that counts it is another, or what goes up and down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Count(u64),
    Seconds(f64),
    Level(f64),
}

pub(super) type Labels = Vec<(&'static str, String)>;

/// A metric and its series.
#[derive(Debug)]
pub(super) struct Family {
    name: &'static str,
    help: &'static str,
    series: Vec<(Labels, Number)>,
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let Some((_, first)) = family.series.first() else { continue };
            let kind = if matches!(first, Number::Level(_)) { MetricType::Gauge } else { MetricType::Counter };
            let mut descriptor = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for (labels, number) in &family.series {
                number.encode(descriptor.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Number {
    fn encode(self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => ConstCounter::new(n).encode(encoder),
            Self::Seconds(n) => ConstCounter::new(n).encode(encoder),
            Self::Level(n) => ConstGauge::new(n).encode(encoder),
        }
    }
}

pub(super) fn level(n: u64) -> Number {
    // Above 2^53 a level loses its last digits, which nobody reads.
    Number::Level(n as f64)
}

pub(super) fn seconds(ns: u64) -> Number {
    Number::Seconds(ns as f64 / 1e9)
}

pub(super) fn family(name: &'static str, help: &'static str, series: Vec<(Labels, Number)>) -> Family {
    Family { name, help, series }
}

fn one(name: &'static str, help: &'static str, number: Number) -> Family {
    family(name, help, vec![(Vec::new(), number)])
}

fn absent() -> Vec<Family> {
    vec![one("up", "Whether a lasthop answers", Number::Level(0.0))]
}

fn all(Told { figures, connections, devices }: &Told) -> Vec<Family> {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let mut all = vec![
        one("up", "Whether a lasthop answers", Number::Level(1.0)),
        family("build_info", "The version of the command that tells this", vec![(version, Number::Level(1.0))]),
    ];
    all.extend(of_switch(&figures.switch));
    all.extend(of_processes(&figures.switch));
    all.extend(of_ports(&figures.ports));
    all.extend(of_settled(&figures.ports));
    all.extend(of_translations(&figures.ports));
    all.extend(of_bounds(&figures.ports));
    all.extend(of_interfaces(&figures.interfaces));
    all.extend(of_connections(connections));
    all.extend(super::offload::families(&figures.switch));
    all.extend(super::devices::families(devices));
    all
}

fn of_switch(switch: &SwitchStats) -> Vec<Family> {
    let caches = &switch.caches;
    let mut of_switch = vec![
        one(
            "switch_connected",
            "Whether the data plane is connected to control",
            level(switch.switch_connected.into()),
        ),
        one("control_uptime_seconds", "Since control started", Number::Level(switch.uptime_ms as f64 / 1e3)),
        one("macs", "Learned addresses", level(switch.macs)),
        one("flows", "Flows that should be in the switch", level(switch.flows)),
        one("flow_masks", "Different masks of these", level(switch.masks)),
        one("misses", "Packets without a flow that control answered", Number::Count(switch.misses)),
        one("flows_put", "Flows sent to the switch", Number::Count(switch.flows_put)),
        one("flows_deleted", "Flows withdrawn", Number::Count(switch.flows_deleted)),
        one("flow_cache_entries", "Places of the threads' flow caches", level(caches.entries)),
        one("flow_cache_used", "Places that are filled", level(caches.used)),
        one("flow_cache_hits", "Lookups that found their flow in a cache", Number::Count(caches.hits)),
        one("flow_cache_misses", "Lookups that found it in the table", Number::Count(caches.misses)),
        one("flow_cache_evicted", "Flows that lived and had to leave a cache", Number::Count(caches.evicted)),
    ];
    if let Some(deciders) = &switch.deciders {
        let there = deciders.processes.len() as u64;
        of_switch.extend([
            one(
                "open_vswitch_processes",
                "Processes of Open vSwitch that decide about first packets: 1 is right",
                level(there),
            ),
            one(
                "open_vswitch_lost",
                "Packets that met no flow and that nobody of Open vSwitch took",
                Number::Count(deciders.lost),
            ),
        ]);
    }
    of_switch
}

fn of_processes(switch: &SwitchStats) -> Vec<Family> {
    let parts =
        switch.cpu.parts().into_iter().map(|(part, ns)| (vec![("part", part.to_owned())], seconds(ns))).collect();
    let restarts = switch.replaced.iter();
    let restarts = restarts.map(|of| (vec![("process", of.process.clone())], Number::Count(of.times))).collect();
    vec![
        family("cpu_seconds", "Processor time of all processes; the parts add up", parts),
        family("restarts", "Processes that ended unasked and were replaced", restarts),
    ]
}

/// A series for each port.
fn by_port(ports: &[Port], number: impl Fn(&Port) -> Option<Number>) -> Vec<(Labels, Number)> {
    let of = |port: &Port| Some((vec![("port", port.name.clone())], number(port)?));
    ports.iter().filter_map(of).collect()
}

/// A series for each port and direction.
fn both_ways(ports: &[Port], number: impl Fn(&Totals) -> u64) -> Vec<(Labels, Number)> {
    let ways = ports.iter().flat_map(|p| [(p, "from_guest", &p.from_guest), (p, "to_guest", &p.to_guest)]);
    let labels = |port: &Port, way: &str| vec![("port", port.name.clone()), ("direction", way.to_owned())];
    ways.map(|(port, way, totals)| (labels(port, way), Number::Count(number(totals)))).collect()
}

fn dropped<'a>(
    of: &'a str,
    is: &'static str,
    way: &'a str,
    drops: &'a [Drops],
) -> impl Iterator<Item = (Labels, Number)> {
    drops.iter().map(move |d| {
        let labels = vec![(is, of.to_owned()), ("direction", way.to_owned()), ("reason", d.reason.clone())];
        (labels, Number::Count(d.packets))
    })
}

/// What a port counts.
fn of_ports(ports: &[Port]) -> Vec<Family> {
    let drops = ports.iter().flat_map(|p| {
        let from = dropped(&p.name, "port", "from_guest", &p.from_guest.drops);
        from.chain(dropped(&p.name, "port", "to_guest", &p.to_guest.drops))
    });
    let count = |number: fn(&Port) -> u64| by_port(ports, |p| Some(Number::Count(number(p))));
    vec![
        family(
            "port_packets",
            "Packets taken from guests and delivered to them; one of 64 KiB counts once",
            both_ways(ports, |t| t.packets),
        ),
        family("port_bytes", "Their bytes", both_ways(ports, |t| t.bytes)),
        family("port_dropped_packets", "Packets not delivered, by reason", drops.collect()),
        family(
            "port_replicated_packets",
            "Deliveries beyond the first of packets with several destinations",
            count(|p| p.from_guest.replicated),
        ),
        family("port_missed_packets", "Packets that met no flow", count(|p| p.from_guest.missed)),
        family("port_segments", "Frames written because a packet had to be cut up", count(|p| p.to_guest.segments)),
        family("port_checksums", "Checksums completed", count(|p| p.to_guest.checksums)),
        family("port_kicks", "Kicks received", count(|p| p.from_guest.notifications)),
        family("port_interrupts", "Interrupts sent", count(|p| p.to_guest.notifications)),
        family(
            "port_held",
            "Times that a queue was not read because of rate-from or max-cpu",
            count(|p| p.from_guest.held),
        ),
        family("port_moves", "Addresses that moved there from another port", count(|p| p.moves)),
        family("port_moves_refused", "Packets of addresses that moved too often", count(|p| p.moves_refused)),
        family(
            "port_sources_over_limit",
            "Packets whose source was not learned because of the limit",
            count(|p| p.sources_over_limit),
        ),
        family(
            "port_busy_seconds",
            "Time on the clock in which packets from there were moved",
            by_port(ports, |p| Some(seconds(p.from_guest.busy_ns))),
        ),
        family(
            "port_copied_seconds",
            "Time on the clock in which packets were written to its guest's buffers, whoever sent them",
            by_port(ports, |p| Some(seconds(p.copied_ns))),
        ),
        family(
            "port_cpu_seconds",
            "Processor time of the port's own thread",
            by_port(ports, |p| p.cpu_ns.map(seconds)),
        ),
    ]
}

/// How a port is.
fn of_settled(ports: &[Port]) -> Vec<Family> {
    let levels = |number: fn(&Port) -> u64| by_port(ports, |p| Some(level(number(p))));
    let states = ports.iter().map(|p| (vec![("port", p.name.clone()), ("state", p.state.clone())], Number::Level(1.0)));
    vec![
        family("port_up", "Whether packets can pass", levels(|p| (p.state == "up").into())),
        family("port_state", "The state that it is in", states.collect()),
        family(
            "port_trouble",
            "Whether something is known to be wrong: `lasthop port list` says what",
            levels(|p| (p.note.is_some() || p.error.is_some()).into()),
        ),
        family("port_waiting_packets", "Packets that wait for control", levels(|p| p.waiting)),
        family("port_macs", "Addresses learned there", levels(|p| p.macs)),
        family("port_mac_limit", "Addresses that may be learned there", levels(|p| p.mac_limit)),
        family("port_flows", "Flows whose packets come from there", levels(|p| p.flows)),
        family("port_memory_bytes", "Guest memory that is mapped", levels(|p| p.memory_bytes)),
        family(
            "port_vm_running",
            "Whether the VM is on a core; no series where that is not known",
            by_port(ports, |p| p.vm.as_ref().map(|vm| level((vm == "running").into()))),
        ),
        family(
            "port_vm_node",
            "The NUMA node on which the VM runs; no series where that is not known or not one",
            by_port(ports, |p| p.place.as_ref().and_then(|place| place.node).map(|node| level(node.into()))),
        ),
        family(
            "port_near_vm",
            "Whether the port's own thread is kept where the VM runs; no series where it has none, and on hosts with nothing to be near to",
            by_port(ports, |p| {
                let place = p.place.as_ref().filter(|place| place.thread_cpus.is_some())?;
                Some(level((place.state == "near").into()))
            }),
        ),
    ]
}

/// Of nanoseconds a second.
fn processors(ns: u64) -> Number {
    Number::Level(ns as f64 / 1e9)
}

/// Of ports with a bound of processor time; no series of others.
fn of_bounds(ports: &[Port]) -> Vec<Family> {
    let names = [
        "port_max_cpu_processors",
        "port_max_cpu_used_processors",
        "port_max_cpu_packets_per_second",
        "port_max_cpu_bytes_per_second",
        "port_max_cpu_not_kept",
        "port_max_cpu_misses",
    ];
    let of_copies = [
        "port_max_cpu_to_processors",
        "port_max_cpu_to_used_processors",
        "port_max_cpu_to_packets_per_second",
        "port_max_cpu_to_bytes_per_second",
        "port_max_cpu_to_not_kept",
        "port_max_cpu_to_misses",
    ];
    let mut all = bounds(ports, |p| p.cpu_bound.as_ref(), names, "Processors that its packets may take");
    all.extend(bounds(ports, |p| p.copy_bound.as_ref(), of_copies, "Processors that copies to its guest may take"));
    all
}

fn bounds(
    ports: &[Port],
    bound: fn(&Port) -> Option<&CpuBound>,
    [most, used, packets, bytes, not_kept, misses]: [&'static str; 6],
    what: &'static str,
) -> Vec<Family> {
    let of = |number: fn(&CpuBound) -> Number| by_port(ports, move |p| bound(p).map(number));
    let held = |number: fn(&CpuBound) -> Option<u64>| by_port(ports, move |p| number(bound(p)?).map(level));
    vec![
        family(most, what, of(|b| processors(b.most_ns))),
        family(used, "Processors that they took in the last second that was looked at", of(|b| processors(b.spent_ns))),
        family(
            packets,
            "What its guest is held to for that; no series while it is held to nothing, or to bytes alone",
            held(|b| b.packets_per_second),
        ),
        family(
            bytes,
            "The same in bytes; no series while it is held to nothing, or to packets alone",
            held(|b| b.bytes_per_second),
        ),
        family(not_kept, "Whether the bound is not kept", of(|b| level(b.missed_ms.is_some().into()))),
        family(misses, "Times that it began not to be kept", of(|b| Number::Count(b.missed))),
    ]
}

/// Of guests whose own IOMMU translates addresses; no series of others.
fn of_translations(ports: &[Port]) -> Vec<Family> {
    let of = |number: fn(&Translation) -> Number| by_port(ports, |p| p.translation.as_ref().map(number));
    vec![
        family("port_iommu_ranges", "Ranges of I/O addresses that are known", of(|t| level(t.ranges))),
        family(
            "port_iommu_unanswered_pages",
            "Pages that the front-end was asked for and has not answered",
            of(|t| level(t.unanswered)),
        ),
        family("port_iommu_updates", "Ranges told since the front-end connected", of(|t| Number::Count(t.updates))),
        family("port_iommu_invalidations", "Times that ranges were taken away", of(|t| Number::Count(t.invalidations))),
        family("port_iommu_misses", "Pages asked for", of(|t| Number::Count(t.misses))),
        family(
            "port_iommu_refused",
            "Pages that the guest has not granted, says its front-end",
            of(|t| Number::Count(t.refused)),
        ),
    ]
}

fn of_interfaces(interfaces: &[Uplink]) -> Vec<Family> {
    let labels = |u: &Uplink| vec![("port", u.name.clone()), ("device", u.device.clone())];
    let ways = |number: fn(&lasthop_api::Carried) -> u64| {
        let ways =
            interfaces.iter().flat_map(|u| [(u, "to_network", &u.to_network), (u, "from_network", &u.from_network)]);
        let with = |u: &Uplink, way: &str| [labels(u), vec![("direction", way.to_owned())]].concat();
        ways.map(|(u, way, carried)| (with(u, way), Number::Count(number(carried)))).collect()
    };
    let each = |number: &dyn Fn(&Uplink) -> Number| interfaces.iter().map(|u| (labels(u), number(u))).collect();
    let drops = interfaces.iter().flat_map(|u| {
        u.drops.iter().map(|d| ([labels(u), vec![("reason", d.reason.clone())]].concat(), Number::Count(d.packets)))
    });
    vec![
        family("interface_link_up", "Whether the interface carries frames", each(&|u| level((u.link == "up").into()))),
        family(
            "interface_blocked",
            "Whether another uplink on the same segment carries the frames",
            each(&|u| level(u.blocked_by.is_some().into())),
        ),
        family("interface_packets", "Packets that an interface of this host carried", ways(|c| c.packets)),
        family("interface_bytes", "Their bytes", ways(|c| c.bytes)),
        family("interface_dropped_packets", "Packets that it or its process did not carry, by reason", drops.collect()),
        family("interface_restarts", "Times that its process was replaced", each(&|u| Number::Count(u.restarts))),
    ]
}

fn of_connections(stats: &ConntrackStats) -> Vec<Family> {
    if !stats.tracking && !stats.no_memory {
        return Vec::new();
    }
    let refused = stats.refused.iter().map(|d| (vec![("reason", d.reason.clone())], Number::Count(d.packets)));
    let port = |of: &lasthop_api::PortConnections| vec![("port", of.port.clone())];
    vec![
        one("connections", "Connections that stateful lists know, or Open vSwitch's rules", level(stats.connections)),
        one(
            "connections_limit",
            "How many there may be; 0: there is no memory for any",
            level(if stats.no_memory { 0 } else { stats.capacity }),
        ),
        one("connections_created", "Connections opened", Number::Count(stats.created)),
        one("connections_expired", "Connections whose time was over", Number::Count(stats.expired)),
        one("connections_evicted", "Connections that gave way to others", Number::Count(stats.evicted)),
        family(
            "connections_refused_packets",
            "Packets that were of no connection or could open none",
            refused.collect(),
        ),
        family(
            "port_connections",
            "Connections opened from a port",
            stats.ports.iter().map(|p| (port(p), level(p.connections))).collect(),
        ),
        family(
            "port_connections_limit",
            "Connections that it may open",
            stats.ports.iter().map(|p| (port(p), level(p.limit))).collect(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Figures;
    use lasthop_api::{PortConnections, Replaced};
    use std::collections::BTreeSet;

    fn drops(reason: &str, packets: u64) -> Vec<Drops> {
        vec![Drops { reason: reason.into(), packets }]
    }

    /// Something of everything.
    fn figures() -> Told {
        let from_guest =
            Totals { packets: 7, bytes: 700, busy_ns: 1_500_000_000, drops: drops("acl", 2), ..Totals::default() };
        let to_guest = Totals { packets: 5, drops: drops("no_buffers", 3), ..Totals::default() };
        let port = Port {
            name: "vm1".into(),
            state: "up".into(),
            cpu_ns: Some(2_000_000_000),
            copied_ns: 250_000_000,
            copy_bound: Some(CpuBound { most_ns: 50_000_000, missed: 1, ..CpuBound::default() }),
            vm: Some("running".into()),
            translation: Some(Translation {
                ranges: 3,
                unanswered: 1,
                updates: 40,
                invalidations: 20,
                misses: 9,
                refused: 2,
            }),
            from_guest,
            to_guest,
            ..Port::default()
        };
        let blank = Port { name: "vm2".into(), state: "broken".into(), error: Some("it is".into()), ..Port::default() };
        let uplink = Uplink {
            name: "net".into(),
            device: "eth1".into(),
            link: "up".into(),
            drops: drops("too_long", 4),
            ..Uplink::default()
        };
        let replaced = vec![Replaced { process: "switch".into(), times: 1, ..Replaced::default() }];
        let switch = SwitchStats { replaced, ..SwitchStats::default() };
        let connections = ConntrackStats {
            tracking: true,
            connections: 9,
            refused: drops("tcp_state", 6),
            ports: vec![PortConnections { port: "vm1".into(), connections: 8, limit: 10 }],
            ..ConntrackStats::default()
        };
        let figures = Figures { ports: vec![port, blank], interfaces: vec![uplink], switch };
        Told { figures, connections, devices: super::super::devices::testutil() }
    }

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }

    #[test]
    fn each_figure_has_its_name_its_labels_and_its_unit() {
        let text = write(Some(&figures()));
        for line in [
            "lasthop_up 1.0",
            "# TYPE lasthop_port_packets counter",
            "lasthop_port_packets_total{port=\"vm1\",direction=\"from_guest\"} 7",
            "lasthop_port_packets_total{port=\"vm1\",direction=\"to_guest\"} 5",
            "lasthop_port_bytes_total{port=\"vm1\",direction=\"from_guest\"} 700",
            "lasthop_port_dropped_packets_total{port=\"vm1\",direction=\"from_guest\",reason=\"acl\"} 2",
            "lasthop_port_dropped_packets_total{port=\"vm1\",direction=\"to_guest\",reason=\"no_buffers\"} 3",
            "lasthop_port_busy_seconds_total{port=\"vm1\"} 1.5",
            "lasthop_port_cpu_seconds_total{port=\"vm1\"} 2.0",
            "lasthop_port_copied_seconds_total{port=\"vm1\"} 0.25",
            "lasthop_port_max_cpu_to_processors{port=\"vm1\"} 0.05",
            "lasthop_port_max_cpu_to_misses_total{port=\"vm1\"} 1",
            "lasthop_port_up{port=\"vm1\"} 1.0",
            "lasthop_port_up{port=\"vm2\"} 0.0",
            "lasthop_port_trouble{port=\"vm2\"} 1.0",
            "lasthop_port_state{port=\"vm2\",state=\"broken\"} 1.0",
            "lasthop_port_iommu_ranges{port=\"vm1\"} 3.0",
            "lasthop_port_iommu_unanswered_pages{port=\"vm1\"} 1.0",
            "lasthop_port_iommu_updates_total{port=\"vm1\"} 40",
            "lasthop_port_iommu_invalidations_total{port=\"vm1\"} 20",
            "lasthop_port_iommu_misses_total{port=\"vm1\"} 9",
            "lasthop_port_iommu_refused_total{port=\"vm1\"} 2",
            "lasthop_interface_dropped_packets_total{port=\"net\",device=\"eth1\",reason=\"too_long\"} 4",
            "lasthop_restarts_total{process=\"switch\"} 1",
            "lasthop_connections 9.0",
            "lasthop_connections_refused_packets_total{reason=\"tcp_state\"} 6",
            "lasthop_port_connections_limit{port=\"vm1\"} 10.0",
            "lasthop_device_up{device=\"nic0\"} 1.0",
            "lasthop_device_up{device=\"nic1\"} 0.0",
            "lasthop_device_misses_total{device=\"nic0\",answer=\"judged\"} 3",
            "lasthop_device_bus_bytes_total{device=\"nic0\",kind=\"headers\"} 280",
            "lasthop_device_dma_bytes_total{device=\"nic0\"} 1500",
            "lasthop_device_bus_busy_seconds_total{device=\"nic0\",card=\"headers\"} 2.5",
            "lasthop_device_dma_engine_up{device=\"nic0\"} 0.0",
            "lasthop_device_dma_engine_copies_total{device=\"nic0\",by=\"engine\"} 9",
        ] {
            has(&text, line);
        }
        assert!(text.ends_with("# EOF\n"));
        // A port without a thread, a VM of which nothing is known: no series, not a 0.
        assert!(!text.contains("lasthop_port_cpu_seconds_total{port=\"vm2\"}"));
        assert!(!text.contains("lasthop_port_max_cpu_processors") && !text.contains("max_cpu_to_bytes_per_second{"));
        assert!(!text.contains("lasthop_port_vm_running{port=\"vm2\"}"));
        assert!(!text.contains("lasthop_port_iommu_ranges{port=\"vm2\"}"));
    }

    #[test]
    fn without_an_instance_there_is_one_figure() {
        assert_eq!(
            write(None),
            "# HELP lasthop_up Whether a lasthop answers\n# TYPE lasthop_up gauge\nlasthop_up 0.0\n# EOF\n"
        );
    }

    /// What is a name's, but for quoted values, functions and label names, which have no such beginning.
    fn names(query: &str) -> impl Iterator<Item = &str> {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("lasthop_"))
    }

    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let text = write(Some(&figures()));
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let there: BTreeSet<&str> = series.map(|line| line.split(['{', ' ']).next().unwrap_or_default()).collect();
        let dashboard = include_str!("../../../../docs/grafana-dashboard.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let mut asked = 0;
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                for name in names(target["expr"].as_str().unwrap()) {
                    assert!(there.contains(name), "{name} of panel {}", panel["title"]);
                    asked += 1;
                }
            }
        }
        assert!(asked > 15, "{asked}");
    }

    /// The console has the dashboard's panels, in the same order; what Prometheus would take for a template of its own is not in it.
    #[test]
    fn the_console_asks_what_the_dashboard_asks() {
        let dashboard = include_str!("../../../../docs/grafana-dashboard.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let console = include_str!("../../../../docs/prometheus-console.html");
        assert!(!console.contains("{{"));
        let (_, list) = console.split_once("id=\"panels\">").unwrap();
        let panels: serde_json::Value = serde_json::from_str(list.split_once("</script>").unwrap().0).unwrap();
        let of_dashboard = dashboard["panels"].as_array().unwrap().iter().map(|panel| {
            let targets = panel["targets"].as_array().unwrap().iter().map(|target| {
                let legend = target["legendFormat"].as_str().unwrap_or_default();
                serde_json::json!({"expr": target["expr"], "legend": legend.replace("{{", "{").replace("}}", "}")})
            });
            let unit = &panel["fieldConfig"]["defaults"]["unit"];
            serde_json::json!({"title": panel["title"], "type": panel["type"], "unit": unit, "targets": targets.collect::<Vec<_>>()})
        });
        assert_eq!(panels.as_array().unwrap().clone(), of_dashboard.collect::<Vec<_>>());
    }
}
