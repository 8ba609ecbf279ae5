//! Rings full of rubbish, standing still or being rewritten under the device's hands: it neither panics nor loops nor
//! writes anywhere but where a device may.

use crate::Reserve as _;
use crate::rig::*;
use lasthop_virtqueue::{Chains, QueueError};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug)]
enum Op {
    /// Writes bytes at a place in the ring.
    Scribble(u16, Vec<u8>),
    Pop(usize, usize),
    Reserve(usize, bool),
    Publish,
    Kicks(bool),
    Restart,
}

/// Numbers that matter more often than others.
fn word() -> impl Strategy<Value = [u8; 16]> {
    let addr = prop_oneof![
        4 => area(0)..area(3),
        1 => Just(END - 3),
        1 => Just(0u64),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 0u32..3000, 2 => (0u32..70).prop_map(|n| n * 16), 1 => any::<u32>()];
    let low = prop_oneof![3 => 0u16..9, 1 => any::<u16>()];
    let flags = prop_oneof![1 => 0u16..9, 1 => any::<u16>(), 3 => (0u16..4, 0u16..8).prop_map(|(w, f)| {
        (w & 1) << 7 | (w >> 1) << 15 | f
    })];
    (addr, len, low, flags).prop_map(|(addr, len, low, flags)| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&low.to_le_bytes());
        bytes[14..].copy_from_slice(&flags.to_le_bytes());
        bytes
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bytes = prop_oneof![
        3 => word().prop_map(Vec::from),
        1 => (0u16..20).prop_map(|n| n.to_le_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 1..16),
    ];
    proptest::collection::vec(
        prop_oneof![
            8 => (any::<u16>(), bytes).prop_map(|(at, bytes)| Op::Scribble(at, bytes)),
            4 => (0usize..65, 0usize..3).prop_map(|(most, back)| Op::Pop(most, back)),
            3 => (0usize..70_000, any::<bool>()).prop_map(|(need, join)| Op::Reserve(need, join)),
            2 => Just(Op::Publish),
            1 => any::<bool>().prop_map(Op::Kicks),
            1 => Just(Op::Restart),
        ],
        1..120,
    )
}

/// One call of each kind; errors are fine, and whoever gets one starts the ring anew.
fn step(rig: &Rig, op: &Op) -> Result<(), QueueError> {
    let memory = rig.memory.clone();
    let mut chains = Box::new(Chains::default());
    let mut device = rig.device();
    match op {
        Op::Scribble(..) => {}
        Op::Pop(most, back) => {
            let popped = device.ring().pop(&memory, &mut chains, *most);
            assert!(chains.list.len() <= *most);
            let keep = chains.list.len().saturating_sub(*back);
            device.ring().unpop(&chains.list[keep..]);
            for chain in &chains.list[..keep] {
                let held: usize = chains.pieces(chain).iter().map(|p| p.len()).sum();
                assert_eq!(held, if chain.is_bad() { 0 } else { chain.len() as usize });
                device.ring().stage_used(chain, 0);
            }
            popped?;
        }
        Op::Reserve(need, join) => {
            device.ring().reserve(&memory, &mut chains, *need, *join)?;
            for chain in &chains.list {
                device.ring().stage_used(chain, chain.len());
            }
        }
        Op::Publish => {
            device.ring().publish();
        }
        Op::Kicks(true) => {
            device.ring().enable_kicks(0)?;
        }
        Op::Kicks(false) => device.ring().disable_kicks(),
        Op::Restart => return Err(QueueError::ChainTooLong),
    }
    Ok(())
}

