//! `lasthop run --device`: a switch with a small table, whose control has all flows.

use lasthop_tests_process::{Guest, Lasthop, Options, Port, mac, number_of, numbered, scratch, wait_for};
use lasthop_text::MacAddr;
use serde_json::Value;
use std::time::Duration;

/// Places of the table.
const RULES: u64 = 1024;
/// Flows that are in use, in turns.
const FLOWS: u32 = 3000;

fn stats(lasthop: &Lasthop) -> Value {
    lasthop.json(&["device", "stats", "nic0"])
}

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("no number: {of}"))
}

/// A device with two ports, and guests at both.
fn start(dir: &std::path::Path) -> (Lasthop, Guest, Guest) {
    let ports = ["a", "b"].map(|name| format!("{name}={},device=nic0", dir.join(name).display()));
    let [a, b] = &ports;
    let device = format!("nic0,rules={RULES}");
    let lasthop = Lasthop::start_with(&[Port::listen("host", dir)], &["--device", &device, "--port", a, "--port", b]);
    let guest = |name: &str, n| Guest::connect(&dir.join(name), mac(n), Options::default());
    let (a, b) = (guest("a", 1), guest("b", 2));
    (lasthop, a, b)
}

/// Every packet comes, at most so many rules are in the table, and what is judged is judged once.
#[test]
fn more_flows_than_rules_are_judged_once_and_put_again() {
    let dir = scratch();
    let (lasthop, mut a, mut b) = start(dir.path());
    a.greet_when_back(&mut b, 1);
    let station = |n: u32| MacAddr([2, 9, 0, 0, (n >> 8) as u8, n as u8]);
    let mut next = 1000;
    let mut round = || {
        for n in 0..FLOWS {
            a.send(&numbered(station(n), mac(2), next, 60));
            b.recv("each packet", |_, frame| number_of(frame) == Some(next));
            next += 1;
        }
    };
    round();
    let first = stats(&lasthop);
    let judged = number(&first["table"]["judged"]);
    assert!(judged >= u64::from(FLOWS), "each flow was judged: {first}");
    assert_eq!((number(&first["rules_used"]), number(&first["table"]["rules"])), (RULES, RULES));
    round();
    let second = stats(&lasthop);
    assert_eq!(number(&second["table"]["judged"]), judged, "and never again: {second}");
    assert!(number(&second["flows"]) >= u64::from(FLOWS), "control has all: {second}");
    let answered = number(&second["table"]["recached"]) + number(&second["table"]["under_way"]);
    let before = number(&first["table"]["recached"]) + number(&first["table"]["under_way"]);
    assert!(answered - before >= u64::from(FLOWS) - RULES, "the rest had left the table: {second}");
    assert_eq!(number(&second["rules_used"]), RULES);
}

/// The device's data plane is killed: packets pass again, and the host's switch does not notice.
#[test]
fn a_device_comes_back_and_the_host_does_not_notice() {
    let dir = scratch();
    let (lasthop, mut a, mut b) = start(dir.path());
    a.greet_when_back(&mut b, 1);
    let host = lasthop.switch();
    lasthop.kill("lasthop-device");
    let mut again = |lasthop: &Lasthop, number| {
        let guest = |name: &str, n| Guest::connect(&dir.path().join(name), mac(n), Options::default());
        wait_for("the device", Duration::from_secs(10), || {
            lasthop.try_command(&["device", "stats", "nic0"]).status.success()
        });
        (a, b) = (guest("a", 1), guest("b", 2));
        a.greet_when_back(&mut b, number);
    };
    again(&lasthop, 2);
    assert_eq!(lasthop.switch(), host);
    assert!(lasthop.stop(), "all processes end, those of the device too");
}

/// What a packet takes from guest to guest, one at a time, in microseconds: the median of those whose rule is in the table, of those whose rule has left it, and of those that
/// are judged; the best of five rounds of each.
#[test]
#[ignore = "measures; prints microseconds"]
fn cost_of_a_miss() {
    const HIT: u32 = 500;
    const LEFT: u32 = 2048;
    let dir = scratch();
    let (lasthop, mut a, mut b) = start(dir.path());
    a.greet_when_back(&mut b, 1);
    let station = |n: u32| MacAddr([2, 9, (n >> 16) as u8, 0, (n >> 8) as u8, n as u8]);
    let mut next = 1000;
    let mut median = |stations: std::ops::Range<u32>| {
        let mut one = |n: u32| {
            let started = std::time::Instant::now();
            a.send(&numbered(station(n), mac(2), next, 60));
            b.recv("each packet", |_, frame| number_of(frame) == Some(next));
            next += 1;
            started.elapsed().as_nanos() as f64 / 1000.0
        };
        let mut all: Vec<f64> = stations.map(&mut one).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    // What became of misses meanwhile: judged, and answered by what control has.
    let counted = || {
        let table = stats(&lasthop)["table"].take();
        let of = |name: &str| number(&table[name]);
        (of("judged"), of("recached") + of("under_way"))
    };
    let mut best = [f64::MAX; 3];
    median(0..LEFT);
    for round in 1..=5u32 {
        let mut note = |kind: usize, median: f64| best[kind] = best[kind].min(median);
        let before = counted();
        note(1, median(0..LEFT));
        let recached = counted();
        assert_eq!(recached.0, before.0, "none was judged again");
        assert!(recached.1 - before.1 >= u64::from(LEFT) * 9 / 10, "nearly each had left the table");
        let last = LEFT - HIT..LEFT;
        note(0, median(last.clone()));
        assert_eq!(counted(), recached, "none had left the table");
        note(2, median(round << 16..(round << 16) + HIT));
        assert!(counted().0 >= recached.0 + u64::from(HIT));
        // The table is theirs now; those before are put back in turns.
        median(0..LEFT);
    }
    let [hit, left, judged] = best;
    println!(
        "in the table {hit:.1} us; has left it {left:.1} us ({:.2}); judged {judged:.1} us ({:.2})",
        left / hit,
        judged / hit
    );
}
