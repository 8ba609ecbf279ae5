//! The seam to a table of flows that is outside of the data plane: a card's, or the kernel's. It takes flows that control has decided about, carries their
//! packets past the data plane, and says what it has carried. What it cannot express stays in the data plane.
//!
//! [`Table`] is what such a table has to offer. [`Beside`] keeps one beside a data plane: it sees what control and the data plane say to each other, and
//! neither knows of it. [`Flower`] is the kernel's classifier of that name (`tc flower`), and with it a card whose driver knows it; [`Rings`] is a data plane of our own
//! behind the rings (docs/control-rings.md), which can express everything.
#![allow(missing_docs)] // Fields whose names say all.
#![forbid(unsafe_code)]

mod beside;
mod flower;
mod rings;
mod translate;

pub use beside::{Beside, Figures};
pub use flower::{Device, Devices, Flower};
pub use rings::Rings;
pub use translate::rules;

use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{Edit, FlowKey, FlowMask};
use serde::{Deserialize, Serialize};

/// What a flow has carried in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// As the table counts them: a packet that is yet to be cut up may count as its parts.
    pub packets: u64,
    pub bytes: u64,
    /// Since a packet last met it; since it was put, if none has.
    pub idle_ms: u64,
    /// A card carries it, and no processor of the host's.
    pub in_hardware: bool,
}

/// Why a flow stays in the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Why {
    /// It looks at what the table cannot.
    Match,
    /// It does what the table cannot do.
    Action,
    /// It refuses packets, which are counted by their reason.
    Refuses,
    /// It floods, and floods of its sender have a limit.
    Floods,
    /// A port of it is no interface of the table's.
    Port,
    /// A port of it has a rate, which the table would not keep.
    Rate,
    /// The table has no place left, or its sender has as many as are left.
    Full,
    /// The table does not take it, though it is one of those it should.
    Declined,
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Match, Self::Action, Self::Refuses, Self::Floods, Self::Port, Self::Rate, Self::Full, Self::Declined];

    /// In the order of [`Why::ALL`].
    pub fn number(self) -> usize {
        self as usize
    }

    /// One word, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Match => "match",
            Self::Action => "action",
            Self::Refuses => "refuses",
            Self::Floods => "floods",
            Self::Port => "port",
            Self::Rate => "rate",
            Self::Full => "full",
            Self::Declined => "declined",
        }
    }

    /// For people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Match => "they look at what tc flower cannot express",
            Self::Action => "they do what tc flower cannot express, such as a mirror's copies, or more than 16 things",
            Self::Refuses => "they refuse packets, which lasthop counts by their reason",
            Self::Floods => "they flood, and lasthop alone keeps the limit of floods (storm)",
            Self::Port => "their sender or receiver is no port with driver=tc",
            Self::Rate => "their sender or receiver has a rate",
            Self::Full => "the table is full",
            Self::Declined => "the kernel, or the card, did not take them",
        }
    }
}

/// What a table can express. What it can do is not all it has to do: see [`Table::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Bits of a key that it can look at.
    pub mask: FlowMask,
    /// Places, if they are few.
    pub places: usize,
    /// So many actions of a flow.
    pub acts: usize,
    /// More than one output of a packet.
    pub several_outputs: bool,
    /// A VLAN tag that goes or comes.
    pub vlan_edits: bool,
    /// Other changes of headers.
    pub other_edits: bool,
    /// Drops, meters, samples, copies to control and to mirrors, limits of floods.
    pub other_actions: bool,
}

impl Capabilities {
    /// Whether it can express the flow; if not, why.
    pub fn can(&self, flow: &FlowSpec) -> Result<(), Why> {
        let outputs = flow.actions.iter().filter(|action| matches!(action, Action::Output(_))).count();
        let drops = flow.actions.iter().any(|action| matches!(action, Action::Drop(_)));
        if !self.other_actions && (drops || flow.actions.is_empty()) {
            return Err(Why::Refuses);
        }
        if !self.other_actions && flow.actions.contains(&Action::LimitFlood) {
            return Err(Why::Floods);
        }
        if flow.actions.len() > self.acts {
            return Err(Why::Action);
        }
        for action in &flow.actions {
            let can = match action {
                Action::Output(_) => outputs <= 1 || self.several_outputs,
                Action::Edit(Edit::PushVlan { .. } | Edit::PopVlan) => self.vlan_edits,
                Action::Edit(_) => self.other_edits,
                _ => self.other_actions,
            };
            if !can {
                return Err(Why::Action);
            }
        }
        let looks = flow.mask.0.words().iter().zip(self.mask.0.words()).all(|(mask, can)| mask & !can == 0);
        if looks { Ok(()) } else { Err(Why::Match) }
    }
}

/// The table does not do what it must. Nobody knows what it carries now: it has to be emptied, by whoever still can.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

/// Why a table has not taken a flow.
#[derive(Debug)]
pub enum NotPut {
    /// It stays in the data plane.
    Stays(Why),
    /// It may be in the table.
    Lost(Lost),
}

impl From<Why> for NotPut {
    fn from(why: Why) -> Self {
        Self::Stays(why)
    }
}

impl From<Lost> for NotPut {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// A table of flows outside of the data plane. One thread; what is asked for is done when it is answered.
pub trait Table {
    /// What it can express.
    fn capabilities(&self) -> Capabilities;

    /// Whether it would take the flow, had it a place.
    fn judge(&self, flow: &FlowSpec) -> Result<(), Why> {
        self.capabilities().can(flow)
    }

    /// Takes a flow. What it refuses, for whatever reason, stays in the data plane: it may take the flow for fewer packets than it matches, but for none that it
    /// does not match.
    fn put(&mut self, flow: &FlowSpec) -> Result<(), NotPut>;

    /// Lets go of the flow with exactly this key and mask, and says what it has carried. Afterwards no packet meets it.
    fn delete(&mut self, key: &FlowKey, mask: &FlowMask) -> Result<Carried, Lost>;

    /// Lets go of all flows.
    fn clear(&mut self) -> Result<(), Lost>;

    /// What each flow has carried.
    fn statistics(&mut self, each: &mut dyn FnMut(&FlowKey, &FlowMask, Carried)) -> Result<(), Lost>;
}
