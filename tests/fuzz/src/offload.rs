//! What a sender asks for and what one receiver gets: nothing that was judged changes, every checksum is right, the
//! pieces of a packet make up the packet, and there is a bound on their number and length.
//!
//! Input: the receiver, then a frame.

use crate::{Input, frames};
use lasthop_frame::{
    Delivery, Depth, FlowKey, MAX_SEGMENTS, Offload, Receiver, SEGMENT_HEADER_LEN, SNAPSHOT_LEN, Segmenter, VnetHdr,
    extract, feature, sum,
};
use lasthop_types::MAX_FRAME_LEN;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let bits = input.u8();
    let choices = [
        feature::GUEST_CSUM,
        feature::GUEST_TSO4,
        feature::GUEST_TSO6,
        feature::GUEST_ECN,
        feature::GUEST_UFO,
        feature::GUEST_USO4 | feature::GUEST_USO6,
    ];
    let features = choices.iter().enumerate().map(|(i, feature)| u64::from(bits >> i & 1) * feature).sum();
    let receiver = Receiver { features, mtu: if bits & 64 != 0 { input.u16() } else { 0 } };
    let (vnet, frame) = frames::frame(&mut input);
    // The switch looks at no others.
    if frame.len() < 14 || frame.len() > MAX_FRAME_LEN {
        return;
    }
    let snapshot = &frame[..frame.len().min(SNAPSHOT_LEN)];
    let Ok(offload) = Offload::check(&vnet, snapshot, frame.len()) else { return };
    if offload == Offload::None {
        assert_eq!(vnet.flags & VnetHdr::F_NEEDS_CSUM, 0);
    }
    let Ok(delivery) = offload.for_receiver(&receiver, snapshot, frame.len()) else { return };
    let l3 = network_header(&frame);
    let fits = |len: usize| receiver.mtu == 0 || len <= l3 + usize::from(receiver.mtu);
    match delivery {
        Delivery::AsIs { vnet } => {
            assert!(
                receiver.takes(feature::GUEST_CSUM) || vnet == VnetHdr::default(),
                "a receiver that cannot complete checksums"
            );
            assert!(vnet.gso_type != VnetHdr::GSO_NONE || fits(frame.len()));
            let again = Offload::check(&vnet, snapshot, frame.len());
            let small =
                if let (Offload::Gso(a), Ok(Offload::Gso(b))) = (&offload, &again) { a.size >= b.size } else { false };
            assert!(small || again == Ok(offload), "{again:?} not {offload:?}");
        }
        Delivery::CompleteChecksum(rest) => {
            assert!(fits(frame.len()));
            let mut whole = frame.clone();
            let (header, payload) = whole.split_at_mut(snapshot.len());
            rest.finish(header, sum::sum(payload));
            let (start, field) = (usize::from(rest.start), usize::from(rest.field));
            let mut expected = frame.clone();
            let checksum = slow_sum(0, &frame[start..]);
            let checksum = if checksum == 0xffff { 0xffff } else { !checksum };
            expected[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
            assert!(whole == expected, "the checksum, and nothing else");
            assert_eq!(key(&whole), key(&frame), "the packet is still what was judged");
        }
        Delivery::Segment(segmenter) => segments(segmenter, &frame, receiver, l3),
    }
}

fn key(frame: &[u8]) -> FlowKey {
    let mut key = FlowKey::default();
    extract(&mut key, &frame[..frame.len().min(SNAPSHOT_LEN)], frame.len(), Depth::Full);
    key
}

