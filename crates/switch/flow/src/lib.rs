//! Flow key → actions: per-worker exact-match cache, wildcard classifier, and their limits. docs/architecture.md, "Flows and
//! policy", has what each level costs.
//!
//! **Flows that overlap must agree.** Where two installed flows match the same packet, either may be used; control only
//! installs flows for which that makes no difference (and removes a flow before it installs one that contradicts it).
//! So a cached flow stays right until it is marked dead, whatever else is installed meanwhile.

#![forbid(unsafe_code)]

mod buckets;
mod cache;
mod entry;
mod hash;
mod lru;
mod spec;
mod table;
#[cfg(any(test, feature = "testutil"))]
pub mod testutil;

pub use cache::{ExactCache, Slot};
pub use entry::{Flow, FlowStats, WriterId};
pub use hash::hash_key;
pub use lru::Position;
pub use spec::{Action, FlowSpec};
pub use table::{FlowTable, InsertError, Lookup, MAX_MASKS};
