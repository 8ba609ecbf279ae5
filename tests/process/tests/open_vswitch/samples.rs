//! Samples of packets that Open vSwitch sends to collectors: sFlow and IPFIX.

use super::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::UdpSocket;

/// A number of an sFlow datagram's, which is XDR (RFC 4506): words in the network's order.
fn word(bytes: &[u8], at: usize) -> usize {
    let word = bytes.get(at..at + 4).unwrap_or_else(|| panic!("no word at {at} of {bytes:x?}"));
    u32::from_be_bytes(word.try_into().expect("four bytes")) as usize
}

/// Records of a sample, and samples of a datagram: kind and content, `count` of them.
fn records(bytes: &[u8], count: usize) -> Vec<(usize, &[u8])> {
    let mut rest = bytes;
    let mut next = || {
        let (kind, len) = (word(rest, 0), word(rest, 4));
        let (content, behind) = rest[8..].split_at(len);
        rest = behind;
        (kind, content)
    };
    (0..count).map(|_| next()).collect()
}

/// One packet that was sampled: the interfaces, the rate, its first bytes, and its whole length.
#[derive(Debug)]
struct Sampled {
    from: usize,
    to: usize,
    rate: usize,
    len: usize,
    header: Vec<u8>,
}

/// What datagrams of sFlow version 5 say (sflow.org, sFlow Version 5, section 5): packets, and for each interface how many it has received.
#[derive(Debug, Default)]
struct Told {
    sampled: Vec<Sampled>,
    received: BTreeMap<usize, usize>,
}

impl Told {
    fn add(&mut self, datagram: &[u8]) {
        assert_eq!((word(datagram, 0), word(datagram, 4)), (5, 1), "version 5, an agent of IPv4");
        for (kind, sample) in records(&datagram[28..], word(datagram, 24)) {
            match kind {
                1 => {
                    let [rate, from, to] = [8, 20, 24].map(|at| word(sample, at));
                    let all = records(&sample[32..], word(sample, 28));
                    let (_, raw) = all.iter().find(|(kind, _)| *kind == 1).expect("a sampled header");
                    assert_eq!(word(raw, 0), 1, "of Ethernet");
                    let header = raw[16..16 + word(raw, 12)].to_vec();
                    self.sampled.push(Sampled { from, to, rate, len: word(raw, 4), header });
                }
                2 => {
                    for (kind, counters) in records(&sample[12..], word(sample, 8)) {
                        if kind == 1 {
                            self.received.insert(word(counters, 0), word(counters, 32));
                        }
                    }
                }
                other => panic!("a sample of kind {other}"),
            }
        }
    }
}

/// A socket of the collector's, in the namespace of Open vSwitch, and its port.
fn collector(site: &Site) -> (UdpSocket, u16) {
    let socket = internal::within(&site.netns, || UdpSocket::bind("127.0.0.1:0").expect("an address"));
    socket.set_nonblocking(true).expect("a socket");
    let port = socket.local_addr().expect("an address").port();
    (socket, port)
}

fn index(site: &Site, interface: &str) -> usize {
    let said = site.netns.shell(&format!("cat /sys/class/net/{interface}/ifindex"));
    said.trim().parse().expect("a number")
}

