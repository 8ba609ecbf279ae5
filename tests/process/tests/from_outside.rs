//! What a station on the network sends to guests through an uplink, and what guests send it: odd but right frames both ways
//! through every driver, then floods, stolen addresses and garbage.

use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, mac, number_of, numbered, proc, scratch,
    wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::Signal;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};

/// lasthop with ports a to d and an uplink `net`, and a station at the other end of its wire.
struct Site {
    lasthop: Lasthop,
    dir: tempfile::TempDir,
    station: Station,
    netns: Netns,
}

impl Site {
    /// A TAP device has the station at the host's end, the others have it at the other end of a veth pair.
    fn new(driver: &str) -> Self {
        Self::with(driver, &[])
    }

    fn with(driver: &str, arguments: &[&str]) -> Self {
        let (netns, dir) = (Netns::new(), scratch());
        let ports = ["a", "b", "c", "d"].map(|name| Port::listen(name, dir.path()));
        if driver != "tap" {
            netns.ip("link add u0 type veth peer name s0");
            netns.ip("link set s0 up");
        }
        let uplink = format!("net=u0,{driver}");
        let lasthop = Lasthop::start_in(Some(&netns), &ports, &[&["--uplink", &uplink], arguments].concat());
        lasthop.wait_for_state("net", "up");
        let station = Station::on(&netns, if driver == "tap" { "u0" } else { "s0" });
        Self { lasthop, dir, station, netns }
    }

    fn path(&self, port: &str) -> std::path::PathBuf {
        self.dir.path().join(format!("{port}.sock"))
    }

    fn guest(&self, port: &str, mac: MacAddr, options: Options) -> Guest {
        Guest::connect(&self.path(port), mac, options)
    }

    fn uplink(&self) -> Value {
        self.lasthop.json(&["uplink", "list"])["uplinks"][0].clone()
    }

    /// The guest and the station have heard of each other.
    fn greet(&self, guest: &mut Guest, station: MacAddr, number: u32) {
        self.station.send(&numbered(station, guest.mac, number, 60));
        guest.expect_number(number);
        guest.send(&numbered(guest.mac, station, number, 60));
        self.station.recv("a greeting", |f| number_of(f) == Some(number));
    }

    fn lives_at(&self, mac: MacAddr) -> Option<String> {
        let macs = self.lasthop.json(&["mac", "list"])["macs"].as_array().cloned().unwrap_or_default();
        macs.iter().find(|m| m["mac"] == mac.to_string()).and_then(|m| Some(m["port"].as_str()?.to_owned()))
    }
}

/// A UDP datagram's fragments, IPv4 and IPv6: the first with the header, one in the middle, and the last; in order and not.
fn fragments(src: MacAddr, dst: MacAddr) -> Vec<Vec<u8>> {
    let part = |n: u8, len: usize| (0..len).map(|i| (i as u8).wrapping_mul(7) ^ n).collect::<Vec<u8>>();
    let v4 = |word: u16| Frame::between(src, dst).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).id(77).fragment(word);
    let v6 = |word: u16| {
        let [high, low] = word.to_be_bytes();
        Frame::between(src, dst).ipv6([1; 16], [2; 16]).extension(44, &[high, low, 0, 0, 0, 77])
    };
    let mut udp = vec![0x10, 0x00, 0x20, 0x00, 0x0b, 0xc0, 0x12, 0x34];
    udp.extend(part(1, 1472));
    let middle = 1480 / 8;
    vec![
        v4(0x2000).protocol(17).payload(udp.clone()).build(),
        v4(0x2000 | middle).protocol(17).payload(part(2, 1480)).build(),
        v4(2 * middle).protocol(17).payload(part(3, 40)).build(),
        v4(3 * middle).protocol(17).payload(part(4, 40)).build(),
        v6((2 * middle) << 3).protocol(17).payload(part(5, 40)).build(),
        v6(1).protocol(17).payload(udp[..1448].to_vec()).build(),
        v6((middle << 3) | 1).protocol(17).payload(part(6, 1448)).build(),
    ]
}

