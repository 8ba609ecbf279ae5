//! Addresses that are forgotten, as they travel.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// Answer to `MacFlush`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct MacFlushed {
    /// Addresses that were forgotten.
    pub macs: u64,
}
