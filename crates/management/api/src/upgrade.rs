//! What came of an upgrade, as it travels.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// A port that another switch has taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct PortPause {
    /// Its name.
    pub port: String,
    /// For how many microseconds none of its packets moved; none if it had no rings.
    pub pause_us: Option<u64>,
}

/// Answer to `Upgrade`: another switch is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Upgraded {
    /// Its process.
    pub switch_pid: u32,
    /// Ports with a front-end, which has stayed connected.
    pub ports: Vec<PortPause>,
}
