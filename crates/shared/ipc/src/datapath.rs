//! What the switch and control say to each other.
#![allow(missing_docs)] // Fields whose names say all. Frame lengths are of whole frames, in bytes.

use lasthop_flow::{Action, FlowSpec, Position};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::{CacheFigures, PortId, PortTotals};
use serde::{Deserialize, Serialize};

/// A packet no flow matched: it stays with the switch, and control sees its headers. Or a copy of the headers of one that goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpcallPacket {
    /// Names the waiting packet in [`FromControl::Resume`].
    pub id: u64,
    /// Nothing waits: a flow had this copied for control ([`Action::ToControl`]), with this number.
    pub copy: Option<u32>,
    pub key: FlowKey,
    /// The header snapshot, at most `SNAPSHOT_LEN` bytes and what actions have put in front.
    pub header: Vec<u8>,
    pub frame_len: u32,
}

/// From the switch to control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToControl {
    /// The data plane's ports are those said since the channel began. Flows are asked for with a request.
    Hello,
    /// A packet waits for an answer.
    Upcall(UpcallPacket),
    /// A port came, changed (link, features, state) or its counters are not included here.
    Port(PortInfo),
    /// A port was removed. Flows that name it are removed by the switch itself.
    PortGone(PortId),
    /// Part of the answer to a request; the last part has `last` set.
    Reply { request: u64, last: bool, reply: DatapathReply },
    /// A flow has been removed as control has said, with what it has carried. Before the answer to a [`DatapathRequest::Barrier`] that was asked after that.
    Ended(Box<FlowInfo>),
}

/// From control to the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromControl {
    /// Install or replace a flow.
    PutFlow(FlowSpec),
    /// Remove the flow with exactly this key and mask, if there is one; with `tell`, [`ToControl::Ended`] says what it has carried.
    DelFlow { key: FlowKey, mask: FlowMask, tell: bool },
    /// Answer to the upcall with this [`UpcallPacket::id`]: do this with the packet now. Empty drops it by policy. Unknown ids are ignored.
    Resume { id: u64, actions: Vec<Action> },
    /// A question; answered with [`ToControl::Reply`] of the same number.
    Ask { request: u64, question: DatapathRequest },
    /// Remove all flows.
    ClearFlows,
    /// The meter of this number lets so much through from now on: bytes and packets a second (0: any number), and nanoseconds' worth that
    /// may be made up for. `None`: there is none, and flows that name it go on without; nor is one whose number is 4096 or above. Meters
    /// stay when control goes.
    SetMeter { id: u32, rates: Option<[u64; 3]> },
}

/// Questions control may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatapathRequest {
    /// Some flows with their statistics, from this place on, (0, 0, 0) at first. A part at a time, so that misses have their turn
    /// in between and neither side has to keep the whole.
    Flows { after: Position },
    /// All ports with their counters.
    Ports,
    /// Which flow would a packet with this key meet? (`lasthop trace`)
    Lookup(FlowKey),
    /// What has met the meter of this number since it was set?
    Meter(u32),
    /// Answered when everything sent before has taken effect: no packet is judged by a flow removed before.
    Barrier,
}

/// Answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatapathReply {
    /// Some of the flows, and where to go on asking; `None` behind the last. One may come twice.
    Flows { flows: Vec<FlowInfo>, next: Option<Position> },
    /// Some of the ports.
    Ports(Vec<PortInfo>),
    /// Behind the ports: what those counted that were removed, so that sums over all add up, and what flow caches did.
    Removed { from_guest: PortTotals, to_guest: PortTotals, caches: CacheFigures },
    /// The full key and the flow it meets, if any.
    Lookup { key: FlowKey, flow: Option<Box<FlowInfo>> },
    /// Packets and bytes that a meter let through, and those that it dropped; zeros if there is none.
    Meter { id: u32, passed: [u64; 2], dropped: [u64; 2] },
    /// See [`DatapathRequest::Barrier`].
    Barrier,
}

/// A flow and what it has carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    pub flow: FlowSpec,
    pub packets: u64,
    pub bytes: u64,
    /// Milliseconds since a packet last met it (since it was installed, if none has).
    pub idle_ms: u64,
}

/// What went wrong last at a port: why a connection ended, what was refused, or which ring broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// For people.
    pub line: String,
    /// The guest's memory could not be taken.
    pub of_memory: bool,
}

/// A port as the data plane sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    pub id: PortId,
    pub name: String,
    /// A front-end is.
    pub connected: bool,
    /// It carries packets.
    pub up: bool,
    /// Which ring broke, and why. Reset or reconnect by the front-end clears it.
    pub broken: Option<String>,
    /// Negotiated virtio features; 0 before negotiation.
    pub features: u64,
    /// Negotiated vhost-user protocol features.
    pub protocol_features: u64,
    /// MTU the front-end announced; 0 if it did not.
    pub mtu: u16,
    pub memory_bytes: u64,
    pub memory_regions: u32,
    /// If its guest's own IOMMU translates addresses: ranges known, pages asked for and not answered, then updates, invalidations, pages asked
    /// for and pages refused since it was connected.
    pub translation: Option<[u64; 6]>,
    pub last_error: Option<LastError>,
    /// Its rings, `2 * pair` being the one whose packets go to the guest (virtio receiveq).
    pub queues: Vec<QueueInfo>,
    pub from_guest: PortTotals,
    pub to_guest: PortTotals,
    /// Packets taken from the guest that wait for control.
    pub waiting: u64,
    /// Where the VM behind it is in the host view, if one is watched.
    pub vm: Option<u32>,
}

/// One ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInfo {
    pub index: u16,
    pub size: u16,
    pub packed: bool,
    /// Started and enabled.
    pub enabled: bool,
    /// Its descriptors are as memory is that nobody has written to.
    pub blank: bool,
    /// Why it stopped, if it broke.
    pub error: Option<String>,
}