fn segments(mut segmenter: Segmenter, frame: &[u8], receiver: Receiver, l3: usize) {
    let snapshot = &frame[..frame.len().min(SNAPSHOT_LEN)];
    let count = segmenter.count();
    assert!((1..=MAX_SEGMENTS).contains(&count));
    if let Some(range) = segmenter.datagram() {
        segmenter.set_datagram_sum(sum::sum(&frame[range]));
    }
    let whole = key(frame);
    let v6 = whole.eth_type == 0x86dd;
    // A routing header hides the address that the checksum is made with.
    let (whole_l4, routed) = transport(frame, l3, &whole);
    let mut stream: Vec<u8> = Vec::new();
    let (mut expect_from, mut first_header) = (0, 0);
    let mut fragments: Vec<u8> = Vec::new();
    for i in 0..count {
        // What an earlier segment left in the buffer must not show.
        let mut buf = [0xee; SEGMENT_HEADER_LEN];
        let segment = segmenter.segment(i, snapshot, &mut buf).expect("a segment");
        let payload = &frame[segment.payload.clone()];
        assert!(i == 0 || segment.payload.start == expect_from, "without gap or overlap");
        if i == 0 {
            first_header = segment.payload.start;
        }
        expect_from = segment.payload.end;
        stream.extend(payload);
        segment.finish(&mut buf, sum::sum(payload));
        let bytes = [&buf[..segment.header_len], payload].concat();
        assert_eq!(bytes.len(), segment.frame_len());
        assert!(bytes.len() <= MAX_FRAME_LEN);
        assert!(receiver.mtu == 0 || bytes.len() <= l3 + usize::from(receiver.mtu));
        assert_eq!(segment.vnet.gso_type, VnetHdr::GSO_NONE);
        assert!(receiver.takes(feature::GUEST_CSUM) || segment.vnet.flags == 0);
        assert_eq!(bytes[..l3], frame[..l3], "the link layer");

        let key = key(&bytes);
        assert_eq!(key.anomalies & !FlowKey::DEEP_VLAN & !FlowKey::MALFORMED_L4, 0, "{key:?}");
        assert_eq!((key.ip_src, key.ip_dst, key.ip_tos), (whole.ip_src, whole.ip_dst, whole.ip_tos));
        let ip_end =
            if v6 { l3 + 40 + usize::from(be16(&bytes, l3 + 4)) } else { l3 + usize::from(be16(&bytes, l3 + 2)) };
        assert_eq!(ip_end, bytes.len(), "the IP length");
        if !v6 {
            let header = usize::from(bytes[l3] & 15) * 4;
            assert_eq!(slow_sum(0, &bytes[l3..l3 + header]), 0xffff, "the IPv4 header checksum");
        }
        if segmenter.datagram().is_some() {
            assert_ne!(key.ip_frag & FlowKey::FRAG_ANY, 0);
            assert_eq!(key.ip_frag & FlowKey::FRAG_LATER != 0, i > 0);
            let from = bytes.len() - payload.len() - if i == 0 { first_header - whole_l4 } else { 0 };
            fragments.extend(&bytes[from.min(bytes.len())..]);
            continue;
        }
        assert_eq!(key.anomalies & FlowKey::MALFORMED_L4, 0);
        assert_eq!((key.l4_src, key.l4_dst, key.ip_proto), (whole.l4_src, whole.l4_dst, whole.ip_proto));
        let (l4, _) = transport(&bytes, l3, &key);
        let mut checked = bytes.clone();
        if segment.vnet.flags & VnetHdr::F_NEEDS_CSUM != 0 {
            let start = usize::from(segment.vnet.csum_start);
            assert_eq!(start, l4);
            let field = start + usize::from(segment.vnet.csum_offset);
            let checksum = !slow_sum(0, &bytes[start..]);
            checked[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        if !routed {
            let len = (checked.len() - l4) as u32;
            let addresses = if v6 { &checked[l3 + 8..l3 + 40] } else { &checked[l3 + 12..l3 + 20] };
            let pseudo = [addresses, &len.to_be_bytes(), &[0, 0, 0, key.ip_proto]].concat();
            assert_eq!(slow_sum(u64::from(slow_sum(0, &pseudo)), &checked[l4..]), 0xffff, "the checksum");
        }
        if whole.ip_proto == 6 {
            let start = segment.payload.start - first_header;
            let sequence = |b: &[u8], l4: usize| u32::from_be_bytes([b[l4 + 4], b[l4 + 5], b[l4 + 6], b[l4 + 7]]);
            assert_eq!(sequence(&bytes, l4), sequence(frame, whole_l4).wrapping_add(start as u32));
        } else {
            assert_eq!(usize::from(be16(&bytes, l4 + 4)), bytes.len() - l4);
        }
    }
    let end = if v6 { l3 + 40 + usize::from(be16(frame, l3 + 4)) } else { l3 + usize::from(be16(frame, l3 + 2)) };
    assert!(stream == frame[first_header..end], "the payload");
    if segmenter.datagram().is_some() {
        // Whole but for the length and the checksum of the UDP header.
        let l4 = whole_l4;
        assert_eq!(fragments.len(), end - l4);
        assert!(fragments[8..] == frame[l4 + 8..end]);
        assert_eq!(usize::from(be16(&fragments, 4)), end - l4);
        if !routed {
            let addresses = if v6 { &frame[l3 + 8..l3 + 40] } else { &frame[l3 + 12..l3 + 20] };
            let pseudo = [addresses, &((end - l4) as u32).to_be_bytes(), &[0, 0, 0, 17]].concat();
            assert_eq!(slow_sum(u64::from(slow_sum(0, &pseudo)), &fragments), 0xffff, "the datagram's checksum");
        }
    }
}

/// Where the network header begins.
fn network_header(frame: &[u8]) -> usize {
    let mut at = 12;
    for _ in 0..2 {
        if matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8])) && frame.len() >= at + 6 {
            at += 4;
        }
    }
    let snap = frame.get(at + 2..at + 8) == Some(&[0xaa, 0xaa, 3, 0, 0, 0]);
    if frame.len() >= at + 10 && be16(frame, at) < 0x600 && snap && be16(frame, at + 8) >= 0x600 {
        at + 10
    } else {
        at + 2
    }
}

/// Where the transport header of a well-formed packet begins, and whether there is a routing header before it.
fn transport(frame: &[u8], l3: usize, key: &FlowKey) -> (usize, bool) {
    if key.eth_type == 0x0800 {
        return (l3 + usize::from(frame[l3] & 15) * 4, false);
    }
    let (mut at, mut next, mut routed) = (l3 + 40, frame[l3 + 6], false);
    loop {
        let len = match next {
            0 | 43 | 60 => 8 * (usize::from(frame[at + 1]) + 1),
            51 => 4 * (usize::from(frame[at + 1]) + 2),
            44 => 8,
            _ => return (at, routed),
        };
        routed |= next == 43;
        (next, at) = (frame[at], at + len);
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Ones' complement sum, word by word (RFC 1071).
fn slow_sum(start: u64, bytes: &[u8]) -> u16 {
    let mut acc = start;
    for pair in bytes.chunks(2) {
        acc += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while acc > 0xffff {
        acc = (acc & 0xffff) + (acc >> 16);
    }
    acc as u16
}
