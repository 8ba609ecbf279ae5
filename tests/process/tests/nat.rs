//! Translated addresses with real processes: what a guest sends has another source outside, its service another address, and the switch does it alone
//! once a connection is established, whatever is killed.

use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, scratch, wait_for};

/// Guest a is 10.0.0.1; outside its source is 192.0.2.9, and at 192.0.2.8 it has a web server.
const RULES: &str = "stateful\n\
                     snat to 10.0.0.0/24 -> none\n\
                     snat from 10.0.0.1 -> 192.0.2.9 port 2000-2001\n\
                     dnat tcp to 192.0.2.8 port 80 -> 10.0.0.1 port 8080\n";
const SYN: u8 = 2;
const ACK: u8 = 16;
const A: [u8; 4] = [10, 0, 0, 1];
const SERVER: [u8; 4] = [198, 51, 100, 7];
const OUTSIDE: [u8; 4] = [192, 0, 2, 9];
const PUBLISHED: [u8; 4] = [192, 0, 2, 8];

/// Guests a, b and c: a with the rules, b with the server behind it, c a neighbour that the network takes for the owner of a's addresses.
struct World {
    guests: Vec<Guest>,
    lasthop: Lasthop,
    dir: tempfile::TempDir,
}

/// An address and a port.
type End = ([u8; 4], u16);

/// A segment between these stations; the checksum is right.
fn tcp(stations: [u8; 2], from: End, to: End, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [src, dst] = stations.map(mac);
    let mut bytes = [from.1, to.1].map(u16::to_be_bytes).concat();
    let (seq, ack) = (if flags & SYN == 0 { 1001u32 } else { 1000 }, if flags & ACK == 0 { 0u32 } else { 1001 });
    bytes.extend([seq, ack].map(u32::to_be_bytes).concat());
    bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend(payload);
    let pseudo = lasthop_frame::sum::pseudo_v4(from.0, to.0, 6, bytes.len() as u16);
    let sum = lasthop_frame::sum::finish(pseudo + lasthop_frame::sum::sum(&bytes));
    bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    Frame::between(src, dst).ipv4(from.0, to.0).protocol(6).payload(bytes).build()
}

fn udp(stations: [u8; 2], from: End, to: End) -> Vec<u8> {
    let [src, dst] = stations.map(mac);
    Frame::between(src, dst).ipv4(from.0, to.0).udp(from.1, to.1).payload([7; 30]).build()
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
        let world = Self { guests, lasthop, dir };
        world.load(RULES);
        world
    }

    fn load(&self, rules: &str) {
        let file = self.dir.path().join("rules");
        std::fs::write(&file, rules).unwrap();
        self.lasthop.command(&["acl", "load", &file.display().to_string(), "--port", "a"]);
    }

    /// A frame from one guest comes to another as that.
    fn comes(&mut self, from: usize, frame: &[u8], to: usize, as_this: &[u8]) {
        self.guests[from - 1].send(frame);
        self.guests[to - 1].expect(as_this);
    }

    fn drops(&self, reason: &str) -> u64 {
        let drops = self.lasthop.port("a")["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap())
    }

    fn misses(&self) -> u64 {
        self.lasthop.json(&["stats"])["switch"]["misses"].as_u64().unwrap()
    }

    /// A connection from a to the server, its port outside, and one of the server to what a publishes.
    fn opens(&mut self) -> u16 {
        let (client, web) = ((A, 40_000), (SERVER, 443));
        self.guests[0].send(&tcp([1, 2], client, web, SYN, &[]));
        let (_, syn) = self.guests[1].recv("a SYN", |_, frame| frame.get(26..30) == Some(&OUTSIDE));
        let port = u16::from_be_bytes([syn[34], syn[35]]);
        assert!((2000..=2001).contains(&port), "{port}");
        let outside = (OUTSIDE, port);
        assert_eq!(syn, tcp([1, 2], outside, web, SYN, &[]), "checksums follow");
        self.comes(2, &tcp([2, 3], web, outside, SYN | ACK, &[]), 1, &tcp([2, 1], web, client, SYN | ACK, &[]));
        let (peer, inside, published) = ((SERVER, 50_000), (A, 8080), (PUBLISHED, 80));
        self.comes(2, &tcp([2, 1], peer, published, SYN, &[]), 1, &tcp([2, 1], peer, inside, SYN, &[]));
        self.comes(1, &tcp([1, 2], inside, peer, SYN | ACK, &[]), 2, &tcp([1, 2], published, peer, SYN | ACK, &[]));
        port
    }

    /// Data in both connections, both ways.
    fn talks(&mut self, port: u16, data: &[u8]) {
        let (client, web, outside) = ((A, 40_000), (SERVER, 443), (OUTSIDE, port));
        let (peer, inside, published) = ((SERVER, 50_000), (A, 8080), (PUBLISHED, 80));
        self.comes(1, &tcp([1, 2], client, web, ACK, data), 2, &tcp([1, 2], outside, web, ACK, data));
        self.comes(2, &tcp([2, 3], web, outside, ACK, data), 1, &tcp([2, 1], web, client, ACK, data));
        self.comes(2, &tcp([2, 1], peer, published, ACK, data), 1, &tcp([2, 1], peer, inside, ACK, data));
        self.comes(1, &tcp([1, 2], inside, peer, ACK, data), 2, &tcp([1, 2], published, peer, ACK, data));
    }
}

