//! Flows that have ended, as they travel.

use crate::Flow;
use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// Answer to `FlowsEnded`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct EndedFlows {
    /// Flows with what they have carried in all, in the order in which they ended: 64 at most.
    pub flows: Vec<Flow>,
    /// What to ask with next.
    pub next: u64,
    /// There are more already.
    pub more: bool,
    /// Flows that ended since the one asked with, and are not kept any more.
    pub missed: u64,
    /// Nobody had asked for so long that none were kept, or control was started anew: what ended before is not known.
    pub anew: bool,
}
