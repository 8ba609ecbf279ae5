//! What would cross the bus between a card and its host: packets in, bytes out.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Lasthop, Options, mac, number_of, numbered, scratch};
use serde_json::Value;
use std::process::Command;

/// Packets of each kind that are sent.
const PACKETS: u64 = 400;
/// Bytes of a virtio-net header, and of it with what is read of a frame while flows look at the link layer alone.
const VNET: u64 = 12;
const LINK: u64 = VNET + 16;
/// The same where more is read than that: of a packet that asks for something.
const MOST: u64 = VNET + 192;
/// Bytes of a descriptor, and of a chain's entries in the rings of those that are available and used.
const DESCRIPTOR: u64 = 16;
const CHAIN: u64 = 2 + 8;

/// A device with two VMs that know each other, and what it has moved.
struct Site {
    lasthop: Lasthop,
    a: Guest,
    b: Guest,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(sends: Options, takes: Options) -> Self {
        Self::of("nic0,cable=off", sends, takes)
    }

    fn of(device: &str, sends: Options, takes: Options) -> Self {
        let dir = scratch();
        let ports = ["a", "b"].map(|name| format!("{name}={},device=nic0", dir.path().join(name).display()));
        let [a, b] = &ports;
        let lasthop = Lasthop::start_with(&[], &["--device", device, "--port", a, "--port", b]);
        let mut a = Guest::connect(&dir.path().join("a"), mac(1), sends);
        let mut b = Guest::connect(&dir.path().join("b"), mac(2), takes);
        a.greet_when_back(&mut b, 1);
        Self { lasthop, a, b, _dir: dir }
    }

    /// What has been counted, and computed.
    fn counted(&self) -> Bus {
        let stats = self.lasthop.json(&["device", "stats", "nic0"]);
        let bus = &stats["table"]["bus"];
        let number = |of: &Value| of.as_u64().unwrap_or_else(|| panic!("no number: {stats}"));
        let of = |kind: &str| number(&bus["bus_bytes"][kind]);
        Bus {
            misses: number(&stats["misses"]),
            descriptors: of("descriptors"),
            headers: of("headers"),
            // What is said beside packets depends on when it is asked, and how often a VM sleeps.
            messages: of("rules") + of("punts") + of("talk"),
            signals: of("signals"),
            wire: of("wire"),
            dma: number(&bus["dma_bytes"]),
            whole: number(&bus["whole_frame_bytes"]),
        }
    }

    /// What so many packets come to, each of which `a` sends and `b` takes, one after the other.
    fn each(&mut self, mut send: impl FnMut(&mut Guest, u32), is: impl Fn(u32, &[u8]) -> bool) -> Bus {
        send(&mut self.a, 99);
        self.b.recv("the first", |_, frame| is(99, frame));
        self.a.all_taken();
        let before = self.counted();
        for n in 100..100 + PACKETS as u32 {
            send(&mut self.a, n);
            self.b.recv("each packet", |_, frame| is(n, frame));
        }
        self.a.all_taken();
        let after = self.counted();
        assert_eq!(after.misses, before.misses, "a rule for them was there");
        after.since(&before)
    }
}

