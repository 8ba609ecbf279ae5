use super::*;
use crate::SNAPSHOT_LEN;
use crate::testutil::Frame;
use crate::{Delivery, MAX_SEGMENTS, Offload, Receiver, feature};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

impl Segmenter {
    /// Length of the longest segment's frame in bytes, without the virtio-net header.
    pub(crate) fn longest(&self) -> usize {
        let (from, _) = self.gso.cut_from();
        let extra = if self.is_fragmenting() && self.gso.ipv6 { 8 } else { 0 };
        from + extra + self.gso.cut_len().min(usize::from(self.gso.size))
    }
}

/// Delivers a packet as the switch does: header from the snapshot, payload from the "guest", summed on the way.
fn deliver(frame: &[u8], vnet: VnetHdr, receiver: Receiver) -> Vec<(VnetHdr, Vec<u8>)> {
    let snapshot = &frame[..frame.len().min(SNAPSHOT_LEN)];
    let offload = Offload::check(&vnet, snapshot, frame.len()).expect("a right request");
    let Ok(Delivery::Segment(mut segmenter)) = offload.for_receiver(&receiver, snapshot, frame.len()) else {
        panic!("not segmented: {offload:?}")
    };
    if let Some(range) = segmenter.datagram() {
        segmenter.set_datagram_sum(sum::sum(&frame[range]));
    }
    let mut out = Vec::new();
    for i in 0..segmenter.count() {
        // What an earlier segment left in the buffer must not show.
        let mut buf = [0xee; SEGMENT_HEADER_LEN];
        let segment = segmenter.segment(i, snapshot, &mut buf).expect("a segment");
        let payload = &frame[segment.payload.clone()];
        segment.finish(&mut buf, sum::sum(payload));
        let bytes = [&buf[..segment.header_len], payload].concat();
        assert_eq!(bytes.len(), segment.frame_len());
        assert!(bytes.len() <= segmenter.longest());
        out.push((segment.vnet, bytes));
    }
    out
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// 64 KiB of TCP, judged by somebody else's parser.
#[test]
fn a_64_kib_packet_reassembles() {
    let data = payload(65_535 - 20 - 32);
    for v6 in [false, true] {
        let f = Frame::new(1, 2).vlan(5);
        let f = if v6 { f.ipv6([0xfd; 16], [0xfe; 16]) } else { f.ipv4([10, 0, 0, 1], [10, 0, 0, 2]) };
        let f = f.tcp(4000, 80).tcp_fields(0x99, u32::MAX - 1000, &[1; 12]).payload(data.clone()).partial_checksum();
        let gso_type = if v6 { VnetHdr::GSO_TCPV6 } else { VnetHdr::GSO_TCPV4 };
        let segments = deliver(&f.build(), f.vnet(gso_type, 1448), Receiver::default());
        assert_eq!(segments.len(), data.len().div_ceil(1448));
        let mut got: Vec<u8> = Vec::new();
        for (i, (vnet, bytes)) in segments.iter().enumerate() {
            assert_eq!(*vnet, VnetHdr::default());
            let packet = SlicedPacket::from_ethernet(bytes).unwrap();
            let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("not TCP") };
            let checksum = match packet.net.unwrap() {
                NetSlice::Ipv4(ip) => {
                    assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
                    assert_eq!(ip.header().identification(), 0x1234 + i as u16);
                    tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination())
                }
                NetSlice::Ipv6(ip) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()),
                other => panic!("{other:?}"),
            };
            assert_eq!(tcp.checksum(), checksum.unwrap());
            assert_eq!(tcp.sequence_number(), (u32::MAX - 1000).wrapping_add(got.len() as u32));
            let last = i + 1 == segments.len();
            assert_eq!((tcp.fin(), tcp.psh(), tcp.cwr(), tcp.ack()), (last, last, i == 0, true));
            assert_eq!(tcp.options(), [1; 12]);
            got.extend(tcp.payload());
        }
        assert!(got == data);
    }
}

