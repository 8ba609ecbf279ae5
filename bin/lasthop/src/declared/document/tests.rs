//! Files that are read, and files that are refused.

use super::super::{Declared, plan};
use super::read;
use lasthop_api::{AclRule, Field, Port, TxBatch, Uplink};
use lasthop_policy::acl::Scope;
use std::path::Path;

const FILE: &str = r#"
    [uplink.net]
    device = "eth1"
    vlans = ["untagged", 10, "20-30"]

    [port.vm1]
    socket = "/run/lasthop/vm1.sock"
    owner = "libvirt-qemu:kvm"
    tx-batch = "250,32"
    vlan = 10
    mac = ["52:54:00:00:00:01"]
    addr = ["10.0.0.1", "fd00::1"]
    no-ra = true
    rate-from = "100M"
    rules = """
    default to-guest deny
    permit to-guest arp
    """

    [port.c1]
    device = "veth1"
    isolated = true

    [guests]
    rules = "deny from-guest udp from any port 67"
"#;

fn declared(text: &str) -> Declared {
    read(text, Path::new("/nowhere")).unwrap()
}

/// As a running lasthop tells of what [`FILE`] says.
fn there() -> plan::There {
    let field = |name: &str, value: &str| Field { name: name.into(), value: value.into() };
    let vm1 = Port {
        name: "vm1".into(),
        path: "/run/lasthop/vm1.sock".into(),
        owner: Some("libvirt-qemu:kvm".into()),
        tx_batch: TxBatch { us: 250, packets: 32 },
        settings: vec![
            field("vlan", "10"),
            field("mac", "52:54:00:00:00:01"),
            field("addr", "10.0.0.1,fd00::1"),
            field("no-ra", "on"),
            field("rate-from", "100M"),
        ],
        ..Port::default()
    };
    let c1 = Port {
        name: "c1".into(),
        device: Some("veth1".into()),
        settings: vec![field("isolated", "on")],
        ..Port::default()
    };
    let net = Port { name: "net".into(), uplink: true, ..Port::default() };
    let interface = |name: &str, device: &str, guest| Uplink {
        name: name.into(),
        device: device.into(),
        driver: Some("af_packet".into()),
        guest,
        queues: 1,
        gro: true,
        ..Uplink::default()
    };
    let uplinks = vec![
        Uplink { vlans: Some("untagged:10:20-30".into()), ..interface("net", "eth1", false) },
        interface("c1", "veth1", true),
    ];
    let rule = |port: Option<&str>, direction: &str, number, text: &str| AclRule {
        port: port.map(Into::into),
        applies_to: port.map_or("guests".into(), |name| format!("port {name}")),
        direction: direction.into(),
        number,
        text: text.into(),
        packets: None,
    };
    let rules = vec![
        rule(None, "from-guest", 1, "deny udp from any port 67"),
        rule(None, "from-guest", 0, "default permit"),
        rule(Some("vm1"), "to-guest", 1, "permit arp"),
        rule(Some("vm1"), "to-guest", 0, "default deny"),
    ];
    plan::There { ports: vec![vm1, c1, net], uplinks, rules }
}

fn told(text: &str, there: &plan::There, prune: bool) -> Vec<String> {
    let declared = declared(text);
    plan::Plan::new(&declared, there, prune).changes.into_iter().map(|change| change.told).collect()
}

#[test]
fn what_is_as_the_file_says_is_left_alone() {
    assert_eq!(told(FILE, &there(), true), [""; 0]);
}

#[test]
fn an_empty_lasthop_gets_everything_lists_first() {
    assert_eq!(
        told(FILE, &plan::There::default(), false),
        [
            "~ access lists of guests: 1 rule",
            "~ access lists of port vm1: 1 rule",
            "+ port c1: device veth1",
            "+ port vm1: /run/lasthop/vm1.sock",
            "+ uplink net: eth1",
        ]
    );
}

#[test]
fn differences_are_changed_and_what_cannot_be_changed_is_made_anew() {
    let change = |from: &str, to: &str| told(&FILE.replace(from, to), &there(), false);
    assert_eq!(change("vlan = 10", "trunk = \"10,20\""), ["~ port vm1: vlan 10 -> none, trunk none -> 10:20"]);
    assert_eq!(change("isolated = true", ""), ["~ port c1: isolated on -> none"]);
    assert_eq!(change("vlans = [\"untagged\", 10, \"20-30\"]", ""), ["~ uplink net: vlans untagged:10:20-30 -> all"]);
    assert_eq!(
        change("vm1.sock", "other.sock"),
        [
            "- port vm1: socket /run/lasthop/vm1.sock -> /run/lasthop/other.sock; its connection ends",
            "+ port vm1: /run/lasthop/other.sock",
        ]
    );
    assert_eq!(change("\"eth1\"", "\"eth2\"").len(), 2);
    assert_eq!(change("permit to-guest arp", "permit to-guest ip"), ["~ access lists of port vm1: 1 rule"]);
}

