//! What is known, in the words of the API.

use lasthop_api::{
    Batching, Caches, Carried, CpuTimes, Drops, Field, Flow, GuestQueue, Host, Mac, Offload, Port, Queue, RefusedMac,
    Replaced, Stayed, Totals, TraceOutput, Translation, Uplink,
};
use lasthop_flow::Action;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_ipc::{FlowInfo, PortInfo, PortState};
use lasthop_management_ipc::{DeviceState, LinkState, PortConfig, UplinkInfo};
use lasthop_offload::Why;
use lasthop_policy::{MacView, PortSettings, PortView, RefusedSource, Vlans};
use lasthop_sys::hostview::VmState;
use lasthop_text::MacAddr;
use lasthop_types::{CacheFigures, DropReason, PortId, PortTotals};
use lasthop_uplink_ipc::UplinkQueue;
use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr};

mod actions;
mod bounds;
mod near;

pub(crate) use bounds::{cpu_bound, missed_bound};
pub(crate) use near::place;

pub(crate) fn mac(m: &MacView, port: String) -> Mac {
    Mac { mac: m.mac.to_string(), vlan: m.vlan, port, age_ms: m.age_ms, held: m.held, is_static: m.is_static }
}

/// `name`: of the port with this number.
pub(crate) fn uplink(
    uplink: UplinkInfo,
    port: Option<&PortInfo>,
    vlans: Option<&Vlans>,
    name: &dyn Fn(u32) -> String,
) -> Uplink {
    let about = uplink.about.as_ref();
    let (counters, device) = (uplink.counters, uplink.device);
    let state = match &uplink.blocked_by {
        _ if device.link != LinkState::Up => link_state(device.link),
        _ if !uplink.running => "starting",
        Some(_) => "blocked",
        None if uplink.probing => "probing",
        None => state(port),
    };
    let waits_for = match state {
        "probing" => {
            Some("it listens for a moment whether it is on the segment of another uplink, and carries nothing before")
        }
        "waiting" if device.link == LinkState::Up => Some("its process is about to be joined to the switch"),
        "starting" => Some("its process is being started"),
        _ => None,
    };
    Uplink {
        id: device.port.0,
        guest: uplink.guest,
        driver: about.map(|a| a.driver.name().into()),
        mode: about.map(|a| a.mode.clone()),
        state: state.into(),
        link: device.link.name().into(),
        last_error: device.last_error,
        waits_for: waits_for.map(Into::into),
        blocked_by: uplink.blocked_by,
        mac: about.map(|a| a.mac.to_string()),
        mtu: about.map(|a| a.mtu),
        queues: about.map_or(0, |a| a.queues),
        nice: uplink.nice,
        gro: !uplink.no_gro,
        created: about.is_some_and(|a| a.created),
        pid: uplink.pid,
        restarts: uplink.restarts,
        vlans: vlans.map(Vlans::to_string),
        spare: uplink.spare.map(|ready| if ready { "ready" } else { "starting" }.into()),
        to_network: Carried { packets: counters.to_network_packets, bytes: counters.to_network_bytes },
        from_network: Carried { packets: counters.from_network_packets, bytes: counters.from_network_bytes },
        merged: counters.merged,
        drops: counters.drops.into_iter().map(|d| Drops { reason: d.reason, packets: d.packets }).collect(),
        guest_queues: (0..).zip(counters.queues).map(|(queue, of)| guest_queue(queue, of, name)).collect(),
        name: uplink.name,
        device: device.device,
    }
}

/// The state of a port whose interface is no good.
fn link_state(state: LinkState) -> &'static str {
    match state {
        LinkState::Missing => "waiting",
        state => state.name(),
    }
}