fn fragments_cross(driver: &str) {
    let site = Site::new(driver);
    let mut guest = site.guest("a", mac(1), Options::default());
    site.greet(&mut guest, mac(9), 1);
    for frame in fragments(mac(1), mac(9)) {
        guest.send(&frame);
        site.station.recv("the guest's fragment", |f| f == frame);
    }
    for frame in fragments(mac(9), mac(1)) {
        site.station.send(&frame);
        guest.expect(&frame);
    }
    assert_eq!(site.uplink()["drops"], Value::Array(Vec::new()));
    site.lasthop.check_sums();
}

#[test]
fn fragments_cross_tap() {
    fragments_cross("tap");
}

#[test]
fn fragments_cross_af_packet() {
    fragments_cross("af_packet");
}

#[test]
fn fragments_cross_af_xdp() {
    fragments_cross("af_xdp");
}

/// One tag, a service tag, two: both ways, between two uplinks that leave frames as they are.
#[test]
fn tagged_frames_cross_af_xdp() {
    let netns = Netns::new();
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    let dir = scratch();
    let start = |name: &str, device: &str| {
        let port = [Port::listen(name, dir.path())];
        let lasthop = Lasthop::start_in(Some(&netns), &port, &["--uplink", &format!("net={device},af_xdp")]);
        lasthop.wait_for_state("net", "up");
        lasthop
    };
    let sides = [start("a", "v0"), start("b", "v1")];
    let guest = |port: &str, n| Guest::connect(&dir.path().join(format!("{port}.sock")), mac(n), Options::default());
    let (mut near, mut far) = (guest("a", 1), guest("b", 2));
    near.greet(&mut far, 1);
    for (n, tags) in [&[(0x8100, 5)][..], &[(0x88a8, 7)], &[(0x8100, 0x6007), (0x8100, 9)]].into_iter().enumerate() {
        let tagged = |a: MacAddr, b: MacAddr, len: usize| {
            let frame = Frame::between(a, b).payload(vec![n as u8 + 1; len]);
            tags.iter().fold(frame, |f, (tpid, tci)| f.tag(*tpid, *tci)).build()
        };
        for len in [60, 1490] {
            let (there, back) = (tagged(near.mac, far.mac, len), tagged(far.mac, near.mac, len));
            near.send(&there);
            far.expect(&there);
            far.send(&back);
            near.expect(&back);
        }
    }
    sides.iter().for_each(Lasthop::check_sums);
}

/// More stations than an uplink may have addresses: all are served, the guests keep what is theirs, and it is said.
#[test]
fn more_stations_than_fit_behind_one_uplink() {
    const STATIONS: u32 = 33_000;
    const WINDOW: u32 = 100;
    let site = Site::new("af_packet");
    let mut guests = [1, 2].map(|n| site.guest(if n == 1 { "a" } else { "b" }, mac(n), Options::default()));
    let [a, b] = &mut guests;
    a.greet(b, 1);
    let station = |n: u32| MacAddr([2, 1, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
    for first in (0..STATIONS).step_by(WINDOW as usize) {
        for n in first..first + WINDOW {
            site.station.send(&numbered(station(n), mac(1), n, 60));
        }
        let mut seen = vec![false; WINDOW as usize];
        while seen.contains(&false) {
            let (_, frame) = a.recv("a station's frame", |_, f| number_of(f).is_some());
            seen[(number_of(&frame).unwrap() - first) as usize] = true;
        }
    }
    let port = site.lasthop.port("net");
    let [macs, limit, over] =
        ["macs", "mac_limit", "sources_over_limit"].map(|field| port[field].as_u64().unwrap_or(0));
    assert_eq!((macs, limit), (limit, 32_768), "{port}");
    assert_eq!(macs + over, u64::from(STATIONS), "{port}");
    // The guests are where they were, and what they say to each other is not heard outside.
    assert_eq!([mac(1), mac(2)].map(|m| site.lives_at(m)), [Some("a".into()), Some("b".into())]);
    site.station.drain();
    for n in 100_000..100_050 {
        a.greet(b, n);
    }
    assert_eq!(site.station.drain(), Vec::<Vec<u8>>::new());
    // A station that was learned gets its answer alone. One that was not gets it too, and so does everybody.
    for (n, flooded) in [(0, false), (STATIONS - 1, true)] {
        a.send(&numbered(mac(1), station(n), 200_000 + n, 60));
        site.station.recv("the answer", |f| number_of(f) == Some(200_000 + n));
        if flooded {
            b.expect_number(200_000 + n);
        } else {
            assert!(!b.drain().iter().any(|f| number_of(f) == Some(200_000 + n)), "station {n}");
        }
    }
    assert_eq!(site.uplink()["drops"], Value::Array(Vec::new()));
    site.lasthop.check_sums();
}

/// As much as a station can send, to a guest that takes nothing: the others do not notice, and all of it is accounted for.
#[test]
fn a_flood_from_outside_starves_nobody() {
    const MOST: u32 = 400_000;
    let site = Site::new("af_packet");
    let mut victim = site.guest("a", mac(1), Options::default());
    site.greet(&mut victim, mac(9), 1);
    let bystanders = Bystanders::start(&site.path("c"), &site.path("d"), [mac(0xc), mac(0xd)]);
    bystanders.still_exchange();
    let done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let frames = [mac(1), MacAddr([2, 9, 9, 9, 9, 9])].map(|to| numbered(mac(9), to, 7, 300));
            let mut sent = 0;
            while sent < MOST && !done.load(Ordering::Relaxed) {
                site.station.send(&frames[sent as usize % 2]);
                sent += 1;
            }
            sent
        });
        for _ in 0..10 {
            bystanders.still_exchange();
        }
        done.store(true, Ordering::Relaxed);
        flood.join().unwrap()
    });
    assert!(sent > 1000, "{sent}");
    drop(bystanders);
    let drops = |reason: &str| {
        let queues = site.lasthop.port("a");
        let all = queues["to_guest"]["drops"].as_array().cloned().unwrap_or_default();
        all.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
    };
    assert!(drops("no_buffers") > 0, "{}", site.lasthop.port("a"));
    site.lasthop.check_sums();
    assert_eq!(site.uplink()["restarts"], 0);
    victim.drain();
    site.greet(&mut victim, mac(9), 2);
}

