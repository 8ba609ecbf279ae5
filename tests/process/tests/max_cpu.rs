//! Bounds of the processor time that is spent for a guest: for what it sends (`--max-cpu`), and to copy packets to it (`--max-cpu-to`). Kept beside neighbours that
//! flood as well, over deaths of processes, and told where they cannot be.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
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
/// How long a busy host may leave guests too little to show anything.
const WHEN_BUSY: Duration = Duration::from_secs(240);

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

    /// What came about within some seconds, until there is enough for a comparison.
    fn pace(&self) -> Pace {
        let packets = || ["a", "b"].map(|name| self.port(name)["from_guest"]["packets"].as_u64().expect("a number"));
        let ([before, count], since) = ([self.spent_ns("a"), packets()], Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(4));
            let (spent, sent, ns) = (self.spent_ns("a"), packets(), since.elapsed().as_nanos() as f64);
            let [a, b] = [0, 1].map(|n| (sent[n] - count[n]) as f64);
            if b >= 10_000.0 {
                return Pace { percents: [0, 1].map(|n| (spent[n] - before[n]) as f64 * 100.0 / ns), share: a / b };
            }
            assert!(since.elapsed() < PATIENCE, "hardly anything is sent: {a} and {b} packets");
        }
    }

    /// Waits until what was spent, as its thread (1) or whoever moved its packets (0) has it, is the bound, and until `a` sends less beside its neighbour, which
    /// has as much of a busy host, than it did `before`.
    fn keeps_of(&self, spent: usize, percent: f64, before: &Pace, when: &str) {
        let end = Instant::now() + WHEN_BUSY;
        loop {
            let (now, bound) = (self.pace(), self.bound("a"));
            println!("{when}: {now:?}, {bound}");
            let is_kept = now.percents[spent] <= percent * 1.25 && bound["missed_ms"].is_null();
            if is_kept && now.share < 0.6 * before.share && bound["packets_per_second"].as_u64() > Some(1000) {
                return;
            }
            assert!(Instant::now() < end, "{when}: {now:?}, not {percent} %, {bound}: {}", self.lasthop.log());
        }
    }

    /// The same where there are no helpers, so it is its thread that takes all of it.
    fn keeps(&self, percent: f64, before: &Pace, when: &str) {
        self.keeps_of(1, percent, before, when);
    }
}

#[derive(Debug)]
struct Pace {
    /// What was spent of a processor for `a`, in hundredths: what whoever moved its packets has counted, and what the kernel says of its thread.
    percents: [f64; 2],
    /// How many packets it sent for each of `b`'s.
    share: f64,
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

/// What was seen once it was so.
fn when<T>(what: &str, mut look: impl FnMut() -> T, mut is_so: impl FnMut(&T) -> bool) -> T {
    let mut last = None;
    wait_for(what, WHEN_BUSY, || is_so(last.insert(look())));
    last.expect("it was looked at")
}

/// How much of a processor is a quarter of what `a` takes without a bound, in whole hundredths; and what it sends then. Waits until it gets so much that
/// there is something to bound.
fn a_quarter_of(site: &Site, spent: usize) -> (f64, Pace) {
    let unbounded =
        when("a guest that takes something of a processor", || site.pace(), |pace| pace.percents[spent] > 3.0);
    println!("without a bound: {unbounded:?}");
    ((unbounded.percents[spent] / 4.0).ceil(), unbounded)
}

/// The same of what its thread takes.
fn a_quarter(site: &Site) -> (f64, Pace) {
    a_quarter_of(site, 1)
}

#[test]
fn a_guest_takes_no_more_than_its_bound() {
    let site = Site::new(&["--helpers", "none"]);
    site.flooded(site.guests(), || {
        let (most, before) = a_quarter(&site);
        assert!(site.bound("a").is_null());
        let said = site.lasthop.command(&["port", "set", "a", "--max-cpu", &most.to_string()]);
        assert_eq!(said, format!("port a: max-cpu={most}\n"));
        site.keeps(most, &before, "with a bound");
        assert_eq!(site.bound("a")["most_ns"].as_f64(), Some(most * 1e7));
        let list = site.lasthop.command(&["port", "list"]);
        assert!(list.contains("by max-cpu: its guest sends more than that"), "{list}");
        let shown = || site.lasthop.command(&["show", "a"]).contains("short packets a second");
        wait_for("it to be shown", WHEN_BUSY, shown);
        wait_for_finding(&site.lasthop, "a", "(max-cpu)", "port set a --max-cpu none");
        let held = "lasthop_port_max_cpu_packets_per_second{port=\"a\"}";
        wait_for(held, WHEN_BUSY, || site.lasthop.command(&["metrics"]).contains(held));
        assert!(!site.lasthop.command(&["metrics"]).contains("lasthop_port_max_cpu_processors{port=\"b\"}"));

        site.lasthop.command(&["port", "set", "a", "--max-cpu", "none"]);
        assert!(site.bound("a").is_null());
        let held = || site.port("a")["from_guest"]["held"].as_u64();
        let held_before = held();
        wait_for("it to send as much again", WHEN_BUSY, || site.pace().share > 0.75 * before.share);
        assert_eq!(held(), held_before, "it is held to nothing");
    });
    site.lasthop.check_sums();
}

/// A core that polls has its packets, and its neighbour's: what it spends on each is counted.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_guest_that_is_polled_takes_no_more_than_its_bound() {
    let site = Site::new(&["--poll", "0"]);
    site.flooded(site.guests(), || {
        let (most, before) = a_quarter_of(&site, 0);
        site.lasthop.command(&["port", "set", "a", "--max-cpu", &most.to_string()]);
        site.keeps_of(0, most, &before, "with a bound");
        site.lasthop.command(&["port", "set", "a", "--max-cpu", "none"]);
        wait_for("it to send as much again", WHEN_BUSY, || site.pace().share > 0.75 * before.share);
    });
    site.lasthop.check_sums();
}

