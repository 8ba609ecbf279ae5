use super::*;
use crate::SNAPSHOT_LEN;
use crate::testutil::{self, Frame};
use proptest::prelude::*;

const BAD: Result<Offload, DropReason> = Err(DropReason::BadOffload);
const ALL: Receiver = without(0);

/// A receiver that takes everything but these.
const fn without(features: u64) -> Receiver {
    Receiver { features: !features, mtu: 0 }
}

fn tcp4() -> Frame {
    Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1000, 80).payload([7; 3000]).partial_checksum()
}

fn tcp6() -> Frame {
    Frame::new(1, 2).ipv6([3; 16], [4; 16]).tcp(1000, 80).payload([7; 3000]).partial_checksum()
}

fn udp4() -> Frame {
    Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1000, 80).payload([7; 3000]).partial_checksum()
}

fn check(vnet: &VnetHdr, frame: &[u8]) -> Result<Offload, DropReason> {
    Offload::check(vnet, &frame[..frame.len().min(SNAPSHOT_LEN)], frame.len())
}

fn deliver(vnet: &VnetHdr, frame: &[u8], receiver: Receiver) -> Result<Delivery, DropReason> {
    let snapshot = &frame[..frame.len().min(SNAPSHOT_LEN)];
    Offload::check(vnet, snapshot, frame.len())?.for_receiver(&receiver, snapshot, frame.len())
}

#[test]
fn nothing_asked_nothing_told() {
    let frame = tcp4().build();
    let vnet = VnetHdr { flags: VnetHdr::F_DATA_VALID | 4, hdr_len: 9, csum_start: 65_535, ..VnetHdr::default() };
    assert_eq!(check(&vnet, &frame), Ok(Offload::None));
    assert_eq!(check(&vnet, &[]), Ok(Offload::None));
    let Ok(Delivery::AsIs { vnet }) = deliver(&vnet, &frame, ALL) else { panic!() };
    assert_eq!(vnet, VnetHdr::default(), "nobody has verified the checksum");
}

/// G1: the checksum's place.
#[test]
fn checksum_positions() {
    let (f, good) = (tcp4().build(), tcp4().vnet(0, 0));
    assert_eq!(check(&good, &f), Ok(Offload::Checksum(CompleteChecksum { start: 34, field: 50 })));
    let len = f.len() as u16;
    for (start, offset) in [
        (len - 1, 0),
        (len, 0),
        (0xffff, 0xffff),
        (34, 0xffff),
        (34, SNAPSHOT_LEN as u16),
        (34, SNAPSHOT_LEN as u16 - 34 - 1),
        (0, 0),   // destination address
        (6, 6),   // EtherType
        (14, 16), // IP destination address
        (14, 10),
        (34, 0), // ports
        (34, 13),
        (34, 15),
        (34, 17),
    ] {
        assert_eq!(check(&VnetHdr { csum_start: start, csum_offset: offset, ..good }, &f), BAD, "{start}+{offset}");
    }
    // Behind what was judged, as an inner header's would be.
    assert!(check(&VnetHdr { csum_start: 60, csum_offset: 6, ..good }, &f).is_ok());
    assert!(check(&VnetHdr { csum_start: 60, csum_offset: SNAPSHOT_LEN as u16 - 60 - 2, ..good }, &f).is_ok());
    assert_eq!(check(&good, &f[..51]), BAD);
    assert_eq!(check(&good, &[]), BAD);
}

