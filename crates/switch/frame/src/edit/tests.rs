use super::*;
use crate::testutil::Frame;
use crate::{Depth, FlowKey, HEADROOM, SNAPSHOT_LEN, VnetHdr, extract};
use proptest::prelude::*;

mod sets;

fn header(frame: &[u8]) -> Header {
    let mut header = Header::default();
    let len = frame.len().min(SNAPSHOT_LEN);
    header.restart(len).copy_from_slice(&frame[..len]);
    header
}

/// What a frame becomes.
fn edited(frame: &[u8], edits: &[Edit]) -> Result<Vec<u8>, DropReason> {
    let (mut header, mut offload) = (header(frame), Offload::None);
    let payload = &frame[header.len()..];
    edits.iter().try_for_each(|edit| edit.apply(&mut header, &mut offload, payload.len()))?;
    Ok([header.bytes(), payload].concat())
}

const fn push(tpid: u16, tci: u16) -> Edit {
    Edit::PushVlan { tpid, tci }
}

fn tcp() -> Frame {
    Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1000, 80).payload([7; 3000])
}

#[test]
fn tags_are_those_that_a_sender_would_have_written() {
    let plain = Frame::new(1, 2).ether_type(0x88b5).payload([9; 300]);
    let (frame, tagged) = (plain.build(), plain.clone().tag(0x8100, 0xa00c).build());
    let twice = plain.tag(0x88a8, 7).tag(0x8100, 0xa00c).build();
    assert_eq!(edited(&frame, &[push(0x8100, 0xa00c)]), Ok(tagged.clone()));
    assert_eq!(edited(&frame, &[push(0x8100, 0xa00c), push(0x88a8, 7)]), Ok(twice.clone()));
    assert_eq!(edited(&twice, &[Edit::PopVlan]), Ok(tagged));
    assert_eq!(edited(&twice, &[Edit::PopVlan, Edit::PopVlan]), Ok(frame.clone()));
    assert_eq!(edited(&frame, &[Edit::PopVlan]), Ok(frame));
}

#[test]
fn a_tag_cut_short_is_none() {
    for len in 14..18 {
        let frame = &Frame::new(1, 2).tag(0x8100, 5).payload([0; 4]).build()[..len];
        assert_eq!(edited(frame, &[Edit::PopVlan]).as_deref(), Ok(frame), "{len} bytes");
        let mut key = FlowKey::default();
        extract(&mut key, frame, len, Depth::Full);
        assert_eq!(key.vlan_tci, 0, "the key knows none either");
    }
}

#[test]
fn what_is_no_tag_and_what_finds_no_room_is_refused_and_changes_nothing() {
    let frame = tcp().build();
    assert_eq!(edited(&frame, &[push(0x0800, 1)]), Err(DropReason::BadAction));
    let (mut header, mut offload) = (header(&frame), Offload::None);
    for n in 0..HEADROOM / 4 {
        assert_eq!(push(0x8100, n as u16).apply(&mut header, &mut offload, 0), Ok(()));
    }
    let full = header.bytes().to_vec();
    assert_eq!(push(0x8100, 1).apply(&mut header, &mut offload, 0), Err(DropReason::BadAction));
    assert_eq!(header.bytes(), full);
}

/// An offload request is that of a sender who had sent what the edits made.
#[test]
fn an_offload_request_moves_with_its_headers() {
    let v6 = Frame::new(1, 2).ipv6([3; 16], [4; 16]).extension(60, &[0; 7]).udp(1000, 80).payload([7; 3000]);
    let tcp = tcp();
    for (frame, gso_type, size) in [
        (&tcp, VnetHdr::GSO_NONE, 0),
        (&tcp, VnetHdr::GSO_TCPV4, 1000),
        (&v6, VnetHdr::GSO_NONE, 0),
        (&v6, VnetHdr::GSO_UDP, 1000),
        (&v6, VnetHdr::GSO_UDP_L4, 1000),
    ] {
        let plain = frame.clone().partial_checksum();
        let tagged = plain.clone().tag(0x88a8, 7).tag(0x8100, 12);
        let of = |frame: &Frame| {
            let bytes = frame.build();
            let header = header(&bytes);
            let offload = Offload::check(&frame.vnet(gso_type, size), header.bytes(), bytes.len()).unwrap();
            (header, offload)
        };
        let (mut header, mut offload) = of(&plain);
        let (tagged_header, tagged_offload) = of(&tagged);
        for edit in [push(0x8100, 12), push(0x88a8, 7)] {
            edit.apply(&mut header, &mut offload, 0).unwrap();
        }
        assert_eq!(offload, tagged_offload);
        assert_eq!(header.bytes()[..tagged_header.len()], *tagged_header.bytes());
        for _ in 0..2 {
            Edit::PopVlan.apply(&mut header, &mut offload, 0).unwrap();
        }
        assert_eq!((offload, header.bytes()), (of(&plain).1, of(&plain).0.bytes()));
    }
}

proptest! {
    /// Whatever the bytes: what was pushed is found in the key and can be popped again.
    #[test]
    fn what_is_pushed_is_known_and_can_be_popped(
        bytes in proptest::collection::vec(any::<u8>(), 14..400),
        stag in any::<bool>(),
        tci in any::<u16>(),
    ) {
        let tpid = if stag { 0x88a8 } else { 0x8100 };
        let pushed = edited(&bytes, &[push(tpid, tci)]).unwrap();
        prop_assert_eq!(pushed.len(), bytes.len() + 4);
        let mut key = FlowKey::default();
        extract(&mut key, &pushed[..pushed.len().min(SNAPSHOT_LEN)], pushed.len(), Depth::L2);
        prop_assert_eq!((key.vlan_tpid, key.vlan_tci), (tpid, tci | FlowKey::VLAN_PRESENT));
        prop_assert_eq!(edited(&bytes, &[push(tpid, tci), Edit::PopVlan]).unwrap(), bytes);
    }
}
