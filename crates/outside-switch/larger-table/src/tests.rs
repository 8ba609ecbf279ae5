//! Both sides over one memory.

use crate::layout::WORDS;
use crate::{ENTRIES, MARKS_BYTES, Marks, TABLE_BYTES, Table, Walks, Writer};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_sys::{SharedWords, sealed_memfd};
use lasthop_types::PortId;
use proptest::prelude::*;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

fn file() -> OwnedFd {
    sealed_memfd("larger-table", TABLE_BYTES).unwrap()
}

fn sides() -> (Writer, Table) {
    let file = file();
    (Writer::new(&file).unwrap(), Table::map(&file).unwrap())
}

/// Two masks that look at different things, and one that looks at both.
fn mask(which: u8) -> FlowMask {
    let all = FlowKey { in_port: u32::MAX, eth_dst: [0xff; 6], ..FlowKey::default() };
    match which % 3 {
        0 => FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() }),
        1 => FlowMask(FlowKey { eth_dst: [0xff; 6], ..FlowKey::default() }),
        _ => FlowMask(all),
    }
}

fn key(n: u8) -> FlowKey {
    FlowKey { in_port: u32::from(n % 8), eth_dst: [n / 8 % 4; 6], ip_ttl: n, ..FlowKey::default() }
}

fn flow(which: u8, n: u8, actions: Vec<Action>) -> FlowSpec {
    FlowSpec { key: key(n).masked(&mask(which)), mask: mask(which), actions, epoch: u64::from(n) }
}

fn to(port: u32) -> Vec<Action> {
    vec![Action::Output(PortId(port))]
}

#[test]
fn a_file_of_another_length_or_version_is_no_table() {
    assert!(Writer::new(sealed_memfd("short", 4096).unwrap()).is_err());
    assert!(Table::map(sealed_memfd("short", 4096).unwrap()).is_err());
    let file = file();
    let table = Table::map(&file).unwrap();
    assert_eq!(table.walk(&key(1)), crate::Found { flow: None, bytes: 8 }, "nobody has made it a table");
    let mut writer = Writer::new(&file).unwrap();
    assert!(writer.put(3, &flow(0, 1, to(1))));
    assert!(table.walk(&key(1)).flow.is_some());
    SharedWords::map(&file, WORDS).unwrap()[0].store(crate::layout::VERSION + 1, Relaxed);
    assert!(table.walk(&key(1)).flow.is_none());
    assert!(Marks::map(sealed_memfd("short", 4096).unwrap()).is_err());
}

#[test]
fn what_has_no_room_is_not_in_the_table_and_nor_is_what_it_replaces() {
    let (mut writer, table) = sides();
    assert!(writer.put(3, &flow(0, 1, to(1))));
    assert!(table.walk(&key(1)).flow.is_some());
    let flood = (0..200).map(|n| Action::Output(PortId(n))).collect();
    assert!(!writer.put(3, &flow(0, 1, flood)));
    assert!(table.walk(&key(1)).flow.is_none());
    assert!(!writer.put(ENTRIES as u32, &flow(0, 1, to(1))));
    // More masks than there are places, until one is given back.
    for n in 0..200 {
        let bits = FlowKey { tunnel_id: n + 1, ..FlowKey::default() };
        assert_eq!(
            writer.put(n as u32, &FlowSpec { mask: FlowMask(bits), key: bits, actions: to(1), epoch: 0 }),
            n < 128
        );
    }
    writer.remove(77);
    assert!(writer.put(500, &flow(0, 1, to(9))));
    assert_eq!(table.walk(&key(1)).flow.map(|(id, _)| id), Some(500));
    writer.clear();
    assert!(writer.is_empty() && table.walk(&key(1)).flow.is_none());
}

