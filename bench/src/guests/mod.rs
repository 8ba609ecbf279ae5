//! Guests: DPDK's virtio-user driver in a closed loop and Linux VMs, which nobody here wrote; our own load generator for
//! what they cannot do.

pub mod attack;
pub mod bridge;
pub mod crowd;
pub mod dpdk;
pub mod granted;
pub mod isolation;
pub mod load;
pub mod minimum;
pub mod outside;
pub mod reflector;
pub mod vms;
