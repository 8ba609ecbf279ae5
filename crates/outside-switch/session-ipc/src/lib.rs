//! Messages between the supervisor (`lasthop run`) and the session processes of ports. The switch speaks none of it.

use serde::{Deserialize, Serialize};

/// Bytes of the longest message either way, which either end keeps room for: there may be thousands of these channels.
pub const LONGEST_MESSAGE: usize = 2048;
/// Characters of the longest line in a message.
pub const LONGEST_LINE: usize = 500;

/// To the session process of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorToSession {
    /// Its end of the channel to the switch, for the connection that comes next, travels with this message.
    Switch,
    /// A connected vhost-user socket travels with this message.
    Connection,
    /// What its port's settings let the front-end have, now and in connections to come.
    Bounds(Bounds),
    /// A step of the port's way to another switch; each is answered by [`SessionToSupervisor::Moved`].
    Move(Step),
}

/// What a front-end may have; without a number, as much as without a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// So many ranges of I/O addresses are remembered.
    pub grants: Option<u32>,
    /// Most entries of a ring.
    pub max_ring: Option<u16>,
}

/// Steps of a port's way to another switch, in their order. All ports take each of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Step {
    /// The other switch, the channel to which travels with this message, is told all but where rings stand. From here on nothing is heard of the
    /// front-end.
    Prepare,
    /// Rings that packets come from stop.
    Hold,
    /// Rings that packets go to go over.
    Cross,
    /// Rings that packets come from go on, at the other switch.
    GoOn,
    /// The switch before lets go of the port, and its front-end is heard again.
    Leave,
    /// What has been done is undone, and its front-end is heard again: instead of any of the others but `Leave`.
    Stay,
}

/// From the session process of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionToSupervisor {
    /// Sandboxed and serving.
    Ready,
    /// The step is done, or why it cannot be: one line. Behind `GoOn`, for how many nanoseconds none of the port's packets moved, if it has rings.
    Moved(Step, Result<Option<u64>, String>),
    /// Whether the guest's own IOMMU translates addresses: then its traffic waits for this process.
    Translates(bool),
    /// Instead of `Moved(Prepare, …)`: no other switch would take this front-end as it is, for a reason of its own, one line. Its connection has ended; all others
    /// can go over.
    StaysBehind(String),
}
