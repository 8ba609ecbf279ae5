//! What a session reports and refuses.

use crate::features::{Features, ProtocolFeatures};
use crate::inflight::InflightError;
use crate::message::SyntaxError;
use crate::ring::RingError;
use lasthop_guestmem::MapError;
use lasthop_sys::{PeerEvent, PeerEventError};
use lasthop_types::MacAddr;
use rustix::io::Errno;

/// What the owner of a session has to act on. `queue` is the index of a vring.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum SessionEvent {
    /// Watch this descriptor, instead of one given before, for the queue's kicks; without a descriptor the front-end
    /// wants the queue to be polled. Look at the queue once now: a kick may have gone to the process before.
    Kick { queue: usize, fd: Option<PeerEvent> },
    /// The queue stopped: drop its kick descriptor.
    Stopped { queue: usize },
    /// A ring could not be started, or not be kept running over a change of memory.
    Failed { queue: usize, error: RingError },
    /// Features, memory, or which rings run or are enabled changed: read them from the session and the queues, and look
    /// at the queues once. Comes at most once per call, last.
    Changed,
    /// The guest behind this address has moved here: broadcast a RARP in its name.
    Announce { mac: MacAddr },
    /// The front-end told the guest this MTU, in bytes without link-layer headers.
    Mtu(u16),
    /// Nothing is read from the front-end for a while: so much is mapped, with what it has let go of and is not unmapped yet.
    Waits { bytes: u64, regions: usize },
    /// A request was answered with a failure; the connection goes on. One line for the log.
    Refused(SessionError),
}

/// Why a well-formed request cannot be carried out: the messages say it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Refusal {
    #[error("no request has this number")]
    Unknown,
    #[error("lasthop does not offer this")]
    NotOffered,
    #[error("protocol feature {} was not negotiated", ProtocolFeatures::describe(*.0))]
    NotNegotiated(u64),
    #[error("features not offered: {}", Features::describe(*.0))]
    Features(u64),
    #[error("features change while rings run: {}", Features::describe(*.0))]
    FeaturesWhileRunning(u64),
    #[error("protocol features not offered: {}", ProtocolFeatures::describe(*.0))]
    ProtocolFeatures(u64),
    #[error("ring index {index} is beyond the port's {rings} rings")]
    RingIndex { index: u32, rings: usize },
    #[error("ring size {0} is not allowed (split: a power of two, both: 1 to 32768)")]
    RingSize(u32),
    #[error("ring {0} runs: it cannot be changed before GET_VRING_BASE stops it")]
    RingRunning(u32),
    #[error("{0}")]
    Memory(#[from] MapError),
    #[error("no memory region of {size} bytes at {guest_addr:#x} (front-end address {user_addr:#x})")]
    NoRegion { guest_addr: u64, user_addr: u64, size: u64 },
    #[error("MTU {0} is not between 68 and 65535")]
    Mtu(u64),
    #[error("device status {0:#x} has more than eight bits")]
    Status(u64),
    #[error("{0} is not the address of a guest")]
    Address(MacAddr),
    #[error("{0}")]
    Descriptor(#[from] PeerEventError),
    #[error("{0}")]
    Inflight(#[from] InflightError),
}

/// Why a connection ended, as the messages say (or, inside [`SessionEvent::Refused`], what was refused). The text is the line for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SessionError {
    #[error("the front-end disconnected")]
    Closed,
    #[error("the front-end disconnected in the middle of a message")]
    ClosedMidMessage,
    #[error("the front-end connected and said nothing")]
    Silent,
    #[error("the front-end sent half a message and stopped")]
    HalfMessage,
    #[error("the front-end does not read its replies")]
    RepliesUnread,
    #[error(
        "descriptors that this port's front-ends sent do not close (files of a FUSE mount, or sockets that linger); end whoever serves them"
    )]
    Unclosed,
    #[error("{0}")]
    Syntax(#[from] SyntaxError),
    #[error("{request}: {why}")]
    Refused { request: String, why: Refusal },
    #[error("socket: {0}")]
    Io(Errno),
}

impl From<Errno> for SessionError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            e => Self::Io(e),
        }
    }
}
