//! Messages on the wire and the rules their form must obey, whatever the state of the session.
//!
//! The specification says "machine native byte order"; lasthop runs on little-endian machines only, so the structures
//! say little-endian and need no alignment.

use lasthop_guestmem::RegionSpec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// A [`Request`].
    pub request: U32,
    /// See [`flag`].
    pub flags: U32,
    /// Bytes of the body.
    pub size: U32,
}

/// "A vring state description", or an index and what belongs to it.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct VringState {
    /// Ring.
    pub index: U32,
    /// Size, base or whether enabled.
    pub num: U32,
}

/// "A vring address description". Addresses are the front-end's own (user addresses).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct VringAddr {
    /// Ring.
    pub index: U32,
    /// Only [`VRING_LOG`] is known.
    pub flags: U32,
    /// Descriptor table, or the packed descriptor ring.
    pub descriptor: U64,
    /// Used ring, or the packed device event suppression structure.
    pub used: U64,
    /// Available ring, or the packed driver event suppression structure.
    pub available: U64,
    /// Guest address under which writes to the used ring are logged.
    pub log: U64,
}

/// "Memory region description".
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Region {
    /// Guest physical address.
    pub guest_addr: U64,
    /// Bytes.
    pub size: U64,
    /// The front-end's own address.
    pub user_addr: U64,
    /// Where in the file it starts.
    pub mmap_offset: U64,
}

impl From<Region> for RegionSpec {
    fn from(r: Region) -> Self {
        let (guest_addr, user_addr) = (r.guest_addr.get(), r.user_addr.get());
        Self { guest_addr, user_addr, size: r.size.get(), mmap_offset: r.mmap_offset.get() }
    }
}

impl From<RegionSpec> for Region {
    fn from(s: RegionSpec) -> Self {
        Self {
            guest_addr: s.guest_addr.into(),
            size: s.size.into(),
            user_addr: s.user_addr.into(),
            mmap_offset: s.mmap_offset.into(),
        }
    }
}

/// "Single memory region description".
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SingleRegion {
    /// Unused.
    pub padding: U64,
    /// The region.
    pub region: Region,
}

/// What "Multiple memory regions description" begins with; the regions follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TableHeader {
    /// How many regions follow.
    pub count: U32,
    /// Unused.
    pub padding: U32,
}

/// "Inflight description". C compilers pad it to 24 bytes and front-ends send the padding.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct InflightDesc {
    /// Bytes of the area.
    pub mmap_size: U64,
    /// Where in the file it starts.
    pub mmap_offset: U64,
    /// Rings.
    pub num_queues: U16,
    /// Entries of each.
    pub queue_size: U16,
}

macro_rules! requests {
    ($($variant:ident = $number:literal $name:literal,)*) => {
        /// Requests of the front-end, by the numbers of the specification.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Request { $(#[doc = $name] $variant = $number,)* }

        impl Request {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// By number.
            pub fn from_code(code: u32) -> Option<Self> {
                match code { $($number => Some(Self::$variant),)* _ => None }
            }

            /// The specification's name without `VHOST_USER_`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

requests! {
    GetFeatures = 1 "GET_FEATURES",
    SetFeatures = 2 "SET_FEATURES",
    SetOwner = 3 "SET_OWNER",
    ResetOwner = 4 "RESET_OWNER",
    SetMemTable = 5 "SET_MEM_TABLE",
    SetLogBase = 6 "SET_LOG_BASE",
    SetLogFd = 7 "SET_LOG_FD",
    SetVringNum = 8 "SET_VRING_NUM",
    SetVringAddr = 9 "SET_VRING_ADDR",
    SetVringBase = 10 "SET_VRING_BASE",
    GetVringBase = 11 "GET_VRING_BASE",
    SetVringKick = 12 "SET_VRING_KICK",
    SetVringCall = 13 "SET_VRING_CALL",
    SetVringErr = 14 "SET_VRING_ERR",
    GetProtocolFeatures = 15 "GET_PROTOCOL_FEATURES",
    SetProtocolFeatures = 16 "SET_PROTOCOL_FEATURES",
    GetQueueNum = 17 "GET_QUEUE_NUM",
    SetVringEnable = 18 "SET_VRING_ENABLE",
    SendRarp = 19 "SEND_RARP",
    NetSetMtu = 20 "NET_SET_MTU",
    SetBackendReqFd = 21 "SET_BACKEND_REQ_FD",
    IotlbMsg = 22 "IOTLB_MSG",
    SetVringEndian = 23 "SET_VRING_ENDIAN",
    GetConfig = 24 "GET_CONFIG",
    SetConfig = 25 "SET_CONFIG",
    CreateCryptoSession = 26 "CREATE_CRYPTO_SESSION",
    CloseCryptoSession = 27 "CLOSE_CRYPTO_SESSION",
    PostcopyAdvise = 28 "POSTCOPY_ADVISE",
    PostcopyListen = 29 "POSTCOPY_LISTEN",
    PostcopyEnd = 30 "POSTCOPY_END",
    GetInflightFd = 31 "GET_INFLIGHT_FD",
    SetInflightFd = 32 "SET_INFLIGHT_FD",
    GpuSetSocket = 33 "GPU_SET_SOCKET",
    ResetDevice = 34 "RESET_DEVICE",
    VringKick = 35 "VRING_KICK",
    GetMaxMemSlots = 36 "GET_MAX_MEM_SLOTS",
    AddMemReg = 37 "ADD_MEM_REG",
    RemMemReg = 38 "REM_MEM_REG",
    SetStatus = 39 "SET_STATUS",
    GetStatus = 40 "GET_STATUS",
    GetSharedObject = 41 "GET_SHARED_OBJECT",
    SetDeviceStateFd = 42 "SET_DEVICE_STATE_FD",
    CheckDeviceState = 43 "CHECK_DEVICE_STATE",
    GetShmemConfig = 44 "GET_SHMEM_CONFIG",
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A message's form is wrong, as the messages say. The stream may be out of step, so the connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SyntaxError {
    #[error("request {0}: protocol version {1}; lasthop speaks version 1")]
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
    let (request, flags, size) = (h.request.get(), h.flags.get(), h.size.get());
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
        assert_eq!(size_of::<TableHeader>() + MAX_TABLE * size_of::<Region>(), 264);
        assert_eq!(size_of::<InflightDesc>(), 20);
    }

    #[test]
    fn requests_are_dense_and_named() {
        for (i, r) in Request::ALL.iter().enumerate() {
            assert_eq!(*r as usize, i + 1);
            assert_eq!(Request::from_code(*r as u32), Some(*r));
        }
        assert_eq!(Request::from_code(0), None);
        assert_eq!(Request::from_code(45), None);
        assert_eq!(Request::SetVringAddr.to_string(), "SET_VRING_ADDR");
    }

    #[test]
    fn headers_are_judged() {
        let header = |flags: u32, size: u32| Header { request: 1.into(), flags: flags.into(), size: size.into() };
        assert_eq!(check_header(&header(1, 0)), Ok(()));
        assert_eq!(check_header(&header(9, 512)), Ok(()));
        assert!(matches!(check_header(&header(2, 0)), Err(SyntaxError::Version(_, 2))));
        assert!(matches!(check_header(&header(5, 0)), Err(SyntaxError::Flags(..))));
        assert!(matches!(check_header(&header(0x11, 0)), Err(SyntaxError::Flags(..))));
        assert!(matches!(check_header(&header(1, 513)), Err(SyntaxError::TooLong(..))));
        assert!(matches!(check_header(&header(1, u32::MAX)), Err(SyntaxError::TooLong(..))));
    }
}
