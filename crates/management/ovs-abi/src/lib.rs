//! The ABI between Open vSwitch and a kernel's datapath (`linux/openvswitch.h`), read and written. No I/O, and no state: what a message
//! means for a datapath is told in `lasthop-ovs-datapath`.
//!
//! | file | does |
//! |---|---|
//! | `netlink` | messages and attributes (`linux/netlink.h`, `linux/genetlink.h`) |
//! | `family` | the generic netlink families, their commands and attributes |
//! | `key` | the key of a flow, and its mask |
//! | `action` | what a flow does |
//! | `connections` | what it asks of connection tracking |
//! | `conntrack` | the table of connections, asked for and ended (`linux/netfilter/nfnetlink_conntrack.h`) |
//! | `limit` | limits of connections by zone |
//! | `meter` | meters |
//! | `nsh` | the network service header |
//! | `timeouts` | time-out policies of connections |
//! | `traffic` | limits of interfaces: policing, and classes of what goes there |
//! | `tunnel` | the key of a tunnel |
//!
//! Every byte that is read comes from another process: what is wrong with it is a [`Refused`], never a panic, and what is not known is
//! refused too, because Open vSwitch goes by that which features a datapath has.

#![forbid(unsafe_code)]

mod action;
mod connections;
pub mod conntrack;
pub mod family;
mod key;
pub mod limit;
pub mod meter;
pub mod netlink;
pub mod nsh;
pub mod timeouts;
pub mod traffic;
pub mod tunnel;

pub use action::{Act, Front, MAX_ACTS, Meta, Suits};
pub use connections::{Ct, Side, Translation};
pub use key::{Key, LATER_FRAGMENT, MAX_LABELS, is_mpls};

/// Why something is not done: the number of an error, as errno(3) has it. Open vSwitch shows its text in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub i32);

impl Refused {
    /// ENOENT: there is no such flow, or no such family.
    pub const NO_ENTRY: Self = Self(2);
    /// EBUSY: there is one datapath, and it has another name.
    pub const BUSY: Self = Self(16);
    /// EEXIST: there is one already.
    pub const EXISTS: Self = Self(17);
    /// ENODEV: there is no such datapath, port or interface.
    pub const NO_DEVICE: Self = Self(19);
    /// EINVAL: it makes no sense, or is not implemented and Open vSwitch does without.
    pub const INVALID: Self = Self(22);
    /// EFBIG: the table is full.
    pub const FULL: Self = Self(27);
    /// ERANGE: an attribute is shorter or longer than its type.
    pub const RANGE: Self = Self(34);
    /// EOPNOTSUPP: not implemented.
    pub const UNSUPPORTED: Self = Self(95);
    /// ENOBUFS: a dump was cut short.
    pub const NO_BUFFERS: Self = Self(105);
}
