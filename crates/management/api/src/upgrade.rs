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

/// A process that has taken the place of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct NewProcess {
    /// What it is called: `switch`, `control`, `run`, `session PORT`, `uplink NAME`, `port NAME`.
    pub process: String,
    /// Its number.
    pub pid: u32,
    /// Microseconds from the end of the one before until it did its work; of a switch, from its start on.
    pub took_us: u64,
}

/// A process that goes on with the program that it was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct KeptProcess {
    /// What it is called.
    pub process: String,
    /// Why, and what to do.
    pub why: String,
}

/// Answer to `Upgrade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Upgraded {
    /// What has been replaced; nothing where no program has changed.
    pub processes: Vec<NewProcess>,
    /// What could not be.
    pub kept: Vec<KeptProcess>,
    /// Of a switch: ports with a front-end, which has stayed connected.
    pub ports: Vec<PortPause>,
}
