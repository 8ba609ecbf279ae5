use super::*;
use crate::WriterId;
use crate::testutil::{Step, blind, check, compare};
use proptest::prelude::*;

const ALL_PORT: u32 = u32::MAX;

fn to_mac(last: u8) -> FlowSpec {
    FlowSpec {
        key: FlowKey { eth_dst: [2, 0, 0, 0, 0, last], ..FlowKey::default() },
        mask: FlowMask(FlowKey { eth_dst: [0xff; 6], ..FlowKey::default() }),
        actions: vec![Action::Output(PortId(u32::from(last)))],
        epoch: 1,
    }
}

fn packet(last: u8) -> FlowKey {
    FlowKey { in_port: 9, eth_src: [2; 6], eth_type: 0x800, ..to_mac(last).key }
}

fn met(table: &FlowTable, key: &FlowKey) -> Option<Arc<Flow>> {
    match table.lookup(key, Depth::Full) {
        Lookup::Flow(flow) => Some(flow),
        Lookup::Miss => None,
        Lookup::Deeper(d) => panic!("nothing is deeper than Full, but {d:?} was asked for"),
    }
}

/// Flows of one flood take the memory of one list.
#[test]
fn equal_lists_of_many_actions_are_kept_once() {
    let table = FlowTable::new(100);
    let flood = |last: u8, ports: u32| {
        let actions = (0..ports).map(|port| Action::Output(PortId(port))).collect();
        table.insert(FlowSpec { actions, ..to_mac(last) }, 0).unwrap()
    };
    let flows: Vec<_> = (0..50).map(|last| flood(last, 500)).collect();
    assert_eq!(Arc::strong_count(&flows[0].actions), 50);
    assert!(flows.iter().all(|flow| flow.actions.len() == 500));
    let (other, short) = (flood(50, 499), [51, 52].map(|last| flood(last, 2)));
    assert_eq!((Arc::strong_count(&other.actions), Arc::strong_count(&short[0].actions)), (1, 1));
}

#[test]
fn a_packet_meets_its_flow_until_it_is_removed() {
    let table = FlowTable::new(10);
    assert!(met(&table, &packet(1)).is_none());
    let flow = table.insert(to_mac(1), 5).unwrap();
    assert!(Arc::ptr_eq(&met(&table, &packet(1)).unwrap(), &flow));
    assert!(met(&table, &packet(2)).is_none());
    assert_eq!((table.flows().len(), table.inner.read().subtables.len(), flow.stats.last_used_ms()), (1, 1, 5));
    assert!(table.remove(&packet(1), &flow.mask).is_some(), "bits outside the mask do not matter");
    assert!(flow.is_dead() && met(&table, &packet(1)).is_none() && table.flows().is_empty());
    assert_eq!(table.inner.read().subtables.len(), 0);
    assert!(table.remove(&packet(1), &flow.mask).is_none());
}

/// Flows come, go and are used while somebody goes through them: those that stay are all met.
#[test]
fn whoever_goes_through_the_flows_misses_none_that_stay() {
    let table = FlowTable::new(60);
    let (mut cursor, mut seen) = ((0, 0, 0), std::collections::BTreeSet::new());
    for n in 0..50 {
        table.insert(to_mac(n), u64::from(n / 10)).unwrap();
    }
    let mut turns = 0;
    loop {
        let (flows, next) = table.flows_after(cursor, 7);
        assert!(flows.len() <= 7);
        seen.extend(flows.iter().map(|f| f.key.eth_dst[5]));
        // One goes, one comes, one is used, and one is replaced; the table becomes full, so that some are filed again.
        table.remove(&packet(2 * turns + 1), &to_mac(1).mask);
        table.insert(to_mac(100 + turns), 100).unwrap();
        met(&table, &packet(20)).unwrap().stats.add(WriterId::default(), 1, 60, 200 + u64::from(turns));
        table.insert(to_mac(40), 100).unwrap();
        turns += 1;
        match next {
            Some(next) => cursor = next,
            None => break,
        }
        assert!(turns < 40, "it ends");
    }
    // What was replaced is new.
    let stayed: Vec<_> = table.flows().iter().map(|f| f.key.eth_dst[5]).filter(|n| *n < 50 && *n != 40).collect();
    assert!(stayed.len() > 20 && stayed.iter().all(|n| seen.contains(n)), "{stayed:?} {seen:?}");
}

