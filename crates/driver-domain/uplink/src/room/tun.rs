//! One queue of a TAP device (Documentation/networking/tuntap.rst of the kernel).

use super::check;
use super::interface::request;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A queue, non-blocking; frames begin with a 12-byte little-endian virtio-net header.
#[derive(Debug)]
pub struct Tun(OwnedFd);

impl Tun {
    /// Attaches to the TAP device `name`, or makes it if there is none and this process may. `several`: the device has, or
    /// is to have, several queues.
    pub fn attach(name: &str, several: bool) -> Result<Self, Errno> {
        let fd = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        let tun = Self(fd);
        let mut request = request(name)?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let flags = if several { flags | libc::IFF_MULTI_QUEUE } else { flags };
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`, which is a live local.
        check(unsafe { libc::ioctl(tun.0.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
        let (header, little_endian): (libc::c_int, libc::c_int) = (12, 1);
        // SAFETY: both requests read one int.
        unsafe {
            check(libc::ioctl(tun.0.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const header))?;
            check(libc::ioctl(tun.0.as_raw_fd(), libc::TUNSETVNETLE as _, &raw const little_endian))?;
        }
        Ok(tun)
    }

    /// The device's name.
    pub fn name(&self) -> Result<String, Errno> {
        // SAFETY: all-zero is a valid request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: TUNGETIFF writes one `ifreq`, which is a live local.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) })?;
        let name = request.ifr_name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        String::from_utf8(name).map_err(|_| Errno::ILSEQ)
    }

    /// A queue that another process has attached.
    pub fn kept(queue: OwnedFd) -> Self {
        Self(queue)
    }

    /// Tells the host's stack what it may leave undone in what we read: checksums, segmentation. True if UDP segmentation
    /// is among it (Linux 6.2).
    pub fn set_offloads(&self) -> Result<bool, Errno> {
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // SAFETY: TUNSETOFFLOAD takes a number.
        let set =
            |bits: libc::c_uint| check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD as _, bits) });
        if set(tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).is_ok() {
            return Ok(true);
        }
        set(tcp).map(|_| false)
    }

    /// Whether the device outlives its last queue.
    pub fn set_persistent(&self, persistent: bool) -> Result<(), Errno> {
        // SAFETY: TUNSETPERSIST takes a number.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETPERSIST as _, libc::c_int::from(persistent)) })
            .map(drop)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