fn restart(rig: &Rig) {
    let base = rig.queue.stop().unwrap_or(0);
    rig.queue.start(&rig.layout.setup(base, 0), rig.memory.clone()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn rubbish_is_survived_and_nothing_else_is_touched(kind in kinds(), ops in ops()) {
        let rig = Rig::new(kind);
        let bytes = lasthop_virtqueue::driver::RingLayout::bytes(kind.size, kind.packed);
        let watched = 0x4_0000;
        let mut image = peek(&rig.memory, 0, watched);
        for op in &ops {
            if let Op::Scribble(at, scribble) = op {
                let at = u64::from(*at) % bytes;
                let at = if scribble.len() == 16 { at & !15 } else { at };
                poke(&rig.memory, at, scribble);
            }
            if step(&rig, op).is_err() {
                restart(&rig);
            }
            // The device's own part of the ring may have changed, and what we scribbled; nothing else.
            let now = peek(&rig.memory, 0, watched);
            let mine = if kind.packed { 0 } else { rig.layout.device as usize };
            if let Op::Scribble(..) = op {
                image.copy_from_slice(&now);
            }
            prop_assert!(image[bytes as usize..] == now[bytes as usize..]);
            prop_assert!(kind.packed || image[..mine] == now[..mine]);
            if kind.packed {
                let (driver, device) = (rig.layout.driver as usize, rig.layout.device as usize);
                prop_assert!(image[driver..device] == now[driver..device]);
            }
            image = now;
        }
    }
}

/// A second thread of the guest rewrites the ring as fast as it can while the device works on it (G8).
#[test]
fn g8_rewritten_while_in_use() {
    for packed in [false, true] {
        let rig = Rig::new(Kind { size: 64, packed, event_idx: true, in_order: false, indirect: true });
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seed = 0x9e37_79b9_7f4a_7c15u64;
                let mut random = || {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed
                };
                while !done.load(Ordering::Relaxed) {
                    let r = random();
                    let at = rig.layout.desc + 16 * (r % 64);
                    let len = (r >> 8) as u32 % 4000;
                    let flags = (r >> 40) as u16 & 0x8087;
                    poke_desc(&rig.memory, packed, at, area((r >> 56) as u32 % 64), len & !15, flags, r as u16 % 64);
                    if !packed {
                        let index = peek(&rig.memory, rig.layout.device + 2, 2);
                        let index = u16::from_le_bytes([index[0], index[1]]).wrapping_add((r >> 20) as u16 % 64);
                        poke(&rig.memory, rig.layout.driver + 2, &index.to_le_bytes());
                        poke(&rig.memory, rig.layout.driver + 4 + 2 * (r % 64), &(r as u16 % 65).to_le_bytes());
                    }
                }
            });
            let (mut worked, mut broke) = (0, 0);
            // Until the other thread has been seen at work, however late it was given a processor.
            let enough = |round: u32, broke: u32| round >= 60_000 && broke > 0 || round >= 20_000_000;
            let mut round = 0u32;
            while !enough(round, broke) {
                round += 1;
                let op = match round % 4 {
                    0 => Op::Pop(64, 1),
                    1 => Op::Reserve(2000, true),
                    2 => Op::Publish,
                    _ => Op::Kicks(round % 8 == 3),
                };
                match step(&rig, &op) {
                    Ok(()) => worked += 1,
                    Err(_) => {
                        broke += 1;
                        restart(&rig);
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
            assert!(worked > 0 && broke > 0, "{worked} {broke}");
        });
    }
}

/// A driver makes what is used available again although it has not been shown that yet: no slot is staged twice.
#[test]
fn g14_slots_that_were_used_and_not_shown_are_not_taken_again() {
    for in_order in [false, true] {
        let kind = Kind { size: 16, packed: true, event_idx: false, in_order, indirect: false };
        let rig = Rig::new(kind);
        // Available in the first lap, then in the second.
        for (flags, expected) in [(1 << 7, 16u16), (1 << 15, 0)] {
            let at = |i: u16| rig.layout.desc + 16 * u64::from(i);
            (0..16u16).for_each(|i| poke_desc(&rig.memory, true, at(i), area(0), 1, flags, i));
            let mut device = rig.device();
            let (memory, mut chains) = (device.memory, Box::new(Chains::default()));
            device.ring().pop(memory, &mut chains, 64).unwrap();
            assert_eq!(chains.list.len(), usize::from(expected), "flags {flags:#x}");
            chains.list.iter().for_each(|chain| device.ring().stage_used(chain, 0));
        }
        rig.device().ring().publish();
        let used = (0..16u16).map(|i| peek(&rig.memory, rig.layout.desc + 16 * u64::from(i) + 14, 2));
        assert!(used.into_iter().all(|flags| flags == [0x80, 0x80]), "each is shown as used, once");
    }
}
