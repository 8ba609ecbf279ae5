//! Uplinks and devices that are guests: cables, segments, MTUs, and what their processes lose.

use super::facts::{Facts, Way, quoted, setting};
use super::finding::Finding;
use lasthop_api::{Port, Uplink};
use lasthop_policy::QueueOf;

/// An interface whose process gives no reason of its own waits like this for a moment only.
const TROUBLED: [&str; 2] = ["starting", "waiting"];

/// Reasons for which an interface's process drops packets, of those that are a fault: the kind, what is wrong, and what to do.
const LOST: [(&str, &str, &str, &str); 5] = [
    (
        "overrun",
        "interface-overrun",
        "more comes in than its process takes",
        "give the switch more CPUs (--cpus) or this uplink more queues; look who sends so much: `lasthop flow list`",
    ),
    (
        "no_room",
        "interface-full",
        "the kernel has no memory for what goes out, or the disk of a capture file is full",
        "make room",
    ),
    (
        "no_route",
        "tunnel-no-route",
        "the host has no route to a tunnel's other end, or not the address that the tunnel is told to send from",
        "see where each tunnel goes (`ovs-vsctl --columns=name,options list interface`), and whether the host can: `ip route get REMOTE`, \
         with a `local_ip`: `ip route get REMOTE from LOCAL`; add the route or the address, or mend the option",
    ),
    ("device_down", "interface-down", "somebody has set it down while packets went out", "set it up"),
    (
        "refused",
        "interface-refuses",
        "the kernel does not take frames whose headers ask for what does not fit them",
        "turn off TSO and checksum offload in the guest that sends them",
    ),
];

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let of_each = facts.now.interfaces.iter().flat_map(|interface| of_interface(facts, interface));
    of_each.chain(longer(facts)).chain(announced(facts)).chain(without_queues(facts)).collect()
}

/// Ports that are to have a queue of their own at an uplink, and have none there.
fn without_queues<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = Finding> + 'a {
    facts.now.ports.iter().filter_map(|port| {
        let net = setting(port, lasthop_policy::QUEUE_OF)?.parse::<QueueOf>().ok()?.uplink;
        let uplink = facts.now.interfaces.iter().find(|interface| interface.name == net && !interface.guest);
        let remedy = match uplink {
            Some(uplink) if uplink.guest_queues.iter().any(|queue| queue.port.as_ref() == Some(&port.name)) => return None,
            // Its process has not told of queues yet.
            Some(uplink) if uplink.state != "up" => return None,
            Some(uplink) => format!(
                "make {net} anew with more queues (`lasthop uplink del {net}`, then `lasthop uplink add {net} {} --driver af_xdp --queues N`)",
                uplink.device
            ),
            None => format!("make an uplink of that name, or take it back (`lasthop port set {} --queue-of none`)", port.name),
        };
        let what = format!("it is to have a queue of its own at {net}, and has none there: it shares one with others");
        Some(Finding::at(&port.name, "no-queue", what).remedy(remedy))
    })
}

fn of_interface(facts: &Facts<'_>, interface: &Uplink) -> Vec<Finding> {
    let mut found: Vec<_> = link(interface).into_iter().chain(excluded(interface)).collect();
    if let Some(port) = facts.port(&interface.name) {
        for (reason, kind, what, remedy) in LOST {
            let lost = facts.drops(port, Way::Outside, reason);
            if let ("overrun", Some(rate)) = (reason, facts.rate_of_ovs(port, "rate-from"))
                && lost.now > 0
            {
                let what = format!(
                    "{}: more comes in than Open vSwitch lets through, and its socket is full",
                    interface.device
                );
                let remedy = format!(
                    "raise it, or take it back: `ovs-vsctl set interface {} ingress_policing_rate=0 ingress_policing_kpkts_rate=0`",
                    port.name
                );
                let seen = [format!("Open vSwitch sets {rate}"), lost.said(&format!("dropped as {reason}"))];
                found.push(
                    seen.into_iter()
                        .fold(Finding::at(&interface.name, "rate-from", what), Finding::seen)
                        .remedy(remedy),
                );
            } else if lost.now > 0 {
                found.push(
                    Finding::at(&interface.name, kind, format!("{}: {what}", interface.device))
                        .seen(lost.said(&format!("dropped as {reason}")))
                        .remedy(remedy),
                );
            }
        }
    }
    found
}

