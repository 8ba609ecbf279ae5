//! Addresses that two ports claim, and tables that are full.

use super::facts::{Facts, setting};
use super::finding::Finding;
use lasthop_api::{Drops, Port, PortConnections};
use lasthop_policy::{FLOWS_MAX, FLOWS_PER_PORT_MAX};
use lasthop_text::counted;

/// Refusals of the tracker that mean that there is no room, and what to do about each.
const FULL: [(&str, &str); 5] = [
    ("full", "start lasthop with more (`lasthop run --connections N`), or end some: `lasthop conntrack flush`"),
    ("owner_limit", "raise the port's limit, or end some of its connections: `lasthop conntrack flush --port NAME`"),
    (
        "zone_limit",
        "raise the limit of the zone (`ovs-appctl dpctl/ct-get-limits` shows them): `ovs-appctl dpctl/ct-set-limits zone=Z,limit=N`",
    ),
    ("no_translation", "give the list's `snat` more addresses or ports"),
    (
        "address_share",
        "give the list's `snat` more addresses, or raise the share: `lasthop port set NAME --nat-ports N`",
    ),
];

/// Where Open vSwitch decides.
const OWNER_LIMIT_OVS: &str = "a VM's port may open a quarter of the table: start lasthop with a larger one (`lasthop run --connections N`), or end some: `lasthop conntrack \
     flush --port NAME`";

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let of_ports = facts.ports().flat_map(|port| {
        [twice(facts, port), addresses(facts, port), flows_of(port)].into_iter().flatten().collect::<Vec<_>>()
    });
    of_ports.chain(flows(facts)).chain(connections(facts)).collect()
}

/// An address that another port has.
fn twice(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let refused = facts.counter(port, |p| p.moves_refused);
    let Some(of) = port.refused_mac.as_ref().filter(|of| facts.is_recent(of.age_ms) || refused.now > 0) else {
        let what = "packets come from addresses that live at other ports";
        return (refused.now > 0).then(|| {
            Finding::at(&port.name, "duplicate-mac", what)
                .seen(refused.said("not learned from"))
                .remedy("`lasthop mac list` shows where")
        });
    };
    let other = of.lives_at.as_deref().filter(|other| *other != port.name)?;
    let vlan = if of.vlan == 0 { String::new() } else { format!(" in VLAN {}", of.vlan) };
    let is_static =
        facts.port(other).and_then(|other| setting(other, "static-mac")).is_some_and(|list| list.contains(&of.mac));
    let why = if is_static { "is static" } else { "lives" };
    // Ways out of this host, by which the same station is reached.
    let is_way = |port: &Port| port.uplink || facts.is_cable(port);
    if is_way(port) && facts.port(other).is_some_and(is_way) {
        let what = format!("a loop: {}{vlan} {why} at {other}, and its packets come in here, too", of.mac);
        let seen = format!("{}, the last {} s ago", refused.said("refused to move it here"), of.age_ms / 1000);
        return Some(
            Finding::at(&port.name, "loop", what)
                .seen(seen)
                .remedy("both lead to one network: remove one (`lasthop uplink del`, or cable=off for a device with an uplink of its own), or give each VLANs of its own (`lasthop uplink set`)")
                .also(other),
        );
    }
    let what =
        format!("two ports claim the address {}{vlan}: it {why} at {other}, and packets from it come in here", of.mac);
    let remedy = if is_static {
        format!(
            "take the static address back where it is wrong (`lasthop mac del {}`), or give one of the two guests another address",
            of.mac
        )
    } else {
        "give one of the two guests another address (QEMU: mac=; libvirt: <mac address=…/>; inside: `ip link set eth0 address …`); two \
         ports of one guest that bridges them are a loop"
            .to_owned()
    };
    let seen = format!("{}, the last {} s ago", refused.said("refused to move it here"), of.age_ms / 1000);
    Some(Finding::at(&port.name, "duplicate-mac", what).seen(seen).remedy(remedy).also(other))
}

fn addresses(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let over = facts.counter(port, |p| p.sources_over_limit);
    (over.now > 0).then(|| {
        Finding::at(&port.name, "addresses-full", "more addresses are behind it than it may have: packets to the others are flooded")
            .seen(format!("{} of {} addresses; {}", port.macs, port.mac_limit, over.said("from others")))
            .remedy("a network that large belongs behind an uplink (`lasthop uplink add`); a guest that makes addresses up is stopped by `lasthop port set NAME --mac LIST`")
    })
}

fn flows_of(port: &Port) -> Option<Finding> {
    (port.flows >= FLOWS_PER_PORT_MAX as u64).then(|| {
        Finding::at(&port.name, "flows-full", "it has as many flows as a port may: the one unused for longest goes for each new one")
            .seen(format!("{} of {FLOWS_PER_PORT_MAX} flows", port.flows))
            .remedy("look whether its guest scans (`lasthop flow list`); access lists that ask for fewer fields need fewer flows")
    })
}

fn flows(facts: &Facts<'_>) -> Option<Finding> {
    let flows = facts.now.switch.flows;
    (flows >= FLOWS_MAX as u64).then(|| {
        Finding::of_all("flows-full", "the flow table is full: the port with most flows makes room for each new one")
            .seen(format!("{flows} of {FLOWS_MAX} flows"))
            .remedy("look which port has most (`lasthop show PORT`); access lists that ask for fewer fields need fewer flows")
    })
}

