//! What guests are and do in a comparison.

use crate::guests::dpdk::{Frames, Ring};
use crate::guests::granted::Sharing;
use crate::guests::isolation::Isolation;
use crate::guests::load::{Act, Setup};
use crate::guests::minimum::Minimum;
use crate::guests::outside::Place;
use lasthop_loadgen::Attack;

/// What the guests are and do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// DPDK guests pass packets round.
    Loop(Ring, Frames),
    /// Guests of our own.
    Load(Setup, Act),
    /// Memory of each port.
    Memory,
    /// VMs talk TCP and ping.
    Vms,
    /// VMs talk TCP, by lengths of payloads.
    Payloads,
    /// VMs talk TCP and ping, and share their memory in this way.
    Granted(Sharing),
    /// VMs do nothing.
    Idle,
    /// VMs and a network outside.
    Outside(Place),
    /// Guests of our own, and others that do their worst, behind so many access rules.
    Attack(Attack, usize),
    /// A guest of our own with a modest load, alone and beside greedy ones.
    Isolation(Isolation),
    /// A guest of our own that is promised a part of an uplink, and one that is not.
    Minimum(Minimum),
}
