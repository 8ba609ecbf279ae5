//! UDP and raw sockets of the host's stack, which routes what tunnels send, resolves addresses and fragments (ip(7), ipv6(7), udp(7), raw(7)).

use super::{check, last_errno};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes that the kernel may keep for a socket.
const BUFFER: libc::c_int = 4 << 20;
/// Room for the control messages of a datagram.
const CONTROL: usize = 256;
/// linux/udp.h.
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;
const UDP_NO_CHECK6_TX: libc::c_int = 101;
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// What lies directly on IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// UDP, and the port here.
    Udp(u16),
    /// GRE, by a raw socket, which needs CAP_NET_RAW.
    Gre,
}

/// A socket of one family.
#[derive(Debug)]
pub struct DatagramSocket {
    fd: OwnedFd,
    ipv6: bool,
    over: Over,
}

/// The outer header of a datagram that is to be sent, as far as it is not the socket's.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    /// Where from, an IPv4 address mapped into IPv6; all zero: as the route says.
    pub local: [u8; 16],
    /// Where to.
    pub remote: [u8; 16],
    /// The UDP port there.
    pub port: u16,
    /// Type of service or traffic class.
    pub tos: u8,
    /// TTL or hop limit; 0: the host's default.
    pub ttl: u8,
}

/// A datagram that came, or several of the same sender's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes.
    pub len: usize,
    /// Bytes of them that are the IP header, which a raw socket of IPv4 has in front.
    pub header_len: usize,
    /// Bytes of each, where there are several; the last may be shorter.
    pub segment: usize,
    /// Where to, and where from; IPv4 addresses mapped into IPv6.
    pub local: [u8; 16],
    #[allow(missing_docs)]
    pub remote: [u8; 16],
    /// Type of service or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// It was longer than the room.
    pub truncated: bool,
}

/// True for an IPv4 address mapped into IPv6.
pub fn is_ipv4(address: &[u8; 16]) -> bool {
    address.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
}

fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

fn unmapped(address: [u8; 16]) -> libc::in_addr {
    let [.., a, b, c, d] = address;
    libc::in_addr { s_addr: u32::from_ne_bytes([a, b, c, d]) }
}

