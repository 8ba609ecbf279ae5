//! Bounds of processor time.

use lasthop_types::PortId;
use serde::{Deserialize, Serialize};

/// What a port's packets have come to since the switch began: those from its guest, or what was copied to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortWork {
    /// The port.
    pub port: PortId,
    /// Nanoseconds in which somebody was busy with them.
    pub busy_ns: u64,
    /// How many.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How often somebody may have been woken for them: by a kick, or to go on where its guest was held back. Not for what is copied to it.
    pub woken: u64,
}

/// How a port's bound of processor time is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuBound {
    /// The port.
    pub port: PortId,
    /// Nanoseconds of processor time that its packets, or copies to it, may take a second.
    pub most_ns: u64,
    /// Those that they took, when that was last looked at.
    pub spent_ns: u64,
    /// Packets a second, and bytes, that its guest is held to for that, if it is; 0: any number.
    pub held_to: Option<[u64; 2]>,
    /// It sent, or got, nearly as much, when that was last looked at.
    pub presses: bool,
    /// For how many milliseconds the bound has not been kept, if it is not.
    pub missed_ms: Option<u64>,
    /// How often that has begun.
    pub missed: u64,
}