fn is_number(n: u32, frame: &[u8]) -> bool {
    number_of(frame) == Some(n)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bus {
    misses: u64,
    descriptors: u64,
    headers: u64,
    messages: u64,
    signals: u64,
    wire: u64,
    dma: u64,
    whole: u64,
}

impl Bus {
    fn since(&self, other: &Self) -> Self {
        Self {
            misses: self.misses - other.misses,
            descriptors: self.descriptors - other.descriptors,
            headers: self.headers - other.headers,
            messages: self.messages - other.messages,
            signals: self.signals - other.signals,
            wire: self.wire - other.wire,
            dma: self.dma - other.dma,
            whole: self.whole - other.whole,
        }
    }

    /// Bytes across the bus, in parts of a thousand of `payload`.
    fn share(&self, payload: u64) -> u64 {
        (self.descriptors + self.headers + self.messages + self.signals + self.wire) * 1000 / payload
    }
}

/// Each is in one descriptor at both ends, and its flow looks at the link layer: what crosses the bus is a fourteenth of the packet.
#[test]
fn of_packets_of_1500_bytes_headers_and_descriptors_cross_the_bus() {
    let mut site = Site::new(Options::default(), Options::default());
    let bus = site.each(|a, n| a.send(&numbered(mac(1), mac(2), n, 1500)), is_number);
    assert_eq!(bus.descriptors, PACKETS * 2 * (DESCRIPTOR + CHAIN));
    assert_eq!(bus.headers, PACKETS * 2 * LINK);
    assert_eq!(bus.dma, PACKETS * (1500 - (LINK - VNET)), "what the device has not written itself");
    assert_eq!(bus.whole, PACKETS * 2 * 1500);
    assert_eq!(bus.wire, 0);
    assert!(bus.signals >= PACKETS * 4, "each was kicked for: {bus:?}");
    println!("1500 bytes: {bus:?}");
    assert!(bus.share(PACKETS * 1500) < 150, "below 15 %: {bus:?}");
}

/// In four pieces and an indirect descriptor, as drivers send what they have from several places; the receiver's buffers are two for each.
#[test]
fn each_descriptor_of_a_packet_counts() {
    let sends = Options::net(|net| (net.pieces, net.indirect) = (4, true));
    let takes = Options::net(|net| net.rx_buffer = 800);
    let mut site = Site::new(sends, takes);
    let bus = site.each(|a, n| a.send(&numbered(mac(1), mac(2), n, 1500)), is_number);
    assert_eq!(bus.descriptors, PACKETS * ((1 + 4) * DESCRIPTOR + CHAIN + 2 * (DESCRIPTOR + CHAIN)));
    // What is not one piece is read as far as it may be looked at.
    assert_eq!(bus.headers, PACKETS * 2 * MOST);
    assert_eq!(bus.dma, PACKETS * (1500 - (MOST - VNET)));
}

/// Of 64 KiB, into buffers of a page as Linux makes them.
#[test]
fn of_packets_of_64_kib_less_than_a_fiftieth_crosses_the_bus() {
    let mut options = Options::offloading();
    options.net.rx_buffer = 4096;
    let mut site = Site::new(options, options);
    let whole = |n: u32| {
        let frame = Frame::between(mac(1), mac(2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1000, 80);
        frame.payload(vec![n as u8; 65_000]).partial_checksum()
    };
    let len = whole(0).build().len() as u64;
    let bus = site.each(
        |a, n| a.send_as(whole(n).vnet(VnetHdr::GSO_TCPV4, 1400), &whole(n).build()),
        |n, frame| frame == whole(n).build(),
    );
    let buffers = (VNET + len).div_ceil(4096);
    assert_eq!(bus.descriptors, PACKETS * (1 + buffers) * (DESCRIPTOR + CHAIN));
    assert_eq!(bus.headers, PACKETS * 2 * MOST);
    assert_eq!((bus.dma, bus.whole), (PACKETS * (len - (MOST - VNET)), PACKETS * 2 * len));
    println!("64 KiB: {bus:?}");
    assert!(bus.share(PACKETS * len) < 20, "below 2 %: {bus:?}");
}

/// Packets for which there is no rule are told to control, and wait in the host's memory.
#[test]
fn a_packet_for_control_and_its_rule_cross_the_bus() {
    let mut site = Site::new(Options::default(), Options::default());
    let before = site.counted();
    for n in 0..PACKETS {
        let from = lasthop_text::MacAddr([2, 9, 0, 0, (n >> 8) as u8, n as u8]);
        site.a.send(&numbered(from, mac(2), n as u32, 1500));
        site.b.recv("each packet", |_, frame| number_of(frame) == Some(n as u32));
    }
    site.a.all_taken();
    let bus = site.counted().since(&before);
    assert_eq!(bus.misses, PACKETS);
    assert_eq!(bus.dma, PACKETS * (2 * 1500 - (MOST - VNET)), "into the place where it waits, and out of it");
    assert!(bus.messages >= PACKETS * (MOST - VNET), "control has seen each header: {bus:?}");
}

/// What the account comes to on a bus that is named; and the same figures where a host's are looked for: `lasthop metrics` and `lasthop report`.
#[test]
fn on_a_named_bus_headers_alone_are_a_quarter_of_whole_frames_at_most() {
    let mut site = Site::of("nic0,bus=pcie3x8,cable=off", Options::default(), Options::default());
    site.each(|a, n| a.send(&numbered(mac(1), mac(2), n, 1500)), is_number);
    let stats = site.lasthop.json(&["device", "stats", "nic0"]);
    let bus = &stats["table"]["bus"];
    let of = |what: &str| bus["model"][what].as_u64().unwrap_or_else(|| panic!("no {what}: {stats}"));
    assert_eq!((&bus["model"]["name"], of("bits_per_second")), (&"pcie3x8".into(), 63_015_384_608));
    // Each frame goes out and in.
    assert!(of("whole_frame_busy_ns") > (PACKETS * 1500 * 8 * 1_000_000_000) / of("bits_per_second"));
    assert!(of("busy_ns") > 0 && of("busy_ns") * 4 < of("whole_frame_busy_ns"), "{stats}");
    assert!((1200..of("whole_frame_packet_ns")).contains(&of("packet_ns")), "{stats}");
    assert!(site.lasthop.command(&["device", "stats", "nic0"]).contains("on pcie3x8 (63015 Mbit/s each way"));
    let metrics = site.lasthop.command(&["metrics"]);
    for line in
        ["lasthop_device_up{device=\"nic0\"} 1.0", "lasthop_device_bus_bytes_total{device=\"nic0\",kind=\"headers\"} "]
    {
        assert!(metrics.contains(line), "{metrics}");
    }
    let dir = scratch();
    let archive = dir.path().join("report.tar.gz");
    site.lasthop.command(&["report", &archive.display().to_string()]);
    let out = Command::new("tar").arg("-xzOf").arg(&archive).arg("lasthop-report/devices/nic0/ports.txt").output();
    let ports = String::from_utf8_lossy(&out.expect("tar is there").stdout).into_owned();
    assert!(["a  ", "b  "].iter().all(|port| ports.lines().any(|line| line.starts_with(port))), "{ports}");
}

#[test]
fn a_bus_that_there_is_not_is_refused() {
    let run = Command::new(lasthop_tests_process::binary("lasthop"));
    let out = { run }.args(["run", "--device", "nic0,bus=pcie9x8"]).output().expect("lasthop starts");
    let says = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && says.contains("pcie9x8: no such bus; write pcie1 to pcie5"), "{says}");
}