impl DatagramSocket {
    fn new(ipv6: bool, over: Over) -> Result<Self, Errno> {
        let family = if ipv6 { libc::AF_INET6 } else { libc::AF_INET };
        // SAFETY: socket(2) takes numbers; a result that is not negative is a descriptor of ours.
        let fd = unsafe {
            let (kind, protocol) = match over {
                Over::Udp(_) => (libc::SOCK_DGRAM, 0),
                Over::Gre => (libc::SOCK_RAW, libc::IPPROTO_GRE),
            };
            let flags = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            OwnedFd::from_raw_fd(check(libc::socket(family, flags, protocol))?)
        };
        let socket = Self { fd, ipv6, over };
        if ipv6 && over != Over::Gre {
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        Ok(socket)
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
        // SAFETY: the value is a live local of the length given.
        check(unsafe {
            let len = size_of::<libc::c_int>() as libc::socklen_t;
            libc::setsockopt(self.fd.as_raw_fd(), level, option, (&raw const value).cast(), len)
        })
        .map(drop)
    }

    /// One that receives what comes to any address, several datagrams at once where the kernel has them so. What has come already is received,
    /// too, so a raw one may begin with what came before its options were set.
    pub fn receiver(ipv6: bool, over: Over) -> Result<Self, Errno> {
        let socket = Self::new(ipv6, over)?;
        let options: &[_] = if ipv6 {
            &[
                (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
            ]
        } else {
            &[
                (libc::IPPROTO_IP, libc::IP_PKTINFO),
                (libc::IPPROTO_IP, libc::IP_RECVTOS),
                (libc::IPPROTO_IP, libc::IP_RECVTTL),
            ]
        };
        options.iter().try_for_each(|(level, option)| socket.set(*level, *option, 1))?;
        for option in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF] {
            if socket.set(libc::SOL_SOCKET, option, BUFFER).is_ok() {
                break;
            }
        }
        let Over::Udp(port) = over else { return Ok(socket) };
        if ipv6 {
            socket.set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        // Without it each comes alone.
        let _ = socket.set(libc::SOL_UDP, UDP_GRO, 1);
        let mut room = Address::of(ipv6, [0; 16], port);
        // SAFETY: the address is a live local of the length given.
        check(unsafe { libc::bind(socket.fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) })?;
        Ok(socket)
    }

    /// One that sends. `dont_fragment`: what is too long for the way is refused, and says so to routers; else it is fragmented.
    /// `checksum`: UDP's.
    pub fn sender(ipv6: bool, over: Over, dont_fragment: bool, checksum: bool) -> Result<Self, Errno> {
        let socket = Self::new(ipv6, over)?;
        let (level, option, no, yes) = if ipv6 {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT, libc::IPV6_PMTUDISC_DO)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT, libc::IP_PMTUDISC_DO)
        };
        socket.set(level, option, if dont_fragment { yes } else { no })?;
        if over == Over::Gre {
            // It would have a copy of all that comes.
            socket.receive_nothing()?;
        } else if !checksum && ipv6 {
            socket.set(libc::SOL_UDP, UDP_NO_CHECK6_TX, 1)?;
        } else if !checksum {
            socket.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
        }
        // Nobody reads it: let it fill up early.
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, 1)?;
        let _ = socket.set(libc::SOL_SOCKET, libc::SO_SNDBUF, BUFFER);
        Ok(socket)
    }

    /// Has the kernel keep nothing for this socket.
    fn receive_nothing(&self) -> Result<(), Errno> {
        // "Return 0 bytes" (linux/filter.h).
        let mut none = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut none };
        // SAFETY: the program and its one instruction are live locals, of the length given; the kernel copies them.
        check(unsafe {
            let len = size_of_val(&program) as libc::socklen_t;
            let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
            libc::setsockopt(self.fd.as_raw_fd(), level, option, (&raw const program).cast(), len)
        })
        .map(drop)
    }

    /// Receives what is there next.
    pub fn receive(&self, room: &mut [u8]) -> Result<Datagram, Errno> {
        let mut address = Address::of(self.ipv6, [0; 16], 0);
        let mut control = [0u64; CONTROL / 8];
        let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: all-zero is a valid message; what it points to are live locals and the caller's room, of the lengths given.
        let (n, message) = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_name, message.msg_namelen) = (address.as_mut_ptr().cast(), address.len());
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), CONTROL as _);
            (libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT), message)
        };
        let len = usize::try_from(n).map_err(|_| last_errno())?;
        // IHL, which the kernel has checked (RFC 791 §3.1).
        let first = room.first().copied().unwrap_or_default();
        let header_len = if self.over == Over::Gre && !self.ipv6 { usize::from(first & 0xf) * 4 } else { 0 };
        let mut datagram = Datagram {
            len,
            header_len: header_len.min(len),
            segment: len,
            remote: address.ip(),
            truncated: message.msg_flags & libc::MSG_TRUNC != 0,
            ..Datagram::default()
        };
        // SAFETY: the kernel has filled in the control buffer of this message, which lives, and its length; what is read of a control
        // message is no more than its length says.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            while !header.is_null() {
                let len = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let mut bytes = [0u8; 32];
                let len = len.min(bytes.len());
                std::ptr::copy_nonoverlapping(libc::CMSG_DATA(header), bytes.as_mut_ptr(), len);
                datagram.note((*header).cmsg_level, (*header).cmsg_type, &bytes);
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
        }
        Ok(datagram)
    }

    /// Sends bytes as one datagram, or as several of so many bytes each, of which the last may be shorter.
    pub fn send(&self, bytes: &[u8], outer: &Outer, segment: Option<u16>) -> Result<(), Errno> {
        let port = if self.over == Over::Gre { 0 } else { outer.port };
        let mut address = Address::of(self.ipv6, outer.remote, port);
        let mut control = Control::default();
        if let Some(size) = segment {
            control.add(libc::SOL_UDP, UDP_SEGMENT, size);
        }
        let (tos, ttl) = (libc::c_int::from(outer.tos), libc::c_int::from(outer.ttl));
        let level = if self.ipv6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
        control.add(level, if self.ipv6 { libc::IPV6_TCLASS } else { libc::IP_TOS }, tos);
        if ttl != 0 {
            control.add(level, if self.ipv6 { libc::IPV6_HOPLIMIT } else { libc::IP_TTL }, ttl);
        }
        if outer.local != [0; 16] && self.ipv6 {
            let ipi6_addr = libc::in6_addr { s6_addr: outer.local };
            control.add(level, libc::IPV6_PKTINFO, libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 });
        } else if outer.local != [0; 16] {
            let none = libc::in_addr { s_addr: 0 };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: unmapped(outer.local), ipi_addr: none };
            control.add(level, libc::IP_PKTINFO, info);
        }
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: all-zero is a valid message; what it points to are live locals and the caller's bytes, of the lengths given.
        let n = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_name, message.msg_namelen) = (address.as_mut_ptr().cast(), address.len());
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            (message.msg_control, message.msg_controllen) = (control.bytes.as_mut_ptr().cast(), control.len as _);
            libc::sendmsg(self.fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        };
        if n < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Datagram {
    fn note(&mut self, level: libc::c_int, kind: libc::c_int, bytes: &[u8; 32]) {
        let int =
            |at: usize| bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| libc::c_int::from_ne_bytes(*b));
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => [self.tos, ..] = *bytes,
            (libc::IPPROTO_IP, libc::IP_TTL) => self.ttl = int(0) as u8,
            // `ipi_addr`, behind the interface's number and the local address of the route.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => self.local = mapped(int(8).to_ne_bytes()),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.tos = int(0) as u8,
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => self.ttl = int(0) as u8,
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => self.local = *bytes.first_chunk().unwrap_or(&[0; 16]),
            (libc::SOL_UDP, UDP_GRO) if int(0) > 0 => self.segment = int(0) as usize,
            _ => {}
        }
    }
}