#[test]
fn sflow_tells_of_some_packets_and_counts_all() {
    const SENT: u32 = 4000;
    const RATE: u32 = 8;
    let mut site = Site::new();
    let (socket, port) = collector(&site);
    site.vsctl(&format!(
        "-- --id=@s create sflow agent=lo target=\"127.0.0.1:{port}\" header=128 sampling={RATE} polling=1 -- set bridge br0 sflow=@s"
    ));
    site.appctl(&["revalidator/wait"]);
    let [vm1, vm2] = ["vm1", "vm2"].map(|name| index(&site, name));
    let [a, b] = &mut site.guests;
    pass(b, a, &numbered(mac(2), mac(1), 1, 60));
    let long_way = |site: &Site| site.lasthop.port("ovs-packets")["to_guest"]["packets"].as_u64().expect("a number");
    let before = long_way(&site);
    let [a, b] = &mut site.guests;
    let mut told = Told::default();
    let mut room = [0; 65536];
    let mut hear = |told: &mut Told| {
        while let Ok(len) = socket.recv(&mut room) {
            told.add(&room[..len]);
        }
    };
    let len = |number: u32| if number.is_multiple_of(2) { 100 } else { 700 };
    for number in 0..SENT {
        pass(a, b, &numbered(mac(1), mac(2), number, len(number)));
        hear(&mut told);
    }
    wait_for("counters of all packets", PATIENCE, || {
        hear(&mut told);
        told.received.get(&vm1).is_some_and(|n| *n >= SENT as usize)
    });
    // The switch draws them: packets go the short way, but for the first.
    let long = long_way(&site) - before;
    assert!(long < 20, "{long} packets went through lasthop-ovs");
    let ours: Vec<_> = told.sampled.iter().filter(|one| one.from == vm1).collect();
    for one in &ours {
        assert_eq!((one.to, one.rate), (vm2, RATE as usize), "{one:?}");
        let number = u32::from_be_bytes(one.header[18..22].try_into().expect("four bytes"));
        let frame = numbered(mac(1), mac(2), number, len(number));
        // Some agents count the checksum of the frame.
        assert!([frame.len(), frame.len() + 4].contains(&one.len), "{one:?}");
        assert_eq!(one.header[..], frame[..frame.len().min(128)]);
    }
    // One of eight, give and take six standard deviations: one run of 500 million fails.
    let (mean, deviation) = (f64::from(SENT / RATE), (f64::from(SENT) * (1.0 / 8.0) * (7.0 / 8.0)).sqrt());
    let count = ours.len() as f64;
    eprintln!("{count} of {SENT} sampled; one of {RATE} is {mean} with a deviation of {deviation:.1}");
    assert!((count - mean).abs() < 6.0 * deviation, "{count} of {SENT} sampled");
}

/// `nfcapd`, a collector of others', and the directory that it writes to.
struct Nfcapd {
    process: Child,
    dir: std::path::PathBuf,
}

impl Nfcapd {
    const PORT: u16 = 4739;

    fn start(site: &Site) -> Self {
        let dir = site.dir.path().join("flows");
        std::fs::create_dir(&dir).expect("a directory");
        let process = spawn::spawn("TERM", "ip", |c| {
            c.args(["netns", "exec", site.netns.name(), "nfcapd", "-b", "127.0.0.1", "-p", &Self::PORT.to_string()]);
            // A new file every two seconds.
            c.args(["-t", "2", "-w"]).arg(&dir).stdout(Stdio::null()).stderr(Stdio::null());
        });
        let listens = || site.netns.shell("ss -Hlun").contains(&format!(":{}", Self::PORT));
        wait_for("nfcapd (nfdump is installed by scripts/setup)", PATIENCE, listens);
        Self { process, dir }
    }

    /// Records that it has been sent.
    fn records(&self) -> Vec<Value> {
        let told = vswitch::run(&self.dir, &["nfdump", "-R", &self.dir.display().to_string(), "-o", "json"]);
        // Without a record it says so in words.
        serde_json::from_str(&told).unwrap_or_default()
    }

    /// Records, once they tell of so many packets. What each counts is the total of all so far.
    fn records_of(&self, packets: impl Fn(u64) -> bool) -> Vec<Value> {
        let mut records = Vec::new();
        wait_for("records of all packets", PATIENCE, || {
            records = self.records();
            packets(total(&records, "in_packets"))
        });
        records
    }
}

/// The last of totals that grow.
fn total(records: &[Value], of: &str) -> u64 {
    records.iter().filter_map(|record| record[of].as_u64()).max().unwrap_or_default()
}

/// A packet of UDP over IPv4, 128 bytes without its Ethernet header.
fn udp(port: u16) -> Vec<u8> {
    lasthop_conntrack::testutil::Ends::v4(1000, port).udp(100)
}

impl Drop for Nfcapd {
    fn drop(&mut self) {
        spawn::end(&mut self.process);
    }
}

