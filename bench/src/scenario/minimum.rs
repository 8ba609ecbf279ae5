//! A guest that is promised a part of an uplink, and one that is promised nothing: minimum rates beside the classes of `tc` and a policer.

use super::{OURS, POLL, Scenario, scenario};
use crate::contender::Contender;
use crate::guests::minimum::Minimum;
use crate::switch::ovs::Rules;
use crate::work::Work;

const CONTENDERS: &[Contender] = &[OURS, POLL, Contender::Ovs(Rules::Promised), Contender::BridgeTc];

const fn minimum(name: &'static str, title: &'static str, sizes: &'static str, idle: bool) -> Scenario {
    scenario(name, title, CONTENDERS, Work::Minimum(Minimum { sizes, idle }))
}

/// By what the other guest sends.
pub(super) static ALL: [Scenario; 3] = [
    minimum(
        "minimum-frames",
        "two guests want all of an uplink of 200 Mbit/s, 1514-byte frames; one is promised 140",
        "1514",
        false,
    ),
    minimum(
        "minimum-short",
        "two guests want all of an uplink of 200 Mbit/s; one is promised 140, the other sends 64-byte frames",
        "64",
        false,
    ),
    minimum(
        "minimum-idle",
        "one guest wants all of an uplink of 200 Mbit/s, of which another that sends nothing is promised 140",
        "1514",
        true,
    ),
];
