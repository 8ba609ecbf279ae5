//! Messages on the wire and the rules their form must obey, whatever the state of the session.
//!
//! Numbers are in the machine's own byte order, as the specification says. A memory region is a [`RegionSpec`].
#![allow(missing_docs)] // Fields have the specification's names.

use lasthop_guestmem::RegionSpec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Bytes of a header.
pub const HEADER_LEN: usize = 12;
/// Longest body taken, in bytes. The longest one we know is SET_MEM_TABLE with 8 regions: 264.
pub const MAX_BODY: usize = 512;
/// Most descriptors one message may carry.
pub const MAX_FDS: usize = 8;
/// Most regions in one SET_MEM_TABLE.
pub const MAX_TABLE: usize = 8;

/// Bits of [`Header::flags`].
pub mod flag {
    /// The only version there is.
    pub const VERSION: u32 = 1;
    /// Where the version lies.
    pub const VERSION_MASK: u32 = 3;
    /// This is a reply.
    pub const REPLY: u32 = 1 << 2;
    /// The sender wants to know whether it worked (REPLY_ACK).
    pub const NEED_REPLY: u32 = 1 << 3;
}

/// In SET_VRING_KICK, CALL and ERR: no descriptor comes with it.
pub const NO_FD: u64 = 1 << 8;
/// In SET_VRING_KICK, CALL and ERR: the ring's index.
pub const INDEX_MASK: u64 = 0xff;
/// In SET_VRING_ADDR's flags: log writes to the used ring.
pub const VRING_LOG: u32 = 1;

/// What every message begins with.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    pub request: u32,
    /// See [`flag`].
    pub flags: u32,
    /// Bytes of the body.
    pub size: u32,
}

/// "A vring state description", or an index and what belongs to it: size, base or whether enabled.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct VringState {
    pub index: u32,
    pub num: u32,
}

/// "A vring address description". Addresses are the front-end's own (user addresses).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct VringAddr {
    pub index: u32,
    /// Only [`VRING_LOG`] is known.
    pub flags: u32,
    /// Descriptor table, or the packed descriptor ring.
    pub descriptor: u64,
    /// Used ring, or the packed device event suppression structure.
    pub used: u64,
    /// Available ring, or the packed driver event suppression structure.
    pub available: u64,
    /// Guest address under which writes to the used ring are logged.
    pub log: u64,
}

/// "Single memory region description".
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SingleRegion {
    pub padding: u64,
    pub region: RegionSpec,
}

/// "An IOTLB message". C compilers make it 32 bytes long, and everybody sends as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IotlbMessage {
    /// I/O address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// Address in the front-end's own address space.
    pub user_addr: u64,
    /// 1: may be read, 2: may be written, 3: both.
    pub permissions: u8,
    /// See [`iotlb`].
    pub kind: u8,
    pub padding: [u8; 6],
}

/// Values of [`IotlbMessage::kind`].
pub mod iotlb {
    pub const MISS: u8 = 1;
    pub const UPDATE: u8 = 2;
    pub const INVALIDATE: u8 = 3;
    pub const ACCESS_FAIL: u8 = 4;
    pub const BATCH_BEGIN: u8 = 5;
    pub const BATCH_END: u8 = 6;
}

/// The back-end's request that carries an [`IotlbMessage`]; those of the front-end are a [`Request`].
pub const BACKEND_IOTLB_MSG: u32 = 1;

/// "Log description".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct LogDesc {
    /// Bytes of the log.
    pub size: u64,
    /// Where it begins in the file.
    pub offset: u64,
}

/// "Inflight description". The specification has no padding, C compilers have.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InflightDesc {
    pub mmap_size: u64,
    pub mmap_offset: u64,
    pub num_queues: u16,
    pub queue_size: u16,
    pub padding: u32,
}

/// Requests of the front-end, by the numbers and names of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u32)]
pub enum Request {
    GetFeatures = 1,
    SetFeatures,
    SetOwner,
    ResetOwner,
    SetMemTable,
    SetLogBase,
    SetLogFd,
    SetVringNum,
    SetVringAddr,
    SetVringBase,
    GetVringBase,
    SetVringKick,
    SetVringCall,
    SetVringErr,
    GetProtocolFeatures,
    SetProtocolFeatures,
    GetQueueNum,
    SetVringEnable,
    SendRarp,
    NetSetMtu,
    SetBackendReqFd,
    IotlbMsg,
    SetVringEndian,
    GetConfig,
    SetConfig,
    CreateCryptoSession,
    CloseCryptoSession,
    PostcopyAdvise,
    PostcopyListen,
    PostcopyEnd,
    GetInflightFd,
    SetInflightFd,
    GpuSetSocket,
    ResetDevice,
    VringKick,
    GetMaxMemSlots,
    AddMemReg,
    RemMemReg,
    SetStatus,
    GetStatus,
    GetSharedObject,
    SetDeviceStateFd,
    CheckDeviceState,
    GetShmemConfig,
}