/// The cable, and whether the interface is there at all.
pub fn link(interface: &Uplink) -> Option<Finding> {
    let Uplink { name, device, link, .. } = interface;
    let state = format!("state {}, link {link}", interface.state);
    Some(match link.as_str() {
        "no-carrier" => Finding::at(name, "no-carrier", format!("{device} has no carrier"))
            .seen(state)
            .remedy(format!("plug its cable in, or set the other end up: the port of the switch, a veth's peer (`ip -d link show {device}` names it)")),
        "down" => Finding::at(name, "interface-down", format!("{device} is set down"))
            .seen(state)
            .remedy("set it up")
            .command(format!("ip link set {} up", quoted(device))),
        "missing" => Finding::at(name, "interface-missing", format!("there is no interface {device}"))
            .seen(state)
            .remedy("make it, or bring it into this namespace: it is used as soon as it is there"),
        _ if TROUBLED.contains(&&*interface.state) && interface.last_error.is_some() => {
            Finding::at(name, "interface-not-used", format!("the process of {device} does not carry frames"))
                .seen(interface.last_error.clone().unwrap_or_default())
                .remedy("the log of `lasthop run` says all of it; docs/troubleshooting.md, \"An uplink is not up\", what to do")
        }
        _ => return None,
    })
}

fn excluded(interface: &Uplink) -> Option<Finding> {
    let other = interface.blocked_by.as_ref()?;
    let what = format!("it carries nothing: it is on the same network segment as uplink {other}, which does");
    Some(
        Finding::at(&interface.name, "uplink-excluded", what)
            .seen(format!("state {}, blocked by {other}", interface.state))
            .remedy(
                "nothing, if it is to stand by; else look at the cabling and at bridges between the two, or give each VLANs of its own \
                 (`lasthop uplink set NAME --vlans LIST`)",
            )
            .also(other),
    )
}

/// Packets that were too long for where they went.
fn longer(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for port in facts.ports() {
        let outside = facts.drops(port, Way::Outside, "too_long");
        if let Some(interface) = facts.interface(&port.name).filter(|_| outside.now > 0) {
            if is_tunnel(interface) {
                found.push(longer_than_underlay(interface).seen(outside.said("dropped as too_long")));
                continue;
            }
            let mtu = interface.mtu.map_or_else(|| "not known".into(), |mtu| format!("{mtu} bytes"));
            let what = format!("packets are longer than {} takes (MTU {mtu})", interface.device);
            let remedy = format!(
                "set the guests' MTU to that (`ip link set eth0 mtu N` in each; QEMU: host_mtu=N), or raise it: `ip link set {} mtu N`",
                interface.device
            );
            found.push(Finding::at(&port.name, "mtu", what).seen(outside.said("dropped as too_long")).remedy(remedy));
        }
        let over = facts.drops(port, Way::To, "over_mtu");
        if over.now > 0 {
            let what =
                format!("packets are longer than the {} bytes that its front-end announced as its MTU", port.mtu);
            let remedy = "set the senders' MTU to that, or let the front-end announce more (QEMU: host_mtu=N)";
            found.push(Finding::at(&port.name, "mtu", what).seen(over.said("dropped as over_mtu")).remedy(remedy));
        }
    }
    found
}

fn is_tunnel(interface: &Uplink) -> bool {
    matches!(interface.driver.as_deref(), Some("vxlan" | "geneve" | "gre" | "ip6gre"))
}

/// A tunnel's own MTU says nothing: it is what the way to the other end takes, less the headers.
fn longer_than_underlay(interface: &Uplink) -> Finding {
    let what = format!(
        "packets of {} are, with the tunnel's headers, longer than the way to its other end takes",
        interface.device
    );
    Finding::at(&interface.name, "mtu", what).remedy(
        "set the guests' MTU to that of the network between the hosts less the headers (1442 for Geneve where it is 1500: 58 bytes over IPv4, 78 over \
         IPv6, and a tunnel's options; OVN's DHCP can tell guests); or raise that network's (`ip link set eth0 mtu N` on both hosts); or have \
         packets cut: `ovs-vsctl set interface NAME options:df_default=false`",
    )
}

