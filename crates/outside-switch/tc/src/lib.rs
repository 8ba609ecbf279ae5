//! Rules of the kernel's classifier `flower` (tc-flower(8)) at the ingress of interfaces, and what they have carried. A network card whose driver
//! knows them carries them out itself (switchdev, Documentation/networking/switchdev.rst of the kernel); the kernel carries out the others.
//!
//! No library of those that speak rtnetlink knows flower, so its few messages are written here; what the kernel answers is read in bounds.

#![forbid(unsafe_code)]

mod message;
mod netlink;
mod rule;
mod said;

pub use netlink::{Failed, Netlink};
pub use rule::{Act, Match, Place, Policy, Rule, Tag, priority};
pub use said::Statistics;

/// Where the rules of flows are: one priority for each protocol, as the kernel wants it, from this one on.
pub const FLOWS: u16 = 0x4c01;
/// Where the rule is that takes what no flow's rule has taken.
pub const REST: u16 = 0x4cff;
