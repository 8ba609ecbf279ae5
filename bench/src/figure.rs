//! What is measured.

use serde::Serialize;

/// Something measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// What it is.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
}

/// Which of a contender's rounds stands for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shown {
    /// The best: what others do on the machine only takes.
    Best,
    /// The middle one: a quotient of two measurements errs both ways, and its best would flatter.
    Median,
}

pub const LOOP: [Figure; 4] = [
    Figure { name: "packets", unit: "Mpps", more_is_better: true },
    Figure { name: "bytes", unit: "Gbit/s", more_is_better: true },
    Figure { name: "switch busy", unit: "ns/packet", more_is_better: false },
    Figure { name: "switch CPU", unit: "ns/packet", more_is_better: false },
];
pub const VMS: [Figure; 3] = [
    Figure { name: "TCP stream", unit: "Gbit/s", more_is_better: true },
    Figure { name: "TCP transactions", unit: "1/s", more_is_better: true },
    Figure { name: "ping", unit: "µs", more_is_better: false },
];
const fn stream(name: &'static str) -> Figure {
    Figure { name, unit: "Gbit/s", more_is_better: true }
}

const fn transactions(name: &'static str) -> Figure {
    Figure { name, unit: "1/s", more_is_better: true }
}

/// By the lengths of `crate::guests::vms::PAYLOADS`: first streams, then transactions.
pub const PAYLOADS: [Figure; 12] = [
    stream("TCP stream, 64 B"),
    stream("TCP stream, 256 B"),
    stream("TCP stream, 1 KiB"),
    stream("TCP stream, 4 KiB"),
    stream("TCP stream, 16 KiB"),
    stream("TCP stream, 64 KiB"),
    transactions("TCP transactions, 64 B"),
    transactions("TCP transactions, 256 B"),
    transactions("TCP transactions, 1 KiB"),
    transactions("TCP transactions, 4 KiB"),
    transactions("TCP transactions, 16 KiB"),
    transactions("TCP transactions, 64 KiB"),
];
/// Two VMs whose kernels share their memory in one way or another.
pub const GRANTED: [Figure; 7] = [
    Figure { name: "TCP stream", unit: "Mbit/s", more_is_better: true },
    Figure { name: "pings lost", unit: "%", more_is_better: false },
    Figure { name: "switch CPU", unit: "ms/Gbit", more_is_better: false },
    Figure { name: "updates", unit: "1/packet", more_is_better: false },
    Figure { name: "invalidations", unit: "1/packet", more_is_better: false },
    Figure { name: "both guests' pages", unit: "pages", more_is_better: false },
    Figure { name: "packets in all", unit: "1000", more_is_better: true },
];
pub const IDLE: [Figure; 2] = [
    Figure { name: "switch CPU", unit: "% of a CPU", more_is_better: false },
    Figure { name: "wake-ups", unit: "1/s and port", more_is_better: false },
];
pub const TIMES: [Figure; 6] = [
    Figure { name: "there and back", unit: "1000/s", more_is_better: true },
    Figure { name: "p50", unit: "µs", more_is_better: false },
    Figure { name: "p99", unit: "µs", more_is_better: false },
    Figure { name: "p99.9", unit: "µs", more_is_better: false },
    Figure { name: "switch busy", unit: "ns/packet", more_is_better: false },
    Figure { name: "switch CPU", unit: "% of a CPU", more_is_better: false },
];
pub const LEFT: [Figure; 5] = [
    Figure { name: "left to others", unit: "% of both CPUs", more_is_better: true },
    Figure { name: "packets", unit: "1000/s", more_is_better: true },
    Figure { name: "switch CPU", unit: "ns/packet", more_is_better: false },
    Figure { name: "switch busy", unit: "% of both CPUs", more_is_better: false },
    Figure { name: "guests' CPU", unit: "% of both CPUs", more_is_better: false },
];
pub const COST: [Figure; 5] = [
    Figure { name: "packets", unit: "1000/s", more_is_better: true },
    Figure { name: "switch busy", unit: "ns/packet", more_is_better: false },
    Figure { name: "switch CPU", unit: "ns/packet", more_is_better: false },
    Figure { name: "switch CPU", unit: "% of a CPU", more_is_better: false },
    Figure { name: "of it not on idle cycles", unit: "% of a CPU", more_is_better: false },
];
pub const FLOWS: [Figure; 5] = [
    Figure { name: "new flows", unit: "1000/s", more_is_better: true },
    Figure { name: "switch CPU", unit: "µs/flow", more_is_better: false },
    Figure { name: "memory", unit: "B/flow", more_is_better: false },
    Figure { name: "first packet p50", unit: "µs", more_is_better: false },
    Figure { name: "first packet p99", unit: "µs", more_is_better: false },
];
pub const OUTSIDE: [Figure; 8] = [
    Figure { name: "TCP transmitted", unit: "Gbit/s", more_is_better: true },
    Figure { name: "TCP received", unit: "Gbit/s", more_is_better: true },
    Figure { name: "TCP transactions", unit: "1/s", more_is_better: true },
    Figure { name: "CPU between, transmitting", unit: "ms/Gbit", more_is_better: false },
    Figure { name: "CPU between, receiving", unit: "ms/Gbit", more_is_better: false },
    Figure { name: "all CPU, transmitting", unit: "ms/Gbit", more_is_better: false },
    Figure { name: "all CPU, receiving", unit: "ms/Gbit", more_is_better: false },
    Figure { name: "uplink process", unit: "% of a CPU", more_is_better: false },
];
pub const THROUGH: [Figure; 3] = [
    Figure { name: "there and back", unit: "Mpps", more_is_better: true },
    Figure { name: "bytes", unit: "Gbit/s", more_is_better: true },
    Figure { name: "switch CPU", unit: "ns/packet", more_is_better: false },
];
/// The same by queues of guests' own, or by one.
pub const BY_QUEUES: [Figure; 5] = [
    Figure { name: "there and back", unit: "Mpps", more_is_better: true },
    Figure { name: "bytes", unit: "Gbit/s", more_is_better: true },
    Figure { name: "cost", unit: "ns/packet", more_is_better: false },
    Figure { name: "of it lasthop-uplink", unit: "ns/packet", more_is_better: false },
    Figure { name: "by own queues", unit: "%", more_is_better: true },
];
/// Guests of our own that grant their pages.
pub const PLAYED: [Figure; 7] = [
    Figure { name: "packets", unit: "1000/s", more_is_better: true },
    Figure { name: "bytes", unit: "Mbit/s", more_is_better: true },
    Figure { name: "switch CPU", unit: "ns/packet", more_is_better: false },
    Figure { name: "of it on messages", unit: "%", more_is_better: false },
    Figure { name: "updates", unit: "1/packet", more_is_better: false },
    Figure { name: "invalidations", unit: "1/packet", more_is_better: false },
    Figure { name: "buffers in", unit: "pages", more_is_better: false },
];
pub const MEMORY: [Figure; 2] = [
    Figure { name: "memory", unit: "KiB/port", more_is_better: false },
    Figure { name: "memory with two ports", unit: "KiB", more_is_better: false },
];
/// A guest with a modest load, alone and beside greedy ones.
pub const ISOLATION: [Figure; 13] = [
    Figure { name: "p99 against alone", unit: "×", more_is_better: false },
    Figure { name: "p99 alone", unit: "µs", more_is_better: false },
    Figure { name: "p99", unit: "µs", more_is_better: false },
    Figure { name: "p50 alone", unit: "µs", more_is_better: false },
    Figure { name: "p50", unit: "µs", more_is_better: false },
    Figure { name: "longest", unit: "µs", more_is_better: false },
    Figure { name: "packets kept", unit: "%", more_is_better: true },
    Figure { name: "worst share", unit: "% of its weight's", more_is_better: true },
    Figure { name: "turns with a backlog", unit: "% at least", more_is_better: true },
    Figure { name: "greedy bytes", unit: "Gbit/s", more_is_better: true },
    Figure { name: "greedy packets", unit: "1000/s", more_is_better: true },
    Figure { name: "greedy kicks", unit: "1000/s", more_is_better: true },
    Figure { name: "beyond turns", unit: "% of the time", more_is_better: false },
];
/// Two guests that want all of an uplink, one of which is promised a part of it.
pub const MINIMUM: [Figure; 5] = [
    Figure { name: "promised guest", unit: "Mbit/s", more_is_better: true },
    Figure { name: "of its minimum", unit: "%", more_is_better: true },
    Figure { name: "other guest", unit: "Mbit/s", more_is_better: true },
    Figure { name: "both", unit: "% of the uplink", more_is_better: true },
    Figure { name: "switch CPU", unit: "% of a CPU", more_is_better: false },
];
/// Two guests that talk, while others behave well and while they do not.
pub const ATTACK: [Figure; 12] = [
    Figure { name: "packets kept", unit: "%", more_is_better: true },
    Figure { name: "lost", unit: "%", more_is_better: false },
    Figure { name: "p99 against tame", unit: "×", more_is_better: false },
    Figure { name: "p50 tame", unit: "µs", more_is_better: false },
    Figure { name: "p50", unit: "µs", more_is_better: false },
    Figure { name: "p99 tame", unit: "µs", more_is_better: false },
    Figure { name: "p99", unit: "µs", more_is_better: false },
    Figure { name: "p99.9", unit: "µs", more_is_better: false },
    Figure { name: "first packet p99 against tame", unit: "×", more_is_better: false },
    Figure { name: "first packet p99", unit: "µs", more_is_better: false },
    Figure { name: "attackers' packets", unit: "1000/s", more_is_better: true },
    Figure { name: "beyond slots", unit: "% of the time", more_is_better: false },
];
