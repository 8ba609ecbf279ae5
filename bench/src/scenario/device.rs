//! A switch in the network card: K. K. Ram, *New Architectures and Mechanisms for the Network Subsystem in Virtualized Servers*, figures 5.3 to 5.7.
//!
//! UDP payloads of 250 to 1050 bytes from one guest to another; behind 971 rules of which none matches; from two guests to one. As in the
//! paper the switch has one CPU; here all guests share another. That one is the limit where the switch is quick, so a sender whose own CPU is the
//! limit, as the paper has it, is not to be had: two senders have a fixed rate, which shows who has room for both, and not how a switch scales.

use super::{Contender, LEARN, OURS, POLL, Scenario, scenario};
use crate::guests::load::{Act, Setup};
use crate::work::Work;
use lasthop_loadgen::Pattern;

const DEVICE: Contender = Contender::Device;
const BRIDGE: Contender = Contender::BridgeTap;
/// Open vSwitch learns behind the list, as the others do.
const CONTENDERS: &[Contender] = &[OURS, POLL, DEVICE, LEARN, BRIDGE];
/// Packets a second of a sender that is not at its limit.
const RATE: f64 = 2e5;
const ONE_WAY: Act = Act { pattern: Pattern::OneWay, ..Act::PLAIN };

/// No list.
const fn plain(name: &'static str, title: &'static str, sizes: &'static str) -> Scenario {
    scenario(name, title, CONTENDERS, Work::Load(Setup::PLAIN, Act { sizes, ..ONE_WAY }))
}

/// The thesis' list, and so many ports.
const fn listed(name: &'static str, title: &'static str, ports: usize, act: Act) -> Scenario {
    let setup = Setup { rules: 971, ports, ..Setup::PLAIN };
    scenario(name, title, CONTENDERS, Work::Load(setup, act))
}

const fn rules(name: &'static str, title: &'static str, sizes: &'static str) -> Scenario {
    listed(name, title, 2, Act { sizes, ..ONE_WAY })
}

/// So many senders and one who receives.
const fn paced(name: &'static str, title: &'static str, senders: usize, sizes: &'static str) -> Scenario {
    let rate = Some(RATE * senders as f64);
    listed(name, title, senders + 1, Act { pattern: Pattern::Incast, sizes, rate, window: None, ..Act::PLAIN })
}

/// By bytes of payload; frames are 42 longer. Those of a setup one after the other, so that they are played on one switch.
pub(super) static ALL: [Scenario; 16] = [
    plain("snich-250", "UDP with 250 bytes from guest to guest", "292"),
    plain("snich-450", "UDP with 450 bytes from guest to guest", "492"),
    plain("snich-650", "UDP with 650 bytes from guest to guest", "692"),
    plain("snich-850", "UDP with 850 bytes from guest to guest", "892"),
    plain("snich-1050", "UDP with 1050 bytes from guest to guest", "1092"),
    rules("snich-rules-250", "UDP with 250 bytes from guest to guest, 971 rules", "292"),
    rules("snich-rules-450", "UDP with 450 bytes from guest to guest, 971 rules", "492"),
    rules("snich-rules-650", "UDP with 650 bytes from guest to guest, 971 rules", "692"),
    rules("snich-rules-850", "UDP with 850 bytes from guest to guest, 971 rules", "892"),
    rules("snich-rules-1050", "UDP with 1050 bytes from guest to guest, 971 rules", "1092"),
    paced("snich-one-250", "200 000 packets a second of 250 bytes from one guest, 971 rules", 1, "292"),
    paced("snich-one-650", "200 000 packets a second of 650 bytes from one guest, 971 rules", 1, "692"),
    paced("snich-one-1050", "200 000 packets a second of 1050 bytes from one guest, 971 rules", 1, "1092"),
    paced(
        "snich-two-250",
        "200 000 packets a second of 250 bytes from each of two guests to a third, 971 rules",
        2,
        "292",
    ),
    paced(
        "snich-two-650",
        "200 000 packets a second of 650 bytes from each of two guests to a third, 971 rules",
        2,
        "692",
    ),
    paced(
        "snich-two-1050",
        "200 000 packets a second of 1050 bytes from each of two guests to a third, 971 rules",
        2,
        "1092",
    ),
];
