//! What the switch and control say to each other.

use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::{PortId, PortTotals};
use serde::{Deserialize, Serialize};

/// A packet no flow matched. The packet itself stays with the switch; control sees its headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedPacket {
    /// Names the waiting packet in [`FromControl::Resume`].
    pub id: u64,
    /// Its full key.
    pub key: FlowKey,
    /// The header snapshot, at most `SNAPSHOT_LEN` bytes.
    pub header: Vec<u8>,
    /// Length of the whole frame in bytes.
    pub frame_len: u32,
}

/// From the switch to control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToControl {
    /// First message on a new channel: the data plane's ports as they are. Flows are asked for with a request.
    Hello {
        /// Every port.
        ports: Vec<PortInfo>,
    },
    /// A packet waits for an answer.
    Miss(MissedPacket),
    /// A port came, changed (link, features, state) or its counters are not included here.
    Port(PortInfo),
    /// A port was removed. Flows that name it are removed by the switch itself.
    PortGone(PortId),
    /// Part of the answer to a request; the last part has `last` set.
    Reply {
        /// The request's number.
        request: u64,
        /// No further part follows.
        last: bool,
        /// The part.
        reply: DatapathReply,
    },
}

/// From control to the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromControl {
    /// Install or replace a flow.
    PutFlow(FlowSpec),
    /// Remove the flow with exactly this key and mask, if there is one.
    DelFlow {
        /// Masked key.
        key: FlowKey,
        /// Mask.
        mask: FlowMask,
    },
    /// Answer to a miss: do this with the packet now. Empty drops it by policy. Unknown ids are ignored.
    Resume {
        /// [`MissedPacket::id`].
        id: u64,
        /// What to do.
        actions: Vec<Action>,
    },
    /// A question; answered with [`ToControl::Reply`].
    Ask {
        /// Echoed in the reply.
        request: u64,
        /// The question.
        question: DatapathRequest,
    },
    /// Remove all flows.
    ClearFlows,
}

/// Questions control may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatapathRequest {
    /// All flows with their statistics.
    Flows,
    /// All ports with their counters.
    Ports,
    /// Which flow would a packet with this key meet? (`lasthop trace`)
    Lookup(FlowKey),
    /// Parse this frame, as if it had come from the port, to its full key and look it up.
    Classify {
        /// Port it would come from.
        port: PortId,
        /// The frame (at most `SNAPSHOT_LEN` bytes of it) from the Ethernet header on.
        frame: Vec<u8>,
        /// Length of the whole frame.
        frame_len: u32,
    },
    /// Answered when everything sent before has taken effect: no packet is judged by a flow removed before.
    Barrier,
}

/// Answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatapathReply {
    /// Some of the flows.
    Flows(Vec<FlowInfo>),
    /// Some of the ports.
    Ports(Vec<PortInfo>),
    /// The full key and the flow it meets, if any.
    Lookup {
        /// The full key.
        key: FlowKey,
        /// The flow.
        flow: Option<Box<FlowInfo>>,
    },
    /// See [`DatapathRequest::Barrier`].
    Barrier,
}

/// A flow and what it has carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// The flow.
    pub flow: FlowSpec,
    /// Packets that met it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Milliseconds since a packet last met it (since it was installed, if none has).
    pub idle_ms: u64,
}

/// What state a port is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortState {
    /// No front-end is connected.
    Waiting,
    /// Connected; the driver has not enabled its queues.
    Connected,
    /// Carrying packets.
    Up,
    /// Stopped; the text says why. Reset or reconnect by the front-end clears it.
    Broken(String),
}

/// What the VM behind a port does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum PortVm {
    Unknown,
    Running { core: u32 },
    Blocked,
}

/// A port as the data plane sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Its number.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: PortState,
    /// Negotiated virtio features; 0 before negotiation.
    pub features: u64,
    /// Negotiated vhost-user protocol features.
    pub protocol_features: u64,
    /// MTU the front-end announced; 0 if it did not.
    pub mtu: u16,
    /// Guest memory mapped, in bytes.
    pub memory_bytes: u64,
    /// Number of guest memory regions.
    pub memory_regions: u32,
    /// Why the last connection ended, if one did.
    pub last_error: Option<String>,
    /// Its rings, `2 * pair` being the one whose packets go to the guest (virtio receiveq).
    pub queues: Vec<QueueInfo>,
    /// Packets taken from the guest.
    pub from_guest: PortTotals,
    /// Packets delivered to the guest.
    pub to_guest: PortTotals,
    /// Packets taken from the guest that wait for control.
    pub waiting: u64,
    /// Its VM.
    pub vm: PortVm,
}

/// One ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInfo {
    /// Vring index.
    pub index: u16,
    /// Entries.
    pub size: u16,
    /// Packed layout.
    pub packed: bool,
    /// Started and enabled.
    pub enabled: bool,
    /// Why it stopped, if it broke.
    pub error: Option<String>,
}