#[test]
fn checksum_must_not_change_what_was_judged() {
    let mac = [2; 6];
    let at = |start, offset| needs_csum(start, offset);
    let arp = testutil::arp(2, (mac, [1; 4]), (mac, [2; 4]));
    assert_eq!(check(&at(14, 14), &arp), BAD);
    let nd = testutil::neighbour_solicitation((mac, [1; 16]), [2; 16]);
    assert_eq!(check(&at(54, 8), &nd), BAD);
    assert!(check(&at(54, 2), &nd).is_ok());
    let icmp = Frame::new(1, 2).ipv4([1; 4], [2; 4]).icmp(8, 0).payload([0; 20]).build();
    assert!(check(&at(34, 2), &icmp).is_ok());
    assert_eq!(check(&at(34, 0), &icmp), BAD);
    let udp = udp4().build();
    assert!(check(&at(34, 6), &udp).is_ok());
    assert_eq!(check(&at(34, 4), &udp), BAD);
    let other = Frame::new(1, 2).vlan(1).payload([0; 20]).build();
    assert!(check(&at(18, 0), &other).is_ok());
    assert_eq!(check(&at(16, 0), &other), BAD, "EtherType behind the tag");
    let mut malformed = tcp4().build();
    malformed[14 + 20 + 12] = 0x10;
    assert_eq!(check(&tcp4().vnet(0, 0), &malformed), BAD);
    let later = Frame::new(1, 2).ipv4([1; 4], [2; 4]).fragment(5).protocol(6).payload([0; 40]).build();
    assert!(check(&at(34, 0), &later).is_ok(), "no header was read there");
}

/// G4: segment sizes and headers.
#[test]
fn segmentation_must_fit_the_frame() {
    use VnetHdr as V;
    let f4 = tcp4().build();
    let good = tcp4().vnet(V::GSO_TCPV4, 1460);
    let Ok(Offload::Gso(gso)) = check(&good, &f4) else { panic!() };
    assert_eq!((gso.kind, gso.ipv6, gso.ecn, gso.size, gso.hdr_len), (GsoKind::Tcp, false, false, 1460, 54));
    for lie in [0, 1, 53, 200, 0xffff] {
        assert_eq!(check(&V { hdr_len: lie, ..good }, &f4), Ok(Offload::Gso(gso)), "hdr_len is only a hint");
    }
    let bad = |vnet: V, why: &str| assert_eq!(check(&vnet, &f4), BAD, "{why}");
    bad(V { gso_size: 0, ..good }, "size 0");
    bad(V { gso_size: 1, ..good }, "3000 segments");
    bad(V { flags: 0, ..good }, "no checksum");
    bad(V { gso_type: V::GSO_TCPV6, ..good }, "other IP version");
    bad(V { gso_type: V::GSO_UDP, ..good }, "not UDP");
    bad(V { gso_type: V::GSO_UDP_L4, ..good }, "not UDP");
    bad(V { gso_type: 2, ..good }, "no such type");
    bad(V { gso_type: 0x40, ..good }, "no such type");
    bad(V { gso_type: V::GSO_ECN, ..good }, "ECN of what");
    bad(V { csum_start: 60, ..good }, "checksum not of this header");
    bad(V { csum_offset: 30, ..good }, "checksum not of this header");
    assert_eq!(check(&tcp6().vnet(V::GSO_TCPV4, 1460), &tcp6().build()), BAD);
    assert_eq!(check(&good, &f4[..60]), BAD, "IP packet longer than the frame");
    let fragment = tcp4().fragment(0x2000);
    assert_eq!(check(&fragment.vnet(V::GSO_TCPV4, 1000), &fragment.build()), BAD);
    let atomic = tcp6().extension(44, &[0; 7]);
    assert_eq!(check(&atomic.vnet(V::GSO_TCPV6, 1000), &atomic.build()), BAD);
    let udp = udp4();
    assert!(check(&udp.vnet(V::GSO_UDP, 1480), &udp.build()).is_ok());
    assert!(check(&udp.vnet(V::GSO_UDP_L4, 1472), &udp.build()).is_ok());
    assert_eq!(check(&udp.vnet(V::GSO_UDP, 7), &udp.build()), BAD, "rounds down to 0");
    assert_eq!(check(&udp.vnet(V::GSO_UDP_L4 | V::GSO_ECN, 1472), &udp.build()), BAD);
    let deep = tcp6().extension(60, &[&[14][..], &[0; 118]].concat());
    assert_eq!(check(&deep.vnet(V::GSO_TCPV6, 1000), &deep.build()), BAD, "headers reach behind the snapshot");
    let options = tcp6().extension(60, &[&[12][..], &[0; 102]].concat()).tcp_fields(0x10, 1, &[1; 40]);
    assert_eq!(check(&options.vnet(V::GSO_TCPV6, 1000), &options.build()), BAD, "options reach behind the snapshot");
    assert!(check(&options.vnet(0, 0), &options.build()).is_ok());
}

