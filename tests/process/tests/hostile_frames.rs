//! A guest's frames: however malformed above the Ethernet header, a learning switch delivers them as they are, by
//! their addresses; what it cannot deliver it counts. Nobody else's frames change their way because of them.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Arena, Guest, Options, PATIENCE, mac, number_of, numbered, wait_for};
use lasthop_text::MacAddr;
use std::time::Duration;

/// Sends frames to the witness one after another; each must arrive as it is.
fn all_arrive(arena: &mut Arena, guest: &mut Guest, frames: &[Vec<u8>]) {
    for (i, frame) in frames.iter().enumerate() {
        guest.send(frame);
        let (_, got) = arena.witness.recv(&format!("frame {i}"), |_, f| number_of(f).is_none());
        assert_eq!(&got, frame, "frame {i}");
    }
}

/// A frame from the attacker to the witness with this type and content.
fn with(ether_type: u16, content: &[u8]) -> Vec<u8> {
    let mut frame = Frame::between(mac(0x66), mac(0x77)).ether_type(ether_type).build();
    frame.extend(content);
    frame
}

fn to_witness() -> Frame {
    Frame::between(mac(0x66), mac(0x77))
}

/// P1: under 14 bytes is no frame; cut anywhere behind that is.
#[test]
fn p1_short_frames() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("P1");
    let mut guest = arena.guest(Options::default());
    arena.works(&mut guest);
    let before = arena.drops("x", "from_guest", "too_short");
    for len in 0..14 {
        guest.send(&numbered(mac(0x66), mac(0x77), 1, 60)[..len]);
    }
    wait_for("the drops to be counted", PATIENCE, || arena.drops("x", "from_guest", "too_short") == before + 14);
    let whole = [
        to_witness().vlan(5).ipv4([1, 2, 3, 4], [5, 6, 7, 8]).ip_options(&[1; 8]).tcp(1, 2).payload(vec![9; 8]).build(),
        to_witness().ipv6([1; 16], [2; 16]).extension(0, &[0; 7]).extension(44, &[0; 7]).udp(1, 2).build(),
        to_witness().ipv6([1; 16], [2; 16]).icmp(135, 0).payload(vec![0; 30]).build(),
        lasthop_frame::testutil::arp(2, (mac(0x66), [1; 4]), (mac(0x77), [2; 4])),
    ];
    for frame in &whole {
        let cut: Vec<Vec<u8>> = (14..frame.len()).map(|len| frame[..len].to_vec()).collect();
        all_arrive(&mut arena, &mut guest, &cut);
    }
    arena.works(&mut guest);
    drop(guest);
    arena.end(&attack, &[]);
}