/// A port with what is to be shown of it if it is an interface.
pub(crate) fn port_device(mut port: Port, device: Option<&DeviceState>) -> Port {
    let Some(device) = device else { return port };
    if device.link != LinkState::Up {
        port.state = link_state(device.link).into();
    }
    port.device = Some(device.device.clone());
    port.driver = device.driver.map(|driver| driver.name().into());
    port.link = Some(device.link.name().into());
    // What the switch has to say of its connection is less.
    if device.last_error.is_some() {
        (port.last_error, port.last_error_age_ms) = (device.last_error.clone(), None);
    }
    port
}

/// Adds what the VM behind a port does.
pub fn port_vm(port: &mut Port, state: Option<VmState>) {
    (port.vm, port.vm_cpu) = match state {
        None => (None, None),
        Some(VmState::Running { core }) => (Some("running".into()), Some(core)),
        Some(VmState::Blocked { .. }) => (Some("blocked".into()), None),
    };
}

fn guest_queue(queue: u16, of: UplinkQueue, name: &dyn Fn(u32) -> String) -> GuestQueue {
    let first = of.stations.first();
    GuestQueue {
        queue,
        mac: first.map(|(_, mac)| mac.to_string()),
        vlan: first.map(|(vlan, _)| *vlan).filter(|vlan| *vlan != 0),
        port: of.pinned.map(name),
        size: of.size,
        packets: of.packets,
        dropped: of.dropped,
        sent: of.sent,
    }
}

fn state(info: Option<&PortInfo>) -> &'static str {
    match info.map(PortInfo::state) {
        None => "starting",
        Some(PortState::Waiting) => "waiting",
        Some(PortState::Connected) => "connected",
        Some(PortState::Up) => "up",
        Some(PortState::Broken(_)) => "broken",
    }
}

pub(crate) fn port(id: PortId, config: Option<&PortConfig>, info: Option<&PortInfo>, view: Option<PortView>) -> Port {
    let view = view.unwrap_or_default();
    let mut port = Port {
        id: id.0,
        name: format!("#{id}"),
        state: state(info).into(),
        features: "0x0".into(),
        protocol_features: "0x0".into(),
        macs: view.macs as u64,
        mac_limit: view.mac_limit as u64,
        flows: view.flows as u64,
        sources_over_limit: view.over_limit,
        moves: view.moves,
        moves_refused: view.moves_refused,
        ..Port::default()
    };
    if let Some(i) = info {
        port.name.clone_from(&i.name);
        if let PortState::Broken(why) = i.state() {
            port.error = Some(exactly(i.last_error.as_ref().map(|error| &*error.line), why));
        }
        port.last_error = i.last_error.as_ref().map(|error| error.line.clone());
        port.mtu = i.mtu;
        port.features = format!("{:#x}", i.features);
        port.protocol_features = format!("{:#x}", i.protocol_features);
        port.memory_bytes = i.memory_bytes;
        port.memory_regions = i.memory_regions;
        port.translation = i.translation.map(|[ranges, unanswered, updates, invalidations, misses, refused]| {
            Translation { ranges, unanswered, updates, invalidations, misses, refused }
        });
        port.queues = i
            .queues
            .iter()
            .map(|q| Queue {
                index: q.index,
                size: q.size,
                packed: q.packed,
                enabled: q.enabled,
                error: q.error.clone(),
            })
            .collect();
        port.from_guest = totals(&i.from_guest);
        port.to_guest = totals(&i.to_guest);
        port.copied_ns = i.to_guest.busy_ns;
        port.waiting = i.waiting;
    }
    if let Some(c) = config {
        port.name.clone_from(&c.name);
        port.path.clone_from(&c.path);
        port.client = c.client;
        [port.tx_batch, port.rx_batch] = [c.tx_batch, c.rx_batch].map(|(us, packets)| Batching { us, packets });
        port.owner.clone_from(&c.owner);
    }
    port
}