#[test]
fn receivers_get_what_they_can_take() {
    use VnetHdr as V;
    let f = tcp4().build();
    let big = tcp4().vnet(V::GSO_TCPV4 | V::GSO_ECN, 1460);
    let Ok(Delivery::AsIs { vnet }) = deliver(&V { hdr_len: 9, num_buffers: 77, ..big }, &f, ALL) else { panic!() };
    assert_eq!(vnet, V { hdr_len: 54, ..big });
    for less in
        [without(feature::GUEST_CSUM), without(feature::GUEST_TSO4), without(feature::GUEST_ECN), Receiver::default()]
    {
        assert!(matches!(deliver(&big, &f, less), Ok(Delivery::Segment(_))), "{less:?}");
    }
    let f6 = tcp6().build();
    let big6 = tcp6().vnet(V::GSO_TCPV6, 1440);
    assert!(matches!(
        deliver(&big6, &f6, without(feature::GUEST_TSO4 | feature::GUEST_ECN)),
        Ok(Delivery::AsIs { .. })
    ));
    assert!(matches!(deliver(&big6, &f6, without(feature::GUEST_TSO6)), Ok(Delivery::Segment(_))));
    for (gso_type, lacks) in [
        (V::GSO_UDP, without(feature::GUEST_UFO)),
        (V::GSO_UDP_L4, without(feature::GUEST_USO4)),
        (V::GSO_UDP_L4, without(feature::GUEST_USO6)),
    ] {
        let (f, vnet) = (udp4().build(), udp4().vnet(gso_type, 1472));
        let Ok(Delivery::AsIs { vnet: got }) = deliver(&vnet, &f, ALL) else { panic!() };
        assert_eq!(got, vnet);
        assert!(matches!(deliver(&vnet, &f, lacks), Ok(Delivery::Segment(_))));
    }
    let plain = tcp4().vnet(0, 0);
    let Ok(Delivery::AsIs { vnet }) = deliver(&plain, &f, ALL) else { panic!() };
    assert_eq!(vnet, V { hdr_len: 0, ..plain });
}

#[test]
fn checksum_is_completed_for_a_receiver_without() {
    for payload in [0, 1, 7, 100, 150, 3001] {
        let f = tcp4().payload(vec![0xa7; payload]);
        let (mut frame, vnet) = (f.build(), f.vnet(0, 0));
        let Ok(Delivery::CompleteChecksum(job)) = deliver(&vnet, &frame, Receiver::default()) else { panic!() };
        // Cut at an even and at an odd place.
        for cut in [frame.len().min(SNAPSHOT_LEN), frame.len().min(SNAPSHOT_LEN - 1)] {
            let (header, rest) = frame.split_at_mut(cut);
            header[50..52].copy_from_slice(&f.build()[50..52]);
            job.finish(header, sum::sum(rest));
            let right = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1000, 80).payload(vec![0xa7; payload]);
            assert_eq!(frame, right.build(), "{payload} bytes cut at {cut}");
        }
    }
}

