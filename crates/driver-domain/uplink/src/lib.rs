//! A driver domain: a network device behind the driver side of virtio, in a process that sees its own memory, its device
//! and nothing else. To the switch it is one more guest.
//!
//! | module | holds |
//! |---|---|
//! | [`memory`] | the memfd that is shared with the switch: rings, buffers, and who may touch them |
//! | [`pair`] | one queue pair: frames out of the ring, frames into it |
//! | [`device`] | TAP, AF_PACKET, AF_XDP: opening, sending, receiving |
//! | [`engine`] | the thread of one queue pair: sleeps until there is something to carry |
//! | [`survival`] | what outlives a process: who has which piece, what was lost, where stations are, two uplinks on one segment |
//! | [`link`] | the vhost-user connection to the switch |
//! | [`counters`] | what was carried and what was not |
//! | `room` | unsafe room: system calls on the shared memory, ioctls, socket options |
//!
//! Beside it: [`lasthop_aggregation`] (TCP segments of one flow become one packet) and [`lasthop_guest_queues`] (a queue pair for
//! each busy guest, where the device can).
//!
//! Directions are the network's: `to_network` is what the switch delivers here (virtio's receive queue), `from_network` what
//! the device received (virtio's transmit queue).

pub mod counters;
pub mod device;
pub mod engine;
pub mod link;
pub mod memory;
pub mod pair;
mod room;
pub mod survival;