/// Why a ring broke. Of one that its session process had not started the switch knows an address and no more; the line for the log, which is
/// the last error then, says why.
fn exactly(last: Option<&str>, why: String) -> String {
    let of_memory = |line: &str| line.split_once(": ").is_some_and(|(_, why)| why.starts_with("ring memory: "));
    let exact = last.filter(|line| of_memory(&why) && line.starts_with("queue ") && !of_memory(line));
    exact.map_or(why, str::to_owned)
}

pub(crate) fn totals(t: &PortTotals) -> Totals {
    Totals {
        packets: t.packets,
        bytes: t.bytes,
        replicated: t.replicated,
        missed: t.missed,
        segments: t.segments,
        checksums: t.checksums,
        notifications: t.notifications,
        busy_ns: t.busy_ns,
        held: t.held,
        drops: t.drops.iter().map(|(r, n)| Drops { reason: r.name().into(), packets: *n }).collect(),
    }
}

pub(crate) fn caches(of: &CacheFigures) -> Caches {
    let &CacheFigures { entries, used, hits, misses, evicted } = of;
    Caches { entries, used, hits, misses, evicted }
}

pub(crate) fn replaced(of: lasthop_management_ipc::Replaced) -> Replaced {
    let (age_ms, why) = of.last.unzip();
    Replaced { process: of.process, times: of.times, age_ms, why }
}

pub(crate) fn host(of: lasthop_management_ipc::HostFacts) -> Host {
    let lasthop_management_ipc::HostFacts { version, vms_unknown, no_helpers, outdated, state_faults, offload } = of;
    let control_version = env!("CARGO_PKG_VERSION").into();
    let offload = offload.map(|offload| self::offload(*offload));
    Host { version, control_version, vms_unknown, no_helpers, outdated, state_faults, offload }
}

fn offload(of: lasthop_management_ipc::OffloadState) -> Offload {
    let lasthop_management_ipc::OffloadState { policy, running, ports, figures } = of;
    let lasthop_management_ipc::OffloadFigures { flows, in_hardware, packets, bytes, stayed } = figures;
    let stayed = Why::ALL.iter().zip(stayed).filter(|(_, flows)| *flows > 0);
    let stayed = stayed.map(|(why, flows)| Stayed { reason: why.name().into(), why: why.sentence().into(), flows });
    Offload { policy, running, ports, flows, in_hardware, packets, bytes, stayed: stayed.collect() }
}

pub(crate) fn refused_mac(of: &RefusedSource, lives_at: Option<String>, now_ms: u64) -> RefusedMac {
    RefusedMac { mac: of.mac.to_string(), vlan: of.vlan, lives_at, age_ms: now_ms.saturating_sub(of.at_ms) }
}

pub(crate) fn cpu_times(times: &lasthop_management_ipc::CpuTimes) -> CpuTimes {
    let ports_ns = times.ports.iter().map(|(_, ns)| ns).sum();
    let (helpers_ns, main_ns) = (times.helpers_ns, times.main_ns);
    let (control_ns, uplinks_ns, supervisor_ns) = (times.control_ns, times.uplinks_ns, times.supervisor_ns);
    let sessions_ns = times.sessions_ns;
    let threads_ns: u64 = ports_ns + helpers_ns + main_ns;
    let other_ns = times.switch_ns.saturating_sub(threads_ns);
    let total_ns = threads_ns + other_ns + control_ns + uplinks_ns + sessions_ns + supervisor_ns;
    CpuTimes { ports_ns, helpers_ns, main_ns, other_ns, control_ns, uplinks_ns, sessions_ns, supervisor_ns, total_ns }
}

pub(crate) fn outputs(actions: &[Action]) -> Vec<PortId> {
    let port = |a: &Action| match a {
        Action::Output(port) | Action::Truncated(port, _) => Some(*port),
        _ => None,
    };
    actions.iter().filter_map(port).collect()
}

