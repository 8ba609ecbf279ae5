//! What a session process asks, and what it is answered. Each question has one answer; rings go by their vring index.

#![allow(missing_docs)] // Fields whose names say all.

use lasthop_guestmem::{MapError, RegionSpec};
use lasthop_virtqueue::QueueSetup;
use serde::{Deserialize, Serialize};

/// Longest message, in bytes: a table of regions, or a line of text.
pub const LONGEST: usize = 4096;
/// Most regions in one [`Ask::Table`]: a vhost-user message has no more.
pub const MAX_TABLE: usize = 8;

/// A memory region: the words of a [`RegionSpec`], in its order.
pub type Region = [u64; 4];

/// From a session process to the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// These regions, of each of which a descriptor comes with it, replace all there are. Started rings go over to the new memory if
    /// their bit in `keep` is set, and stop otherwise. Answered with [`Answer::Memory`], once no more is mapped than may be.
    Table { regions: Vec<Region>, keep: u64 },
    /// The same with one region more, whose descriptor comes with it.
    Add { region: Region, keep: u64 },
    /// The same without the region that has these addresses and this size.
    Remove { region: Region, keep: u64 },
    /// Addresses are I/O addresses from now on: the table that translates them comes with it, and an eventfd that is signalled when a page
    /// is asked for; or neither, and they are the guest's again. While no ring is started.
    Translate,
    /// Entries have been taken out of the table. Answered when nothing is under way any more that may have read them.
    Revoked,
    /// Of the ring with this index.
    Ring(u16, RingAsk),
    /// What was negotiated, after this and other things have changed.
    State { features: u64, protocol_features: u64 },
    /// The guest has moved here: this frame is sent in its name, by which others learn that. The guest may send any, so any will do.
    Announce(Vec<u8>),
    /// The front-end told the guest this MTU.
    Mtu(u16),
    /// A request was answered with a failure: a line for the log, and whether the guest's memory is what could not be taken.
    Refused { line: String, of_memory: bool },
    /// The connection has ended, and why; `closed` if the front-end has just hung up. [`Answer::Ended`].
    End { why: String, closed: bool, of_memory: bool },
    /// What is written to the guest is noted from here on in the log that lies there in the file that comes with this;
    /// with none, it no longer is. A ring that rests goes over to it when it is moved. Answered like [`Ask::Table`].
    Log { place: Region },
}

/// What is asked of one ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingAsk {
    /// Its own memory was among the entries that are [`Ask::Revoked`] next: it rests, untouched, until it moves again.
    Rest,
    /// It rests, and can be found again. Of one that does not rest: its buffers are looked at, and their pages asked for.
    Move,
    /// Start it. [`Answer::Done`], or [`Answer::Refused`] and the ring has failed.
    Start { setup: QueueSetup, enabled: bool },
    /// Stop it, and do not watch its kicks. [`Answer::Position`].
    Stop,
    /// It cannot be started, or cannot go on, for this address of the front-end's, or I/O address, leads nowhere; and a line that says so.
    Unmapped { address: u64, why: String },
    /// Packets may pass, or may not.
    Enable(bool),
    /// Is it started, and not broken by its guest since? [`Answer::Started`].
    IsStarted,
    /// The descriptor by which the front-end kicks comes with it; with none, the ring is looked at by and by.
    Kick,
    /// The descriptor by which the guest is interrupted comes with it, or none.
    Call,
    /// The descriptor by which the front-end hears that the ring broke comes with it, or none.
    Err,
}

/// From the switch to a session process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// It cannot be done: one line.
    Refused(String),
    /// Memory, or a file of which it was to be, cannot be mapped.
    Unmapped(MapError),
    /// Where the ring stopped, if it was started.
    Position(Option<u32>),
    /// Whether the ring is started.
    Started(bool),
    /// The memory is there. Where rings stopped, and rings that cannot go on with it.
    Memory { stopped: Vec<(u16, u32)>, failed: Vec<u16> },
    /// The switch has let go of the connection, and here each ring has stopped that was started. Comes unasked, too.
    Ended { stopped: Vec<(u16, u32)> },
}

pub(crate) fn spec(region: Region) -> RegionSpec {
    zerocopy::transmute!(region)
}
