use super::*;
use lasthop_frame::testutil::Frame;
use lasthop_frame::{Delivery, HeaderBuf, Offload, Receiver, SNAPSHOT_LEN};
use proptest::prelude::*;

const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];

/// What came out of a burst: packets with their headers.
fn merge(frames: &[Vec<u8>]) -> Vec<(Option<VnetHdr>, Vec<u8>)> {
    let mut merger = Merger::default();
    // What an earlier burst left makes no difference.
    for frames in [frames, &[], frames] {
        merger.clear();
        let mut read = |n: usize, to: &mut [u8]| {
            let len = to.len().min(frames[n].len());
            to[..len].copy_from_slice(&frames[n][..len]);
            len
        };
        for frame in frames {
            assert!(merger.add(frame.len(), &mut read));
        }
    }
    let mut seen = vec![false; frames.len()];
    let packets = (0..merger.packets()).map(|packet| {
        let (first, more) = merger.first(packet).unwrap();
        assert!(!std::mem::replace(&mut seen[first], true));
        let mut headers = frames[first][..frames[first].len().min(SNAPSHOT)].to_vec();
        let Some((header, len)) = merger.finish(packet, &mut headers) else {
            assert_eq!((more, merger.rest(packet).count()), (0, 0));
            return (None, frames[first].clone());
        };
        let mut whole = frames[first][..len].to_vec();
        let hdr_len = usize::from(header.hdr_len);
        whole[..hdr_len].copy_from_slice(&headers[..hdr_len]);
        assert_eq!(merger.rest(packet).count(), more);
        for (n, from, len) in merger.rest(packet) {
            assert!(!std::mem::replace(&mut seen[n], true));
            whole.extend(&frames[n][from..from + len]);
        }
        (Some(header), whole)
    });
    let packets: Vec<_> = packets.collect();
    assert!(seen.iter().all(|s| *s), "a frame is gone");
    packets
}

/// What the switch makes of a packet for a receiver without any offload.
fn cut((header, packet): &(Option<VnetHdr>, Vec<u8>)) -> Vec<Vec<u8>> {
    let Some(header) = header else { return vec![packet.clone()] };
    let snapshot = &packet[..packet.len().min(SNAPSHOT_LEN)];
    let offload = Offload::check(header, snapshot, packet.len()).expect("the switch takes it");
    let receiver = Receiver { features: 0, mtu: 0 };
    let Delivery::Segment(segmenter) = offload.for_receiver(&receiver, snapshot, packet.len()).unwrap() else {
        panic!("not to be cut")
    };
    let segments = (0..segmenter.count()).map(|i| {
        let mut buf: HeaderBuf = [0; _];
        let segment = segmenter.segment(i, snapshot, &mut buf).unwrap();
        segment.finish(&mut buf, sum::sum(&packet[segment.payload.clone()]));
        [&buf[..segment.header_len], &packet[segment.payload.clone()]].concat()
    });
    segments.collect()
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    ipv6: bool,
    vlan: bool,
    timestamps: bool,
    port: u16,
}

impl Stream {
    const PLAIN: Self = Self { ipv6: false, vlan: false, timestamps: true, port: 5000 };

    /// The headers below, the `n`th of its flow.
    fn packet(self, n: u16) -> Frame {
        let frame = Frame::new(1, 2);
        let frame = if self.vlan { frame.vlan(5) } else { frame };
        if self.ipv6 {
            frame.ipv6([0xfd; 16], [0xfe; 16])
        } else {
            frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).fragment(0x4000).id(n)
        }
    }

    fn segment(self, n: u16, sequence: u32, flags: u16, payload: &[u8]) -> Frame {
        let options = if self.timestamps { &TIMESTAMPS[..] } else { &[] };
        self.packet(n).tcp(self.port, 80).tcp_fields(flags, sequence, options).payload(payload)
    }

    fn datagram(self, n: u16, payload: &[u8]) -> Frame {
        self.packet(n).udp(self.port, 80).payload(payload)
    }

    /// Datagrams of these lengths.
    fn datagrams(self, lens: &[usize]) -> Vec<Vec<u8>> {
        let payload = |n: usize, len: usize| (0..len).map(|i| (i * 7 + n) as u8).collect::<Vec<_>>();
        lens.iter().enumerate().map(|(n, len)| self.datagram(n as u16, &payload(n, *len)).build()).collect()
    }

    /// Segments of these lengths, one behind the other.
    fn run(self, lens: &[usize]) -> Vec<Vec<u8>> {
        let mut sequence = u32::MAX - 2000;
        let frames = lens.iter().enumerate().map(|(n, len)| {
            let payload: Vec<u8> = (0..*len).map(|i| (i * 7 + n) as u8).collect();
            let frame = self.segment((n as u16).wrapping_sub(2), sequence, 0x10, &payload).build();
            sequence = sequence.wrapping_add(*len as u32);
            frame
        });
        frames.collect()
    }
}

