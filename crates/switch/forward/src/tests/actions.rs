//! Actions of Open vSwitch that need the data plane: on known flows and on packets that waited, whatever the payload lies in.

use super::*;
use crate::Upcall;
use lasthop_frame::testutil::edits::{agree, edited};
use lasthop_frame::{Edit, Part, Set};
use lasthop_guestmem::meter;
use lasthop_types::PortTotals;

fn to(port: u32) -> Action {
    Action::Output(PortId(port))
}

fn doing(actions: &[Action]) -> FlowSpec {
    FlowSpec { actions: actions.to_vec(), ..flow(1, &[]) }
}

fn frames(guest: &mut Guest) -> Vec<Vec<u8>> {
    guest.received().into_iter().map(|(_, frame)| frame).collect()
}

/// Sets bytes of a header that begin here.
fn set(part: Part, at: usize, bytes: &[u8]) -> Vec<Edit> {
    let (value, mask) = ([&vec![0; at][..], bytes].concat(), [vec![0; at], vec![0xff; bytes.len()]].concat());
    Set::masked(part, &value, &mask).collect::<Vec<_>>().into_iter().map(Edit::Set).collect()
}

fn as_actions(edits: &[Edit]) -> Vec<Action> {
    edits.iter().map(|edit| Action::Edit(*edit)).collect()
}

fn after(frame: &[u8], edits: &[Edit]) -> Vec<u8> {
    edits.iter().fold(frame.to_vec(), |frame, edit| edited(&frame, edit, None).unwrap())
}

fn udp(len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
    Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(5, 6).payload(payload).build()
}

/// Source address and ports.
fn nat() -> Vec<Edit> {
    [set(Part::Ipv4, 12, &[192, 168, 77, 1]), set(Part::Ports, 0, &[0x12, 0x34, 0, 80])].concat()
}

/// A switch with guests 1 to `n`; a packet of guest 1 is sent on by a flow or, `resumed`, by an answer.
struct Rig {
    datapath: Arc<Datapath>,
    forwarder: Forwarder,
    guests: Vec<Guest>,
    actions: Vec<Action>,
    /// What control was told of packets that went on.
    copies: Vec<Upcall>,
}

impl Rig {
    fn new(n: u32, config: NetConfig, actions: &[Action], resumed: bool) -> Self {
        let (datapath, forwarder) = switch();
        let guests = (1..=n).map(|id| Guest::new(&datapath, id, config, 0)).collect();
        if !resumed {
            datapath.flows().insert(doing(actions), 0).unwrap();
        }
        Self { datapath, forwarder, guests, actions: actions.to_vec(), copies: Vec::new() }
    }

    fn send(&mut self, vnet: VnetHdr, frame: &[u8]) {
        self.guests[0].send(vnet, frame);
        while self.forwarder.carry(&self.guests[0].port, 1, 0).more {}
        let port = self.guests[0].port.clone();
        while let Some(upcall) = port.upcalls.report() {
            match upcall.copy {
                Some(_) => self.copies.push(upcall),
                None => self.forwarder.resume(&port, upcall.id, &self.actions),
            }
        }
    }

    fn from(&self) -> PortTotals {
        self.guests[0].port.totals().0
    }

    /// `from_guest.packets + replicated = to_guest.packets + drops`.
    fn law(&self) {
        let gone: u64 = self.guests.iter().map(|g| g.port.totals().1).map(|to| to.packets + to.dropped()).sum();
        let from = self.from();
        assert_eq!(from.packets + from.replicated, gone + from.dropped());
    }
}

#[test]
fn each_output_has_the_edits_before_it() {
    let first = nat();
    let second = [set(Part::Ethernet, 0, &[2, 0, 0, 0, 9, 9]), vec![Edit::DecTtl]].concat();
    let third = set(Part::Ipv4, 1, &[0xb8]);
    let actions = [
        vec![to(2)],
        as_actions(&first),
        vec![to(3)],
        as_actions(&second),
        vec![to(4)],
        as_actions(&third),
        vec![to(5)],
    ]
    .concat();
    for config in layouts() {
        for resumed in [false, true] {
            let mut rig = Rig::new(5, config, &actions, resumed);
            for len in [0, 18, 100, 149, 150, 151, 200, 1500, 5000, 60_000] {
                let frame = udp(len);
                rig.send(VnetHdr::default(), &frame);
                let mut expected = frame.clone();
                for (n, edits) in [&vec![], &first, &second, &third].into_iter().enumerate() {
                    expected = after(&expected, edits);
                    let got = frames(&mut rig.guests[n + 1]);
                    assert!(got.len() == 1 && agree(&got[0], &expected), "{len} bytes to {}, {config:?}", n + 2);
                }
            }
            assert_eq!(rig.from().dropped(), 0);
            rig.law();
        }
    }
}

