//! Headers of tunnels: what is taken for an inner frame, and what of the headers is told, is what a slow reading of the standards says; and
//! what is written of it is read again as the same.
//!
//! Input: a byte that says which tunnel, and with bit 1 that the header is made to be sound; then a datagram.

use crate::Input;
use lasthop_tunnel::{MAX_OPTIONS, Tunnel};
use lasthop_tunnel_headers::{Kind, read, write};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let kind = if how & 1 == 0 { Kind::Geneve } else { Kind::Vxlan };
    let mut datagram = Vec::new();
    while !input.is_empty() && datagram.len() < 2000 {
        datagram.push(input.u8());
    }
    if let (true, [first, _, p0, p1, ..]) = (how & 2 != 0, &mut datagram[..]) {
        (*first, *p0, *p1) = if how & 1 == 0 { (*first & 0x3f, 0x65, 0x58) } else { (*first | 8, *p0, *p1) };
    }
    let mut tunnel = Tunnel::default();
    let at = read(kind, &datagram, &mut tunnel);
    assert_eq!(at, expected(kind, &datagram));
    let Some(at) = at else { return };
    assert_eq!(tunnel.id, [0, 0, 0, 0, 0, datagram[4], datagram[5], datagram[6]]);
    assert_eq!(tunnel.options(), &datagram[8..at]);
    assert_eq!(tunnel.flags == Tunnel::OAM, kind == Kind::Geneve && datagram[1] >= 0x80);
    let (mut written, mut again) = (Vec::new(), Tunnel::default());
    write(kind, &tunnel, &mut written);
    written.extend(&datagram[at..]);
    assert_eq!(read(kind, &written, &mut again), Some(at));
    assert_eq!(again, tunnel);
}

/// Where the inner frame begins, bit by bit.
fn expected(kind: Kind, datagram: &[u8]) -> Option<usize> {
    let bit = |byte: usize, bit: u32| datagram[byte] >> bit & 1 == 1;
    if datagram.len() < 8 {
        return None;
    }
    let mut begin = 8;
    match kind {
        Kind::Vxlan if !bit(0, 3) => return None,
        Kind::Vxlan => {}
        Kind::Geneve => {
            if bit(0, 7) || bit(0, 6) || u16::from(datagram[2]) << 8 | u16::from(datagram[3]) != 0x6558 {
                return None;
            }
            let end = 8 + (datagram[0] as usize % 64) * 4;
            while begin < end {
                begin += 4 + 4 * (*datagram.get(begin + 3)? as usize % 32);
            }
            if begin != end || end - 8 > MAX_OPTIONS {
                return None;
            }
        }
    }
    (datagram.len() >= begin + 14).then_some(begin)
}