pub(crate) fn flow(f: &FlowInfo, name: impl Fn(PortId) -> String) -> Flow {
    let spec = &f.flow;
    Flow {
        fields: fields(&spec.key, &spec.mask, &name),
        outputs: outputs(&spec.actions).into_iter().map(&name).collect(),
        actions: actions::actions(spec, &name),
        packets: f.packets,
        bytes: f.bytes,
        idle_ms: f.idle_ms,
        epoch: spec.epoch,
    }
}

/// What a port is told to do.
pub(crate) fn settings(settings: Option<&PortSettings>) -> Vec<Field> {
    let values = settings.map(PortSettings::values).unwrap_or_default();
    values.into_iter().map(|(name, value)| Field { name: name.into(), value }).collect()
}

/// A destination; where it is an interface that is no good, the frame would end there.
pub(crate) fn trace_output(
    port: String,
    info: Option<&PortInfo>,
    hairpin: bool,
    device: Option<&DeviceState>,
) -> TraceOutput {
    let link = device.map_or(LinkState::Up, |device| device.link);
    let drop = match info.map(PortInfo::state) {
        _ if hairpin => Some(DropReason::Hairpin),
        None => Some(DropReason::NoPort),
        Some(PortState::Up) if link == LinkState::Up => None,
        Some(_) => Some(DropReason::PortDown),
    };
    let state = if link == LinkState::Up { state(info) } else { link_state(link) };
    TraceOutput { port, state: state.into(), drop: drop.map(|d| d.name().into()) }
}

/// Why nothing can be sent to a port that is not up.
pub(crate) fn why_down(info: Option<&PortInfo>, device: Option<&DeviceState>, uplink: bool) -> String {
    let list = if uplink { "uplink list" } else { "port list" };
    match (info.map(PortInfo::state), device) {
        (_, Some(DeviceState { device, link: LinkState::NoCarrier, .. })) => format!("{device} has no carrier"),
        (_, Some(DeviceState { device, link: LinkState::Down, .. })) => format!("{device} is set down"),
        (_, Some(DeviceState { device, link: LinkState::Missing, .. })) => format!("there is no interface {device}"),
        (_, Some(_)) => format!("not joined to the switch now; `lasthop {list}` says why"),
        (None | Some(PortState::Up), None) => "the switch has not told of it yet".into(),
        (Some(PortState::Waiting), None) => "waiting: no front-end is connected".into(),
        (Some(PortState::Connected), None) => "connected: its driver has not started the queues".into(),
        (Some(PortState::Broken(why)), None) => format!("broken: {why}"),
    }
}

/// The fields that a packet has.
pub(crate) fn packet(key: &FlowKey, name: impl Fn(PortId) -> String) -> Vec<Field> {
    let mut mask = FlowMask(*key);
    let m = &mut mask.0;
    // Exact where the packet has something.
    (m.in_port, m.eth_src, m.eth_dst, m.eth_type) = (u32::MAX, [0xff; 6], [0xff; 6], u16::MAX);
    let numbers = [
        &mut m.vlan_tci,
        &mut m.vlan_tpid,
        &mut m.inner_vlan_tpid,
        &mut m.inner_vlan_tci,
        &mut m.anomalies,
        &mut m.l4_src,
        &mut m.l4_dst,
        &mut m.tcp_flags,
    ];
    for number in numbers.into_iter().filter(|n| **n != 0) {
        *number = u16::MAX;
    }
    for number in [&mut m.ip_proto, &mut m.ip_tos, &mut m.ip_ttl, &mut m.ip_frag].into_iter().filter(|n| **n != 0) {
        *number = u8::MAX;
    }
    for address in [&mut m.ip_src, &mut m.ip_dst, &mut m.nd_target].into_iter().filter(|a| **a != [0; 16]) {
        *address = [0xff; 16];
    }
    for address in [&mut m.arp_sha, &mut m.arp_tha].into_iter().filter(|a| **a != [0; 6]) {
        *address = [0xff; 6];
    }
    if m.ipv6_label != 0 {
        m.ipv6_label = u32::MAX;
    }
    fields(key, &mask, &name)
}

