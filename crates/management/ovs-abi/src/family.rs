//! The generic netlink families of Open vSwitch, and the numbers of `linux/openvswitch.h` that they go by.

/// A family: its number, which nobody but this crate's users and Open vSwitch needs to know, its name and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Type of its messages.
    pub id: u16,
    /// What it is asked for by.
    pub name: &'static str,
    /// As the kernel's.
    pub version: u8,
    /// Its multicast group.
    pub group: Option<u32>,
}

/// Datapaths.
pub const DATAPATH: Family = Family { id: 0x20, name: "ovs_datapath", version: 2, group: None };
/// Ports.
pub const VPORT: Family = Family { id: 0x21, name: "ovs_vport", version: 1, group: Some(1) };
/// Flows.
pub const FLOW: Family = Family { id: 0x22, name: "ovs_flow", version: 1, group: None };
/// Packets.
pub const PACKET: Family = Family { id: 0x23, name: "ovs_packet", version: 1, group: None };
/// Meters.
pub const METER: Family = Family { id: 0x24, name: "ovs_meter", version: 1, group: None };
/// Limits of connections.
pub const CT_LIMIT: Family = Family { id: 0x25, name: "ovs_ct_limit", version: 1, group: None };
/// Those there are.
pub const ALL: [Family; 6] = [DATAPATH, VPORT, FLOW, PACKET, METER, CT_LIMIT];

/// Commands of datapaths, ports and flows.
pub mod command {
    /// Make one.
    pub const NEW: u8 = 1;
    /// Remove it.
    pub const DEL: u8 = 2;
    /// Tell of it.
    pub const GET: u8 = 3;
    /// Change it.
    pub const SET: u8 = 4;
}

/// Commands of packets.
pub mod packet_command {
    /// To Open vSwitch: met no flow.
    pub const MISS: u8 = 1;
    /// To Open vSwitch: a flow sends it.
    pub const ACTION: u8 = 2;
    /// From Open vSwitch: do this with it.
    pub const EXECUTE: u8 = 3;
}

/// Attributes of a datapath.
pub mod datapath {
    #![allow(missing_docs)]
    pub const NAME: u16 = 1;
    pub const UPCALL_PID: u16 = 2;
    pub const STATS: u16 = 3;
    pub const MEGAFLOW_STATS: u16 = 4;
    pub const USER_FEATURES: u16 = 5;
    pub const PER_CPU_PIDS: u16 = 8;
    /// One more than the last.
    pub const COUNT: usize = 9;
    /// Features: the last attribute may be unaligned, a port has several sockets for upcalls, upcalls go to the socket of a CPU.
    pub const FEATURES: u32 = 1 | 2 | 8;
    /// The last of these.
    pub const UPCALL_PER_CPU: u32 = 8;
}

/// Attributes of a port.
pub mod vport {
    #![allow(missing_docs)]
    pub const PORT_NO: u16 = 1;
    pub const TYPE: u16 = 2;
    pub const NAME: u16 = 3;
    pub const OPTIONS: u16 = 4;
    pub const UPCALL_PID: u16 = 5;
    pub const STATS: u16 = 6;
    pub const COUNT: usize = 7;
    /// Type: an interface of the host.
    pub const NETDEV: u32 = 1;
    /// Type: an interface that the datapath makes.
    pub const INTERNAL: u32 = 2;
    /// Type: GRE over IPv4, and over IPv6 (Open vSwitch's own number).
    pub const GRE: u32 = 3;
    pub const IP6GRE: u32 = 109;
    /// Type: a tunnel, by the UDP port that its options say.
    pub const VXLAN: u32 = 4;
    pub const GENEVE: u32 = 5;
}

/// Attributes of a flow.
pub mod flow {
    #![allow(missing_docs)]
    pub const KEY: u16 = 1;
    pub const ACTIONS: u16 = 2;
    pub const STATS: u16 = 3;
    pub const TCP_FLAGS: u16 = 4;
    pub const USED: u16 = 5;
    pub const CLEAR: u16 = 6;
    pub const MASK: u16 = 7;
    pub const UFID: u16 = 9;
    pub const UFID_FLAGS: u16 = 10;
    pub const COUNT: usize = 12;
    /// Flags of `UFID_FLAGS`: what a flow with an identifier is told without.
    pub const OMIT_KEY: u32 = 1;
    pub const OMIT_MASK: u32 = 2;
    pub const OMIT_ACTIONS: u32 = 4;
}

/// Attributes of a packet.
pub mod packet {
    #![allow(missing_docs)]
    pub const PACKET: u16 = 1;
    pub const KEY: u16 = 2;
    pub const ACTIONS: u16 = 3;
    pub const USERDATA: u16 = 4;
    /// The outer header that it leaves with.
    pub const EGRESS_TUN_KEY: u16 = 5;
    /// Longest fragment of a packet that was put together.
    pub const MRU: u16 = 9;
    pub const LEN: u16 = 10;
    pub const COUNT: usize = 12;
}

/// Attributes and commands of generic netlink's controller.
pub mod control {
    #![allow(missing_docs)]
    pub const NEW_FAMILY: u8 = 1;
    pub const GET_FAMILY: u8 = 3;
    pub const FAMILY_ID: u16 = 1;
    pub const FAMILY_NAME: u16 = 2;
    pub const VERSION: u16 = 3;
    pub const HEADER_SIZE: u16 = 4;
    pub const MAX_ATTRIBUTE: u16 = 5;
    pub const GROUPS: u16 = 7;
    pub const GROUP_NAME: u16 = 1;
    pub const GROUP_ID: u16 = 2;
}