/// The uplink's process does not come to take frames, and more come than the kernel can keep: those are counted too.
fn what_the_kernel_has_no_room_for_is_counted(driver: &str) {
    const FRAMES: u64 = 30_000;
    let site = Site::with(driver, &["--uplink-limit-ms", "60000"]);
    let mut guest = site.guest("a", mac(1), Options::default());
    site.greet(&mut guest, mac(9), 1);
    let counted = || {
        let uplink = site.uplink();
        let drops = uplink["drops"].as_array().cloned().unwrap_or_default();
        let overrun = drops.iter().find(|d| d["reason"] == "overrun").and_then(|d| d["packets"].as_u64()).unwrap_or(0);
        assert!(drops.len() <= 1, "{uplink}");
        (uplink["from_network"]["packets"].as_u64().unwrap() + overrun, overrun)
    };
    let (before, _) = counted();
    let process = site.uplink()["pid"].as_u64().unwrap() as u32;
    proc::signal(process, Signal::STOP);
    let frame = numbered(mac(9), mac(1), 7, 300);
    (0..FRAMES).for_each(|_| site.station.send(&frame));
    proc::signal(process, Signal::CONT);
    wait_for("all frames to be counted", PATIENCE, || counted().0 == before + FRAMES);
    assert!(counted().1 > 0);
    // Not twice, and not again.
    guest.drain();
    site.greet(&mut guest, mac(9), 8);
    assert_eq!(counted().0, before + FRAMES + 1);
    assert_eq!(site.uplink()["restarts"], 0);
}

#[test]
fn what_a_packet_socket_has_no_room_for_is_counted() {
    what_the_kernel_has_no_room_for_is_counted("af_packet");
}

#[test]
fn what_af_xdp_rings_have_no_room_for_is_counted() {
    what_the_kernel_has_no_room_for_is_counted("af_xdp");
}

