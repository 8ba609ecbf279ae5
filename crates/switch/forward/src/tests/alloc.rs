//! The packet path allocates nothing: neither for small packets, nor for a flood, nor for one that is cut into 2000 segments.

use super::*;
use crate::PORT_CACHE_ENTRIES;
use allocation_counter::measure;
use lasthop_frame::{Edit, Part, Set};

/// One action of each kind that known flows have.
fn all_kinds() -> Vec<Action> {
    let port = Set { part: Part::Ports, word: 0, value: 9, mask: 0xffff };
    let edits = [Edit::Set(port), Edit::DecTtl, Edit::PushVlan { tpid: 0x8100, tci: 9 }, Edit::PopVlan];
    let others = [
        Action::Meter(1),
        Action::Sample(u32::MAX, 1),
        Action::ToControl(1),
        Action::Truncated(PortId(2), 60),
        Action::Output(PortId(3)),
    ];
    edits.map(Action::Edit).into_iter().chain(others).collect()
}

/// Three times the flows that a cache of the small size holds, in turns.
#[test]
fn a_cache_grows_with_the_flows_in_use_and_the_thread_that_uses_it_allocates_nothing() {
    const FLOWS: u16 = 3000;
    let datapath = Arc::new(Datapath::new(10_000, PATIENCE_MS).unwrap());
    let mut forwarder = Forwarder::new(datapath.clone(), PORT_CACHE_ENTRIES);
    let config = NetConfig { size: 1024, ..NetConfig::default() };
    let (mut a, mut b) = (Guest::new(&datapath, 1, config, 0), Guest::new(&datapath, 2, config, 0));
    let frame = |n: u16| Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(n, 2).payload([7; 22]).build();
    let mask = FlowMask(FlowKey { in_port: u32::MAX, l4_src: u16::MAX, ..FlowKey::default() });
    for n in 0..FLOWS {
        let key = FlowKey { in_port: 1, l4_src: n, ..FlowKey::default() };
        datapath.flows().insert(FlowSpec { key, mask, ..flow(1, &[2]) }, 0).unwrap();
    }
    let (mut sent, mut came) = (0u64, 0u64);
    let mut round = |forwarder: &mut Forwarder, now_ns: u64| {
        for n in 0..500 {
            a.send(VnetHdr::default(), &frame(((sent + n) % u64::from(FLOWS)) as u16));
        }
        sent += 500;
        let asked = measure(|| while forwarder.carry(&a.port, 1, now_ns).packets > 0 {}).count_total;
        came += b.received().len() as u64;
        assert_eq!(sent, came);
        asked
    };
    let caches = || datapath.caches();
    assert_eq!(caches(), CacheFigures { entries: 1024, ..CacheFigures::default() });
    round(&mut forwarder, 0);
    let first = caches();
    assert_eq!((first.hits, first.misses, first.used + first.evicted), (0, 500, 500), "{first:?}");
    // Slowly: what goes for want of room in a moment is little.
    for s in 1..60 {
        round(&mut forwarder, s * 1_000_000_000);
    }
    assert_eq!(caches().entries, 1024);
    let mut sizes = vec![];
    for ms in 0..400 {
        assert_eq!(round(&mut forwarder, 100_000_000_000 + ms * MS), 0, "nothing but to be handed over");
        if sizes.last() != Some(&caches().entries) {
            sizes.push(caches().entries);
        }
    }
    // Some sets are still full, by chance: few.
    assert_eq!(sizes, [1024, 2048, 4096, 8192], "up to what is needed, and no further");
    let all = caches();
    assert_eq!(all.hits + all.misses, 500 * 460, "each packet was looked up once");
    assert!(all.hits > 100_000 && all.used >= u64::from(FLOWS) && all.evicted > 0, "{all:?}");
    drop(forwarder);
    assert_eq!(datapath.caches(), CacheFigures::default(), "its thread has ended");
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
        datapath.set_meter(1, Some([1 << 40, 0, 1_000_000_000]));
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
