//! What ports cost each other: a guest with a modest load beside greedy ones, by two and by eight guests that send.

use super::{LEARN, OURS, POLICED, POLL, Scenario, scenario};
use crate::contender::Contender;
use crate::guests::isolation::{self, Greed, Isolation};
use crate::work::Work;

const TAP: Contender = Contender::BridgeTap;
const TC: Contender = Contender::BridgeTc;
const ALL_EQUAL: &[Contender] = &[OURS, POLL, LEARN, POLICED, TAP, TC];
/// Open vSwitch has no weights, but a policer for each port; `tc` has classes at each.
const WEIGHED: &[Contender] = &[OURS, POLL, POLICED, TC];
const UNPOLICED: &[Contender] = &[OURS, POLL, LEARN, TAP];

const LARGE: Greed = Greed { sizes: isolation::LARGE, ..Greed::PLAIN };
const FRAME: Greed = Greed { sizes: isolation::FRAME, ..Greed::PLAIN };
const BYTES: &[Greed] = &[LARGE, Greed::PLAIN];
const WEIGHTS: &[Greed] = &[Greed { weight: 300, ..LARGE }, Greed::PLAIN];
const FRAMES: &[Greed] = &[LARGE, FRAME];
const FRAME_WEIGHTS: &[Greed] = &[Greed { weight: 300, ..LARGE }, FRAME];
const KICKS: &[Greed] = &[Greed { kicks: true, ..Greed::PLAIN }];
const FLOWS: &[Greed] = &[Greed { flows: 100, ..Greed::PLAIN }, Greed::PLAIN];

/// One thread plays all guests, on one CPU.
const TOGETHER: bool = false;
/// Each guest is on a CPU of its own, so that each always has something to send.
const APART: bool = true;

const fn beside(
    name: &'static str,
    title: &'static str,
    contenders: &'static [Contender],
    kinds: &'static [Greed],
    greedy: usize,
    apart: bool,
) -> Scenario {
    scenario(name, title, contenders, Work::Isolation(Isolation { kinds, greedy, apart }))
}

/// By what the greedy guests do.
pub(super) static ALL: [Scenario; 16] = [
    beside(
        "isolation-bytes-2",
        "64 KiB packets against 64-byte frames, flat out, and a modest guest",
        ALL_EQUAL,
        BYTES,
        2,
        TOGETHER,
    ),
    beside(
        "isolation-bytes-2-weights",
        "64 KiB packets against 64-byte frames, weights 3 : 1, and a modest guest",
        WEIGHED,
        WEIGHTS,
        2,
        TOGETHER,
    ),
    beside(
        "isolation-bytes-2-frames",
        "64 KiB packets against 1514-byte frames, flat out, and a modest guest",
        ALL_EQUAL,
        FRAMES,
        2,
        TOGETHER,
    ),
    beside(
        "isolation-bytes-2-frames-weights",
        "64 KiB packets against 1514-byte frames, weights 3 : 1, and a modest guest",
        WEIGHED,
        FRAME_WEIGHTS,
        2,
        TOGETHER,
    ),
    beside(
        "isolation-bytes-8",
        "four guests with 64 KiB packets, three with 64-byte frames, flat out, and a modest one",
        ALL_EQUAL,
        BYTES,
        7,
        TOGETHER,
    ),
    beside(
        "isolation-bytes-8-frames",
        "four guests with 64 KiB packets, three with 1514-byte frames, flat out, and a modest one",
        ALL_EQUAL,
        FRAMES,
        7,
        TOGETHER,
    ),
    beside("isolation-kicks-2", "a guest that kicks in a storm, and a modest guest", UNPOLICED, KICKS, 1, TOGETHER),
    beside("isolation-kicks-8", "seven guests that kick in a storm, and a modest guest", UNPOLICED, KICKS, 7, TOGETHER),
    beside(
        "isolation-flows-2",
        "100 flows against one, 64-byte frames, flat out, and a modest guest",
        ALL_EQUAL,
        FLOWS,
        2,
        TOGETHER,
    ),
    beside(
        "isolation-flows-8",
        "four guests with 100 flows, three with one, 64-byte frames, flat out, and a modest guest",
        ALL_EQUAL,
        FLOWS,
        7,
        TOGETHER,
    ),
    beside(
        "isolation-apart-bytes-2",
        "64 KiB packets against 64-byte frames, each guest on a CPU",
        ALL_EQUAL,
        BYTES,
        2,
        APART,
    ),
    beside(
        "isolation-apart-bytes-2-weights",
        "64 KiB packets against 64-byte frames, weights 3 : 1, each guest on a CPU",
        WEIGHED,
        WEIGHTS,
        2,
        APART,
    ),
    beside(
        "isolation-apart-bytes-8-frames",
        "four guests with 64 KiB packets, three with 1514-byte frames, each guest on a CPU",
        ALL_EQUAL,
        FRAMES,
        7,
        APART,
    ),
    beside(
        "isolation-apart-bytes-8-frames-weights",
        "four guests with 64 KiB packets, three with 1514-byte frames, weights 3 : 1, each guest on a CPU",
        WEIGHED,
        FRAME_WEIGHTS,
        7,
        APART,
    ),
    beside(
        "isolation-apart-kicks-8",
        "seven guests that kick in a storm, each guest on a CPU",
        UNPOLICED,
        KICKS,
        7,
        APART,
    ),
    beside(
        "isolation-apart-flows-8",
        "four guests with 100 flows, three with one, each guest on a CPU",
        ALL_EQUAL,
        FLOWS,
        7,
        APART,
    ),
];
