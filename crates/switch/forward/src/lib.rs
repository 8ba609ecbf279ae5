//! A burst of packets on its way: pop, snapshot, classify, group by destination, reserve, copy, publish, complete.
//!
//! [`Forwarder::carry`] is the spine (docs/architecture.md, "A packet's walk"); each stage is one named call in it. A [`Datapath`]
//! is shared by all threads of the switch; each thread that moves packets has a [`Forwarder`] of its own.

mod actions;
mod burst;
mod current_flow;
mod cursor;
mod datapath;
mod deliver;
#[cfg(feature = "dma")]
mod dma;
mod known;
mod orders;
mod packet;
mod pass;
mod plan;
mod port;
mod rate;
mod repeat;
mod resume;
mod steps;
mod upcall;
mod visit;

#[cfg(test)]
mod tests;

pub use burst::{CACHE_ENTRIES, Forwarder, Outcome, PATIENCE_MS, PORT_CACHE_ENTRIES};
pub use datapath::{Datapath, MAX_METERS};
pub use orders::Orders;
pub use port::{Coalesce, Port, PortTable};
pub use rate::{Meter, RateLimiter};
pub use resume::Order;
pub use upcall::{UPCALL_SLOTS, Upcall};
