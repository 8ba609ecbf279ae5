//! What a session refuses, and why it ends.

use crate::features::{Features, ProtocolFeatures};
use crate::inflight::InflightError;
use crate::message::SyntaxError;
use lasthop_guestmem::MapError;
use lasthop_text::MacAddr;
use rustix::io::Errno;

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
    #[error(
        "a ring of {size} entries is longer than this port's may be, {most} (max-ring); give the guest shorter rings (QEMU: rx_queue_size, tx_queue_size), or the port a larger bound"
    )]
    RingBound { size: u16, most: u16 },
    #[error("ring {0} runs: it cannot be changed before GET_VRING_BASE stops it")]
    RingRunning(u32),
    /// The switch cannot do it.
    #[error("{0}")]
    Switch(String),
    #[error("{0}")]
    Memory(MapError),
    #[error("no memory region of {size} bytes at {guest_addr:#x} (front-end address {user_addr:#x})")]
    NoRegion { guest_addr: u64, user_addr: u64, size: u64 },
    #[error(
        "a log of {size} bytes covers too little of the guest's memory; {needed} bytes are needed, one for each 32 KiB up to the last address"
    )]
    LogTooSmall { size: u64, needed: u64 },
    #[error(
        "a log of {size} bytes at {offset} of its file: both must be multiples of 8, and no log is longer than 2 GiB"
    )]
    LogPlace { size: u64, offset: u64 },
    #[error("MTU {0} is not between 68 and 65535")]
    Mtu(u64),
    #[error("device status {0:#x} has more than eight bits")]
    Status(u64),
    #[error("{0} is not the address of a guest")]
    Address(MacAddr),
    #[error("{0:#x} is no type of an IOTLB message that a front-end sends")]
    Iotlb(u8),
    #[error("no translation of I/O addresses was negotiated")]
    NoTranslation,
    #[error("{size} bytes at I/O address {iova:#x} are not whole pages of 4096 bytes below 2^48")]
    IotlbRange { iova: u64, size: u64 },
    #[error("{size} bytes at address {user_addr:#x} of the front-end are not in one memory region")]
    IotlbTarget { user_addr: u64, size: u64 },
    #[error("what came for back-end requests is no socket")]
    NoSocket,
    #[error("{0}")]
    Inflight(#[from] InflightError),
}

/// Why a connection ended, as the messages say, or what was refused. The text is the line for the log.
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
        "descriptors that this port's front-ends sent do not close (files of a FUSE mount, or sockets that linger: end whoever serves them; or no thread can be started, by pids.max, that would close them)"
    )]
    Unclosed,
    #[error("{0}")]
    Syntax(#[from] SyntaxError),
    #[error("{request}: {why}")]
    Refused { request: String, why: Refusal, of_memory: bool },
    #[error("what the front-end answers to a back-end's request makes no sense")]
    BackendChannel,
    #[error("the switch has ended the connection")]
    SwitchGone,
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
