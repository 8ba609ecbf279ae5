//! Messages between the supervisor (`lasthop run`) and the session processes of ports. The switch speaks none of it.

use serde::{Deserialize, Serialize};

/// To the session process of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorToSession {
    /// Its end of the channel to the switch, for the connection that comes next, travels with this message.
    Switch,
    /// A connected vhost-user socket travels with this message.
    Connection,
    /// So many ranges of I/O addresses are remembered, or as many as without a setting.
    Grants(Option<u32>),
}

/// From the session process of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionToSupervisor {
    /// Sandboxed and serving.
    Ready,
    /// Whether the guest's own IOMMU translates addresses: then its traffic waits for this process.
    Translates(bool),
}
