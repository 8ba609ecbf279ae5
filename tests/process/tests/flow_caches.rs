//! What `lasthop stats` says of the switch's flow caches: packets in, figures out.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, scratch, wait_for};
use lasthop_text::MacAddr;

/// More than the 1024 places that the cache of a port's thread has at first.
const FLOWS: u32 = 3000;

fn caches(lasthop: &Lasthop, field: &str) -> u64 {
    let stats = lasthop.json(&["stats"]);
    stats["switch"]["caches"][field].as_u64().unwrap_or_else(|| panic!("no {field} in {stats}"))
}

#[test]
fn caches_are_counted_and_grow() {
    let dir = scratch();
    // Each port's packets are moved by its own thread.
    let lasthop = Lasthop::start_with(&["a", "b"].map(|name| Port::listen(name, dir.path())), &["--helpers", "none"]);
    let guest = |(name, n)| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default());
    let [mut a, mut b] = [("a", 1), ("b", 2)].map(guest);
    ["a", "b"].iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    a.greet(&mut b, 1);
    let all = |fields: [&str; 4]| fields.map(|field| caches(&lasthop, field));
    // That of the thread that talks to control, and one of each port's. What came to control met no flow.
    assert_eq!(all(["entries", "used", "hits", "evicted"]), [8192 + 2 * 1024, 0, 0, 0]);
    a.greet(&mut b, 2);
    let before = all(["used", "hits", "misses", "evicted"]);
    assert_eq!(before, [2, 0, 2, 0], "each way's flow was found in the table, and is in a cache now");
    (3..13).for_each(|n| a.greet(&mut b, n));
    assert_eq!(all(["used", "hits", "misses", "evicted"]), [2, 20, 2, 0], "and was found there from then on");

    // More flows than there are places, in turns.
    let station = |n: u32| MacAddr([2, 9, 0, 0, (n >> 8) as u8, n as u8]);
    let mut number = 1000;
    let mut round = |a: &mut Guest, b: &mut Guest| {
        for n in 0..FLOWS {
            a.send(&numbered(station(n), mac(2), number + n, 60));
            if n % 100 == 99 {
                b.recv("the last of them", |_, frame| number_of(frame) == Some(number + n));
            }
        }
        number += FLOWS;
    };
    wait_for("the cache to grow", PATIENCE, || {
        round(&mut a, &mut b);
        caches(&lasthop, "entries") >= 8192 + 1024 + 4096
    });
    let [entries, used, hits, misses] = all(["entries", "used", "hits", "misses"]);
    assert!(used > u64::from(FLOWS) && used <= entries && caches(&lasthop, "evicted") >= 1024, "{used} of {entries}");
    round(&mut a, &mut b);
    let [more_hits, more_misses] = [caches(&lasthop, "hits") - hits, caches(&lasthop, "misses") - misses];
    assert_eq!(more_hits + more_misses, u64::from(FLOWS), "each was looked up once: {more_hits} in the cache");
    let said = lasthop.command(&["stats", "--verbose"]);
    let line = said.lines().find(|line| line.starts_with("flow caches: ")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(&format!("of {entries} places filled")) && line.contains("in the table of 1 mask"), "{line}");
    lasthop.check_sums();
}
