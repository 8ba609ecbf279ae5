//! System calls the rest of lasthop needs: eventfd, epoll, memfd, timers, affinity, sandbox.
//!
//! Unsafe room 1: whatever needs `unsafe` and is not about guest memory lives here, behind safe functions.
#![allow(unsafe_code)]

#[cfg(any(test, feature = "supervisor"))]
mod affinity;
mod aside;
#[cfg(any(test, feature = "bpf"))]
pub mod bpf;
#[cfg(feature = "cycles")]
mod cycles;
mod epoll;
mod eventfd;
#[cfg(any(test, feature = "supervisor"))]
mod handed;
pub mod hostview;
mod inherit;
#[cfg(any(test, feature = "programs", feature = "supervisor"))]
mod peer;
mod peer_event;
#[cfg(any(test, feature = "supervisor"))]
mod process;
mod pulse;
pub mod sandbox;
mod sched;
mod shared;
mod signal_cost;
mod socket;
#[cfg(any(test, feature = "supervisor"))]
mod tap;
mod watches;

#[cfg(any(test, feature = "supervisor"))]
pub use affinity::{CpuList, ParseCpusError};
pub use aside::{Aside, Foreign, prepare_to_drop_aside};
#[cfg(feature = "cycles")]
pub use cycles::cycles;
pub use epoll::{Epoll, Trigger};
pub use eventfd::EventFd;
#[cfg(any(test, feature = "supervisor"))]
pub use handed::{duplicate, memfd, sealed_memfd, sealed_with, set_descriptor_flags};
pub use inherit::inherited_fd;
#[cfg(any(test, feature = "programs", feature = "supervisor"))]
pub use peer::{Peer, peer, peer_groups};
pub use peer_event::{PeerEvent, PeerEventError, SIGNALLING_THREADS, prepare_peer_events};
#[cfg(any(test, feature = "supervisor"))]
pub use process::{
    PidFd, Process, SignalFd, Watched, bind_when_started, die_with_parent, keep_descriptors_from_children,
    outlive_terminal, take_short_turns_when_started, uncollected,
};
pub use pulse::{Beat, map_pulse};
#[cfg(any(test, feature = "supervisor"))]
pub use pulse::{Pulse, Sign};
pub use sched::{Prompter, TimerFd, bind_current_thread, current_thread, set_idle, thread_time_ns};
pub use shared::SharedWords;
pub use socket::{receive_with_fds, send_with_fds};
#[cfg(any(test, feature = "supervisor"))]
pub use tap::make_tap;
pub use watches::Watches;
