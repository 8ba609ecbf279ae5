//! What somebody has told ports and access lists: denials, addresses that a port may not use, VLANs, cables that are pulled.

use super::facts::{Facts, Rise, Way, setting};
use super::finding::Finding;
use lasthop_api::{Denied, Port};
use lasthop_policy::Vlans;
use lasthop_text::{counted, parse_mac};
use std::net::IpAddr;

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let denied = facts.now.switch.denied.iter().filter_map(|denied| of_denied(facts, denied));
    denied.chain(facts.ports().filter_map(|port| pulled(facts, port))).chain(alone(facts)).collect()
}

fn of_denied(facts: &Facts<'_>, denied: &Denied) -> Option<Finding> {
    let port = facts.port(&denied.port)?;
    let same = |d: &&Denied| {
        (&d.port, &d.reason, &d.list, &d.direction, d.rule, &d.setting)
            == (&denied.port, &denied.reason, &denied.list, &denied.direction, denied.rule, &denied.setting)
    };
    let before = facts.before.switch.denied.iter().find(same).map_or(0, |d| d.packets);
    let during = Rise { now: denied.packets.saturating_sub(before), ever: denied.packets };
    if during.now == 0 && !facts.is_recent(denied.age_ms) {
        return None;
    }
    let seen = evidence(denied);
    match denied.reason.as_str() {
        "acl" => Some(by_list(facts, denied).seen(seen)),
        "spoofed" => spoofed(facts, port, denied).map(|finding| finding.seen(seen)),
        "isolated" => isolated(facts, port).map(|finding| finding.seen(seen)),
        "vlan" => Some(
            Finding::at(&denied.port, "vlan-denied", "it sends frames of a VLAN that it, or whoever they are for, does not carry")
                .seen(format!("told {}", crate::settings::told(&port.settings)))
                .seen(seen)
                .remedy(vlan_remedy(facts, port)),
        ),
        "ct_invalid" => Some(
            Finding::at(&denied.port, "not-a-connection", "a stateful list drops packets that are of no connection and can open none")
                .seen(seen)
                .remedy("`lasthop trace` says why, `lasthop conntrack stats` counts the reasons; a way back that does not pass this host looks like this"),
        ),
        _ => None,
    }
}

/// What to look at and to change, with the names that there are.
fn vlan_remedy(facts: &Facts<'_>, port: &Port) -> String {
    let name = &port.name;
    let list = if port.uplink { "uplink list" } else { "port list" };
    let change = if port.uplink {
        format!("`lasthop uplink set {name} --vlans` lists what it carries")
    } else if setting(port, "vlan").is_some() {
        format!(
            "as an access port it sends frames without a tag only: remove the VLAN interface inside the guest, or make it a trunk (`lasthop port set {name} --vlan none --trunk`, and the VLANs)"
        )
    } else if setting(port, "trunk").is_some() {
        format!("`lasthop port set {name} --trunk` lists what it may send")
    } else {
        "the port that it sends to carries other VLANs".to_owned()
    };
    format!("the packet above says which VLAN, `{}` who carries which; {change}", facts.lasthop(list))
}

fn evidence(denied: &Denied) -> String {
    let last = denied.packet.as_ref().map_or_else(String::new, |packet| format!(": {packet}"));
    format!(
        "{} dropped as {}, the last {} s ago{last}",
        counted(denied.packets, "packet"),
        denied.reason,
        denied.age_ms / 1000
    )
}

fn by_list(facts: &Facts<'_>, denied: &Denied) -> Finding {
    let direction = denied.direction.as_deref().unwrap_or("from-guest");
    let (whose, shown) = match denied.list.as_deref() {
        None => ("of all guests".to_owned(), "acl show".to_owned()),
        Some("uplinks") => ("of all uplinks".to_owned(), "acl show".to_owned()),
        Some(port) => (format!("of port {port}"), format!("acl show --port {port}")),
    };
    let text = denied.text.as_deref().unwrap_or_default();
    let rule = match denied.rule {
        Some(0) => format!("its default ({text})"),
        Some(n) => format!("rule {n} ({text})"),
        None => "its mistrust of malformed headers".to_owned(),
    };
    let finding = Finding::at(
        &denied.port,
        "denied",
        format!("an access list drops what it sends: {rule} of the {direction} list {whose}"),
    );
    let permit = match denied.rule {
        None => "a guest that sends such headers is broken or hostile; nothing permits them".to_owned(),
        _ => format!(
            "if this is to pass, permit it before that rule in the list's file, and load the file again with `lasthop acl load`; `{}` shows the list",
            facts.lasthop(&shown)
        ),
    };
    match denied.list.as_deref().filter(|list| *list != "uplinks" && *list != denied.port) {
        Some(other) => finding.remedy(permit).also(other),
        None => finding.remedy(permit),
    }
}

