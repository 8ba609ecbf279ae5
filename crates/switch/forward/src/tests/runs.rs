//! Packets that are like the one before go with it to the same receiver, and packets of known flows are classified and delivered in loops of
//! their own: whatever ends such a run, nothing is lost, doubled, overtaken or put where it does not belong.

use super::{Guest, MS, layouts, switch, switch_with, to_station};
use crate::{Order, PATIENCE_MS};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::testutil::Frame;
use lasthop_frame::{FlowKey, FlowMask, VnetHdr};
use lasthop_types::{DropReason, PortId};
use lasthop_virtqueue::Patience;
use lasthop_virtqueue::driver::NetConfig;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// Port 2 and 3 are guests, 4 is a flood to both, 5 is nobody.
const STATIONS: [u8; 4] = [2, 3, 4, 5];

fn flood(port: u8) -> FlowSpec {
    let actions = [2, 3].map(|p| Action::Output(PortId(p))).into();
    FlowSpec { actions, key: FlowKey { eth_dst: [2, 0, 0, 0, 0, port], ..to_station(port).key }, ..to_station(port) }
}

/// UDP sockets, from port 0 on, whose packets take turns.
const SOCKETS: u16 = 3;

/// The part of a station's flow that is of one socket.
fn of_socket(station: FlowSpec, socket: u16) -> FlowSpec {
    let key = FlowKey { eth_type: 0x800, ip_proto: 17, l4_src: socket, ..station.key };
    let mask = FlowMask(FlowKey { eth_type: u16::MAX, ip_proto: u8::MAX, l4_src: u16::MAX, ..station.mask.0 });
    FlowSpec { key, mask, ..station }
}

/// What a guest is to get of what is for it alone, and of what is for all: frames, and whether their checksum may be left to it.
type Expected = [VecDeque<(bool, Vec<u8>)>; 2];

/// Runs of packets to one station: how long each, and the packets' payload and whether they leave their checksum to others.
fn runs() -> impl Strategy<Value = Vec<(u8, usize, usize, bool)>> {
    let station = prop_oneof![4 => Just(2u8), 2 => Just(3u8), 1 => Just(4u8), 1 => Just(5u8)];
    let count = prop_oneof![1usize..4, 1usize..70];
    let len = prop_oneof![8usize..40, 20usize..100, 1000usize..1473];
    proptest::collection::vec((station, count, len, proptest::bool::weighted(0.1)), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_packet_arrives_once_and_in_order(
        runs in runs(),
        layout in 0usize..8,
        room in 2u16..6,
        small_buffers in any::<bool>(),
        // Flows look at ports, or at stations alone.
        deep in any::<bool>(),
    ) {
        let config = NetConfig { size: 256, tx_buffer: 2048, ..layouts().nth(layout).unwrap() };
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, config, 0);
        // With small buffers a frame takes several, if they may be joined.
        let rx_buffer = if small_buffers && config.mergeable { 512 } else { 2048 };
        let config = NetConfig { size: 1 << room, rx_buffer, pieces: 1, ..config };
        let mut guests = [2, 3].map(|id| Guest::new(&datapath, id, config, 0));
        for station in STATIONS {
            let spec = if station == 4 { flood(station) } else { to_station(station) };
            for socket in 0..SOCKETS {
                let spec = if deep { of_socket(spec.clone(), socket) } else { spec.clone() };
                datapath.flows().insert(spec, 0).unwrap();
            }
        }
        let mut sent_of = BTreeMap::<_, u64>::new();
        let mut expected: [Expected; 2] = Default::default();
        let (mut sent, mut now, mut lost) = (0u64, 0, 0);
        for (station, count, len, leaves_sum) in runs {
            for n in 0..count {
                let payload: Vec<u8> = (0..len).map(|i| (i + n + sent as usize) as u8).collect();
                let socket = (sent % u64::from(SOCKETS)) as u16;
                let frame = Frame::new(1, station).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(socket, 2).payload(payload);
                let frame = if leaves_sum { frame.partial_checksum() } else { frame };
                a.send(if leaves_sum { frame.vnet(0, 0) } else { VnetHdr::default() }, &frame.build());
                for (guest, to) in expected.iter_mut().zip([2, 3]) {
                    if station == to || station == 4 {
                        guest[usize::from(station == 4)].push_back((leaves_sum, without_sum(frame.build())));
                    }
                }
                *sent_of.entry((station, if deep { socket } else { 0 })).or_default() += 1;
                sent += 1;
                // Bursts of every length: the ring is emptied now and then.
                if sent % 97 == 96 {
                    while a.driver.unsent(0).unwrap() > 0 {
                        forwarder.carry(&a.port, 1, now * MS);
                        now += 1;
                        lost += check(&mut guests, &mut expected)?;
                    }
                }
            }
        }
        while a.driver.unsent(0).unwrap() > 0 {
            forwarder.carry(&a.port, 1, now * MS);
            now += 1;
            lost += check(&mut guests, &mut expected)?;
        }
        let dropped: u64 = guests.iter().map(|g| g.port.totals().1.dropped()).sum();
        lost += expected.iter().flatten().map(VecDeque::len).sum::<usize>();
        // Copies of a flood do not wait for buffers, and so may overtake others that do.
        prop_assert_eq!(dropped, lost as u64);
        let flows = datapath.flows().flows();
        let used = flows.iter().filter(|flow| flow.stats.packets() > 0);
        let counted: BTreeMap<_, _> =
            used.map(|flow| ((flow.key.eth_dst[5], flow.key.l4_src), flow.stats.packets())).collect();
        prop_assert_eq!((counted, a.port.totals().0.packets), (sent_of, sent));
    }
}

