//! Frames in, attributes out, and back.

use super::*;
use lasthop_frame::{Depth, SNAPSHOT_LEN, extract};
use proptest::prelude::*;

/// The key of a frame as Open vSwitch is told it.
fn key_of(frame: &[u8]) -> Key {
    let mut key = Key::default();
    extract(&mut key.packet, &frame[..frame.len().min(SNAPSHOT_LEN)], frame.len(), Depth::Full);
    key
}

fn written(key: &Key) -> Vec<u8> {
    let mut writer = Writer::new();
    key.write(&mut writer);
    writer.into_bytes()
}

/// From the addresses on, behind some VLAN tags.
fn frame(tags: &[(u16, u16)], rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(rest);
    frame
}

fn udp() -> Vec<u8> {
    let mut packet = vec![8, 0, 0x45, 3, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend([0x12, 0x34, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]);
    packet
}

#[test]
fn a_key_is_told_in_the_kernels_words() {
    let mut key = key_of(&frame(&[], &udp()));
    key.packet.in_port = 3;
    let mut read: Vec<_> =
        attributes(&written(&key)).map(|a| a.map(|(kind, value)| (kind, value.to_vec())).unwrap()).collect();
    // No connection: its state, zone, mark and label are 0, and it has no tuple.
    let untracked = read.drain(5..9).collect::<Vec<_>>();
    assert_eq!(untracked, [(22, vec![0; 4]), (23, vec![0; 2]), (24, vec![0; 4]), (25, vec![0; 16])]);
    let ether = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    assert_eq!(
        read[3..],
        [
            (IN_PORT, 3u32.to_ne_bytes().to_vec()),
            (SKB_MARK, vec![0; 4]),
            (ETHERNET, ether.to_vec()),
            (ETHERTYPE, vec![8, 0]),
            (IPV4, vec![10, 0, 0, 1, 10, 0, 0, 2, 17, 3, 64, 0]),
            (UDP, vec![0x12, 0x34, 0, 53]),
        ]
    );
}

#[test]
fn tags_nest() {
    let key = key_of(&frame(&[(0x88a8, 7), (0x8100, 0xe009)], &udp()));
    let bytes = written(&key);
    assert_eq!(Key::read(&bytes, None).unwrap().0, key);
    let outer: Vec<_> = attributes(&bytes).map(Result::unwrap).collect();
    assert!(outer.contains(&(ETHERTYPE, &[0x88, 0xa8])) && outer.contains(&(VLAN, &[0x10, 7])));
    let inner: Vec<_> = attributes(outer.last().unwrap().1).map(Result::unwrap).collect();
    assert_eq!(inner[..2], [(ETHERTYPE, &[0x81, 0][..]), (VLAN, &[0xf0, 9])]);
}

#[test]
fn a_mask_that_names_no_tag_means_that_there_is_none() {
    let mut mask = Writer::new();
    mask.number(IN_PORT, u32::MAX);
    mask.attribute(ETHERTYPE, &[0xff; 2]);
    let key = written(&key_of(&frame(&[], &udp())));
    let (key, mask) = Key::read(&key, Some(&mask.into_bytes())).unwrap();
    let tagged = key_of(&frame(&[(0x8100, 5)], &udp()));
    assert_ne!(tagged.masked(&mask), key);
    assert_eq!(key_of(&frame(&[], &udp())).masked(&mask), key);
}

/// As `ovs-vswitchd` 3.1 sends it.
#[test]
fn a_mask_may_name_a_part_of_a_tunnel_and_a_key_may_not() {
    let mut mask = Writer::new();
    mask.nest(16, |to| to.attribute(4, &[0]));
    mask.number(IN_PORT, u32::MAX);
    let (key, mask) = (written(&key_of(&frame(&[], &udp()))), mask.into_bytes());
    assert_eq!(Key::read(&key, Some(&mask)).unwrap().1.packet.in_port, u32::MAX);
    assert_eq!(Key::read(&mask, None), Err(Refused::INVALID));
}

#[test]
fn what_is_not_implemented_is_refused() {
    for unknown in [16, 28, 29, 30, 32, 63, 64, 200] {
        let mut key = Writer::new();
        key.attribute(unknown, &[0; 4]);
        assert_eq!(Key::read(&key.into_bytes(), None), Err(Refused::INVALID), "attribute {unknown}");
    }
    let mut short = Writer::new();
    short.attribute(IPV4, &[0; 11]);
    assert_eq!(Key::read(&short.into_bytes(), None), Err(Refused::RANGE));
}

proptest! {
    /// Whatever frame it is: Open vSwitch is told a key that it can ask for, and means that frame.
    #[test]
    fn a_frames_key_comes_back(
        tags in prop::collection::vec((prop::sample::select(vec![0x8100u16, 0x88a8]), any::<u16>()), 0..3),
        ether_type in prop::sample::select(vec![0x0800u16, 0x86dd, 0x0806, 0x8035, 0x0100, 0x894f, 0x1234]),
        start in prop::sample::select(vec![vec![0x45], vec![0x60], vec![0, 1, 8, 0, 6, 4, 0, 1], vec![0x0f, 0xc6, 1, 3], vec![0x0f, 0xc2, 2, 3], vec![]]),
        rest in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let frame = frame(&tags, &[&ether_type.to_be_bytes()[..], &start, &rest].concat());
        let mut key = key_of(&frame);
        if ether_type == nsh::ETHER_TYPE {
            let packet = frame.get(tags.len() * 4 + 14..).unwrap_or_default();
            key.nsh = nsh::of_packet(packet, packet.len());
        }
        let bytes = written(&key);
        let (back, mask) = Key::read(&bytes, None).unwrap();
        // Which of an ICMP message's neighbours' fields there are goes with its type; anomalies are ours alone.
        let mut meant = key.masked(&mask);
        meant.packet.anomalies = 0;
        prop_assert_eq!((back.packet, back.nsh), (meant.packet, meant.nsh));
        prop_assert_eq!(written(&back), bytes);
    }

    #[test]
    fn any_attributes_are_read(key in prop::collection::vec(any::<u8>(), 0..120), mask in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Ok((key, mask)) = Key::read(&key, Some(&mask)) {
            prop_assert_eq!(key.masked(&mask), key);
        }
        let _ = Key::metadata(&mask);
    }
}