/// A packet in a few words: `icmp 10.0.0.1 > 10.0.0.2`.
pub(crate) fn sentence(key: &FlowKey) -> String {
    let proto = match (key.eth_type, key.ip_proto) {
        (0x0806, _) => "arp".to_owned(),
        (0x0800 | 0x86dd, 1) => "icmp".to_owned(),
        (0x0800 | 0x86dd, 6) => "tcp".to_owned(),
        (0x0800 | 0x86dd, 17) => "udp".to_owned(),
        (0x0800 | 0x86dd, 58) => "icmp6".to_owned(),
        (0x0800 | 0x86dd, 132) => "sctp".to_owned(),
        (0x0800 | 0x86dd, n) => format!("ip protocol {n}"),
        (eth_type, _) => format!("ethertype {eth_type:#06x}"),
    };
    let vlan = match key.vlan_tci & 0x0fff {
        0 => String::new(),
        id => format!(" in VLAN {id}"),
    };
    let (from, to) = match key.eth_type {
        0x0800 | 0x0806 => {
            let v4 = |a: [u8; 16]| Ipv4Addr::new(a[12], a[13], a[14], a[15]).to_string();
            (v4(key.ip_src), v4(key.ip_dst))
        }
        0x86dd => (Ipv6Addr::from(key.ip_src).to_string(), Ipv6Addr::from(key.ip_dst).to_string()),
        _ => (MacAddr(key.eth_src).to_string(), MacAddr(key.eth_dst).to_string()),
    };
    match (key.ip_proto, key.eth_type) {
        (6 | 17 | 132, 0x0800 | 0x86dd) => {
            format!("{proto} {from} port {} > {to} port {}{vlan}", key.l4_src, key.l4_dst)
        }
        _ => format!("{proto} {from} > {to}{vlan}"),
    }
}

/// The same of one that is dropped for an Ethernet address: with that which it says of itself.
pub(crate) fn sentence_with_mac(key: &FlowKey) -> String {
    let (sentence, src) = (sentence(key), MacAddr(key.eth_src));
    let said = MacAddr(key.arp_sha);
    match key.eth_type {
        0x0806 if said != src => format!("{sentence}, from {src} saying {said}"),
        0x0800 | 0x0806 | 0x86dd => format!("{sentence}, from {src}"),
        _ => sentence,
    }
}

struct Fields(Vec<Field>);

impl Fields {
    /// A field whose mask is `mask` of `full`, if any of its bits matter.
    fn add<T: PartialEq + Default>(&mut self, name: &str, value: impl Display, mask: T, full: T, shown: impl Display) {
        if mask == T::default() {
            return;
        }
        let value = if mask == full { value.to_string() } else { format!("{value}/{shown}") };
        self.0.push(Field { name: name.into(), value });
    }

    fn hex(&mut self, name: &str, value: u16, mask: u16) {
        self.add(name, format_args!("{value:#06x}"), mask, u16::MAX, format_args!("{mask:#06x}"));
    }

    fn number(&mut self, name: &str, value: u16, mask: u16) {
        self.add(name, value, mask, u16::MAX, format_args!("{mask:#x}"));
    }

    fn byte(&mut self, name: &str, value: u8, mask: u8) {
        self.add(name, value, mask, u8::MAX, format_args!("{mask:#x}"));
    }

    fn mac(&mut self, name: &str, value: [u8; 6], mask: [u8; 6]) {
        self.add(name, MacAddr(value), mask, [0xff; 6], MacAddr(mask));
    }

    fn ip(&mut self, name: &str, value: [u8; 16], mask: [u8; 16], eth_type: u16) {
        if eth_type == 0x86dd {
            self.add(name, Ipv6Addr::from(value), mask, [0xff; 16], Ipv6Addr::from(mask));
        } else {
            let v4 = |a: [u8; 16]| Ipv4Addr::new(a[12], a[13], a[14], a[15]);
            self.add(name, v4(value), v4(mask).to_bits(), u32::MAX, v4(mask));
        }
    }

