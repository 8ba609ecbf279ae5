//! The packet path's stages, each prepared so that a counted function has only to run it. What they count is
//! [`PACKETS`] packets, taken through the public interface that the switch itself uses.

mod amount;
mod classify;
mod cycles;
mod walk;

pub use amount::{BURSTS, PACKETS};
pub use classify::{Extraction, Lookups};
pub use cycles::Cycles;
pub use walk::{Take, Traffic, Walk};

/// A stage that is ready to run.
pub trait Stage {
    /// What is counted.
    fn run(&mut self);

    /// Panics unless the stage has done what it is there for.
    fn check(self: Box<Self>);
}
