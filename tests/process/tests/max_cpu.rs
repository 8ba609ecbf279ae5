//! A bound of the processor time that is spent for a guest (`--max-cpu`): kept beside a neighbour that floods as well, over deaths of processes, and told where it
//! cannot be.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, becomes, mac, numbered, release, scratch, wait_for,
};
use lasthop_text::MacAddr;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// `a` and `b` flood `sink`, each with frames of so many bytes.
struct Site {
    lasthop: Lasthop,
    dir: tempfile::TempDir,
}

const LEN: usize = 600;

impl Site {
    fn new(arguments: &[&str]) -> Self {
        let dir = scratch();
        let lasthop = Lasthop::start_with(&["a", "b", "sink"].map(|name| Port::listen(name, dir.path())), arguments);
        Self { lasthop, dir }
    }

    fn guests(&self) -> [Guest; 3] {
        let mut n = 0;
        let guests = ["a", "b", "sink"].map(|name| {
            n += 1;
            let options = Options::net(|net| net.size = if name == "sink" { 4096 } else { 1024 });
            Guest::connect(&self.dir.path().join(format!("{name}.sock")), mac(n), options)
        });
        ["a", "b", "sink"].iter().for_each(|name| self.lasthop.wait_for_state(name, "up"));
        guests
    }

