//! Fields that are set: against frames that were built so, and against the reference in `testutil/edits.rs`.

use super::*;
use crate::extract::tests::mutated;
use crate::testutil::edits::{agree, edited as reference};
use crate::testutil::{arp, neighbour_solicitation};
use crate::{CompleteChecksum, Delivery, Receiver};

const ALL: u32 = u32::MAX;

fn set(part: Part, word: u8, value: u32, mask: u32) -> Edit {
    Edit::Set(Set { part, word, value, mask })
}

/// Sets bytes of a header that begin here.
fn bytes(part: Part, at: usize, bytes: &[u8]) -> Vec<Edit> {
    let value = [&vec![0; at][..], bytes].concat();
    let mask = [vec![0; at], vec![0xff; bytes.len()]].concat();
    Set::masked(part, &value, &mask).map(Edit::Set).collect()
}

#[test]
fn fields_are_those_that_a_sender_would_have_written() {
    let (a, b) = ([10, 0, 0, 1], [192, 168, 255, 2]);
    for tags in 0..3 {
        let tagged = |frame: Frame| (0..tags).fold(frame, |frame, n| frame.tag(0x8100, n)).build();
        for padding in [0, 9] {
            let ip = |src, dst| Frame::new(1, 2).ipv4(src, dst).ip_options(&[1; 8]).padding(padding);
            let tcp = |src, dst| ip(src, dst).tcp(5, 6).payload([7; 301]);
            let udp = |src, dst| ip(src, dst).udp(5, 6).payload([7; 301]);
            let address = bytes(Part::Ipv4, 12, &[a, b].concat());
            assert_eq!(edited(&tagged(tcp(b, a)), &address), Ok(tagged(tcp(a, b))));
            assert_eq!(edited(&tagged(udp(b, a)), &address), Ok(tagged(udp(a, b))));
            let ports = [set(Part::Ports, 0, 1000 << 16 | 80, ALL)];
            assert_eq!(edited(&tagged(tcp(a, b)), &ports), Ok(tagged(tcp(a, b).tcp(1000, 80))));
            assert_eq!(edited(&tagged(udp(a, b)), &ports), Ok(tagged(udp(a, b).udp(1000, 80))));
            let tos = [set(Part::Ipv4, 0, 0xb8 << 16, 0xff << 16), set(Part::Ipv4, 2, 9 << 24, 0xff << 24)];
            assert_eq!(edited(&tagged(tcp(a, b)), &tos), Ok(tagged(tcp(a, b).tos(0xb8).ttl(9))));
            let icmp = |kind, code| ip(a, b).icmp(kind, code).payload([3; 40]);
            let kind = [set(Part::Icmp, 0, 0x0b01_0000, 0xffff_0000)];
            assert_eq!(edited(&tagged(icmp(8, 0)), &kind), Ok(tagged(icmp(11, 1))));
            let (c, d) = ([0xfc; 16], [0x20; 16]);
            let v6 = |src, dst| Frame::new(1, 2).ipv6(src, dst).extension(60, &[0; 7]).padding(padding);
            let address = bytes(Part::Ipv6, 8, &[c, d].concat());
            let icmp = |src, dst, kind| v6(src, dst).icmp(kind, 0).payload([3; 41]);
            assert_eq!(edited(&tagged(icmp(d, c, 128)), &address), Ok(tagged(icmp(c, d, 128))));
            assert_eq!(edited(&tagged(v6(d, c).udp(5, 6)), &address), Ok(tagged(v6(c, d).udp(5, 6))));
            assert_eq!(edited(&tagged(v6(d, c).tcp(5, 6)), &address), Ok(tagged(v6(c, d).tcp(5, 6))));
            let hops = [set(Part::Ipv6, 0, 0x0b80_0000, 0x0ff0_0000), set(Part::Ipv6, 1, 7, 0xff)];
            assert_eq!(
                edited(&tagged(icmp(c, d, 1)), &hops),
                Ok(tagged(v6(c, d).tos(0xb8).ttl(7).icmp(1, 0).payload([3; 41])))
            );
        }
    }
    let frame = Frame::new(1, 2).payload([9; 50]);
    let ethernet = bytes(Part::Ethernet, 0, &[2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 8]);
    assert_eq!(edited(&frame.build(), &ethernet), Ok(Frame::new(8, 7).payload([9; 50]).build()));
    let vlan = [set(Part::Vlan, 0, 0x2fff_0000, 0x0fff_0000)];
    assert_eq!(edited(&frame.clone().vlan(0xa005).build(), &vlan), Ok(frame.vlan(0xafff).build()));
}

