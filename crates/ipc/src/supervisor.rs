//! What the supervisor says to its two children and hears from them.

use lasthop_types::PortId;
use serde::{Deserialize, Serialize};

/// A port as the user asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortConfig {
    /// Given by the supervisor.
    pub id: PortId,
    /// Unique name, 1 to 63 characters of `[A-Za-z0-9._-]`.
    pub name: String,
    /// Path of the vhost-user socket.
    pub path: String,
    /// True when lasthop connects and the front-end listens; false when lasthop listens.
    pub client: bool,
}

/// To the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorToSwitch {
    /// A port comes into being; answered by nothing. Sent for every port after a restart too.
    AddPort(PortConfig),
    /// The port and its connection go away.
    DelPort(PortId),
    /// A connected vhost-user socket for the port travels with this message; it replaces one the port still has.
    Connection(PortId),
    /// The switch's end of a new switch–control channel travels with this message.
    ControlChannel,
    /// Finish the current bursts and exit with status 0.
    Shutdown,
}

/// From the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwitchToSupervisor {
    /// Sandboxed and serving.
    Ready,
    /// The port's connection ended (or was refused); where lasthop connects, connect again.
    ConnectionClosed {
        /// Which port.
        port: PortId,
        /// One line for the log.
        reason: String,
    },
}

/// To control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorToControl {
    /// Control's end of a new switch–control channel travels with this message.
    DatapathChannel,
    /// All ports as configured; sent at the start and after every change.
    Ports(Vec<PortConfig>),
    /// Answer to `PortAdd` or `PortDel`: an error says what is wrong and what to do.
    Reply {
        /// The request's number.
        request: u64,
        /// The port's configuration, or what is wrong.
        result: Result<PortConfig, String>,
    },
    /// Exit with status 0.
    Shutdown,
    /// Part (at most [`LISTS_PART`] bytes, empty behind the last) of the access lists' text; before `DatapathChannel`.
    Lists(Vec<u8>),
    /// Answer to the last part of `KeepLists`: kept for good, or nothing was changed and why.
    ListsKept(Result<(), String>),
}

/// Longest part of the text of access lists, in bytes.
pub const LISTS_PART: usize = 32 * 1024;

/// From control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlToSupervisor {
    /// Serving the local API.
    Ready,
    /// Make a port.
    PortAdd {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
        /// Its socket's path.
        path: String,
        /// Whether lasthop connects.
        client: bool,
    },
    /// Remove a port.
    PortDel {
        /// Echoed in the reply.
        request: u64,
        /// Its name.
        name: String,
    },
    /// Part (as of `Lists`) of the text of all access lists, to be kept over restarts instead of what was kept before.
    KeepLists(Vec<u8>),
}