    /// While they flood.
    fn flooded<T>(&self, guests: [Guest; 3], watch: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| flood(guests, &stop));
            watch()
        })
    }

    fn port(&self, name: &str) -> Value {
        self.lasthop.port(name)
    }

    fn bound(&self, port: &str) -> Value {
        self.port(port)["cpu_bound"].take()
    }

    fn spent_ns(&self, port: &str) -> [u64; 2] {
        let port = self.port(port);
        [&port["from_guest"]["busy_ns"], &port["cpu_ns"]].map(|ns| ns.as_u64().unwrap_or(0))
    }

    /// What was spent of a processor for a port within some seconds, in hundredths: what whoever moved its packets has counted, and what the kernel
    /// says of its thread.
    fn percents(&self, port: &str, seconds: u64) -> [f64; 2] {
        let (before, since) = (self.spent_ns(port), Instant::now());
        std::thread::sleep(Duration::from_secs(seconds));
        let (now, ns) = (self.spent_ns(port), since.elapsed().as_nanos() as f64);
        [0, 1].map(|n| (now[n] - before[n]) as f64 * 100.0 / ns)
    }

    /// Waits until what was spent in some seconds is the bound.
    fn keeps(&self, port: &str, percent: f64, when: &str) {
        let end = Instant::now() + 3 * PATIENCE;
        loop {
            let spent = self.percents(port, 4);
            // There are no helpers, so it is its thread that takes all of it.
            let most = spent[1];
            println!("{when}: {spent:?} %, {}", self.bound(port));
            if (percent * 0.75..=percent * 1.25).contains(&most) {
                return;
            }
            assert!(Instant::now() < end, "{when}: {spent:?} %, not {percent}: {}", self.lasthop.log());
        }
    }

    /// Packets a second of a port.
    fn rate(&self, port: &str) -> f64 {
        let packets = || self.port(port)["from_guest"]["packets"].as_u64().expect("a number");
        let (before, since) = (packets(), Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        (packets() - before) as f64 / since.elapsed().as_secs_f64()
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends as fast as the rings take frames, and takes what comes.
fn flood([mut a, mut b, mut sink]: [Guest; 3], stop: &AtomicBool) {
    let frames = [&a, &b].map(|guest| numbered(guest.mac, sink.mac, 0, LEN));
    sink.send(&numbered(sink.mac, a.mac, 1, 60));
    while !stop.load(Ordering::Relaxed) {
        for (guest, frame) in [&mut a, &mut b].into_iter().zip(&frames) {
            for _ in 0..256 {
                if !guest.try_send(VnetHdr::default(), frame) {
                    break;
                }
            }
        }
        while sink.try_recv().is_some() {}
    }
}

/// How much of a processor is a quarter of what the port takes without a bound, in whole hundredths.
fn a_quarter(site: &Site) -> f64 {
    let unbounded = site.percents("a", 4);
    println!("without a bound: {unbounded:?} %");
    (unbounded[1] / 4.0).ceil()
}

#[test]
fn a_guest_takes_no_more_than_its_bound_and_its_neighbour_gets_the_rest() {
    let site = Site::new(&["--helpers", "none"]);
    site.flooded(site.guests(), || {
        let most = a_quarter(&site);
        assert!(site.bound("a").is_null());
        let before = site.rate("b");
        let said = site.lasthop.command(&["port", "set", "a", "--max-cpu", &most.to_string()]);
        assert_eq!(said, format!("port a: max-cpu={most}\n"));
        site.keeps("a", most, "with a bound");
        let (bound, after) = (site.bound("a"), site.rate("b"));
        println!("{before} packets a second of its neighbour before, {after} after; {bound}");
        assert!(after > before, "its neighbour sends {after} packets a second, and did {before}");
        assert!(bound["packets_per_second"].as_u64() > Some(1000) && bound["missed_ms"].is_null(), "{bound}");
        assert_eq!(bound["most_ns"].as_f64(), Some(most * 1e7), "{bound}");
        let list = site.lasthop.command(&["port", "list"]);
        assert!(list.contains("by max-cpu: its guest sends more than that"), "{list}");
        let shown = site.lasthop.command(&["show", "a"]);
        assert!(shown.contains("short packets a second"), "{shown}");
        let output = site.lasthop.try_command(&["doctor", "a"]);
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(found.contains("(max-cpu)") && found.contains("port set a --max-cpu none"), "{found}");
        let metrics = site.lasthop.command(&["metrics"]);
        assert!(metrics.contains("lasthop_port_max_cpu_packets_per_second{port=\"a\"}"), "{metrics}");
        assert!(!metrics.contains("lasthop_port_max_cpu_processors{port=\"b\"}"), "{metrics}");

        site.lasthop.command(&["port", "set", "a", "--max-cpu", "none"]);
        assert!(site.bound("a").is_null());
        let held = || site.port("a")["from_guest"]["held"].as_u64();
        let before = held();
        wait_for("it to take more again", PATIENCE, || site.percents("a", 1)[1] > 1.5 * most);
        assert_eq!(held(), before, "it is held to nothing");
    });
    site.lasthop.check_sums();
}

/// Sends as fast as the rings take frames, the first guest to the third and the second to the fourth.
fn flood_pairs([mut a, mut b, mut sink, mut other]: [Guest; 4], stop: &AtomicBool) {
    let frames = [numbered(a.mac, sink.mac, 0, LEN), numbered(b.mac, other.mac, 0, LEN)];
    sink.send(&numbered(sink.mac, a.mac, 1, 60));
    other.send(&numbered(other.mac, b.mac, 1, 60));
    while !stop.load(Ordering::Relaxed) {
        for (guest, frame) in [&mut a, &mut b].into_iter().zip(&frames) {
            for _ in 0..256 {
                if !guest.try_send(VnetHdr::default(), frame) {
                    break;
                }
            }
        }
        [&mut sink, &mut other].into_iter().for_each(|guest| while guest.try_recv().is_some() {});
    }
}

/// A quota of a receiver: nobody is slower for it but who sends to it.
#[test]
fn copies_to_a_guest_take_no_more_than_its_bound_and_what_goes_to_others_is_not_less() {
    const NAMES: [&str; 4] = ["a", "b", "sink", "other"];
    let dir = scratch();
    let lasthop = Lasthop::start_with(&NAMES.map(|name| Port::listen(name, dir.path())), &["--helpers", "none"]);
    let mut n = 0;
    let guests = NAMES.map(|name| {
        n += 1;
        let options = Options::net(|net| net.size = if n > 2 { 4096 } else { 1024 });
        Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), options)
    });
    NAMES.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    let number = |port: &str, of: [&str; 2]| {
        let port = lasthop.port(port);
        let value = if of[0].is_empty() { &port[of[1]] } else { &port[of[0]][of[1]] };
        value.as_u64().expect("a number")
    };
    // A second, of 4 s.
    let rate = |port: &str, of: [&str; 2]| {
        let (before, since) = (number(port, of), Instant::now());
        std::thread::sleep(Duration::from_secs(4));
        (number(port, of) - before) as f64 / since.elapsed().as_secs_f64()
    };
    let percent = || rate("sink", ["", "copied_ns"]) / 1e7;
    let others = || rate("other", ["to_guest", "packets"]);
    let bound = || lasthop.port("sink")["copy_bound"].take();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| flood_pairs(guests, &stop));
        let (unbounded, before, all) = (percent(), others(), rate("sink", ["to_guest", "packets"]));
        let most = (unbounded / 4.0).ceil();
        println!("without a bound: {unbounded} %, {all} packets a second, {before} to the other");
        let said = lasthop.command(&["port", "set", "sink", "--max-cpu-to", &most.to_string()]);
        assert_eq!(said, format!("port sink: max-cpu-to={most}\n"));
        let end = Instant::now() + 3 * PATIENCE;
        loop {
            let (spent, after) = (percent(), others());
            println!("with a bound: {spent} % of {most}, {after} packets a second to the other; {}", bound());
            if (most * 0.75..=most * 1.25).contains(&spent) && after > 0.9 * before {
                break;
            }
            assert!(Instant::now() < end, "{spent} %, not {most}, and {after} of {before}: {}", lasthop.log());
        }
        let told = bound();
        assert!(told["packets_per_second"].as_u64() > Some(1000) && told["missed_ms"].is_null(), "{told}");
        assert_eq!(told["most_ns"].as_f64(), Some(most * 1e7), "{told}");
        assert!(lasthop.port("sink")["cpu_bound"].is_null() && lasthop.port("a")["copy_bound"].is_null());
        assert_eq!(number("a", ["from_guest", "held"]), 0, "its ring is read: it may have packets for others");
        let shown = lasthop.command(&["show", "sink"]);
        let line = format!("of {most} that it may take (max-cpu-to): it is held to ");
        assert!(shown.contains(&line) && shown.contains("short packets a second"), "{shown}");
        let metrics = lasthop.command(&["metrics"]);
        assert!(metrics.contains("lasthop_port_max_cpu_to_packets_per_second{port=\"sink\"}"), "{metrics}");
        assert!(!metrics.contains("lasthop_port_max_cpu_processors"), "{metrics}");

        lasthop.command(&["port", "set", "sink", "--max-cpu-to", "0"]);
        assert!(bound().is_null() && lasthop.port("sink")["settings"] == serde_json::json!([]));
        wait_for("more to be copied again", PATIENCE, || percent() > 1.5 * most);
    });
    lasthop.check_sums();
}

