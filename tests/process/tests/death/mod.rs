//! Death and return of uplinks: killed or stopped again and again under load, with a spare and without.
//!
//! Every frame on its way is accounted for: both switches and the other uplink live, a process of an uplink counts in memory
//! that outlives it, and what it had in its hands when it ended the next one counts.

mod load;

use crate::outside::Wire;
use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, proc, scratch, wait_for,
};
use load::Load;
use rustix::process::Signal;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Two lasthops on a wire, with a guest each. The left one's uplink is what dies.
struct Site {
    left: Lasthop,
    right: Lasthop,
    near: Guest,
    far: Guest,
    dirs: [tempfile::TempDir; 2],
}

impl Site {
    fn new(wire: &Wire, left: &str, arguments: &[&str]) -> Self {
        let start = |uplink: &str, arguments: &[&str]| {
            let dir = scratch();
            let arguments = [&["--uplink", uplink], arguments].concat();
            let ports = ["a", "c", "d"].map(|name| Port::listen(name, dir.path()));
            let lasthop = Lasthop::start_in(Some(wire.netns()), &ports, &arguments);
            lasthop.wait_for_state("net", "up");
            (lasthop, dir)
        };
        let ((left, left_dir), (right, right_dir)) = (start(left, arguments), start(&wire.right, &[]));
        wire.join();
        let guest = |dir: &tempfile::TempDir, n| Guest::connect(&dir.path().join("a.sock"), mac(n), Options::default());
        let (mut near, mut far) = (guest(&left_dir, 1), guest(&right_dir, 2));
        near.greet(&mut far, 1);
        Self { left, right, near, far, dirs: [left_dir, right_dir] }
    }

    fn socket(&self, port: &str) -> PathBuf {
        self.dirs[0].path().join(format!("{port}.sock"))
    }
}

fn uplink(lasthop: &Lasthop) -> Value {
    lasthop.json(&["uplink", "list"])["uplinks"][0].clone()
}

/// The process that carries, once it does, and once its spare stands by if it has one.
fn pid(lasthop: &Lasthop) -> u32 {
    let mut pid = 0;
    wait_for("the uplink to run", PATIENCE, || {
        let uplink = uplink(lasthop);
        pid = uplink["pid"].as_u64().unwrap_or(0) as u32;
        pid != 0 && uplink["state"] == "up" && uplink["spare"] != "starting"
    });
    pid
}

