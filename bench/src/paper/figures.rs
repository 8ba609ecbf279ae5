//! Which figures of the papers, and what they say.

use super::split::{BUSY, CPU, Split};
use super::{Curve, Measured, Point, Quotient};

const PACKETS: usize = 0;

const fn at(x: u32, scenario: &'static str, figure: usize) -> Point {
    Point { x, scenario, figure }
}

const fn of(scenario: &'static str, contender: &'static str, figure: usize) -> Measured {
    Measured { scenario, contender, figure }
}

const SNICH: &[Point] = &[
    at(250, "snich-250", PACKETS),
    at(450, "snich-450", PACKETS),
    at(650, "snich-650", PACKETS),
    at(850, "snich-850", PACKETS),
    at(1050, "snich-1050", PACKETS),
];
const SNICH_RULES: &[Point] = &[
    at(250, "snich-rules-250", PACKETS),
    at(450, "snich-rules-450", PACKETS),
    at(650, "snich-rules-650", PACKETS),
    at(850, "snich-rules-850", PACKETS),
    at(1050, "snich-rules-1050", PACKETS),
];
const SNICH_TWO: &[Point] =
    &[at(250, "snich-two-250", PACKETS), at(650, "snich-two-650", PACKETS), at(1050, "snich-two-1050", PACKETS)];
/// One sender of the same rate.
const SNICH_ONE: &[Point] =
    &[at(250, "snich-one-250", PACKETS), at(650, "snich-one-650", PACKETS), at(1050, "snich-one-1050", PACKETS)];
const LENGTHS: &[(f64, &str)] =
    &[(292.0, "snich-250"), (492.0, "snich-450"), (692.0, "snich-650"), (892.0, "snich-850"), (1092.0, "snich-1050")];
const RULES_LENGTHS: &[(f64, &str)] = &[
    (292.0, "snich-rules-250"),
    (492.0, "snich-rules-450"),
    (692.0, "snich-rules-650"),
    (892.0, "snich-rules-850"),
    (1092.0, "snich-rules-1050"),
];

// Of `figure::TIMES` and `figure::THROUGH`.
const P50: usize = 1;
const BYTES: usize = 1;

const OUT_TIMES: &[Point] = &[
    at(1, "vifs-out-1-time", P50),
    at(2, "vifs-out-2-time", P50),
    at(4, "vifs-out-4-time", P50),
    at(8, "vifs-out-8-time", P50),
    at(16, "vifs-out-16-time", P50),
    at(32, "vifs-out-32-time", P50),
];
const OUT_BYTES: &[Point] = &[
    at(1, "vifs-out-1", BYTES),
    at(2, "vifs-out-2", BYTES),
    at(4, "vifs-out-4", BYTES),
    at(8, "vifs-out-8", BYTES),
    at(16, "vifs-out-16", BYTES),
    at(32, "vifs-out-32", BYTES),
];
const PAIR_RATES: &[Point] = &[
    at(2, "vifs-2-time", PACKETS),
    at(4, "vifs-4-time", PACKETS),
    at(8, "vifs-8-time", PACKETS),
    at(16, "vifs-16-time", PACKETS),
    at(32, "vifs-32-time", PACKETS),
];
const PAIR_PACKETS: &[Point] = &[
    at(2, "vifs-2", PACKETS),
    at(4, "vifs-4", PACKETS),
    at(8, "vifs-8", PACKETS),
    at(16, "vifs-16", PACKETS),
    at(32, "vifs-32", PACKETS),
];
const STREAMS: &[Point] = &[
    at(64, "vms-payload", 0),
    at(256, "vms-payload", 1),
    at(1024, "vms-payload", 2),
    at(4096, "vms-payload", 3),
    at(16384, "vms-payload", 4),
    at(65536, "vms-payload", 5),
];
const TRANSACTIONS: &[Point] = &[
    at(64, "vms-payload", 6),
    at(256, "vms-payload", 7),
    at(1024, "vms-payload", 8),
    at(4096, "vms-payload", 9),
    at(16384, "vms-payload", 10),
    at(65536, "vms-payload", 11),
];

// Of `figure::BY_QUEUES`.
const COST: usize = 2;
const UPLINK: usize = 3;

