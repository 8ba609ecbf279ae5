//! Network interfaces by name (netdevice(7)).

use super::check;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::{AsRawFd, OwnedFd};

/// linux/sockios.h, linux/ethtool.h.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 3;

/// An interface of this network namespace that exists.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
    request: libc::ifreq,
}

impl Interface {
    /// `NODEV` if there is none of this name.
    pub fn named(name: &str) -> Result<Self, Errno> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let interface = Self { socket, request: request(name)? };
        interface.index()?;
        Ok(interface)
    }

    fn ask(&self, what: libc::c_ulong) -> Result<libc::ifreq, Errno> {
        let mut request = self.request;
        // SAFETY: these requests read and write one `ifreq`, which is a live local.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), what as _, &raw mut request) })?;
        Ok(request)
    }

    /// Its number.
    pub fn index(&self) -> Result<i32, Errno> {
        // SAFETY: SIOCGIFINDEX sets this member.
        Ok(unsafe { self.ask(libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex })
    }

    /// Its MTU in bytes.
    pub fn mtu(&self) -> Result<u32, Errno> {
        // SAFETY: SIOCGIFMTU sets this member.
        Ok(unsafe { self.ask(libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu }.unsigned_abs())
    }

    /// Gives it this MTU.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Errno> {
        let mut request = self.request;
        request.ifr_ifru.ifru_mtu = mtu.cast_signed();
        // SAFETY: as in `ask`.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCSIFMTU as _, &raw mut request) }).map(drop)
    }

    /// Its Ethernet address; `OPNOTSUPP` for what is no Ethernet.
    pub fn mac(&self) -> Result<[u8; 6], Errno> {
        // SAFETY: SIOCGIFHWADDR sets this member.
        let address = unsafe { self.ask(libc::SIOCGIFHWADDR)?.ifr_ifru.ifru_hwaddr };
        if address.sa_family != libc::ARPHRD_ETHER {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(std::array::from_fn(|i| address.sa_data[i] as u8))
    }

    /// Gives it this Ethernet address.
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), Errno> {
        let mut request = self.request;
        // SAFETY: all-zero is a valid socket address.
        let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
        address.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_hwaddr = address;
        // SAFETY: as in `ask`.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCSIFHWADDR as _, &raw mut request) }).map(drop)
    }

    /// Whether it is a TAP device: its driver says so (ethtool's GDRVINFO). sysfs may show another network namespace.
    pub fn is_tap(&self) -> bool {
        // `struct ethtool_drvinfo` of linux/ethtool.h: the command, then texts of 32 bytes (driver, version, firmware's
        // version, bus), more, and five numbers.
        let mut info = [0u8; 196];
        info[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
        let mut request = self.request;
        request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
        // SAFETY: the request points to as many bytes as the kernel reads and writes for this command; both are live locals.
        let asked = check(unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) });
        asked.is_ok() && info[4..].starts_with(b"tun\0") && info[100..].starts_with(b"tap\0")
    }

    /// Brings it up, if it is not.
    pub fn bring_up(&self) -> Result<(), Errno> {
        let mut request = self.ask(libc::SIOCGIFFLAGS)?;
        // SAFETY: SIOCGIFFLAGS sets this member.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        if flags & libc::IFF_UP as libc::c_short != 0 {
            return Ok(());
        }
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        // SAFETY: as in `ask`.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request) }).map(drop)
    }
}

/// The names of all interfaces of this network namespace but the loopback, as far as the kernel tells them.
pub fn names() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: it takes nothing; what it returns is null or an array that is ours until `if_freenameindex`.
    let all = unsafe { libc::if_nameindex() };
    if all.is_null() {
        return names;
    }
    let mut next = all;
    // SAFETY: the array ends with an entry whose index is 0 and whose name is null; before that each name is a C string, and
    // nobody else has the array.
    while let Some(entry) = unsafe { next.as_ref() }.filter(|entry| entry.if_index != 0 && !entry.if_name.is_null()) {
        // SAFETY: as above.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.if_name) }.to_string_lossy();
        if name != "lo" {
            names.push(name.into_owned());
        }
        // SAFETY: this was not the last entry, so there is another behind it.
        next = unsafe { next.add(1) };
    }
    // SAFETY: it came from `if_nameindex` and is not used any more.
    unsafe { libc::if_freenameindex(all) };
    names.sort();
    names
}

/// A request about the interface `name`; `NAMETOOLONG` beyond 15 bytes.
pub(super) fn request(name: &str) -> Result<libc::ifreq, Errno> {
    // SAFETY: all-zero is a valid request: no name, no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}
