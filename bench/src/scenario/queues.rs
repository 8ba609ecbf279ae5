//! A queue of one's own: K. K. Ram, *Efficient Virtualization of Network Interfaces Without Sacrificing Safety and Transparency*, figures 3.4 and
//! 3.5.
//!
//! There a guest receives TCP from another machine, through a queue of a card that its packets alone come by and that lies in its own memory, or
//! through the one that all share, behind a software bridge in the driver domain. Here the card is one end of a veth pair with several queues, and
//! what tells packets apart is an XDP program behind it; the switch copies each packet once, either way. Guests talk to a world outside that sends
//! everything back, so that each packet goes out, too. By number of guests and by length, which the paper does not vary.

use super::{OURS, Scenario, scenario};
use crate::contender::Contender;
use crate::guests::load::{Act, Setup, Yields};
use crate::switch::uplink::Device;
use crate::work::Work;
use lasthop_loadgen::Pattern;

const CONTENDERS: &[Contender] = &[OURS, Contender::SharedQueue, Contender::BridgeTap];

/// So many guests, 256 packets of all together on their way: as many as a veth's queue has places.
const fn guests(name: &'static str, title: &'static str, guests: u16, sizes: &'static str) -> Scenario {
    let outside = Some(Device::XdpQueues(guests + 1));
    let setup = Setup { ports: guests as usize, short: true, outside, ..Setup::PLAIN };
    let window = Some(256 / guests as u32);
    let act = Act { pattern: Pattern::Reflect, sizes, window, yields: Yields::Queues, ..Act::PLAIN };
    scenario(name, title, CONTENDERS, Work::Load(setup, act))
}

/// Those of a setup one after the other.
pub(super) static ALL: [Scenario; 8] = [
    guests("vmdq-guests-1", "one guest, 1514-byte frames to the network and back", 1, "1514"),
    guests("vmdq-guests-2", "two guests, 1514-byte frames to the network and back", 2, "1514"),
    guests("vmdq-guests-4", "four guests, 1514-byte frames to the network and back", 4, "1514"),
    guests("vmdq-size-64", "four guests, 64-byte frames to the network and back", 4, "64"),
    guests("vmdq-size-256", "four guests, 256-byte frames to the network and back", 4, "256"),
    guests("vmdq-size-512", "four guests, 512-byte frames to the network and back", 4, "512"),
    guests("vmdq-size-1024", "four guests, 1024-byte frames to the network and back", 4, "1024"),
    guests("vmdq-guests-8", "eight guests, 1514-byte frames to the network and back", 8, "1514"),
];