fn kills(usual: u32) -> u32 {
    std::env::var("LASTHOP_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// What was counted on the way between the guests.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    /// Given to the right uplink by its switch, sent by it, received by it, given to its switch.
    right: [u64; 4],
    /// The same of the left one.
    left: [u64; 4],
    /// Dropped by the left switch and by the right one, from their guest or for their uplink, under whatever name.
    dropped: [u64; 2],
    /// Dropped by the switches because the guests had no buffers: near, far.
    late: [u64; 2],
    /// Lost with processes of the left uplink, on the way to the network and from it.
    lost: [u64; 2],
    /// What the left uplink dropped for other reasons, or the kernel before it; the same of the right one.
    kernel: [u64; 2],
}

impl Counted {
    fn now(site: &Site, wire: &Wire) -> Self {
        let of = |lasthop: &Lasthop| {
            lasthop.check_sums();
            let (port, uplink) = (lasthop.port("net"), uplink(lasthop));
            let packets = |v: &Value| v["packets"].as_u64().unwrap();
            [&port["to_guest"], &uplink["to_network"], &uplink["from_network"], &port["from_guest"]].map(packets)
        };
        let drops =
            |v: &Value| v["drops"].as_array().unwrap().iter().map(|d| d["packets"].as_u64().unwrap()).sum::<u64>();
        let ports = [&site.left, &site.right].map(|lasthop| (lasthop.port("net"), lasthop.port("a")));
        let dropped = ports.each_ref().map(|(net, guest)| drops(&net["to_guest"]) + drops(&guest["from_guest"]));
        let late = ports.each_ref().map(|(_, guest)| drops(&guest["to_guest"]));
        // What finds no room in a TAP device's queue the device counts, and for the others the uplink.
        let device = |spec: &str, file: &str| -> u64 {
            let name = spec.trim_start_matches("net=").split(',').next().unwrap();
            let file = format!("cat /sys/class/net/{name}/statistics/{file}_dropped");
            if spec.contains("tap") { wire.netns().shell(&file).trim().parse().unwrap() } else { 0 }
        };
        let devices = [(&wire.left, &wire.right), (&wire.right, &wire.left)]
            .map(|(to, from)| device(to, "tx") + device(from, "rx"));
        let uplink = uplink(&site.left);
        let lost = ["lost_to_network", "lost_from_network"].map(|reason| {
            let rows = uplink["drops"].as_array().unwrap().iter().filter(|d| d["reason"] == reason);
            rows.map(|d| d["packets"].as_u64().unwrap()).sum()
        });
        let kernel =
            [devices[0] + drops(&uplink) - lost.iter().sum::<u64>(), devices[1] + drops(&self::uplink(&site.right))];
        Self { right: of(&site.right), left: of(&site.left), dropped, late, lost, kernel }
    }

    fn since(self, before: Self) -> Self {
        let less = |now: [u64; 4], before: [u64; 4]| std::array::from_fn(|i| now[i] - before[i]);
        let (right, left) = (less(self.right, before.right), less(self.left, before.left));
        Self {
            right,
            left,
            dropped: [0, 1].map(|i| self.dropped[i] - before.dropped[i]),
            late: [0, 1].map(|i| self.late[i] - before.late[i]),
            lost: [0, 1].map(|i| self.lost[i] - before.lost[i]),
            kernel: [0, 1].map(|i| self.kernel[i] - before.kernel[i]),
        }
    }
}

/// kill -9 under load, again and again: guests among themselves lose nothing, the sequences of frames between near and far
/// go on without doubles, and in order where there is one queue for all, what is missing of them is accounted for, and nothing is left behind.
fn killed_under_load(wire: &Wire, how: &str) {
    let kills = kills(6);
    let mut site = Site::new(wire, &format!("{}{how}", wire.left), &[]);
    let bystanders = Bystanders::start(&site.socket("c"), &site.socket("d"), [mac(0xc), mac(0xd)]);
    bystanders.still_exchange();
    let held = |site: &Site| {
        let (run, switch) = (site.left.pid(), site.left.switch());
        let processes = site.left.pids().len();
        [proc::descriptors(run), proc::descriptors(switch), proc::threads(run), proc::threads(switch), processes]
    };
    let memory = |site: &Site| [site.left.pid(), site.left.switch()].map(proc::private_kib);
    pid(&site.left);
    let (before, counted) = (held(&site), Counted::now(&site, wire));
    let mut load = Load::new(!wire.left.contains("queues=2"));
    let mut kib = [0; 2];
    for kill in 0..kills {
        let old = pid(&site.left);
        // A life long enough that the next begins at once.
        load.run(&mut site.near, &mut site.far, 1000);
        proc::signal(old, Signal::KILL);
        load.until_back(&mut site.near, &mut site.far, &site.left);
        bystanders.still_exchange();
        if kill == kills / 4 {
            kib = memory(&site);
        }
    }
    let uplink = uplink(&site.left);
    assert_eq!(uplink["restarts"], kills, "{uplink}");
    assert!(uplink["last_error"].as_str().is_some_and(|e| e.contains("SIGKILL")), "{uplink}");
    load.settle(&mut site.near, &mut site.far);
    let way = Counted::now(&site, wire).since(counted);
    let Load { sent, received, .. } = load;
    let what = format!("{} deaths, {sent:?} sent, {received:?} received, {way:?}", kills);
    println!("{}{how}: {what}", wire.left);

    // From the far guest to the near one.
    let [given, out, _, _] = way.right;
    assert_eq!(sent[1], given + way.dropped[1], "{what}");
    assert_eq!(given, out, "the right uplink, which lives, sends all: {what}");
    let [_, _, came, taken] = way.left;
    assert_eq!(out, came + way.kernel[0], "what came over the wire was counted: {what}");
    assert_eq!(came, taken + way.lost[1], "the switch has got it, or it was lost: {what}");
    assert_eq!(taken, received[0] + way.late[0], "what the switch took the guest has got: {what}");
    // From the near guest to the far one. What the uplink was not given the switch has dropped under a name.
    let [given, out, _, _] = way.left;
    assert_eq!(sent[0], given + way.dropped[0], "{what}");
    // One that is killed between counting a frame and noting that it is counted has its heir count it once more (`survival/progress.rs`): seen
    // once in some hundred deaths of a TAP uplink, which sends its frames singly.
    let twice = (out + way.lost[0]).checked_sub(given);
    assert!(twice.is_some_and(|n| n <= 1), "what the uplink was given it has sent, or it was lost: {what}");
    let [_, _, came, taken] = way.right;
    assert_eq!(
        (came, taken),
        (taken, received[1] + way.late[1]),
        "what the right uplink received the guest has got: {what}"
    );
    assert_eq!(out, came + way.kernel[1], "what was sent came over the wire: {what}");

    wait_for("descriptors, threads and processes to be as before", PATIENCE, || {
        pid(&site.left);
        held(&site).iter().zip(before).all(|(now, before)| *now <= before)
    });
    let grown = memory(&site).iter().zip(kib).map(|(now, then)| now.saturating_sub(then)).max();
    assert!(grown < Some(2048), "{grown:?} KiB more after {kills} deaths than after a quarter of them");
}

#[test]
fn tap_killed_under_load() {
    killed_under_load(&Wire::taps(1), ",spare");
}

#[test]
fn tap_with_two_queues_killed_under_load_without_a_spare() {
    killed_under_load(&Wire::taps(2), "");
}

#[test]
fn af_packet_killed_under_load() {
    killed_under_load(&Wire::veth(1), ",spare");
}

#[test]
fn af_packet_with_two_queues_killed_under_load_without_a_spare() {
    killed_under_load(&Wire::veth(2), "");
}

#[test]
fn af_xdp_killed_under_load() {
    killed_under_load(&Wire::xdp(), ",spare");
}

#[test]
fn af_xdp_killed_under_load_without_a_spare() {
    killed_under_load(&Wire::xdp(), "");
}

/// The processes of the uplink that live. One that has ended is a child until it is waited for: not counted.
fn uplinks(lasthop: &Lasthop) -> Vec<u32> {
    let children = proc::children(lasthop.pid()).into_iter();
    let named = children.filter(|(_, name)| name == "lasthop-uplink").map(|(pid, _)| pid);
    named.filter(|pid| proc::alive(*pid)).collect()
}

/// The uplink's spare, which is ready and none of `others`.
fn spare(lasthop: &Lasthop, others: &[u32]) -> u32 {
    let mut spare = None;
    wait_for("a spare", PATIENCE, || {
        spare = uplinks(lasthop).into_iter().find(|pid| !others.contains(pid));
        spare.is_some() && uplink(lasthop)["spare"] == "ready"
    });
    spare.unwrap()
}

/// Stopped, not dead: its spare takes its place. Spares that are stopped or die are replaced too, and nobody notices.
#[test]
fn a_spare_replaces_what_hangs_and_is_replaced() {
    let wires: [fn() -> Wire; 3] = [|| Wire::taps(1), || Wire::veth(1), Wire::xdp];
    for wire in wires {
        let wire = wire();
        let mut site = Site::new(&wire, &format!("{},spare", wire.left), &[]);
        let carries = pid(&site.left);
        let first = spare(&site.left, &[carries]);
        proc::signal(first, Signal::KILL);
        let second = spare(&site.left, &[carries, first]);
        assert_eq!(pid(&site.left), carries);
        proc::signal(second, Signal::STOP);
        let third = spare(&site.left, &[carries, first, second]);
        assert_eq!((pid(&site.left), uplink(&site.left)["restarts"].as_u64()), (carries, Some(0)));
        site.near.greet(&mut site.far, 2);
        proc::signal(carries, Signal::STOP);
        wait_for("the hung one to be replaced", PATIENCE, || !proc::alive(carries));
        site.near.greet_when_back(&mut site.far, 3);
        let uplink = uplink(&site.left);
        assert_eq!((uplink["pid"].as_u64(), uplink["restarts"].as_u64()), (Some(third.into()), Some(1)), "{uplink}");
        assert!(uplink["last_error"].as_str().is_some_and(|e| e.contains("not answered for 2000 ms")), "{uplink}");
        // Who breaks by itself leaves nothing to others: the device is opened anew.
        proc::signal(third, Signal::ABORT);
        wait_for("the broken one to be gone", PATIENCE, || !proc::alive(third));
        let fourth = pid(&site.left);
        assert!(![carries, first, second, third].contains(&fourth));
        site.near.greet_when_back(&mut site.far, 4);
        site.left.command(&["uplink", "del", "net"]);
        assert!(uplinks(&site.left).is_empty());
        if wire.left.contains("tap") {
            assert!(!wire.netns().output("ip link show t0").status.success(), "the device is left behind");
        }
    }
}

/// Not a test but a measurement, which takes some minutes: `cargo test -p lasthop-tests-process --test uplink -- --ignored
/// --nocapture time_to_return`. LASTHOP_KILLS says how often (100), LASTHOP_DRIVER of which driver only.
#[test]
#[ignore = "a measurement"]
fn time_to_return() {
    let kills = kills(100);
    let only = std::env::var("LASTHOP_DRIVER").unwrap_or_default();
    let limit = Duration::from_millis(100);
    type Make = fn() -> Wire;
    let drivers: [(&str, Make); 3] =
        [("tap", || Wire::taps(1)), ("af_packet", || Wire::veth(1)), ("af_xdp", Wire::xdp)];
    for (driver, wire) in drivers.into_iter().filter(|(driver, _)| only.is_empty() || *driver == only) {
        for spare in ["", ",spare"] {
            for signal in [Signal::KILL, Signal::STOP] {
                let wire = wire();
                let arguments = ["--uplink-limit-ms", &limit.as_millis().to_string()];
                let mut site = Site::new(&wire, &format!("{}{spare}", wire.left), &arguments);
                let mut load = Load::new(true);
                let mut times = Vec::new();
                for _ in 0..kills {
                    // Long enough to count as a good life.
                    std::thread::sleep(Duration::from_millis(250));
                    let old = pid(&site.left);
                    load.run(&mut site.near, &mut site.far, 5);
                    let died = Instant::now();
                    proc::signal(old, signal);
                    // The last frames that the old one has in its hands are not those of the next.
                    std::thread::sleep(Duration::from_micros(100));
                    load.until_back(&mut site.near, &mut site.far, &site.left);
                    let time = died.elapsed();
                    times.push(if signal == Signal::STOP { time.saturating_sub(limit) } else { time });
                }
                times.sort();
                let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e3;
                let how = if spare.is_empty() { "cold" } else { "spare" };
                let what = if signal == Signal::STOP { "stopped (beyond the limit)" } else { "killed" };
                println!("{driver:9} {how:5} {what:26} p50 {:6.1} ms  p99 {:6.1} ms", at(50), at(99));
            }
        }
    }
}
