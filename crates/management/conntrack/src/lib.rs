//! Connection tracking with Open vSwitch's meaning: zones, states, marks, labels, address translation. docs/decisions/connections.md says why
//! control keeps it and not the switch.
//!
//! [`Tracker::process`] takes a packet and says what it is to its connection; [`Tracker::peek`] says the same and changes nothing. Everything else is for whoever
//! keeps the table: [`Tracker::expire`], [`Tracker::ended`], [`Tracker::dump`], [`Tracker::flush`], limits and time-outs. Time is handed in; there is no I/O, no
//! guest memory, no `unsafe`. Every method may be called from any thread and does a bounded amount of work. Control has one thread; nothing here relies on that.

#![forbid(unsafe_code)]

mod buckets;
mod entry;
mod fragment;
mod headers;
mod keep;
mod list;
mod nat;
mod packet;
mod process;
mod refusal;
mod sctp;
mod shard;
mod state;
mod tcp;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testutil"))]
pub mod testutil;
mod timeouts;
mod tracker;
mod tuple;

pub use headers::Headers;
pub use keep::opens;
pub use list::{Connection, Cursor, Filter, ZoneStats};
pub use nat::{Nat, Range};
pub use packet::View;
pub use process::{Action, Commit, CtState, Verdict};
pub use refusal::{REFUSALS, Refusal};
pub use sctp::SctpState;
pub use state::ProtoState;
pub use tcp::{TcpRules, TcpState};
pub use timeouts::{CLASSES, Class, POLICIES};
pub use tracker::{Config, Ended, Totals, Tracker};
pub use tuple::Tuple;
