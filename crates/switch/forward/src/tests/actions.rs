//! Actions of Open vSwitch that need the data plane: on known flows and on packets that waited, whatever the payload lies in.

use super::*;
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
}

impl Rig {
    fn new(n: u32, config: NetConfig, actions: &[Action], resumed: bool) -> Self {
        let (datapath, forwarder) = switch();
        let guests = (1..=n).map(|id| Guest::new(&datapath, id, config, 0)).collect();
        if !resumed {
            datapath.flows().insert(doing(actions), 0).unwrap();
        }
        Self { datapath, forwarder, guests, actions: actions.to_vec() }
    }

    fn send(&mut self, vnet: VnetHdr, frame: &[u8]) {
        self.guests[0].send(vnet, frame);
        while self.forwarder.carry(&self.guests[0].port, 1, 0).more {}
        let port = self.guests[0].port.clone();
        while let Some(upcall) = port.upcalls.report() {
            self.forwarder.resume(&port, upcall.id, &self.actions);
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
