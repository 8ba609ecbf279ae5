//! Protocols in an IP header (IANA's numbers), as in [`FlowKey::ip_proto`](crate::FlowKey::ip_proto).

/// ICMP, of IPv4.
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMPv6.
pub const ICMPV6: u8 = 58;
/// SCTP.
pub const SCTP: u8 = 132;
