//! Several threads at one table.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everybody opens, answers and ends the same few connections, translated to the same few ports, while time passes.
#[test]
fn threads_at_the_same_connections() {
    let net = Net::with(Config { capacity: 64, ..Config::default() });
    let address = Ends::v4(0, 0).address(50);
    let range = Range { addresses: Some([address; 2]), ports: Some([2000, 2015]), ..Range::default() };
    let stop = AtomicBool::new(false);
    let work = |seed: u64| {
        let mut state = seed;
        while !stop.load(Ordering::Relaxed) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let n = state >> 33;
            let ends = Ends { hosts: [(n % 4) as u8 + 1, 9], ..Ends::v4((n / 4 % 8) as u16, 80) };
            let nat = if n & 64 == 0 { Nat::None } else { Nat::Source(range) };
            let action = Action { nat, ..net.action };
            let frame = match n >> 7 & 3 {
                0 => ends.tcp(&seg("S", 1, 0, 0)),
                1 => ends.back().tcp(&seg("SA", 1, 2, 0)),
                2 => ends.udp(3),
                _ => ends.tcp(&seg("R", 2, 0, 0)),
            };
            let mut key = FlowKey::default();
            net.tracker.process(&view(&frame, &mut key), &action, net.now_ms + (n >> 20) % 100);
            if n & 0xf000 == 0 {
                net.tracker.expire(net.now_ms + 31_000, 10);
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let work = &work;
            scope.spawn(move || work(seed));
        }
        while net.tracker.totals().created < 20_000 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    // No tuple stands for two, and the counts are right.
    let all = net.all();
    let tuples: std::collections::HashSet<_> = all.iter().flat_map(|c| [c.original, c.reply]).collect();
    assert_eq!(tuples.len(), 2 * all.len());
    net.tracker.flush(Cursor::default(), u32::MAX, &Filter::default(), net.now_ms);
    let far = net.now_ms + 1_000_000;
    while net.tracker.expire(far, 1000) {}
    assert_eq!((net.tracker.totals().connections, net.tracker.zone(0).connections, net.tracker.owned(0)), (0, 0, 0));
}

/// Data and acknowledgements of one connection from two threads: nothing that was sent is forgotten.
#[test]
fn both_directions_at_once() {
    let net = Net::new();
    let ends = Ends::v4(1, 2);
    net.handshake(ends);
    const SENT: u32 = 20_000;
    let progress = [std::sync::atomic::AtomicU32::new(0), std::sync::atomic::AtomicU32::new(0)];
    std::thread::scope(|scope| {
        for dir in 0..2 {
            let (net, progress) = (&net, &progress);
            scope.spawn(move || {
                let (ends, base) = if dir == 0 { (ends, [101, 501]) } else { (ends.back(), [501, 101]) };
                for n in 0..SENT {
                    // What the other has sent and we have seen is acknowledged, and neither goes further than its window.
                    let seen = loop {
                        let seen = progress[1 - dir].load(Ordering::Acquire);
                        if n < seen + 500 {
                            break seen;
                        }
                        std::thread::yield_now();
                    };
                    let state = net.tcp(ends, &seg("A", base[0] + n, base[1] + seen, 1));
                    assert_eq!(state, ["E", "E<"][dir], "segment {n}, {seen} seen");
                    progress[dir].store(n + 1, Ordering::Release);
                }
            });
        }
    });
}
