//! The scheduling policy of `lasthop-schedule` on hosts that are not at hand: the very code, driven by a virtual clock.
//!
//! [`World`] is a host with its guests and whoever carries their packets; everything that takes time is a step on a core,
//! and what a step costs is an input ([`Costs`]). `docs/simulation.md` describes the model.

mod clock;
mod guest;
mod helper;
mod host;
mod inputs;
pub mod paper;
mod plot;
mod random;
mod report;
mod sched;
mod service;
mod setup;
mod stats;
mod switch;
#[cfg(test)]
mod tests;
pub mod today;
mod worker;
mod world;

pub use host::Host;
pub use inputs::{Costs, Input, PAPER, TODAY, parse_table};
pub use report::Report;
pub use setup::{Bursts, Carrier, Flow, Mechanisms, Setup, Traffic};
pub use stats::{Account, Stats};
pub use world::World;