fn lens(packets: &[(Option<VnetHdr>, Vec<u8>)]) -> Vec<usize> {
    packets.iter().map(|p| cut(p).len()).collect()
}

#[test]
fn a_run_of_segments_is_one_packet_and_cut_again_they_are_the_same() {
    for ipv6 in [false, true] {
        for vlan in [false, true] {
            for timestamps in [false, true] {
                let stream = Stream { ipv6, vlan, timestamps, port: 9 };
                let frames = stream.run(&[1448, 1448, 1448, 1448, 77]);
                let packets = merge(&frames);
                assert_eq!(packets.len(), 1, "{stream:?}");
                let header = packets[0].0.unwrap();
                let kind = if ipv6 { VnetHdr::GSO_TCPV6 } else { VnetHdr::GSO_TCPV4 };
                assert_eq!((header.gso_type, header.gso_size), (kind, 1448));
                assert_eq!(cut(&packets[0]), frames);
            }
        }
    }
}

/// What is merged here is what the kernel merges: of such a packet alone as much is known as of its parts.
#[test]
fn a_packet_that_was_merged_elsewhere_is_known_by_its_open_checksum() {
    for (ipv6, vlan) in [(false, false), (false, true), (true, false), (true, true)] {
        let stream = Stream { ipv6, vlan, ..Stream::PLAIN };
        for frames in [stream.run(&[1200; 40]), stream.datagrams(&[1200; 40]), stream.run(&[1200])] {
            let (merged, mut whole) = merge(&frames).remove(0);
            assert_eq!(opened(&frames[0][..SNAPSHOT], frames[0].len(), 1200), None, "its checksum is complete");
            let Some(merged) = merged else { continue };
            let hdr_len = usize::from(merged.hdr_len);
            let known = opened(&whole[..SNAPSHOT], whole.len(), 1200).expect("it is open");
            if merged.gso_type == VnetHdr::GSO_UDP_L4 {
                assert_eq!(
                    known,
                    VnetHdr { gso_type: VnetHdr::GSO_NONE, gso_size: 0, ..merged },
                    "one datagram, as far as is known"
                );
            } else {
                assert_eq!(known, merged);
            }
            let short = opened(&whole[..SNAPSHOT], whole.len(), u16::MAX).expect("it is open");
            assert_eq!((short.gso_type, short.gso_size, short.csum_start), (VnetHdr::GSO_NONE, 0, merged.csum_start));
            whole[hdr_len - 20] ^= 1;
            assert_eq!(opened(&whole[..hdr_len], whole.len() - 1, 1200), None, "a part of the packet is missing");
        }
    }
}

#[test]
fn datagrams_of_one_size_are_one_packet_and_cut_again_they_are_the_same() {
    for ipv6 in [false, true] {
        for vlan in [false, true] {
            let stream = Stream { ipv6, vlan, ..Stream::PLAIN };
            let frames = stream.datagrams(&[1200, 1200, 1200, 1200, 77]);
            let packets = merge(&frames);
            assert_eq!(packets.len(), 1, "{stream:?}");
            let header = packets[0].0.unwrap();
            assert_eq!((header.gso_type, header.gso_size), (VnetHdr::GSO_UDP_L4, 1200));
            assert_eq!((header.hdr_len - header.csum_start, header.csum_offset), (8, 6));
            assert_eq!(cut(&packets[0]), frames);
            // A shorter one ends a packet, a longer one begins one.
            for (sizes, expected) in [
                (&[500, 500, 300, 500, 500][..], &[3, 2][..]),
                (&[500, 501, 500, 501], &[1, 2, 1]),
                (&[500, 0, 500, 500], &[1, 1, 2]),
                (&[100; BURST], &[BURST]),
            ] {
                let frames = stream.datagrams(sizes);
                let packets = merge(&frames);
                assert_eq!(lens(&packets), expected, "{sizes:?}");
                assert_eq!(packets.iter().flat_map(cut).collect::<Vec<_>>(), frames);
            }
        }
    }
    let frames = Stream::PLAIN.datagrams(&[1472; BURST]);
    assert_eq!(lens(&merge(&frames)), [44, 20], "no more than 64 KiB");
}

