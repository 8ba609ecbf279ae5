//! `lasthop port export` and `port import`: a guest goes on at another lasthop as what it was, and no file does harm.

use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, scratch, wait_for};
use serde_json::Value;
use std::path::Path;

/// What OpenStack means by a security group.
const GROUP: &str = "stateful\ndefault to-guest deny\npermit to-guest tcp to any port 22\n";
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A segment from one guest's port to another's; each has the address of its number.
fn tcp(from: (u8, u16), to: (u8, u16), flags: u8, numbers: [u32; 2]) -> Vec<u8> {
    let mut bytes = [from.1, to.1].map(u16::to_be_bytes).concat();
    bytes.extend(numbers.map(u32::to_be_bytes).concat());
    bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let ip = |guest| [10, 0, 0, guest];
    Frame::between(mac(from.0), mac(to.0)).ipv4(ip(from.0), ip(to.0)).protocol(6).payload(bytes).build()
}

/// A lasthop with guests 1 and 2 at ports of these names.
struct Host {
    lasthop: Lasthop,
    guests: Vec<Guest>,
}

impl Host {
    fn start(dir: &Path, names: [&str; 2]) -> Self {
        let ports = names.map(|name| Port::listen(name, dir));
        let lasthop = Lasthop::start(&ports);
        let guest = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default());
        let guests: Vec<_> = (0..2).map(guest).collect();
        names.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
        Self { lasthop, guests }
    }

    fn passes(&mut self, from: usize, frame: &[u8]) {
        self.guests[from - 1].send(frame);
        self.guests[2 - from].expect(frame);
    }

    fn dropped(&mut self, from: usize, frame: &[u8], port: &str) {
        let drops = |lasthop: &Lasthop| -> u64 {
            let drops = lasthop.port(port)["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
            drops.iter().filter_map(|d| d["packets"].as_u64()).sum()
        };
        let before = drops(&self.lasthop);
        self.guests[from - 1].send(frame);
        wait_for("a drop", PATIENCE, || drops(&self.lasthop) > before);
    }

    fn import(&self, name: &str, file: &Path, text: &str) -> std::process::Output {
        std::fs::write(file, text).unwrap();
        self.lasthop.try_command(&["port", "import", name, &file.display().to_string()])
    }
}

/// The first host, where guest 1 has a security group and settings, and has opened a connection; what it exports.
fn exported(dir: &Path) -> (Host, String) {
    std::fs::create_dir(dir).unwrap();
    let mut host = Host::start(dir, ["vm1", "web"]);
    let file = dir.join("group");
    std::fs::write(&file, GROUP).unwrap();
    host.lasthop.command(&["acl", "load", &file.display().to_string(), "--port", "vm1"]);
    host.lasthop.command(&["port", "set", "vm1", "--rate-from", "100M", "--no-dhcp-server", "--connections", "500"]);
    let (client, web) = ((1, 40_000), (2, 80));
    host.passes(1, &tcp(client, web, SYN, [100, 0]));
    host.passes(2, &tcp(web, client, SYN | ACK, [500, 101]));
    host.passes(1, &tcp(client, web, ACK, [101, 501]));
    let text = host.lasthop.command(&["port", "export", "vm1"]);
    (host, text)
}

#[test]
fn a_guest_goes_on_elsewhere_with_what_it_had() {
    let dir = scratch();
    let (first, text) = exported(&dir.path().join("1"));
    let second = dir.path().join("2");
    std::fs::create_dir(&second).unwrap();
    let mut host = Host::start(&second, ["guest", "web"]);
    host.lasthop.command(&["port", "set", "guest", "--isolated"]);
    let out = host.import("guest", &second.join("file"), &text);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{out:?}");
    assert!(said.contains("2 access lists loaded, 1 address, 1 connection\n"), "{said}");
    assert!(
        said.lines().last().is_some_and(|line| line.starts_with("run it once more after the guest has stopped")),
        "{said}"
    );
    // An answer to what it has opened elsewhere, in the middle; nothing else that its lists do not let in.
    let (client, web) = ((1, 40_000), (2, 80));
    host.passes(2, &tcp(web, client, ACK, [501, 101]));
    host.passes(1, &tcp(client, web, ACK, [101, 501]));
    host.dropped(2, &tcp((2, 80), (1, 40_001), ACK, [501, 101]), "web");
    let told = |host: &Host, name: &str| host.lasthop.port(name)["settings"].clone();
    assert_eq!(told(&host, "guest"), told(&first, "vm1"), "and it is isolated no more");
    let again = host.lasthop.command(&["port", "export", "guest"]);
    let [before, after] = [&text, &again].map(|text| serde_json::from_str::<Value>(text).unwrap());
    for part in ["settings", "lists", "stations"] {
        assert_eq!(before[part], after[part], "{part}");
    }
    let once_more = host.import("guest", &second.join("file"), &text);
    let said = String::from_utf8_lossy(&once_more.stdout).into_owned();
    assert!(said.contains("0 settings changed") && said.contains("1 known already"), "{said}");
}