/// P2 to P7: padding, protocols, extension headers, option lengths, lengths that lie, fragments, stacks of tags.
#[test]
fn p2_to_p7_headers_that_lie() {
    let mut arena = Arena::new(true);
    let attack = arena.begin("P2-P7");
    let mut guest = arena.guest(Options::default());
    arena.works(&mut guest);
    let (v4a, v4b, v6a, v6b) = ([10, 0, 0, 1], [10, 0, 0, 2], [0xfe; 16], [0xfd; 16]);
    let mut frames = Vec::new();
    // P2
    for padding in [1, 255, 256, 600, 1400] {
        frames.push(to_witness().ipv4(v4a, v4b).udp(1, 2).padding(padding).build());
        frames.push(to_witness().ipv6(v6a, v6b).tcp(1, 2).padding(padding).build());
    }
    // P3
    for protocol in [0, 1, 43, 44, 50, 51, 59, 60, 135, 255] {
        frames.push(to_witness().ipv4(v4a, v4b).protocol(protocol).payload(vec![0; 20]).build());
        frames.push(to_witness().ipv6(v6a, v6b).protocol(protocol).payload(vec![0; 20]).build());
        frames.push(to_witness().ipv6(v6a, v6b).extension(0, &[255; 7]).protocol(protocol).build());
        frames.push(to_witness().ipv6(v6a, v6b).extension(0, &[0; 7]).extension(0, &[0; 7]).protocol(protocol).build());
    }
    let chain = (0..60).fold(to_witness().ipv6(v6a, v6b), |f, _| f.extension(60, &[0; 7]));
    frames.push(chain.udp(1, 2).build());
    // P4: option lengths 0, 255, beyond the end.
    for (kind, len) in [(1u8, 0u8), (1, 255), (2, 2), (14, 1)] {
        let option = [&[0; 4][..], &v6b, &[kind, len, 1, 2, 3, 4, 5, 6]].concat();
        for icmp in [135, 136] {
            frames.push(to_witness().ipv6(v6a, v6b).ttl(255).icmp(icmp, 0).payload(option.clone()).build());
        }
    }
    // P5: IP total length below the header, above the frame; header length below 20, above the frame.
    let udp = to_witness().ipv4(v4a, v4b).udp(53, 53).payload(vec![3; 30]).build();
    for (at, value) in [(16, 0), (16, 5), (16, 19), (16, 21), (16, 0x05dc), (16, 0xffff)] {
        let mut frame = udp.clone();
        frame[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
        frames.push(frame);
    }
    for first in [0x40, 0x44, 0x4f, 0x55, 0x65, 0x05] {
        let mut frame = udp.clone();
        frame[14] = first;
        frames.push(frame);
    }
    let v6 = to_witness().ipv6(v6a, v6b).udp(53, 53).payload(vec![3; 30]).build();
    for len in [0u16, 1, 7, 0xffff] {
        let mut frame = v6.clone();
        frame[18..20].copy_from_slice(&len.to_be_bytes());
        frames.push(frame);
    }
    // P6: first (also one too small for its ports), later, overlapping.
    for fragment in [0x2000, 0x2001, 0x00b9, 0x1fff, 0x3fff, 0xffff] {
        for len in [0, 1, 4, 8, 1000] {
            frames.push(to_witness().ipv4(v4a, v4b).fragment(fragment).protocol(17).payload(vec![5; len]).build());
        }
    }
    // P7: stacks of tags, ended and cut off.
    for tags in [1, 2, 3, 10, 100] {
        let frame = (0..tags).fold(to_witness(), |f, i| f.tag(if i % 2 == 0 { 0x88a8 } else { 0x8100 }, i));
        let frame = frame.ipv4(v4a, v4b).udp(1, 2).build();
        let cut = frame[..12 + 4 * usize::from(tags)].to_vec();
        frames.push(frame);
        if cut.len() >= 14 {
            frames.push(cut);
        }
    }
    for labels in [1, 3, 100] {
        frames.push(with(0x8847, &[0, 0, 0x10, 64].repeat(labels)));
        frames.push(with(0x8847, &[0, 0, 0x11, 64].repeat(labels)));
    }
    // The first of each VLAN is flooded: the witness gets it either way.
    all_arrive(&mut arena, &mut guest, &frames);
    arena.works(&mut guest);
    drop(guest);
    arena.end(&attack, &[]);
}

/// P8: headers chosen at random do not make more flows, and known flows stay fast enough to lose nothing.
#[test]
fn p8_random_headers() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("P8");
    let mut guest = arena.guest(Options::default());
    arena.works(&mut guest);
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..20_000u32 {
        let mut frame = match random() % 3 {
            0 => to_witness().ipv4([0; 4], [0; 4]).tcp(0, 0),
            1 => to_witness().ipv6([0; 16], [0; 16]).udp(0, 0),
            _ => to_witness().ipv4([0; 4], [0; 4]).icmp(0, 0),
        }
        .build();
        frame[14..].fill_with(|| random() as u8);
        guest.try_send(VnetHdr::default(), &frame);
        while arena.witness.try_recv().is_some() {}
    }
    arena.bystanders.still_exchange();
    let flows = arena.lasthop.json(&["flow", "list"])["flows"].as_array().unwrap().len();
    assert!(flows < 20, "{flows} flows");
    arena.witness.drain();
    arena.works(&mut guest);
    drop(guest);
    arena.end(&attack, &[]);
}

/// P9: sources that may not be; a neighbour's address; and more addresses than a port may have.
#[test]
fn p9_sources() {
    let mut arena = Arena::new(false);
    // A flow for each of 4096 addresses.
    let attack = arena.begin("P9").may_cost_kib(4096);
    let mut guest = arena.guest(Options::default());
    arena.works(&mut guest);
    let drops = |arena: &Arena| ["bad_source", "link_local"].map(|reason| arena.drops("x", "from_guest", reason));
    let before = drops(&arena);
    for source in [MacAddr([0; 6]), MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1]), MacAddr([3, 0, 0, 0, 0, 1])] {
        guest.send(&numbered(source, mac(0x77), 1, 60));
    }
    guest.send(&numbered(mac(0x66), MacAddr([1, 0x80, 0xc2, 0, 0, 0]), 1, 60));
    wait_for("the drops to be counted", PATIENCE, || drops(&arena) == [before[0] + 4, before[1] + 1]);

    // The table's limit is per port: the flood is counted, the bystanders' entries stay, and theirs only.
    for i in 0..6000u32 {
        let [_, b, c, d] = i.to_be_bytes();
        let source = MacAddr([2, 0x99, 0, b, c, d]);
        while !guest.try_send(VnetHdr::default(), &numbered(source, mac(0x77), i, 60)) {
            std::thread::sleep(Duration::from_micros(500));
        }
        while arena.witness.try_recv().is_some() {}
    }
    let mut port = serde_json::Value::Null;
    wait_for("the flood to be dealt with", PATIENCE, || {
        arena.witness.drain();
        port = arena.port();
        port["macs"].as_u64().unwrap() >= port["mac_limit"].as_u64().unwrap() || port["macs"].as_u64().unwrap() >= 6000
    });
    assert!(port["macs"].as_u64().unwrap() <= port["mac_limit"].as_u64().unwrap(), "{port}");
    let list = arena.lasthop.json(&["mac", "list"]).to_string();
    for who in [0xa, 0xb, 0x77] {
        assert!(list.contains(&format!("\"{}\"", mac(who))), "{} was evicted", mac(who));
    }
    arena.bystanders.still_exchange();
    drop(guest);
    arena.witness.drain();
    arena.end(&attack, &[]);
}
