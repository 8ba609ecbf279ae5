//! What is known of addresses that guests' own IOMMUs translate.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// I/O addresses of a guest whose own IOMMU translates them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Translation {
    /// Ranges known.
    pub ranges: u64,
    /// Pages that the front-end was asked for and has not answered.
    pub unanswered: u64,
    /// Ranges told since the front-end connected.
    pub updates: u64,
    /// Times that ranges were taken away.
    pub invalidations: u64,
    /// Pages asked for.
    pub misses: u64,
    /// Pages that the front-end has refused.
    pub refused: u64,
}
