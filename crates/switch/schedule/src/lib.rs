//! When which thread does what: the policy, and the threads that follow it (PhD §4.3).
//!
//! Each port has a thread of its own ([`port`]), which sleeps until its guest kicks, moves what is there and sleeps again. It ends when nothing has come for long, and
//! one thread for all such ports starts another when something does ([`silence`]). When more is expected soon it offers the ring to a [`helper`], one for each core, in the idle class, which takes it if the core has
//! nothing else to do, and polls it. A ring whose helper has lost its core is taken back by the port's thread.

mod boosted;
mod coalesce;
#[cfg(any(test, feature = "defaults"))]
mod defaults;
mod helper;
mod mailbox;
mod owned_ring;
mod owner;
pub mod policy;
mod port;
mod silence;
mod sync;
#[cfg(test)]
mod tests;
mod workers;

pub use workers::{Settings, Workers};
