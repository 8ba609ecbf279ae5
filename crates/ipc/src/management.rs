//! What the supervisor says to control and hears from it. Behind the feature `management`: the switch does without.

use crate::PortConfig;
use serde::{Deserialize, Serialize};

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