#[test]
fn marks_are_counted_by_flow_and_in_all() {
    let file = sealed_memfd("marks", MARKS_BYTES).unwrap();
    let (device, control) = (Marks::map(&file).unwrap(), Marks::map(&file).unwrap());
    let walk = Walks { walks: 1, hits: 1, ns: 70, bytes: 300, installed: 1 };
    device.count(&walk, Some(5));
    device.count(&Walks { walks: 1, ns: 30, ..Walks::default() }, None);
    for outside in [ENTRIES as u32, u32::MAX] {
        device.count(&walk, Some(outside));
        assert_eq!(control.of(outside), 0);
    }
    assert_eq!((control.of(5), control.of(4)), (1, 0));
    assert_eq!(control.walks(), Walks { walks: 4, hits: 3, ns: 240, bytes: 900, installed: 3 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any changes a walk finds a flow that the key meets, and none only if there is none.
    #[test]
    fn a_walk_finds_what_is_there(changes in prop::collection::vec((0u32..40, any::<u8>(), any::<u8>(), any::<bool>()), 0..200)) {
        let (mut writer, table) = sides();
        let mut model: HashMap<u32, FlowSpec> = HashMap::new();
        for (id, which, n, put) in changes {
            if put {
                let flow = flow(which, n, to(id));
                assert!(writer.put(id, &flow));
                model.insert(id, flow);
            } else {
                writer.remove(id);
                model.remove(&id);
            }
            for n in 0..=u8::MAX {
                let meets = |flow: &FlowSpec| key(n).is_of(&flow.key, &flow.mask);
                match table.walk(&key(n)).flow {
                    Some((id, found)) => assert!(meets(&found) && model.get(&id) == Some(&found), "{id}: {found:?}"),
                    None => assert!(!model.values().any(meets)),
                }
            }
        }
        assert_eq!(writer.len(), model.len());
    }

    /// A table that somebody has written anything to: a walk ends, and finds nothing that the key does not meet.
    #[test]
    fn any_words_are_walked(words in prop::collection::vec((0usize..WORDS, any::<u64>()), 0..64), small in prop::collection::vec((0usize..8192, 0u64..300), 0..200)) {
        let file = file();
        let mut writer = Writer::new(&file).unwrap();
        for n in 0..64 {
            writer.put(n.into(), &flow(n, n, to(7)));
        }
        let table = Table::map(&file).unwrap();
        let hostile = SharedWords::map(&file, WORDS).unwrap();
        for (at, word) in words.into_iter().chain(small) {
            hostile[at].store(word, Relaxed);
        }
        // Chains that go round, and masks without end.
        hostile[crate::layout::MASKS_USED].store(u64::MAX, Relaxed);
        for id in 0..64 {
            hostile[crate::layout::FLOWS + id * crate::layout::FLOW + 1].store((id as u64 + 1) % 64 + 1, Relaxed);
        }
        for n in 0..=u8::MAX {
            let found = table.walk(&key(n));
            assert!(found.bytes < 128 * (300 + 16 * 300), "bounded");
            if let Some((_, flow)) = found.flow {
                assert!(key(n).is_of(&flow.key, &flow.mask));
            }
        }
    }
}

/// A side that is killed while it writes leaves an odd number, behind which nothing is found.
#[test]
fn what_is_being_written_is_not_there() {
    use crate::layout::{FLOW, FLOWS, MASK, MASKS};
    for at in [FLOWS + 3 * FLOW, MASKS, MASKS + MASK] {
        let file = file();
        let (mut writer, table) = (Writer::new(&file).unwrap(), Table::map(&file).unwrap());
        assert!(writer.put(3, &flow(0, 1, to(1))) && table.walk(&key(1)).flow.is_some());
        SharedWords::map(&file, WORDS).unwrap()[at].fetch_or(1, Relaxed);
        // The second mask is nobody's.
        assert_eq!(table.walk(&key(1)).flow.is_some(), at == MASKS + MASK);
    }
}

/// A flow is never seen half written: its actions and epoch are those of its key, whatever happens to it while it is read.
#[test]
fn no_flow_is_seen_while_it_changes() {
    let (mut writer, table) = sides();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut seen = 0;
            while !stop.load(Relaxed) || seen == 0 {
                for n in 0..=u8::MAX {
                    if let Some((id, flow)) = table.walk(&key(n)).flow {
                        seen += 1;
                        assert!(key(n).is_of(&flow.key, &flow.mask));
                        assert_eq!(flow.actions, to(flow.epoch as u32), "of another flow, or of another time: {id}");
                    }
                }
            }
        });
        for turn in 0..200_000u32 {
            let id = turn % 7;
            let mut flow = flow((turn / 11) as u8, (turn * 31) as u8, to(turn));
            flow.epoch = turn.into();
            writer.put(id, &flow);
            if turn % 5 == 0 {
                writer.remove(id);
            }
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn as_many_flows_as_control_has_fit() {
    let (mut writer, table) = sides();
    let exact = FlowMask(FlowKey { in_port: u32::MAX, ip_src: [0xff; 16], ..FlowKey::default() });
    let key = |id: u32| FlowKey { in_port: id, ip_src: [id as u8; 16], ..FlowKey::default() };
    for id in 0..ENTRIES as u32 {
        assert!(writer.put(id, &FlowSpec { key: key(id), mask: exact, actions: to(id), epoch: 1 }));
    }
    let lost =
        (0..ENTRIES as u32).filter(|id| table.walk(&key(*id)).flow.is_none_or(|(found, _)| found != *id)).count();
    assert_eq!(lost, 0, "chains are short");
}