#[test]
fn arp_and_neighbour_discovery_are_rewritten() {
    let (mine, yours) = (([2; 6], [10, 0, 0, 1]), ([4; 6], [10, 0, 0, 2]));
    let reply = arp(2, mine, yours);
    let mut edits = bytes(Part::Arp, 6, &reply[20..42]);
    edits.extend(bytes(Part::Ethernet, 0, &[4; 6]));
    edits.extend(bytes(Part::Ethernet, 6, &[2; 6]));
    assert_eq!(edited(&arp(1, yours, ([0; 6], [9; 4])), &edits), Ok(reply));
    let (mac, other) = ([2, 0, 0, 0, 0, 5], [2, 0, 0, 0, 0, 6]);
    let target = |n: u8| [0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 7, 7, n];
    let before = neighbour_solicitation((mac, [0xfe; 16]), target(1));
    let after = neighbour_solicitation((other, [0xfe; 16]), target(2));
    let mut edits = bytes(Part::Neighbour, 8, &target(2));
    edits.extend(bytes(Part::SourceLink, 2, &other));
    edits.extend(bytes(Part::Ethernet, 0, &after[..12]));
    edits.extend(bytes(Part::Ipv6, 24, &after[38..54]));
    assert_eq!(edited(&before, &edits), Ok(after));
    assert_eq!(edited(&before, &bytes(Part::TargetLink, 2, &[2; 6])), Err(DropReason::BadAction), "it has none");
}

#[test]
fn ttl_goes_down_to_1() {
    let v4 = |ttl| Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ttl(ttl).udp(5, 6).build();
    let v6 = |ttl| Frame::new(1, 2).ipv6([3; 16], [4; 16]).ttl(ttl).udp(5, 6).build();
    let down = |frame: &[u8]| edited(frame, &[Edit::DecTtl]);
    for ttl in [255, 64, 2] {
        assert_eq!((down(&v4(ttl)), down(&v6(ttl))), (Ok(v4(ttl - 1)), Ok(v6(ttl - 1))));
    }
    for ttl in [1, 0] {
        assert_eq!(down(&v4(ttl)), Err(DropReason::TtlExpired));
        assert_eq!(down(&v6(ttl)), Err(DropReason::TtlExpired));
    }
    assert_eq!(down(&Frame::new(1, 2).payload([0; 60]).build()), Err(DropReason::BadAction));
    assert_eq!(down(&v4(9)[..30]), Err(DropReason::BadAction), "cut short");
}

#[test]
fn udp_without_checksum_has_none_afterwards_and_none_comes_to_be() {
    let (address, ports) = (set(Part::Ipv4, 3, 0x0a00_0009, ALL), set(Part::Ports, 0, 0x1234_5678, ALL));
    let mut frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(5, 6).payload([1; 9]).build();
    frame[40..42].fill(0);
    let after = edited(&frame, &[address, ports]).unwrap();
    assert_eq!(
        (&after[26..30], &after[34..38], &after[40..42]),
        (&[10, 0, 0, 9][..], &[0x12, 0x34, 0x56, 0x78][..], &[0, 0][..])
    );
    // A port with which the sum comes to be 0, which is written as 0xffff.
    let sum_of = |port: u16| Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(port, 6).build();
    let port = (1..=u16::MAX).find(|port| sum_of(*port)[40..42] == [0xff, 0xff]).unwrap();
    let edits = [set(Part::Ports, 0, u32::from(port) << 16, 0xffff_0000)];
    assert_eq!(edited(&sum_of(77), &edits), Ok(sum_of(port)));
}

/// Later fragments have no transport header: what looks like one stays. With a routing header the pseudo header has another destination.
#[test]
fn what_is_no_transport_header_and_what_is_not_summed_stays() {
    let later = |src| Frame::new(1, 2).ipv4(src, [10, 0, 0, 2]).fragment(0x2009).protocol(17).payload([5; 100]).build();
    let address = bytes(Part::Ipv4, 12, &[10, 9, 9, 9]);
    assert_eq!(edited(&later([10, 0, 0, 1]), &address), Ok(later([10, 9, 9, 9])));
    assert_eq!(edited(&later([10, 0, 0, 1]), &[set(Part::Ports, 0, 1, 1)]), Err(DropReason::BadAction));
    let (src, hop, new_hop) = ([3; 16], [4; 16], [9; 16]);
    for (left, summed) in [(1, false), (0, true)] {
        let route = [&[2, 0, left, 0, 0, 0, 0][..], &[5; 16]].concat();
        let frame = |dst: [u8; 16]| Frame::new(1, 2).ipv6(src, dst).extension(43, &route).tcp(5, 6).build();
        let after = edited(&frame(hop), &bytes(Part::Ipv6, 24, &new_hop)).unwrap();
        let (was, built) = (frame(hop), frame(new_hop));
        let at = built.len() - 4;
        assert_eq!(after[..at], built[..at]);
        assert_eq!(after[at..at + 2], if summed { &built } else { &was }[at..at + 2]);
    }
}