/// What it says is of the second in which it looked: the guests may not have sent then.
fn wait_for_finding(lasthop: &Lasthop, port: &str, kind: &str, command: &str) {
    wait_for(kind, WHEN_BUSY, || {
        let found = String::from_utf8_lossy(&lasthop.try_command(&["doctor", port]).stdout).into_owned();
        found.contains(kind) && found.contains(command)
    });
}

/// Who gets what: `a` sends to `sink` and `other` in turns, and `b` to `third`.
const RECEIVERS: [&str; 3] = ["sink", "other", "third"];

/// Sends as fast as the rings take frames, and takes what comes.
fn flood_receivers([mut a, mut b, mut sink, mut other, mut third]: [Guest; 5], stop: &AtomicBool) {
    let frame = |from: &Guest, to: &Guest| numbered(from.mac, to.mac, 0, LEN);
    let (in_turns, to_third) = ([frame(&a, &sink), frame(&a, &other)], frame(&b, &third));
    for receiver in [&mut sink, &mut other, &mut third] {
        receiver.send(&numbered(receiver.mac, a.mac, 1, 60));
    }
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..256 {
            if !a.try_send(VnetHdr::default(), &in_turns[sent % 2]) {
                break;
            }
            sent += 1;
        }
        for _ in 0..256 {
            if !b.try_send(VnetHdr::default(), &to_third) {
                break;
            }
        }
        for receiver in [&mut sink, &mut other, &mut third] {
            (0..4096).take_while(|_| receiver.try_recv().is_some()).for_each(drop);
        }
    }
}

/// What was counted, at one time.
struct Counted {
    at: Instant,
    copied_ns: u64,
    /// Of each receiver.
    packets: [u64; 3],
    /// Of the first.
    dropped: u64,
}

impl Counted {
    fn now(lasthop: &Lasthop) -> Self {
        let (at, list) = (Instant::now(), lasthop.json(&["port", "list"]));
        let port = |name: &str| {
            let ports = list["ports"].as_array().expect("ports");
            ports.iter().find(|port| port["name"] == name).expect("the port").clone()
        };
        let sink = port("sink");
        let drops = sink["to_guest"]["drops"].as_array().cloned().unwrap_or_default();
        Self {
            at,
            copied_ns: sink["copied_ns"].as_u64().expect("a number"),
            packets: RECEIVERS.map(|name| port(name)["to_guest"]["packets"].as_u64().expect("a number")),
            dropped: drops.iter().find(|of| of["reason"] == "rate").and_then(|of| of["packets"].as_u64()).unwrap_or(0),
        }
    }
}

/// What came about within some seconds, until each sender has sent enough for a comparison.
#[derive(Debug)]
struct Received {
    /// Of a processor, hundredths.
    copied: f64,
    packets: [f64; 3],
    dropped: u64,
}

impl Received {
    fn of(lasthop: &Lasthop) -> Self {
        let before = Counted::now(lasthop);
        let end = before.at + PATIENCE;
        loop {
            std::thread::sleep(Duration::from_secs(4));
            let now = Counted::now(lasthop);
            let packets = [0, 1, 2].map(|n| (now.packets[n] - before.packets[n]) as f64);
            if packets[1].min(packets[2]) >= 10_000.0 {
                let ns = (now.at - before.at).as_nanos() as f64;
                let copied = (now.copied_ns - before.copied_ns) as f64 * 100.0 / ns;
                return Self { copied, packets, dropped: now.dropped - before.dropped };
            }
            assert!(now.at < end, "hardly anything is sent: {packets:?}");
        }
    }