#[test]
fn datagrams_that_do_not_belong_together_stay_apart_and_in_order() {
    let s = Stream::PLAIN;
    let frame = |n: u16| s.datagram(n, &[n as u8; 100]);
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = frame(1).build();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    for (what, middle) in [
        ("no checksum", changed(40, &[0, 0])),
        ("a wrong checksum", changed(50, &[77])),
        ("shorter than its IP packet", changed(38, &100u16.to_be_bytes())),
        ("longer than its IP packet", changed(38, &200u16.to_be_bytes())),
        ("shorter than its header", changed(38, &7u16.to_be_bytes())),
        ("another TTL", frame(1).ttl(9).build()),
        ("another identification", frame(1).id(77).build()),
        ("a fragment", frame(1).fragment(0x2000).build()),
        ("IP options", frame(1).ip_options(&[1, 1, 1, 1]).build()),
    ] {
        let frames = vec![frame(0).build(), middle, frame(2).build(), frame(3).build()];
        let packets = merge(&frames);
        assert_eq!(lens(&packets), [1, 1, 2], "{what}");
        assert_eq!(packets.iter().flat_map(cut).collect::<Vec<_>>(), frames, "{what}");
    }
    // The ports of a TCP connection, in turns with its segments.
    let (tcp, udp) = (s.run(&[200; 3]), s.datagrams(&[200; 3]));
    let packets = merge(&tcp.iter().zip(&udp).flat_map(|(t, u)| [t.clone(), u.clone()]).collect::<Vec<_>>());
    assert_eq!(packets.iter().map(cut).collect::<Vec<_>>(), [tcp, udp]);
    // Sums that are open.
    let open: Vec<_> = (0..3).map(|n| frame(n).partial_checksum().build()).collect();
    let summed: Vec<_> = (0..3).map(|n| frame(n).build()).collect();
    assert_eq!(merge(&open).iter().map(cut).collect::<Vec<_>>(), [summed]);
}

#[test]
fn open_checksums_are_known_and_wrong_ones_left_alone() {
    let stream = Stream::PLAIN;
    let open: Vec<_> = (0..3u16)
        .map(|n| stream.segment(n, 1000 + 100 * u32::from(n), 0x10, &[5; 100]).partial_checksum().build())
        .collect();
    let packets = merge(&open);
    assert_eq!(lens(&packets), [3]);
    // Cut again, they are summed.
    let summed: Vec<_> =
        (0..3u16).map(|n| stream.segment(n, 1000 + 100 * u32::from(n), 0x10, &[5; 100]).build()).collect();
    assert_eq!(cut(&packets[0]), summed);
    for wrong in 0..4 {
        let mut frames = stream.run(&[500; 4]);
        *frames[wrong].last_mut().unwrap() ^= 1;
        let packets = merge(&frames);
        let expected: &[usize] = match wrong {
            0 => &[1, 3],
            1 => &[1, 1, 2],
            2 => &[2, 1, 1],
            _ => &[3, 1],
        };
        assert_eq!(lens(&packets), expected, "{wrong}");
        assert_eq!(packets.iter().flat_map(cut).collect::<Vec<_>>(), frames);
        let mut frames = stream.run(&[500; 4]);
        frames[wrong][24] ^= 1;
        assert_eq!(merge(&frames).iter().flat_map(cut).collect::<Vec<_>>(), frames, "IPv4 checksum of {wrong}");
    }
}