/// More flows come than are looked at.
#[test]
fn going_through_the_flows_ends_however_many_come() {
    let table = FlowTable::new(100_000);
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    let place = |n: u32| FlowSpec { key: FlowKey { in_port: n, ..FlowKey::default() }, mask, ..to_mac(1) };
    (0..200).for_each(|n| drop(table.insert(place(n), 1).unwrap()));
    let (mut cursor, mut met, mut turns) = (Some((0, 0, 0)), 0, 0);
    while let Some(after) = cursor {
        let (flows, next) = table.flows_after(after, 64);
        (met, cursor, turns) = (met + flows.len(), next, turns + 1);
        (0..96).for_each(|n| drop(table.insert(place(turns * 1000 + n), 1 + u64::from(turns)).unwrap()));
        assert!(turns < 100, "it does not end");
    }
    assert_eq!(met, 200);
}

#[test]
fn replacing_kills_the_old_flow_and_keeps_its_counts() {
    let table = FlowTable::new(10);
    let old = table.insert(to_mac(1), 5).unwrap();
    old.stats.add(WriterId::default(), 3, 200, 77);
    let new = table.insert(FlowSpec { actions: vec![], epoch: 2, ..to_mac(1) }, 80).unwrap();
    assert!(old.is_dead() && !new.is_dead());
    assert_eq!(table.flows().len(), 1);
    assert_eq!((new.stats.packets(), new.stats.bytes(), new.stats.last_used_ms()), (3, 200, 80));
    assert_eq!((met(&table, &packet(1)).unwrap().epoch, new.spec().actions), (2, vec![]));
}

#[test]
fn the_least_recently_used_flow_goes_first() {
    let table = FlowTable::new(4);
    let flows: Vec<_> = (0..4).map(|i| table.insert(to_mac(i), u64::from(i)).unwrap()).collect();
    flows[0].stats.add(WriterId::default(), 1, 60, 100);
    flows[2].stats.add(WriterId::default(), 1, 60, 50);
    let mut gone = vec![];
    for i in 10..14 {
        table.insert(to_mac(i), 200).unwrap();
        assert_eq!(table.flows().len(), 4);
        gone.extend((0..4).filter(|i| flows[*i].is_dead() && !gone.contains(i)).collect::<Vec<_>>());
    }
    assert_eq!(gone, [1, 3, 2, 0]);
    // Among equals the one installed first.
    table.insert(to_mac(20), 300).unwrap();
    assert!(met(&table, &packet(10)).is_none() && met(&table, &packet(11)).is_some());
}

#[test]
fn a_replaced_flow_does_not_evict_and_churn_does_not_grow() {
    let table = FlowTable::new(2);
    let keep = table.insert(to_mac(1), 1).unwrap();
    for i in 0..10_000 {
        table.insert(to_mac(2), i).unwrap();
    }
    assert!(!keep.is_dead());
    assert_eq!(table.flows().len(), 2);
    assert!(Arc::strong_count(&keep) < 5);
    let churned = table.insert(to_mac(2), 0).unwrap();
    table.remove(&churned.key, &churned.mask);
    for i in 0..200 {
        let flow = table.insert(to_mac(3), i).unwrap();
        table.remove(&flow.key, &flow.mask);
    }
    assert_eq!(Arc::strong_count(&churned), 1, "the table lets go of removed flows");
}

#[test]
fn flows_of_a_port_go_with_it() {
    let table = FlowTable::new(100);
    let from = |port, mask| FlowSpec {
        key: FlowKey { in_port: port, ..to_mac(port as u8).key },
        mask: FlowMask(FlowKey { in_port: mask, ..to_mac(0).mask.0 }),
        actions: vec![],
        epoch: 0,
    };
    table.insert(from(7, ALL_PORT), 0).unwrap();
    table.insert(from(8, ALL_PORT), 0).unwrap();
    table.insert(from(7, 0xf), 0).unwrap();
    table.insert(to_mac(7), 0).unwrap();
    table
        .insert(FlowSpec { actions: vec![Action::Output(PortId(1)), Action::Output(PortId(7))], ..to_mac(9) }, 0)
        .unwrap();
    assert_eq!(table.remove_port(PortId(7)), 3);
    assert_eq!(table.remove_port(PortId(7)), 0);
    let left: Vec<_> = table.flows().iter().map(|f| f.key.in_port).collect();
    assert_eq!(left.len(), 2, "port 8's, and the one that several ports may meet: {left:?}");
}