#[test]
fn what_cannot_be_set_is_refused_and_nothing_is_changed() {
    let v4 = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let deep =
        (0..12).fold(Frame::new(1, 2).ipv6([3; 16], [4; 16]), |f, _| f.extension(60, &[&[1][..], &[0; 14]].concat()));
    let (tcp, sctp) = (v4.clone().tcp(5, 6).build(), v4.clone().protocol(132).payload([1; 40]).build());
    // Behind its end there is padding.
    let echo = v4.clone().icmp(8, 0).payload([0; 4]).padding(40).build();
    let mut short = tcp.clone();
    short[46] = 0x40;
    for (frame, edit) in [
        (&tcp, set(Part::Ipv4, 1, 0, 1)),
        (&tcp, set(Part::Ipv4, 0, 0, 0xff00_0000)),
        (&tcp, set(Part::Ipv4, 5, 0, 1)),
        (&tcp, set(Part::Ipv4, 255, 0, 0)),
        (&tcp, set(Part::Ports, 1, 0, 1)),
        (&tcp, set(Part::Ethernet, 3, 0, 0xffff_0000)),
        (&tcp, set(Part::Ipv6, 2, 0, ALL)),
        (&tcp, set(Part::Icmp, 0, 0, 0xffff_0000)),
        (&tcp, set(Part::Vlan, 0, 0, 0xffff_0000)),
        (&tcp, set(Part::Arp, 2, 0, ALL)),
        (&tcp, set(Part::Neighbour, 2, 0, ALL)),
        (&echo, set(Part::Icmp, 2, 0, 1)),
        (&sctp, set(Part::Ports, 0, 0, ALL)),
        (&short, set(Part::Ipv4, 3, 0, ALL)),
        (&tcp[..20].to_vec(), set(Part::Ipv4, 3, 0, ALL)),
        (&deep.tcp(5, 6).build(), set(Part::Ipv6, 2, 0, ALL)),
    ] {
        let (mut header, mut offload) = (header(frame), Offload::None);
        let before = header.bytes().to_vec();
        let payload_len = frame.len() - before.len();
        assert_eq!(edit.apply(&mut header, &mut offload, payload_len), Err(DropReason::BadAction), "{edit:?}");
        assert_eq!(header.bytes(), before);
    }
}

/// A tag that goes may bring to light what a request was never held against: then nothing is set that its checksum would be written over.
#[test]
fn what_a_hidden_request_would_write_over_is_not_set() {
    let frame =
        Frame::new(1, 2).tag(0x8100, 1).tag(0x8100, 2).tag(0x8100, 3).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(5, 6);
    let frame = frame.payload([0; 60]).build();
    // Over the source address, behind three tags.
    let vnet = VnetHdr { flags: VnetHdr::F_NEEDS_CSUM, csum_start: 26, csum_offset: 12, ..VnetHdr::default() };
    let mut header = header(&frame);
    let mut offload = Offload::check(&vnet, header.bytes(), frame.len()).unwrap();
    Edit::PopVlan.apply(&mut header, &mut offload, 0).unwrap();
    let address = set(Part::Ipv4, 3, 0x0a00_0009, ALL);
    assert_eq!(address.apply(&mut header, &mut offload, 0), Err(DropReason::BadAction));
}