/// Judged frames are written as they were read: of one that is shorter than what is read of others no more, and no less.
#[test]
fn a_run_may_begin_with_a_frame_of_any_length() {
    for first in [14, 16, 17, 60, 200] {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
        let [mut b, mut c] = [2, 3].map(|id| Guest::new(&datapath, id, NetConfig::default(), 0));
        [2, 3].iter().for_each(|port| drop(datapath.flows().insert(to_station(*port), 0)));
        let frame = |to, len: usize, n: u8| Frame::new(1, to).ether_type(0x88b5).payload(vec![n; len - 14]).build();
        let frames: Vec<_> = [first, 60, 60, 60, 60].iter().zip(1u8..).map(|(len, n)| frame(2, *len, n)).collect();
        // Their header may say that the checksum is good, too: that asks for nothing.
        for flags in [0, VnetHdr::F_DATA_VALID] {
            // What lies in the switch's memory since, where the first frame of the next burst comes.
            a.send(VnetHdr::default(), &frame(3, 60, 0xee));
            forwarder.carry(&a.port, 1, 0);
            assert_eq!(c.received().len(), 1);
            a.send(VnetHdr { flags, ..VnetHdr::default() }, &frames[0]);
            frames[1..].iter().for_each(|frame| a.send(VnetHdr::default(), frame));
            assert_eq!(forwarder.carry(&a.port, 1, 0).packets, 5);
            let got: Vec<_> = b.received().into_iter().map(|(_, frame)| frame).collect();
            assert_eq!(got, frames, "{first} bytes, flags {flags}");
        }
        let memory = b.driver.memory();
        let region = memory.regions().next().unwrap();
        let mut bytes = vec![0; region.size as usize];
        memory.slice(region.guest_addr, bytes.len()).unwrap().read(0, &mut bytes);
        assert!(!bytes.windows(2).any(|two| two == [0xee; 2]), "{first} bytes: and some that are another guest's");
    }
}

/// A frame without its UDP checksum, which may be completed on the way.
fn without_sum(mut frame: Vec<u8>) -> Vec<u8> {
    frame[40..42].fill(0);
    frame
}

/// Takes what the guests have received: what was expected, in that order. Returns how many were left out.
fn check(guests: &mut [Guest; 2], expected: &mut [Expected; 2]) -> Result<usize, TestCaseError> {
    let mut lost = 0;
    for (guest, expected) in guests.iter_mut().zip(expected) {
        for (header, frame) in guest.received() {
            let frame = without_sum(frame);
            let expected = &mut expected[usize::from(frame[5] == 4)];
            let Some(at) = expected.iter().position(|(_, e)| *e == frame) else {
                return Err(TestCaseError::fail("a frame that nobody sent there, or not in this order"));
            };
            lost += at;
            // The buffer may have held another header before.
            let plain = expected.drain(..=at).next_back().is_some_and(|(leaves_sum, _)| !leaves_sum);
            prop_assert_eq!((header.flags & u8::from(plain), header.gso_type), (0, 0));
            prop_assert!(header.num_buffers > 0);
        }
    }
    Ok(lost)
}