#[test]
fn masks_are_limited_and_freed() {
    let table = FlowTable::new(1000);
    let with_mask = |n: u16| FlowSpec { mask: FlowMask(FlowKey { eth_type: n, ..to_mac(0).mask.0 }), ..to_mac(1) };
    for n in 0..MAX_MASKS as u16 {
        table.insert(with_mask(n), 0).unwrap();
    }
    let one_more = with_mask(0x8000);
    assert_eq!(table.insert(one_more.clone(), 0).unwrap_err(), InsertError::TooManyMasks);
    table.insert(with_mask(3), 0).expect("a mask in use");
    table.remove(&with_mask(5).key, &with_mask(5).mask).unwrap();
    table.insert(one_more, 0).expect("one mask became free");
    assert_eq!(table.inner.read().subtables.len(), MAX_MASKS);
}

#[test]
fn depth_follows_the_flows() {
    let table = FlowTable::new(10);
    table.insert(to_mac(1), 0).unwrap();
    assert_eq!(table.depth(), Depth::L2);
    let web = FlowSpec {
        key: FlowKey { l4_dst: 80, ..FlowKey::default() },
        mask: FlowMask(FlowKey { l4_dst: 0xffff, ..FlowKey::default() }),
        actions: vec![],
        epoch: 0,
    };
    table.insert(web.clone(), 0).unwrap();
    assert_eq!(table.depth(), Depth::L4);
    assert!(matches!(table.lookup(&packet(1), Depth::L2), Lookup::Deeper(Depth::L4)));
    assert!(matches!(table.lookup(&packet(1), Depth::L4), Lookup::Flow(_)));
    table.remove(&web.key, &web.mask);
    assert_eq!(table.depth(), Depth::L2);
    let spoofed = FlowSpec {
        key: FlowKey { arp_sha: [9; 6], ..FlowKey::default() },
        mask: FlowMask(FlowKey { arp_sha: [0xff; 6], ..FlowKey::default() }),
        ..web
    };
    table.insert(spoofed, 0).unwrap();
    assert_eq!(table.depth(), Depth::Full);
}

#[test]
fn ranking_keeps_every_answer() {
    let table = FlowTable::new(100);
    table.insert(to_mac(1), 0).unwrap();
    let by_type = FlowSpec {
        key: FlowKey { eth_type: 0x806, ..FlowKey::default() },
        mask: FlowMask(FlowKey { eth_type: 0xffff, ..FlowKey::default() }),
        actions: vec![],
        epoch: 0,
    };
    table.insert(by_type.clone(), 0).unwrap();
    let arp = FlowKey { eth_type: 0x806, ..packet(2) };
    for _ in 0..10 {
        assert!(met(&table, &arp).is_some());
    }
    table.rank();
    assert_eq!(table.inner.read().subtables[0].mask, by_type.mask);
    assert!(met(&table, &arp).is_some() && met(&table, &packet(1)).is_some() && met(&table, &packet(2)).is_none());
}

/// As many flows as a guest may have in one bucket if it knew how.
#[test]
fn flows_that_collide_are_scattered_before_they_are_many() {
    let table = FlowTable::new(1000);
    table.inner.write().rehash(blind(u64::MAX));
    for n in 0..MOST as u8 {
        table.insert(to_mac(n), 0).unwrap();
    }
    // All in one, and each is found.
    assert!((0..MOST as u8).all(|n| met(&table, &packet(n)).is_some()));
    let chains = |table: &FlowTable| table.inner.read().subtables[0].flows.longest();
    assert_eq!(chains(&table), MOST);
    table.insert(to_mac(MOST as u8), 0).unwrap();
    assert!(chains(&table) < MOST, "the secrets are new");
    assert!((0..=MOST as u8).all(|n| met(&table, &packet(n)).is_some()));
    assert!(met(&table, &packet(MOST as u8 + 1)).is_none());
    check(&table.inner.read());
}

