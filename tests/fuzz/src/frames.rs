//! Frames from an input: bytes as they are, or built from a few numbers and then spoilt.

use crate::Input;
use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::{Frame, arp, neighbour_solicitation};
use lasthop_text::MacAddr;

const TYPES: [u8; 8] = [
    VnetHdr::GSO_NONE,
    VnetHdr::GSO_TCPV4,
    VnetHdr::GSO_UDP,
    VnetHdr::GSO_TCPV6,
    VnetHdr::GSO_UDP_L4,
    VnetHdr::GSO_TCPV4 | VnetHdr::GSO_ECN,
    VnetHdr::GSO_TCPV6 | VnetHdr::GSO_ECN,
    2,
];

/// A frame of at most about 65 KiB, and the virtio-net header that goes before it.
pub(crate) fn frame(input: &mut Input<'_>) -> (VnetHdr, Vec<u8>) {
    let kind = input.u8();
    let (mut vnet, mut frame) = match kind & 7 {
        0 => {
            let mut header = [0; VnetHdr::LEN];
            let given = input.bytes(VnetHdr::LEN);
            header[..given.len()].copy_from_slice(given);
            let len = usize::from(input.u8());
            let mut frame = input.bytes(len).to_vec();
            if kind & 8 != 0 {
                frame.resize(frame.len() + usize::from(input.u16()), 0x5a);
            }
            (VnetHdr::parse(&header), frame)
        }
        1 => {
            let (operation, n) = (u16::from(input.u8()), input.u8());
            let side = |n: u8| (MacAddr([2, 0, 0, 0, 0, n & 3]), [10, 0, 0, n & 3]);
            (VnetHdr::default(), arp(operation, side(n), side(n >> 2)))
        }
        2 => {
            let n = input.u8();
            let sender = (MacAddr([2, 0, 0, 0, 0, n & 3]), [0xfe; 16]);
            (VnetHdr::default(), neighbour_solicitation(sender, [n; 16]))
        }
        _ => built(input, kind),
    };
    for _ in 0..input.below(4) {
        let (at, byte) = (usize::from(input.u8()), input.u8());
        match at {
            0..4 => vnet = spoil(vnet, at, byte),
            _ => {
                if let Some(b) = frame.get_mut(at - 4) {
                    *b = byte;
                }
            }
        }
    }
    (vnet, frame)
}

fn spoil(vnet: VnetHdr, at: usize, byte: u8) -> VnetHdr {
    let mut bytes = vnet.to_bytes();
    // The checksum's place: most often somewhere in a transport header.
    bytes[[1, 4, 6, 8][at]] = if at == 3 && byte < 200 { byte % 24 } else { byte };
    VnetHdr::parse(&bytes)
}

fn built(input: &mut Input<'_>, kind: u8) -> (VnetHdr, Vec<u8>) {
    let (ends, shape, extras) = (input.u8(), input.u8(), input.u8());
    let mut f = Frame::new(ends & 3, ends >> 2 & 3);
    for tag in 0..shape & 3 {
        f = f.vlan(u16::from(tag) + 1);
    }
    let v6 = kind & 8 != 0;
    f = if v6 { f.ipv6([0xfd; 16], [0xfe; 16]) } else { f.ipv4([10, 0, 0, 1], [10, 0, 0, 2]) };
    for i in 0..if v6 { extras & 3 } else { 0 } {
        let body: &[u8] = match extras >> (2 * i + 2) & 3 {
            3 => &[2, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 8, 8],
            _ => &[0; 7],
        };
        f = f.extension([0, 60, 43, 43][usize::from(extras >> (2 * i + 2) & 3)], body);
    }
    if !v6 {
        f = f.ip_options(&vec![1; usize::from(extras & 3) * 4]).id(u16::from(extras) << 8);
        f = f.fragment([0, 0, 0x4000, 0x2000, 1, 0, 0, 0x1fff][usize::from(extras >> 5)]);
    }
    let offload = kind >> 4 & 1 != 0;
    let len = usize::from(input.u16()).min(65_000);
    // Long payloads are dear: one in four may be.
    let len = if shape & 0x0c == 0 { len } else { len % 3000 };
    let payload: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    let tcp = kind >> 5 & 1 != 0;
    f = if tcp {
        let options = vec![1; usize::from(shape >> 4 & 3) * 4];
        f.tcp(1000, 80).tcp_fields(u16::from(extras) | 0x10, 0xffff_f000, &options)
    } else if kind >> 6 & 1 != 0 && !offload {
        f.icmp(8, 0)
    } else {
        f.udp(5, 6)
    };
    f = f.payload(payload).padding(usize::from(shape >> 6) * 30);
    if !offload {
        return (VnetHdr::default(), f.build());
    }
    f = f.partial_checksum();
    let (gso, size) = (TYPES[input.below(8)], input.u16());
    (f.vnet(gso, size), f.build())
}