const QUEUES: &[Point] = &[
    at(1, "vmdq-guests-1", PACKETS),
    at(2, "vmdq-guests-2", PACKETS),
    at(4, "vmdq-guests-4", PACKETS),
    at(8, "vmdq-guests-8", PACKETS),
];
const QUEUE_COSTS: &[Point] = &[
    at(1, "vmdq-guests-1", COST),
    at(2, "vmdq-guests-2", COST),
    at(4, "vmdq-guests-4", COST),
    at(8, "vmdq-guests-8", COST),
];
const QUEUE_UPLINKS: &[Point] = &[
    at(1, "vmdq-guests-1", UPLINK),
    at(2, "vmdq-guests-2", UPLINK),
    at(4, "vmdq-guests-4", UPLINK),
    at(8, "vmdq-guests-8", UPLINK),
];
const QUEUE_LENGTHS: &[Point] = &[
    at(64, "vmdq-size-64", COST),
    at(256, "vmdq-size-256", COST),
    at(512, "vmdq-size-512", COST),
    at(1024, "vmdq-size-1024", COST),
    at(1514, "vmdq-guests-4", COST),
];

pub(super) static CURVES: [Curve; 14] = [
    Curve {
        name: "thesis-4.9",
        title: "PhD figure 4.9: TCP between a pair of VMs, by payload",
        x: "bytes of payload",
        y: "Gbit/s",
        doubling: true,
        points: STREAMS,
        paper: "of 4 to 64 KiB 56 % above Xen and 61 % above KVM with vhost-net; below that the sender is the limit",
    },
    Curve {
        name: "thesis-4.10",
        title: "PhD figure 4.10: TCP transactions between a pair of VMs, by payload",
        x: "bytes of payload",
        y: "1/s",
        doubling: true,
        points: TRANSACTIONS,
        paper: "more at all sizes; in the mean of them 106 % above Xen and 212 % above KVM with vhost-net",
    },
    Curve {
        name: "interfaces-3",
        title: "SV figure 3: round trips to a reflector in the network by number of interfaces, median",
        x: "interfaces",
        y: "µs",
        doubling: true,
        points: OUT_TIMES,
        paper: "between guests of two virtualized hosts; the card's is about half of that through a driver domain, but at 32",
    },
    Curve {
        name: "interfaces-3-pairs",
        title: "SV figure 3, between pairs of guests: round trips a second by number of interfaces",
        x: "interfaces",
        y: "1000/s",
        doubling: true,
        points: PAIR_RATES,
        paper: "to the network only",
    },
    Curve {
        name: "interfaces-5",
        title: "SV figure 5: throughput to a reflector in the network and back, all interfaces together",
        x: "interfaces",
        y: "Gbit/s",
        doubling: true,
        points: OUT_BYTES,
        paper: "TCP one way; the card's is about twice that of a driver domain, at any number (+103 % at 8)",
    },
    Curve {
        name: "interfaces-5-pairs",
        title: "SV figure 5, between pairs of guests: 64-byte packets of all interfaces together",
        x: "interfaces",
        y: "Mpps",
        doubling: true,
        points: PAIR_PACKETS,
        paper: "to the network only",
    },
    Curve {
        name: "snich-5.3",
        title: "PhD figure 5.3: packets by payload, no filter",
        x: "bytes of UDP payload",
        y: "Mpps",
        doubling: false,
        points: SNICH,
        paper: "sNICh above Open vSwitch and Linux bridge at all sizes; these two are limited by the driver domain's CPU",
    },
    Curve {
        name: "snich-5.5",
        title: "PhD figure 5.5: packets by payload, 971 rules",
        x: "bytes of UDP payload",
        y: "Mpps",
        doubling: false,
        points: SNICH_RULES,
        paper: "Linux bridge up to 29 % less than without rules; Open vSwitch and sNICh as without",
    },
    Curve {
        name: "snich-5.7",
        title: "PhD figure 5.7: packets by payload, 971 rules, two senders of 0.2 Mpps",
        x: "bytes of UDP payload",
        y: "Mpps",
        doubling: false,
        points: SNICH_TWO,
        paper: "two senders at their limit: sNICh carries nearly twice of one's. Here their rate is fixed: who has room carries both",
    },
    Curve {
        name: "snich-5.7-one",
        title: "PhD figure 5.7, one sender: packets by payload, 971 rules, 0.2 Mpps",
        x: "bytes of UDP payload",
        y: "Mpps",
        doubling: false,
        points: SNICH_ONE,
        paper: "its line of one sender is that of figure 5.5",
    },
    Curve {
        name: "queues-3.4",
        title: "MS figure 3.4: a packet's cost with a queue of one's own and with a shared one, by number of guests",
        x: "guests",
        y: "ns/packet",
        doubling: true,
        points: QUEUE_COSTS,
        paper: "one guest that receives, guest and driver domain together: 13 165 cycles through the bridge, 7448 (0.57) by its own queue",
    },
    Curve {
        name: "queues-3.4-lengths",
        title: "MS figure 3.4, four guests: a packet's cost by its length",
        x: "bytes of a frame",
        y: "ns/packet",
        doubling: false,
        points: QUEUE_LENGTHS,
        paper: "one length only",
    },
    Curve {
        name: "queues-3.4-packets",
        title: "MS figure 3.4: 1514-byte frames to the network and back, all guests together",
        x: "guests",
        y: "Mpps",
        doubling: true,
        points: QUEUES,
        paper: "costs only",
    },
    Curve {
        name: "queues-3.5",
        title: "MS figure 3.5: what of a packet's cost is lasthop-uplink's, without the switch's copy and lookup, by number of guests",
        x: "guests",
        y: "ns/packet",
        doubling: true,
        points: QUEUE_UPLINKS,
        paper: "8782 cycles through the bridge, 2872 (0.33) by an own queue: no copy, no bridge, headers not looked at, buffers used again",
    },
];