/// It pretends to be somebody else, as far as it still may not.
fn spoofed(facts: &Facts<'_>, port: &Port, denied: &Denied) -> Option<Finding> {
    let Some(name) = denied.setting.as_deref() else {
        let what = "it sends headers that cannot be read, and its addresses are bound";
        return Some(
            Finding::at(&port.name, "spoofed", what).remedy("look at the guest: such packets are broken or hostile"),
        );
    };
    let told = setting(port, name)?;
    let finding = |what: String| Finding::at(&port.name, "spoofed", what).seen(format!("told {name}={told}"));
    let (address, word) = match name {
        "mac" => (denied.packet.as_deref().and_then(said_mac), "Ethernet"),
        "addr" => (denied.packet.as_deref().and_then(said_ip), "IP"),
        flag => {
            let what = format!("it pretends to be a server, which {flag} forbids");
            return Some(
                finding(what)
                    .remedy("if it is to be one, take the setting back")
                    .command(facts.lasthop(&format!("port set {} --{flag} off", port.name))),
            );
        }
    };
    let Some(address) = address else {
        return Some(
            finding(format!("it sends from an {word} address that {name} does not allow"))
                .remedy(format!("`lasthop port set {} --{name} LIST`, or the address inside the guest", port.name)),
        );
    };
    if told.split(',').any(|entry| entry == address) {
        // Somebody has allowed it since.
        return None;
    }
    let what = format!("it sends from the {word} address {address}, which {name} does not allow");
    let remedy = format!(
        "if {address} is this guest's, allow it; if not, set the guest's own address right: somebody else may have it"
    );
    Some(
        finding(what)
            .remedy(remedy)
            .command(facts.lasthop(&format!("port set {} --{name} {told},{address}", port.name))),
    )
}

/// The Ethernet address at the end of what control says of a packet: `…, from MAC` or `…, from MAC saying MAC`; that which it says of itself
/// goes before, since `mac` is asked for both.
fn said_mac(packet: &str) -> Option<String> {
    let last = packet.rsplit(' ').next()?;
    parse_mac(last).ok().map(|mac| mac.to_string())
}

/// The source of `icmp 10.0.0.1 > 10.0.0.2`, `tcp 10.0.0.1 port 80 > …`.
fn said_ip(packet: &str) -> Option<String> {
    let (source, _) = packet.split_once(" > ")?;
    let mut words = source.split(' ').filter_map(|word| word.parse::<IpAddr>().ok());
    words.next_back().map(|address| address.to_string())
}

fn isolated(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let is = |port: &&Port| setting(port, "isolated").is_some();
    let whose = Some(port).filter(is).or_else(|| facts.ports().find(is))?;
    let what = if whose.name == port.name {
        "it is isolated, and sends to other guests".to_owned()
    } else {
        "it sends to an isolated port".to_owned()
    };
    Some(
        Finding::at(&port.name, "isolated", what)
            .remedy("if the two are to talk to each other, take the setting back")
            .command(facts.lasthop(&format!("port set {} --isolated off", whose.name)))
            .also(&whose.name),
    )
}

/// Somebody has pulled its cable.
fn pulled(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let told = setting(port, "link").filter(|told| *told == "down")?;
    let lost = facts.drops(port, Way::From, "port_down");
    let finding =
        Finding::at(&port.name, "link-down", "somebody has pulled its cable (`lasthop port set --link down`)")
            .seen(format!("told link={told}"));
    let finding = if lost.ever > 0 { finding.seen(lost.said("of its guest dropped as port_down")) } else { finding };
    Some(finding.remedy("plug it in again").command(facts.lasthop(&format!("port set {} --link up", port.name))))
}

/// Ports of VLANs that nobody else is in.
fn alone(facts: &Facts<'_>) -> Vec<Finding> {
    let known: Vec<(&Port, Option<Vlans>)> = facts.ports().map(|port| (port, vlans(facts, port))).collect();
    let meets = |port: &Port, own: &Vlans| {
        known
            .iter()
            .any(|(other, theirs)| other.id != port.id && theirs.as_ref().is_none_or(|theirs| theirs.overlaps(own)))
    };
    let mut found = Vec::new();
    for (port, own) in known.iter().filter(|_| known.len() > 1) {
        let Some(own) = own.as_ref().filter(|own| !meets(port, own)) else { continue };
        let what = format!("no other port or uplink is in its VLANs ({own}): it reaches nobody");
        let mut finding = Finding::at(&port.name, "vlan-alone", what);
        for (other, theirs) in known.iter().filter(|(other, _)| other.id != port.id).take(8) {
            finding = finding.seen(format!(
                "{}: {}",
                other.name,
                theirs.as_ref().map_or_else(|| "all".into(), Vlans::to_string)
            ));
        }
        let uplink = known.iter().find(|(other, _)| other.uplink && !port.uplink);
        found.push(match uplink {
            Some((uplink, Some(list))) => finding
                .remedy(format!("give it the VLAN of those that it is to reach; or, if they are in the network, have uplink {} carry it", uplink.name))
                .command(facts.lasthop(&format!("uplink set {} --vlans {list}:{own}", uplink.name)))
                .also(&uplink.name),
            _ => finding.remedy("give it the VLAN of those that it is to reach: `lasthop port set NAME --vlan ID`, or `--trunk LIST`"),
        });
    }
    found
}

