//! Locks whose holder may have been stopped: a thread that waits has something done about it.
//!
//! No I/O, no `unsafe`, no dependency on any other crate of the project.

mod lock;
mod sync;

pub use lock::{Lock, SharedLock, WaitNotice, identify_thread, on_wait};
