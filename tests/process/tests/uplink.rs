//! Uplinks: frames between guests and a network outside, made of network namespaces. What an uplink carries is checked by a
//! second lasthop at the other end of the wire; what the host's own stack makes of it, by that stack.

mod aggregation;
mod death;
mod outside;

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, number_of, numbered, proc, scratch, wait_for,
};
use lasthop_text::MacAddr;
use outside::{Host, Wire};
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// lasthop with ports a, b and an uplink `net` in a network namespace of the test.
struct Site {
    lasthop: Lasthop,
    dir: tempfile::TempDir,
}

impl Site {
    fn new(netns: &Netns, uplink: &str) -> Self {
        Self::with(netns, &["--uplink", uplink])
    }

    fn with(netns: &Netns, arguments: &[&str]) -> Self {
        Self::start(Some(netns), arguments)
    }

    /// In this thread's network namespace.
    fn here(arguments: &[&str]) -> Self {
        Self::start(None, arguments)
    }

    fn start(netns: Option<&Netns>, arguments: &[&str]) -> Self {
        let dir = scratch();
        let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start_in(netns, &ports, arguments);
        let site = Self { lasthop, dir };
        site.lasthop.wait_for_state("net", "up");
        site
    }

    fn guest(&self, port: &str, mac: MacAddr, options: Options) -> Guest {
        Guest::connect(&self.dir.path().join(format!("{port}.sock")), mac, options)
    }

    fn uplink(&self) -> Value {
        self.lasthop.json(&["uplink", "list"])["uplinks"][0].clone()
    }

    fn pid(&self) -> u32 {
        let mut pid = 0;
        wait_for("the uplink to run", PATIENCE, || {
            pid = self.uplink()["pid"].as_u64().unwrap_or(0) as u32;
            pid != 0
        });
        pid
    }
}

/// Numbered frames of all lengths, both ways.
fn exchange(near: &mut Guest, far: &mut Guest, lengths: impl Iterator<Item = usize>, from: u32) -> u32 {
    near.greet(far, from);
    let mut number = from + 1;
    for len in lengths {
        for _ in 0..2 {
            near.send(&numbered(near.mac, far.mac, number, len));
            far.expect_number(number);
            std::mem::swap(near, far);
            number += 1;
        }
    }
    number
}

fn frames_cross(wire: &Wire) {
    let (left, right) = (Site::new(wire.netns(), &wire.left), Site::new(wire.netns(), &wire.right));
    wire.join();
    let options = Options::net(|n| (n.tx_buffer, n.rx_buffer) = (9100, 4096));
    let (mut near, mut far) = (left.guest("a", mac(1), options), right.guest("a", mac(2), options));
    // Every length up to 200, and the edges of what fits an Ethernet frame; then jumbo frames.
    let number = exchange(&mut near, &mut far, (60..200).chain([256, 511, 512, 1024, 1513, 1514]), 1);
    exchange(&mut near, &mut far, [1515, 4000, 8999, 9014].into_iter(), number);
    // Tags pass as they are: one, a service tag, two.
    for (vlan, tags) in [&[(0x8100, 5)][..], &[(0x88a8, 7)], &[(0x8100, 0x6007), (0x8100, 9)]].into_iter().enumerate() {
        let tagged = |a: MacAddr, b: MacAddr| {
            let frame = Frame::between(a, b).payload(vec![vlan as u8 + 1; 100]);
            tags.iter().fold(frame, |f, (tpid, tci)| f.tag(*tpid, *tci)).build()
        };
        let (there, back) = (tagged(near.mac, far.mac), tagged(far.mac, near.mac));
        near.send(&there);
        far.expect(&there);
        far.send(&back);
        near.expect(&back);
    }
    left.lasthop.check_sums();
    right.lasthop.check_sums();
    let uplink = left.uplink();
    assert!(uplink["to_network"]["packets"].as_u64() > Some(100), "{uplink}");
    assert_eq!(uplink["drops"], Value::Array(Vec::new()), "{uplink}");
}

