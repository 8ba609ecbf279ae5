//! Guest memory: mapping what a front-end hands us, translating its addresses, and moving bytes in and out of it.
//!
//! Unsafe room 2. Everybody else sees [`GuestSlice`], whose accesses are bounds-checked and never form a Rust reference
//! to memory that a guest may write at any time. Three rules make it sound:
//!
//! 1. A [`GuestSlice`] borrows the [`GuestMemory`] (or is kept together with an `Arc` of it in a [`PinnedSlice`]), so
//!    the mapping outlives it.
//! 2. Words are read and written with volatile or atomic accesses, byte runs with volatile words, inline assembly or a
//!    function that the compiler does not know; it is never told that the bytes hold still (`copy.rs` says why).
//! 3. A file truncated under a mapping raises SIGBUS; [`install_fault_handler`] puts zero pages there and marks the
//!    region, which [`GuestMemory::faulted`] reports (design rule 3).
#![allow(unsafe_code)]

#[cfg(any(test, feature = "arrays"))]
mod array;
mod charge;
mod copy;
mod dirty;
#[cfg(feature = "dma")]
pub mod dma;
mod entries;
mod fault;
mod fill;
mod memory;
#[cfg(any(feature = "meter", feature = "dma"))]
#[cfg_attr(not(feature = "meter"), allow(dead_code))]
pub mod meter;
mod region;
mod slice;
pub mod translations;
mod window;

pub use charge::Mapped;
pub use dirty::MAX_LOG;
pub use entries::{Descriptors, Entries};
pub use fault::install_fault_handler;
pub use memory::{AccessError, GuestMemory, MAX_REGIONS, MemoryLimits};
pub use region::{MapError, RegionSpec};
pub use slice::{GuestSlice, PinnedSlice};
/// What orders accesses to ring memory beside loads and stores. Here, so that models can watch it (`tests/models`).
pub use std::sync::atomic::fence;
pub use window::{Tagged, Window};
