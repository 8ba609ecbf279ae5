//! What VMs of a device get of each other: weights, priorities and rates of its ports. The commands are given to the host's lasthop, which has no port of these names.

use lasthop_tests_process::{Guest, Lasthop, Netns, Options, PATIENCE, Rivals, mac, scratch, wait_for};
use std::time::{Duration, Instant};

/// Packets wait for seconds, so no sender loses what it has in its ring; and no helper loses its core in the middle of a burst.
const GENTLY: [&str; 4] = ["--congestion", "1000", "--helpers", "none"];
/// Between two looks of a receiver that takes less than its senders have.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes for which shares are looked at.
const ENOUGH: usize = 1_000_000;

fn guest(dir: &std::path::Path, name: &str, number: u8) -> Guest {
    // Of the receiver fewer buffers than a sender has frames.
    let size = if number == 3 { 64 } else { 1024 };
    Guest::connect(&dir.join(name), mac(number), Options::net(|net| net.size = size))
}

/// A device with the ports `a` and `b`, whose guests have frames for `sink`; and settings that two of them begin with.
fn site(device: &str, [a, b]: [&str; 2]) -> (Rivals, Guest) {
    let dir = scratch();
    let port = |name: &str, told: &str| format!("{name}={},device=nic0{told}", dir.path().join(name).display());
    let ports = [port("a", a), port("b", b), port("sink", "")];
    let ports = ports.iter().flat_map(|port| ["--port", port]);
    let arguments: Vec<&str> = GENTLY.into_iter().chain(["--device", device]).chain(ports).collect();
    let lasthop = Lasthop::start_with(&[], &arguments);
    let senders = [guest(dir.path(), "a", 1), guest(dir.path(), "b", 2)];
    let mut sink = guest(dir.path(), "sink", 3);
    let mut rivals = Rivals::new(lasthop, senders, dir);
    greet(&mut rivals, &mut sink);
    (rivals, sink)
}

fn greet(rivals: &mut Rivals, sink: &mut Guest) {
    for (n, sender) in (1..).zip(&mut rivals.senders) {
        sender.greet_when_back(sink, 100 * n);
    }
}

fn set(rivals: &Rivals, port: &str, option: &str, value: &str) {
    let said = rivals.lasthop.command(&["port", "set", port, option, value]);
    assert!(said.starts_with(&format!("port {port} of device nic0: ")), "{said}");
}