    fn vlan(&mut self, name: &str, tci: u16, mask: u16) {
        let id = tci & 0xfff;
        match mask {
            0 => {}
            0xfff if id == 0 => self.0.push(Field { name: name.into(), value: "none".into() }),
            0xfff => self.0.push(Field { name: name.into(), value: id.to_string() }),
            0x1fff | u16::MAX if id == 0 && tci & FlowKey::VLAN_PRESENT != 0 => {
                self.0.push(Field { name: name.into(), value: "priority".into() });
                self.hex(&format!("{name}_tci"), tci, mask);
            }
            0x1fff if id != 0 => self.0.push(Field { name: name.into(), value: id.to_string() }),
            0x1fff | u16::MAX if tci == 0 => self.0.push(Field { name: name.into(), value: "none".into() }),
            u16::MAX => {
                self.0.push(Field { name: name.into(), value: id.to_string() });
                self.0.push(Field { name: format!("{name}_pcp"), value: (tci >> 13).to_string() });
            }
            _ => self.hex(&format!("{name}_tci"), tci, mask),
        }
    }
}

fn fields(key: &FlowKey, mask: &FlowMask, name: impl Fn(PortId) -> String) -> Vec<Field> {
    let (k, m) = (key, &mask.0);
    let mut f = Fields(Vec::new());
    f.add("in_port", name(k.port()), m.in_port, u32::MAX, format_args!("{:#x}", m.in_port));
    f.add("recirculation", k.recirculation, m.recirculation, u32::MAX, format_args!("{:#x}", m.recirculation));
    f.mac("eth_src", k.eth_src, m.eth_src);
    f.mac("eth_dst", k.eth_dst, m.eth_dst);
    f.vlan("vlan", k.vlan_tci, m.vlan_tci);
    f.hex("vlan_tpid", k.vlan_tpid, m.vlan_tpid);
    f.vlan("inner_vlan", k.inner_vlan_tci, m.inner_vlan_tci);
    f.hex("inner_vlan_tpid", k.inner_vlan_tpid, m.inner_vlan_tpid);
    f.hex("eth_type", k.eth_type, m.eth_type);
    f.hex("anomalies", k.anomalies, m.anomalies);
    f.ip("ip_src", k.ip_src, m.ip_src, k.eth_type);
    f.ip("ip_dst", k.ip_dst, m.ip_dst, k.eth_type);
    f.byte("ip_proto", k.ip_proto, m.ip_proto);
    f.byte("ip_tos", k.ip_tos, m.ip_tos);
    f.byte("ip_ttl", k.ip_ttl, m.ip_ttl);
    f.byte("ip_frag", k.ip_frag, m.ip_frag);
    f.add("ipv6_label", k.ipv6_label, m.ipv6_label, u32::MAX, format_args!("{:#x}", m.ipv6_label));
    f.number("l4_src", k.l4_src, m.l4_src);
    f.number("l4_dst", k.l4_dst, m.l4_dst);
    f.hex("tcp_flags", k.tcp_flags, m.tcp_flags);
    f.mac("arp_sha", k.arp_sha, m.arp_sha);
    f.mac("arp_tha", k.arp_tha, m.arp_tha);
    f.ip("nd_target", k.nd_target, m.nd_target, 0x86dd);
    f.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fields: &[Field]) -> Vec<String> {
        fields.iter().map(|f| format!("{}={}", f.name, f.value)).collect()
    }

    #[test]
    fn an_uplink_that_stands_by_says_for_whom() {
        let device = |link| DeviceState {
            port: PortId(2),
            device: "eth1".into(),
            driver: None,
            link,
            last_error: Some("x".into()),
        };
        let info = UplinkInfo {
            name: "net2".into(),
            device: device(LinkState::Up),
            guest: false,
            nice: 0,
            no_gro: false,
            running: true,
            probing: false,
            about: None,
            pid: Some(1),
            restarts: 0,
            spare: None,
            blocked_by: Some("net".into()),
            counters: Default::default(),
        };
        let shown = uplink(info.clone(), None, None, &|id| id.to_string());
        assert_eq!((shown.state.as_str(), shown.blocked_by.as_deref()), ("blocked", Some("net")));
        let starting = uplink(UplinkInfo { running: false, ..info.clone() }, None, None, &|id| id.to_string());
        assert!(starting.state == "starting" && starting.waits_for.is_some());
        let probing =
            uplink(UplinkInfo { probing: true, blocked_by: None, ..info.clone() }, None, None, &|id| id.to_string());
        assert_eq!(probing.state, "probing");
        assert!(probing.waits_for.is_some_and(|what| what.contains("segment of another uplink")));
        for (link, state) in
            [(LinkState::NoCarrier, "no-carrier"), (LinkState::Down, "down"), (LinkState::Missing, "waiting")]
        {
            let shown = uplink(UplinkInfo { device: device(link), ..info.clone() }, None, None, &|id| id.to_string());
            assert_eq!((shown.state.as_str(), shown.link.as_str()), (state, link.name()));
            let port = port_device(Port { state: "up".into(), ..Port::default() }, Some(&device(link)));
            assert_eq!((port.state.as_str(), port.last_error.as_deref()), (state, Some("x")));
        }
    }

    /// The switch knows an address of a ring that cannot be started, and its session process why.
    #[test]
    fn a_ring_that_was_never_started_is_shown_with_the_line_that_says_why() {
        let address = "queue 0: ring memory: 1 bytes at I/O address 0x1000 are not granted";
        let shown = |broken: &str, line| exactly(Some(line), broken.into());
        assert_eq!(exactly(None, address.into()), address);
        assert_eq!(shown(address, "queue 1: ring spans pages"), "queue 1: ring spans pages");
        assert_eq!(shown(address, "SET_MEM_TABLE: no"), address);
        assert_eq!(shown(address, "queue 1: ring memory: 2 bytes"), address);
        assert_eq!(
            shown("queue 0: descriptor 9 is beyond", "queue 1: ring spans pages"),
            "queue 0: descriptor 9 is beyond"
        );
    }

    #[test]
    fn a_packet_shows_what_it_has() {
        let mut key = FlowKey {
            in_port: 3,
            eth_dst: [0xff; 6],
            eth_src: [2, 0, 0, 0, 0, 1],
            eth_type: 0x0800,
            vlan_tci: 0xb005,
            vlan_tpid: 0x8100,
            ip_proto: 17,
            l4_dst: 53,
            ..FlowKey::default()
        };
        key.ip_src[12..].copy_from_slice(&[10, 0, 0, 1]);
        key.ip_dst[12..].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(
            text(&packet(&key, |p| format!("vm{p}"))),
            [
                "in_port=vm3",
                "eth_src=02:00:00:00:00:01",
                "eth_dst=ff:ff:ff:ff:ff:ff",
                "vlan=5",
                "vlan_pcp=5",
                "vlan_tpid=0x8100",
                "eth_type=0x0800",
                "ip_src=10.0.0.1",
                "ip_dst=10.0.0.2",
                "ip_proto=17",
                "l4_dst=53"
            ]
        );
    }

    #[test]
    fn a_flow_shows_what_matters() {
        let mut key = FlowKey { in_port: 1, ..FlowKey::default() };
        let mut mask = FlowMask::default();
        (mask.0.in_port, mask.0.vlan_tci) = (u32::MAX, 0xfff);
        (key.eth_src, mask.0.eth_src) = ([1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]);
        assert_eq!(
            text(&fields(&key, &mask, |p| format!("vm{p}"))),
            ["in_port=vm1", "eth_src=01:00:00:00:00:00/01:00:00:00:00:00", "vlan=none"]
        );
    }
}