    /// How many packets for the first receiver, and for the second of the same sender, there were for each of another sender's, which has as much of a busy host.
    fn beside(&self) -> [f64; 2] {
        [0, 1].map(|n| self.packets[n] / self.packets[2])
    }
}

/// A quota of a receiver. What its sender has for another one goes on at its pace, which is taken beside that of a sender that has nothing for either.
#[test]
fn copies_to_a_guest_take_no_more_than_its_bound_and_others_get_three_quarters_at_least() {
    const NAMES: [&str; 5] = ["a", "b", "sink", "other", "third"];
    let dir = scratch();
    let lasthop = Lasthop::start_with(&NAMES.map(|name| Port::listen(name, dir.path())), &["--helpers", "none"]);
    let mut n = 0;
    let guests = NAMES.map(|name| {
        n += 1;
        let options = Options::net(|net| net.size = if n > 2 { 4096 } else { 1024 });
        Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), options)
    });
    NAMES.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    let bound = || lasthop.port("sink")["copy_bound"].take();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| flood_receivers(guests, &stop));
        let before = when("something to bound", || Received::of(&lasthop), |now| now.copied > 3.0);
        println!("without a bound: {before:?}, {:?}", before.beside());
        assert_eq!(before.dropped, 0);
        let (most, [_, others]) = ((before.copied / 4.0).ceil(), before.beside());
        let said = lasthop.command(&["port", "set", "sink", "--max-cpu-to", &most.to_string()]);
        assert_eq!(said, format!("port sink: max-cpu-to={most}\n"));
        when(
            "the bound to be kept",
            || Received::of(&lasthop),
            |now| {
                let [to_sink, to_other] = now.beside();
                let bound = bound();
                println!("with one of {most}: {now:?}, {:?}; {bound}", [to_sink, to_other]);
                let is_kept = now.copied <= most * 1.25 && bound["packets_per_second"].as_u64() >= Some(1000);
                is_kept && now.dropped > 0 && to_other > 0.75 * others && to_sink < 0.6 * others
            },
        );
        assert_eq!(bound()["most_ns"].as_f64(), Some(most * 1e7));
        let [a, sink, other] = ["a", "sink", "other"].map(|name| lasthop.port(name));
        assert!(sink["cpu_bound"].is_null() && a["copy_bound"].is_null());
        assert_eq!(a["from_guest"]["held"], 0, "its ring is read");
        assert!(!other["to_guest"]["drops"].to_string().contains("rate"), "{other}");
        let line = format!("of {most} that it may take (max-cpu-to): it is held to ");
        wait_for(&line, WHEN_BUSY, || {
            let shown = lasthop.command(&["show", "sink"]);
            shown.contains(&line) && shown.contains("short packets a second")
        });
        assert!(lasthop.command(&["port", "list"]).contains(&format!("sink: max-cpu-to={most}\n")));
        wait_for_finding(&lasthop, "sink", "(max-cpu-to)", "port set sink --max-cpu-to none");
        let held = "lasthop_port_max_cpu_to_packets_per_second{port=\"sink\"}";
        wait_for(held, WHEN_BUSY, || lasthop.command(&["metrics"]).contains(held));
        assert!(!lasthop.command(&["metrics"]).contains("lasthop_port_max_cpu_processors"));

        lasthop.command(&["port", "set", "sink", "--max-cpu-to", "0"]);
        assert!(bound().is_null() && lasthop.port("sink")["settings"] == serde_json::json!([]));
        wait_for("nothing to be dropped for it", 3 * PATIENCE, || Received::of(&lasthop).dropped == 0);
    });
    lasthop.check_sums();
}

