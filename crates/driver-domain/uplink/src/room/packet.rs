//! A packet socket on one interface (packet(7)).

use super::check;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes that may wait in the socket either way. The usual 208 KiB are three packets of 64 KiB.
const BUFFER: libc::c_int = 4 << 20;
/// What may wait to be sent, as [`PacketSocket::waiting`] counts it: the kernel takes twice the number that it is given (socket(7)). A socket that was
/// full is writable when less than half of it waits.
pub const SEND_BUFFER: usize = 2 * BUFFER as usize;
/// `PACKET_IGNORE_OUTGOING` of linux/if_packet.h.
const IGNORE_OUTGOING: libc::c_int = 23;

/// A bound socket: every frame that the interface receives, whoever it is for, behind a virtio-net header.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// On the interface with this number. `group`: the frames are shared among the sockets of this group, by flow.
    pub fn open(index: i32, group: Option<u16>) -> Result<Self, Errno> {
        let socket = Self(unbound()?);
        socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)?;
        socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
        socket.set(libc::SOL_PACKET, IGNORE_OUTGOING, &1i32)?;
        for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
            socket.set(libc::SOL_SOCKET, option, &BUFFER)?;
        }
        // SAFETY: all-zero is a valid membership.
        let mut membership: libc::packet_mreq = unsafe { std::mem::zeroed() };
        membership.mr_ifindex = index;
        membership.mr_type = libc::PACKET_MR_PROMISC as u16;
        bind(&socket.0, index, libc::ETH_P_ALL as u16)?;
        socket.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        if let Some(group) = group {
            let fanout = i32::from(group) | (libc::PACKET_FANOUT_HASH as i32) << 16;
            socket.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &fanout)?;
        }
        Ok(socket)
    }

    /// One that another process has bound.
    pub fn kept(socket: OwnedFd) -> Self {
        Self(socket)
    }

    fn set<T: Copy>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> Result<(), Errno> {
        // SAFETY: the value is live, and its length is given.
        let result = unsafe {
            let len = size_of::<T>() as libc::socklen_t;
            libc::setsockopt(self.0.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len)
        };
        check(result).map(drop)
    }

    /// Frames that found no room since this was last asked.
    pub fn take_dropped(&self) -> u64 {
        // SAFETY: all-zero is valid for this structure; the kernel writes at most the length given.
        let (result, statistics) = unsafe {
            let mut statistics: libc::tpacket_stats = std::mem::zeroed();
            let mut len = size_of_val(&statistics) as libc::socklen_t;
            let (fd, to) = (self.0.as_raw_fd(), (&raw mut statistics).cast());
            (libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, to, &raw mut len), statistics)
        };
        if result < 0 { 0 } else { statistics.tp_drops.into() }
    }

    /// What waits here to be sent, in bytes of the kernel's memory: a frame takes about twice as many as it has.
    pub fn waiting(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: this request (SIOCOUTQ by its other name) writes an int, which lives.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCOUTQ as _, &raw mut bytes) };
        if result < 0 { 0 } else { usize::try_from(bytes).unwrap_or(0) }
    }

    /// Whether the interface still exists.
    pub fn is_bound(&self) -> bool {
        // SAFETY: all-zero is valid for the address; the kernel writes at most the length given.
        let (result, address) = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            (libc::getsockname(self.0.as_raw_fd(), (&raw mut address).cast(), &raw mut len), address)
        };
        result == 0 && address.sll_ifindex > 0
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A packet socket that only sends: whole frames on one interface, one for each write(2).
#[derive(Debug)]
pub struct SendSocket(OwnedFd);

impl SendSocket {
    /// On the interface with this number.
    pub fn open(index: i32) -> Result<Self, Errno> {
        let socket = Self(unbound()?);
        // Protocol 0: nothing arrives.
        bind(&socket.0, index, 0)?;
        Ok(socket)
    }
}

impl SendSocket {
    /// One that another process has opened.
    pub fn kept(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for SendSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A packet socket at which nothing arrives before it is bound.
fn unbound() -> Result<OwnedFd, Errno> {
    // SAFETY: socket(2) takes numbers; a result that is not negative is a descriptor of ours.
    unsafe {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        Ok(OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, flags, 0))?))
    }
}

fn bind(socket: &OwnedFd, index: i32, protocol: u16) -> Result<(), Errno> {
    // SAFETY: all-zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    // SAFETY: the address is a live local of the length given.
    check(unsafe {
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
    })
    .map(drop)
}
