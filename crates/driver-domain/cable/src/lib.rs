//! A cable between two switches of one host: a vhost-user front-end at a port of each. What one switch delivers into a buffer here, the other
//! reads from that very buffer, so the cable copies nothing: it moves descriptors from a ring to a ring, and gives the buffers back.
//!
//! | module | holds |
//! |---|---|
//! | `memory` | the one memfd with four rings and the buffers of both directions |
//! | `way` | one direction: from the ring that one switch fills to the ring that the other reads |
//! | `plug` | what a front-end says to bring a port up |
//! | `cable` | both directions, and the thread that carries |
//!
//! Both switches see this memory and nothing else of each other's. The cable believes neither: whatever a switch writes into a ring, or says of
//! a packet, is checked, and a switch that breaks the rules ends the cable.

mod cable;
mod memory;
mod plug;
mod way;

pub use cable::{Cable, CableError};
pub use way::WayError;

#[cfg(test)]
mod tests;
