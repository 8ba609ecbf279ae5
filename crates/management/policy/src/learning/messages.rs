//! What goes into the learning switch and what comes out of it.

use crate::{CONNECTIONS, FLOWS_MAX, FLOWS_PER_PORT_MAX, MASKS_MAX};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::PortId;

/// How much may be remembered.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Addresses, all ports of guests together.
    pub macs: usize,
    /// Addresses per port; a port's share `macs / ports` when that is less.
    pub macs_per_port: usize,
    /// Addresses, all uplinks together.
    pub uplink_macs: usize,
    /// Addresses per uplink; an uplink's share `uplink_macs / uplinks` when that is less. A second one finds room at once.
    pub macs_per_uplink: usize,
    /// Flows, all ports together.
    pub flows: usize,
    /// Flows whose packets come from one port.
    pub flows_per_port: usize,
    /// Different masks of flows; one more, which is exact, may come on top.
    pub masks: usize,
    /// Flows that are put right at once when a change has made them wrong, in each millisecond; the others follow in slices of
    /// as many ([`Learning::put_right`](super::Learning::put_right)).
    pub at_once: usize,
    /// Connections, all ports together.
    pub connections: usize,
    /// The data plane holds a cache of the flows, so one that it does not tell of is not forgotten here.
    pub data_plane_caches: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            macs: 65_536,
            macs_per_port: 4096,
            uplink_macs: 65_536,
            macs_per_uplink: 32_768,
            flows: FLOWS_MAX,
            flows_per_port: FLOWS_PER_PORT_MAX,
            masks: MASKS_MAX,
            at_once: 32,
            connections: CONNECTIONS,
            data_plane_caches: false,
        }
    }
}

/// What to do with a waiting packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The number under which the miss came.
    pub id: u64,
    /// Empty drops.
    pub actions: Vec<Action>,
}

/// A change of the switch's flow table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Install or replace.
    Put(FlowSpec),
    /// Remove the flow with exactly this key and mask.
    Del(FlowKey, FlowMask),
    /// Remove all flows.
    Clear,
}

/// What must be sent to the switch. Send `changes` first, in order, then `resumes`: what a packet has taught must be known
/// before the packet is delivered, or the answer to it goes the old way. (The switch sends packets that wait for a flow on
/// their way before it installs the flow, so none is overtaken.)
#[derive(Debug, Default)]
pub struct Effects {
    /// Answers to misses, in the order the misses came.
    pub resumes: Vec<Resume>,
    /// Flow changes, in the order they must take effect.
    pub changes: Vec<Change>,
}

impl Effects {
    /// Nothing to send.
    pub fn is_empty(&self) -> bool {
        self.resumes.is_empty() && self.changes.is_empty()
    }
}

/// A flow of the switch and when it was last used, from its statistics.
#[derive(Clone, Debug)]
pub struct FlowUse {
    /// The flow.
    pub spec: FlowSpec,
    /// Milliseconds since a packet last met it.
    pub idle_ms: u64,
    /// Packets that have met it.
    pub packets: u64,
}

/// A source address that a port's packets have, and that lives at another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedSource {
    /// VLAN id; 0 without one.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// Where it lives now, if that is known.
    pub lives_at: Option<PortId>,
    /// When the last such packet came to control, in ms.
    pub at_ms: u64,
}

/// A port as policy sees it, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortView {
    /// Addresses learned there.
    pub macs: usize,
    /// Most that it may have, with as many ports as there are.
    pub mac_limit: usize,
    /// Flows whose packets come from there.
    pub flows: usize,
    /// Packets whose source was not learned because the port or the table was full.
    pub over_limit: u64,
    /// Packets whose source is held at another port because it moved too often.
    pub moves_refused: u64,
    /// The last of these sources.
    pub refused: Option<RefusedSource>,
    /// Addresses that moved to this port from another.
    pub moves: u64,
}
