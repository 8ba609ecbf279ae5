//! The larger table: all flows of a device's control, in memory of the host that the device may read. Where no rule of the device's own small
//! table matches a packet, the device walks this one, as a processor walks page tables when its TLB has no entry (Ram, PhD thesis, 7.1).
//!
//! **Two memories.** The *table* is written by control and mapped by the device to be read only. The *marks* are written by the device: how
//! often each flow was found, as a processor sets a page's accessed bit, and what walks took in all. Neither side believes what it reads: a place is looked up in
//! bounds, a chain has an end ([`MOST_STEPS`]), a flow's actions are decoded from a copy. A control that writes nonsense there has the
//! device miss, or install a rule that it might as well have sent.
//!
//! **Order.** A flow is taken out of the table before control says in its rings that it is to go, and is in there before control says that it is to be put. So a
//! device that passes on what control says, and walks in between, never installs a rule behind the word that it is to go: [`Table::walk`] sees
//! all that was written before the last message that was taken from the rings.
//!
//! **A flow that changes while it is read** is none: its place has a sequence number, odd while it is written. So has each mask.

mod layout;
mod marks;
mod table;
mod writer;

pub use layout::{ENTRIES, MARKS_BYTES, TABLE_BYTES};
pub use marks::{Marks, Walks};
pub use table::{Found, MOST_STEPS, Table};
pub use writer::Writer;

#[cfg(test)]
mod tests;
