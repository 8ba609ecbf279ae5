//! Everything that looks into or edits a frame's headers. Works on private bytes only: no I/O, no guest memory, no `unsafe`.
//!
//! - [`extract`]: snapshot → [`FlowKey`].
//! - [`VnetHdr`], [`Offload`]: what the sender asked for, checked; [`Delivery`]: what is left to do for one receiver.
//! - [`Header`], [`Edit`]: the snapshot in private memory, and what actions change in it.
//! - [`Segmenter`]: cuts a large packet while its payload is copied.
//! - [`sum`]: the Internet checksum.
//!
//! Everything here is a pure function of its arguments and may be called from any thread.

#![forbid(unsafe_code)]

mod edit;
pub mod ethertype;
mod extract;
mod header;
mod key;
mod offload;
pub mod proto;
mod segment;
pub mod sum;
#[cfg(any(test, feature = "testutil"))]
pub mod testutil;
mod vnet;

pub use edit::{Edit, Part, Set};
pub use extract::{extract, is_plain_l2};
pub use header::{HEADER_LEN, HEADROOM, Header};
pub use key::{Depth, FlowKey, FlowMask};
pub use offload::{CompleteChecksum, Delivery, Gso, GsoKind, MAX_SEGMENTS, Offload, Receiver};
pub use segment::{HeaderBuf, SEGMENT_HEADER_LEN, Segment, Segmenter};
pub use vnet::{VnetHdr, feature};

/// Bytes of a frame that are copied into private memory, once, before anything looks at them (design rule 1).
/// Whatever is judged lies inside; what lies behind is payload.
pub const SNAPSHOT_LEN: usize = 192;

/// Big-endian number at `at`; `None` if `bytes` end before it does.
#[inline]
pub fn read_be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

/// Big-endian number at `at`; 0 behind the end. Callers have checked the length, so the 0 is never seen.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    read_be16(bytes, at).unwrap_or(0)
}

/// Stores a big-endian number at `at`; does nothing behind the end.
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(to) = bytes.get_mut(at..at + 2) {
        to.copy_from_slice(&value.to_be_bytes());
    }
}
