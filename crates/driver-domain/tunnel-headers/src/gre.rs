//! GRE of Ethernet frames (RFC 2784 §2, RFC 2890 §2):
//!
//! ```text
//! byte 0  C . K S  flags       checksum, key, sequence number are there
//!      2  65 58                an Ethernet frame is inside
//!      4  with C: checksum over all of it, and two bytes that are not looked at; with K: the key; with S: the sequence number
//! ```

use crate::{ETHERNET, SHORTEST};
use lasthop_frame::sum;
use lasthop_tunnel::Tunnel;

const CHECKSUM: u16 = 0x8000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
/// Routing and what RFC 1701 had behind it, which a receiver must not know (RFC 2784 §2.3), and the version, which is 0.
const REFUSED: u16 = 0x4c07;
/// Where the checksum is.
const CHECKSUM_AT: usize = 4;

pub(crate) fn read(datagram: &[u8], tunnel: &mut Tunnel) -> Option<usize> {
    let &[f0, f1, p0, p1] = datagram.first_chunk()?;
    let flags = u16::from_be_bytes([f0, f1]);
    if flags & REFUSED != 0 || [p0, p1] != ETHERNET {
        return None;
    }
    let mut at = CHECKSUM_AT;
    at += if flags & CHECKSUM != 0 { 4 } else { 0 };
    (tunnel.id, tunnel.flags) = ([0; 8], 0);
    if flags & KEY != 0 {
        let [k0, k1, k2, k3] = *datagram.get(at..)?.first_chunk()?;
        tunnel.id = [0, 0, 0, 0, k0, k1, k2, k3];
        at += 4;
    }
    // What is late is taken all the same: the frames inside are of no order.
    at += if flags & SEQUENCE != 0 { 4 } else { 0 };
    (tunnel.set_options(&[]) && datagram.len() >= at + SHORTEST).then_some(at)
}

pub(crate) fn write(tunnel: &Tunnel, to: &mut Vec<u8>) {
    let has = |flag, bit| if tunnel.flags & flag != 0 { bit } else { 0 };
    let flags: u16 = has(Tunnel::CHECKSUM, CHECKSUM) | has(Tunnel::KEY, KEY);
    to.extend(flags.to_be_bytes());
    to.extend(ETHERNET);
    if flags & CHECKSUM != 0 {
        to.extend([0; 4]);
    }
    if flags & KEY != 0 {
        let [_, _, _, _, key @ ..] = tunnel.id;
        to.extend(key);
    }
}

fn has_checksum(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|flags| u16::from(*flags) << 8 & CHECKSUM != 0)
}

pub(crate) fn finish(datagram: &mut [u8]) {
    if !has_checksum(datagram) {
        return;
    }
    let checksum = !sum::fold(sum::sum(datagram));
    if let Some(to) = datagram.get_mut(CHECKSUM_AT..CHECKSUM_AT + 2) {
        to.copy_from_slice(&checksum.to_be_bytes());
    }
}

pub(crate) fn is_sound(datagram: &[u8]) -> bool {
    !has_checksum(datagram) || sum::fold(sum::sum(datagram)) == 0xffff
}

#[cfg(test)]
mod tests {
    use crate::{Kind, finish, is_sound, read, write};
    use lasthop_tunnel::Tunnel;
    use proptest::prelude::*;

    const FRAME: [u8; 60] = [0xee; 60];

    #[test]
    fn as_the_standard_draws_it() {
        let with = |flags| Tunnel { id: 0x0102_0304u64.to_be_bytes(), flags, ..Tunnel::default() };
        let written = |flags| {
            let mut bytes = Vec::new();
            write(Kind::Gre, &with(flags), &mut bytes);
            bytes
        };
        assert_eq!(written(0), [0, 0, 0x65, 0x58]);
        assert_eq!(written(Tunnel::KEY), [0x20, 0, 0x65, 0x58, 1, 2, 3, 4]);
        let mut bytes = written(Tunnel::KEY | Tunnel::CHECKSUM);
        assert_eq!(bytes, [0xa0, 0, 0x65, 0x58, 0, 0, 0, 0, 1, 2, 3, 4]);
        bytes.extend([0; 14]);
        finish(Kind::Gre, &mut bytes);
        // a000 + 6558 + 0102 + 0304 = 1095e, folded 095f, inverted f6a0.
        assert_eq!(bytes[4..8], [0xf6, 0xa0, 0, 0]);
        assert!(is_sound(Kind::Gre, &bytes));
        let mut tunnel = Tunnel::default();
        assert_eq!((read(Kind::Gre, &bytes, &mut tunnel), tunnel), (Some(12), with(0)));
        bytes[20] ^= 1;
        assert!(!is_sound(Kind::Gre, &bytes));
    }

    #[test]
    fn what_is_no_frame_in_gre_is_refused() {
        let begin = |header: &[u8]| read(Kind::Gre, &[header, &FRAME].concat(), &mut Tunnel::default());
        assert_eq!(begin(&[0, 0, 0x65, 0x58]), Some(4));
        assert_eq!(begin(&[0x10, 0, 0x65, 0x58, 0, 0, 0, 9]), Some(8), "a sequence number");
        assert_eq!(begin(&[0x03, 0xf8, 0x65, 0x58]), Some(4), "bits that are not looked at");
        assert_eq!(begin(&[0, 0, 8, 0]), None, "an IPv4 packet");
        assert_eq!(begin(&[0, 1, 0x65, 0x58]), None, "version 1 (PPTP)");
        assert_eq!(begin(&[0x40, 0, 0x65, 0x58]), None, "routing");
        assert_eq!(begin(&[8, 0, 0x65, 0x58]), None, "a strict source route");
        let short = [&[0xb0, 0, 0x65, 0x58][..], &[0; 12], &[0; 13]].concat();
        assert_eq!(read(Kind::Gre, &short, &mut Tunnel::default()), None, "no whole Ethernet header");
    }

    proptest! {
        /// Whatever comes: what is taken for an inner frame lies in the datagram; and what is written is read, with a right checksum.
        #[test]
        fn any_datagram_is_read(bytes in prop::collection::vec(any::<u8>(), 0..90), flags in any::<u8>(), sound in any::<bool>()) {
            let mut bytes = bytes;
            if let (true, [f0, f1, p0, p1, ..]) = (sound, &mut bytes[..]) {
                (*f0, *f1, *p0, *p1) = (flags & 0xb3, *f1 & 0xf8, 0x65, 0x58);
            }
            let mut tunnel = Tunnel::default();
            let Some(at) = read(Kind::Gre, &bytes, &mut tunnel) else { return Ok(()) };
            prop_assert!(at + 14 <= bytes.len() && at <= 16);
            let flags = flags & (Tunnel::CHECKSUM | Tunnel::DONT_FRAGMENT) | Tunnel::KEY;
            let (mut written, mut again) = (Vec::new(), Tunnel::default());
            write(Kind::Gre, &Tunnel { flags, ..tunnel }, &mut written);
            let header_len = written.len();
            written.extend(&bytes[at..]);
            finish(Kind::Gre, &mut written);
            prop_assert!(is_sound(Kind::Gre, &written));
            prop_assert_eq!((read(Kind::Gre, &written, &mut again), again), (Some(header_len), tunnel));
        }
    }
}