#[test]
fn frames_of_all_kinds_cross_af_packet() {
    frames_cross(&Wire::veth(1));
}

#[test]
fn frames_of_all_kinds_cross_af_packet_with_several_queues() {
    frames_cross(&Wire::veth(2));
}

#[test]
fn frames_of_all_kinds_cross_tap() {
    frames_cross(&Wire::taps(1));
}

#[test]
fn frames_of_all_kinds_cross_tap_with_several_queues() {
    frames_cross(&Wire::taps(2));
}

#[test]
fn frames_cross_af_xdp() {
    let wire = Wire::xdp();
    let (left, right) = (Site::new(wire.netns(), &wire.left), Site::new(wire.netns(), &wire.right));
    assert_eq!(left.uplink()["mode"], "native, copy");
    let (mut near, mut far) =
        (left.guest("a", mac(1), Options::default()), right.guest("a", mac(2), Options::default()));
    let number = exchange(&mut near, &mut far, 60..1515, 1);
    // More at once than any ring holds; what goes on the way is counted.
    let arrived = |guest: &mut Guest| guest.drain().into_iter().filter(|f| number_of(f).is_some()).count();
    for n in number..number + 3000 {
        near.send(&numbered(near.mac, far.mac, n, 1000));
    }
    assert!(arrived(&mut far) > 100);
    near.greet(&mut far, 5);
    // A packet to be cut and summed is, before it is sent.
    let mut sender = left.guest("b", mac(3), Options::offloading());
    sender.greet(&mut far, 6);
    let payload: Vec<u8> = (0..20_000u32).map(|i| (i * 7 / 3) as u8).collect();
    let tcp = Frame::between(mac(3), mac(2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1000, 2000);
    let tcp = tcp.payload(payload.clone()).partial_checksum();
    sender.send_as(tcp.vnet(VnetHdr::GSO_TCPV4, 1400), &tcp.build());
    let mut got: Vec<u8> = Vec::new();
    while got.len() < payload.len() {
        let (header, frame) = far.recv("a segment", |_, f| f.len() > 300);
        assert_eq!(header.gso_type, VnetHdr::GSO_NONE);
        got.extend(&frame[54..]);
    }
    assert_eq!(got, payload);
    assert_eq!(left.uplink()["drops"], Value::Array(Vec::new()));
    wait_for("all frames to be counted", PATIENCE, || {
        let (sent, came) = (left.uplink(), right.uplink());
        let drops = came["drops"].as_array().cloned().unwrap_or_default();
        assert!(drops.iter().all(|d| d["reason"] == "overrun"), "{came}");
        let packets = |v: &Value| v["packets"].as_u64().unwrap();
        let overruns: u64 = drops.iter().map(packets).sum();
        packets(&sent["to_network"]) == packets(&came["from_network"]) + came["merged"].as_u64().unwrap() + overruns
    });
}

/// A TCP segment of 60 KB leaves a guest whole and arrives whole, its checksum still open; where the wire's end cannot, the
/// receiving guest gets it cut and summed.
fn segments_cross(wire: &Wire) {
    let (left, right) = (Site::new(wire.netns(), &wire.left), Site::new(wire.netns(), &wire.right));
    wire.join();
    let mut near = left.guest("a", mac(1), Options::offloading());
    let mut far = right.guest("a", mac(2), Options::offloading());
    let mut plain = right.guest("b", mac(3), Options::default());
    for guest in [&mut far, &mut plain] {
        near.greet(guest, u32::from(guest.mac.0[5]));
    }
    let payload: Vec<u8> = (0..60_000u32).map(|i| (i * 7 / 3) as u8).collect();
    for tag in [None, Some(6)] {
        let tcp = |to: MacAddr| {
            let frame = Frame::between(mac(1), to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1000, 2000);
            let frame = frame.payload(payload.clone()).partial_checksum();
            if let Some(tci) = tag { frame.vlan(tci) } else { frame }
        };
        let whole = tcp(far.mac);
        near.send_as(whole.vnet(VnetHdr::GSO_TCPV4, 1400), &whole.build());
        let (header, frame) = far.recv("the segment", |_, f| f.len() > 60_000);
        assert_eq!((header.gso_type, header.gso_size), (VnetHdr::GSO_TCPV4, 1400));
        assert_eq!(frame[frame.len() - payload.len()..], payload);
        let cut = tcp(plain.mac);
        near.send_as(cut.vnet(VnetHdr::GSO_TCPV4, 1400), &cut.build());
        let mut got: Vec<u8> = Vec::new();
        let l4 = if tag.is_some() { 38 } else { 34 };
        while got.len() < payload.len() {
            let (header, frame) = plain.recv("a segment", |_, f| f.len() > 500);
            assert_eq!(header, VnetHdr { num_buffers: 1, ..VnetHdr::default() });
            got.extend(&frame[l4 + 20..]);
        }
        assert_eq!(got, payload);
    }
    assert_eq!(left.uplink()["drops"], Value::Array(Vec::new()));
}

#[test]
fn segments_cross_af_packet_whole() {
    segments_cross(&Wire::veth(1));
}

#[test]
fn segments_cross_tap_whole() {
    segments_cross(&Wire::taps(1));
}

/// The host's own stack at the other end of a TAP device: ARP, ICMP, neighbour discovery, ICMPv6.
#[test]
fn a_host_pings_a_guest() {
    let netns = Netns::new();
    let site = Site::new(&netns, "net=lh0,driver=tap");
    let created = site.uplink();
    assert_eq!((&created["driver"], &created["created"]), (&"tap".into(), &true.into()), "{created}");
    netns.shell("echo 0 >/proc/sys/net/ipv6/conf/lh0/disable_ipv6");
    netns.ip("addr add 10.1.0.1/24 dev lh0");
    netns.ip("addr add fd01::1/64 dev lh0 nodad");
    let host = Host::start(site.guest("a", mac(9), Options::default()), [10, 1, 0, 9], "fd01::9");
    for ping in [
        "busybox ping -c 5 -i 0.05 -w 20 10.1.0.9",
        "busybox ping -c 3 -i 0.05 -w 20 -s 1400 10.1.0.9",
        "busybox ping -6 -c 5 -i 0.05 -w 20 fd01::9",
    ] {
        let out = netns.shell(ping);
        assert!(out.contains(" 0% packet loss"), "{out}");
    }
    assert!(host.stop() >= 13);
    // The interface goes with its uplink; the guest's port stays.
    site.lasthop.command(&["uplink", "del", "net"]);
    assert!(!netns.output("ip link show lh0").status.success(), "the device is left behind");
    assert_eq!(site.lasthop.json(&["uplink", "list"])["uplinks"], Value::Array(Vec::new()));
}

/// A device that an uplink made goes with it, even if its process hangs or is gone when it is removed; and stays when all ends.
#[test]
fn what_was_made_is_removed_although_the_process_hangs() {
    let netns = Netns::new();
    let there = || netns.output("ip link show lh0").status.success();
    // It goes with the last process that has it, which the kernel may still be ending.
    let is_gone = |what: &str| wait_for(&format!("the device to go: {what}"), PATIENCE, || !there());
    let site = Site::new(&netns, "net=lh0,driver=tap");
    proc::signal(site.pid(), Signal::STOP);
    site.lasthop.command(&["uplink", "del", "net"]);
    is_gone("a hung process was removed");
    site.lasthop.command(&["uplink", "add", "net", "lh0", "--driver", "tap", "--spare"]);
    proc::signal(site.pid(), Signal::STOP);
    site.lasthop.command(&["uplink", "del", "net"]);
    is_gone("a hung process with a spare was");
    // Its next process may be anywhere on its way.
    for _ in 0..10 {
        site.lasthop.command(&["uplink", "add", "net", "lh0", "--driver", "tap"]);
        assert!(there());
        proc::signal(site.pid(), Signal::KILL);
        site.lasthop.command(&["uplink", "del", "net"]);
        is_gone("one that was killed was");
    }
    site.lasthop.command(&["uplink", "add", "net", "lh0", "--driver", "tap"]);
    proc::signal(site.pid(), Signal::STOP);
    assert!(site.lasthop.stop());
    assert!(there(), "it is the uplink's, which is remembered");
}

/// Every station outside is known: what is for it goes out by the uplink, and to nobody else.
#[test]
fn ten_thousand_stations_live_behind_one_uplink() {
    const STATIONS: u32 = 10_000;
    let wire = Wire::veth(1);
    let (left, right) = (Site::new(wire.netns(), &wire.left), Site::new(wire.netns(), &wire.right));
    let (mut near, mut far) =
        (left.guest("a", mac(1), Options::default()), right.guest("a", mac(2), Options::default()));
    let mut other = left.guest("b", mac(3), Options::default());
    near.greet(&mut far, 1);
    near.greet(&mut other, 2);
    let station = |n: u32| MacAddr([2, 1, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
    for n in 0..STATIONS {
        far.send(&numbered(station(n), mac(1), 10 + n, 60));
        near.expect_number(10 + n);
    }
    let port = left.lasthop.port("net");
    assert!(port["macs"].as_u64() >= Some(STATIONS.into()), "{port}");
    assert_eq!(port["sources_over_limit"], 0, "{port}");
    for n in 0..STATIONS {
        near.send(&numbered(mac(1), station(n), 50_000 + n, 60));
        far.expect_number(50_000 + n);
    }
    let flooded = other.drain().into_iter().find(|f| f[..3] == station(0).0[..3]);
    assert_eq!(flooded, None, "a guest got what is for a station outside");
    left.lasthop.check_sums();
}

/// kill -9 under load: guests among themselves lose nothing, the network is back, nothing is left behind.
#[test]
fn uplink_killed_under_load() {
    const KILLS: u32 = 5;
    for wire in [Wire::veth(1), Wire::taps(1), Wire::xdp()] {
        let right = Site::new(wire.netns(), &wire.right);
        let dir = scratch();
        let ports = ["a", "c", "d"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start_in(Some(wire.netns()), &ports, &["--uplink", &wire.left]);
        lasthop.wait_for_state("net", "up");
        wire.join();
        let path = |name: &str| dir.path().join(format!("{name}.sock"));
        let bystanders = Bystanders::start(&path("c"), &path("d"), [mac(0xc), mac(0xd)]);
        let mut near = Guest::connect(&path("a"), mac(1), Options::default());
        let mut far = right.guest("a", mac(2), Options::default());
        near.greet(&mut far, 1);
        let uplink = || lasthop.json(&["uplink", "list"])["uplinks"][0].clone();
        let pid = || uplink()["pid"].as_u64().unwrap_or(0) as u32;
        let held = |lasthop: &Lasthop| {
            let (run, switch) = (lasthop.pid(), lasthop.switch());
            [proc::descriptors(run), proc::descriptors(switch), proc::threads(run), proc::threads(switch)]
        };
        let before = held(&lasthop);
        let flows = lasthop.json(&["mac", "list"]);
        let (mut number, mut back) = (2, Vec::new());
        for _ in 0..KILLS {
            bystanders.still_exchange();
            let old = pid();
            proc::signal(old, Signal::KILL);
            let killed = Instant::now();
            wait_for("the network to be back", PATIENCE, || {
                for _ in 0..20 {
                    number += 1;
                    near.try_send(VnetHdr::default(), &numbered(mac(1), mac(2), number, 900));
                    far.try_send(VnetHdr::default(), &numbered(mac(2), mac(1), number, 900));
                    std::thread::sleep(Duration::from_micros(300));
                }
                let arrived = |guest: &mut Guest, other| {
                    let mut any = false;
                    while let Some((_, frame)) = guest.try_recv() {
                        any |= number_of(&frame).is_some_and(|n| n > number - 20) && frame[6..12] == mac(other).0;
                    }
                    any
                };
                // Both, whether or not the first is.
                !proc::alive(old) && (arrived(&mut near, 2) & arrived(&mut far, 1))
            });
            back.push(killed.elapsed());
            assert!(far.drain().len() + near.drain().len() < 10_000);
        }
        back.sort();
        println!("{}: back after {:?} (median), {:?} (worst of {KILLS})", wire.left, back[back.len() / 2], back.last());
        wait_for("every start to be counted", PATIENCE, || uplink()["restarts"] == KILLS);
        assert!(uplink()["last_error"].as_str().is_some_and(|e| e.contains("SIGKILL")), "{}", uplink());
        // What was learned is still known.
        let known = |list: &Value| list["macs"].as_array().map_or(0, Vec::len);
        assert!(known(&lasthop.json(&["mac", "list"])) >= known(&flows));
        near.greet(&mut far, 1_000_000);
        wait_for("descriptors and threads to be as before", PATIENCE, || {
            held(&lasthop).iter().zip(before).all(|(now, before)| *now <= before)
        });
    }
}

/// With nothing to carry nothing runs, but for the question whether they live, once a second.
#[test]
fn an_idle_uplink_takes_no_processor_time() {
    let wire = Wire::xdp();
    let others = [wire.right.replace("net=v1,af_xdp", "pkt=v1,af_packet"), "tap=t9,tap,queues=2".to_owned()];
    let site = Site::with(wire.netns(), &["--uplink", &wire.left, "--uplink", &others[0], "--uplink", &others[1]]);
    let mut guest = site.guest("a", mac(1), Options::default());
    // Two are ends of one cable, of which one stands by.
    wait_for("each uplink to carry a broadcast or to stand by", PATIENCE, || {
        guest.send(&numbered(mac(1), MacAddr::BROADCAST, 1, 60));
        let list = site.lasthop.json(&["uplink", "list"]);
        let settled = |u: &serde_json::Value| {
            if u["name"] == "pkt" { u["state"] == "blocked" } else { u["to_network"]["packets"].as_u64() >= Some(1) }
        };
        list["uplinks"].as_array().unwrap().iter().all(settled)
    });
    let before = site.lasthop.cpu_ns();
    // Waits for nothing: it is the time in which processor time is measured.
    let window = Duration::from_secs(3);
    std::thread::sleep(window);
    let used = site.lasthop.cpu_ns() - before;
    // Six processes, and three thousand milliseconds: a thread that spins takes all of them.
    assert!(used < 100_000_000, "{} ms", used / 1_000_000);
}

/// Stopped, not dead: noticed and replaced.
#[test]
fn uplink_hung_is_replaced() {
    let wire = Wire::veth(1);
    let right = Site::new(wire.netns(), &wire.right);
    let left = Site::with(wire.netns(), &["--uplink", &wire.left, "--uplink-limit-ms", "1500"]);
    let (mut near, mut far) =
        (left.guest("a", mac(1), Options::default()), right.guest("a", mac(2), Options::default()));
    near.greet(&mut far, 1);
    let old = left.pid();
    proc::signal(old, Signal::STOP);
    let stopped = Instant::now();
    wait_for("the hung one to be replaced", PATIENCE, || !proc::alive(old));
    println!("replaced {:?} after it was stopped, with a limit of 1500 ms", stopped.elapsed());
    near.greet_when_back(&mut far, 2);
    let uplink = left.uplink();
    assert!(uplink["last_error"].as_str().is_some_and(|e| e.contains("not answered for 1500 ms")), "{uplink}");
}

/// The switch dies, the uplink stays and is joined to the next one.
#[test]
fn switch_killed_uplinks_are_joined_to_the_next() {
    for wire in [Wire::veth(1), Wire::taps(2), Wire::xdp()] {
        let (left, right) = (Site::new(wire.netns(), &wire.left), Site::new(wire.netns(), &wire.right));
        wire.join();
        let mut far = right.guest("a", mac(2), Options::default());
        let pid = left.pid();
        for round in 0..3 {
            let mut near = left.guest("a", mac(1), Options::default());
            near.greet(&mut far, 10 * round);
            far.send(&numbered(mac(2), mac(1), 1, 400));
            left.lasthop.kill("lasthop-switch");
            left.lasthop.wait_for_state("net", "up");
            drop(near);
        }
        let mut near = left.guest("a", mac(1), Options::default());
        near.greet(&mut far, 77);
        assert_eq!(left.pid(), pid, "the uplink was restarted too");
    }
}

/// Two uplinks on one segment, and nobody who finds that out: what one brings in, the other still does not carry out.
#[test]
fn two_uplinks_make_no_loop() {
    let wire = Wire::veth(1);
    let right = wire.right.replace("net=", "net2=");
    let left = Site::with(wire.netns(), &["--uplink", &wire.left, "--uplink", &right, "--no-uplink-probe"]);
    left.lasthop.wait_for_state("net2", "up");
    let mut guest = left.guest("a", mac(1), Options::default());
    let carried = || -> u64 {
        let list = left.lasthop.json(&["uplink", "list"]);
        let all = list["uplinks"].as_array().unwrap();
        all.iter().map(|u| u["to_network"]["packets"].as_u64().unwrap_or(0)).sum()
    };
    for n in 0..10 {
        guest.send(&numbered(mac(1), MacAddr::BROADCAST, n, 60));
    }
    wait_for("both uplinks to carry the broadcasts", PATIENCE, || carried() >= 20);
    // It would have gone round some thousand times by now.
    std::thread::sleep(Duration::from_millis(500));
    assert!(carried() <= 30, "{} frames went out", carried());
    let stranger = mac(0x55).to_string();
    let port = |name: &str| {
        ["trace", "--in-port", name, "--eth-src", &stranger, "--eth-dst", "ff:ff:ff:ff:ff:ff"].map(String::from)
    };
    let words = port("net");
    let trace = left.lasthop.command(&words.each_ref().map(String::as_str));
    assert!(!trace.contains("delivered to net2"), "{trace}");
}

/// Whoever starts lasthop in a network namespace need not have mounted its sysfs.
#[test]
fn a_tap_device_is_known_where_sysfs_shows_another_namespace() {
    let netns = Netns::new();
    netns.ip("tuntap add tap9 mode tap");
    let file = std::fs::File::open(format!("/run/netns/{}", netns.name())).unwrap();
    // This thread's; what it starts is there too.
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    assert!(!std::path::Path::new("/sys/class/net/tap9").exists());
    let site = Site::here(&["--uplink", "net=tap9,spare"]);
    assert_eq!(site.uplink()["driver"], "tap");
    // Its successor has the device in its hands.
    let first = site.pid();
    proc::signal(first, Signal::KILL);
    wait_for("another process", PATIENCE, || site.uplink()["pid"].as_u64().is_some_and(|pid| pid != u64::from(first)));
    site.lasthop.wait_for_state("net", "up");
}

/// A mistyped name does not become a device, at the start or later; a TAP device is made for whoever says so.
#[test]
fn only_a_tap_device_that_was_asked_for_is_made() {
    let netns = Netns::new();
    netns.ip("link add eth9 type veth peer name peer9");
    let dir = scratch();
    let shown = dir.path().display();
    let run = |uplink: &str| {
        let program = lasthop_tests_process::binary("lasthop");
        let dirs = format!("--run-dir {shown}/run --state-dir {shown}/state");
        netns.output(&format!("timeout 20 {} run {dirs} --uplink {uplink}", program.display()))
    };
    let out = run("net=eno1");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{text}");
    let line = "uplink net: there is no interface eno1; there are: eth9, peer9; to make a TAP device of that name, choose the driver tap";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("as soon as it is there"), "it said first that it would wait: {text}");
    assert!(!netns.output("ip link show eno1").status.success(), "the mistyped name is a device now");
    let site = Site::new(&netns, "net=eno1,driver=tap");
    assert_eq!((&site.uplink()["driver"], &site.uplink()["created"]), (&"tap".into(), &true.into()));
    // Deleted by somebody it is made again, without the addresses that it had, and that is said.
    netns.ip("addr add 10.0.0.1/24 dev eno1");
    netns.ip("link del eno1");
    let anew = "uplink net: eno1 had been deleted and was made anew: its addresses and routes are gone";
    wait_for("the line of it", PATIENCE, || site.lasthop.log().contains(anew));
    assert!(!String::from_utf8_lossy(&netns.output("ip addr show eno1").stdout).contains("10.0.0.1"));
    // A TAP device that was there, used without a driver, is not made again when it has gone.
    netns.ip("tuntap add tap9 mode tap");
    site.lasthop.command(&["uplink", "add", "old", "tap9"]);
    netns.ip("link del tap9");
    let old = || site.lasthop.json(&["uplink", "list"])["uplinks"][1].clone();
    wait_for("the reason", PATIENCE, || old()["last_error"].as_str().is_some_and(|e| e.contains("no interface tap9")));
    assert!(!netns.output("ip link show tap9").status.success(), "made although nobody asked for it");
}

#[test]
fn what_cannot_be_an_uplink_is_refused_with_the_reason() {
    let netns = Netns::new();
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    let site = Site::new(&netns, "net=lh0,driver=tap");
    for (words, part) in [
        (&["add", "x", "nope0", "--driver", "af_packet"][..], "no interface nope0"),
        (&["add", "x", "nope0"], "no interface nope0; there are: lh0, v0, v1; to make a TAP device"),
        (&["add", "x", "v0", "--driver", "tap"], "no TAP device"),
        (&["add", "x", "lo"], "no Ethernet"),
        (&["add", "x", "v0", "--driver", "dpdk"], "af_packet"),
        (&["add", "x", "v0", "--queues", "99"], "1 to 16"),
        (&["add", "x", "v0", "--gro", "off"], "ethtool"),
        (&["add", "a", "v0"], "port a already"),
        (&["add", "net", "v0"], "another name"),
        (&["add", "x", "lh0"], "uplink net already"),
        (&["add", "x", "a-name-too-long-for-one"], "15 characters"),
        (&["del", "nobody"], "no uplink nobody"),
    ] {
        let out = site.lasthop.try_command(&[&["uplink"], words].concat());
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(part) && text.lines().count() == 1, "{words:?}: {text}");
    }
    // After all that there is one uplink, and a name that was refused can be used.
    site.lasthop.command(&["uplink", "add", "x", "v0", "--nice", "7"]);
    site.lasthop.wait_for_state("x", "up");
    assert_eq!(site.lasthop.json(&["uplink", "list"])["uplinks"].as_array().map(Vec::len), Some(2));
    let niceness = |pid: u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|s| s.split(' ').nth(17)?.parse::<i32>().ok())
    };
    let list = site.lasthop.json(&["uplink", "list"]);
    let x = list["uplinks"].as_array().unwrap().iter().find(|u| u["name"] == "x").cloned().unwrap_or_default();
    assert_eq!((x["nice"].as_i64(), niceness(x["pid"].as_u64().unwrap_or(0))), (Some(7), Some(7)), "{x}");
    let port = site.lasthop.try_command(&["port", "del", "x"]);
    assert!(String::from_utf8_lossy(&port.stderr).contains("uplink del x"));
    // The device is taken away: said, tried again, and back when it is.
    netns.ip("link del v0");
    wait_for("the uplink to notice", PATIENCE, || site.lasthop.port("x")["state"] != "up");
    wait_for("the reason", PATIENCE, || {
        let list = site.lasthop.json(&["uplink", "list"]);
        let x = list["uplinks"].as_array().unwrap().iter().find(|u| u["name"] == "x").cloned().unwrap_or_default();
        x["last_error"].as_str().is_some_and(|e| e.contains("no interface v0"))
    });
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    site.lasthop.wait_for_state("x", "up");
    // So is a TAP device, which is made again.
    netns.ip("link del lh0");
    wait_for("the TAP device to be back", PATIENCE, || netns.output("ip link show lh0").status.success());
    site.lasthop.wait_for_state("net", "up");
    assert!(site.lasthop.stop(), "a process had to be killed");
}
