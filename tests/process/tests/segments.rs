//! Several uplinks on one network segment or on several: segments are bridges in a network namespace, and stations on them
//! see every frame that passes.

use lasthop_frame::testutil::Frame;
use lasthop_harness::xdp;
use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, mac, number_of, numbered, proc, scratch, wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

/// Where probes go, and their length.
const GROUP: [u8; 6] = *b"\x03lasth";
const PROBE: usize = 64;

/// Bridges in a namespace.
struct Yard {
    netns: Netns,
}

impl Yard {
    fn new(bridges: &[&str]) -> Self {
        let netns = Netns::new();
        for bridge in bridges {
            netns.ip(&format!("link add {bridge} type bridge mcast_snooping 0"));
            netns.ip(&format!("link set {bridge} up"));
        }
        Self { netns }
    }

    /// An interface whose other end, with an `x` to its name, is a port of the bridge.
    fn plug(&self, bridge: &str, interface: &str) {
        self.netns.ip(&format!("link add {interface} type veth peer name {interface}x"));
        self.netns.ip(&format!("link set {interface}x master {bridge} up"));
        self.netns.ip(&format!("link set {interface} up"));
    }

    fn station(&self, bridge: &str, interface: &str) -> Station {
        self.plug(bridge, interface);
        Station::on(&self.netns, interface)
    }

    /// The bridge br0 has learned that this address is behind that port of it.
    fn wait_for_address(&self, mac: MacAddr, port: &str) {
        let entry = format!("{mac} dev {port} ");
        wait_for(&format!("br0 to know {entry}"), PATIENCE, || {
            self.netns.shell("bridge fdb show br br0").lines().any(|line| line.starts_with(&entry))
        });
    }
}

/// lasthop with guests' ports a and b and these uplinks.
struct Site {
    lasthop: Lasthop,
    dir: tempfile::TempDir,
}

impl Site {
    fn new(yard: &Yard, uplinks: &[&str], more: &[&str]) -> Self {
        let dir = scratch();
        let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
        let mut arguments: Vec<&str> = uplinks.iter().flat_map(|u| ["--uplink", *u]).collect();
        arguments.extend(more);
        Self { lasthop: Lasthop::start_in(Some(&yard.netns), &ports, &arguments), dir }
    }

    fn guest(&self, port: &str, mac: MacAddr) -> Guest {
        Guest::connect(&self.dir.path().join(format!("{port}.sock")), mac, Options::default())
    }

    fn uplink(&self, name: &str) -> Value {
        let list = self.lasthop.json(&["uplink", "list"]);
        let all = list["uplinks"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|u| u["name"] == name).unwrap_or_else(|| panic!("no uplink {name} in {list}"))
    }

