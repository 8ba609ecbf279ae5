//! The flow key: what a frame is, as far as any rule may ask (docs/architecture.md, "Flows and policy").

use lasthop_types::PortId;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
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
    /// EtherType after the VLAN tags; of a frame with an 802.3 length the EtherType of its SNAP header (OUI 00-00-00), or
    /// 0x05ff without one. A third tag's TPID, or that of a tag cut short, stands here like any other EtherType.
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
    /// IP protocol; for IPv6 the number of the first header that is not one of hop-by-hop options, routing, fragment,
    /// destination options and AH, or of the one at which reading had to stop; ARP opcode, 0 if above 255.
    pub ip_proto: u8,
    /// Traffic class (DSCP and ECN).
    pub ip_tos: u8,
    /// TTL or hop limit.
    pub ip_ttl: u8,
    /// [`FlowKey::FRAG_ANY`] for any fragment, plus [`FlowKey::FRAG_LATER`] for one that is not the first, which has no
    /// L4 field. An IPv6 fragment header that says "whole packet" (RFC 6946) makes no fragment.
    pub ip_frag: u8,
    /// TCP, UDP or SCTP source port; ICMP type. UDP's own length field is not judged.
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
    /// IP header or its options cut short, of the wrong version, or with a total length below the header's or above the
    /// frame's; ARP cut short. No L3 or L4 field is filled in. Padding behind the IP packet, however long, is no anomaly.
    ///
    /// This bit and the next can only be seen from [`Depth::L4`] on, as [`FlowMask::depth`] knows. A policy that judges by
    /// addresses or ports should drop what has any of these bits: a receiver may read it differently.
    pub const MALFORMED_L3: u16 = 1;
    /// Transport header, or an IPv6 extension header before it, that the packet (or first fragment) does not hold in full,
    /// or one that contradicts itself: TCP data offset, neighbour discovery options. No L4 field is filled in.
    pub const MALFORMED_L4: u16 = 2;
    /// More VLAN tags than the two the key has: nothing behind them is filled in.
    pub const DEEP_VLAN: u16 = 4;
    /// A header (behind IPv6 extensions) or neighbour discovery option lies behind the snapshot: no L4 field is filled in.
    /// Seen from [`Depth::L4`] on.
    pub const DEEP_EXTENSIONS: u16 = 8;

    /// Port the frame came from.
    pub fn port(&self) -> PortId {
        PortId(self.in_port)
    }

    /// The key as numbers, to be compared and hashed; [`Depth::words`] of them are meaningful.
    pub fn words(&self) -> &[u64; size_of::<Self>() / 8] {
        zerocopy::transmute_ref!(self)
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64; size_of::<Self>() / 8] {
        zerocopy::transmute_mut!(self)
    }

    /// Whether this key with every bit cleared that `mask` does not have is `flow`. As a rule its first words tell.
    pub fn is_of(&self, flow: &Self, mask: &FlowMask) -> bool {
        let words = self.words().iter().zip(mask.0.words()).zip(flow.words());
        words.into_iter().all(|((word, mask), flow)| word & mask == *flow)
    }

    /// This key with every bit cleared that `mask` does not have.
    pub fn masked(&self, mask: &FlowMask) -> Self {
        let words = std::array::from_fn::<_, { Depth::Full.words() }, _>(|i| self.words()[i] & mask.0.words()[i]);
        zerocopy::transmute!(words)
    }
}

/// As bytes, up to the last word that is not zero: most keys of flows, and their masks, are zero from some field on, and bytes are copied
/// where 34 fields would be read and written one by one.
impl Serialize for FlowKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let words = self.words().iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        to.serialize_bytes(self.as_bytes().get(..words * 8).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for FlowKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (bytes, mut key) = (<&[u8]>::deserialize(from)?, Self::default());
        let room = key.as_mut_bytes().get_mut(..bytes.len());
        room.ok_or_else(|| D::Error::custom("longer than a key"))?.copy_from_slice(bytes);
        Ok(key)
    }
}

/// Which bits of a [`FlowKey`] a rule looks at: a key whose set bits are those that matter.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
)]
#[repr(transparent)]
pub struct FlowMask(pub FlowKey);

impl FlowMask {
    /// How much of a key has to be filled in for this mask.
    pub fn depth(&self) -> Depth {
        let zero_behind = |depth: Depth| self.0.words()[depth.words()..].iter().all(|word| *word == 0);
        if zero_behind(Depth::L2) && self.0.anomalies & !FlowKey::DEEP_VLAN == 0 {
            Depth::L2
        } else if zero_behind(Depth::L4) {
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
    /// 64-bit words of the key that are meaningful at this depth.
    pub const fn words(self) -> usize {
        match self {
            Self::L2 => 4,
            Self::L4 => 10,
            Self::Full => size_of::<FlowKey>() / 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layout() {
        assert_eq!(offset_of!(FlowKey, ip_src), 8 * Depth::L2.words());
        assert_eq!(offset_of!(FlowKey, arp_sha), 8 * Depth::L4.words());
        assert_eq!(size_of::<FlowKey>(), 160);
        let key = FlowKey { in_port: 7, tunnel_dst: [9; 16], ..FlowKey::default() };
        assert_eq!(key.words()[0].to_ne_bytes()[..4], 7u32.to_ne_bytes());
        assert_eq!(key.words()[19], u64::from_ne_bytes([9; 8]));
    }

    #[test]
    fn depth_of_masks() {
        let depth = |key| FlowMask(key).depth();
        assert_eq!(depth(FlowKey::default()), Depth::L2);
        assert_eq!(
            depth(FlowKey { eth_dst: [0xff; 6], anomalies: FlowKey::DEEP_VLAN, ..FlowKey::default() }),
            Depth::L2
        );
        assert_eq!(depth(FlowKey { anomalies: FlowKey::MALFORMED_L3, ..FlowKey::default() }), Depth::L4);
        assert_eq!(depth(FlowKey { ip_src: [1; 16], ..FlowKey::default() }), Depth::L4);
        assert_eq!(depth(FlowKey { arp_sha: [1; 6], ..FlowKey::default() }), Depth::Full);
        assert_eq!(depth(FlowKey { ct_state: 1, ..FlowKey::default() }), Depth::Full);
    }
}
