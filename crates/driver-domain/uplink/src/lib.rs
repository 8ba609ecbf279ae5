//! A driver domain: a network device behind the driver side of virtio, in a process that sees its own memory, its device
//! and nothing else. To the switch it is one more guest.
//!
//! | module | holds |
//! |---|---|
//! | [`memory`] | the memfd that is shared with the switch: rings, buffers, and who may touch them |
//! | [`ledger`] | of memory that a device uses itself: who has which piece |
//! | [`progress`] | what is lost when a process ends, counted by the next |
//! | [`pair`] | one queue pair: frames out of the ring, frames into it |
//! | [`device`] | TAP, AF_PACKET, AF_XDP: opening, sending, receiving |
//! | [`gro`] | TCP segments of one flow become one packet |
//! | [`engine`] | the thread of one queue pair: sleeps until there is something to carry |
//! | [`vmq`] | a queue pair for each busy guest, where the device can |
//! | [`probe`] | frames that find two uplinks on one segment: sent, and kept from the switch |
//! | [`announce`] | frames that tell the network where stations are now |
//! | [`link`] | the vhost-user connection to the switch |
//! | [`counters`] | what was carried and what was not |
//! | `room` | unsafe room: system calls on the shared memory, ioctls, socket options |
//!
//! Directions are the network's: `to_network` is what the switch delivers here (virtio's receive queue), `from_network` what
//! the device received (virtio's transmit queue).

pub mod announce;
pub mod counters;
pub mod device;
pub mod engine;
pub mod gro;
pub mod ledger;
pub mod link;
pub mod memory;
pub mod pair;
pub mod probe;
pub mod progress;
mod room;
pub mod vmq;
