//! Bounds of processor time.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// How a port's bound of processor time is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct CpuBound {
    /// Nanoseconds of processor time that its packets, or copies to its guest, may take a second.
    pub most_ns: u64,
    /// Nanoseconds that they took in the last second that was looked at.
    pub spent_ns: u64,
    /// What its guest is held to for that, in packets a second, as the switch was told; null while it is held to nothing by it, as where its `rate-from` (`rate-to`) is lower, or to bytes alone.
    pub packets_per_second: Option<u64>,
    /// The same in bytes a second; null, too, where it is held to packets alone.
    pub bytes_per_second: Option<u64>,
    /// Whether its guest sent, or got, at least four fifths of that in the last second that was looked at: else nothing waits for it.
    #[serde(default)]
    pub presses: bool,
    /// For how long the bound has not been kept, in ms; null while it is.
    pub missed_ms: Option<u64>,
    /// How often that has begun since the port or `lasthop run` began.
    pub missed: u64,
}

impl CpuBound {
    /// What its guest is held to for that, in words.
    pub fn held_to(&self) -> Option<String> {
        match (self.packets_per_second, self.bytes_per_second) {
            (Some(packets), Some(_)) => Some(format!("{packets} short packets a second")),
            (Some(packets), None) => Some(format!("{packets} packets a second")),
            (None, Some(bytes)) => Some(format!("{bytes} bytes a second")),
            (None, None) => None,
        }
    }
}
