//! Actions that change packets: each output gets the packet as it is at that point, whatever its payload lies in.

use super::*;
use lasthop_frame::Edit;
use lasthop_guestmem::meter;

const TCI: u16 = 0xa00c;
const TAG: [u8; 4] = [0x81, 0, 0xa0, 0x0c];
const PUSH: Action = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: TCI });
const POP: Action = Action::Edit(Edit::PopVlan);

fn to(port: u32) -> Action {
    Action::Output(PortId(port))
}

fn doing(from: u32, actions: &[Action]) -> FlowSpec {
    FlowSpec { actions: actions.to_vec(), ..flow(from, &[]) }
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &TAG, &frame[12..]].concat()
}

fn frames(guest: &mut Guest) -> Vec<Vec<u8>> {
    guest.received().into_iter().map(|(_, frame)| frame).collect()
}

/// Frames around the lengths at which something changes: what is read at first, what is read at most, several buffers.
fn lengths() -> impl Iterator<Item = usize> {
    [0, 4, 45, 46, 50, 51, 177, 178, 179, 250, 1500, 5000, 60_000].into_iter()
}

fn frame(len: usize) -> Vec<u8> {
    Frame::new(1, 2).ether_type(0x88b5).payload((0..len).map(|i| (i * 7 + len) as u8).collect::<Vec<_>>()).build()
}

#[test]
fn each_output_gets_the_packet_as_it_is_at_that_point() {
    let actions = [to(2), PUSH, to(3), PUSH, to(4), POP, POP, POP, to(5), PUSH];
    for config in layouts() {
        for resumed in [false, true] {
            let (datapath, mut forwarder) = switch();
            let mut a = Guest::new(&datapath, 1, config, 0);
            let mut others: Vec<_> = (2..6).map(|id| Guest::new(&datapath, id, config, 0)).collect();
            if !resumed {
                datapath.flows().insert(doing(1, &actions), 0).unwrap();
            }
            let (mut sent, mut bytes, mut came) = (0, 0, 0);
            for len in lengths() {
                let frame = frame(len);
                for _ in 0..3 {
                    a.send(VnetHdr::default(), &frame);
                    (sent, bytes) = (sent + 1, bytes + frame.len() as u64);
                }
                while forwarder.carry(&a.port, 1, 0).more {}
                while let Some(upcall) = a.port.upcalls.report() {
                    forwarder.resume(&a.port, upcall.id, &actions);
                }
                let once = tagged(&frame);
                for (guest, expected) in others.iter_mut().zip([&frame, &once, &tagged(&once), &frame]) {
                    assert!(frames(guest) == vec![expected.clone(); 3], "{len} bytes to {}, {config:?}", guest.port.id);
                    came += 3 * expected.len() as u64;
                }
            }
            let from = a.port.totals().0;
            assert_eq!((from.packets, from.bytes, from.replicated), (sent, bytes, 3 * sent));
            assert_eq!(from.dropped(), 0);
            assert_eq!(others.iter().map(|g| g.port.totals().1.bytes).sum::<u64>(), came);
            assert_eq!(a.driver.unsent(0).unwrap(), 0);
        }
    }
}

#[test]
fn the_payload_moves_once_whatever_is_done_to_the_header() {
    let (datapath, mut forwarder) = switch();
    let config = NetConfig { tx_buffer: 70_000, rx_buffer: 1500, size: 64, ..NetConfig::default() };
    let mut a = Guest::new(&datapath, 1, config, 0);
    let mut b = Guest::new(&datapath, 2, config, 0);
    datapath.flows().insert(doing(1, &[PUSH, to(2)]), 0).unwrap();
    let frame = frame(40_000);
    a.send(VnetHdr::default(), &frame);
    let before = meter::moved();
    forwarder.carry(&a.port, 1, 0);
    let moved = meter::moved() - before;
    assert_eq!(frames(&mut b), [tagged(&frame)]);
    assert!(moved < frame.len() as u64 + 1000, "{moved} bytes moved");
}