#[test]
fn what_ends_a_packet_and_what_begins_one() {
    let s = Stream::PLAIN;
    let at = |n: u16, flags: u16| s.segment(n, 1000 + 100 * u32::from(n), flags, &[n as u8; 100]).build();
    let (ack, psh, fin, cwr, ece, urg, syn) = (0x10, 0x18, 0x11, 0x90, 0x50, 0x30, 0x12);
    for (flags, expected) in [
        (&[ack, ack, psh, ack, ack][..], &[3, 2][..]),
        (&[psh, ack, ack], &[1, 2]),
        (&[ack, fin, ack], &[2, 1]),
        (&[cwr, ack, ack], &[3]),
        (&[ack, cwr, ack], &[1, 2]),
        (&[ack, ece, ece], &[1, 2]),
        (&[ack, urg, ack], &[1, 1, 1]),
        (&[syn, ack, ack], &[1, 2]),
        (&[ack, ack, 0x14, ack], &[2, 1, 1]),
    ] {
        let frames: Vec<_> = flags.iter().enumerate().map(|(n, f)| at(n as u16, *f)).collect();
        let packets = merge(&frames);
        assert_eq!(lens(&packets), expected, "{flags:x?}");
        assert_eq!(packets.iter().flat_map(cut).collect::<Vec<_>>(), frames, "{flags:x?}");
    }
    let whole = merge(&[at(0, cwr), at(1, ack)])[0].0.unwrap();
    assert_eq!(whole.gso_type, VnetHdr::GSO_TCPV4 | VnetHdr::GSO_ECN);
}

#[test]
fn what_does_not_belong_together_stays_apart_and_in_order() {
    let s = Stream::PLAIN;
    let base = |n: u16| s.segment(n, 1000 + 100 * u32::from(n), 0x10, &[n as u8; 100]);
    let b = |n: u16| base(n).build();
    let mut window = b(1);
    window[14 + 20 + 14] ^= 1;
    let fixed = |mut f: Vec<u8>, at: usize, len: usize| {
        // The checksum of what was changed.
        f[at..at + 2].fill(0);
        let pseudo = sum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, len as u16);
        let value = sum::finish(pseudo + sum::sum(&f[34..34 + len]));
        f[at..at + 2].copy_from_slice(&value.to_be_bytes());
        f
    };
    let other_mac = |n: u16| {
        let mut f = b(n);
        f[0] ^= 2;
        f
    };
    for (what, middle) in [
        ("another window", fixed(window, 50, 132)),
        ("another TTL", base(1).ttl(9).build()),
        ("another traffic class", base(1).tos(3).build()),
        ("another identification", base(1).id(77).build()),
        ("may be fragmented", base(1).fragment(0).build()),
        ("a fragment", base(1).fragment(0x2000).build()),
        ("IP options", base(1).ip_options(&[1, 1, 1, 1]).build()),
        ("another address", other_mac(1)),
        ("a gap", b(2)),
        ("twice the same", b(0)),
        (
            "other options",
            s.segment(1, 1100, 0x10, &[])
                .tcp_fields(0x10, 1100, &[1, 1, 8, 10, 0, 0, 0, 8, 0, 0, 0, 9])
                .payload([1; 100])
                .build(),
        ),
        ("nothing in it", s.segment(1, 1100, 0x10, &[]).build()),
        ("more than the first", s.segment(1, 1100, 0x10, &[1; 101]).build()),
    ] {
        let frames = vec![b(0), middle, b(1), b(2)];
        let packets = merge(&frames);
        assert!(packets.len() >= 2, "{what}");
        assert_eq!(packets.iter().flat_map(cut).collect::<Vec<_>>(), frames, "{what}");
    }
}

#[test]
fn identifications_may_all_be_the_same_where_they_mean_nothing() {
    let s = Stream::PLAIN;
    let frame = |n: u16, id: u16| s.segment(id, 1000 + 100 * u32::from(n), 0x10, &[0; 100]);
    let all: Vec<_> = (0..4).map(|n| frame(n, 0).build()).collect();
    assert_eq!(merge(&all).len(), 1);
    let meaning: Vec<_> = (0..4).map(|n| frame(n, 0).fragment(0).build()).collect();
    assert_eq!(merge(&meaning).len(), 4);
    // One way or the other, not both.
    let both: Vec<_> = [0, 0, 2].into_iter().enumerate().map(|(n, id)| frame(n as u16, id).build()).collect();
    assert_eq!(merge(&both).len(), 2);
}

#[test]
fn padding_is_no_payload() {
    let s = Stream { timestamps: false, ..Stream::PLAIN };
    let frames: Vec<_> =
        (0..3u16).map(|n| s.segment(n, 1000 + u32::from(n), 0x10, &[n as u8]).padding(5).build()).collect();
    let packets = merge(&frames);
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].1[54..], [0, 1, 2]);
}

