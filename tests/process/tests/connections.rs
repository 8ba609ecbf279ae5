//! Stateful access lists with real processes: what a guest asks for is answered, what nobody asked for is dropped, and the switch does it alone
//! once a connection is established, whatever is killed.

use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, numbered, scratch, wait_for};
use serde_json::Value;

/// What OpenStack means by a security group.
const GROUP: &str = "stateful\ndefault to-guest deny\npermit to-guest tcp to any port 22\n";
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Guests a, b and c; a has the security group. Each has the address of its number.
struct World {
    guests: Vec<Guest>,
    lasthop: Lasthop,
    _dir: tempfile::TempDir,
}

fn ip(guest: u8) -> [u8; 4] {
    [10, 0, 0, guest]
}

/// A segment from one guest's address and port to another's.
fn tcp(from: (u8, u16), to: (u8, u16), flags: u8, numbers: [u32; 2], payload: &[u8]) -> Vec<u8> {
    let mut bytes = [from.1, to.1].map(u16::to_be_bytes).concat();
    bytes.extend(numbers.map(u32::to_be_bytes).concat());
    bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend(payload);
    Frame::between(mac(from.0), mac(to.0)).ipv4(ip(from.0), ip(to.0)).protocol(6).payload(bytes).build()
}

fn udp(from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
    Frame::between(mac(from.0), mac(to.0)).ipv4(ip(from.0), ip(to.0)).udp(from.1, to.1).payload([7; 30]).build()
}

impl World {
    fn new() -> Self {
        let dir = scratch();
        let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start(&ports);
        let guest = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default());
        let mut guests: Vec<_> = (0..3).map(guest).collect();
        let [a, b, c] = &mut guests[..] else { unreachable!() };
        a.greet(b, 0);
        b.greet(c, 1);
        let file = dir.path().join("group");
        std::fs::write(&file, GROUP).unwrap();
        lasthop.command(&["acl", "load", &file.display().to_string(), "--port", "a"]);
        Self { guests, lasthop, _dir: dir }
    }

    fn guest(&mut self, number: u8) -> &mut Guest {
        &mut self.guests[usize::from(number) - 1]
    }

    fn drops(&self, port: &str, reason: &str) -> u64 {
        let drops = self.lasthop.port(port)["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap())
    }

    fn passes(&mut self, from: u8, to: u8, frame: &[u8]) {
        self.guest(from).send(frame);
        self.guest(to).expect(frame);
    }

    /// It is dropped under this reason.
    fn dropped(&mut self, from: u8, frame: &[u8], reason: &str) {
        let port = ["a", "b", "c"][usize::from(from) - 1];
        let before = self.drops(port, reason);
        self.guest(from).send(frame);
        wait_for(&format!("a drop as {reason}"), PATIENCE, || self.drops(port, reason) > before);
    }

    fn handshake(&mut self, from: (u8, u16), to: (u8, u16)) {
        self.passes(from.0, to.0, &tcp(from, to, SYN, [100, 0], &[]));
        self.passes(to.0, from.0, &tcp(to, from, SYN | ACK, [500, 101], &[]));
        self.passes(from.0, to.0, &tcp(from, to, ACK, [101, 501], &[]));
        self.passes(to.0, from.0, &tcp(to, from, ACK, [501, 101], b"hello"));
    }

    fn connections(&self) -> Vec<Value> {
        self.lasthop.json(&["conntrack", "list"])["connections"].as_array().unwrap().clone()
    }

    fn misses(&self) -> u64 {
        self.lasthop.json(&["stats"])["switch"]["misses"].as_u64().unwrap()
    }
}

#[test]
fn answers_come_back_and_nothing_else_does() {
    let mut w = World::new();
    let (web, client) = ((2, 80), (1, 40_000));
    w.dropped(2, &tcp(web, client, SYN, [1, 0], &[]), "acl");
    w.dropped(2, &tcp(web, client, SYN | ACK, [500, 101], &[]), "ct_invalid");
    w.handshake(client, web);
    w.handshake((2, 50_000), (1, 22));
    // From now on the switch needs nobody.
    let misses = w.misses();
    for n in 0..200u32 {
        w.passes(1, 2, &tcp(client, web, ACK, [101 + n, 506], &n.to_be_bytes()));
        w.passes(2, 1, &tcp(web, client, ACK, [506 + n, 101], &n.to_be_bytes()));
    }
    assert_eq!(w.misses(), misses, "an established connection asks nobody");
    // A neighbour that knows its addresses and numbers.
    let forged = tcp(web, client, ACK, [906, 101], b"evil");
    let forged = [&forged[..6], &mac(3).0[..], &forged[12..]].concat();
    w.dropped(3, &forged, "acl");
    w.dropped(2, &udp((2, 53), (1, 40_000)), "acl");
    w.passes(1, 2, &udp((1, 40_000), (2, 53)));
    w.passes(2, 1, &udp((2, 53), (1, 40_000)));
    let list = w.lasthop.command(&["conntrack", "list", "--proto", "tcp", "--addr", "10.0.0.2"]);
    let line = list.lines().find(|line| line.contains("sport=40000")).unwrap_or_else(|| panic!("{list}"));
    assert!(line.starts_with("tcp      6 ") && line.contains(" ESTABLISHED src=10.0.0.1 dst=10.0.0.2 "), "{line}");
    assert!(line.ends_with("[ASSURED] from=a to=b flows=2"), "{line}");
    // What ends it is seen, and its flows go.
    w.passes(2, 1, &tcp(web, client, RST, [77_000, 0], &[]));
    let closed = w.connections().into_iter().find(|c| c["original"]["sport"] == 40_000 && c["proto"] == "tcp").unwrap();
    assert_eq!((&closed["state"], &closed["flows"]), (&"CLOSE".into(), &0.into()), "{closed}");
    let trace = w.lasthop.command(&[
        "trace",
        "--in-port",
        "b",
        "--eth-src",
        &mac(2).to_string(),
        "--eth-dst",
        &mac(1).to_string(),
        "--ip-src",
        "10.0.0.2",
        "--ip-dst",
        "10.0.0.1",
        "--proto",
        "udp",
        "--sport",
        "53",
        "--dport",
        "40000",
    ]);
    assert!(trace.contains("belongs to the established connection udp 10.0.0.1 port 40000"), "{trace}");
    w.lasthop.check_sums();
}

