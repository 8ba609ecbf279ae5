//! When nothing comes nobody works.

use lasthop_tests_process::{Pair, numbered};
use std::time::Duration;

/// How often threads that move packets have gone to sleep.
fn sleeps(pair: &Pair) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pair.lasthop.switch())).expect("the switch runs");
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let is_mover = ["helper-", "port-"].iter().any(|name| status.starts_with(&format!("Name:\t{name}")));
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        is_mover.then(|| count.trim().parse::<u64>().expect("a number"))
    };
    tasks.filter_map(of).sum()
}

/// Rings that had packets often are not handed to helpers again and again.
#[test]
fn nobody_works_when_a_stream_has_ended() {
    let mut pair = Pair::new();
    let [a, b] = &mut pair.guests;
    a.greet(b, 1);
    for round in 0..4 {
        let first = 2 + round * 20_000;
        let [a, b] = &mut pair.guests;
        let mut sent = first;
        while sent < first + 20_000 {
            while sent < first + 20_000 && a.try_send(Default::default(), &numbered(a.mac, b.mac, sent, 60)) {
                sent += 1;
            }
            while b.try_recv().is_some() {}
        }
        std::thread::sleep(Duration::from_millis(100));
        let before = sleeps(&pair);
        std::thread::sleep(Duration::from_secs(1));
        let woken = sleeps(&pair) - before;
        println!("{woken} times in a second");
        assert!(woken < 100, "threads woke up {woken} times in a second in which nothing came");
    }
    pair.lasthop.check_sums();
}
