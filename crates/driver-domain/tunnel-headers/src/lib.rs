//! The headers between an outer UDP header and an inner frame: VXLAN (RFC 7348 §5) and Geneve (RFC 8926 §3); and between an outer IP header and
//! one: GRE (RFC 2784, RFC 2890). What is read comes from the network: anybody may have sent it. Pure functions of the bytes.

#![forbid(unsafe_code)]

mod gre;

use lasthop_tunnel::Tunnel;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// VXLAN, without extensions.
    Vxlan,
    /// Geneve, with options.
    Geneve,
    /// GRE, with key and checksum.
    Gre,
}

/// VXLAN and Geneve begin with so many bytes, and VXLAN has no more.
const FIXED: usize = 8;
/// VXLAN: the network's number is there.
const VXLAN_VNI: u8 = 0x08;
/// Geneve: for the endpoint itself; an option must not be ignored.
const OAM: u8 = 0x80;
const CRITICAL: u8 = 0x40;
/// Geneve: the inner packet is an Ethernet frame.
const ETHERNET: [u8; 2] = [0x65, 0x58];
/// Shortest inner frame.
const SHORTEST: usize = 14;

/// Reads the headers of a datagram: number, flags and options go to the tunnel. Where the inner frame begins; `None` if there is none.
pub fn read(kind: Kind, datagram: &[u8], tunnel: &mut Tunnel) -> Option<usize> {
    if kind == Kind::Gre {
        return gre::read(datagram, tunnel);
    }
    let &[first, second, p0, p1, v0, v1, v2, _] = datagram.first_chunk::<FIXED>()?;
    tunnel.id = [0, 0, 0, 0, 0, v0, v1, v2];
    tunnel.flags = 0;
    let len = match kind {
        Kind::Vxlan if first & VXLAN_VNI != 0 => FIXED,
        Kind::Geneve if first >> 6 == 0 && [p0, p1] == ETHERNET => FIXED + usize::from(first & 0x3f) * 4,
        _ => return None,
    };
    let options = datagram.get(FIXED..len)?;
    if !are_sound(options) || !tunnel.set_options(options) {
        return None;
    }
    if kind == Kind::Geneve && second & OAM != 0 {
        tunnel.flags = Tunnel::OAM;
    }
    (datagram.len() >= len + SHORTEST).then_some(len)
}

/// Every option ends where the next one begins (RFC 8926 §3.5).
fn are_sound(mut options: &[u8]) -> bool {
    while let Some([_, _, _, len]) = options.first_chunk() {
        match options.get(4 + usize::from(len & 0x1f) * 4..) {
            Some(rest) => options = rest,
            None => return false,
        }
    }
    options.is_empty()
}

/// Appends the headers for this tunnel. Options that are none, or not for Geneve, are left out. [`finish`] is to be called once what is behind
/// them is there.
pub fn write(kind: Kind, tunnel: &Tunnel, to: &mut Vec<u8>) {
    let [.., v0, v1, v2] = tunnel.id;
    match kind {
        Kind::Gre => gre::write(tunnel, to),
        Kind::Vxlan => to.extend([VXLAN_VNI, 0, 0, 0, v0, v1, v2, 0]),
        Kind::Geneve => {
            let options = Some(tunnel.options()).filter(|options| options.len() % 4 == 0).unwrap_or_default();
            let oam = if tunnel.flags & Tunnel::OAM != 0 { OAM } else { 0 };
            let critical = if has_critical(options) { CRITICAL } else { 0 };
            let [e0, e1] = ETHERNET;
            to.extend([(options.len() / 4) as u8, oam | critical, e0, e1, v0, v1, v2, 0]);
            to.extend(options);
        }
    }
}

/// Completes headers, as [`write()`] writes them, for what is behind them now: GRE's checksum, if it has one.
pub fn finish(kind: Kind, datagram: &mut [u8]) {
    if kind == Kind::Gre {
        gre::finish(datagram);
    }
}

/// Whether there is no checksum, or the right one, in what [`read`] has taken.
pub fn is_sound(kind: Kind, datagram: &[u8]) -> bool {
    kind != Kind::Gre || gre::is_sound(datagram)
}