pub(super) static SPLITS: [Split; 2] = [
    Split {
        name: "snich-5.4",
        title: "PhD figure 5.4: a packet's cost at 650 bytes, no filter",
        plain: LENGTHS,
        listed: None,
        at: 692.0,
        paper: "Linux bridge 88 % neither switching nor copying; sNICh costs the host nothing",
    },
    Split {
        name: "snich-5.6",
        title: "PhD figure 5.6: a packet's cost at 650 bytes, 971 rules",
        plain: LENGTHS,
        listed: Some(RULES_LENGTHS),
        at: 692.0,
        paper: "Linux bridge 75 % filtering, Open vSwitch next to nothing; sNICh costs the host nothing",
    },
];

/// The same contender behind rules and without.
const fn ruled(what: &'static str, paper: &'static str, contender: &'static str) -> Quotient {
    let (over, under) = (of("snich-rules-650", contender, PACKETS), of("snich-650", contender, PACKETS));
    Quotient { figure: "PhD 5.5", what, paper, over, under }
}

/// A contender with two senders and with one. The paper's senders are at their limit and these have a fixed rate, so whoever has room for both
/// carries both, and that says nothing of how a switch scales.
const fn doubled(what: &'static str, contender: &'static str) -> Quotient {
    let (over, under) = (of("snich-two-650", contender, PACKETS), of("snich-one-650", contender, PACKETS));
    Quotient { figure: "PhD 5.7", what, paper: "— (senders at their limit)", over, under }
}

/// `figure` is what [`super::split::cost`] says of the contender.
const fn costs(what: &'static str, paper: &'static str, contender: &'static str, figure: usize) -> Quotient {
    let (over, under) = (of("snich-rules-650", contender, figure), of("snich-650", contender, figure));
    Quotient { figure: "PhD 5.6", what, paper, over, under }
}

/// Streams from a VM to the network, of two cards.
const fn sent(figure: &'static str, what: &'static str, paper: &'static str, over: &'static str) -> Quotient {
    Quotient { figure, what, paper, over: of(over, "lasthop", 0), under: of("card-plain", "lasthop", 0) }
}

/// The same, behind an interface that can do less, and a wire.
const fn sent_to_a_wire(what: &'static str, paper: &'static str, over: &'static str) -> Quotient {
    let (over, under) = (of(over, "lasthop", 0), of("card-nic-plain", "lasthop", 0));
    Quotient { figure: "Menon 7", what, paper, over, under }
}

/// Streams from the network to a VM. What the paper gains there (1.18) is by copying in place of remapping: of offloads it has none for what comes.
const fn came(what: &'static str, over: &'static str) -> Quotient {
    let (over, under) = (of(over, "lasthop", 1), of("card-plain", "lasthop", 1));
    Quotient { figure: "Menon 4", what, paper: "—", over, under }
}

/// One guest with a queue of its own against another way. The paper's has no copy left, which lasthop's has: its value stands for something else.
const fn queued(
    figure: &'static str,
    what: &'static str,
    paper: &'static str,
    against: &'static str,
    of_what: usize,
) -> Quotient {
    let (over, under) = (of("vmdq-guests-1", "lasthop", of_what), of("vmdq-guests-1", against, of_what));
    Quotient { figure, what, paper, over, under }
}

