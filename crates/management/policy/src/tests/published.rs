//! A copy of the flows that somebody else keeps.

use super::*;
use crate::flows::Refusal;
use std::collections::BTreeMap;

type Copy = BTreeMap<u32, FlowSpec>;

fn follow(b: &mut Bench, copy: &mut Copy) {
    let Published { all_gone, flows } = b.policy.published();
    if all_gone {
        copy.clear();
    }
    for (id, flow) in flows {
        match flow {
            Some(flow) => drop(copy.insert(id, flow)),
            None => drop(copy.remove(&id)),
        }
    }
}

fn sorted<'a>(flows: impl Iterator<Item = &'a FlowSpec>) -> Vec<(FlowKey, FlowMask, Vec<Action>)> {
    let mut all: Vec<_> = flows.map(|f| (f.key, f.mask, f.actions.clone())).collect();
    all.sort_by_key(|(key, mask, _)| (*key.words(), *mask.0.words()));
    all
}

/// Whatever becomes of stations, ports and lists: what is in the copy the data plane has been told, and the other way round, but for what refuses what no
/// station may send, and flows of sources that live elsewhere.
#[test]
fn the_copy_is_what_the_data_plane_was_told() {
    let mut b = Bench::new(Limits { data_plane_caches: true, ..Limits::default() }, 4);
    b.packet(&key(1, mac(1), mac(2)));
    b.policy.publish();
    let (mut copy, mut random) = (Copy::new(), 12_345u32);
    let mut draw = |below: u32| {
        random = random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        (random >> 16) % below
    };
    let mut largest = 0;
    for step in 0..2000 {
        match draw(40) {
            0 => {
                let mut out = Effects::default();
                b.policy.clear_flows(&mut out);
                b.apply(out);
            }
            1 => {
                let port = 1 + draw(4);
                b.port_gone(port);
                b.port(port, true);
            }
            2 => b.poll(5000),
            3 => {
                let group = [0x01, 0, 0x5e, 0, 0, 1];
                b.packet(&FlowKey { eth_src: group, ..key(1, mac(1), mac(2)) });
            }
            _ => {
                b.packet(&key(1 + draw(4), mac(1 + draw(9) as u8), mac(1 + draw(9) as u8)));
            }
        }
        follow(&mut b, &mut copy);
        largest = largest.max(copy.len());
        let is_flow = |f: &&FlowSpec| Refusal::of(f).is_none();
        let told = sorted(b.table.iter().map(|(f, _)| f).filter(is_flow));
        let (learned, copied) = (sorted(copy.values()), told.len());
        assert!(learned.iter().all(|flow| told.contains(flow)), "step {step}: none too many");
        assert!(copied - learned.len() <= b.policy.flows.unlearned(), "step {step}: none too few");
    }
    assert!(largest > 20, "{largest}");
}

/// A flow that only walks of the copy find is in use, and so is its station.
#[test]
fn what_is_found_in_the_copy_does_not_age() {
    let mut b = Bench::new(Limits { data_plane_caches: true, ..Limits::default() }, 2);
    b.policy.publish();
    b.packet(&key(1, mac(1), mac(2)));
    let mut copy = Copy::new();
    follow(&mut b, &mut copy);
    let id = *copy.keys().next().unwrap();
    for _ in 0..5 {
        b.table.clear();
        b.poll(AGEING_MS * 2 / 3);
        b.policy.found_in_copy(id, b.now_ms);
    }
    assert_eq!((b.policy.flow_count(), b.policy.mac_count()), (1, 1));
    // Of one that is not there any more nothing follows.
    b.policy.found_in_copy(id + 1, b.now_ms);
    b.policy.found_in_copy(u32::MAX, b.now_ms);
    b.table.clear();
    b.poll(AGEING_MS * 2 / 3);
    b.poll(AGEING_MS * 2 / 3);
    follow(&mut b, &mut copy);
    assert_eq!((b.policy.flow_count(), b.policy.mac_count(), copy.len()), (0, 0, 0), "and not for ever");
}
