//! Who moves packets and when: worker threads that sleep until a guest kicks, serve what is there, look a little longer,
//! and sleep again. An idle switch has no running thread.

mod worker;

pub use worker::{Workers, WorkersConfig};