/// Any edit, most often one that can be made.
fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let parts = [
        (Part::Ethernet, 3),
        (Part::Vlan, 1),
        (Part::Arp, 7),
        (Part::Ipv4, 5),
        (Part::Ipv6, 10),
        (Part::Ports, 1),
        (Part::Icmp, 14),
        (Part::Neighbour, 6),
        (Part::SourceLink, 2),
        (Part::TargetLink, 2),
    ];
    let masks = prop_oneof![
        Just(ALL),
        Just(0xffff),
        Just(0xffff_0000),
        Just(0xff),
        Just(0xff00_0000),
        Just(0xff_0000),
        Just(0x0fff_ffff),
        any::<u32>()
    ];
    let values = prop_oneof![any::<u32>(), Just(0), Just(ALL)];
    let one = (0..parts.len(), 0u8..16, values, masks).prop_map(move |(n, word, value, mask)| {
        let (part, words) = parts[n];
        set(part, if word == 15 { words } else { word % words }, value, mask)
    });
    let other = prop_oneof![Just(Edit::DecTtl), Just(Edit::PopVlan), Just(push(0x8100, 7))];
    proptest::collection::vec(prop_oneof![8 => one, 1 => other], 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    /// Whatever the frame and the edits: the result is the reference's, and what cannot be made changes nothing.
    #[test]
    fn edits_are_the_references(frame in mutated(), edits in edits()) {
        prop_assume!(frame.len() >= 14);
        let (mut header, mut offload) = (header(&frame), Offload::None);
        let payload = frame[header.len()..].to_vec();
        let mut expected = frame;
        for edit in edits {
            // What lies behind the header is not looked at, however much of it came there.
            if header.len() < SNAPSHOT_LEN && !payload.is_empty() || header.len() > SNAPSHOT_LEN {
                break;
            }
            let before = header.bytes().to_vec();
            let result = edit.apply(&mut header, &mut offload, payload.len());
            match reference(&expected, &edit, None) {
                Ok(after) => {
                    prop_assert_eq!(result, Ok(()), "{:?}", edit);
                    let now = [header.bytes(), &payload].concat();
                    prop_assert!(agree(&now, &after), "{:?} of {:02x?}:\n{:02x?} and not\n{:02x?}", edit, expected, now, after);
                    expected = now;
                }
                Err(reason) => {
                    prop_assert_eq!(result, Err(reason), "{:?} of {:02x?}", edit, expected);
                    prop_assert_eq!(header.bytes(), before);
                }
            }
        }
    }

    /// A checksum that is completed after the edits is that of a frame whose sender had completed it before them.
    #[test]
    fn a_request_is_completed_as_if_it_had_been_before(
        v6 in any::<bool>(), tcp in any::<bool>(), tags in 0u16..3, len in 0usize..600, edits in edits(), rest in any::<u8>(),
    ) {
        let frame = Frame::new(1, 2);
        let frame = if v6 { frame.ipv6([0xfd; 16], [rest; 16]) } else { frame.ipv4([10, 0, 0, rest], [10, 0, 0, 2]) };
        let frame = if tcp { frame.tcp(5, 6) } else { frame.udp(5, 6) }.payload(vec![rest; len]);
        let frame = (0..tags).fold(frame, |frame, tag| frame.vlan(tag));
        let (mut complete, partial) = (frame.build(), frame.partial_checksum());
        let (vnet, bytes) = (partial.vnet(VnetHdr::GSO_NONE, 0), partial.build());
        let mut header = header(&bytes);
        let mut offload = Offload::check(&vnet, header.bytes(), bytes.len()).unwrap();
        let payload = bytes[header.len()..].to_vec();
        let mut as_sent = bytes.clone();
        for edit in edits {
            let field = offload.checksum().map(|(_, field)| field);
            let result = edit.apply(&mut header, &mut offload, payload.len());
            let by_reference = reference(&as_sent, &edit, field);
            prop_assert_eq!(result.err(), by_reference.clone().err());
            if let (Ok(after), Ok(plain)) = (by_reference, reference(&complete, &edit, None)) {
                prop_assert_eq!([header.bytes(), &payload].concat(), after.clone());
                (as_sent, complete) = (after, plain);
            }
        }
        let delivery = offload.for_receiver(&Receiver::default(), header.bytes(), as_sent.len());
        let Ok(Delivery::CompleteChecksum(job)) = delivery else { panic!("{delivery:?}") };
        let job: CompleteChecksum = job;
        let mut finished = header.bytes().to_vec();
        job.finish(&mut finished, crate::sum::sum(&payload));
        prop_assert!(agree(&[&finished[..], &payload].concat(), &complete));
    }
}

#[test]
fn what_an_error_is_about_is_set_and_the_checksum_follows() {
    let (a, b) = ([10, 0, 0, 1], [192, 0, 2, 1]);
    let about = |src: [u8; 4]| [&[0; 4][..], &[0x45, 0, 0, 28], &[0; 8], &src, &[10, 0, 0, 9, 0, 80, 4, 0]].concat();
    let error = |src| Frame::new(1, 2).ipv4([10, 0, 0, 9], b).icmp(3, 3).payload(about(src)).build();
    let edits = bytes(Part::Icmp, 20, &a);
    assert_eq!(edited(&error(b), &edits), Ok(error(a)));
    let (c, d) = ([0xfc; 16], [0x20; 16]);
    let about = |src: [u8; 16]| [&[0; 4][..], &[0x60, 0, 0, 0, 0, 8, 17, 9], &src, &[7; 16], &[0, 80, 4, 0]].concat();
    let error = |src| Frame::new(1, 2).ipv6([7; 16], d).icmp(1, 4).payload(about(src)).build();
    assert_eq!(edited(&error(d), &bytes(Part::Icmp, 16, &c)), Ok(error(c)));
}
