//! A device with a small table of rules.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// A device's table of rules is a cache of the flows that control has. What came of the packets that met no rule there, since control started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct DeviceTable {
    /// Places of the table.
    pub rules: u64,
    /// Packets that were judged, and a flow made for them.
    pub judged: u64,
    /// Packets that were answered by a flow that control has, which was put into the table once more.
    pub recached: u64,
    /// Packets that were answered by a flow that control has, and had sent less than 50 ms before.
    pub under_way: u64,
}