fn has_critical(mut options: &[u8]) -> bool {
    while let Some([_, _, kind, len]) = options.first_chunk() {
        if kind & 0x80 != 0 {
            return true;
        }
        options = options.get(4 + usize::from(len & 0x1f) * 4..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRAME: [u8; 60] = [0xee; 60];

    /// OVN's option: class 0x0102, type 0x80, four bytes.
    const OPTION: [u8; 8] = [1, 2, 0x80, 1, 0, 1, 0, 2];

    #[test]
    fn geneve_as_the_standard_draws_it() {
        let mut tunnel = Tunnel { id: 0x01_0203u64.to_be_bytes(), flags: Tunnel::OAM, ..Tunnel::default() };
        assert!(tunnel.set_options(&OPTION));
        let mut bytes = Vec::new();
        write(Kind::Geneve, &tunnel, &mut bytes);
        assert_eq!(bytes, [&[2, 0xc0, 0x65, 0x58, 1, 2, 3, 0][..], &OPTION].concat());
        bytes.extend(FRAME);
        let mut read = Tunnel::default();
        assert_eq!(super::read(Kind::Geneve, &bytes, &mut read), Some(16));
        assert_eq!(read, tunnel);
    }

    #[test]
    fn vxlan_as_the_standard_draws_it() {
        let tunnel = Tunnel { id: 0xff_ee_ddu64.to_be_bytes(), ..Tunnel::default() };
        let mut bytes = Vec::new();
        write(Kind::Vxlan, &tunnel, &mut bytes);
        assert_eq!(bytes, [8, 0, 0, 0, 0xff, 0xee, 0xdd, 0]);
        bytes.extend(FRAME);
        let mut read = Tunnel::default();
        assert_eq!(super::read(Kind::Vxlan, &bytes, &mut read), Some(8));
        assert_eq!(read, tunnel);
    }

    #[test]
    fn what_is_no_tunnelled_frame_is_refused() {
        let good = [&[2, 0, 0x65, 0x58, 1, 2, 3, 0][..], &OPTION, &FRAME].concat();
        let refused = |kind, at: usize, byte| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            read(kind, &bytes, &mut Tunnel::default()).is_none()
        };
        assert!(!refused(Kind::Geneve, 0, 2));
        assert!(refused(Kind::Geneve, 0, 0x42), "another version");
        assert!(refused(Kind::Geneve, 2, 0x08), "no Ethernet frame");
        assert!(refused(Kind::Geneve, 11, 2), "an option that is longer than all of them");
        assert!(refused(Kind::Vxlan, 0, 0xf7), "no number of a network");
        assert!(read(Kind::Geneve, &good[..29], &mut Tunnel::default()).is_none(), "no whole Ethernet header");
        let long = [&[33, 0, 0x65, 0x58, 1, 2, 3, 0][..], &[0, 0, 0, 31], &[0; 124], &[0; 4], &FRAME].concat();
        assert!(read(Kind::Geneve, &long, &mut Tunnel::default()).is_none(), "options of 132 bytes");
    }

    proptest! {
        /// Whatever comes: what is taken for an inner frame lies in the datagram, and written again has the same headers, but for bits
        /// that have no meaning.
        #[test]
        fn any_datagram_is_read(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            geneve in any::<bool>(),
            options in 0u8..40,
        ) {
            let mut bytes = bytes;
            let kind = if geneve { Kind::Geneve } else { Kind::Vxlan };
            if let [first, _, p0, p1, ..] = &mut bytes[..] {
                (*first, *p0, *p1) = if geneve { (options, 0x65, 0x58) } else { (*first, *p0, *p1) };
            }
            let mut tunnel = Tunnel::default();
            if let Some(at) = read(kind, &bytes, &mut tunnel) {
                prop_assert!(at + 14 <= bytes.len() && at <= FIXED + lasthop_tunnel::MAX_OPTIONS);
                let (mut written, mut again) = (Vec::new(), Tunnel::default());
                write(kind, &tunnel, &mut written);
                prop_assert_eq!(&written[4..7], &bytes[4..7]);
                prop_assert_eq!(&written[8..], &bytes[8..at]);
                written.extend(&bytes[at..]);
                prop_assert_eq!(read(kind, &written, &mut again), Some(at));
                prop_assert_eq!(again, tunnel);
            }
        }
    }
}
