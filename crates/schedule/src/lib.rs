//! When which thread does what: the policy, and the threads that follow it (PhD §4.3).

pub mod policy;
mod worker;

pub use worker::{Workers, WorkersConfig};
