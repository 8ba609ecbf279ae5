//! When nothing comes nobody works.

use lasthop_tests_process::{PATIENCE, Pair, numbered};
use std::time::{Duration, Instant};

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

/// Nanoseconds that helpers have run.
fn helped(pair: &Pair) -> u64 {
    pair.lasthop.json(&["stats"])["switch"]["cpu"]["helpers_ns"].as_u64().expect("a number")
}

/// Rings that had packets often are not handed to helpers again and again.
#[test]
fn nobody_works_when_a_stream_has_ended() {
    let mut pair = Pair::new();
    let [a, b] = &mut pair.guests;
    a.greet(b, 1);
    let (mut counted, end) = (0, Instant::now() + 4 * PATIENCE);
    for round in 0..40 {
        let (first, before) = (2 + round * 20_000, helped(&pair));
        let last = first + 20_000;
        let [a, b] = &mut pair.guests;
        for number in first..=last {
            let frame = numbered(a.mac, b.mac, number, 60);
            while !a.try_send(Default::default(), &frame) {
                assert!(Instant::now() < end, "{number} of {last} were sent");
                while b.try_recv().is_some() {}
            }
        }
        // Some of the last may be dropped, where this program does not get to run.
        a.all_taken();
        while b.recv_within(Duration::from_millis(200)).is_some() {}
        if helped(&pair) == before {
            continue;
        }
        let before = sleeps(&pair);
        std::thread::sleep(Duration::from_secs(1));
        let woken = sleeps(&pair) - before;
        println!("{woken} times in a second");
        assert!(woken < 100, "threads woke up {woken} times in a second in which nothing came");
        counted += 1;
        if counted == 4 {
            break;
        }
    }
    if counted == 0 {
        println!("no helper has got to run: not tested");
    }
    pair.lasthop.check_sums();
}
