//! Receive aggregation: what the switch cuts of the packets that a burst has become is the burst, of each connection in
//! order, and no frame is in two packets or in none.
//!
//! Input: for each frame a byte. Of those below 208: its flow and oddity, then its length; a neighbour of the flow's last one.
//! Of the others: a frame as the other targets have it.

use crate::{Input, frames};
use lasthop_aggregation::{BURST, Merger, SNAPSHOT};
use lasthop_frame::testutil::Frame;
use lasthop_frame::{Delivery, HeaderBuf, Offload, Receiver, SNAPSHOT_LEN, VnetHdr, sum};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut burst = Vec::new();
    let mut flows = [(u32::MAX - 500, 7u16); 4];
    while burst.len() < BURST && !input.is_empty() {
        let kind = input.u8();
        let frame = if kind < 208 { neighbour(&mut flows, kind, input.u8()) } else { frames::frame(&mut input).1 };
        // What a buffer of AF_XDP holds.
        if (14..=2000).contains(&frame.len()) {
            burst.push(frame);
        }
    }
    let mut merger = Merger::default();
    merger.clear();
    let mut read = |n: usize, to: &mut [u8]| {
        let len = to.len().min(burst[n].len());
        to[..len].copy_from_slice(&burst[n][..len]);
        len
    };
    for frame in &burst {
        assert!(merger.add(frame.len(), &mut read));
    }
    let mut seen = vec![false; burst.len()];
    let mut out = Vec::new();
    for packet in 0..merger.packets() {
        let (first, more) = merger.first(packet).expect("a packet");
        let mut numbers = vec![first];
        numbers.extend(merger.rest(packet).map(|(n, ..)| n));
        assert_eq!(numbers.len(), more + 1);
        for n in &numbers {
            assert!(!std::mem::replace(&mut seen[*n], true), "frame {n} is in two packets");
        }
        let mut headers = burst[first][..burst[first].len().min(SNAPSHOT)].to_vec();
        match merger.finish(packet, &mut headers) {
            None => {
                assert_eq!(more, 0);
                out.push(burst[first].clone());
            }
            Some((header, len)) => {
                let mut whole = burst[first][..len].to_vec();
                let hdr_len = usize::from(header.hdr_len);
                whole[..hdr_len].copy_from_slice(&headers[..hdr_len]);
                merger.rest(packet).for_each(|(n, from, len)| whole.extend(&burst[n][from..from + len]));
                let cut = cut(&header, &whole);
                assert_eq!(cut.len(), numbers.len());
                for (segment, n) in cut.iter().zip(numbers) {
                    alike(segment, &burst[n]);
                }
                out.extend(cut);
            }
        }
    }
    assert!(seen.iter().all(|s| *s), "a frame is in no packet");
    for flow in 0..4u8 {
        // The last byte of the payload's first two counts a flow's segments.
        let of = |all: &[Vec<u8>]| -> Vec<Vec<u8>> {
            all.iter().filter(|f| f.len() > 56 && f[34..36] == [0x50, flow]).cloned().collect()
        };
        let (before, after) = (of(&burst), of(&out));
        assert_eq!(before.len(), after.len());
        before.iter().zip(&after).for_each(|(b, a)| alike(a, b));
    }
}

/// The next segment of one of four flows, or something near it.
fn neighbour(flows: &mut [(u32, u16); 4], kind: u8, len: u8) -> Vec<u8> {
    let flow = kind & 3;
    let (sequence, id) = &mut flows[usize::from(flow)];
    let payload: Vec<u8> = (0..usize::from(len) * 4).map(|i| i as u8).collect();
    let (mut flags, mut options) = (0x10, vec![1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9]);
    let mut frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).fragment(0x4000);
    match kind >> 2 {
        0 => flags = 0x18,
        1 => flags = 0x11,
        2 => flags = 0x90,
        3 => flags = 0x14,
        4 => *id = id.wrapping_sub(1),
        5 => *sequence = sequence.wrapping_add(1),
        6 => options[11] = 8,
        7 => frame = frame.tos(len),
        8 => frame = frame.ttl(len),
        9 => frame = frame.fragment(0x2000),
        _ => {}
    }
    let frame = frame.id(*id).tcp(0x5000 + u16::from(flow), 80).tcp_fields(flags, *sequence, &options);
    *sequence = sequence.wrapping_add(payload.len() as u32);
    *id = id.wrapping_add(1);
    let frame = frame.payload(payload);
    match kind >> 2 {
        10 => frame.partial_checksum().build(),
        11 => {
            let mut bytes = frame.build();
            let at = usize::from(len) % bytes.len();
            bytes[at] ^= 4;
            bytes
        }
        12 => frame.padding(usize::from(len)).build(),
        _ => frame.build(),
    }
}

fn cut(header: &VnetHdr, packet: &[u8]) -> Vec<Vec<u8>> {
    let snapshot = &packet[..packet.len().min(SNAPSHOT_LEN)];
    let offload = Offload::check(header, snapshot, packet.len()).expect("the switch takes it");
    let receiver = Receiver { features: 0, mtu: 0 };
    let Ok(Delivery::Segment(segmenter)) = offload.for_receiver(&receiver, snapshot, packet.len()) else {
        panic!("not to be cut")
    };
    let segments = (0..segmenter.count()).map(|i| {
        let mut buf: HeaderBuf = [0; _];
        let segment = segmenter.segment(i, snapshot, &mut buf).expect("a segment");
        segment.finish(&mut buf, sum::sum(&packet[segment.payload.clone()]));
        [&buf[..segment.header_len], &packet[segment.payload.clone()]].concat()
    });
    segments.collect()
}

/// The same but for padding behind the packet, an identification without meaning, and an open checksum.
fn alike(after: &[u8], before: &[u8]) {
    assert!(after.len() <= before.len());
    let l3 = match before[12..16] {
        [0x81, 0, ..] if before[16..18] == [0x81, 0] => 22,
        [0x81, 0, ..] => 18,
        _ => 14,
    };
    let ipv6 = before.get(l3).is_some_and(|b| b >> 4 == 6);
    let l4 = l3 + if ipv6 { 40 } else { 20 };
    let udp = before.get(l3 + if ipv6 { 6 } else { 9 }) == Some(&17);
    let sum = l4 + if udp { 6 } else { 16 };
    let may_differ = |at: usize| {
        let dont_fragment = !ipv6 && before.get(l3 + 6).is_some_and(|b| b & 0x40 != 0);
        (dont_fragment && ([4, 5, 10, 11].contains(&at.wrapping_sub(l3)))) || [sum, sum + 1].contains(&at)
    };
    for (at, (a, b)) in after.iter().zip(before).enumerate() {
        assert!(a == b || may_differ(at), "byte {at}: {a:#x}, was {b:#x}");
    }
}