#[test]
fn a_tag_comes_off_whatever_the_packet_lies_in() {
    for config in layouts() {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, config, 0);
        let mut b = Guest::new(&datapath, 2, config, 0);
        let mut c = Guest::new(&datapath, 3, config, 0);
        datapath.flows().insert(doing(1, &[to(3), POP, to(2)]), 0).unwrap();
        for len in lengths() {
            let frame = frame(len);
            a.send(VnetHdr::default(), &tagged(&frame));
            forwarder.carry(&a.port, 1, 0);
            assert!(frames(&mut b) == [frame.clone()], "{len} bytes, {config:?}");
            assert!(frames(&mut c) == [tagged(&frame)], "{len} bytes, {config:?}");
        }
    }
}

/// Flows that look at the link layer alone have only the first bytes read; which queue a packet goes to is found further behind.
#[test]
fn a_receiver_with_several_queues_gets_edited_packets_whole() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { pairs: 4, ..NetConfig::default() }, 0);
    let actions = vec![to(2), PUSH, to(2), POP, POP, to(2)];
    datapath.flows().insert(FlowSpec { actions, ..to_station(2) }, 0).unwrap();
    for port in 0..20 {
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1000 + port, 80).payload([3; 400]).build();
        a.send(VnetHdr::default(), &frame);
        forwarder.carry(&a.port, 1, 0);
        let mut got = Vec::new();
        for pair in 0..4 {
            let mut bytes = Vec::new();
            while b.driver.recv(pair, &mut bytes).unwrap().is_some() {
                got.push(std::mem::take(&mut bytes));
            }
        }
        // Tagged it may go to another queue.
        got.sort_by_key(Vec::len);
        assert!(got == [frame.clone(), frame.clone(), tagged(&frame)], "connection {port}");
    }
}

/// What the sender leaves to be done is done behind the tag: whole, as segments, or by the receiver.
#[test]
fn an_offload_request_goes_along_with_its_headers() {
    let (datapath, mut forwarder) = switch();
    let config = NetConfig { tx_buffer: 70_000, rx_buffer: 70_000, ..NetConfig::default() };
    let mut a = Guest::new(&datapath, 1, config, 0);
    let mut plain = Guest::new(&datapath, 2, config, 0);
    let mut able = Guest::new(&datapath, 3, config, feature::GUEST_CSUM | feature::GUEST_TSO4);
    datapath.flows().insert(doing(1, &[PUSH, to(2), to(3)]), 0).unwrap();
    for len in [0, 1, 100, 137, 138, 139, 1000, 1401] {
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(5, 6).payload(vec![0xa5; len]);
        let partial = frame.clone().partial_checksum();
        a.send(partial.vnet(VnetHdr::GSO_NONE, 0), &partial.build());
        forwarder.carry(&a.port, 1, 0);
        assert_eq!(plain.received(), [(VnetHdr { num_buffers: 1, ..VnetHdr::default() }, tagged(&frame.build()))]);
        let as_sent_tagged = partial.clone().vlan(TCI);
        let vnet = VnetHdr { num_buffers: 1, hdr_len: 0, ..as_sent_tagged.vnet(VnetHdr::GSO_NONE, 0) };
        assert_eq!(able.received(), [(vnet, tagged(&partial.build()))], "{len} bytes");
    }
    let payload: Vec<u8> = (0..30_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let whole = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(5, 6).payload(payload.clone());
    let whole = whole.partial_checksum();
    a.send(whole.vnet(VnetHdr::GSO_TCPV4, 1448), &whole.build());
    forwarder.carry(&a.port, 1, 0);
    let segments = frames(&mut plain);
    assert_eq!(segments.len(), payload.len().div_ceil(1448));
    let mut seen = Vec::new();
    for frame in segments {
        assert_eq!(frame[12..16], TAG);
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let Some(etherparse::NetHeaders::Ipv4(ip, _)) = &parsed.net else { panic!("not IPv4") };
        let Some(etherparse::TransportHeader::Tcp(tcp)) = &parsed.transport else { panic!("not TCP") };
        assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(ip, parsed.payload.slice()).unwrap());
        seen.extend_from_slice(parsed.payload.slice());
    }
    assert!(seen == payload);
    let vnet = VnetHdr { num_buffers: 1, ..whole.clone().vlan(TCI).vnet(VnetHdr::GSO_TCPV4, 1448) };
    assert_eq!(able.received(), [(vnet, tagged(&whole.build()))]);
}