pub(super) static QUOTIENTS: [Quotient; 31] = [
    queued("MS 3.4", "an own queue against a shared one, cost", "—", "lasthop-shared-queue", COST),
    queued(
        "MS 3.4",
        "an own queue against testpmd, TAP and Linux bridge, cost",
        "— (0.57 with the guest's part, without a copy)",
        "bridge-tap",
        COST,
    ),
    queued("MS 3.5", "an own queue against a shared one, lasthop-uplink alone", "—", "lasthop-shared-queue", UPLINK),
    sent("Menon 5", "card with checksums and scatter/gather against plain, transmitted", "—", "card-checksum"),
    sent("Menon 5", "card with all offloads against plain, transmitted", "3.73", "card-whole"),
    sent("Menon 5", "plain card, huge pages of the host, against plain, transmitted", "—", "card-plain-huge"),
    sent(
        "Menon 3",
        "card with all offloads, huge pages of the host, against plain, transmitted",
        "4.41 (the guest's superpages and the I/O channel in it)",
        "card-whole-huge",
    ),
    sent_to_a_wire(
        "all offloads, an interface with checksums and scatter/gather, against plain card",
        "2.68",
        "card-nic-frames",
    ),
    sent_to_a_wire("all offloads, an interface without any, against plain card", "1.95", "card-nic-finished"),
    came("card with checksums and scatter/gather against plain, received", "card-checksum"),
    came("card with all offloads against plain, received", "card-whole"),
    came("card with all offloads, huge pages of the host, against plain, received", "card-whole-huge"),
    Quotient {
        figure: "PhD 4.17",
        what: "two VMs against one, transmitted",
        paper: "1 (line rate; Xen 0.87)",
        over: of("uplink-two", "lasthop", 0),
        under: of("uplink-packet", "lasthop", 0),
    },
    Quotient {
        figure: "PhD 4.17",
        what: "two VMs against one, received",
        paper: "—",
        over: of("uplink-two", "lasthop", 1),
        under: of("uplink-packet", "lasthop", 1),
    },
    Quotient {
        figure: "SV 3",
        what: "lasthop against testpmd, TAP and Linux bridge, median round trip of one interface",
        paper: "0.47",
        over: of("vifs-out-1-time", "lasthop", P50),
        under: of("vifs-out-1-time", "bridge-tap", P50),
    },
    Quotient {
        figure: "SV 3",
        what: "lasthop against testpmd, TAP and Linux bridge, median round trip of 8 interfaces",
        paper: "0.47",
        over: of("vifs-out-8-time", "lasthop", P50),
        under: of("vifs-out-8-time", "bridge-tap", P50),
    },
    Quotient {
        figure: "SV 5",
        what: "lasthop against testpmd, TAP and Linux bridge, throughput of one interface",
        paper: "1.77",
        over: of("vifs-out-1", "lasthop", BYTES),
        under: of("vifs-out-1", "bridge-tap", BYTES),
    },
    Quotient {
        figure: "SV 5",
        what: "lasthop against testpmd, TAP and Linux bridge, throughput of 8 interfaces",
        paper: "2.03",
        over: of("vifs-out-8", "lasthop", BYTES),
        under: of("vifs-out-8", "bridge-tap", BYTES),
    },
    ruled("lasthop: 971 rules against none, packets", "1 (flow switches)", "lasthop"),
    ruled("lasthop as a device: 971 rules against none, packets", "1 (sNICh)", "lasthop-device"),
    ruled("OVS-DPDK: 971 rules against none, packets", "1 (flow switches)", "ovs-learning"),
    ruled("testpmd, TAP and Linux bridge: 971 rules against none, packets", "0.71 at least", "bridge-tap"),
    costs("lasthop: 971 rules against none, cost", "about 1 (Open vSwitch)", "lasthop", CPU),
    costs("lasthop as a device: 971 rules against none, cost", "—", "lasthop-device", BUSY),
    costs("OVS-DPDK: 971 rules against none, cost", "about 1 (Open vSwitch)", "ovs-learning", BUSY),
    costs(
        "testpmd, TAP and Linux bridge: 971 rules against none, cost",
        "about 4 (75 % of it filtering)",
        "bridge-tap",
        BUSY,
    ),
    doubled("lasthop: two senders of 0.2 Mpps against one, packets", "lasthop"),
    doubled("lasthop as a device: two senders of 0.2 Mpps against one, packets", "lasthop-device"),
    doubled("OVS-DPDK: two senders of 0.2 Mpps against one, packets", "ovs-learning"),
    doubled("testpmd, TAP and Linux bridge: two senders of 0.2 Mpps against one, packets", "bridge-tap"),
    Quotient {
        figure: "PhD 5.3",
        what: "lasthop as a device against testpmd, TAP and Linux bridge, packets at 650 bytes",
        paper: "above 1",
        over: of("snich-650", "lasthop-device", PACKETS),
        under: of("snich-650", "bridge-tap", PACKETS),
    },
];