/// What it gets is cut up into segments of a byte for it: at the least rate that there is that costs more than a hundredth of a processor.
#[test]
fn copies_that_take_more_at_the_least_rate_are_told_and_so_is_that_they_do_not_any_more() {
    let dir = scratch();
    let lasthop =
        Lasthop::start_with(&["a", "sink"].map(|name| Port::listen(name, dir.path())), &["--helpers", "none"]);
    let connect = |name: &str, n, options| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), options);
    let (mut a, mut sink) =
        (connect("a", 1, Options::offloading()), connect("sink", 2, Options::net(|net| net.size = 4096)));
    ["a", "sink"].iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    lasthop.command(&["port", "set", "sink", "--max-cpu-to", "1"]);
    let bound = || lasthop.port("sink")["copy_bound"].take();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let frame = Frame::between(a.mac, sink.mac).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2);
            let frame = frame.payload(vec![7; 1000]).partial_checksum();
            let (header, frame) = (frame.vnet(VnetHdr::GSO_TCPV4, 1), frame.build());
            sink.send(&numbered(sink.mac, a.mac, 1, 60));
            while !stop.load(Ordering::Relaxed) {
                a.try_send(header, &frame);
                (0..4096).take_while(|_| sink.try_recv().is_some()).for_each(drop);
            }
        });
        wait_for("it to be told", 3 * PATIENCE, || {
            println!("{}", bound());
            std::thread::sleep(Duration::from_secs(1));
            !bound()["missed_ms"].is_null()
        });
        assert_eq!((bound()["packets_per_second"].as_u64(), bound()["missed"].as_u64()), (Some(1000), Some(1)));
        assert_eq!(lasthop.log().matches("are to take 1 (max-cpu-to)").count(), 1, "{}", lasthop.log());
        wait_for_finding(&lasthop, "sink", "(max-cpu-to-missed)", "held to 1000 short packets");
        let list = lasthop.command(&["port", "list"]);
        assert!(list.contains("sink: copies to it take ") && list.contains("lasthop doctor"), "{list}");
        let shown = lasthop.command(&["show", "sink"]);
        assert!(shown.contains(" of 1 that it may take (max-cpu-to)") && shown.contains("; not kept for "), "{shown}");
        let metrics = lasthop.command(&["metrics"]);
        assert!(metrics.contains("lasthop_port_max_cpu_to_misses_total{port=\"sink\"} 1\n"), "{metrics}");
        assert!(metrics.contains("lasthop_port_max_cpu_to_not_kept{port=\"sink\"} 1.0\n"), "{metrics}");
        // With more room it is kept.
        lasthop.command(&["port", "set", "sink", "--max-cpu-to", "400"]);
        wait_for("it to be kept", 2 * PATIENCE, || bound()["missed_ms"].is_null());
        wait_for("the log to say so", PATIENCE, || {
            lasthop.log().contains("no more than 400 % of a processor again (max-cpu-to)")
        });
    });
    // What a port had goes with it.
    lasthop.command(&["port", "del", "sink"]);
    assert!(!lasthop.command(&["metrics"]).contains("max_cpu"));
}

/// The switch's counters begin anew, control's clock does, and `lasthop run` is another program.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_bound_outlives_the_processes_that_keep_it() {
    let site = Site::new(&["--helpers", "none"]);
    let (most, before) = site.flooded(site.guests(), || {
        let (most, before) = a_quarter(&site);
        site.lasthop.command(&["port", "set", "a", "--max-cpu", &most.to_string()]);
        site.keeps(most, &before, "at first");
        site.lasthop.kill("lasthop-control");
        wait_for("the new control to know", PATIENCE, || {
            let output = site.lasthop.try_command(&["port", "list", "--json"]);
            serde_json::from_slice(&output.stdout).is_ok_and(|list: Value| {
                list["ports"].as_array().into_iter().flatten().any(|p| p["cpu_bound"]["packets_per_second"].is_u64())
            })
        });
        site.keeps(most, &before, "with another control");
        becomes(&site.lasthop, &release(site.dir.path(), "one"));
        site.keeps(most, &before, "with another program of lasthop run");
        (most, before)
    });
    site.lasthop.kill("lasthop-switch");
    wait_for("the new switch to be there", PATIENCE, || site.port("a")["state"] == "waiting");
    let guests = site.guests();
    site.flooded(guests, || {
        assert!(site.bound("a")["packets_per_second"].is_u64(), "it is held from its first packet on");
        site.keeps(most, &before, "with another switch");
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
                sender.fill(&frame);
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
    apply("max-cpu = 20\nmax-cpu-to = 5");
    let settings = |port: &str| lasthop.port(port)["settings"].take();
    let told = serde_json::json!([{ "name": "max-cpu", "value": "20" }, { "name": "max-cpu-to", "value": "5" }]);
    assert_eq!(settings("a"), told);
    let most = |port: &str| ["cpu_bound", "copy_bound"].map(|bound| lasthop.port(port)[bound]["most_ns"].as_u64());
    wait_for("the first look", PATIENCE, || most("a") == [Some(200_000_000), Some(50_000_000)]);
    lasthop.command(&["port", "rename", "a", "z"]);
    assert_eq!((settings("z"), most("z")), (told, [Some(200_000_000), Some(50_000_000)]));
    let saved = std::fs::read_to_string(lasthop.state_file("ports.json")).expect("it is written");
    assert!(saved.contains("max-cpu=20 max-cpu-to=5"), "{saved}");
    lasthop.command(&["port", "rename", "z", "a"]);
    apply("");
    assert_eq!(settings("a"), serde_json::json!([]));
    assert_eq!(most("a"), [None; 2]);
    for option in ["--max-cpu", "--max-cpu-to"] {
        let output = lasthop.try_command(&["port", "set", "a", option, "7000"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("hundredths of one processor from 1 to 6400"), "{error}");
    }
}
