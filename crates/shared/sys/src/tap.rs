//! TAP devices whose other end a process of ours holds (Documentation/networking/tuntap.rst of the kernel). They go with their last
//! descriptor.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::{AsRawFd, OwnedFd};

/// Makes a TAP device of this name and brings it up; `mtu` in bytes, if not the usual one. Each read(2) and write(2) of the descriptor, which
/// does not block, is one frame from or to the host's stack. Needs CAP_NET_ADMIN.
pub fn make_tap(name: &str, mtu: Option<u16>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let tap = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = request(name)?;
    // Exclusive: one that is there already is somebody else's.
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which is a live local.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if let Some(mtu) = mtu {
        request.ifr_ifru.ifru_mtu = mtu.into();
        // SAFETY: SIOCSIFMTU reads one `ifreq`, which is a live local.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFMTU as _, &raw mut request) })?;
    }
    // SAFETY: SIOCGIFFLAGS and SIOCSIFFLAGS read and write one `ifreq`, which is a live local; the first fills in its flags, which
    // are valid whatever they are.
    check(unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request)
    })?;
    Ok(tap)
}

fn request(name: &str) -> Result<libc::ifreq, Errno> {
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    Ok(request)
}

fn check(result: libc::c_int) -> Result<(), Errno> {
    if result < 0 { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) } else { Ok(()) }
}
