//! Locks whose owner may have been stopped, and whoever waits has something done about it.
//!
//! No I/O, no `unsafe`, no dependency on any other crate of the project.

mod lock;
mod sync;

pub use lock::{Lock, SharedLock, name_thread, on_wait};
