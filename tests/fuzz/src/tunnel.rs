//! Headers of tunnels: what is taken for an inner frame, and what of the headers is told, is what a slow reading of the standards says; and
//! what is written of it is read again as the same.
//!
//! Input: a byte that says which tunnel (bits 0 and 2), and with bit 1 that the header is made to be sound; then a datagram.

use crate::Input;
use lasthop_tunnel::{MAX_OPTIONS, Tunnel};
use lasthop_tunnel_headers::{Kind, finish, is_sound, read, write};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let kind = match how & 5 {
        0 => Kind::Geneve,
        1 => Kind::Vxlan,
        _ => Kind::Gre,
    };
    let mut datagram = Vec::new();
    while !input.is_empty() && datagram.len() < 2000 {
        datagram.push(input.u8());
    }
    if let (true, [first, second, p0, p1, ..]) = (how & 2 != 0, &mut datagram[..]) {
        if kind == Kind::Gre {
            (*first, *second) = (*first & 0xb3, *second & 0xf8);
        }
        (*first, *p0, *p1) = match kind {
            Kind::Geneve => (*first & 0x3f, 0x65, 0x58),
            Kind::Vxlan => (*first | 8, *p0, *p1),
            Kind::Gre => (*first, 0x65, 0x58),
        };
    }
    let mut tunnel = Tunnel::default();
    let at = read(kind, &datagram, &mut tunnel);
    assert_eq!(at, expected(kind, &datagram));
    let Some(at) = at else { return };
    if kind == Kind::Gre {
        return gre(&datagram, at, &tunnel);
    }
    assert_eq!(tunnel.id, [0, 0, 0, 0, 0, datagram[4], datagram[5], datagram[6]]);
    assert_eq!(tunnel.options(), &datagram[8..at]);
    assert_eq!(tunnel.flags == Tunnel::OAM, kind == Kind::Geneve && datagram[1] >= 0x80);
    let (mut written, mut again) = (Vec::new(), Tunnel::default());
    write(kind, &tunnel, &mut written);
    written.extend(&datagram[at..]);
    assert_eq!(read(kind, &written, &mut again), Some(at));
    assert_eq!(again, tunnel);
}

/// The same of GRE: what is written has a right checksum, and no sequence number.
fn gre(datagram: &[u8], at: usize, tunnel: &Tunnel) {
    let has = |bit: u32| datagram[0] >> bit & 1 == 1;
    let key_at = if has(7) { 8 } else { 4 };
    let key = if has(5) { &datagram[key_at..key_at + 4] } else { &[0; 4] };
    assert_eq!((&tunnel.id[..4], &tunnel.id[4..]), (&[0; 4][..], key));
    assert!(tunnel.options().is_empty() && tunnel.flags == 0);
    // One's complement, word by word.
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or_default());
    let sum: u64 = datagram.chunks(2).map(word).sum();
    assert_eq!(is_sound(Kind::Gre, datagram), !has(7) || (sum != 0 && sum.is_multiple_of(0xffff)));
    let flags = Tunnel::KEY | if has(7) { Tunnel::CHECKSUM } else { 0 };
    let (mut written, mut again) = (Vec::new(), Tunnel::default());
    write(Kind::Gre, &Tunnel { flags, ..*tunnel }, &mut written);
    let header_len = written.len();
    written.extend(&datagram[at..]);
    finish(Kind::Gre, &mut written);
    assert!(is_sound(Kind::Gre, &written));
    assert_eq!(read(Kind::Gre, &written, &mut again), Some(header_len));
    assert_eq!(again, *tunnel);
}

/// Where the inner frame begins, bit by bit.
fn expected(kind: Kind, datagram: &[u8]) -> Option<usize> {
    let bit = |byte: usize, bit: u32| datagram[byte] >> bit & 1 == 1;
    if kind == Kind::Gre {
        if datagram.len() < 4
            || bit(0, 6)
            || bit(0, 3)
            || bit(0, 2)
            || !datagram[1].is_multiple_of(8)
            || datagram[2..4] != [0x65, 0x58]
        {
            return None;
        }
        let begin = 4 + [7, 5, 4].into_iter().filter(|flag| bit(0, *flag)).count() * 4;
        return (datagram.len() >= begin + 14).then_some(begin);
    }
    if datagram.len() < 8 {
        return None;
    }
    let mut begin = 8;
    match kind {
        Kind::Vxlan if !bit(0, 3) => return None,
        Kind::Vxlan | Kind::Gre => {}
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
