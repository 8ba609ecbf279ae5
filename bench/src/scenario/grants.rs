//! Guests of our own that grant their pages: what they share for good, grant for one use, or reuse.

use super::{OURS, Scenario, VHOST, scenario};
use crate::guests::load::{Act, Setup, Yields};
use crate::switch::uplink::Device;
use crate::work::Work;
use lasthop_loadgen::{Grants, Pattern, Policy};
use std::time::Duration;

/// One guest sends to another. `heap`: pages in which buffers lie by chance; otherwise they are those of a pool.
const fn between(name: &'static str, title: &'static str, grants: Option<Grants>, heap: Option<usize>) -> Scenario {
    let act = Act { pattern: Pattern::OneWay, sizes: "1472", window: Some(128), yields: Yields::Granted, ..Act::PLAIN };
    scenario(name, title, &[OURS, VHOST], Work::Load(Setup { grants, heap, short: true, ..Setup::PLAIN }, act))
}

/// A guest and a world outside.
const fn outside(name: &'static str, title: &'static str, grants: Option<Grants>, heap: Option<usize>) -> Scenario {
    let act = Act { pattern: Pattern::Reflect, sizes: "1472", yields: Yields::Granted, ..Act::PLAIN };
    let setup = Setup { ports: 1, outside: Some(Device::Packet), grants, heap, short: true, ..Setup::PLAIN };
    scenario(name, title, &[OURS], Work::Load(setup, act))
}

const fn policy(policy: Policy) -> Option<Grants> {
    Some(Grants { policy, drain: None })
}

/// As many pages as a Linux guest was seen to use (MS section 4.2).
const SEEN: Option<usize> = Some(1114);
/// Four times as many as a table has places for.
const SPREAD: Option<usize> = Some(16384);
const ALL_OF_IT: Option<Grants> = policy(Policy::All);
const ONCE: Option<Grants> = policy(Policy::Once);
/// Room for all pages of the heap, each half of the table.
const REUSE: Option<Grants> = policy(Policy::Reuse(4096));
const DRAINED: Option<Grants> = Some(Grants { policy: Policy::Reuse(4096), drain: Some(Duration::from_millis(10)) });

/// What sharing by grants costs (PhD figures 3.6 to 3.13, MS figures 4.10 to 4.13), one after the other.
pub(super) static ALL: [Scenario; 13] = [
    between("grants-good", "1472 bytes from guest to guest, buffers in 1114 pages, shared for good", None, SEEN),
    between("grants-all", "1472 bytes from guest to guest, buffers in 1114 pages, all granted once", ALL_OF_IT, SEEN),
    between("grants-once", "1472 bytes from guest to guest, buffers in 1114 pages, granted for one use", ONCE, SEEN),
    between("grants-reuse", "1472 bytes from guest to guest, buffers in 1114 pages, grants reused", REUSE, SEEN),
    between(
        "grants-spread",
        "1472 bytes from guest to guest, buffers in 16384 pages, 4096 grants reused",
        REUSE,
        SPREAD,
    ),
    between("grants-pool-good", "1472 bytes from guest to guest, buffers of a pool, shared for good", None, None),
    between("grants-pool", "1472 bytes from guest to guest, buffers of a pool, grants reused", REUSE, None),
    between(
        "grants-pool-drain",
        "1472 bytes from guest to guest, the pool revokes what is idle every 10 ms",
        DRAINED,
        None,
    ),
    outside(
        "grants-out-good",
        "1472 bytes to the network and back, buffers in 1114 pages, shared for good",
        None,
        SEEN,
    ),
    outside(
        "grants-out-once",
        "1472 bytes to the network and back, buffers in 1114 pages, granted for one use",
        ONCE,
        SEEN,
    ),
    outside(
        "grants-out-reuse",
        "1472 bytes to the network and back, buffers in 1114 pages, grants reused",
        REUSE,
        SEEN,
    ),
    outside(
        "grants-out-pool-good",
        "1472 bytes to the network and back, buffers of a pool, shared for good",
        None,
        None,
    ),
    outside("grants-out-pool", "1472 bytes to the network and back, buffers of a pool, grants reused", REUSE, None),
];
