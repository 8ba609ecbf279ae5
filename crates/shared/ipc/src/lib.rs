//! Messages between the supervisor (`lasthop run`), the switch, control and uplinks, and the socket that carries them.
//!
//! Private `SOCK_SEQPACKET` pairs, made by the supervisor: supervisor–switch, supervisor–control, switch–control, and one for
//! each process of an uplink. One message is one packet, at most [`MAX_MESSAGE`] bytes, with at most one descriptor.

mod channel;
mod counters_page;
mod datapath;
mod management;
mod supervisor;
mod uplink;

pub use channel::{Channel, ChannelError, MAX_MESSAGE};
pub use counters_page::{CARRIED_ROWS, COUNTERS_NAME, COUNTERS_PAGE, COUNTERS_ROW};
pub use datapath::{
    DatapathReply, DatapathRequest, FlowInfo, FromControl, PortInfo, PortState, PortVm, QueueInfo, ToControl,
    UpcallPacket,
};
pub use management::{
    ControlToSupervisor, CpuTimes, DeviceState, LISTS_PART, LinkState, MAX_REPLACED, Replaced, Settings,
    SupervisorToControl, UplinkConfig, UplinkInfo,
};
pub use supervisor::{PortConfig, SupervisorToSwitch, SwitchToSupervisor};
pub use uplink::*;
