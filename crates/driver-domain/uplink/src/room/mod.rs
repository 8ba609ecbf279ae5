//! Unsafe room of the uplink: what needs `unsafe` and is not for the switch. System calls that move frames between a device
//! and the shared memory, and those that open devices. Behind safe functions; nothing here decides anything.
#![allow(unsafe_code)]

mod arena;
mod datagram;
mod interface;
mod messages;
mod packet;
mod page;
mod tun;
mod xsk;

pub use arena::Arena;
pub use datagram::{Datagram, DatagramSocket, Outer, Over, is_ipv4};
pub use interface::{Interface, names as interface_names};
pub use messages::{BATCH, Place, Received};
pub use packet::{PacketSocket, SEND_BUFFER, SendSocket};
pub use page::{CounterPage, NOTES, Notes};
pub use tun::Tun;
pub use xsk::{Fill, Plan, Receiver, Sender, dropped, first_socket, shown, take_over};

use rustix::io::Errno;

/// The result of a system call through the C library.
fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
