//! `lasthop port rename`: all that goes by a port's name goes by the new one, and its guest notices nothing.

use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Host, Lasthop, Netns, Options, PATIENCE, Port, mac, scratch, wait_for};
use serde_json::Value;
use std::path::Path;

/// Nobody may open a connection to the port but to its port 22.
const GROUP: &str = "stateful\ndefault to-guest deny\npermit to-guest tcp to any port 22\n";
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A segment from one guest to another; each has the address of its number.
fn tcp(from: (u8, u16), to: (u8, u16), flags: u8, numbers: [u32; 2]) -> Vec<u8> {
    let mut bytes = [from.1, to.1].map(u16::to_be_bytes).concat();
    bytes.extend(numbers.map(u32::to_be_bytes).concat());
    bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let ip = |guest| [10, 0, 0, guest];
    Frame::between(mac(from.0), mac(to.0)).ipv4(ip(from.0), ip(to.0)).protocol(6).payload(bytes).build()
}

fn passes(from: &mut Guest, to: &mut Guest, frame: &[u8]) {
    from.send(frame);
    to.expect(frame);
}

fn add(lasthop: &Lasthop, dir: &Path, name: &str) {
    let socket = dir.join(format!("{name}.sock")).display().to_string();
    lasthop.command(&["port", "add", name, &socket]);
}

fn refused(lasthop: &Lasthop, words: &[&str], why: &str) {
    let out = lasthop.try_command(words);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains(why), "{words:?}: {said}");
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name} in {of}"))
}

#[test]
fn what_goes_by_the_name_goes_along_and_the_guest_stays() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[]);
    for name in ["vm1", "vm2", "probe"] {
        add(&lasthop, dir.path(), name);
    }
    let rules = dir.path().join("group");
    std::fs::write(&rules, GROUP).unwrap();
    lasthop.command(&["acl", "load", &rules.display().to_string(), "--port", "vm1"]);
    lasthop.command(&["port", "set", "vm1", "--vlan", "none", "--no-ra", "--rate-from", "1G"]);
    lasthop.command(&["mac", "add", "02:00:00:00:00:77", "--port", "vm1"]);
    lasthop.command(&["mirror", "add", "watch", "--from", "vm1", "--to", "probe"]);
    let guest = |n: u8, name: &str| {
        let path = dir.path().join(format!("{name}.sock"));
        let guest = Guest::connect(&path, mac(n), Options::default());
        lasthop.wait_for_state(name, "up");
        guest
    };
    let (mut one, mut two, mut probe) = (guest(1, "vm1"), guest(2, "vm2"), guest(3, "probe"));
    let (client, server) = ((1, 40_000), (2, 80));
    passes(&mut one, &mut two, &tcp(client, server, SYN, [100, 0]));
    passes(&mut two, &mut one, &tcp(server, client, SYN | ACK, [500, 101]));
    passes(&mut one, &mut two, &tcp(client, server, ACK, [101, 501]));
    passes(&mut two, &mut one, &tcp(server, client, ACK, [501, 101]));
    probe.expect(&tcp(server, client, ACK, [501, 101]));

    let before = lasthop.port("vm1");
    lasthop.command(&["port", "rename", "vm1", "web1"]);
    lasthop.kill("lasthop-control");
    wait_for("another control", PATIENCE, || lasthop.try_command(&["port", "list"]).status.success());

    // The same port, the same connection of its front-end.
    let after = lasthop.port("web1");
    for same in ["id", "path", "settings", "state"] {
        assert_eq!(before[same], after[same], "{same}");
    }
    assert!(!one.is_disconnected());
    assert!(!lasthop.command(&["port", "list"]).contains("vm1 "), "{}", lasthop.command(&["port", "list"]));
    assert!(lasthop.command(&["mac", "list"]).lines().any(|line| line.contains(":77") && line.contains("web1")));
    assert!(lasthop.command(&["mirror", "list"]).contains("web1"), "{}", lasthop.command(&["mirror", "list"]));
    let lists = lasthop.command(&["acl", "show"]);
    assert!(lists.contains("web1") && !lists.contains("vm1"), "{lists}");

    // Its lists hold: nobody opens a connection to it.
    let drops = || {
        let drops = lasthop.port("vm2")["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().map(|drop| number(drop, "packets")).sum::<u64>()
    };
    let dropped = drops();
    two.send(&tcp((2, 81), (1, 23), SYN, [1, 0]));
    wait_for("the drop", PATIENCE, || drops() > dropped);
    passes(&mut two, &mut one, &tcp((2, 82), (1, 22), SYN, [1, 0]));

    // And after everything was started again.
    let lasthop = lasthop.start_again(None, &[], &[], || {});
    assert_eq!(lasthop.port("web1")["settings"], before["settings"]);
    let lists = lasthop.command(&["acl", "show"]);
    assert!(lists.contains("web1") && !lists.contains("vm1"), "{lists}");
    assert!(lasthop.command(&["mirror", "list"]).contains("web1"));
}

