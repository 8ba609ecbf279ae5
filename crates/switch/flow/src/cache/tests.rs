use super::*;
use crate::{Action, FlowSpec, FlowTable, hash_key};
use lasthop_frame::FlowMask;
use lasthop_types::PortId;

fn flow_to(table: &FlowTable, last: u8) -> Arc<Flow> {
    let spec = FlowSpec {
        key: packet(last),
        mask: FlowMask(FlowKey { eth_dst: [0xff; 6], ..FlowKey::default() }),
        actions: vec![Action::Output(PortId(1))],
        epoch: 0,
    };
    table.insert(spec, 0).unwrap()
}

fn packet(last: u8) -> FlowKey {
    FlowKey { in_port: 1, eth_dst: [2, 0, 0, 0, 0, last], eth_src: [2, 0, 0, 0, 1, last], ..FlowKey::default() }
}

fn ask(cache: &ExactCache, key: &FlowKey) -> bool {
    cache.find(key, Depth::L2, hash_key(key, Depth::L2)).is_some()
}

#[test]
fn a_set_is_one_cache_line() {
    assert_eq!((size_of::<Set>(), align_of::<Set>()), (64, 64));
}

#[test]
fn dead_flows_are_never_returned() {
    let table = FlowTable::new(2);
    let mut cache = ExactCache::new(64, 64);
    let flow = flow_to(&table, 1);
    cache.put(hash_key(&packet(1), Depth::L2), flow.clone());
    assert!(ask(&cache, &packet(1)) && !ask(&cache, &packet(2)));
    table.remove(&flow.key, &flow.mask);
    assert!(!ask(&cache, &packet(1)), "removed");

    let flow = flow_to(&table, 1);
    cache.put(hash_key(&packet(1), Depth::L2), flow.clone());
    flow_to(&table, 1);
    assert!(!ask(&cache, &packet(1)), "replaced");

    let flow = flow_to(&table, 5);
    cache.put(hash_key(&packet(5), Depth::L2), flow.clone());
    for last in 6..9 {
        flow_to(&table, last);
    }
    assert!(flow.is_dead() && !ask(&cache, &packet(5)), "evicted");
}

#[test]
fn equal_hashes_of_different_keys_are_told_apart() {
    let table = FlowTable::new(10);
    let mut cache = ExactCache::new(64, 64);
    cache.put(42, flow_to(&table, 1));
    assert!(cache.find(&packet(1), Depth::L2, 42).is_some());
    assert!(cache.find(&packet(2), Depth::L2, 42).is_none());
    cache.put(42, flow_to(&table, 2));
    assert!(cache.find(&packet(2), Depth::L2, 42).is_some());
    cache.put(0, flow_to(&table, 3));
    assert!(cache.find(&packet(3), Depth::L2, 0).is_some(), "zero is a hash like any other");
}

#[test]
fn a_flow_deeper_than_the_key_is_not_met() {
    let table = FlowTable::new(10);
    let spec = FlowSpec {
        key: FlowKey::default(),
        mask: FlowMask(FlowKey { l4_dst: 0xffff, ..FlowKey::default() }),
        actions: vec![],
        epoch: 0,
    };
    let mut cache = ExactCache::new(64, 64);
    cache.put(7, table.insert(spec, 0).unwrap());
    assert!(cache.find(&packet(1), Depth::L2, 7).is_none(), "its port is not known to be 0");
    assert!(cache.find(&packet(1), Depth::L4, 7).is_some());
}

#[test]
fn holds_what_fits_and_lets_go() {
    let table = FlowTable::new(300);
    let mut cache = ExactCache::new(4, 4);
    let flows: Vec<_> = (0..200).map(|last| flow_to(&table, last)).collect();
    for (last, flow) in flows.iter().enumerate() {
        cache.put(hash_key(&packet(last as u8), Depth::L2), flow.clone());
        assert!(ask(&cache, &packet(last as u8)));
    }
    let known = (0..200).filter(|last| ask(&cache, &packet(*last))).count();
    assert_eq!(known, 4, "one set of four");
}

#[test]
fn hashes_depend_on_what_the_depth_covers() {
    let (a, b) = (packet(1), FlowKey { l4_dst: 80, ..packet(1) });
    assert_eq!(hash_key(&a, Depth::L2), hash_key(&b, Depth::L2));
    assert_ne!(hash_key(&a, Depth::L4), hash_key(&b, Depth::L4));
    // Low bits choose sets and queues: 4096 neighbouring addresses fill 64 bins without a hole.
    let mut bins = [0; 64];
    for n in 0..4096u16 {
        let [hi, lo] = n.to_be_bytes();
        let key = FlowKey { eth_src: [2, 0, 0, 0, hi, lo], ..packet(1) };
        bins[hash_key(&key, Depth::L2) as usize % 64] += 1;
    }
    assert!(bins.iter().all(|n| (20..130).contains(n)), "{bins:?}");
}
