//! The rings, device side against driver side, against another implementation, and against drivers and devices that
//! lie. Everything goes through the public API; hostile drivers write to the ring's memory.

mod garbage;
mod hostile;
mod loopback;
mod net;
mod notify;
mod oracle;
mod rig;
