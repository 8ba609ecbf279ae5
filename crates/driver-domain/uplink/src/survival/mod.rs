//! What makes the death of an uplink's process, or of a path to the network, something that others survive.
//!
//! | module | holds |
//! |---|---|
//! | [`ledger`] | of memory that a device uses itself: who has which piece, for the next process to take over |
//! | [`progress`] | what is lost when a process ends, counted by the next |
//! | [`probe`] | frames that find two uplinks on one segment: sent, and kept from the switch |
//! | [`announce`] | frames that tell the network where stations are after a change |

pub mod announce;
pub mod ledger;
pub mod probe;
pub mod progress;
