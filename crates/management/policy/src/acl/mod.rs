//! Access lists: ordered rules that permit or deny a frame, first match wins.
//!
//! | file | does |
//! |---|---|
//! | `rule` | a rule and its text |
//! | `parse` | files of rules, with errors that name line and column |
//! | `classbench` | filter sets of ClassBench and its kin |
//! | `words` | the words of a line |
//! | `nat` | rules that translate addresses |
//! | `basics` | what stateful lists permit without a rule |
//! | `sets` | named sets of addresses |
//! | `list` | what a list says of a frame, by the classifier |
//! | `book` | which list holds for which port and direction, and how all of them are kept in one text |
//!
//! # What is judged where
//!
//! A frame is judged by the `from_guest` list of the port it comes from, then by the `to_guest` list of each port it
//! would go to. A port and direction has at most one list: its own if it has one, else that of all guests or of all uplinks,
//! whichever the port is. Without a list,
//! and where no rule matches and the list's default says so, the frame passes.
//!
//! Every frame is judged, ARP and neighbour discovery too: nothing is permitted silently, and answers need a rule of their own.
//! A list that is *stateful* is otherwise: packets of connections that were answered pass without asking its rules, what belongs to none and opens none is
//! dropped, and what a guest needs to find its neighbours and an address passes where no rule says otherwise (`basics`).
//!
//! # Frames whose headers are not all there
//!
//! * A later fragment has no ports and no ICMP type. A permit rule that names some matches it by the rest of the rule;
//!   a deny rule that names some does not match. (RFC 1858 §3: without its first fragment, which is judged in full, the
//!   rest of a datagram is of no use to a receiver.)
//! * A frame with malformed headers (`FlowKey::anomalies`), such as a first fragment too short for its ports, is dropped
//!   by every list with a rule that looks behind the VLAN tags: its receiver may read it differently from us.

mod basics;
mod book;
mod classbench;
mod list;
mod nat;
mod parse;
mod rule;
mod sets;
mod words;

pub use book::{Book, BookError, Scope};
pub use classbench::{ClassBench, read as read_classbench};
pub use lasthop_classifier::Addresses;
pub use list::{Decision, List, Standing};
pub use nat::{Target, Translation};
pub use parse::{Lists, Located, MAX_RULES, MAX_TEXT, Rules, looks_like_classbench, read};
pub use rule::{Action, Direction, Ether, Mac, Place, Prefix, Range, Rule};
pub use sets::{AddressSet, MAX_MEMBERS, MAX_SETS, check_set_name, read_member};
pub(crate) use words::{host_bits, prefix};

#[cfg(test)]
mod figures;
#[cfg(test)]
mod tests;