#[test]
fn a_packet_stays_within_64_kib_and_flows_are_followed_side_by_side() {
    let frames = Stream::PLAIN.run(&[1448; BURST]);
    let packets = merge(&frames);
    assert_eq!(lens(&packets), [45, 19]);
    assert!(packets.iter().all(|p| p.1.len() <= 14 + MOST));
    assert_eq!(packets.iter().flat_map(cut).collect::<Vec<_>>(), frames);
    // As many flows as are followed, in turns; then one more.
    for (flows, packets) in [(FLOWS, FLOWS), (FLOWS + 1, 6 * (FLOWS + 1))] {
        let streams: Vec<_> =
            (0..flows).map(|f| Stream { port: f as u16 + 1, ..Stream::PLAIN }.run(&[100; 6])).collect();
        let turns: Vec<_> = (0..6).flat_map(|n| streams.iter().map(move |s| s[n].clone())).collect();
        let merged = merge(&turns);
        assert!(merged.len() >= flows && merged.len() <= packets, "{} of {flows}", merged.len());
        for stream in &streams {
            let of = |f: &Vec<u8>| f[34..36] == stream[0][34..36];
            assert_eq!(merged.iter().flat_map(cut).filter(of).collect::<Vec<_>>(), *stream);
        }
    }
}

/// Segments and datagrams of a few flows, in order or not, well formed or not.
fn burst() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let kind = (any::<bool>(), any::<bool>());
    let one = (0..3u16, kind, any::<bool>(), 0..4u8, 1..300usize, 0..40u8, any::<u16>());
    proptest::collection::vec(one, 0..BURST).prop_map(|all| {
        let mut at = [0u32; 12];
        let mut ids = [0u16; 12];
        let frames = all.into_iter().map(|(flow, (ipv6, udp), whole, tos, len, oddity, where_)| {
            let stream = Stream { ipv6, vlan: flow == 2, timestamps: flow > 0, port: flow };
            let f = usize::from(flow) + if ipv6 { 3 } else { 0 } + if udp { 6 } else { 0 };
            let len = if whole { 100 } else { len };
            let flags = match oddity {
                0 => 0x18,
                1 => 0x11,
                2 => 0x90,
                3 => 0x14,
                _ => 0x10,
            };
            let payload = vec![oddity; len];
            let frame =
                if udp { stream.datagram(ids[f], &payload) } else { stream.segment(ids[f], at[f], flags, &payload) };
            (at[f], ids[f]) = (at[f].wrapping_add(len as u32), ids[f].wrapping_add(1));
            let frame = if oddity == 4 { frame.tos(tos) } else { frame };
            let mut bytes = frame.build();
            match oddity {
                5 => bytes.truncate(usize::from(where_) % bytes.len() + 1),
                6..9 => {
                    let at = usize::from(where_) % bytes.len();
                    bytes[at] ^= 1 << (oddity - 5);
                }
                9 => at[f] = at[f].wrapping_add(1),
                _ => {}
            }
            bytes
        });
        frames.collect()
    })
}

proptest! {
    /// Whatever comes: of each flow the same frames come out, in the same order.
    #[test]
    fn cut_again_all_is_as_it_was(frames in burst()) {
        let out: Vec<_> = merge(&frames).iter().flat_map(cut).collect();
        prop_assert_eq!(out.len(), frames.len());
        let (mut sorted_in, mut sorted_out) = (frames.clone(), out.clone());
        sorted_in.sort();
        sorted_out.sort();
        prop_assert_eq!(sorted_in, sorted_out);
        let flow = |f: &Vec<u8>| {
            let l3 = if f.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 };
            let ipv6 = f.get(l3).is_some_and(|v| v >> 4 == 6);
            let (protocol, addresses, l4) = if ipv6 { (l3 + 6, l3 + 8, l3 + 40) } else { (l3 + 9, l3 + 12, l3 + 20) };
            // Damage may have made another flow of it.
            let parts = [l3 - 2..l3, protocol..protocol + 1, addresses..l4 + 4];
            (l3, parts.map(|part| f.get(part).map(<[u8]>::to_vec)))
        };
        for frame in &frames {
            let key = flow(frame);
            let of = |all: &[Vec<u8>]| all.iter().filter(|f| flow(f) == key).cloned().collect::<Vec<_>>();
            prop_assert_eq!(of(&frames), of(&out));
        }
    }

    #[test]
    fn garbage_is_left_alone(frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 14..200), 0..BURST)) {
        prop_assert_eq!(merge(&frames).len(), frames.len());
    }
}
