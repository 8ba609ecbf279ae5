//! Who is at the other end of a Unix socket (unix(7)).

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// A process at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number; none where this process does not see it, as from within another PID namespace, a container's for example.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The process at the other end, as the kernel noted it when that process called connect(2), or listen(2) where we connected (SO_PEERCRED). rustix' `Pid` cannot
/// be 0, which the kernel writes for a process outside this PID namespace; reading one there is undefined.
///
/// # Errors
/// NOTCONN if the kernel has noted nobody; else those of getsockopt(2).
pub fn peer(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of_val(&who) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes, which is the length of what `who` is; any bits are one.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut bytes,
        )
    };
    if done != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    if (who.uid, who.gid) == (u32::MAX, u32::MAX) {
        return Err(Errno::NOTCONN);
    }
    let pid = u32::try_from(who.pid).ok().filter(|pid| *pid != 0);
    Ok(Peer { pid, uid: who.uid, gid: who.gid })
}

/// More groups than a process can be in (NGROUPS_MAX, limits.h).
const MOST: usize = 65_536;

/// The supplementary groups that the process at the other end had when it called connect(2), or listen(2) where we connected
/// (SO_PEERGROUPS, Linux 4.13). The kernel noted them then, so whoever has the process's number now does not matter.
pub fn peer_groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(groups.as_slice())).unwrap_or(0);
        // SAFETY: the kernel writes at most `bytes` bytes, which is the length of the vector's memory; u32 is gid_t, and any
        // bits are one.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let needed = bytes as usize / size_of::<u32>();
        if done == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            // Then `bytes` says how much there is.
            Some(Errno::RANGE) if needed > groups.len() && needed <= MOST => groups.resize(needed, 0),
            error => return Err(error.unwrap_or(Errno::IO)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn this_process_is_seen() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(peer(&ours), Ok(Peer { pid: Some(std::process::id()), uid: me.0, gid: me.1 }));
        assert!(peer(std::fs::File::open("/dev/null").unwrap()).is_err());
        let alone =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
        assert_eq!(peer(alone), Err(Errno::NOTCONN), "nobody is there yet");
    }

    #[test]
    fn the_groups_of_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut groups = peer_groups(&ours).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut expected: Vec<u32> = line.split_whitespace().map(|gid| gid.parse().unwrap()).collect();
        groups.sort_unstable();
        expected.sort_unstable();
        assert_eq!(groups, expected);
    }
}
