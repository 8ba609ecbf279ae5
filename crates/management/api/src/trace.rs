//! What would happen to a packet.

use crate::{Field, Flow};
use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// What would happen to a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct TraceReport {
    /// The packet as the switch reads it.
    pub key: Vec<Field>,
    /// The flow it meets, if any.
    pub flow: Option<Flow>,
    /// What policy thinks of it and why.
    pub reasons: Vec<String>,
    /// Where it goes: by the flow, or by policy when it meets none. Empty: it is dropped, unless it is `undecided`.
    pub outputs: Vec<TraceOutput>,
    /// It meets no flow, and who decides has not been asked.
    pub undecided: bool,
    /// It meets no flow, and nobody is there who decides: it would be dropped.
    #[serde(default)]
    pub nobody: bool,
}

/// One destination of a traced packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct TraceOutput {
    /// Name of the port.
    pub port: String,
    /// Its state, as [`Port::state`](crate::Port::state).
    pub state: String,
    /// Reason under which the packet would be counted as dropped there in that state, if it would.
    pub drop: Option<String>,
}