/// A packet that is edited and goes to one port waits for its buffers like any other, and is edited once.
#[test]
fn an_edited_packet_waits_for_buffers() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
    datapath.flows().insert(doing(1, &[PUSH, to(2)]), 0).unwrap();
    let sent: Vec<_> = (0..10).map(|n| frame(60 + n)).collect();
    sent.iter().for_each(|frame| a.send(VnetHdr::default(), frame));
    let mut got = Vec::new();
    for now in [100, 101, 102] {
        forwarder.carry(&a.port, 1, now * MS);
        got.extend(frames(&mut b));
    }
    assert_eq!(got, sent.iter().map(|frame| tagged(frame)).collect::<Vec<_>>());
    let (from, to) = (a.port.totals().0, b.port.totals().1);
    assert_eq!((from.packets, from.dropped(), to.packets, to.dropped()), (10, 0, 10, 0));
}

/// An edit that cannot be made drops the packet, and nothing behind it happens; what was delivered before is delivered.
#[test]
fn an_edit_that_cannot_be_made_drops_the_packet() {
    let bad = Action::Edit(Edit::PushVlan { tpid: 0x0800, tci: 1 });
    let too_many = [vec![PUSH; 17], vec![to(2)]].concat();
    for (actions, delivered, dropped) in [
        (vec![bad, to(2)], 0, (DropReason::BadAction, 1)),
        (vec![to(2), bad, to(2), Action::Drop(DropReason::Acl)], 1, (DropReason::BadAction, 1)),
        (too_many, 0, (DropReason::BadAction, 1)),
        (vec![PUSH], 0, (DropReason::Policy, 1)),
        (vec![PUSH, POP], 0, (DropReason::Policy, 1)),
        (vec![PUSH, to(1)], 0, (DropReason::Hairpin, 1)),
        (vec![PUSH, to(9)], 0, (DropReason::NoPort, 1)),
    ] {
        for resumed in [false, true] {
            let (datapath, mut forwarder) = switch();
            let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
            let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
            if !resumed {
                datapath.flows().insert(doing(1, &actions), 0).unwrap();
            }
            a.send(VnetHdr::default(), &frame(100));
            forwarder.carry(&a.port, 1, 0);
            if let Some(upcall) = a.port.upcalls.report() {
                forwarder.resume(&a.port, upcall.id, &actions);
            }
            assert_eq!(frames(&mut b).len(), delivered, "{actions:?}");
            let from = a.port.totals().0;
            assert_eq!(from.drops, [dropped], "{actions:?}");
            assert_eq!(from.packets + from.replicated, delivered as u64 + 1);
            assert_eq!(a.driver.unsent(0).unwrap(), 0);
        }
    }
}

/// No frame becomes longer than the longest that a sender may send.
#[test]
fn a_frame_that_would_become_too_long_is_dropped() {
    let (datapath, mut forwarder) = switch();
    let config = NetConfig { tx_buffer: 70_000, rx_buffer: 70_000, ..NetConfig::default() };
    let mut a = Guest::new(&datapath, 1, config, 0);
    let mut b = Guest::new(&datapath, 2, config, 0);
    datapath.flows().insert(doing(1, &[to(2), PUSH, to(2)]), 0).unwrap();
    let frame = frame(lasthop_types::MAX_FRAME_LEN - 14);
    a.send(VnetHdr::default(), &frame);
    forwarder.carry(&a.port, 1, 0);
    assert!(frames(&mut b) == [frame]);
    assert_eq!(a.port.totals().0.drops, [(DropReason::TooLong, 1)]);
}
