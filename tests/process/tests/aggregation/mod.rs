//! Receive aggregation: segments and datagrams of a burst become one packet.

use super::{Site, outside::Wire};
use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Options, mac, proc};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

/// While the uplink stands still, a burst of segments, or of datagrams, gathers; guest a of `left` gets what has become of it.
fn bursts(left: &Site, far: &mut Guest, to: &mut Guest, udp: bool, rounds: u32) -> Vec<(VnetHdr, Vec<u8>)> {
    const SEGMENTS: u32 = 40;
    let pid = left.pid();
    let (mut received, mut sequence) = (Vec::new(), 1u32);
    for round in 0..rounds {
        // Now and then without standing still: more than there are slots, all in all.
        let stopped = round % 10 == 0;
        if stopped {
            proc::signal(pid, Signal::STOP);
        }
        let mut expected = Vec::new();
        for n in 0..SEGMENTS {
            let payload: Vec<u8> = (0..1400).map(|i: u32| (i * 7 + n + round) as u8).collect();
            let frame = Frame::between(far.mac, to.mac).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).fragment(0x4000);
            let frame = frame.id((round * SEGMENTS + n) as u16);
            let tcp = |frame: Frame| frame.tcp(5001, 5002).tcp_fields(0x10, sequence, &[1; 12]);
            let frame = if udp { frame.udp(5001, 5002) } else { tcp(frame) };
            far.send(&frame.payload(payload.clone()).build());
            sequence += 1400;
            expected.extend(payload);
        }
        if stopped {
            std::thread::sleep(Duration::from_millis(20));
            proc::signal(pid, Signal::CONT);
        }
        let mut got: Vec<u8> = Vec::new();
        while got.len() < expected.len() {
            let (header, frame) = to.recv("a segment", |_, f| f.len() > 1000);
            got.extend(&frame[if udp { 42 } else { 66 }..]);
            received.push((header, frame));
        }
        assert!(got == expected, "the payload of burst {round} is another");
    }
    received
}

#[test]
fn segments_and_datagrams_become_one_packet_with_af_xdp() {
    let wire = Wire::xdp();
    let patient = ["--uplink-limit-ms", "20000"];
    let left = Site::with(wire.netns(), &[&["--uplink", &wire.left][..], &patient].concat());
    let right = Site::new(wire.netns(), &wire.right);
    let mut far = right.guest("a", mac(2), Options::default());
    let mut near = left.guest("a", mac(1), Options::offloading());
    let mut plain = left.guest("b", mac(3), Options::default());
    for guest in [&mut near, &mut plain] {
        far.greet(guest, u32::from(guest.mac.0[5]));
    }
    let merged = || left.uplink()["merged"].as_u64().unwrap_or(0);
    // 4000 segments, and there are 1536 slots.
    let packets = bursts(&left, &mut far, &mut near, false, 100);
    let whole = packets.iter().filter(|(header, _)| header.gso_type == VnetHdr::GSO_TCPV4);
    let whole: Vec<_> = whole.map(|(header, frame)| (header.gso_size, frame.len())).collect();
    assert!(whole.iter().any(|(size, len)| *size == 1400 && *len > 10_000), "{whole:?}");
    assert!(packets.iter().all(|(header, _)| matches!(header.gso_type, VnetHdr::GSO_TCPV4 | VnetHdr::GSO_NONE)));
    let before = merged();
    assert_eq!(before, 4000 - packets.len() as u64);
    // Who cannot take it gets frames, which are those that were sent: with lengths, numbers and checksums of their own.
    let packets = bursts(&left, &mut far, &mut plain, false, 20);
    assert!(merged() > before, "nothing was merged");
    for (n, (header, frame)) in packets.iter().enumerate() {
        assert_eq!(*header, VnetHdr { num_buffers: 1, ..VnetHdr::default() });
        let same = Frame::between(far.mac, plain.mac).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).fragment(0x4000);
        let same = same.id(n as u16).tcp(5001, 5002).tcp_fields(0x10, 1 + 1400 * n as u32, &[1; 12]);
        assert_eq!(*frame, same.payload(&frame[66..]).build());
    }
    assert_eq!(packets.len(), 800);
    // Datagrams likewise.
    let packets = bursts(&left, &mut far, &mut near, true, 20);
    let whole = packets.iter().filter(|(header, _)| header.gso_type == VnetHdr::GSO_UDP_L4);
    let whole: Vec<_> = whole.map(|(header, frame)| (header.gso_size, frame.len())).collect();
    assert!(whole.iter().any(|(size, len)| *size == 1400 && *len > 10_000), "{whole:?}");
    let packets = bursts(&left, &mut far, &mut plain, true, 11);
    for (n, (header, frame)) in packets.iter().enumerate() {
        assert_eq!(*header, VnetHdr { num_buffers: 1, ..VnetHdr::default() });
        let same = Frame::between(far.mac, plain.mac).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).fragment(0x4000);
        assert_eq!(*frame, same.id(n as u16).udp(5001, 5002).payload(&frame[42..]).build());
    }
    assert_eq!(left.uplink()["drops"], Value::Array(Vec::new()));
    left.lasthop.check_sums();
    // Switched off, nothing is merged.
    left.lasthop.command(&["uplink", "del", "net"]);
    left.lasthop.command(&["uplink", "add", "net", "v0", "--driver", "af_xdp", "--gro", "off"]);
    left.lasthop.wait_for_state("net", "up");
    far.greet(&mut near, 9);
    assert_eq!(bursts(&left, &mut far, &mut near, false, 11).len(), 440);
    assert_eq!(merged(), 0);
}
