//! New connections as fast as they come, behind stateful lists: a port's limit holds, and who has a connection notices nothing.

use lasthop_frame::testutil::Frame;
use lasthop_loadgen::{self as load, FlowOrder, Notify, Pattern, Report, Session, Settings, Socket};
use lasthop_tests_process::{Guest, Lasthop, Options, Port, mac, scratch};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The generator's port `p0` opens connections to `p1`. Guests at `c` and `d` have one, of `c`'s making.
struct Field {
    lasthop: Lasthop,
    opener: Session<'static>,
    opens: Settings,
    talkers: [Guest; 2],
    _listening: load::Listening,
    _dir: tempfile::TempDir,
}

/// How long packets took there and back, in order of length.
struct Waits(Vec<Duration>);

impl Waits {
    fn text(&self) -> String {
        let of = |part: f64| self.0[((self.0.len() - 1) as f64 * part) as usize].as_micros();
        let [median, p99, p999, longest] = [0.5, 0.99, 0.999, 1.0].map(of);
        format!("{} there and back, µs: median {median}, p99 {p99}, p99.9 {p999}, longest {longest}", self.0.len())
    }
}

/// A datagram of the connection.
fn datagram(from: u8, to: u8, number: u32) -> Vec<u8> {
    let frame = Frame::between(mac(from), mac(to)).ipv4([10, 9, 0, from], [10, 9, 0, to]);
    frame.udp(4000 + u16::from(from), 4000 + u16::from(to)).payload(number.to_be_bytes()).build()
}