fn refused(lasthop: &Lasthop, words: &[&str]) -> String {
    let out = lasthop.try_command(words);
    assert!(!out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// By what they begin with, what they are told, and whether or not an engine copies and a thread walks.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn two_guests_flood_a_third_and_have_shares_by_their_weights() {
    for device in ["nic0,cable=off", "nic0,rules=16,walk=on,dma=on,dma-threshold=0,cable=off"] {
        let (mut rivals, mut sink) = site(device, ["", ",weight=300"]);
        let mut share = |rivals: &mut Rivals, lens, fair, why: &str| {
            rivals.share(&mut sink, ENOUGH, PAUSE, lens, fair, &format!("{device}: {why}"));
        };
        share(&mut rivals, [1000, 1000], 0.25, "a quarter from the start");
        set(&rivals, "b", "--weight", "none");
        share(&mut rivals, [1400, 700], 0.5, "halves, in bytes");
        set(&rivals, "a", "--weight", "300");
        share(&mut rivals, [1000, 1000], 0.75, "three quarters");
        set(&rivals, "a", "--weight", "none");
        set(&rivals, "a", "--priority", "1");
        // 15 times what the two ports below would have together, of which the receiver is one.
        share(&mut rivals, [1000, 1000], 30.0 / 31.0, "before the other");
    }
}

/// Bytes a second while `sink` takes so many, after those that it may have at once are over.
fn rate_of(rivals: &mut Rivals, sink: &mut Guest, most: usize) -> f64 {
    rivals.play(sink, most / 4, PAUSE, [1000, 1000]);
    let began = Instant::now();
    let came = rivals.play(sink, most, PAUSE, [1000, 1000]);
    came as f64 / began.elapsed().as_secs_f64()
}

/// What a guest may get is shared by those who send to it; and it holds under the next data plane, as nothing else would make it slow.
#[test]
fn a_guest_gets_its_rate_and_senders_their_shares_of_it() {
    const RATE: f64 = 500_000.0;
    let (mut rivals, mut sink) = site("nic0,cable=off", ["", ",weight=300"]);
    let unlimited = rate_of(&mut rivals, &mut sink, 4 * ENOUGH);
    assert!(unlimited > 1.5 * RATE, "{unlimited} bytes a second without a rate");
    set(&rivals, "sink", "--rate-to", "4M:64K");
    let limited = |rivals: &mut Rivals, sink: &mut Guest| {
        // What it may have at once it may have had a part of in this time again, and 64 frames are in its ring.
        let slack = (65_536.0 + 64_000.0) / ENOUGH as f64;
        let got = rate_of(rivals, sink, ENOUGH);
        assert!((0.7 * RATE..RATE / (1.0 - slack)).contains(&got), "{got} bytes a second of {RATE}");
        // It gets 64 frames at once, of which one sender may have most: shares are of many times as much, at a rate at which that does not take long.
        set(rivals, "sink", "--rate-to", "16M:64K");
        rivals.share(sink, 2 * ENOUGH, PAUSE, [1000, 1000], 0.25, "of a limited guest");
        set(rivals, "sink", "--rate-to", "4M:64K");
    };
    limited(&mut rivals, &mut sink);
    rivals.lasthop.kill("lasthop-device");
    rivals.senders = [guest(rivals.dir.path(), "a", 1), guest(rivals.dir.path(), "b", 2)];
    sink = guest(rivals.dir.path(), "sink", 3);
    greet(&mut rivals, &mut sink);
    limited(&mut rivals, &mut sink);
}

/// What a guest may send waits in it; the other has the rest, whatever their weights.
#[test]
fn a_guest_sends_at_its_rate_and_the_other_has_the_rest() {
    let (mut rivals, mut sink) = site("nic0,cable=off", [",weight=1000", ""]);
    set(&rivals, "a", "--rate-from", "2M:64K");
    let began = Instant::now();
    rivals.play(&mut sink, 4 * ENOUGH, PAUSE, [1000, 1000]);
    // A burst of 64 packets that was begun is done, too.
    let most = 250_000.0 * began.elapsed().as_secs_f64() + 65_536.0 + 64_000.0;
    let [a, b] = rivals.came();
    assert!(a as f64 <= most, "{a} bytes, which may be {most}; {b} of the other");
    assert!(b > 4 * ENOUGH / 2 && a > 60_000, "{a} and {b} bytes");
    wait_for("it to be held", PATIENCE, || {
        let out = rivals.lasthop.try_command_of(Some("nic0"), &["port", "list", "--json"]);
        let list: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        let ports = list["ports"].as_array().cloned().unwrap_or_default();
        ports.iter().any(|port| port["name"] == "a" && port["from_guest"]["held"].as_u64() >= Some(1))
    });
}

/// An uplink of the device's own is shared by least rates; without one there is nothing to have a share of, and that is said.
#[test]
fn a_least_rate_is_of_a_devices_own_uplink() {
    let netns = Netns::new();
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v0 up");
    netns.ip("link set v1 up");
    let dir = scratch();
    let port = format!("a={},device=nic0", dir.path().join("a").display());
    let lasthop = Lasthop::start_in(Some(&netns), &[], &["--device", "nic0,cable=off", "--port", &port]);
    let said = refused(&lasthop, &["port", "set", "a", "--min-rate", "70M"]);
    assert!(said.contains("`lasthop port set UPLINK --rate-to RATE`"), "{said}");
    let of_device = |words: &[&str]| {
        let out = lasthop.try_command_of(Some("nic0"), words);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    of_device(&["uplink", "add", "net", "v0", "--driver", "af_packet"]);
    let said = lasthop.command(&["port", "set", "net", "--rate-to", "100M"]);
    assert!(said.starts_with("port net of device nic0: "), "{said}");
    let said = lasthop.command(&["port", "set", "a", "--min-rate", "70M"]);
    assert!(said.contains("min-rate=70M"), "{said}");
    let said = refused(&lasthop, &["port", "set", "a", "--min-rate", "170M"]);
    assert!(said.contains("170M at least") && said.contains("net takes 100M"), "{said}");
}

/// Which port is meant, and where there is none.
#[test]
fn a_port_of_a_device_is_found_by_its_name() {
    let dir = scratch();
    let port = |name: &str, device: &str| {
        format!("{name}={},device={device}", dir.path().join(format!("{name}.{device}")).display())
    };
    let ports = [port("a", "nic0"), port("b", "nic0"), port("b", "nic1")];
    let hosts = format!("b0={}", dir.path().join("b0").display());
    let arguments = ["--device", "nic0,cable=off", "--device", "nic1", "--port", &ports[0], "--port", &ports[1]];
    let lasthop = Lasthop::start_with(&[], &[&arguments[..], &["--port", &ports[2], "--port", &hosts]].concat());
    let below = |device: &str| format!("--run-dir {}", lasthop.run_dir().join("devices").join(device).display());
    let said = lasthop.command(&["port", "set", "b0", "--weight", "7"]);
    assert_eq!(said, "port b0: weight=7\n");
    assert_eq!(lasthop.command(&["port", "set", "nic1", "--weight", "7"]), "port nic1: weight=7\n", "its cable's end");
    assert_eq!(lasthop.command(&["port", "set", "a", "--weight", "3"]), "port a of device nic0: weight=3\n");
    assert!(lasthop.command(&["show", "a"]).contains("weight=3"));
    let said = refused(&lasthop, &["port", "set", "b", "--weight", "3"]);
    assert!(said.contains("devices nic0 and nic1 each have a port b") && said.contains(&below("nic0")), "{said}");
    let said = refused(&lasthop, &["port", "set", "c", "--weight", "3"]);
    assert!(said.contains("there is no port c;"), "{said}");
    for words in [&["port", "del", "a"][..], &["attach", "a"]] {
        let said = refused(&lasthop, words);
        assert!(said.contains(&format!("device nic0 has one: add `{}`", below("nic0"))), "{said}");
    }
    // While a device is away, its ports are nowhere.
    lasthop.kill("lasthop-device");
    wait_for("it to be told all the same", PATIENCE, || {
        lasthop.try_command(&["port", "set", "a", "--weight", "4"]).status.success()
    });
}