/// The main thread may come to no processor between its look for packets that wait and the flow's installation; then a packet that is
/// looked up at the same time misses, and the next one does not.
#[test]
fn a_flow_that_is_met_lets_those_go_first_that_missed_it() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    let frame = |n: u8| Frame::new(1, 2).payload([n; 64]).build();
    let numbers = |b: &mut Guest| b.received().iter().map(|(_, f)| f[f.len() - 1]).collect::<Vec<_>>();
    datapath.set_control_answers(true);
    a.send(VnetHdr::default(), &frame(0));
    forwarder.carry(&a.port, 1, 0);
    let first = a.port.upcalls.report().unwrap();
    datapath.flows().insert(to_station(2), 0).unwrap();
    a.send(VnetHdr::default(), &frame(1));
    a.send(VnetHdr::default(), &frame(2));
    let outcome = forwarder.carry(&a.port, 1, 0);
    assert!((outcome.packets, outcome.stalled) == (0, true) && numbers(&mut b).is_empty(), "{outcome:?}");
    assert!(a.port.upcalls.report().is_none(), "control is not asked again");
    let goes_on = forwarder.all_of(Order::packet(&a.port, first.id, vec![Action::Output(PortId(2))]));
    assert_eq!(goes_on, Ok(true), "the port's queue is looked at again");
    forwarder.carry(&a.port, 1, 0);
    assert_eq!(numbers(&mut b), [0, 1, 2]);
    // Nobody waits for a control that is not there.
    datapath.flows().remove(&to_station(2).key, &to_station(2).mask);
    a.send(VnetHdr::default(), &frame(3));
    forwarder.carry(&a.port, 1, 0);
    datapath.flows().insert(to_station(2), 0).unwrap();
    datapath.set_control_answers(false);
    a.send(VnetHdr::default(), &frame(4));
    assert_eq!(forwarder.carry(&a.port, 1, 0).packets, 1);
    assert_eq!(numbers(&mut b), [4]);
}

/// A receiver with four queues, one of which gets more than it has buffers, and among its packets some for their own sender.
#[test]
fn connections_of_a_receiver_with_several_queues_stay_in_order_while_one_is_full() {
    let (datapath, mut forwarder) = switch_with(Patience { pace: 1000, overtaken: 1000, ..PATIENCE_MS });
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { pairs: 4, size: 4, ..NetConfig::default() }, 0);
    for to in [1, 2] {
        let here = FlowSpec { actions: vec![Action::Output(PortId(to.into()))], ..to_station(to) };
        datapath.flows().insert(here, 0).unwrap();
    }
    const CONNECTIONS: u16 = 12;
    let mut got = BTreeMap::<u16, Vec<u8>>::new();
    let mut waited = false;
    for n in 0..200u8 {
        for port in 0..if n < 20 { CONNECTIONS } else { 0 } {
            let to = if port == 5 { 1 } else { 2 };
            let frame = Frame::new(1, to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1000 + port, 80);
            a.send(VnetHdr::default(), &frame.payload([n; 40]).build());
        }
        let now_ns = u64::from(n) * 100_000;
        waited |= forwarder.carry(&a.port, 1, now_ns).short_of_buffers;
        // Of eleven connections in two rounds some queue has six.
        for pair in if n % 2 == 1 { 0..4 } else { 0..0 } {
            let mut frame = Vec::new();
            while b.driver.recv(pair, &mut frame).unwrap().is_some() {
                got.entry(u16::from_be_bytes([frame[34], frame[35]])).or_default().push(frame[81]);
                frame.clear();
            }
        }
    }
    let (from, to) = (a.port.totals().0, b.port.totals().1);
    assert_eq!(from.drops, [(DropReason::Hairpin, 20)]);
    assert_eq!((from.packets, to.packets, to.dropped()), (240, 220, 0));
    assert_eq!((got.len(), waited), (usize::from(CONNECTIONS) - 1, true));
    assert!(got.values().all(|numbers| *numbers == (0..20).collect::<Vec<_>>()), "{got:?}");
}