/// They send a datagram there and back about every millisecond until they are told to stop; each arrives.
fn talk([c, d]: &mut [Guest; 2], until: impl Fn() -> bool) -> Waits {
    let (mut waits, mut number) = (Vec::new(), 0);
    while !until() || waits.is_empty() {
        number += 1;
        let [there, back] = [datagram(13, 14, number), datagram(14, 13, number)];
        let start = Instant::now();
        c.send(&there);
        d.expect(&there);
        d.send(&back);
        c.expect(&back);
        waits.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    waits.sort();
    Waits(waits)
}

impl Field {
    /// There is `room` for connections, and the one port may open as many as `limit`.
    fn new(room: u32, limit: u32) -> Self {
        let dir = scratch();
        let played = ["p0", "p1"].map(|name| Port::connect(name, dir.path()));
        let guests = ["c", "d"].map(|name| Port::listen(name, dir.path()));
        let sockets = played.iter().map(|p| Socket { path: p.socket.clone(), listen: true }).collect();
        let opens = Settings {
            flow_order: FlowOrder::Round,
            check: load::Check::Count,
            notify: Notify::Sleep,
            huge: Some(false),
            warmup: Duration::ZERO,
            ..Settings::new(sockets, Pattern::OneWay)
        };
        let listening = load::listen(&opens).unwrap();
        let [c, d] = guests.each_ref().map(|port| port.socket.clone());
        let ports: Vec<_> = played.into_iter().chain(guests).collect();
        let lasthop = Lasthop::start_with(&ports, &["--connections", &room.to_string()]);
        let talkers = [(c, 13), (d, 14)].map(|(socket, n)| Guest::connect(&socket, mac(n), Options::default()));
        ["c", "d"].iter().for_each(|port| lasthop.wait_for_state(port, "up"));
        let file = dir.path().join("list");
        std::fs::write(&file, "stateful\ndefault to-guest deny\n").unwrap();
        for port in ["p0", "c"] {
            lasthop.command(&["acl", "load", file.to_str().unwrap(), "--port", port]);
        }
        lasthop.command(&["port", "set", "p0", "--connections", &limit.to_string()]);
        let opener = Session::connect(&opens, &listening, &|| Ok(())).unwrap();
        Self { lasthop, opener, opens, talkers, _listening: listening, _dir: dir }
    }

    /// Opens connections at this rate for `length`, while those who talk do so.
    fn play(&mut self, rate: f64, length: Duration) -> (Report, Waits) {
        // Twice as many as there will be, or as many as the generator tells apart: none comes again while its connection is known.
        let flows = ((2.0 * rate * length.as_secs_f64()) as u32).min(1 << 20);
        let opens = Settings { flows, rate: Some(rate), length, ..self.opens.clone() };
        let (Self { opener, talkers, .. }, over) = (self, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let talk = scope.spawn(|| talk(talkers, || over.load(Ordering::Relaxed)));
            let opened = opener.play(&opens, &mut ());
            over.store(true, Ordering::Relaxed);
            (opened.unwrap(), talk.join().unwrap())
        })
    }

    fn talk(&mut self, length: Duration) -> Waits {
        let start = Instant::now();
        talk(&mut self.talkers, || start.elapsed() > length)
    }

    fn drops(&self) -> Vec<(String, u64)> {
        let port = self.lasthop.port("p0");
        let drops = port["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
        let of = |drop: &Value| Some((drop["reason"].as_str()?.to_owned(), drop["packets"].as_u64()?));
        drops.iter().filter_map(of).collect()
    }
}

/// Ten thousand a second want to open one, at a port that may have two thousand.
#[test]
fn a_limit_holds_at_ten_thousand_connections_a_second() {
    const LIMIT: u32 = 2000;
    let mut field = Field::new(8192, LIMIT);
    let (opened, waits) = field.play(10_000.0, Duration::from_secs(3));
    let drops = field.drops();
    println!("{} of {} passed, {drops:?}; {}", opened.received, opened.sent, waits.text());
    assert!(opened.sent >= 20_000, "{opened:?}");
    // A connection that is there may send again: the first is there when the measurement begins.
    let limit = u64::from(LIMIT);
    assert!((limit - 2..=limit + 2).contains(&opened.received), "{opened:?}");
    // Each packet that the switch has taken was refused, or went on; what the generator sends at the edges of its time it does not count.
    let refused: u64 = drops.iter().map(|(_, packets)| packets).sum();
    let taken = field.lasthop.port("p0")["from_guest"]["packets"].as_u64().expect("a number");
    assert!((refused + opened.received).abs_diff(taken) <= 8, "{drops:?} of {taken}");
    assert!(drops.iter().any(|(reason, packets)| reason == "ct_limit" && *packets > 0), "{drops:?}");
    let stats = field.lasthop.command(&["conntrack", "stats"]);
    assert!(stats.contains(&format!("p0: {LIMIT} of {LIMIT} opened from there")), "{stats}");
    assert!(stats.contains(" of 8192 connections"), "{stats}");
    // What is refused for want of room opens when there is some.
    let flushed = field.lasthop.command(&["conntrack", "flush", "--port", "p0"]);
    assert!(flushed.starts_with("2000 connections"), "{flushed}");
    let (opened, _) = field.play(1000.0, Duration::from_millis(500));
    assert!(opened.received > 100 && opened.lost == 0, "{opened:?}");
    field.lasthop.check_sums();
}

/// How long a packet of a connection waits at most while others come and go: alone, while the tables fill, and while these are over. Printed, not asserted: docs/performance.md has the figures.
#[test]
#[ignore = "prints figures; `cargo test -p lasthop-tests-process --test turnover -- --ignored --nocapture`"]
fn figures_of_a_turnover() {
    let number = |name: &str, default: u32| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (rounds, connections, rate) = (number("ROUNDS", 5), number("CONNECTIONS", 1_000_000), number("RATE", 50_000));
    let length = Duration::from_secs_f64(f64::from(connections) / f64::from(rate));
    for round in 1..=rounds {
        let mut field = Field::new(connections + 1000, connections + 500);
        println!("round {round}, alone: {}", field.talk(Duration::from_secs(5)).text());
        let (opened, waits) = field.play(rate.into(), length);
        println!("round {round}, {rate} new connections a second: {}", waits.text());
        let passed = (opened.received, opened.sent, opened.seconds);
        println!("round {round}: {} of {} passed in {:.1} s; {:?}", passed.0, passed.1, passed.2, field.drops());
        let flows = || field.lasthop.json(&["stats"])["switch"]["flows"].clone();
        let stats = || field.lasthop.command(&["conntrack", "stats"]).lines().next().unwrap_or_default().to_owned();
        println!("round {round}: {} flows; {}", flows(), stats());
        let waits = field.talk(Duration::from_secs(120));
        println!("round {round}, while they end: {}", waits.text());
        let stats = field.lasthop.command(&["conntrack", "stats"]);
        println!("round {round}: {}", stats.lines().next().unwrap_or_default());
    }
}
