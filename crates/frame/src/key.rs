//! The flow key: what a frame is, as far as any rule may ask (design.md, "Flows").

use lasthop_types::{MacAddr, PortId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Fields of a frame in a fixed layout without padding, so that a key is compared, masked and hashed as bytes.
///
/// The order matters: a lookup that only needs the link layer reads the first [`Depth::L2`] bytes, one that needs
/// addresses and ports the first [`Depth::L4`], so a learning switch pays for 32 bytes and not for 160.
/// Numbers are in host order; a field that the frame does not have is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FlowKey {
    /// Number of the port the frame came from.
    pub in_port: u32,
    /// Recirculation id; 0 on the first pass.
    pub recirculation: u32,
    /// Destination Ethernet address.
    pub eth_dst: [u8; 6],
    /// Source Ethernet address.
    pub eth_src: [u8; 6],
    /// EtherType after the VLAN tags; 0x05ff for a frame with an 802.3 length field and no SNAP EtherType.
    pub eth_type: u16,
    /// Outer tag's TCI with bit 12 set to say that there is a tag; 0 without one.
    pub vlan_tci: u16,
    /// Outer tag's TPID (0x8100 or 0x88a8); 0 without one.
    pub vlan_tpid: u16,
    /// Inner tag's TPID.
    pub inner_vlan_tpid: u16,
    /// Inner tag's TCI, as `vlan_tci`.
    pub inner_vlan_tci: u16,
    /// Bits of [`FlowKey::MALFORMED_L3`] and the like.
    pub anomalies: u16,
    // 32: end of Depth::L2
    /// IPv6 source, or IPv4 / ARP sender protocol address in the last four bytes.
    pub ip_src: [u8; 16],
    /// IPv6 destination, or IPv4 / ARP target protocol address in the last four bytes.
    pub ip_dst: [u8; 16],
    /// IP protocol or, for IPv6, the last header's number after the extension chain; low byte of the opcode for ARP.
    pub ip_proto: u8,
    /// Traffic class (DSCP and ECN).
    pub ip_tos: u8,
    /// TTL or hop limit.
    pub ip_ttl: u8,
    /// [`FlowKey::FRAG_ANY`] for any fragment, plus [`FlowKey::FRAG_LATER`] for one that is not the first.
    pub ip_frag: u8,
    /// TCP, UDP or SCTP source port; ICMP type.
    pub l4_src: u16,
    /// TCP, UDP or SCTP destination port; ICMP code.
    pub l4_dst: u16,
    /// The twelve bits of TCP flags.
    pub tcp_flags: u16,
    /// Always zero.
    pub reserved: u16,
    /// IPv6 flow label.
    pub ipv6_label: u32,
    // 80: end of Depth::L4
    /// ARP sender hardware address, or source link-layer address option of neighbour discovery.
    pub arp_sha: [u8; 6],
    /// ARP target hardware address, or target link-layer address option of neighbour discovery.
    pub arp_tha: [u8; 6],
    /// Connection tracking zone.
    pub ct_zone: u16,
    /// Connection tracking state bits.
    pub ct_state: u16,
    /// Target address of a neighbour solicitation or advertisement.
    pub nd_target: [u8; 16],
    /// Connection tracking mark.
    pub ct_mark: u32,
    /// Tunnel flags; 0 outside a tunnel.
    pub tunnel_flags: u16,
    /// Outer traffic class.
    pub tunnel_tos: u8,
    /// Outer TTL.
    pub tunnel_ttl: u8,
    /// VNI or key.
    pub tunnel_id: u64,
    /// Outer source address, as `ip_src`.
    pub tunnel_src: [u8; 16],
    /// Outer destination address, as `ip_dst`.
    pub tunnel_dst: [u8; 16],
}

impl FlowKey {
    /// Any fragment.
    pub const FRAG_ANY: u8 = 1;
    /// A fragment other than the first: it has no transport header.
    pub const FRAG_LATER: u8 = 2;
    /// Bit 12 of a TCI field: there is a tag.
    pub const VLAN_PRESENT: u16 = 0x1000;
    /// Network-layer header cut short or contradicting the frame's length: no L3 or L4 field is filled in.
    pub const MALFORMED_L3: u16 = 1;
    /// Transport header cut short or malformed: no L4 field is filled in.
    pub const MALFORMED_L4: u16 = 2;
    /// More VLAN tags than the two the key has: nothing behind them is filled in.
    pub const DEEP_VLAN: u16 = 4;
    /// IPv6 extension headers that reach behind the snapshot: no L4 field is filled in.
    pub const DEEP_EXTENSIONS: u16 = 8;

    /// Source address.
    pub fn src(&self) -> MacAddr {
        MacAddr(self.eth_src)
    }

    /// Destination address.
    pub fn dst(&self) -> MacAddr {
        MacAddr(self.eth_dst)
    }

    /// Port the frame came from.
    pub fn port(&self) -> PortId {
        PortId(self.in_port)
    }

    /// This key with every bit cleared that `mask` does not have.
    pub fn masked(&self, mask: &FlowMask) -> Self {
        let mut out = *self;
        for (o, m) in out.as_mut_bytes().iter_mut().zip(mask.0.as_bytes()) {
            *o &= m;
        }
        out
    }
}

/// Which bits of a [`FlowKey`] a rule looks at: a key whose set bits are those that matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct FlowMask(pub FlowKey);

impl FlowMask {
    /// How much of a key has to be filled in for this mask.
    pub fn depth(&self) -> Depth {
        let bytes = self.0.as_bytes();
        let zero_from = |at: usize| bytes[at..].iter().all(|b| *b == 0);
        if zero_from(Depth::L2.len()) {
            Depth::L2
        } else if zero_from(Depth::L4.len()) {
            Depth::L4
        } else {
            Depth::Full
        }
    }
}

/// How much of a [`FlowKey`] somebody needs; each step costs parsing and comparing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Ports, Ethernet, VLAN.
    #[default]
    L2,
    /// And IP, transport ports, TCP flags.
    L4,
    /// And ARP/ND, connection tracking, tunnel.
    Full,
}

impl Depth {
    /// Bytes of the key that are meaningful at this depth.
    pub const fn len(self) -> usize {
        match self {
            Self::L2 => 32,
            Self::L4 => 80,
            Self::Full => size_of::<FlowKey>(),
        }
    }

    /// Never: every depth has bytes.
    pub const fn is_empty(self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layout() {
        assert_eq!(offset_of!(FlowKey, ip_src), Depth::L2.len());
        assert_eq!(offset_of!(FlowKey, arp_sha), Depth::L4.len());
        assert_eq!(size_of::<FlowKey>(), 160);
    }
}
