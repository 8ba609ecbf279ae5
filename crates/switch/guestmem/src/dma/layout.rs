//! Descriptors and completion records as Intel's Data Streaming Accelerator has them (Intel DSA Architecture Specification, order number
//! 341204, "Descriptor Format" and "Completion Record"; the same as in Linux' `include/uapi/linux/idxd.h`). Addresses are those of this
//! process, as with shared virtual memory.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 64;
/// Bytes of a completion record.
pub const COMPLETION: usize = 32;

/// Operation "Memory Move".
pub const MEMMOVE: u8 = 0x03;
/// Flag: the completion record's address is valid.
pub const COMPLETION_VALID: u32 = 1 << 2;
/// Flag: a completion record is to be written.
pub const REQUEST_COMPLETION: u32 = 1 << 3;

/// Completion status: not yet.
pub const NONE: u8 = 0;
/// Completion status: all of it.
pub const SUCCESS: u8 = 1;
/// Completion status: a page was not there, and only so many bytes were copied.
pub const PAGE_FAULT: u8 = 3;
/// Completion status: there is no such operation.
pub const BAD_OPCODE: u8 = 0x10;
/// Completion status: flags that this operation does not have, or lacks.
pub const BAD_FLAGS: u8 = 0x11;
/// Completion status: nothing, or more than may be.
pub const BAD_SIZE: u8 = 0x13;

/// Most bytes of one copy here: a packet has no more.
pub const MOST: u32 = 1 << 17;

/// One copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(64))]
pub struct Descriptor {
    /// Process address space and privilege: the engine's own here, 0.
    pub space: u32,
    /// 24 bits of flags, and above them the operation.
    pub flags_and_operation: u32,
    /// Where its completion record lies.
    pub completion: u64,
    /// Where the bytes are.
    pub source: u64,
    /// Where they go.
    pub destination: u64,
    /// How many.
    pub size: u32,
    /// Which interrupt, if one is asked for: none is.
    pub interrupt: u16,
    reserved: [u16; 13],
}

const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR);

impl Descriptor {
    /// A copy whose completion record lies at `completion`.
    pub fn memmove(source: u64, destination: u64, size: u32, completion: u64) -> Self {
        let flags = COMPLETION_VALID | REQUEST_COMPLETION;
        let flags_and_operation = u32::from(MEMMOVE) << 24 | flags;
        Self { flags_and_operation, completion, source, destination, size, ..Self::default() }
    }

    /// How many bytes.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Whether it is one that this engine carries out; else the status of its completion.
    pub fn check(&self) -> Result<(), u8> {
        let (flags, operation) = (self.flags_and_operation & 0x00ff_ffff, (self.flags_and_operation >> 24) as u8);
        match (operation, flags, self.size) {
            (MEMMOVE, f, 1..=MOST) if f == COMPLETION_VALID | REQUEST_COMPLETION => Ok(()),
            (MEMMOVE, f, _) if f == COMPLETION_VALID | REQUEST_COMPLETION => Err(BAD_SIZE),
            (MEMMOVE, ..) => Err(BAD_FLAGS),
            _ => Err(BAD_OPCODE),
        }
    }
}