#[test]
fn what_the_file_does_not_name_is_left_alone_unless_it_is_to_go() {
    let less = "[port.vm1]\nsocket = \"/run/lasthop/vm1.sock\"\nowner = \"libvirt-qemu:kvm\"\nvlan = 10\nmac = \"52:54:00:00:00:01\"\n\
                addr = [\"10.0.0.1\", \"fd00::1\"]\nno-ra = true\nrate-from = \"100M\"\n";
    assert_eq!(told(less, &there(), false), [""; 0]);
    let declared = declared(less);
    assert_eq!(
        plan::Plan::new(&declared, &there(), false).left,
        ["port c1", "uplink net", "access lists of guests", "access lists of port vm1"]
    );
    assert_eq!(
        told(less, &there(), true),
        ["- port c1", "- uplink net", "- access lists of guests", "- access lists of port vm1"]
    );
}

#[test]
fn a_list_that_becomes_stateful_has_changed() {
    let line = |direction: &str, text: &str| AclRule {
        applies_to: "guests".into(),
        direction: direction.into(),
        text: text.into(),
        ..AclRule::default()
    };
    let plain = "default to-guest deny\npermit from-guest tcp\npermit to-guest tcp\n";
    let there = |stateful: bool| {
        let of = |direction: &'static str, default: &'static str| {
            let first = stateful.then_some("stateful");
            first.into_iter().chain(["permit tcp", default]).map(move |text| line(direction, text)).collect::<Vec<_>>()
        };
        let rules = [of("from-guest", "default permit"), of("to-guest", "default deny")].concat();
        plan::There { rules, ..plan::There::default() }
    };
    let file = |text: &str| format!("[guests]\nrules = \"\"\"\n{text}\"\"\"\n");
    for (text, stateful) in [(plain.to_owned(), false), (format!("stateful\n{plain}"), true)] {
        assert_eq!(told(&file(&text), &there(stateful), false), [""; 0]);
        assert_eq!(told(&file(&text), &there(!stateful), false), ["~ access lists of guests: 2 rules"]);
    }
}

#[test]
fn lists_of_a_port_are_its_own() {
    let scopes: Vec<_> = declared(FILE).lists.into_iter().map(|lists| lists.scope).collect();
    assert_eq!(scopes, [Scope::Guests, Scope::Port("vm1".into())]);
}

#[test]
fn mistakes_are_named_where_they_are() {
    let port = "[port.vm1]\nsocket = \"/x\"\n";
    for (text, what) in [
        ("[port.vm1\n", "line 1: "),
        ("\n[port.vm1]\nsocket = /x\n", "line 3: "),
        ("[ports.vm1]\n", "there is no table [ports]; there are [port.NAME]"),
        ("port = 1\n", "port is no table; write [port.NAME]"),
        ("[port]\nvm1 = \"/x\"\n", "write [port.vm1]"),
        ("[port.vm1]\n", "[port.vm1]: neither socket nor device"),
        ("[port.vm1]\nsocket = \"vm1.sock\"\n", "not an absolute path"),
        ("[port.vm1]\nsocket = 1\n", "[port.vm1] socket: 1 is no text"),
        ("[port.\"a b\"]\nsocket = \"/x\"\n", "[port.a b]: "),
        (&format!("{port}vlann = 1\n"), "[port.vm1]: there is no vlann; there are socket"),
        (&format!("{port}vlan = 5000\n"), "[port.vm1] vlan=5000: "),
        (&format!("{port}vlan = 1\ntrunk = \"2\"\n"), "not both"),
        (&format!("{port}addr = \"10.0.0.1\"\n"), "say with mac"),
        (&format!("{port}vlan = {{}}\n"), "neither text, number"),
        (&format!("{port}queues = 2\n"), "[port.vm1] queues: goes with device"),
        (&format!("{port}owner = \"\"\n"), "[port.vm1] owner: "),
        (&format!("{port}tx-batch = \"x\"\n"), "or off"),
        (&format!("{port}rules = \"permit frob\"\n"), "[port.vm1] acl: rules: "),
        (&format!("{port}rules = \"\"\n"), "every packet would pass"),
        (&format!("{port}rules = \"for uplinks\\ndeny arp\"\n"), "says that it is for uplinks"),
        (&format!("{port}acl = \"missing.rules\"\n"), "/nowhere/missing.rules"),
        (&format!("{port}acl = \"a\"\nrules = \"deny arp\"\n"), "one of both"),
        (&format!("{port}[port.vm2]\nsocket = \"/x\"\n"), "/x is the socket of vm1 and of vm2"),
        (&format!("{port}[uplink.vm1]\ndevice = \"eth1\"\n"), "vm1 is a port and an uplink"),
        ("[uplink.net]\n", "[uplink.net]: no device"),
        ("[uplink.net]\ndevice = \"eth1\"\nqueues = 70000\n", "[uplink.net] queues: 70000"),
        ("[uplink.net]\ndevice = \"eth1\"\nvlans = \"x\"\n", "[uplink.net] vlans: "),
        ("[uplink.net]\ndevice = \"eth1\"\nspare = 1\n", "neither true nor false"),
        ("[guests]\nrule = \"x\"\n", "[guests]: there is no rule; there are acl, rules"),
    ] {
        let error = read(text, Path::new("/nowhere")).unwrap_err();
        assert!(error.contains(what), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
