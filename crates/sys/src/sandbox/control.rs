//! What `lasthop-control` may do: it serves its API on a listening socket that it inherited.

use super::Program;

impl Program {
    /// `lasthop-control`.
    pub const CONTROL: Self = Self {
        user: "lasthop-control",
        number: 61_902,
        calls: &[libc::SYS_accept4, libc::SYS_getsockname, libc::SYS_getpeername],
        socketpair: true,
    };
}