#[test]
fn frames_over_the_mtu() {
    use VnetHdr as V;
    let mtu = |mtu| Receiver { mtu, ..ALL };
    let plain = Frame::new(1, 2).vlan(1).vlan(2).ipv4([1; 4], [2; 4]).udp(1, 2).payload([0; 1472]).build();
    assert_eq!(plain.len(), 1522);
    assert!(deliver(&V::default(), &plain, mtu(1500)).is_ok(), "tags do not count");
    assert!(deliver(&V::default(), &plain, mtu(0)).is_ok(), "unknown");
    assert_eq!(deliver(&V::default(), &plain, mtu(1499)).err(), Some(DropReason::OverMtu));
    // TCP is cut smaller than the sender asked, whole or not.
    let (f, vnet) = (tcp4().build(), tcp4().vnet(V::GSO_TCPV4, 2960));
    let Ok(Delivery::AsIs { vnet: got }) = deliver(&vnet, &f, mtu(1500)) else { panic!() };
    assert_eq!(got.gso_size, 1460);
    let Ok(Delivery::Segment(s)) = deliver(&vnet, &f, Receiver { mtu: 1500, ..Receiver::default() }) else { panic!() };
    assert_eq!((s.count(), s.longest()), (3, 1514));
    assert_eq!(deliver(&vnet, &f, mtu(40)).err(), Some(DropReason::OverMtu));
    let udp = udp4().build();
    let ufo = udp4().vnet(V::GSO_UDP, 2000);
    let Ok(Delivery::Segment(s)) = deliver(&ufo, &udp, Receiver { mtu: 1499, ..Receiver::default() }) else { panic!() };
    assert_eq!((s.count(), s.longest()), (3, 14 + 20 + 1472));
    let uso = udp4().vnet(V::GSO_UDP_L4, 2000);
    assert_eq!(deliver(&uso, &udp, mtu(1500)).err(), Some(DropReason::OverMtu), "datagrams keep their size");
}

proptest! {
    /// Any header over any frame: no panic, and whatever is accepted points into the snapshot.
    #[test]
    fn any_request_is_judged(
        bytes in proptest::collection::vec(any::<u8>(), 12),
        kind in 0usize..4,
        start in prop_oneof![Just(34u16), Just(54), any::<u16>()],
        cut in 0usize..3100,
        change in (0usize..80, any::<u8>()),
        likely in any::<bool>(),
        features in any::<u64>(),
        mtu in any::<u16>(),
    ) {
        let frame = [tcp4(), tcp6(), udp4(), udp4().vlan(3)][kind].clone();
        let mut vnet = VnetHdr::parse(bytes[..].try_into().unwrap());
        if likely {
            vnet = VnetHdr { csum_start: start, csum_offset: if kind < 2 { 16 } else { 6 }, ..vnet };
            vnet.flags |= 1;
            vnet.gso_type %= 6;
        }
        let mut frame = frame.build();
        frame[change.0] = change.1;
        frame.truncate(cut);
        let snapshot = &frame[..frame.len().min(SNAPSHOT_LEN)];
        if let Ok(offload) = check(&vnet, &frame) {
            let receiver = Receiver { features, mtu };
            match offload {
                Offload::None => {}
                Offload::Checksum(CompleteChecksum { start, field }) => {
                    prop_assert!(start <= field && usize::from(field) + 2 <= snapshot.len());
                }
                Offload::Gso(g) => {
                    prop_assert!(usize::from(g.hdr_len) <= snapshot.len() && g.size > 0);
                    prop_assert!(g.end as usize <= frame.len());
                }
            }
            if let Ok(Delivery::Segment(s)) = offload.for_receiver(&receiver, snapshot, frame.len()) {
                prop_assert!((1..=MAX_SEGMENTS).contains(&s.count()));
                let mut buf = [0; crate::SEGMENT_HEADER_LEN];
                for i in 0..s.count() {
                    let segment = s.segment(i, snapshot, &mut buf).unwrap();
                    prop_assert!(segment.payload.end <= frame.len());
                    prop_assert!(segment.frame_len() <= s.longest());
                }
                prop_assert_eq!(s.segment(s.count(), snapshot, &mut buf), None);
            }
        }
    }
}
