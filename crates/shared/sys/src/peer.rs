//! Who is at the other end of a Unix socket (unix(7)).

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

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
