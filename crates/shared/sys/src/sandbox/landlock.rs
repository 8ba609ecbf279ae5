//! landlock(7): a second wall behind the system call filter and the empty root, and the first for starts without root, which
//! cannot have an empty root.

use crate::sched::last_errno;
use rustix::io::Errno;
use std::os::fd::{FromRawFd, OwnedFd};

/// `struct landlock_ruleset_attr`. A kernel takes a longer one than it knows as long as the rest is zero.
#[repr(C)]
struct Attributes {
    files: u64,
    ports: u64,
    scopes: u64,
}

const ASK_VERSION: libc::c_uint = 1;

impl Attributes {
    /// All that this version of Landlock can deny.
    fn all(version: libc::c_long) -> Self {
        // Each right is one bit, and later versions have more of them.
        let files = match version {
            1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        let since = |first, bits: u64| if version >= first { bits } else { 0 };
        Self { files: (1 << files) - 1, ports: since(4, 0b11), scopes: since(6, 0b11) }
    }
}

/// Rules by which nothing is reached by its name: no file is opened or made, no port bound or connected to, and from version 6 on no abstract socket and no
/// signal outside. Who obeys them stays in them for good; any number of processes may. `NOSYS` or `OPNOTSUPP`: the kernel has no Landlock.
pub fn nothing_by_name() -> Result<OwnedFd, Errno> {
    let create = |attributes: *const Attributes, size: usize, flags: libc::c_uint| {
        // SAFETY: the kernel reads `size` bytes of `attributes`, which live until the call returns, or none.
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, attributes, size, flags) }
    };
    let version = create(std::ptr::null(), 0, ASK_VERSION);
    if version < 1 {
        return Err(last_errno());
    }
    let attributes = Attributes::all(version);
    let rules = create(&raw const attributes, size_of::<Attributes>(), 0);
    let rules = i32::try_from(rules).ok().filter(|rules| *rules >= 0).ok_or_else(last_errno)?;
    // SAFETY: the number was just given to us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(rules) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions, read_dir};
    use std::io::{ErrorKind, Read};

    /// Landlock holds for a thread, so one that ends leaves the others as they were. The system call filter, which kills for the
    /// same, is left out here.
    #[test]
    fn landlock_alone_keeps_every_name_closed() {
        let mut open = File::open("/proc/self/status").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let confined = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            match nothing_by_name().and_then(super::super::obey) {
                Err(Errno::NOSYS | Errno::OPNOTSUPP) => return println!("skipped: this kernel has no Landlock"),
                other => other.unwrap(),
            }
            let own = std::env::temp_dir().join(format!("lasthop-landlock-{}", std::process::id()));
            let tries = [
                ("read a file", File::open("/etc/passwd").map(drop)),
                ("read memory of others", File::open("/proc/1/mem").map(drop)),
                ("write a file", OpenOptions::new().append(true).open("/etc/passwd").map(drop)),
                ("make a file", File::create(&own).map(drop)),
                ("make a link", std::os::unix::fs::symlink("/etc/passwd", &own)),
                ("list a directory", read_dir("/").map(drop)),
                ("open a device", File::open("/dev/net/tun").map(drop)),
            ];
            for (what, result) in tries {
                assert_eq!(result.map_err(|e| e.kind()), Err(ErrorKind::PermissionDenied), "{what}");
            }
            // SAFETY: no pointer that the kernel follows.
            let version = unsafe {
                libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, ASK_VERSION)
            };
            let connected = std::net::TcpStream::connect(listener.local_addr().unwrap());
            assert_eq!(connected.is_ok(), version < 4, "TCP is denied since version 4");
            // What was open before stays.
            assert!(open.read(&mut [0; 16]).is_ok_and(|n| n > 0));
        });
        confined.join().unwrap();
        assert!(File::open("/etc/passwd").is_ok(), "the other threads are as they were");
    }

    #[test]
    fn no_version_is_asked_for_more_than_it_knows() {
        let all = |version| {
            let Attributes { files, ports, scopes } = Attributes::all(version);
            (files, ports, scopes)
        };
        assert_eq!(all(1), (0x1fff, 0, 0));
        assert_eq!(all(4), (0x7fff, 3, 0));
        assert_eq!((all(6), all(9)), ((0xffff, 3, 3), (0xffff, 3, 3)));
    }
}
