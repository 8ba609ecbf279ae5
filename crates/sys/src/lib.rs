//! System calls the rest of lasthop needs: eventfd, epoll, memfd, timers, affinity, sandbox.
//!
//! Unsafe room 1: whatever needs `unsafe` and is not about guest memory lives here, behind safe functions.
#![allow(unsafe_code)]

mod epoll;
mod eventfd;
mod inherit;

pub use epoll::{Epoll, Ready, Trigger};
pub use eventfd::EventFd;
pub use inherit::inherited_fd;
