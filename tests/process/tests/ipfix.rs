//! `lasthop ipfix`: flows as a collector of others' has them (nfcapd), beside what the switch has counted.

use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{PATIENCE, Pair, binary, mac, spawn, vswitch, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Two guests, each with a stateful list: a flow for each direction of each connection.
struct Site(Pair);

impl Site {
    fn new() -> Self {
        let pair = Pair::new();
        let file = pair.dir.path().join("rules");
        std::fs::write(&file, "stateful\npermit from-guest ip\npermit to-guest ip\n").unwrap();
        pair.lasthop.command(&["acl", "load", &file.display().to_string()]);
        Self(pair)
    }

    /// A datagram of this flow goes from a to b, or back.
    fn pass(&mut self, port: u16, back: bool, len: usize) {
        let [a, b] = &mut self.0.guests;
        let (from, to) = if back { (b, a) } else { (a, b) };
        let frame = datagram(port, back, len);
        from.send(&frame);
        to.expect(&frame);
    }

    fn sent_by(&self, port: &str) -> [u64; 2] {
        ["packets", "bytes"].map(|what| self.0.lasthop.port(port)["from_guest"][what].as_u64().unwrap())
    }
}

fn datagram(port: u16, back: bool, len: usize) -> Vec<u8> {
    let (a, b) = ((mac(1), [10, 0, 0, 1], 40_000), (mac(2), [10, 0, 0, 2], port));
    let (from, to) = if back { (b, a) } else { (a, b) };
    Frame::between(from.0, to.0).ipv4(from.1, to.1).udp(from.2, to.2).payload(vec![7; len]).build()
}

/// nfcapd, which writes what it hears to a directory.
struct Nfcapd {
    process: Child,
    dir: PathBuf,
    port: u16,
}

impl Nfcapd {
    fn start(site: &Site) -> Self {
        let dir = site.0.dir.path().join("flows");
        std::fs::create_dir(&dir).unwrap();
        // One that is free now.
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(site.0.dir.path().join("nfcapd.log")).unwrap();
        let process = spawn::spawn("TERM", "nfcapd", |c| {
            // A new file every two seconds.
            c.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "2", "-w"]).arg(&dir);
            c.stdout(log.try_clone().unwrap()).stderr(log);
        });
        let listens = || std::fs::read_to_string("/proc/net/udp").unwrap().contains(&format!(":{port:04X} "));
        wait_for("nfcapd (nfdump is installed by scripts/setup)", PATIENCE, listens);
        Self { process, dir, port }
    }

    fn at(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Records that it has been sent.
    fn records(&self) -> Vec<Value> {
        let told = vswitch::run(&self.dir, &["nfdump", "-R", &self.dir.display().to_string(), "-o", "json"]);
        // Without a record it says so in words.
        serde_json::from_str(&told).unwrap_or_default()
    }

    /// Records, once there are so many packets in them.
    fn records_of(&self, packets: u64) -> Vec<Value> {
        let mut records = Vec::new();
        wait_for("records of all packets", PATIENCE, || {
            records = self.records();
            sum(&records, "in_packets") >= packets
        });
        records
    }
}

impl Drop for Nfcapd {
    fn drop(&mut self) {
        spawn::end(&mut self.process);
    }
}

fn sum<'a>(records: impl IntoIterator<Item = &'a Value>, of: &str) -> u64 {
    records.into_iter().filter_map(|record| record[of].as_u64()).sum()
}

/// `lasthop ipfix`.
struct Exporter {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Exporter {
    fn start(site: &Site, words: &[&str]) -> Self {
        let mut command = Command::new(binary("lasthop"));
        command.arg("ipfix").args(words).args(["--interval", "1", "--run-dir"]).arg(site.0.lasthop.run_dir());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready: "), "{line}");
        Self { child, stderr }
    }