/// A datagram cut into fragments, put together by somebody else's code.
#[test]
fn fragments_reassemble() {
    let data = payload(20_000);
    let f = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(9, 10).payload(data.clone()).partial_checksum();
    let mut pool = etherparse::defrag::IpDefragPool::<(), ()>::new();
    let mut whole = None;
    for (vnet, bytes) in
        deliver(&f.build(), f.vnet(VnetHdr::GSO_UDP, 1480), Receiver { features: feature::GUEST_CSUM, mtu: 0 })
    {
        assert_eq!(vnet, VnetHdr::default(), "one fragment alone has no checksum to complete");
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        whole = pool.process_sliced_packet(&packet, (), ()).unwrap().or(whole);
    }
    let whole = whole.expect("complete").payload;
    let udp = etherparse::UdpSlice::from_slice(&whole).unwrap();
    assert!(udp.payload() == data);
    let checksum = udp.to_header().calc_checksum_ipv4_raw([10, 0, 0, 1], [10, 0, 0, 2], &data).unwrap();
    assert_eq!(udp.checksum(), checksum);
}

#[test]
fn ipv6_fragment_header_goes_behind_the_unfragmentable_part() {
    // Hop-by-hop options stay in front; destination options for the last hop are part of the datagram.
    let f = Frame::new(1, 2).ipv6([3; 16], [4; 16]).extension(0, &[0; 7]).extension(60, &[0; 7]);
    let f = f.udp(9, 10).payload(payload(100)).partial_checksum();
    let segments = deliver(&f.build(), f.vnet(VnetHdr::GSO_UDP, 50), Receiver::default());
    let at = 14 + 40 + 8;
    let datagram = Frame::new(1, 2).ipv6([3; 16], [4; 16]).extension(0, &[0; 7]).extension(60, &[0; 7]);
    let datagram = datagram.udp(9, 10).payload(payload(100)).build();
    let mut got: Vec<u8> = Vec::new();
    for (i, (_, bytes)) in segments.iter().enumerate() {
        assert_eq!(bytes[..18], datagram[..18]);
        assert_eq!(usize::from(be16(bytes, 18)), bytes.len() - 54);
        assert_eq!((bytes[20], bytes[54]), (0, 44), "hop-by-hop, then fragment");
        let more = i + 1 < segments.len();
        assert_eq!((bytes[at], be16(bytes, at + 2)), (60, (48 * i) as u16 | u16::from(more)));
        assert_eq!(bytes[at + 4..at + 8], segments[0].1[at + 4..at + 8], "one identification");
        got.extend(&bytes[at + 8..]);
    }
    assert_eq!(segments.len(), 3);
    assert!(got == datagram[at..]);
    // A fragment too small for the headers is refused, not made (RFC 7112).
    let tiny = f.vnet(VnetHdr::GSO_UDP, 8);
    assert!(Offload::check(&tiny, &f.build()[..SNAPSHOT_LEN.min(f.build().len())], f.build().len()).is_err());
}

#[test]
fn routing_header_keeps_the_senders_sum() {
    // Segments left 1: the checksum is made with the address in the routing header, which only the sender summed.
    let last = [9; 16];
    let routing = [&[2, 0, 1, 0, 0, 0, 0][..], &last].concat();
    let through = |f: Frame| f.extension(43, &routing).tcp(1, 2).payload(payload(300));
    let f = through(Frame::new(1, 2).ipv6([3; 16], [4; 16])).partial_checksum();
    let direct = Frame::new(1, 2).ipv6([3; 16], last).tcp(1, 2).payload(payload(300)).partial_checksum();
    let mut frame = f.build();
    let field = 14 + 40 + 24 + 16;
    frame[field..field + 2].copy_from_slice(&direct.build()[54 + 16..54 + 18]);
    let segments = deliver(&frame, f.vnet(VnetHdr::GSO_TCPV6, 100), Receiver::default());
    assert_eq!(segments.len(), 3);
    for (i, (_, bytes)) in segments.iter().enumerate() {
        let piece = Frame::new(1, 2).ipv6([3; 16], last).tcp(1, 2).tcp_fields(0x10, 1000 + 100 * i as u32, &[]);
        let piece = piece.payload(&payload(300)[100 * i..100 * (i + 1)]).build();
        assert_eq!(bytes[field - 16..], piece[54..]);
    }
}