/// The neighbour's port has another name here, and its name is that of a port that is something else: who the other end is, packets say.
#[test]
fn a_name_at_the_other_host_means_nobody_here() {
    let dir = scratch();
    let (_first, text) = exported(&dir.path().join("1"));
    let second = dir.path().join("2");
    std::fs::create_dir(&second).unwrap();
    let mut host = Host::start(&second, ["guest", "server"]);
    host.lasthop.command(&["port", "add", "web", &second.join("w.sock").display().to_string()]);
    let out = host.import("guest", &second.join("file"), &text);
    assert!(String::from_utf8_lossy(&out.stdout).contains(" 1 connection\n"), "{out:?}");
    let list = || host.lasthop.command(&["conntrack", "list"]);
    assert!(list().contains(" from=guest to=- "), "{}", list());
    let (client, web) = ((1, 40_000), (2, 80));
    let answer = tcp(web, client, ACK, [501, 101]);
    host.guests[1].send(&answer);
    host.guests[0].expect(&answer);
    let list = || host.lasthop.command(&["conntrack", "list"]);
    assert!(list().contains(" from=guest to=server "), "{}", list());
}

#[test]
fn addresses_stay_where_they_are_until_the_guest_has_come() {
    let dir = scratch();
    let (first, text) = exported(&dir.path().join("1"));
    first.lasthop.command(&["port", "add", "empty", &dir.path().join("e.sock").display().to_string()]);
    let out = first.import("empty", &dir.path().join("file"), &text);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("1 not taken: the port is not up yet"), "{said}");
    let macs = first.lasthop.command(&["mac", "list"]);
    assert!(macs.lines().any(|line| line.contains(&mac(1).to_string()) && line.contains(" vm1 ")), "{macs}");
}

/// Whatever a file holds it changes nothing that it does not say, says what is wrong, and ends nobody.
#[test]
fn hostile_files_are_refused_or_left_out() {
    let dir = scratch();
    let (mut host, text) = exported(&dir.path().join("1"));
    let (file, pids) = (dir.path().join("file"), host.lasthop.pids());
    let before = host.lasthop.json(&["port", "list"])["ports"][1]["settings"].clone();
    let refused = |text: &str| {
        let out = host.import("web", &file, text);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains("nothing was changed"), "{text:.80}: {out:?}");
    };
    ["", "{}", "[]", "null", "\u{0}", "lasthop", &text[..text.len() / 2]].into_iter().for_each(refused);
    refused(&text.replace("\"lasthop_port\": 1", "\"lasthop_port\": 2"));
    refused(&text.replace("100M", "-1"));
    refused(&"[".repeat(100_000));
    // Lists that make no sense, before anything is changed.
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["lists"][0] = "permit everything, please".into();
    let out = host.import("web", &file, &value.to_string());
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("access list from-guest"),
        "{out:?}"
    );
    assert_eq!(host.lasthop.json(&["port", "list"])["ports"][1]["settings"], before);
    // Connections that are none, of others, or too many.
    let good: Value = serde_json::from_str(&text).unwrap();
    let mut bad = Vec::new();
    let mut with = |field: &str, to: Value| {
        let mut connection = good["connections"][0].clone();
        *connection.pointer_mut(field).unwrap() = to;
        bad.push(connection);
    };
    with("/original/src", "10.0.0.999".into());
    with("/original/src", "fd00::1".into());
    with("/original/dport", Value::Null);
    with("/reply/src", "10.0.0.77".into());
    with("/vlan", 65_535.into());
    with("/state", "SYN_SENT".into());
    with("/replied", false.into());
    with("/proto_number", 17.into());
    with("/from", "nobody".into());
    with("/to", "vm1".into());
    let count = bad.len();
    let mut value = good.clone();
    (value["connections"], value["stations"]) =
        (bad.into(), serde_json::json!([{"mac": "ff:ff:ff:ff:ff:ff", "vlan": 0}, {"mac": "x", "vlan": 9}]));
    host.lasthop.command(&["conntrack", "flush"]);
    let out = host.import("vm1", &file, &value.to_string());
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let left: u64 =
        said.lines().filter_map(|l| l.split_once(" not taken").and_then(|(n, _)| n.parse::<u64>().ok())).sum();
    assert_eq!(left, count as u64 + 2, "{said}");
    assert_eq!(host.lasthop.json(&["conntrack", "list"])["connections"], serde_json::json!([]));
    let mut many = good.clone();
    let all = (0..2000u32).map(|n| {
        let mut connection = good["connections"][0].clone();
        (connection["original"]["sport"], connection["reply"]["dport"]) = ((n + 1).into(), (n + 1).into());
        connection
    });
    many["connections"] = all.collect();
    let out = host.import("vm1", &file, &many.to_string());
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("500 connections\n") && said.contains("1500 not taken"), "as many as it may open: {said}");
    assert_eq!(host.lasthop.pids(), pids, "nobody has ended");
    host.lasthop.command(&["conntrack", "flush"]);
    host.passes(1, &tcp((1, 41_000), (2, 80), SYN, [1, 0]));
}
