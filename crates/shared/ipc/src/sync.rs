//! What the rings are made of. `tests/models` compiles `ring.rs` with loom's.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