#[test]
fn connections_are_translated_and_the_switch_does_it_alone() {
    let mut w = World::new();
    let port = w.opens();
    w.talks(port, b"first");
    let misses = w.misses();
    for n in 0..100u32 {
        w.talks(port, &n.to_be_bytes());
    }
    assert_eq!(w.misses(), misses, "an established connection asks nobody");
    let list = w.lasthop.command(&["conntrack", "list", "--proto", "tcp"]);
    let line = format!(
        "src=10.0.0.1 dst=198.51.100.7 sport=40000 dport=443 src=198.51.100.7 dst=192.0.2.9 sport=443 dport={port} "
    );
    assert!(list.contains(&line) && list.contains(" from=a to=b flows=2"), "{list}");
    let line =
        "src=198.51.100.7 dst=192.0.2.8 sport=50000 dport=80 src=10.0.0.1 dst=198.51.100.7 sport=8080 dport=50000 ";
    assert!(list.contains(line), "{list}");
    // What is exempt stays as it is.
    let near = udp([1, 3], (A, 1000), ([10, 0, 0, 3], 53));
    w.comes(1, &near, 3, &near);
    let shown = w.lasthop.command(&["acl", "show", "--port", "a"]);
    for rule in RULES.lines() {
        assert!(shown.contains(rule), "{rule}: {shown}");
    }
    let to_server = [
        "--eth-src",
        &mac(1).to_string(),
        "--eth-dst",
        &mac(2).to_string(),
        "--ip-src",
        "10.0.0.1",
        "--ip-dst",
        "198.51.100.7",
    ];
    let trace =
        [&["trace", "--in-port", "a", "--proto", "udp", "--sport", "7", "--dport", "53"][..], &to_server].concat();
    let said = w.lasthop.command(&trace);
    assert!(said.contains("snat 2 at a decides (snat from 10.0.0.1 -> 192.0.2.9 port 2000-2001)"), "{said}");
    w.lasthop.check_sums();
}

#[test]
fn ports_run_out_and_errors_find_their_sender() {
    let mut w = World::new();
    let dns = (SERVER, 53);
    let mut outside = Vec::new();
    for port in [1000, 1001] {
        w.guests[0].send(&udp([1, 2], (A, port), dns));
        let (_, frame) = w.guests[1].recv("a datagram", |_, frame| frame.get(26..30) == Some(&OUTSIDE));
        outside.push(u16::from_be_bytes([frame[34], frame[35]]));
        assert_eq!(frame, udp([1, 2], (OUTSIDE, outside[outside.len() - 1]), dns));
    }
    outside.sort_unstable();
    assert_eq!(outside, [2000, 2001]);
    let before = w.drops("ct_limit");
    w.guests[0].send(&udp([1, 2], (A, 1002), dns));
    wait_for("a drop", PATIENCE, || w.drops("ct_limit") > before);
    let stats = w.lasthop.command(&["conntrack", "stats"]);
    assert!(stats.contains("1 packet refused: no_translation\n"), "{stats}");
    // An error about what was sent outside comes to who sent it, who finds his own packet in it.
    let error = |stations: [u8; 2], to: [u8; 4], about: &[u8]| {
        let [src, dst] = stations.map(mac);
        let content = [&[0; 4], &about[14..]].concat();
        Frame::between(src, dst).ipv4([203, 0, 113, 1], to).icmp(3, 1).payload(content).build()
    };
    let sent = udp([1, 2], (OUTSIDE, 2000), dns);
    let of_port = |w: &World| {
        let list = w.lasthop.command(&["conntrack", "list"]);
        let line =
            list.lines().find(|line| line.contains("dport=2000 ")).unwrap_or_else(|| panic!("{list}")).to_owned();
        if line.contains("sport=1000 ") { 1000 } else { 1001 }
    };
    let own = udp([1, 2], (A, of_port(&w)), dns);
    w.comes(2, &error([2, 3], OUTSIDE, &sent), 1, &error([2, 1], A, &own));
    w.lasthop.check_sums();
}

#[test]
fn translated_connections_survive_the_death_of_control() {
    let mut w = World::new();
    let port = w.opens();
    w.talks(port, b"first");
    for _ in 0..2 {
        let control = w.lasthop.control();
        w.lasthop.kill("lasthop-control");
        for n in 0..200u32 {
            w.talks(port, &n.to_be_bytes());
        }
        wait_for("another control", PATIENCE, || w.lasthop.control() != control);
        let known = |w: &World| w.lasthop.json(&["conntrack", "list"])["connections"].as_array().unwrap().len();
        wait_for("its connections", PATIENCE, || known(&w) == 2);
        w.talks(port, b"again");
    }
    let list = w.lasthop.command(&["conntrack", "list", "--proto", "tcp"]);
    assert!(
        list.contains(&format!("dst=192.0.2.9 sport=443 dport={port} ")) && list.contains("from=a to=b flows=2"),
        "{list}"
    );
    w.lasthop.check_sums();
}

#[test]
fn bad_translations_are_refused() {
    let w = World::new();
    let file = w.dir.path().join("bad");
    for (text, error) in [
        ("stateful\nsnat from 10.0.0.0/24 -> 10.0.0\n", "line 2, column 26: \"10.0.0\": expected an address"),
        (
            "snat from 10.0.0.0/24 -> 192.0.2.1\n",
            "line 1, column 1: translated connections have to be known; add a line with stateful",
        ),
        ("stateful\ndnat tcp to 192.0.2.1 port 80 -> fd00::1\n", "of another IP version"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = w.lasthop.try_command(&["acl", "load", &file.display().to_string(), "--port", "a"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(error) && said.contains("nothing was changed"), "{said}");
    }
}