/// What removed flows leave behind does not grow: after any number of them a lookup in vain ends at the bit of its bucket as often as in a new
/// table.
#[test]
fn removed_flows_leave_nothing_behind() {
    let (old, new) = (FlowTable::new(200), FlowTable::new(200));
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    let flow = |n: u32| FlowSpec { key: FlowKey { in_port: n, ..FlowKey::default() }, mask, ..to_mac(1) };
    for n in 0..20_000 {
        old.insert(flow(n), 0).unwrap();
        // Some go for want of room, some one by one, some many at a time.
        match n % 500 {
            50..100 => drop(old.remove(&flow(n - 10).key, &mask)),
            499 => drop(old.remove_if(|flow| flow.key.in_port % 3 == 0)),
            _ => {}
        }
    }
    // The mask, and with it the table, stays.
    old.remove_if(|flow| flow.key.in_port != 19_998);
    for table in [&old, &new] {
        (0..100).for_each(|n| drop(table.insert(flow(n), 0).unwrap()));
        check(&table.inner.read());
    }
    let taken = |table: &FlowTable| table.inner.read().subtables[0].flows.taken();
    assert!(taken(&old) <= 101 && taken(&new) <= 100, "{} and {}", taken(&old), taken(&new));
}

#[test]
fn what_most_masks_look_at_is_hashed_once() {
    let table = FlowTable::new(100);
    let (port, eth_type) = (FlowKey { in_port: u32::MAX, ..FlowKey::default() }, u16::MAX);
    let with = |mask| table.insert(FlowSpec { mask: FlowMask(mask), ..to_mac(1) }, 0).unwrap();
    let terms = || {
        let inner = table.inner.read();
        check(&inner);
        (
            inner.common.len(),
            inner
                .subtables
                .iter()
                .map(|s| usize::from(s.first.of(&[u32::MAX; PARTS]) != 0) + s.rest.len())
                .collect::<Vec<_>>(),
        )
    };
    let first = with(FlowKey { l4_dst: 1, ..port });
    assert_eq!(terms(), (2, vec![0]), "all of one mask is what most look at");
    with(FlowKey { l4_dst: 2, eth_type, ..port });
    assert_eq!(terms(), (1, vec![1, 2]), "the port, and not the rest");
    let third = with(FlowKey { ip_ttl: 1, eth_type, ..port });
    assert_eq!(terms(), (2, vec![2, 1, 1]), "the port and the type, which the first has to take back");
    table.remove(&third.key, &third.mask).unwrap();
    table.remove(&first.key, &first.mask).unwrap();
    assert_eq!(terms(), (3, vec![0]));
}

/// Few values for each field, so that keys meet.
fn keys() -> impl Strategy<Value = FlowKey> {
    (0u32..3, 0u8..3, 0u16..2, 0u8..2, 0u16..2, 0u8..2).prop_map(|(in_port, mac, eth_type, ip, l4_dst, sha)| FlowKey {
        in_port,
        eth_dst: [mac; 6],
        eth_type,
        ip_dst: [ip; 16],
        l4_dst,
        arp_sha: [sha; 6],
        ..FlowKey::default()
    })
}

fn masks() -> impl Strategy<Value = FlowMask> {
    let bit = |on: bool| if on { u32::MAX } else { 0 };
    (any::<bool>(), any::<bool>(), any::<bool>(), 0u8..8).prop_map(move |(port, mac, eth_type, deep)| {
        FlowMask(FlowKey {
            in_port: bit(port),
            eth_dst: [bit(mac) as u8; 6],
            eth_type: bit(eth_type) as u16,
            ip_dst: [bit(deep == 5) as u8; 16],
            l4_dst: bit(deep == 6) as u16,
            arp_sha: [bit(deep == 7) as u8; 6],
            ..FlowKey::default()
        })
    })
}

fn specs() -> impl Strategy<Value = FlowSpec> {
    (keys(), masks(), proptest::collection::vec(0u32..3, 0..3), 0u64..3).prop_map(|(key, mask, outputs, epoch)| {
        FlowSpec { key, mask, actions: outputs.into_iter().map(|p| Action::Output(PortId(p))).collect(), epoch }
    })
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => specs().prop_map(Step::Insert),
        2 => specs().prop_map(Step::Remove),
        1 => (0u32..3).prop_map(Step::RemovePort),
        8 => keys().prop_map(Step::Packet),
        1 => Just(Step::Rank),
        1 => prop_oneof![Just(u64::MAX), any::<u64>()].prop_map(Step::Collide),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_list(steps in proptest::collection::vec(steps(), 1..120)) {
        compare(steps);
    }
}