/// The switch's counters begin anew, control's clock does, and `lasthop run` is another program.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_bound_outlives_the_processes_that_keep_it() {
    let site = Site::new(&["--helpers", "none"]);
    let most = site.flooded(site.guests(), || {
        let most = a_quarter(&site);
        site.lasthop.command(&["port", "set", "a", "--max-cpu", &most.to_string()]);
        site.keeps("a", most, "at first");
        site.lasthop.kill("lasthop-control");
        wait_for("the new control to know", PATIENCE, || {
            let output = site.lasthop.try_command(&["port", "list", "--json"]);
            serde_json::from_slice(&output.stdout).is_ok_and(|list: Value| {
                list["ports"].as_array().into_iter().flatten().any(|p| p["cpu_bound"]["packets_per_second"].is_u64())
            })
        });
        site.keeps("a", most, "with another control");
        becomes(&site.lasthop, &release(site.dir.path(), "one"));
        site.keeps("a", most, "with another program of lasthop run");
        most
    });
    site.lasthop.kill("lasthop-switch");
    wait_for("the new switch to be there", PATIENCE, || site.port("a")["state"] == "waiting");
    let guests = site.guests();
    site.flooded(guests, || {
        assert!(site.bound("a")["packets_per_second"].is_u64(), "it is held from its first packet on");
        site.keeps("a", most, "with another switch");
    });
    // It goes with its port.
    site.lasthop.command(&["port", "set", "a", "--max-cpu", "0"]);
    assert_eq!(site.port("a")["settings"], serde_json::json!([]));
}