/// Nothing has been lost yet, and what is announced does not fit together.
fn announced(facts: &Facts<'_>) -> Vec<Finding> {
    let carries = |uplink: &&Uplink| !uplink.guest && uplink.link == "up" && uplink.blocked_by.is_none();
    let uplinks = facts.now.interfaces.iter().filter(carries);
    let Some((uplink, least)) = uplinks.filter_map(|u| Some((u, u.mtu?))).min_by_key(|(_, mtu)| *mtu) else {
        return Vec::new();
    };
    let fits = |port: &Port| mtu_of(facts, port).is_none_or(|mtu| mtu <= least);
    let longer = facts.ports().filter(|port| !port.uplink && port.state == "up" && !fits(port));
    let finding = |port: &Port| {
        let mtu = mtu_of(facts, port).unwrap_or_default();
        let (uplink, device) = (&uplink.name, &uplink.device);
        let what = format!(
            "its MTU is larger than that of uplink {uplink}: what it sends of that length does not leave this host"
        );
        let finding =
            Finding::at(&port.name, "mtu", what).seen(format!("MTU {mtu} there, {least} of {device}")).also(uplink);
        match &port.device {
            Some(device) => finding
                .remedy("set the interface's MTU, and that of its other end, to the uplink's; or raise the uplink's, if the network takes it")
                .command(format!("ip link set {} mtu {least}", quoted(device))),
            None => finding
                .remedy("have the front-end announce no more (QEMU: host_mtu=N); or raise the uplink's, if the network takes it")
                .command(format!("ip link set {} mtu {mtu}", quoted(device))),
        }
    };
    longer.map(finding).collect()
}