    /// Ends it; what it said at last.
    fn end(mut self) -> String {
        spawn::end(&mut self.child);
        let mut said = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        self.stderr.read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_collector_has_what_the_switch_has_counted() {
    let mut site = Site::new();
    let nfcapd = Nfcapd::start(&site);
    let exporter = Exporter::start(&site, &[&nfcapd.at(), "--domain", "7", "--active", "2", "--idle", "1"]);
    let before = ["a", "b"].map(|port| site.sent_by(port));
    // One that goes on, one that asks once, and one whose connection ends under way: each packet is in one record.
    for n in 0..40 {
        site.pass(53, false, 100 + n);
        site.pass(53, true, 200);
    }
    site.pass(161, false, 60);
    for _ in 0..5 {
        site.pass(5000, false, 1000);
        site.pass(5000, true, 30);
    }
    site.0.lasthop.command(&["conntrack", "flush", "--addr", "10.0.0.2"]);
    let after = ["a", "b"].map(|port| site.sent_by(port));
    let counted = |what: usize| after.iter().zip(before).map(|(after, before)| after[what] - before[what]).sum::<u64>();
    assert_eq!(counted(0), 91);
    let records = nfcapd.records_of(91);
    assert_eq!([sum(&records, "in_packets"), sum(&records, "in_bytes")], [counted(0), counted(1)]);
    let ids = ["a", "b"].map(|port| site.0.lasthop.port(port)["id"].as_u64().unwrap());
    for (port, back, packets, bytes) in [
        (53, false, 40, 40 * (42 + 100) + 39 * 40 / 2),
        (53, true, 40, 40 * 242),
        (161, false, 1, 102),
        (5000, false, 5, 5 * 1042),
        (5000, true, 5, 5 * 72),
    ] {
        let key = if back { "src_port" } else { "dst_port" };
        let of: Vec<_> = records.iter().filter(|record| record[key] == port).collect();
        assert_eq!(
            [sum(of.iter().copied(), "in_packets"), sum(of.iter().copied(), "in_bytes")],
            [packets, bytes],
            "{of:?}"
        );
        let (from, to) = if back { (2, 1) } else { (1, 2) };
        for record in of {
            let said = ["src4_addr", "dst4_addr"].map(|what| record[what].as_str().unwrap_or("-").to_owned());
            assert_eq!(said, [from, to].map(|n| format!("10.0.0.{n}")));
            let interfaces = ["input_snmp", "output_snmp", "proto"].map(|what| record[what].as_u64().unwrap());
            assert_eq!(interfaces, [ids[from - 1], ids[to - 1], 17]);
        }
    }
    let said = exporter.end();
    assert!(said.contains(&format!("91 packets and {} bytes sent to {}", counted(1), nfcapd.at())), "{said}");
    assert!(!said.contains("not told of") && !said.contains("could not be sent"), "{said}");
    // The collector has missed no message, as it knows by their numbers.
    let dir = nfcapd.dir.clone();
    drop(nfcapd);
    let about = vswitch::run(&dir, &["nfdump", "-R", &dir.display().to_string(), "-I"]);
    assert!(about.contains("Sequence failures: 0"), "{about}");
}

/// Without lists flows look at Ethernet addresses alone. A collector that is not there yet costs records, and that is counted.
#[test]
fn flows_of_stations_have_no_addresses_of_ip() {
    let mut site = Site::new();
    site.0.lasthop.command(&["acl", "clear"]);
    let exporter = Exporter::start(&site, &["127.0.0.1:9", "--idle", "1"]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let at = socket.local_addr().unwrap().to_string();
    let other = Exporter::start(&site, &[&at, "--idle", "1", "--domain", "9"]);
    for _ in 0..3 {
        site.pass(53, false, 100);
        site.pass(53, true, 100);
    }
    // Ethernet addresses, no VLAN, forwarded, then 3 packets of 142 bytes.
    let mut expected = [mac(1).0, mac(2).0].concat();
    expected.extend([0, 0, 64]);
    expected.extend([3u64 * 142, 3].map(u64::to_be_bytes).concat());
    let mut room = [0; 65536];
    wait_for("the record", PATIENCE, || {
        let len = socket.recv(&mut room).unwrap();
        assert_eq!((room[0], room[1], room[15]), (0, 10, 9), "version and domain");
        room[..len].windows(expected.len()).any(|bytes| bytes == expected)
    });
    assert!(other.end().contains("6 packets"));
    drop(exporter);
}
