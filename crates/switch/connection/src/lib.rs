//! A front-end's connection as the switch sees it: what its session process asks, checked again and carried out.
//!
//! The session process (`lasthop-session`, one for each port) speaks vhost-user with the front-end, and asks the switch for what
//! only the switch can do: map memory, start and stop rings, signal. The two trust each other in nothing. The session process asks
//! for things ([`Ask`]) and reads the answer to each ([`Answer`]), mostly before it asks again; the switch checks indices, sizes, addresses and descriptors,
//! does a bounded amount of work for each question, and ends the connection of a process that does not keep to that.

mod connection;
mod messages;
mod rings;

pub use connection::Connection;
pub use messages::{Answer, Ask, LONGEST, MAX_TABLE, Region, RingAsk};
pub use rings::{End, Event, Rings};