/// The VLANs that a port is in; none: all, and frames without one.
fn vlans(facts: &Facts<'_>, port: &Port) -> Option<Vlans> {
    let list = if port.uplink {
        facts.interface(&port.name)?.vlans.clone()?
    } else {
        match (setting(port, "vlan"), setting(port, "trunk"), setting(port, "native")) {
            (Some(vlan), ..) => vlan.to_owned(),
            (_, Some(trunk), Some(native)) => {
                let trunk = trunk.replace(',', ":");
                let has = |list: Vlans| native.parse().is_ok_and(|native| list.contains(native));
                if trunk.parse().is_ok_and(has) { trunk } else { format!("{trunk}:{native}") }
            }
            (_, Some(trunk), None) => trunk.replace(',', ":"),
            (_, None, _) => return None,
        }
    };
    list.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::Uplink;

    fn denied(reason: &str, packets: u64, age_ms: u64) -> Denied {
        Denied { port: "a".into(), reason: reason.into(), packets, age_ms, ..Denied::default() }
    }

    fn with(ports: &[Port], denied: &[Denied]) -> Seen {
        let mut seen = seen(ports);
        seen.switch.denied = denied.to_vec();
        seen
    }

    fn one(now: &Seen) -> Finding {
        let found = findings(&facts(now, now));
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    }

    #[test]
    fn a_rule_is_named_with_its_list() {
        let by = Denied {
            list: Some("b".into()),
            direction: Some("to-guest".into()),
            rule: Some(2),
            text: Some("deny icmp".into()),
            ..denied("acl", 3, 1000)
        };
        let finding = one(&with(&[up("a"), up("b")], std::slice::from_ref(&by)));
        assert_eq!(
            finding.what,
            "an access list drops what it sends: rule 2 (deny icmp) of the to-guest list of port b"
        );
        assert_eq!(
            (finding.also.as_slice(), finding.command),
            (&["b".to_owned()][..], None),
            "no list is opened by a command that is copied"
        );
        assert!(finding.remedy.contains("acl show --port b"), "{}", finding.remedy);
        let old = with(&[up("a")], &[Denied { age_ms: 61_000, ..by.clone() }]);
        assert!(findings(&facts(&old, &old)).is_empty());
        let more = with(&[up("a")], &[Denied { age_ms: 61_000, packets: 4, ..by }]);
        assert_eq!(findings(&facts(&old, &more)).len(), 1);
        let default = Denied {
            rule: Some(0),
            text: Some("default deny".into()),
            direction: Some("from-guest".into()),
            ..denied("acl", 1, 0)
        };
        assert!(
            one(&with(&[up("a")], &[default]))
                .what
                .ends_with("its default (default deny) of the from-guest list of all guests")
        );
    }

    #[test]
    fn a_forged_address_is_named_until_it_is_allowed() {
        let packet = Some("arp 10.0.0.1 > 10.0.0.2, from 52:54:00:00:00:09".to_owned());
        let by = Denied { setting: Some("mac".into()), packet, ..denied("spoofed", 3, 0) };
        let port = told(up("a"), &[("mac", "52:54:00:00:00:01")]);
        let finding = one(&with(&[port], std::slice::from_ref(&by)));
        let command = "lasthop port set a --mac 52:54:00:00:00:01,52:54:00:00:00:09";
        assert_eq!(finding.command.as_deref(), Some(command));
        let allowed =
            with(&[told(up("a"), &[("mac", "52:54:00:00:00:01,52:54:00:00:00:09")])], std::slice::from_ref(&by));
        assert!(findings(&facts(&allowed, &allowed)).is_empty());
        let back = with(&[up("a")], &[by]);
        assert!(findings(&facts(&back, &back)).is_empty(), "the setting was taken back");
        let by = Denied {
            setting: Some("addr".into()),
            packet: Some("udp 10.0.0.9 port 68 > 10.0.0.1 port 67".into()),
            ..denied("spoofed", 1, 0)
        };
        let port = told(up("a"), &[("mac", "52:54:00:00:00:01"), ("addr", "10.0.0.1")]);
        assert_eq!(one(&with(&[port], &[by])).command.as_deref(), Some("lasthop port set a --addr 10.0.0.1,10.0.0.9"));
        let by = Denied { setting: Some("no-ra".into()), ..denied("spoofed", 1, 0) };
        let finding = one(&with(&[told(up("a"), &[("no-ra", "on")])], &[by]));
        assert_eq!(finding.command.as_deref(), Some("lasthop port set a --no-ra off"));
    }

    #[test]
    fn isolation_names_the_port_that_has_it() {
        let now = with(&[up("a"), told(up("b"), &[("isolated", "on")])], &[denied("isolated", 3, 0)]);
        let finding = one(&now);
        assert_eq!(
            (finding.port.as_deref(), finding.command.as_deref()),
            (Some("a"), Some("lasthop port set b --isolated off"))
        );
        let back = with(&[up("a"), up("b")], &[denied("isolated", 3, 0)]);
        assert!(findings(&facts(&back, &back)).is_empty());
    }

    #[test]
    fn a_vlan_that_is_not_carried_names_the_port() {
        for (port, says) in [
            (told(up("a"), &[("vlan", "10")]), "lasthop port set a --vlan none --trunk"),
            (told(up("a"), &[("trunk", "10,20")]), "lasthop port set a --trunk"),
            (Port { uplink: true, ..up("a") }, "lasthop uplink set a --vlans"),
            (up("a"), "carries other VLANs"),
        ] {
            let remedy = one(&with(&[port], &[denied("vlan", 3, 0)])).remedy;
            assert!(remedy.contains(says) && !remedy.contains("NAME") && !remedy.contains("ID`"), "{remedy}");
        }
    }

    #[test]
    fn a_pulled_cable() {
        let finding = one(&seen(&[told(up("a"), &[("link", "down")])]));
        assert_eq!((finding.kind, finding.command.as_deref()), ("link-down", Some("lasthop port set a --link up")));
    }

    #[test]
    fn vlans_without_a_member_in_common() {
        let uplink = |vlans: Option<&str>| {
            let port = Port { uplink: true, ..up("net") };
            let interface = Uplink { name: "net".into(), vlans: vlans.map(str::to_owned), ..Uplink::default() };
            (port, interface)
        };
        let site = |own: &[(&str, &str)], other: &[(&str, &str)], vlans: Option<&str>| {
            let (port, interface) = uplink(vlans);
            let mut now = seen(&[told(up("a"), own), told(up("b"), other), port]);
            now.interfaces = vec![interface];
            findings(&facts(&now, &now))
        };
        let (ten, twenty) = (&[("vlan", "10")][..], &[("vlan", "20")][..]);
        assert!(site(ten, twenty, None).is_empty(), "the uplink carries all");
        assert!(site(ten, ten, Some("30")).iter().all(|f| f.port.as_deref() == Some("net")));
        assert!(site(ten, &[], Some("30")).is_empty(), "b takes everything");
        let found = site(ten, twenty, Some("20:30"));
        let [finding] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            (finding.port.as_deref(), finding.command.as_deref()),
            (Some("a"), Some("lasthop uplink set net --vlans 20:30:10"))
        );
        assert!(
            site(&[("trunk", "10:20-30"), ("native", "5")], twenty, Some("untagged"))
                .iter()
                .all(|f| f.port.as_deref() == Some("net"))
        );
        assert!(
            site(&[("trunk", "20"), ("native", "20")], ten, Some("20")).iter().all(|f| f.port.as_deref() != Some("a"))
        );
    }

    #[test]
    fn addresses_in_what_control_says() {
        assert_eq!(said_mac("icmp 10.0.0.1 > 10.0.0.2, from 52:54:00:00:00:01").as_deref(), Some("52:54:00:00:00:01"));
        assert_eq!(
            said_mac("arp 1.1.1.1 > 1.1.1.2, from 52:54:00:00:00:01 saying 52:54:00:00:00:02").as_deref(),
            Some("52:54:00:00:00:02")
        );
        assert_eq!(said_mac("icmp 10.0.0.1 > 10.0.0.2"), None);
        assert_eq!(said_ip("tcp 10.0.0.1 port 80 > 10.0.0.2 port 9").as_deref(), Some("10.0.0.1"));
        assert_eq!(said_ip("ip protocol 50 fd00::1 > fd00::2").as_deref(), Some("fd00::1"));
        assert_eq!(said_ip("ethertype 0x88b5 52:54:00:00:00:01 > 52:54:00:00:00:02"), None);
    }
}