#[test]
fn ipfix_tells_of_all_packets_of_a_bridge() {
    const SENT: u64 = 200;
    let mut site = Site::new();
    let nfcapd = Nfcapd::start(&site);
    site.vsctl(&format!(
        "-- --id=@i create ipfix targets=\"127.0.0.1:{}\" sampling=1 obs_domain_id=7 obs_point_id=8 cache_active_timeout=1 \
         cache_max_flows=100 -- set bridge br0 ipfix=@i",
        Nfcapd::PORT
    ));
    site.appctl(&["revalidator/wait"]);
    let [vm1, vm2] = ["vm1", "vm2"].map(|name| index(&site, name) as u64);
    let [a, b] = &mut site.guests;
    pass(b, a, &numbered(mac(2), mac(1), 1, 60));
    for _ in 0..SENT {
        pass(a, b, &udp(2000));
    }
    // Each is told of where it comes and where it goes.
    let records = nfcapd.records_of(|packets| packets >= 2 * (SENT + 1));
    assert_eq!((total(&records, "in_packets"), total(&records, "in_bytes")), (2 * (SENT + 1), 2 * SENT * 128));
    for (direction, output) in [(0, 0), (1, vm2)] {
        let is_it = |record: &&Value| record["direction"] == direction && record["dst_port"] == 2000;
        let record = records.iter().find(is_it).unwrap_or_else(|| panic!("direction {direction}: {records:?}"));
        let said =
            ["src4_addr", "dst4_addr", "in_src_mac", "in_dst_mac"].map(|what| record[what].as_str().unwrap_or("-"));
        assert_eq!(said, ["10.0.0.1", "10.0.0.2", "02:00:00:00:00:01", "02:00:00:00:00:02"]);
        let said =
            ["proto", "src_port", "input_snmp", "output_snmp", "observationPointID"].map(|what| record[what].as_u64());
        assert_eq!(said, [17, 1000, vm1, output, 8].map(Some));
    }
}

/// The other end is said nowhere but in the tunnel's part of the record.
#[test]
fn ipfix_tells_of_the_tunnel_that_a_packet_leaves_by() {
    let mut site = Site::new();
    let (socket, port) = collector(&site);
    site.vsctl(
        "add-port br0 t0 -- set interface t0 type=geneve options:local_ip=127.0.0.9 options:remote_ip=127.0.0.77 options:key=5 ofport_request=7",
    );
    site.vsctl(&format!(
        "-- --id=@i create ipfix targets=\"127.0.0.1:{port}\" sampling=1 cache_max_flows=0 -- set bridge br0 ipfix=@i"
    ));
    site.ofctl(&["del-flows"]);
    site.ofctl(&["add-flow", "in_port=1,actions=output:7"]);
    let mut room = [0; 65536];
    wait_for("a record with both ends", PATIENCE, || {
        site.guests[0].send(&udp(2000));
        std::thread::sleep(Duration::from_millis(50));
        let mut found = false;
        while let Ok(len) = socket.recv(&mut room) {
            found |= room[..len].windows(8).any(|ends| ends == [127, 0, 0, 9, 127, 0, 0, 77]);
        }
        found
    });
}

#[test]
fn ipfix_tells_of_what_rules_sample() {
    let mut site = Site::new();
    let nfcapd = Nfcapd::start(&site);
    site.vsctl(&format!(
        "-- --id=@b get bridge br0 -- --id=@i create ipfix targets=\"127.0.0.1:{}\" cache_active_timeout=1 cache_max_flows=100 \
         -- create flow_sample_collector_set id=5 bridge=@b ipfix=@i",
        Nfcapd::PORT
    ));
    let sample = |probability, point| {
        format!("sample(probability={probability},collector_set_id=5,obs_domain_id=11,obs_point_id={point}),output:2")
    };
    site.ofctl(&["del-flows"]);
    site.ofctl(&["add-flow", &format!("in_port=1,udp,udp_dst=2000,actions={}", sample(65535, 21))]);
    site.ofctl(&["add-flow", &format!("in_port=1,udp,udp_dst=3000,actions={}", sample(8192, 22))]);
    site.ofctl(&["add-flow", "in_port=1,udp,udp_dst=4000,actions=output:2"]);
    let [a, b] = &mut site.guests;
    for n in 0..1600 {
        pass(a, b, &udp(3000));
        pass(a, b, &udp(4000));
        if n % 8 == 7 {
            pass(a, b, &udp(2000));
        }
    }
    // All of the first rule's, which count once, and one of eight of the second's, each of which counts for 65535 / 8192 = 7, as Open vSwitch has it. That are 200 with a
    // standard deviation of 13.2: six of these are one run of 500 million.
    let second =
        |packets: u64| packets.checked_sub(200).filter(|rest| rest.is_multiple_of(7)).map_or(0, |rest| rest / 7);
    let records = nfcapd.records_of(|packets| second(packets) >= 120);
    let of = |port: u64| records.iter().filter(move |record| record["dst_port"] == port);
    for (port, point) in [(2000, 21), (3000, 22)] {
        assert!(of(port).count() > 0 && of(port).all(|record| record["observationPointID"] == point), "{records:?}");
    }
    assert_eq!(of(4000).count(), 0, "{records:?}");
    assert!((120..=280).contains(&second(total(&records, "in_packets"))), "{records:?}");
}
