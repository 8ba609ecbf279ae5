//! The header in front of every frame in a virtio-net buffer (virtio 1.2 §5.1.6).

use zerocopy::{FromBytes, Immutable, IntoBytes};

#[cfg(target_endian = "big")]
compile_error!("virtio is little-endian, and so are its structures here");

/// `struct virtio_net_hdr` of a VIRTIO_F_VERSION_1 device: 12 bytes, little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct VnetHdr {
    /// [`VnetHdr::F_NEEDS_CSUM`] and the like.
    pub flags: u8,
    /// [`VnetHdr::GSO_NONE`] and the like, perhaps with [`VnetHdr::GSO_ECN`].
    pub gso_type: u8,
    /// Length of all headers in bytes: a hint that is not to be trusted.
    pub hdr_len: u16,
    /// Payload bytes in each segment.
    pub gso_size: u16,
    /// Where summing begins, in bytes from the start of the frame.
    pub csum_start: u16,
    /// Where the sum goes, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// Buffers that the frame is spread over; meaningful towards the guest only.
    pub num_buffers: u16,
}

impl VnetHdr {
    /// Bytes on the ring.
    pub const LEN: usize = 12;
    /// The checksum field holds the sum of the pseudo header only.
    pub const F_NEEDS_CSUM: u8 = 1;
    /// The checksum has been verified.
    pub const F_DATA_VALID: u8 = 2;
    /// Not to be segmented.
    pub const GSO_NONE: u8 = 0;
    /// TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// UDP to be cut into IP fragments (UFO).
    pub const GSO_UDP: u8 = 3;
    /// TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// UDP to be cut into datagrams (USO).
    pub const GSO_UDP_L4: u8 = 5;
    /// Added to a TCP type: the CWR flag may be set.
    pub const GSO_ECN: u8 = 0x80;

    /// From the ring's bytes; any bytes are a header.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        zerocopy::transmute!(*b)
    }

    /// As the ring's bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(*self)
    }
}

/// Feature bits (virtio 1.2 §5.1.3, §6) that change how frames are handed to a guest.
#[allow(missing_docs)]
pub mod feature {
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const GUEST_ECN: u64 = 1 << 9;
    pub const GUEST_UFO: u64 = 1 << 10;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const GUEST_USO4: u64 = 1 << 54;
    pub const GUEST_USO6: u64 = 1 << 55;
    pub const VERSION_1: u64 = 1 << 32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_the_specification() {
        let bytes = [1, 0x81, 66, 0, 0xb4, 5, 34, 0, 16, 0, 1, 0];
        let hdr = VnetHdr::parse(&bytes);
        assert_eq!(
            hdr,
            VnetHdr {
                flags: VnetHdr::F_NEEDS_CSUM,
                gso_type: VnetHdr::GSO_TCPV4 | VnetHdr::GSO_ECN,
                hdr_len: 66,
                gso_size: 1460,
                csum_start: 34,
                csum_offset: 16,
                num_buffers: 1,
            }
        );
        assert_eq!(hdr.to_bytes(), bytes);
    }
}
