//! Flow key → actions: per-worker exact-match cache, wildcard classifier, and their limits (design.md, "Flows").
//!
//! A packet's way, and what each step costs:
//! 1. [`hash_key`] over the key as deep as [`FlowTable::depth`] says: a few nanoseconds.
//! 2. [`ExactCache::get`]: one cache line of the cache and the flow's own first line. No lock, no write.
//! 3. [`FlowTable::lookup`]: a read lock and one hash table for each mask in use, at most [`MAX_MASKS`].
//! 4. A miss goes to control.
//!
//! **Flows that overlap must agree.** Where two installed flows match the same packet, either may be used; control only
//! installs flows for which that makes no difference (and removes a flow before it installs one that contradicts it).
//! So a cached flow stays right until it is marked dead, whatever else is installed meanwhile.

#![forbid(unsafe_code)]

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
pub use spec::{Action, FlowSpec};
pub use table::{FlowTable, InsertError, Lookup, MAX_MASKS};