/// A socket's address.
enum Address {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Address {
    fn of(ipv6: bool, ip: [u8; 16], port: u16) -> Self {
        // SAFETY: all-zero is a valid address of either family.
        let (mut v4, mut v6): (libc::sockaddr_in, libc::sockaddr_in6) = unsafe { std::mem::zeroed() };
        if ipv6 {
            (v6.sin6_family, v6.sin6_port) = (libc::AF_INET6 as libc::sa_family_t, port.to_be());
            v6.sin6_addr = libc::in6_addr { s6_addr: ip };
            return Self::V6(v6);
        }
        (v4.sin_family, v4.sin_port, v4.sin_addr) = (libc::AF_INET as libc::sa_family_t, port.to_be(), unmapped(ip));
        Self::V4(v4)
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        match self {
            Self::V4(address) => std::ptr::from_mut(address).cast(),
            Self::V6(address) => std::ptr::from_mut(address).cast(),
        }
    }

    fn len(&self) -> libc::socklen_t {
        match self {
            Self::V4(address) => size_of_val(address) as libc::socklen_t,
            Self::V6(address) => size_of_val(address) as libc::socklen_t,
        }
    }

    fn ip(&self) -> [u8; 16] {
        match self {
            Self::V4(address) => mapped(address.sin_addr.s_addr.to_ne_bytes()),
            Self::V6(address) => address.sin6_addr.s6_addr,
        }
    }
}

/// Control messages in the making.
#[derive(Default)]
struct Control {
    bytes: [u64; CONTROL / 8],
    len: usize,
}

impl Control {
    fn add<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, value: T) {
        // SAFETY: both are pure functions of a number.
        let (whole, own) = unsafe {
            let len = size_of::<T>() as u32;
            (libc::CMSG_SPACE(len) as usize, libc::CMSG_LEN(len) as usize)
        };
        if self.len + whole > CONTROL {
            return;
        }
        // SAFETY: there is room for the whole control message, at an offset that is a multiple of its alignment, as CMSG_SPACE says.
        unsafe {
            let header = self.bytes.as_mut_ptr().cast::<u8>().add(self.len).cast::<libc::cmsghdr>();
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = own as _;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        self.len += whole;
    }
}
