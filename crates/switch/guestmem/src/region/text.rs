//! What a [`MapError`] says to people: in the session process and in uplinks, not in the switch, which sends it there as it is. The text is
//! what `lasthop port list` shows.

use super::MapError;
use rustix::io::Errno;
use std::fmt::{Display, Formatter, Result};

impl Display for MapError {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let shared =
            "QEMU: -object memory-backend-memfd,share=on, or memory-backend-file,share=on with mem-path=/dev/shm/NAME";
        match *self {
            Self::Empty(at) => write!(f, "memory region at {at:#x} is empty"),
            Self::Wraps(at) => write!(f, "memory region at {at:#x} wraps around the end of the address space"),
            Self::Overlaps(at) => write!(f, "memory region at {at:#x} overlaps another"),
            Self::TooMany(most) => {
                write!(f, "more than {most} memory regions; give the guest fewer memory slots, or larger ones")
            }
            Self::TooLarge { wanted, limit } => write!(
                f,
                "guest memory of {} is more than the {} a port may map; give the guest less, or start lasthop with a larger --max-guest-memory (with very many ports a port has its share of 64 TiB)",
                Size(wanted),
                Size(limit)
            ),
            Self::Kind(at) => write!(
                f,
                "memory region at {at:#x} is of a file on a disk, or of another kind whose pages others would have to wait for; use a memfd, or a file on tmpfs or hugetlbfs ({shared})"
            ),
            Self::NoRoom(at) => write!(
                f,
                "memory region at {at:#x}: the switch has no room for another mapping; close other ports, or raise the sysctl vm.max_map_count"
            ),
            Self::FileTooShort { guest_addr, needed, length } => write!(
                f,
                "memory region at {guest_addr:#x} needs {needed} bytes of its file, which has {length}: the file has to be as long as the memory"
            ),
            Self::Refused { guest_addr, errno } => write!(
                f,
                "memory region at {guest_addr:#x} cannot be mapped: {}; guest memory must be shared ({shared})",
                Errno::from_raw_os_error(errno)
            ),
        }
    }
}

impl std::error::Error for MapError {}

/// Bytes as people write them.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0 {
            n if n >= 10 << 30 => write!(f, "{} GiB", n >> 30),
            n if n >= 10 << 20 => write!(f, "{} MiB", n >> 20),
            n => write!(f, "{n} bytes"),
        }
    }
}