#[test]
fn established_connections_survive_the_death_of_control() {
    let mut w = World::new();
    let (web, client) = ((2, 80), (1, 40_000));
    w.handshake(client, web);
    w.passes(1, 2, &udp((1, 40_000), (2, 53)));
    w.passes(2, 1, &udp((2, 53), (1, 40_000)));
    for _ in 0..3 {
        let control = w.lasthop.control();
        w.lasthop.kill("lasthop-control");
        for n in 0..500u32 {
            w.passes(1, 2, &tcp(client, web, ACK, [101 + n, 506], &n.to_be_bytes()));
            w.passes(2, 1, &tcp(web, client, ACK, [506 + n, 101], &n.to_be_bytes()));
        }
        wait_for("another control", PATIENCE, || w.lasthop.control() != control);
        wait_for("its connections", PATIENCE, || w.connections().len() == 2);
        w.passes(2, 1, &udp((2, 53), (1, 40_000)));
    }
    w.dropped(2, &tcp((2, 81), client, ACK, [1, 1], &[]), "acl");
    w.passes(2, 1, &tcp(web, client, RST, [99_000, 0], &[]));
    wait_for("its end to be known", PATIENCE, || w.connections().iter().any(|c| c["state"] == "CLOSE"));
    w.lasthop.check_sums();
}

#[test]
fn limits_hold_and_flush_ends() {
    let mut w = World::new();
    w.lasthop.command(&["port", "set", "a", "--connections", "5"]);
    for n in 0..5 {
        w.passes(1, 2, &udp((1, 1000 + n), (2, 53)));
    }
    w.dropped(1, &udp((1, 2000), (2, 53)), "ct_limit");
    let stats = w.lasthop.command(&["conntrack", "stats"]);
    assert!(stats.contains("a: 5 of 5 opened from there\n"), "{stats}");
    assert!(stats.contains("1 packet refused: owner_limit\n"), "{stats}");
    assert!(w.lasthop.command(&["port", "list"]).contains("a: connections=5\n"));
    assert_eq!(w.lasthop.command(&["conntrack", "flush", "--port", "c"]), "0 connections ended\n");
    assert_eq!(w.lasthop.command(&["conntrack", "flush", "--port", "a", "--proto", "udp"]), "5 connections ended\n");
    assert!(w.connections().is_empty());
    w.dropped(2, &udp((2, 53), (1, 1000)), "acl");
    w.passes(1, 2, &udp((1, 2000), (2, 53)));
    for (words, error) in [
        (&["conntrack", "list", "--proto", "tpc"][..], "\"tpc\" is no protocol; use tcp, udp"),
        (&["conntrack", "flush", "--addr", "10.0.0"], "\"10.0.0\" is no address"),
        (&["conntrack", "list", "--vlan", "5000"], "5000 is not a VLAN id"),
        (&["conntrack", "list", "--port", "d"], "there is no port named \"d\""),
        (&["port", "set", "a", "--connections", "0"], "connections=0: write a number of connections from 1 to"),
    ] {
        let output = w.lasthop.try_command(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(error), "{words:?}: {said}");
    }
    // A list that closes everything ends what was open.
    let file = w._dir.path().join("closed");
    std::fs::write(&file, "stateful\ndefault to-guest deny\ndefault from-guest deny\n").unwrap();
    w.lasthop.command(&["acl", "load", &file.display().to_string(), "--port", "a"]);
    let shown = w.lasthop.command(&["acl", "show", "--port", "a"]);
    assert!(shown.contains("stateful") && shown.contains("default deny"), "{shown}");
    w.dropped(2, &udp((2, 53), (1, 2000)), "acl");
    w.lasthop.command(&["acl", "clear", "--port", "a"]);
    w.passes(2, 1, &numbered(mac(2), mac(1), 9, 60));
    assert!(w.lasthop.command(&["conntrack", "stats"]).starts_with("no access list asks"));
    w.lasthop.check_sums();
}
