//! Files that are read, and files that are refused.

use super::super::{Declared, plan};
use super::read;
use lasthop_api::{AclRule, Batching, Field, Port, Uplink};
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
        tx_batch: Batching { us: 250, packets: 32 },
        settings: vec![
            field("vlan", "10"),
            field("mac", "52:54:00:00:00:01"),
            field("addr", "10.0.0.1,fd00::1"),
            field("no-ra", "on"),
            field("rate-from", "100M"),
            field("tx-batch", "250,32"),
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
    plan::There { ports: vec![vm1, c1, net], uplinks, rules, ..plan::There::default() }
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
    assert_eq!(change("tx-batch = \"250,32\"", "tx-batch = \"off\""), ["~ port vm1: tx-batch 250,32 -> off"]);
    assert_eq!(
        change("tx-batch = \"250,32\"", "rx-batch = 9"),
        ["~ port vm1: tx-batch 250,32 -> none, rx-batch none -> 9,64"]
    );
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
                addr = [\"10.0.0.1\", \"fd00::1\"]\nno-ra = true\nrate-from = \"100M\"\n\
                tx-batch = \"250,32\"\n";
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

/// A port of the file that listens at a socket of its name.
fn port(name: &str, more: &str) -> String {
    format!("[port.{name}]\nsocket = \"/{name}\"\n{more}\n")
}

/// Ports, as a running lasthop tells of them, and their static addresses.
fn listening(ports: &[(&str, &str)]) -> plan::There {
    let port = |(name, macs): &(&str, &str)| Port {
        name: (*name).into(),
        path: format!("/{name}"),
        settings: vec![Field { name: "static-mac".into(), value: (*macs).into() }],
        ..Port::default()
    };
    plan::There { ports: ports.iter().map(port).collect(), ..plan::There::default() }
}

#[test]
fn mirrors_are_made_when_their_ports_are_there_and_go_first() {
    let mirror = |to: &str| lasthop_api::Mirror {
        name: "web".into(),
        from: vec!["vm1".into(), "vm2".into()],
        to: to.into(),
        direction: "from-guest".into(),
        sample: 1,
        ..lasthop_api::Mirror::default()
    };
    let text = "[mirror.web]\nfrom = [\"vm1\", \"vm2\"]\nto = \"ids\"\ndirection = \"from-guest\"\n";
    let made = "+ mirror web: from-guest of vm1,vm2 to ids";
    let with = |mirrors| plan::There { mirrors, ..plan::There::default() };
    assert_eq!(told(text, &with(Vec::new()), false), [made]);
    assert_eq!(told(text, &with(vec![mirror("ids")]), true), [""; 0]);
    let sampled = [text, "sample = \"1/50\"\n"].concat();
    let otherwise = ["- mirror web: it is to be otherwise", &[made, ", 1/50"].concat()];
    assert_eq!(told(&sampled, &with(vec![mirror("ids")]), false), otherwise);
    let both = [text, &port("ids", "")].concat();
    let changed = told(&both, &with(vec![mirror("log")]), false);
    assert_eq!(changed, ["- mirror web: it is to be otherwise", "+ port ids: /ids", made]);
    assert_eq!(told("", &with(vec![mirror("ids")]), true), ["- mirror web"]);
    let nothing = declared("");
    assert_eq!(plan::Plan::new(&nothing, &with(vec![mirror("ids")]), false).left, ["mirror web"]);
    for (text, wrong) in [
        ("[mirror.m]\nto = \"a\"", "[mirror.m] from: missing; write from"),
        ("[mirror.m]\nfrom = \"a\"", "[mirror.m] to: missing; write to"),
        ("[mirror.m]\nfrom = \"a\"\nto = \"a\"", "[mirror.m]: a is the destination"),
        ("[mirror.m]\nfrom = \"a\"\nto = \"b\"\ndirection = \"in\"", "use from-guest, to-guest or both"),
        (
            "[mirror.m]\nfrom = \"a\"\nto = \"b\"\n[mirror.n]\nfrom = \"b\"\nto = \"c\"",
            "b is the destination of mirror m",
        ),
        ("[mirror.m]\nfrom = [[1]]\nto = \"b\"", "neither text, number"),
    ] {
        let error = read(text, Path::new("/nowhere")).unwrap_err();
        assert!(error.contains(wrong), "{text}: {error}");
    }
}

/// An address can be static at one port only.
#[test]
fn a_static_address_that_moves_leaves_first() {
    let [one, two] = ["52:54:00:00:00:01", "52:54:00:00:00:02"];
    let with = |name: &str, macs: &str| port(name, &format!("static-mac = \"{macs}\""));
    let swapped = [with("a", two), with("b", one)].concat();
    assert_eq!(
        told(&swapped, &listening(&[("a", one), ("b", two)]), false),
        [
            format!("~ port a: static-mac {one} -> none"),
            format!("~ port b: static-mac {two} -> none"),
            format!("~ port a: static-mac none -> {two}"),
            format!("~ port b: static-mac none -> {one}"),
        ]
    );
    assert_eq!(told(&swapped, &listening(&[("a", two), ("b", one)]), false), [""; 0]);
    let uplink = format!("[uplink.net]\ndevice = \"eth1\"\nstatic-mac = [\"{one}@10\", \"{two}\"]\n");
    let wanted = format!("~ uplink net: static-mac none -> {one}@10,{two}");
    assert_eq!(told(&uplink, &plan::There::default(), false), ["+ uplink net: eth1".to_owned(), wanted]);
    let twice = read(&[with("a", one), with("b", one)].concat(), Path::new("/nowhere")).unwrap_err();
    assert!(twice.contains("is at a and at b"), "{twice}");
    let wrong = read(&uplink.replace("@10", "@5000"), Path::new("/nowhere")).unwrap_err();
    assert!(wrong.contains("[uplink.net] static-mac=") && wrong.contains("write one, 1 to 4094"), "{wrong}");
}

/// Nobody is promised more than there is, not even on the way.
#[test]
fn minimum_rates_fall_first_and_rise_last() {
    let ports = |a: &str, b: &str| {
        [port("a", &format!("min-rate = \"{a}\"")), port("b", &format!("min-rate = \"{b}\""))].concat()
    };
    let uplink = |rate: &str| format!("[uplink.net]\ndevice = \"eth1\"\nrate-to = \"{rate}\"\n");
    let mut there = listening(&[("a", "none"), ("b", "none")]);
    for (port, rate) in there.ports.iter_mut().zip(["60M", "20M"]) {
        port.settings = vec![Field { name: "min-rate".into(), value: rate.into() }];
    }
    let text = [ports("10M", "50M"), uplink("70M")].concat();
    assert_eq!(
        told(&text, &there, false),
        [
            "~ port a: min-rate 60M -> 10M",
            "+ uplink net: eth1",
            "~ uplink net: rate-to none -> 70M",
            "~ port b: min-rate 20M -> 50M"
        ]
    );
    let wrong = read(&[ports("60M", "50M"), uplink("70M")].concat(), Path::new("/nowhere")).unwrap_err();
    assert!(wrong.contains("[uplink.net]: rate-to = \"70M\", and ports are to get 110M"), "{wrong}");
}
