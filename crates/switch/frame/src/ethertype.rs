//! EtherTypes (IEEE 802 numbers), as they stand in a frame and in [`FlowKey::eth_type`](crate::FlowKey::eth_type).

/// IPv4.
pub const IPV4: u16 = 0x0800;
/// ARP.
pub const ARP: u16 = 0x0806;
/// RARP: what a station that has moved is announced by.
pub const RARP: u16 = 0x8035;
/// IPv6.
pub const IPV6: u16 = 0x86dd;
/// TPID of a customer's VLAN tag (IEEE 802.1Q).
pub const CTAG: u16 = 0x8100;
/// TPID of a service tag (IEEE 802.1ad).
pub const STAG: u16 = 0x88a8;
/// Smallest EtherType; below it the field is the length of an IEEE 802.3 frame.
pub const MIN: u16 = 0x0600;
