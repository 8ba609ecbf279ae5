//! What control asks for: a masked key and what to do with a packet that matches.

use lasthop_frame::{Edit, FlowKey, FlowMask};
use lasthop_types::{DropReason, PortId};
use serde::{Deserialize, Serialize};

/// One step of what happens to a matching packet, in order. A packet that is neither delivered nor dropped by any of them is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
// What an action is stands in a byte of its own: to find it in what an edit leaves unused takes longer, for every output.
#[repr(u8)]
#[non_exhaustive]
pub enum Action {
    /// Deliver to this port, as the packet is at this point.
    Output(PortId),
    /// Drop it and count it under this reason, instead of the general one for a flow without actions.
    Drop(DropReason),
    /// Change the packet from here on: outputs before get it as it was. Where that cannot be the packet is dropped, and nothing behind is
    /// carried out.
    Edit(Edit),
    /// Go on if the packet's port has not flooded all that it may. Else it is dropped.
    LimitFlood,
    /// Deliver no more than so many of its first bytes (14 at least) to this port, whatever the frame's headers say of its length. Of one
    /// that is longer nothing is completed or cut up that its sender asked for: checksums arrive as they were sent.
    Truncated(PortId, u16),
    /// Go on if this meter lets the packet pass, or there is none with its number. Else it is dropped.
    Meter(u32),
    /// A probability, and a number of actions: carry so many of those behind this out on some packets only, drawn by chance. On
    /// probability + 1 of 2³², but with 0 on none. Edits among them hold for what is behind them, too.
    Sample(u32, u16),
    /// Control gets a copy of the header, as the packet is at this point, with this number, whose meaning it knows. If too many copies
    /// of the packet's port wait there is none, and one more packet counts as dropped.
    ToControl(u32),
    /// Give this port a copy of the packet as it is at this point, for a mirror. It is not what becomes of the packet: a packet that is
    /// only copied is dropped, and one that waits for its receiver is copied once. What the port cannot take is lost there.
    Copy(PortId),
}

/// A flow as control installs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// Masked key: bits outside the mask are zero.
    pub key: FlowKey,
    /// Bits that matter.
    pub mask: FlowMask,
    /// What to do; empty drops.
    pub actions: Vec<Action>,
    /// Policy epoch in which this was computed; a flow of an older epoch is recomputed, not hunted.
    pub epoch: u64,
}