/// One that floods 64 others: each of its packets costs more than a hundredth of a processor has room for at the least rate that there is.
#[test]
fn a_bound_that_cannot_be_kept_is_told_and_so_is_that_it_is_kept_again() {
    const OTHERS: u8 = 64;
    let dir = scratch();
    let names: Vec<_> = (0..=OTHERS).map(|n| format!("p{n}")).collect();
    let ports: Vec<_> = names.iter().map(|name| Port::listen(name, dir.path())).collect();
    let lasthop = Lasthop::start_with(&ports, &["--helpers", "none"]);
    let guest = |n: u8| Guest::connect(&ports[usize::from(n)].socket, mac(n + 1), Options::default());
    let mut guests: Vec<_> = (0..=OTHERS).map(guest).collect();
    names.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    lasthop.command(&["port", "set", "p0", "--max-cpu", "1"]);
    let bound = || lasthop.port("p0")["cpu_bound"].take();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let (sender, others) = guests.split_first_mut().expect("some");
            let frame = numbered(sender.mac, MacAddr::BROADCAST, 0, 60);
            while !stop.load(Ordering::Relaxed) {
                while sender.try_send(VnetHdr::default(), &frame) {}
                others.iter_mut().for_each(|other| while other.try_recv().is_some() {});
            }
        });
        wait_for("it to be told", 2 * PATIENCE, || {
            println!("{}", bound());
            std::thread::sleep(Duration::from_secs(1));
            !bound()["missed_ms"].is_null()
        });
        assert_eq!((bound()["packets_per_second"].as_u64(), bound()["missed"].as_u64()), (Some(1000), Some(1)));
        assert_eq!(lasthop.log().matches("are to take 1 (max-cpu)").count(), 1, "{}", lasthop.log());
        let output = lasthop.try_command(&["doctor", "p0"]);
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(found.contains("(max-cpu-missed)") && found.contains("held to 1000 short packets"), "{found}");
        assert!(lasthop.port("p0")["note"].as_str().is_some_and(|note| note.contains("lasthop doctor")));
        let metrics = lasthop.command(&["metrics"]);
        assert!(metrics.contains("lasthop_port_max_cpu_misses_total{port=\"p0\"} 1\n"), "{metrics}");
        // With more room it is kept.
        lasthop.command(&["port", "set", "p0", "--max-cpu", "50"]);
        wait_for("it to be kept", 2 * PATIENCE, || bound()["missed_ms"].is_null());
        wait_for("the log to say so", PATIENCE, || lasthop.log().contains("no more than 50 % of a processor again"));
        assert!(!lasthop.log().contains("are to take 50"), "{}", lasthop.log());
    });
    // What a port had goes with it.
    lasthop.command(&["port", "del", "p0"]);
    assert!(!lasthop.command(&["metrics"]).contains("max_cpu"));
}

/// The file says it like any other setting, and another name of the port changes nothing.
#[test]
fn the_file_sets_a_bound_and_takes_it_away() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("other", dir.path())]);
    let file = dir.path().join("lasthop.toml");
    let apply = |more: &str| {
        let socket = dir.path().join("a.sock");
        std::fs::write(&file, format!("[port.a]\nsocket = \"{}\"\n{more}\n", socket.display())).unwrap();
        lasthop.command(&["apply", file.to_str().unwrap()])
    };
    apply("max-cpu = 20");
    let settings = |port: &str| lasthop.port(port)["settings"].take();
    let told = serde_json::json!([{ "name": "max-cpu", "value": "20" }]);
    assert_eq!(settings("a"), told);
    wait_for("the first look", PATIENCE, || lasthop.port("a")["cpu_bound"]["most_ns"] == 200_000_000);
    lasthop.command(&["port", "rename", "a", "z"]);
    assert_eq!(settings("z"), told);
    assert_eq!(lasthop.port("z")["cpu_bound"]["most_ns"], 200_000_000);
    lasthop.command(&["port", "rename", "z", "a"]);
    apply("");
    assert_eq!(settings("a"), serde_json::json!([]));
    assert!(lasthop.port("a")["cpu_bound"].is_null());
    let output = lasthop.try_command(&["port", "set", "a", "--max-cpu", "7000"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("hundredths of one processor from 1 to 6400"), "{error}");
}
