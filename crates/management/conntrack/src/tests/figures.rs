//! How long things take, in this thread's own processor time, so that other programs do not count: printed, not asserted. `cargo test -p lasthop-conntrack -- --ignored --nocapture figures`; docs/performance.md has the figures.

use super::*;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

const ROUNDS: usize = 5;

/// A datagram of connection `n` from 10.0.0.1, its own ports and host.
fn key(n: u32) -> FlowKey {
    let mut key = FlowKey {
        eth_type: 0x0800,
        ip_proto: 17,
        l4_src: 1024 + (n % 60_000) as u16,
        l4_dst: 53,
        ..FlowKey::default()
    };
    key.ip_src[12..].copy_from_slice(&[10, 0, 0, 1]);
    key.ip_dst[12..].copy_from_slice(&(0x0b00_0000 + n / 60_000).to_be_bytes());
    key
}

/// Processor time that this thread has had.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn datagram(key: &FlowKey) -> View<'_> {
    View { key, transport: &[0, 0, 0, 0, 0, 8, 0, 0], len: 8, fragment: 0, was: None }
}

/// The time of each of `times`, in ns, and the longest.
fn each(times: u32, mut call: impl FnMut(u32)) -> (u64, Duration) {
    let (begin, mut longest) = (cpu(), Duration::ZERO);
    let mut last = begin;
    for n in 0..times {
        call(n);
        let now = cpu();
        longest = longest.max(now - last);
        last = now;
    }
    ((last - begin).as_nanos() as u64 / u64::from(times), longest)
}

#[test]
#[ignore = "prints figures"]
fn figures_of_three_million_connections() {
    const MANY: u32 = 3_000_000;
    for round in 1..=ROUNDS {
        let net = Net::with(Config { capacity: MANY as usize, ..Config::default() });
        let commit = |n| assert!(net.tracker.process(&datagram(&key(n)), &net.action, net.now_ms).refused.is_none());
        let (new, longest_new) = each(MANY, commit);
        let (known, longest_known) = each(MANY, commit);
        // All of them are over at once. Whoever keeps the table takes 1024 looks at a time.
        let (later, begin) = (net.now_ms + 31_000, cpu());
        let (mut calls, mut longest) = (0u32, Duration::ZERO);
        loop {
            let call = cpu();
            let more = net.tracker.expire(later, 1024);
            longest = longest.max(cpu() - call);
            calls += 1;
            net.tracker.ended();
            if !more {
                break;
            }
        }
        let all = cpu() - begin;
        println!(
            "round {round}: {MANY} connections: new {new} ns (longest {longest_new:?}), known {known} ns (longest {longest_known:?}); \
             all expired in {all:?}, {calls} calls, longest {longest:?}"
        );
        assert_eq!(net.tracker.totals().connections, 0);
    }
}

#[test]
#[ignore = "prints figures"]
fn figures_of_translations() {
    let range = Range { addresses: Some([Ends::v4(0, 0).address(50), Ends::v4(0, 0).address(59)]), ..Range::default() };
    for (name, nat) in [
        ("none", Nat::None),
        ("snat to ten addresses", Nat::Source(range)),
        ("snat to ten addresses, 60 000 ports", Nat::Source(Range { ports: Some([1024, 61_023]), ..range })),
    ] {
        let best = (0..ROUNDS).map(|_| {
            let mut net = Net::with(Config { capacity: 1 << 18, ..Config::default() });
            net.action.nat = nat;
            let commit =
                |n| assert!(net.tracker.process(&datagram(&key(n)), &net.action, net.now_ms).refused.is_none());
            each(200_000, commit).0
        });
        println!("new connection, translation {name}: {} ns, best of {ROUNDS} rounds", best.min().unwrap_or_default());
    }
}
