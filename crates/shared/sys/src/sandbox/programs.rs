//! The programs beside the switch. Behind the feature `others`: the switch need not know them.

use super::{Program, Report};
use std::fmt;

impl Program {
    /// `lasthop-control`: serves its API on a listening socket it inherited.
    pub const CONTROL: Self = Self {
        user_name: "lasthop-control",
        fixed_user: 61_902,
        calls: &[libc::SYS_accept4, libc::SYS_getsockname, libc::SYS_getpeername],
        ioctls: &[],
        socket_pairs: &[libc::AF_UNIX],
    };

    /// `lasthop-uplink`: packets in batches over sockets it opened before, and the end of a TAP device that it made.
    pub const UPLINK: Self = Self {
        user_name: "lasthop-uplink",
        fixed_user: 61_903,
        calls: &[libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_getsockname],
        ioctls: &[libc::TUNSETPERSIST],
        socket_pairs: &[],
    };
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}, {}", self.user, self.done.join(", "))?;
        if !self.left_out.is_empty() {
            write!(f, "; without {}", self.left_out.join(", "))?;
        }
        Ok(())
    }
}
