//! Guests that nobody here wrote: DPDK's virtio-user driver in a closed loop, and Linux VMs.

pub mod dpdk;
pub mod vms;