fn connections(facts: &Facts<'_>) -> Vec<Finding> {
    let (now, mut found) = (&facts.now.connections, Vec::new());
    if now.no_memory {
        found.push(
            Finding::of_all(
                "connections-no-memory",
                "there is no memory for the table of connections: nothing of IP passes stateful lists",
            )
            .seen(format!("a list asks about connections, and room for {} could not be had", now.capacity))
            .remedy("free memory, or start lasthop with fewer: `lasthop run --connections N`"),
        );
    }
    for port in now.ports.iter().filter(|port| port.connections >= port.limit && port.limit > 0) {
        found.push(connections_of(facts, port));
    }
    let count = |drops: &[Drops], reason| drops.iter().find(|d| d.reason == reason).map_or(0, |d| d.packets);
    for (reason, remedy) in FULL {
        let (before, after) = (count(&facts.before.connections.refused, reason), count(&now.refused, reason));
        if after > before {
            let remedy = if reason == "owner_limit" && facts.is_open_vswitchs() { OWNER_LIMIT_OVS } else { remedy };
            let told = format!(
                "{} of {} connections; {} refused as {reason}",
                now.connections,
                now.capacity,
                counted(after - before, "packet")
            );
            found.push(
                Finding::of_all("connections-full", "new connections are refused for want of room")
                    .seen(told)
                    .remedy(remedy),
            );
        }
    }
    found
}

/// Under Open vSwitch a port has its share of the table, and no limit of its own.
fn connections_of(facts: &Facts<'_>, port: &PortConnections) -> Finding {
    let what = |reason| format!("it has opened as many connections as it may: the next is dropped as {reason}");
    let at = |reason| {
        let seen = format!("{} of {}", counted(port.connections, "connection"), port.limit);
        Finding::at(&port.port, "connections-full", what(reason)).seen(seen)
    };
    if facts.is_open_vswitchs() {
        return at("policy").remedy(OWNER_LIMIT_OVS);
    }
    let more = port.limit.saturating_mul(2);
    at("ct_limit")
        .remedy("raise its limit, or end some: `lasthop conntrack flush --port NAME`")
        .command(facts.lasthop(&format!("port set {} --connections {more}", port.port)))
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::RefusedMac;

    fn kinds(before: &Seen, now: &Seen) -> Vec<&'static str> {
        findings(&facts(before, now)).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn an_address_used_twice_names_both_ports() {
        let of = |age_ms| RefusedMac { mac: "52:54:00:00:00:01".into(), vlan: 0, lives_at: Some("a".into()), age_ms };
        let port = |age_ms, n| Port { refused_mac: Some(of(age_ms)), moves_refused: n, ..up("b") };
        let now = seen(&[up("a"), port(1000, 3)]);
        let [finding] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert!(finding.what.contains("52:54:00:00:00:01: it lives at a"), "{}", finding.what);
        assert_eq!((finding.port.as_deref(), &finding.also[..]), (Some("b"), &["a".to_owned()][..]));
        let old = seen(&[up("a"), port(70_000, 3)]);
        assert_eq!(kinds(&old, &old), [""; 0], "that is over");
        let fixed = &mut port(1000, 3);
        fixed.refused_mac.as_mut().unwrap().lives_at = None;
        let fixed = seen(&[up("a"), fixed.clone()]);
        assert_eq!(kinds(&fixed, &fixed), [""; 0], "the address has gone");
        let fixed = seen(&[told(up("a"), &[("static-mac", "52:54:00:00:00:01")]), port(0, 1)]);
        assert!(findings(&facts(&fixed, &fixed))[0].what.contains("is static at a"));
    }

    #[test]
    fn a_station_that_comes_in_by_two_ways_out_is_a_loop() {
        let of = RefusedMac { mac: "52:54:00:00:00:01".into(), vlan: 0, lives_at: Some("net".into()), age_ms: 1000 };
        let path = "/run/lasthop/devices/nic0/cable.sock".into();
        let cable = Port { refused_mac: Some(of.clone()), moves_refused: 3, path, ..up("nic0") };
        let uplink = Port { uplink: true, ..up("net") };
        let now = seen(&[uplink.clone(), cable]);
        let [finding] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert_eq!((finding.kind, &finding.also[..]), ("loop", &["net".to_owned()][..]));
        let guest = seen(&[uplink, Port { refused_mac: Some(of), moves_refused: 3, ..up("b") }]);
        assert_eq!(kinds(&guest, &guest), ["duplicate-mac"]);
    }

    #[test]
    fn tables_that_are_full() {
        let mut port = up("a");
        (port.sources_over_limit, port.flows) = (3, FLOWS_PER_PORT_MAX as u64);
        assert_eq!(kinds(&seen(&[up("a")]), &seen(&[port])), ["addresses-full", "flows-full"]);
        let mut now = seen(&[up("a")]);
        now.switch.flows = FLOWS_MAX as u64;
        now.connections.no_memory = true;
        now.connections.ports = vec![PortConnections { port: "a".into(), connections: 4, limit: 4 }];
        now.connections.refused = dropped("no_translation", 2);
        let found = findings(&facts(&seen(&[up("a")]), &now));
        let kinds: Vec<_> = found.iter().map(|f| f.kind).collect();
        assert_eq!(kinds, ["flows-full", "connections-no-memory", "connections-full", "connections-full"]);
        assert_eq!(found[2].command.as_deref(), Some("lasthop port set a --connections 8"));
        assert!(found[3].remedy.contains("snat"));
        // The command was refused there.
        (now.switch.open_vswitch, now.connections.refused) = (Some(Vec::new()), dropped("zone_limit", 1));
        let found = findings(&facts(&seen(&[up("a")]), &now));
        assert!(found[2].command.is_none() && found[2].remedy.contains("--connections N"), "{:?}", found[2]);
        assert!(found[3].remedy.contains("ct-set-limits"), "{:?}", found[3]);
        let mut healthy = seen(&[up("a")]);
        healthy.connections.refused = dropped("tcp_state", 2);
        assert!(findings(&facts(&seen(&[up("a")]), &healthy)).is_empty());
    }
}
