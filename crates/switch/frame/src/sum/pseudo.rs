//! Sums over pseudo headers. The switch has no use for them: it completes a sum that its sender began.

use super::sum;

/// Sum over an IPv4 pseudo header (RFC 9293 §3.1); `len` is that of the transport header and its payload in bytes.
pub fn pseudo_v4(src: [u8; 4], dst: [u8; 4], proto: u8, len: u16) -> u32 {
    sum(&src) + sum(&dst) + u32::from(proto) + u32::from(len)
}

/// Sum over an IPv6 pseudo header (RFC 8200 §8.1); `len` as in [`pseudo_v4`].
pub fn pseudo_v6(src: [u8; 16], dst: [u8; 16], proto: u8, len: u32) -> u32 {
    sum(&src) + sum(&dst) + u32::from(proto) + (len & 0xffff) + (len >> 16)
}