#[test]
fn a_set_moves_no_payload() {
    let config = NetConfig { tx_buffer: 70_000, rx_buffer: 1500, size: 64, ..NetConfig::default() };
    let mut rig = Rig::new(2, config, &[as_actions(&nat()), vec![to(2)]].concat(), false);
    let frame = udp(40_000);
    rig.guests[0].send(VnetHdr::default(), &frame);
    let before = meter::moved();
    rig.forwarder.carry(&rig.guests[0].port, 1, 0);
    let moved = meter::moved() - before;
    assert_eq!(frames(&mut rig.guests[1]), [after(&frame, &nat())]);
    assert!(moved < frame.len() as u64 + 1000, "{moved} bytes moved");
}

/// Packets of 64 KiB, edited, and cut up for one receiver and not for another: every segment has the new fields and sums that are right.
#[test]
fn large_packets_are_edited_before_they_are_cut() {
    let payload: Vec<u8> = (0..60_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let (src, dst) = ([7; 16], [9; 16]);
    let ports = set(Part::Ports, 0, &[0x12, 0x34, 0, 80]);
    for v6 in [false, true] {
        let address = if v6 { set(Part::Ipv6, 8, &src) } else { set(Part::Ipv4, 12, &[192, 168, 77, 1]) };
        let edits = [address, ports.clone(), vec![Edit::DecTtl]].concat();
        let ip = Frame::new(1, 2);
        let ip = if v6 { ip.ipv6([3; 16], dst) } else { ip.ipv4([10, 0, 0, 1], [10, 0, 0, 2]) };
        let kinds = [
            (ip.clone().tcp(5, 6), if v6 { VnetHdr::GSO_TCPV6 } else { VnetHdr::GSO_TCPV4 }),
            (ip.clone().udp(5, 6), VnetHdr::GSO_UDP_L4),
        ];
        for (frame, gso) in kinds {
            let whole = frame.payload(payload.clone()).partial_checksum();
            let features = feature::GUEST_CSUM
                | feature::GUEST_TSO4
                | feature::GUEST_TSO6
                | feature::GUEST_USO4
                | feature::GUEST_USO6;
            let config = NetConfig { tx_buffer: 70_000, rx_buffer: 70_000, ..NetConfig::default() };
            let mut rig = Rig::new(2, config, &[as_actions(&edits), vec![to(2), to(3)]].concat(), false);
            let mut able = Guest::new(&rig.datapath, 3, config, features);
            rig.send(whole.vnet(gso, 1400), &whole.build());
            let segments = frames(&mut rig.guests[1]);
            assert_eq!(segments.len(), payload.len().div_ceil(1400));
            let mut seen = Vec::new();
            for frame in segments {
                let parsed = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
                let (sum, ports) = match (&parsed.net, &parsed.transport) {
                    (Some(net), Some(etherparse::TransportHeader::Tcp(tcp))) => {
                        let sum = match net {
                            etherparse::NetHeaders::Ipv4(ip, _) => tcp.calc_checksum_ipv4(ip, parsed.payload.slice()),
                            etherparse::NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(ip, parsed.payload.slice()),
                            _ => panic!("not IP"),
                        };
                        ((sum.unwrap(), tcp.checksum), (tcp.source_port, tcp.destination_port))
                    }
                    (Some(net), Some(etherparse::TransportHeader::Udp(udp))) => {
                        let sum = match net {
                            etherparse::NetHeaders::Ipv4(ip, _) => udp.calc_checksum_ipv4(ip, parsed.payload.slice()),
                            etherparse::NetHeaders::Ipv6(ip, _) => udp.calc_checksum_ipv6(ip, parsed.payload.slice()),
                            _ => panic!("not IP"),
                        };
                        ((sum.unwrap(), udp.checksum), (udp.source_port, udp.destination_port))
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(sum.0 % 0xffff, sum.1 % 0xffff);
                assert_eq!(ports, (0x1234, 80));
                match parsed.net {
                    Some(etherparse::NetHeaders::Ipv4(ip, _)) => {
                        assert_eq!((ip.source, ip.time_to_live), ([192, 168, 77, 1], 63));
                        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    }
                    Some(etherparse::NetHeaders::Ipv6(ip, _)) => assert_eq!((ip.source, ip.hop_limit), (src, 63)),
                    other => panic!("{other:?}"),
                }
                seen.extend_from_slice(parsed.payload.slice());
            }
            assert!(seen == payload);
            let vnet = whole.vnet(gso, 1400);
            let field = usize::from(vnet.csum_start + vnet.csum_offset);
            let expected = edits.iter().fold(whole.build(), |frame, edit| edited(&frame, edit, Some(field)).unwrap());
            let got = able.received();
            assert!(got.len() == 1 && agree(&got[0].1, &expected));
            assert_eq!(got[0].0, VnetHdr { num_buffers: 1, ..vnet });
        }
    }
}

#[test]
fn an_edited_packet_that_waits_for_buffers_is_edited_once() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { size: 4, ..NetConfig::default() }, 0);
    datapath.flows().insert(doing(&[Action::Edit(Edit::DecTtl), to(2)]), 0).unwrap();
    let sent: Vec<_> = (0..10).map(|n| udp(60 + n)).collect();
    sent.iter().for_each(|frame| a.send(VnetHdr::default(), frame));
    let mut got = Vec::new();
    for now in [100, 101, 102] {
        forwarder.carry(&a.port, 1, now * MS);
        got.extend(frames(&mut b));
    }
    assert_eq!(got, sent.iter().map(|frame| after(frame, &[Edit::DecTtl])).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_done_to_a_packet_drops_it_under_its_reason() {
    let short = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ttl(1).udp(5, 6).build();
    let nat = as_actions(&nat());
    for (actions, frame, reason) in [
        (vec![to(2), Action::Edit(Edit::DecTtl), to(2)], short.clone(), DropReason::TtlExpired),
        (
            [vec![to(2)], nat.clone(), vec![to(2)]].concat(),
            Frame::new(1, 2).payload([1; 60]).build(),
            DropReason::BadAction,
        ),
        ([vec![to(2)], nat.clone(), vec![to(2)]].concat(), short[..40].to_vec(), DropReason::BadAction),
        (vec![to(2), Action::Truncated(PortId(1), 60)], udp(60), DropReason::Hairpin),
        (vec![to(2), Action::Truncated(PortId(9), 60)], udp(60), DropReason::NoPort),
    ] {
        for resumed in [false, true] {
            let mut rig = Rig::new(2, NetConfig::default(), &actions, resumed);
            rig.send(VnetHdr::default(), &frame);
            assert_eq!(frames(&mut rig.guests[1]), std::slice::from_ref(&frame), "{actions:?}");
            assert_eq!(rig.from().drops, [(reason, 1)], "{actions:?}");
            rig.law();
        }
    }
}

#[test]
fn a_meter_lets_through_what_it_may_and_is_shared_by_flows() {
    for resumed in [false, true] {
        let mut rig = Rig::new(2, NetConfig::default(), &[Action::Meter(3), to(2)], resumed);
        let sends = |rig: &mut Rig, n: usize| {
            (0..n).for_each(|_| rig.send(VnetHdr::default(), &udp(60)));
            frames(&mut rig.guests[1]).len()
        };
        assert_eq!(sends(&mut rig, 5), 5, "there is no such meter");
        // One packet in a century.
        rig.datapath.set_meter(3, Some([0, 1, 0]));
        rig.datapath.set_meter(4, Some([0, 1, 0]));
        assert_eq!(sends(&mut rig, 5), 1);
        assert_eq!(rig.from().drops, [(DropReason::Meter, 4)]);
        let len = udp(60).len() as u64;
        assert_eq!(rig.datapath.meter_counts(3), [[1, len], [4, 4 * len]]);
        assert_eq!(rig.datapath.meter_counts(4), [[0; 2]; 2], "nothing has met it");
        rig.law();
        rig.datapath.set_meter(3, None);
        assert_eq!(sends(&mut rig, 5), 5);
        rig.datapath.set_meter(4096, Some([0, 1, 0]));
        assert!(!rig.datapath.ports().meters.contains_key(&4096));
        if !resumed {
            rig.datapath.set_meter(3, Some([0, 1, 0]));
            assert_eq!(sends(&mut rig, 1), 1);
            rig.datapath.flows().insert(doing(&[Action::Edit(Edit::DecTtl), Action::Meter(3), to(2)]), 0).unwrap();
            assert_eq!(sends(&mut rig, 1), 0, "another flow with the same meter");
        }
    }
}

#[test]
fn control_gets_copies_and_packets_go_on() {
    let actions =
        [as_actions(&nat()), vec![Action::ToControl(77), to(2), Action::Edit(Edit::PopVlan), Action::ToControl(78)]]
            .concat();
    for resumed in [false, true] {
        let mut rig = Rig::new(2, NetConfig { tx_buffer: 2000, ..NetConfig::default() }, &actions, resumed);
        let frame = Frame::new(1, 2).vlan(7).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(5, 6).payload([9; 400]).build();
        rig.send(VnetHdr::default(), &frame);
        let expected = after(&frame, &nat());
        assert_eq!(frames(&mut rig.guests[1]), std::slice::from_ref(&expected));
        assert!(rig.datapath.take_missed(), "control is told");
        assert!(rig.guests[0].port.upcalls.is_empty(), "nothing waits");
        let [first, second] = &rig.copies[..] else { panic!("{:?}", rig.copies) };
        assert_eq!((first.copy, second.copy), (Some(77), Some(78)));
        assert_eq!(first.header.bytes(), &expected[..first.header.len()]);
        assert!(first.header.len() >= 188 && first.frame_len == expected.len());
        assert_eq!((first.key.vlan_tci, first.key.l4_src, first.key.in_port), (0x1007, 0x1234, 1));
        assert_eq!((second.key.vlan_tci, second.frame_len), (0, expected.len() - 4));
        rig.law();
    }
}

/// A port's copies wait in places of its own: beyond them copies are lost and counted, and neither its packets nor its misses notice.
#[test]
fn copies_are_bounded_and_hold_up_nothing() {
    let mut rig = Rig::new(2, NetConfig { size: 64, ..NetConfig::default() }, &[Action::ToControl(1), to(2)], false);
    for n in 0..50 {
        rig.guests[0].send(VnetHdr::default(), &udp(n));
        rig.forwarder.carry(&rig.guests[0].port, 1, 0);
    }
    assert_eq!(frames(&mut rig.guests[1]).len(), 50);
    assert_eq!(rig.from().drops, [(DropReason::MissQueueFull, 18)]);
    rig.law();
    rig.guests[0].port.upcalls.report_again();
    rig.datapath.flows().remove_if(|_| true);
    rig.guests[0].send(VnetHdr::default(), &udp(7));
    rig.forwarder.carry(&rig.guests[0].port, 1, 0);
    let upcalls = &rig.guests[0].port.upcalls;
    assert_eq!(upcalls.report().unwrap().copy, None, "a miss goes before");
    assert_eq!(std::iter::from_fn(|| upcalls.report()).filter(|upcall| upcall.copy == Some(1)).count(), 32);
}

#[test]
fn a_truncated_output_is_one_outputs_matter() {
    for config in layouts() {
        for resumed in [false, true] {
            for most in [0u16, 14, 20, 60, 191, 192, 193, 1000, 60_000] {
                let actions = [to(2), Action::Truncated(PortId(3), most), Action::Edit(Edit::DecTtl), to(4)];
                let mut rig = Rig::new(4, config, &actions, resumed);
                for len in [0, 18, 150, 151, 1400, 60_000] {
                    let frame = udp(len);
                    rig.send(VnetHdr::default(), &frame);
                    assert!(frames(&mut rig.guests[1]) == [frame.clone()], "{len}");
                    let kept = frame.len().min(usize::from(most).max(14));
                    assert!(frames(&mut rig.guests[2]) == [frame[..kept].to_vec()], "{most} of {len}, {config:?}");
                    assert!(frames(&mut rig.guests[3]) == [after(&frame, &[Edit::DecTtl])], "{len}");
                }
                rig.law();
            }
        }
    }
}

/// Nothing is completed or cut of a frame that is not all there; one that is arrives like any.
#[test]
fn what_a_truncated_packets_sender_asked_for_falls_away() {
    let whole = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(5, 6).payload([7; 9000]).partial_checksum();
    let config = NetConfig { tx_buffer: 70_000, rx_buffer: 70_000, ..NetConfig::default() };
    let mut rig = Rig::new(3, config, &[Action::Truncated(PortId(2), 100), Action::Truncated(PortId(3), 9054)], false);
    rig.send(whole.vnet(VnetHdr::GSO_TCPV4, 1000), &whole.build());
    assert_eq!(
        rig.guests[1].received(),
        [(VnetHdr { num_buffers: 1, ..VnetHdr::default() }, whole.build()[..100].to_vec())]
    );
    assert_eq!(frames(&mut rig.guests[2]).len(), 9);
    rig.law();
}

#[test]
fn samples_are_drawn_as_often_as_they_should_be() {
    for resumed in [false, true] {
        for (probability, least, most) in [(0, 0, 0), (u32::MAX, 2000, 2000), (u32::MAX / 4, 380, 620)] {
            let actions = [Action::Sample(probability, 2), to(3), to(4), to(2)];
            let mut rig = Rig::new(4, NetConfig::default(), &actions, resumed);
            let mut came = [0; 3];
            for _ in 0..2000 {
                rig.send(VnetHdr::default(), &udp(20));
                for (guest, came) in rig.guests[1..].iter_mut().zip(&mut came) {
                    *came += frames(guest).len();
                }
            }
            let [all, sampled, too] = came;
            assert_eq!((all, sampled), (2000, too));
            // A quarter: 500, and six times the standard deviation of 19.4.
            assert!((least..=most).contains(&sampled), "{sampled} of 2000 with {probability}");
            rig.law();
        }
    }
    // What is passed over is all that there was: a flow that does nothing drops.
    let mut rig = Rig::new(2, NetConfig::default(), &[Action::Sample(0, 9), to(2)], false);
    rig.send(VnetHdr::default(), &udp(20));
    assert_eq!(rig.from().drops, [(DropReason::Policy, 1)]);
}
