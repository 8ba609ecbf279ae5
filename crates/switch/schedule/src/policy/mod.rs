//! When to kick, when to interrupt, who does the work, how long to stay awake: plain code over plain values, time handed
//! in. The workers run it, unit tests do with a clock of their own, and so does the simulator.
//!
//! Times are nanoseconds on any clock that only goes forward. Nothing here is shared between threads: whoever holds the
//! state's owner (a ring's owner, a queue's lock) calls it.

mod batch;
mod hysteresis;
mod offload;
mod turns;
mod vain;

pub use batch::{Batch, Interrupt, Kicks, ReceiveTimer, TransmitTimer};
pub use hysteresis::{Arrivals, Hysteresis};
pub use offload::{BackOff, Core, choose_core};
pub use turns::{Moved, Turn, Turns};
pub use vain::Vain;

/// What is known of a virtual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vm {
    /// Nothing.
    #[default]
    Unknown,
    /// One of its virtual CPUs runs, on this core.
    Running(usize),
    /// All of its virtual CPUs are blocked.
    Blocked,
}