#[test]
fn the_longest_ipv6_fragment_fits_its_length_field() {
    let f = Frame::new(1, 2).ipv6([3; 16], [4; 16]).udp(9, 10).payload(payload(65_535 - 8)).partial_checksum();
    let segments = deliver(&f.build(), f.vnet(VnetHdr::GSO_UDP, 65_528), Receiver::default());
    assert_eq!(segments.len(), 2);
    for (_, bytes) in &segments {
        assert_eq!(usize::from(be16(bytes, 18)), bytes.len() - 54);
    }
}

#[test]
fn padding_is_not_segmented() {
    let f = Frame::new(1, 2).ipv4([1; 4], [2; 4]).tcp(1, 2).payload(payload(250)).padding(500).partial_checksum();
    let segments = deliver(&f.build(), f.vnet(VnetHdr::GSO_TCPV4, 100), Receiver::default());
    assert_eq!(segments.iter().map(|(_, b)| b.len() - 54).collect::<Vec<_>>(), [100, 100, 50]);
}

#[test]
fn no_payload_is_one_segment() {
    let f = Frame::new(1, 2).ipv4([1; 4], [2; 4]).tcp(1, 2).partial_checksum();
    let segments = deliver(&f.build(), f.vnet(VnetHdr::GSO_TCPV4, 100), Receiver::default());
    assert_eq!(segments, [(VnetHdr::default(), Frame::new(1, 2).ipv4([1; 4], [2; 4]).tcp(1, 2).build())]);
}

/// Link and network layer of a packet to be cut.
fn bases() -> impl Strategy<Value = (bool, Frame)> {
    let extensions = proptest::collection::vec(prop_oneof![Just(0u8), Just(60)], 0..3);
    (any::<bool>(), 0usize..3, 0usize..11, extensions, any::<u16>()).prop_map(|(v6, tags, options, extensions, id)| {
        let f = (0..tags).fold(Frame::new(1, 2), |f, i| f.vlan(i as u16)).id(id);
        if v6 {
            let f = f.ipv6([0xfd; 16], [0xfe; 16]);
            (v6, extensions.into_iter().fold(f, |f, number| f.extension(number, &[0; 7])))
        } else {
            (v6, f.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ip_options(&vec![1; options * 4]))
        }
    })
}

fn sizes() -> impl Strategy<Value = (usize, u16)> {
    (prop_oneof![0usize..200, 0usize..5000, 60_000usize..65_300], prop_oneof![1u16..100, 500u16..9000, Just(u16::MAX)])
        .prop_map(|(len, size)| (len, size.max((len / MAX_SEGMENTS) as u16 + 1)))
}

