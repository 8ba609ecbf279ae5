//! The packet path allocates nothing: neither for small packets, nor for a flood, nor for one that is cut into 2000 segments.

use super::*;
use allocation_counter::measure;
use lasthop_frame::{Edit, Part, Set};

/// One action of each kind that known flows have.
fn all_kinds() -> Vec<Action> {
    let port = Set { part: Part::Ports, word: 0, value: 9, mask: 0xffff };
    let edits = [Edit::Set(port), Edit::DecTtl, Edit::PushVlan { tpid: 0x8100, tci: 9 }, Edit::PopVlan];
    edits
        .map(Action::Edit)
        .into_iter()
        .chain([Action::LimitFlood, Action::Output(PortId(2)), Action::Output(PortId(3))])
        .collect()
}

/// Carries all that waits; returns how often memory was asked for on the way.
fn allocations(forwarder: &mut Forwarder, a: &Guest) -> u64 {
    measure(|| while forwarder.carry(&a.port, 1, 0).packets > 0 {}).count_total
}

#[test]
fn carrying_packets_allocates_nothing() {
    for (packed, in_order) in [(false, false), (true, false), (true, true)] {
        let config = NetConfig { packed, in_order, ..NetConfig::default() };
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig { tx_buffer: 70_000, ..config }, 0);
        let mut others: Vec<_> =
            (2..4).map(|id| Guest::new(&datapath, id, NetConfig { size: 4096, ..config }, 0)).collect();
        datapath.flows().insert(flow(1, &[2, 3]), 0).unwrap();
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2);
        // What hashes are seeded with is made once for the process, when the first packet comes.
        a.send(VnetHdr::default(), &frame.build());
        forwarder.carry(&a.port, 1, 0);
        others.iter_mut().for_each(|guest| assert_eq!(guest.received().len(), 1));
        for n in 1..100 {
            a.send(VnetHdr::default(), &frame.clone().payload(vec![5; 100 * n]).build());
        }
        assert_eq!(allocations(&mut forwarder, &a), 0, "packed {packed}");
        others.iter_mut().for_each(|guest| assert_eq!(guest.received().len(), 99));
        let long = frame.payload(vec![5; 65_000]).partial_checksum();
        a.send(long.vnet(VnetHdr::GSO_TCPV4, 33), &long.build());
        assert_eq!(allocations(&mut forwarder, &a), 0, "packed {packed}, many segments");
        others.iter_mut().for_each(|guest| assert_eq!(guest.received().len(), 65_000_usize.div_ceil(33)));
        datapath.flows().insert(FlowSpec { actions: all_kinds(), ..flow(1, &[]) }, 0).unwrap();
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2).payload([5; 100]).build();
        for round in 0..3 {
            (0..40).for_each(|_| a.send(VnetHdr::default(), &frame));
            let count = allocations(&mut forwarder, &a);
            assert!(round == 0 || count == 0, "packed {packed}, actions: {count}");
            others.iter_mut().for_each(|guest| assert_eq!(guest.received().len(), 40));
        }
    }
}
