//! Bounds of processor time.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// How a port's bound of processor time is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct CpuBound {
    /// Nanoseconds of processor time that its packets may take a second.
    pub most_ns: u64,
    /// Nanoseconds that they took in the last second that was looked at.
    pub spent_ns: u64,
    /// What its guest is held to for that, in packets a second, beside its `rate-from`; null while it is held to nothing.
    pub packets_per_second: Option<u64>,
    /// The same in bytes a second.
    pub bytes_per_second: Option<u64>,
    /// For how long the bound has not been kept, in ms; null while it is.
    pub missed_ms: Option<u64>,
    /// How often that has begun since the port or `lasthop run` began.
    pub missed: u64,
}