/// With the same control process nothing is decided anew: no flow goes, no packet misses.
#[test]
fn flows_and_connections_go_on() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[]);
    for name in ["vm1", "vm2"] {
        add(&lasthop, dir.path(), name);
    }
    let rules = dir.path().join("group");
    std::fs::write(&rules, GROUP).unwrap();
    lasthop.command(&["acl", "load", &rules.display().to_string(), "--port", "vm1"]);
    let guest = |n: u8, name: &str| {
        let guest = Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default());
        lasthop.wait_for_state(name, "up");
        guest
    };
    let (mut one, mut two) = (guest(1, "vm1"), guest(2, "vm2"));
    let (client, server) = ((1, 40_000), (2, 80));
    passes(&mut one, &mut two, &tcp(client, server, SYN, [100, 0]));
    passes(&mut two, &mut one, &tcp(server, client, SYN | ACK, [500, 101]));
    for _ in 0..2 {
        passes(&mut one, &mut two, &tcp(client, server, ACK, [101, 501]));
        passes(&mut two, &mut one, &tcp(server, client, ACK, [501, 101]));
    }
    let missed = |name: &str| number(&lasthop.port(name)["from_guest"], "missed");
    let before = [missed("vm1"), missed("vm2")];
    lasthop.command(&["port", "rename", "vm1", "web1"]);
    passes(&mut one, &mut two, &tcp(client, server, ACK, [101, 501]));
    passes(&mut two, &mut one, &tcp(server, client, ACK, [501, 101]));
    assert_eq!([missed("web1"), missed("vm2")], before, "packets of a known flow asked nobody");
    let connections = lasthop.command(&["conntrack", "list"]);
    assert!(connections.contains("from=web1"), "{connections}");
    // The same control, and its lists hold under the new name.
    let drops = || lasthop.port("vm2")["from_guest"]["drops"].to_string();
    let before = drops();
    two.send(&tcp((2, 81), (1, 23), SYN, [1, 0]));
    wait_for("the drop", PATIENCE, || drops() != before);
    refused(&lasthop, &["trace", "--in-port", "vm1", "--frame", "ffffffffffff5254000000010806"], "no port named");
}

#[test]
fn a_name_that_is_taken_or_a_port_that_comes_back_is_refused() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("given", dir.path())]);
    for name in ["vm1", "vm2"] {
        add(&lasthop, dir.path(), name);
    }
    lasthop.command(&["mirror", "add", "watch", "--from", "vm1", "--to", "later"]);
    let rules = dir.path().join("rules");
    std::fs::write(&rules, "deny icmp\n").unwrap();
    lasthop.command(&["acl", "load", &rules.display().to_string(), "--port", "spoken-for"]);
    let rename = |from, to, why| refused(&lasthop, &["port", "rename", from, to], why);
    rename("nobody", "x", "there is no port nobody");
    rename("vm1", "vm2", "there is a port vm2 already");
    rename("vm1", "vm1", "its name already");
    rename("vm1", "guests", "choose another name");
    rename("given", "x", "is named by the command line");
    rename("vm1", "later", "mirror watch would name later");
    rename("vm1", "spoken-for", "lasthop acl clear --port spoken-for");
    let ports = lasthop.command(&["port", "list"]);
    assert!(["given ", "vm1 ", "vm2 "].iter().all(|name| ports.contains(name)), "{ports}");
}

/// A port that is an interface keeps its process, and its name in the log.
#[test]
fn an_interface_too() {
    let netns = Netns::new();
    let lasthop = Lasthop::start_in(Some(&netns), &[], &[]);
    lasthop.command(&["port", "add", "c1", "--device", "lhr0", "--driver", "tap"]);
    lasthop.wait_for_state("c1", "up");
    let pid = lasthop.child("lasthop-uplink");
    lasthop.command(&["port", "rename", "c1", "c2"]);
    lasthop.wait_for_state("c2", "up");
    assert_eq!(lasthop.child("lasthop-uplink"), pid);
    lasthop.kill("lasthop-uplink");
    wait_for("a line of its end", PATIENCE, || lasthop.log().contains("port c2: lasthop-uplink (pid"));
    lasthop.wait_for_state("c2", "up");
    refused(&lasthop, &["port", "del", "c1"], "there is no port c1");
}

/// Open vSwitch knows a port that it has opened by its name; before that the name is lasthop's.
#[test]
fn not_a_port_that_open_vswitch_has_opened() {
    let (host, dir) = (Host::new(1), scratch());
    add(&host.lasthop, dir.path(), "vm1");
    host.lasthop.command(&["port", "rename", "vm1", "vm2"]);
    host.vsctl("add-port br0 vm2");
    refused(&host.lasthop, &["port", "rename", "vm2", "vm3"], "Open vSwitch has opened vm2");
    refused(&host.lasthop, &["port", "rename", "p", "q"], "Open vSwitch has opened p");
    host.vsctl("del-port br0 vm2");
    host.lasthop.command(&["port", "rename", "vm2", "vm3"]);
    assert!(host.lasthop.command(&["port", "list"]).contains("\nvm3 "));
}
