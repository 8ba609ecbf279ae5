//! Flow key → actions: per-worker exact-match cache, wildcard classifier, and their limits (design.md, "Flows").

mod spec;

pub use spec::{Action, FlowSpec};
