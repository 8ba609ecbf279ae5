//! Messages between the supervisor (`lasthop run`), the switch and control, and the socket that carries these and others.
//!
//! Private `SOCK_SEQPACKET` pairs, made by the supervisor: supervisor–switch, supervisor–control (`lasthop-management-ipc`),
//! switch–control, one for each process of an uplink (`lasthop-uplink-ipc`), and for each port supervisor–session process (`lasthop-session-ipc`) and
//! session process–switch (`lasthop-connection`). One message is one packet, at most [`MAX_MESSAGE`] bytes, with at most one
//! descriptor but for the last, where it may have eight.

mod channel;
mod datapath;
#[cfg(any(test, feature = "far"))]
mod far;
mod ring;
#[cfg(test)]
mod ring_tests;
mod rings;
#[cfg(test)]
mod rings_tests;
mod supervisor;
mod sync;

pub use channel::{Channel, ChannelError, MAX_MESSAGE};
pub use datapath::{
    DatapathReply, DatapathRequest, FlowInfo, FromControl, LastError, PortInfo, QueueInfo, ToControl, UpcallPacket,
};
#[cfg(any(test, feature = "far"))]
pub use far::{ControlEnd, PortState, ring_pair};
pub use rings::MessageRings;
pub use supervisor::{PortLimits, RateLimit, SupervisorToSwitch, SwitchSettings, SwitchToSupervisor};

/// The switch's end.
pub type SwitchEnd = MessageRings<ToControl, FromControl>;
