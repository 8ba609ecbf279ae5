//! What a rule asks of a frame, as numbers that are quick to compare.

use crate::Addresses;
use std::sync::Arc;

/// From and to, both included.
pub type Range = (u16, u16);

/// What a pattern wants behind the VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ether {
    /// Anything.
    Any,
    /// IPv4 or IPv6.
    Ip,
    /// This EtherType.
    Type(u16),
}

/// The IP protocols that a pattern is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proto {
    /// Any, or none.
    Any,
    /// This one.
    One(u8),
    /// Those that have ports: TCP, UDP, SCTP.
    Ported,
}

/// All that must hold for a frame to match. Bits of addresses that a mask leaves out are 0 in the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Source address, IPv4 in the last 32 bits.
    pub src: u128,
    /// Its bits that count, the first ones of the address.
    pub src_mask: u128,
    /// Destination address.
    pub dst: u128,
    /// Its bits that count, the first ones of the address.
    pub dst_mask: u128,
    /// The source is one of these. The EtherType has to be asked for too.
    pub src_in: Option<Arc<Addresses>>,
    /// The destination is one of these, likewise.
    pub dst_in: Option<Arc<Addresses>>,
    /// IP protocol.
    pub proto: Proto,
    /// EtherType behind the VLAN tags.
    pub ether: Ether,
    /// VLAN id.
    pub vlan: Option<u16>,
    /// It looks at ports or at the ICMP type.
    pub transport: bool,
    /// If it does: whether a later fragment, which has none, matches by the rest of the pattern.
    pub later_fragments: bool,
    /// Source ports, or ICMP types; empty: any.
    pub sport: Box<[Range]>,
    /// Destination ports, or ICMP codes; empty: any.
    pub dport: Box<[Range]>,
    /// Source Ethernet address, in the last 48 bits.
    pub src_mac: u64,
    /// Its bits that count.
    pub src_mac_mask: u64,
    /// Destination Ethernet address.
    pub dst_mac: u64,
    /// Its bits that count.
    pub dst_mac_mask: u64,
}

impl Default for Pattern {
    /// Meets every frame.
    fn default() -> Self {
        Self {
            src: 0,
            src_mask: 0,
            dst: 0,
            dst_mask: 0,
            src_in: None,
            dst_in: None,
            proto: Proto::Any,
            ether: Ether::Any,
            vlan: None,
            transport: false,
            later_fragments: true,
            sport: Box::default(),
            dport: Box::default(),
            src_mac: 0,
            src_mac_mask: 0,
            dst_mac: 0,
            dst_mac_mask: 0,
        }
    }
}

/// The first `len` bits of a number that has `width` (1 to 128).
pub fn first_bits(len: u32, width: u32) -> u128 {
    let ones = u128::MAX >> (128 - width);
    ones & !ones.checked_shr(len).unwrap_or(0)
}

/// An Ethernet address as a number.
pub fn mac_bits(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Whether the port is in one of the ranges, or there are none.
pub(crate) fn in_ranges(port: u16, ranges: &[Range]) -> bool {
    ranges.is_empty() || ranges.iter().any(|(low, high)| (*low..=*high).contains(&port))
}

/// The ports that agree with `port` in the bits of `mask`, which are its first ones.
pub(crate) fn interval(port: u16, mask: u16) -> Range {
    (port & mask, port | !mask)
}

/// No port of the interval is in a range.
pub(crate) fn apart(ranges: &[Range], (low, high): Range) -> bool {
    ranges.iter().all(|(l, h)| high < *l || *h < low)
}

/// Every port of the interval is in a range, or there are none.
pub(crate) fn within(ranges: &[Range], (low, high): Range) -> bool {
    ranges.is_empty() || ranges.iter().any(|(l, h)| *l <= low && high <= *h)
}