/// Of a VM what its front-end announced; of an interface its own, but for files and the like, which have none.
fn mtu_of(facts: &Facts<'_>, port: &Port) -> Option<u32> {
    match &port.device {
        Some(device) if device.starts_with('/') => None,
        Some(_) => facts.interface(&port.name)?.mtu.filter(|mtu| *mtu < 65_000),
        None => Some(u32::from(port.mtu)).filter(|mtu| *mtu > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::{Field, GuestQueue};

    fn uplink(name: &str, link: &str) -> Uplink {
        let device = format!("{name}0");
        Uplink {
            name: name.into(),
            device,
            link: link.into(),
            state: link.into(),
            mtu: Some(1500),
            ..Uplink::default()
        }
    }

    fn with(interfaces: Vec<Uplink>, ports: &[Port]) -> Seen {
        Seen { interfaces, ..seen(ports) }
    }

    fn kinds(now: &Seen) -> Vec<&'static str> {
        findings(&facts(now, now)).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn a_port_that_is_to_have_a_queue_has_one() {
        let set = Field { name: "queue-of".into(), value: "net:256".into() };
        let ports = [Port { name: "vm1".into(), settings: vec![set], ..Port::default() }];
        let kept = GuestQueue { port: Some("vm1".into()), ..GuestQueue::default() };
        let net = |guest_queues| vec![Uplink { guest_queues, ..uplink("net", "up") }];
        assert_eq!(kinds(&with(net(vec![GuestQueue::default(), kept]), &ports)), [""; 0]);
        assert_eq!(kinds(&with(net(vec![GuestQueue::default()]), &ports)), ["no-queue"]);
        assert_eq!(kinds(&with(Vec::new(), &ports)), ["no-queue"]);
    }

    #[test]
    fn cables_and_segments() {
        assert_eq!(kinds(&with(vec![uplink("net", "up")], &[])), [""; 0]);
        assert_eq!(kinds(&with(vec![uplink("net", "no-carrier")], &[])), ["no-carrier"]);
        assert_eq!(kinds(&with(vec![uplink("net", "missing")], &[])), ["interface-missing"]);
        let down = with(vec![uplink("net", "down")], &[]);
        let [finding] = &findings(&facts(&down, &down))[..] else { panic!("one") };
        assert_eq!(finding.command.as_deref(), Some("ip link set net0 up"));
        let blocked = Uplink { blocked_by: Some("net".into()), ..uplink("other", "up") };
        let two = with(vec![uplink("net", "up"), blocked], &[]);
        let [finding] = &findings(&facts(&two, &two))[..] else { panic!("one") };
        assert_eq!((finding.kind, &finding.also[..]), ("uplink-excluded", &["net".to_owned()][..]));
        let stuck = Uplink { state: "starting".into(), last_error: Some("in use".into()), ..uplink("net", "up") };
        assert_eq!(kinds(&with(vec![stuck.clone()], &[])), ["interface-not-used"]);
        assert_eq!(kinds(&with(vec![Uplink { state: "up".into(), ..stuck }], &[])), [""; 0], "that is over");
    }

    #[test]
    fn mtus_that_do_not_fit() {
        let port = |mtu| Port { mtu, ..up("a") };
        assert_eq!(kinds(&with(vec![uplink("net", "up")], &[port(1500)])), [""; 0]);
        assert_eq!(kinds(&with(vec![uplink("net", "up")], &[port(0)])), [""; 0], "it announced none");
        let long = with(vec![uplink("net", "up")], &[port(9000)]);
        let [finding] = &findings(&facts(&long, &long))[..] else { panic!("one") };
        assert_eq!((finding.kind, finding.command.as_deref()), ("mtu", Some("ip link set net0 mtu 9000")));
        assert_eq!(kinds(&with(vec![uplink("net", "down")], &[port(9000)])), ["interface-down"]);
        // A container's veth.
        let device = Port { device: Some("v0".into()), ..up("c") };
        let guest = Uplink { guest: true, mtu: Some(9000), ..uplink("c", "up") };
        let two = with(vec![uplink("net", "up"), guest], &[device]);
        let [finding] = &findings(&facts(&two, &two))[..] else { panic!("one") };
        assert_eq!(finding.command.as_deref(), Some("ip link set v0 mtu 1500"));
    }

    /// The remedy was an MTU of 65 000, and to set up what was up.
    #[test]
    fn what_a_tunnel_loses_has_remedies_of_its_own() {
        let lost = |reason, packets| {
            let interface = Uplink {
                id: up("genev_sys_6081").id,
                driver: Some("geneve".into()),
                mtu: Some(65_000),
                drops: dropped(reason, packets),
                guest: true,
                ..uplink("genev_sys_6081", "up")
            };
            with(vec![interface], &[up("genev_sys_6081")])
        };
        for (reason, kind, words) in
            [("too_long", "mtu", "options:df_default=false"), ("no_route", "tunnel-no-route", "ip route get REMOTE")]
        {
            let (before, now) = (lost(reason, 3), lost(reason, 5));
            let [finding] = &findings(&facts(&before, &now))[..] else { panic!("one") };
            assert_eq!(finding.kind, kind);
            assert!(finding.remedy.contains(words) && !finding.remedy.contains("65000"), "{}", finding.remedy);
        }
    }

    #[test]
    fn what_was_too_long_while_one_looked() {
        let lost = |packets| {
            let interface = Uplink { id: up("net").id, drops: dropped("too_long", packets), ..uplink("net", "up") };
            with(vec![interface], &[Port { uplink: true, ..up("net") }])
        };
        let (before, now) = (lost(3), lost(5));
        let found = findings(&facts(&before, &now));
        assert!(matches!(&found[..], [f] if f.kind == "mtu" && f.evidence[0].starts_with("2 packets")), "{found:?}");
        assert!(findings(&facts(&now, &now)).is_empty());
        let mut port = up("a");
        port.to_guest.drops = dropped("over_mtu", 1);
        let (before, now) = (with(vec![], &[up("a")]), with(vec![], &[port]));
        assert_eq!(findings(&facts(&before, &now)).iter().map(|f| f.kind).collect::<Vec<_>>(), ["mtu"]);
    }
}