    fn drops(&self, uplink: &str, reason: &str) -> u64 {
        let drops = self.uplink(uplink)["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
    }

    /// `uplink` stands by for `other`, and has let go of the switch.
    fn wait_for_blocked(&self, uplink: &str, other: &str) {
        wait_for(&format!("{uplink} to be blocked"), PATIENCE, || self.uplink(uplink)["state"] == "blocked");
        let shown = self.uplink(uplink);
        assert_eq!(shown["blocked_by"], other, "{shown}");
        let why = format!("on the same segment as uplink {other}; blocked");
        assert_eq!(shown["last_error"], why, "{shown}");
        self.wait_for_port(uplink, "waiting");
    }

    fn wait_for_port(&self, port: &str, state: &str) {
        wait_for(&format!("port {port} to be {state}"), PATIENCE, || self.lasthop.port(port)["state"] == state);
    }
}

fn probe(frame: &[u8]) -> bool {
    frame.starts_with(&GROUP)
}

/// Waits until `count` numbered frames from `from` on have come, and those that come in the next moment: how often each did.
fn times(mut next: impl FnMut(Duration) -> Option<Vec<u8>>, from: u32, count: u32) -> Vec<usize> {
    let mut times = vec![0; count as usize];
    loop {
        let limit = if times.contains(&0) { PATIENCE } else { Duration::from_millis(200) };
        let Some(frame) = next(limit) else { return times };
        if let Some(n) = number_of(&frame).and_then(|n| n.checked_sub(from)).filter(|n| *n < count) {
            times[n as usize] += 1;
        }
    }
}

/// What a guest sends and what a station sends arrives, each frame once: broadcasts, unknown and known unicast.
fn each_frame_crosses_once(guest: &mut Guest, station: &Station, address: MacAddr, number: u32) {
    let nobody = MacAddr([2, 9, 9, 9, 9, 9]);
    // The first makes the flow, so that the others cannot overtake.
    for (i, to) in [MacAddr::BROADCAST, nobody].into_iter().enumerate() {
        let number = number + 100 * i as u32;
        guest.send(&numbered(guest.mac, to, number, 60));
        station.recv("the first frame", |f| number_of(f) == Some(number));
        (1..20).for_each(|n| guest.send(&numbered(guest.mac, to, number + n, 60)));
        assert_eq!(times(|t| station.recv_within(t), number + 1, 19), [1; 19], "to {to}");
    }
    for (i, to) in [MacAddr::BROADCAST, nobody, guest.mac].into_iter().enumerate() {
        let number = number + 200 + 100 * i as u32;
        station.send(&numbered(address, to, number, 60));
        guest.expect_number(number);
        (1..20).for_each(|n| station.send(&numbered(address, to, number + n, 60)));
        assert_eq!(times(|t| Some(guest.recv_within(t)?.1), number + 1, 19), [1; 19], "to {to}");
    }
    guest.send(&numbered(guest.mac, address, number + 500, 60));
    assert_eq!(times(|t| station.recv_within(t), number + 500, 1), [1]);
}

/// Addresses are where they are, and have never moved.
fn nothing_flaps(site: &Site, guest: &Guest, station: MacAddr, uplink: &str) {
    let macs = site.lasthop.json(&["mac", "list"])["macs"].as_array().cloned().unwrap_or_default();
    let lives_at = |mac: MacAddr| macs.iter().find(|m| m["mac"] == mac.to_string()).map(|m| m["port"].clone());
    assert_eq!(lives_at(guest.mac), Some("a".into()), "{macs:?}");
    assert_eq!(lives_at(station), Some(uplink.into()), "{macs:?}");
    for port in site.lasthop.json(&["port", "list"])["ports"].as_array().cloned().unwrap_or_default() {
        for moves in ["moves", "moves_refused"] {
            assert_eq!(port[moves].as_u64(), Some(0), "{moves} of {port}");
        }
    }
}

/// Two uplinks of one kind in one bridge: one carries, the other stands by.
fn one_of_two_carries(driver: &str) {
    let yard = Yard::new(&["br0"]);
    yard.plug("br0", "u0");
    yard.plug("br0", "u1");
    let station = yard.station("br0", "s0");
    let site = Site::new(&yard, &[&format!("net=u0,{driver}"), &format!("net2=u1,{driver}")], &[]);
    site.wait_for_blocked("net2", "net");
    site.wait_for_port("net", "up");
    let mut guest = site.guest("a", mac(1));
    each_frame_crosses_once(&mut guest, &station, mac(9), 1);
    nothing_flaps(&site, &guest, mac(9), "net");
    assert!(site.drops("net2", "blocked") >= 40, "{}", site.uplink("net2"));
    assert!(site.drops("net", "probe") > 0, "{}", site.uplink("net"));
    // Killed, it comes back and stands by again.
    let old = site.uplink("net2")["pid"].as_u64().unwrap() as u32;
    proc::signal(old, Signal::KILL);
    wait_for("its restart", PATIENCE, || site.uplink("net2")["restarts"] == 1 && site.uplink("net2")["pid"] != old);
    site.wait_for_blocked("net2", "net");
    each_frame_crosses_once(&mut guest, &station, mac(9), 1000);
    nothing_flaps(&site, &guest, mac(9), "net");
    let shown = site.lasthop.command(&["uplink", "list"]);
    assert!(shown.contains("net2: last trouble: on the same segment as uplink net; blocked"), "{shown}");
    assert!(guest.drain().iter().all(|f| !probe(f)));
}

#[test]
fn one_of_two_af_packet_uplinks_on_a_segment_carries() {
    one_of_two_carries("af_packet");
}

#[test]
fn one_of_two_af_xdp_uplinks_on_a_segment_carries() {
    one_of_two_carries("af_xdp");
}

/// TAP devices that become ports of one bridge while they carry.
#[test]
fn uplinks_that_come_onto_one_segment_are_found_out() {
    let yard = Yard::new(&["br0"]);
    let station = yard.station("br0", "s0");
    let site = Site::new(&yard, &["net=t0,tap,queues=2", "net2=t1,tap", "net3=t2,tap"], &[]);
    let mut guest = site.guest("a", mac(1));
    for port in ["net", "net2", "net3"] {
        site.wait_for_port(port, "up");
    }
    for tap in ["t0", "t1", "t2"] {
        yard.netns.ip(&format!("link set {tap} master br0"));
    }
    let mut number = 1;
    for name in ["net2", "net3"] {
        wait_for(&format!("{name} to be blocked"), PATIENCE, || {
            // Under traffic that goes round as far as it can.
            guest.try_send(lasthop_frame::VnetHdr::default(), &numbered(mac(1), MacAddr::BROADCAST, number, 60));
            station.send(&numbered(mac(9), MacAddr::BROADCAST, number + 1, 60));
            number += 2;
            site.uplink(name)["state"] == "blocked"
        });
    }
    site.wait_for_blocked("net2", "net");
    site.wait_for_blocked("net3", "net");
    assert!(guest.drain().len() + station.drain().len() < 1_000_000);
    each_frame_crosses_once(&mut guest, &station, mac(9), 100_000);
    // What the guests were taken for at the others' ports is forgotten.
    let macs = site.lasthop.json(&["mac", "list"])["macs"].as_array().cloned().unwrap_or_default();
    assert!(macs.iter().all(|m| m["port"] != "net2" && m["port"] != "net3"), "{macs:?}");
    let log = site.lasthop.log();
    assert!(!log.contains("does not let go"), "{log}");
}

/// Trunks that have nothing in common but tagged VLANs: the network's switch takes no other frames from them.
fn trunks_share_vlans(driver: &str) {
    let yard = Yard::new(&["br0"]);
    let attached = ["u0", "u1", "u2"].map(|uplink| {
        yard.plug("br0", uplink);
        // Tags are in the frames, where an XDP program sees them.
        yard.netns.shell(&format!("ethtool -K {uplink}x txvlan off"));
        xdp::attach(&yard.netns, &format!("{uplink}x"), xdp::pass_tagged).expect("XDP on a veth")
    });
    let uplinks = [
        format!("net=u0,{driver},vlans=10:20"),
        format!("net2=u1,{driver},vlans=untagged:10:30"),
        // Carries all: it sends no probes on VLANs, and hears those of others.
        format!("net3=u2,{driver}"),
    ];
    let site = Site::new(&yard, &uplinks.each_ref().map(String::as_str), &[]);
    site.wait_for_blocked("net2", "net");
    site.wait_for_blocked("net3", "net");
    site.wait_for_port("net", "up");
    assert!(site.drops("net2", "probe") > 0, "{}", site.uplink("net2"));
    // Nothing in common any more; net3 carries both their VLANs.
    site.lasthop.command(&["uplink", "set", "net2", "--vlans", "30"]);
    site.wait_for_port("net2", "up");
    assert_eq!(site.uplink("net3")["state"], "blocked");
    // A long list has its turns.
    site.lasthop.command(&["uplink", "set", "net2", "--vlans", "10:100-199"]);
    site.wait_for_blocked("net2", "net");
    drop(attached);
}

#[test]
fn af_packet_trunks_that_share_tagged_vlans_only_are_found_out() {
    trunks_share_vlans("af_packet");
}

#[test]
fn af_xdp_trunks_that_share_tagged_vlans_only_are_found_out() {
    trunks_share_vlans("af_xdp");
}

/// The tokens of a probe: the instance's and its own.
fn with_token(probe: &[u8], token: [u8; 16]) -> Vec<u8> {
    let mut forged = probe.to_vec();
    forged[46..62].copy_from_slice(&token);
    forged
}

/// Two segments: both carry, each frame goes out once by each, and nobody outside who does not carry probes over from one
/// to the other changes that.
#[test]
fn uplinks_on_two_segments_carry_whatever_is_forged() {
    let yard = Yard::new(&["br0", "br1"]);
    yard.plug("br0", "u0");
    yard.plug("br1", "u1");
    let (left, right) = (yard.station("br0", "s0"), yard.station("br1", "s1"));
    let site = Site::new(&yard, &["net=u0,af_packet", "net2=u1,af_packet"], &[]);
    let mut guest = site.guest("a", mac(1));
    site.wait_for_port("net", "up");
    site.wait_for_port("net2", "up");
    guest.send(&numbered(mac(1), MacAddr::BROADCAST, 1, 60));
    left.recv("the first frame", |f| number_of(f) == Some(1));
    right.recv("the first frame", |f| number_of(f) == Some(1));
    for n in 2..22 {
        guest.send(&numbered(mac(1), if n % 2 == 0 { MacAddr::BROADCAST } else { mac(0x77) }, n, 60));
    }
    for station in [&left, &right] {
        assert_eq!(times(|t| station.recv_within(t), 2, 20), [1; 20]);
    }
    // Probes as they are, with a token made up, cut short; and ones that say nothing.
    let sample = left.recv("a probe", probe);
    assert_eq!(sample.len(), PROBE);
    let mut forged: Vec<Vec<u8>> = (0..50).map(|n| with_token(&sample, [n; 16])).collect();
    forged.extend([sample[..40].to_vec(), sample[..14].to_vec(), [&GROUP[..], &[2; 500]].concat()]);
    let before = site.drops("net2", "probe");
    for frame in &forged {
        right.send(frame);
    }
    wait_for("the forged ones to be looked at", PATIENCE, || {
        site.drops("net2", "probe") >= before + forged.len() as u64
    });
    // One that was ours, long ago: three more have been sent since.
    (0..4).for_each(|_| drop(left.recv("another probe", probe)));
    right.send(&sample);
    wait_for("the old one to be looked at", PATIENCE, || site.drops("net2", "probe") > before + forged.len() as u64);
    left.recv("another probe", probe);
    for uplink in ["net", "net2"] {
        assert_eq!(site.uplink(uplink)["state"], "up");
        assert_eq!(site.uplink(uplink)["last_error"], Value::Null);
    }
    // Guests see none of it.
    assert!(guest.drain().iter().all(|f| !probe(f)));
    // Who takes them over in time is on both segments: that is what a bridge between them does. When it ends, so does this.
    wait_for("net2 to be blocked", PATIENCE, || {
        right.send(&left.recv("a probe to take over", probe));
        site.uplink("net2")["state"] == "blocked"
    });
    wait_for("net2 to be back", PATIENCE, || site.lasthop.port("net2")["state"] == "up");
    let trouble = site.uplink("net2")["last_error"].clone();
    assert_eq!(trouble, "was blocked: on the same segment as uplink net");
}

/// One that is to be blocked and does not let go of the switch is not asked twice.
#[test]
fn an_uplink_that_does_not_obey_is_replaced() {
    let yard = Yard::new(&["br0", "br1"]);
    yard.plug("br0", "u0");
    yard.plug("br1", "u1");
    let (left, right) = (yard.station("br0", "s0"), yard.station("br1", "s1"));
    // Nothing else is to find out that it hangs.
    let site = Site::new(&yard, &["net=u0,af_packet", "net2=u1,af_packet"], &["--uplink-limit-ms", "600000"]);
    site.wait_for_port("net2", "up");
    let pid = site.uplink("net2")["pid"].as_u64().unwrap() as u32;
    wait_for("it to be replaced", PATIENCE, || {
        if site.uplink("net2")["blocked_by"] == Value::Null {
            proc::signal(pid, Signal::CONT);
            right.drain();
            let sample = right.recv("a probe to take over", probe);
            proc::signal(pid, Signal::STOP);
            left.send(&sample);
        }
        !proc::alive(pid)
    });
    assert!(site.lasthop.log().contains("uplink net2: it does not let go of the switch"), "{}", site.lasthop.log());
    wait_for("the next one", PATIENCE, || site.lasthop.port("net2")["state"] == "up");
}

/// The first is taken away in every way there is; the second does its work as long as it is needed.
#[test]
fn the_second_uplink_of_a_segment_takes_over() {
    let yard = Yard::new(&["br0"]);
    yard.plug("br0", "u0");
    yard.plug("br0", "u1");
    let station = yard.station("br0", "s0");
    let site = Site::new(&yard, &["net=u0,af_packet", "net2=u1,af_packet"], &[]);
    let mut guest = site.guest("a", mac(1));
    site.wait_for_blocked("net2", "net");
    site.wait_for_port("net", "up");
    each_frame_crosses_once(&mut guest, &station, mac(9), 1);
    // Its cable is pulled: no probe crosses any more.
    yard.netns.ip("link set u0x nomaster");
    site.wait_for_port("net2", "up");
    // The station is found there although it was known to live behind the other, and has not said a word since.
    wait_for("the station to be reached", PATIENCE, || {
        guest.send(&numbered(mac(1), mac(9), 5000, 60));
        station.drain().iter().any(|f| number_of(f) == Some(5000))
    });
    each_frame_crosses_once(&mut guest, &station, mac(9), 10_000);
    yard.netns.ip("link set u0x master br0");
    site.wait_for_blocked("net2", "net");
    each_frame_crosses_once(&mut guest, &station, mac(9), 20_000);
    // Its interface goes, and comes back.
    yard.netns.ip("link del u0");
    site.wait_for_port("net2", "up");
    each_frame_crosses_once(&mut guest, &station, mac(9), 30_000);
    yard.plug("br0", "u0");
    site.wait_for_blocked("net2", "net");
    site.wait_for_port("net", "up");
    each_frame_crosses_once(&mut guest, &station, mac(9), 40_000);
    // It is removed.
    site.lasthop.command(&["uplink", "del", "net"]);
    site.wait_for_port("net2", "up");
    assert_eq!(site.uplink("net2")["blocked_by"], Value::Null);
    each_frame_crosses_once(&mut guest, &station, mac(9), 50_000);
    // One that is added now is the later one.
    site.lasthop.command(&["uplink", "add", "net", "u0", "--driver", "af_packet"]);
    site.wait_for_blocked("net", "net2");
    each_frame_crosses_once(&mut guest, &station, mac(9), 60_000);
}

/// A request of RARP in this station's name.
fn announces(mac: MacAddr) -> impl Fn(&[u8]) -> bool {
    move |frame| frame[..6] == [0xff; 6] && frame[6..12] == mac.0 && frame[12..14] == [0x80, 0x35]
}

/// An uplink that takes over says who is behind it, and bridges send there what is for guests that have not said a word since.
fn the_network_learns_who_took_over(driver: &str) {
    let yard = Yard::new(&["br0"]);
    for interface in ["u0", "u1"] {
        if driver == "tap" {
            yard.netns.ip(&format!("tuntap add {interface} mode tap"));
            yard.netns.ip(&format!("link set {interface} master br0 up"));
        } else {
            yard.plug("br0", interface);
        }
    }
    let [first, second] = if driver == "tap" { ["u0", "u1"] } else { ["u0x", "u1x"] };
    let station = yard.station("br0", "s0");
    let site = Site::new(&yard, &[&format!("net=u0,{driver}"), &format!("net2=u1,{driver}")], &[]);
    site.wait_for_blocked("net2", "net");
    site.wait_for_port("net", "up");
    let mut guest = site.guest("a", mac(1));
    guest.send(&numbered(mac(1), MacAddr::BROADCAST, 1, 60));
    guest.send(&Frame::between(mac(2), MacAddr::BROADCAST).tag(0x8100, 5).payload(vec![0; 46]).build());
    yard.wait_for_address(mac(1), first);
    yard.wait_for_address(mac(2), first);
    site.lasthop.command(&["uplink", "del", "net"]);
    let announcement = station.recv("an announcement", announces(mac(1)));
    assert_eq!(announcement.len(), 60);
    // The kernel takes the tag out.
    station.recv("an announcement with a tag", |f| announces(mac(2))(f) && f.len() == 60);
    yard.wait_for_address(mac(1), second);
    yard.wait_for_address(mac(2), second);
    station.send(&numbered(mac(9), mac(1), 2, 60));
    guest.expect_number(2);
    // There are three rounds for each of the two, and they are counted.
    wait_for("all to be counted", PATIENCE, || site.uplink("net2")["to_network"]["packets"] == 6);
    let later = station.drain();
    assert_eq!(later.iter().filter(|f| announces(mac(1))(f)).count(), 2);
}

#[test]
fn the_network_learns_who_took_over_with_tap() {
    the_network_learns_who_took_over("tap");
}

#[test]
fn the_network_learns_who_took_over_with_af_packet() {
    the_network_learns_who_took_over("af_packet");
}

#[test]
fn the_network_learns_who_took_over_with_af_xdp() {
    the_network_learns_who_took_over("af_xdp");
}

/// And one that was never blocked itself, when another that carried beside it has to let go.
#[test]
fn the_network_learns_who_has_its_place_back() {
    let yard = Yard::new(&["br0"]);
    yard.plug("br0", "u0");
    yard.plug("br0", "u1");
    let station = yard.station("br0", "s0");
    let site = Site::new(&yard, &["net=u0,af_packet", "net2=u1,af_packet"], &[]);
    site.wait_for_blocked("net2", "net");
    site.wait_for_port("net", "up");
    let mut guest = site.guest("a", mac(1));
    guest.send(&numbered(mac(1), MacAddr::BROADCAST, 1, 60));
    yard.wait_for_address(mac(1), "u0x");
    yard.netns.ip("link set u0x nomaster");
    (0..3).for_each(|_| drop(station.recv("a round of announcements", announces(mac(1)))));
    yard.wait_for_address(mac(1), "u1x");
    yard.netns.ip("link set u0x master br0");
    site.wait_for_blocked("net2", "net");
    yard.wait_for_address(mac(1), "u0x");
    station.send(&numbered(mac(9), mac(1), 2, 60));
    guest.expect_number(2);
    nothing_flaps(&site, &guest, mac(9), "net");
}

/// No frames that nobody asked for: not with one uplink, and not if it is forbidden.
#[test]
fn who_has_nothing_to_ask_or_must_not_sends_no_probes() {
    let yard = Yard::new(&["br0", "br1", "br2", "br3"]);
    yard.plug("br0", "u0");
    yard.plug("br0", "u1");
    yard.plug("br1", "u2");
    let (left, right) = (yard.station("br0", "s0"), yard.station("br1", "s1"));
    let silent = Site::new(&yard, &["net=u0,af_packet", "net2=u1,af_packet"], &["--no-uplink-probe"]);
    let alone = Site::new(&yard, &["net=u2,af_packet"], &[]);
    for site in [&silent, &alone] {
        site.wait_for_port("net", "up");
    }
    silent.wait_for_port("net2", "up");
    // Another that does ask, and came up after them: when two of its probes have been seen, theirs would have been.
    for (bridge, interface) in [("br2", "u3"), ("br3", "u4")] {
        yard.plug(bridge, interface);
    }
    let witness = yard.station("br2", "s2");
    let asks = Site::new(&yard, &["net=u3,af_packet", "net2=u4,af_packet"], &[]);
    for _ in 0..2 {
        witness.recv("a probe", probe);
    }
    let mut guest = alone.guest("a", mac(1));
    guest.send(&numbered(mac(1), MacAddr::BROADCAST, 1, 60));
    right.recv("the guest's frame", |f| {
        assert!(!probe(f), "a probe");
        number_of(f) == Some(1)
    });
    assert!(!left.drain().iter().any(|f| probe(f)));
    drop(asks);
}
