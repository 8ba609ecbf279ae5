//! What the supervisor says to the process that gives flows to the kernel or a card (`lasthop-flower`), and hears from it.

use lasthop_types::PortId;
use serde::{Deserialize, Serialize};

/// To that process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorToOffload {
    /// A port is this interface of the host's namespace, by its number, from now on; or none whose flows may be anywhere but in the switch. Answered by `Done`.
    Port {
        /// Which.
        port: PortId,
        /// The interface.
        device: Option<u32>,
        /// It has a rate.
        limited: bool,
        /// To be said in the answer.
        number: u64,
    },
    /// All ports there are have been said: answered by `Ready` once no rule of an earlier process is left.
    Begin,
    /// Rings to the switch travel with this message; then those to control with the same again.
    Join {
        /// Which join.
        number: u64,
    },
    /// Exit with status 0, and leave no rule behind.
    Shutdown,
}

/// From that process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OffloadToSupervisor {
    /// Sandboxed, and nothing is in the kernel or a card that it has not put there.
    Ready,
    /// It cannot go on and ends: what is wrong, what to do.
    Failed(String),
    /// What was said of a port with this number holds.
    Done(u64),
    /// One end of the rings is no more; no flow is outside the switch.
    Apart {
        /// Of this join.
        number: u64,
        /// What was wrong, if it is not that a process has ended.
        why: Option<String>,
    },
    /// What is to be shown, as it is now.
    Figures(OffloadFigures),
}

/// What is to be shown of flows outside the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadFigures {
    /// Flows that the kernel or a card has.
    pub flows: u64,
    /// Those of them that a card carries out.
    pub in_hardware: u64,
    /// What has passed the switch by since the process began, as last looked at.
    pub packets: u64,
    /// Their bytes, as the kernel counts them.
    pub bytes: u64,
    /// Flows that were put and stayed in the switch, by reason, in the order of `lasthop_offload::Why`.
    pub stayed: Vec<u64>,
}

/// The same, and how the process is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadState {
    /// Who carries such flows, in Open vSwitch's words.
    pub policy: String,
    /// The process is there.
    pub running: bool,
    /// Ports whose flows may be there.
    pub ports: u64,
    /// What it last said.
    pub figures: OffloadFigures,
}