/// Somebody outside calls himself a guest. Now and then such a frame moves the address, as a guest that has migrated would;
/// one that goes on is held where it was. A list keeps it from the first frame on.
#[test]
fn a_guest_keeps_its_address_from_somebody_outside() {
    let site = Site::new("af_packet");
    let (mut a, mut b) = (site.guest("a", mac(1), Options::default()), site.guest("b", mac(2), Options::default()));
    a.greet(&mut b, 1);
    for n in 0..30 {
        site.station.send(&numbered(mac(1), mac(2), 100 + n, 60));
        b.expect_number(100 + n);
        // The guest is there, too.
        a.send(&numbered(mac(1), mac(2), 200 + n, 60));
        b.expect_number(200 + n);
    }
    assert_eq!(site.lives_at(mac(1)), Some("a".into()));
    for n in 0..20 {
        site.station.send(&numbered(mac(1), mac(2), 300 + n, 60));
        b.expect_number(300 + n);
        b.send(&numbered(mac(2), mac(1), 400 + n, 60));
        a.expect_number(400 + n);
    }
    let list = site.lasthop.json(&["mac", "list"]);
    let held = list["macs"].as_array().unwrap().iter().find(|m| m["mac"] == mac(1).to_string()).cloned();
    assert_eq!(held.unwrap_or_default()["held"], true, "{list}");
    assert!(site.lasthop.port("net")["moves_refused"].as_u64() > Some(0));
    // With a list for the uplink nothing of it enters, and nothing moves.
    let rules = site.dir.path().join("rules");
    std::fs::write(&rules, format!("deny from-guest from-mac {}\n", mac(2))).unwrap();
    site.lasthop.command(&["acl", "load", &rules.display().to_string(), "--port", "net"]);
    let moves = |port: &str| site.lasthop.port(port)["moves"].as_u64();
    let before = moves("net");
    for n in 0..20 {
        site.station.send(&numbered(mac(2), mac(1), 500 + n, 60));
    }
    site.greet(&mut b, mac(9), 600);
    assert_eq!((site.lives_at(mac(2)), moves("net")), (Some("b".into()), before));
    assert!(!a.drain().iter().any(|f| number_of(f).is_some_and(|n| (500..520).contains(&n))));
    site.lasthop.check_sums();
}

/// Frames cut at every length, and long ones: each arrives as it is or is counted, and the uplink lives.
fn garbage_is_carried_or_counted(driver: &str) {
    let site = Site::new(driver);
    let bystanders = Bystanders::start(&site.path("c"), &site.path("d"), [mac(0xc), mac(0xd)]);
    let mut guest = site.guest("a", mac(1), Options::net(|n| n.rx_buffer = 4096));
    site.greet(&mut guest, mac(9), 1);
    let whole = [
        Frame::between(mac(9), mac(1)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2).payload(vec![1; 40]).build(),
        Frame::between(mac(9), mac(1))
            .ipv6([1; 16], [2; 16])
            .extension(0, &[0; 6])
            .udp(1, 2)
            .payload(vec![2; 9])
            .build(),
    ];
    let before = site.uplink();
    let mut sent = 0;
    for frame in &whole {
        for len in 14..frame.len() {
            site.station.send(&frame[..len]);
            guest.expect(&frame[..len]);
            // A checksum that looks open, at a place that is not there any more.
            let mut odd = frame[..len].to_vec();
            odd[12..].iter_mut().rev().take(8).for_each(|b| *b ^= 0xff);
            site.station.send(&odd);
            sent += 2;
        }
    }
    let longest = numbered(mac(9), mac(1), 2, 1514);
    site.station.send(&longest);
    guest.expect(&longest);
    let after = site.uplink();
    let carried = |u: &Value| {
        let drops: u64 = u["drops"].as_array().unwrap().iter().map(|d| d["packets"].as_u64().unwrap_or(0)).sum();
        u["from_network"]["packets"].as_u64().unwrap_or(0) + drops
    };
    assert_eq!(carried(&after) - carried(&before), sent + 1, "{after}");
    assert_eq!(after["restarts"], 0);
    // Longer than any of the guest's buffers.
    if driver == "af_packet" {
        site.netns.ip("link set s0 mtu 9000");
        site.netns.ip("link set u0 mtu 9000");
        let jumbo = numbered(mac(9), mac(1), 4, 9014);
        site.station.send(&jumbo);
        guest.recv("a jumbo frame, in several buffers", |_, f| f == jumbo);
    }
    bystanders.still_exchange();
    site.greet(&mut guest, mac(9), 5);
    drop(bystanders);
    wait_for("nothing to wait", PATIENCE, || site.uplink()["state"] == "up");
    site.lasthop.check_sums();
}

#[test]
fn garbage_through_tap() {
    garbage_is_carried_or_counted("tap");
}

#[test]
fn garbage_through_af_packet() {
    garbage_is_carried_or_counted("af_packet");
}

#[test]
fn garbage_through_af_xdp() {
    garbage_is_carried_or_counted("af_xdp");
}
