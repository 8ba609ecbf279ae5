//! What `lasthop-control` may do: it serves its API on a listening socket that it inherited.

use super::{Program, Report};
use std::fmt;

impl Program {
    /// `lasthop-control`.
    pub const CONTROL: Self = Self {
        user: "lasthop-control",
        number: 61_902,
        calls: &[libc::SYS_accept4, libc::SYS_getsockname, libc::SYS_getpeername],
        socketpair: true,
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