/// What a receiver sees in the end: it completes what it was told to complete.
fn completed((vnet, mut bytes): (VnetHdr, Vec<u8>)) -> Vec<u8> {
    if vnet.flags & VnetHdr::F_NEEDS_CSUM != 0 {
        let start = usize::from(vnet.csum_start);
        let checksum = sum::finish(sum::sum(&bytes[start..]));
        put16(&mut bytes, start + usize::from(vnet.csum_offset), checksum);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Every TCP segment equals the frame that its piece of the stream would have been sent in.
    #[test]
    fn tcp_segments((v6, f) in bases(), (len, size) in sizes(), flags in 0u16..0x200, seq in any::<u32>(), options in 0usize..4, csum in any::<bool>(), id in any::<u16>()) {
        let data = payload(len.min(65_400 - 60 - 40));
        let options = vec![1; options * 4];
        let f = f.id(id).tcp(5, 6);
        let whole = f.clone().tcp_fields(flags, seq, &options).payload(data.clone()).partial_checksum();
        let gso_type = if v6 { VnetHdr::GSO_TCPV6 } else { VnetHdr::GSO_TCPV4 };
        let got = deliver(&whole.build(), whole.vnet(gso_type, size), Receiver { features: if csum { feature::GUEST_CSUM } else { 0 }, mtu: 0 });
        let mut pieces: Vec<_> = data.chunks(size.into()).collect();
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        prop_assert_eq!(got.len(), pieces.len());
        let count = pieces.len();
        for (i, (got, piece)) in got.into_iter().zip(pieces).enumerate() {
            prop_assert_eq!(got.0.flags != 0, csum);
            let mut flags = flags;
            if i > 0 {
                flags &= !0x80;
            }
            if i + 1 < count {
                flags &= !0x09;
            }
            let seq = seq.wrapping_add((i * usize::from(size)) as u32);
            let f = f.clone().id(id.wrapping_add(i as u16)).tcp_fields(flags, seq, &options).payload(piece);
            prop_assert!(completed(got) == f.build(), "segment {} of {}", i, count);
        }
    }

    /// Every USO segment equals the datagram sent alone.
    #[test]
    fn uso_datagrams((_, f) in bases(), (len, size) in sizes(), csum in any::<bool>(), id in any::<u16>()) {
        let data = payload(len.clamp(1, 65_400 - 60 - 8));
        let f = f.id(id).udp(5, 6);
        let whole = f.clone().payload(data.clone()).partial_checksum();
        let got = deliver(&whole.build(), whole.vnet(VnetHdr::GSO_UDP_L4, size), Receiver { features: if csum { feature::GUEST_CSUM } else { 0 }, mtu: 0 });
        prop_assert_eq!(got.len(), data.len().div_ceil(size.into()));
        for (i, (got, piece)) in got.into_iter().zip(data.chunks(size.into())).enumerate() {
            let f = f.clone().id(id.wrapping_add(i as u16)).payload(piece);
            prop_assert!(completed(got) == f.build(), "datagram {}", i);
        }
    }

    /// The fragments' pieces make up the datagram as it would have been sent whole, checksum included.
    #[test]
    fn ufo_fragments((v6, f) in bases(), (len, size) in sizes(), csum in any::<bool>()) {
        let data = payload(len.min(65_400 - 60 - 8));
        let size = size.max(40);
        let f = f.udp(5, 6).payload(data);
        let partial = f.clone().partial_checksum();
        let vnet = partial.vnet(VnetHdr::GSO_UDP, size);
        let got = deliver(&partial.build(), vnet, Receiver { features: if csum { feature::GUEST_CSUM } else { 0 }, mtu: 0 });
        let whole = f.build();
        if let [only] = &got[..] {
            prop_assert!(completed(only.clone()) == whole);
            return Ok(());
        }
        // A hop-by-hop header counts as unfragmentable wherever it stands.
        let l3 = 14 + 4 * whole[12..].chunks(4).take_while(|c| c[0] == 0x81).count();
        let mut from = usize::from(vnet.csum_start);
        if v6 {
            (from, _) = (0..).scan((l3 + 40, whole[l3 + 6]), |(at, next), _| {
                let this = (*at, *next);
                (*next == 0 || *next == 60).then(|| (*at, *next) = (*at + 8, whole[*at]))?;
                Some((*at, this.1))
            }).filter(|(_, kind)| *kind == 0).last().unwrap_or((l3 + 40, 0));
        }
        let inserted = if v6 { 8 } else { 0 };
        let mut datagram: Vec<u8> = Vec::new();
        let count = got.len();
        for (i, (vnet, bytes)) in got.iter().enumerate() {
            prop_assert_eq!(*vnet, VnetHdr::default());
            let (offset, more) = if v6 {
                let word = be16(bytes, from + 2);
                (word & !7, word & 1 != 0)
            } else {
                prop_assert_eq!(sum::sum(&bytes[l3..from]), 0xffff, "header checksum");
                let word = be16(bytes, l3 + 6);
                (word << 3, word & 0x2000 != 0)
            };
            prop_assert_eq!((usize::from(offset), more), (datagram.len(), i + 1 < count));
            let len_at = if v6 { l3 + 4 } else { l3 + 2 };
            prop_assert_eq!(usize::from(be16(bytes, len_at)), bytes.len() - l3 - if v6 { 40 } else { 0 });
            datagram.extend(&bytes[from + inserted..]);
        }
        prop_assert!(datagram == whole[from..]);
    }
}