impl Request {
    /// By number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::try_read_from_bytes(&code.to_ne_bytes()).ok()
    }

    /// It hands over the guest's memory, or takes some back.
    pub fn is_of_memory(self) -> bool {
        matches!(self, Self::SetMemTable | Self::AddMemReg | Self::RemMemReg)
    }

    /// The number of the ring that it is about, as its body has it, if it is about one.
    pub fn ring(self, body: &[u8]) -> Option<u32> {
        let word = || Some(u32::from_ne_bytes(*body.first_chunk()?));
        match self {
            // "A vring state description", and the index at the beginning of a vring address description.
            Self::SetVringNum | Self::SetVringAddr | Self::SetVringBase | Self::GetVringBase | Self::SetVringEnable => {
                word()
            }
            // Bits 0 to 7.
            Self::SetVringKick | Self::SetVringCall | Self::SetVringErr => word().map(|number| number & 0xff),
            _ => None,
        }
    }
}

impl std::fmt::Display for Request {
    /// The specification's name without `VHOST_USER_`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, letter) in format!("{self:?}").char_indices() {
            let gap = if i > 0 && letter.is_ascii_uppercase() { "_" } else { "" };
            write!(f, "{gap}{}", letter.to_ascii_uppercase())?;
        }
        Ok(())
    }
}

/// A message's form is wrong, as the messages say. The stream may be out of step, so the connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("what connected does not speak vhost-user 1 (request {0}, protocol version {1})")]
    Version(u32, u32),
    #[error("request {0}: flags {1:#x} make no sense on a request")]
    Flags(u32, u32),
    #[error("request {0}: body of {1} bytes; the longest there is has {MAX_BODY}")]
    TooLong(u32, u32),
    #[error("{0}: body of {1} bytes does not fit the request")]
    Size(Request, usize),
    #[error("{0}: {1} descriptors came with it, {2} belong to it")]
    Descriptors(Request, usize, usize),
    #[error("too many descriptors came with one message (or this process has no room for more)")]
    Truncated,
    #[error("{0}: {1:#x} is not a value this request can have")]
    Value(Request, u64),
}

/// Judges a header alone: version, flags, size.
pub fn check_header(h: &Header) -> Result<(), SyntaxError> {
    let &Header { request, flags, size } = h;
    if flags & flag::VERSION_MASK != flag::VERSION {
        return Err(SyntaxError::Version(request, flags & flag::VERSION_MASK));
    }
    if flags & !(flag::VERSION_MASK | flag::NEED_REPLY) != 0 {
        return Err(SyntaxError::Flags(request, flags));
    }
    if size as usize > MAX_BODY {
        return Err(SyntaxError::TooLong(request, size));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_specification() {
        assert_eq!(size_of::<Header>(), HEADER_LEN);
        assert_eq!(size_of::<VringState>(), 8);
        assert_eq!(size_of::<VringAddr>(), 40);
        assert_eq!(size_of::<SingleRegion>(), 40);
        assert_eq!(8 + MAX_TABLE * size_of::<RegionSpec>(), 264);
        assert_eq!(size_of::<InflightDesc>(), 24);
        assert_eq!(size_of::<IotlbMessage>(), 32);
    }

    #[test]
    fn requests_are_dense_and_named() {
        assert!((1..45).all(|code| Request::from_code(code).is_some_and(|r| r as u32 == code)));
        assert_eq!(Request::GetShmemConfig as u32, 44);
        assert_eq!(Request::from_code(0), None);
        assert_eq!(Request::from_code(45), None);
        assert_eq!(Request::SetVringAddr.to_string(), "SET_VRING_ADDR");
    }

    #[test]
    fn headers_are_judged() {
        let header = |flags: u32, size: u32| Header { request: 1, flags, size };
        assert_eq!(check_header(&header(1, 0)), Ok(()));
        assert_eq!(check_header(&header(9, 512)), Ok(()));
        assert!(matches!(check_header(&header(2, 0)), Err(SyntaxError::Version(_, 2))));
        assert!(matches!(check_header(&header(5, 0)), Err(SyntaxError::Flags(..))));
        // `GET / HTTP/1.1`
        let get = Header { request: u32::from_le_bytes(*b"GET "), flags: u32::from_le_bytes(*b"/ HT"), size: 0 };
        let said = check_header(&get).unwrap_err().to_string();
        assert_eq!(said, "what connected does not speak vhost-user 1 (request 542393671, protocol version 3)");
        assert!(matches!(check_header(&header(0x11, 0)), Err(SyntaxError::Flags(..))));
        assert!(matches!(check_header(&header(1, 513)), Err(SyntaxError::TooLong(..))));
        assert!(matches!(check_header(&header(1, u32::MAX)), Err(SyntaxError::TooLong(..))));
    }
}
