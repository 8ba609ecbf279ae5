//! The split ring against an implementation that is not ours (the `virtio-queue` crate), over the same memory.

use crate::Reserve as _;
use crate::rig::*;
use lasthop_guestmem::{GuestMemory, RegionSpec};
use lasthop_virtqueue::driver::{DriverRing, Piece, RingLayout};
use lasthop_virtqueue::{Chains, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Queue};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use virtio_queue::{Queue as OracleQueue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

const SIZE: u16 = 16;
const BYTES: u64 = 0x1_0000;
const BUFFERS: u64 = 0x8000;

/// The same memory for them and for us.
fn shared() -> (GuestMemoryMmap, Arc<GuestMemory>) {
    let fd = lasthop_sys::memfd("oracle", BYTES).unwrap();
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: BYTES, mmap_offset: 0 };
    let ours = GuestMemory::empty().with_region(spec, &fd).unwrap();
    let file = FileOffset::new(File::from(fd), 0);
    let theirs = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), BYTES as usize, Some(file))]).unwrap();
    (theirs, Arc::new(ours))
}

fn oracle(layout: &RingLayout) -> OracleQueue {
    let mut queue = OracleQueue::new(layout.size).unwrap();
    queue.try_set_desc_table_address(GuestAddress(layout.desc)).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(layout.driver)).unwrap();
    queue.try_set_used_ring_address(GuestAddress(layout.device)).unwrap();
    queue.set_event_idx(layout.event_idx);
    queue.set_ready(true);
    queue
}

fn device(layout: &RingLayout, memory: &Arc<GuestMemory>) -> Queue {
    let queue = Queue::new(0);
    let setup = layout.setup(0, lasthop_virtqueue::feature::INDIRECT);
    queue.start(&setup, memory.clone()).unwrap();
    queue.set_enabled(true);
    queue
}

/// A descriptor: mostly sensible.
fn descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let addr = prop_oneof![6 => BUFFERS..BYTES - 600, 2 => (0u64..8).prop_map(|i| BUFFERS + 64 * i), 1 => any::<u64>()];
    let len = prop_oneof![6 => 0u32..600, 3 => (1u32..4).prop_map(|n| 16 * n), 1 => any::<u32>()];
    let flags = prop_oneof![
        8 => Just(0), 6 => Just(DESC_NEXT), 1 => Just(DESC_WRITE), 3 => Just(DESC_INDIRECT), 1 => any::<u16>()
    ];
    (addr, len, flags, prop_oneof![9 => 0u16..SIZE, 1 => any::<u16>()])
}

/// What they make of each chain: head, pieces, and whether it ended as it should.
fn their_chains(queue: &mut OracleQueue, memory: &GuestMemoryMmap) -> Vec<(u16, Vec<Piece>, bool, bool)> {
    let mut out = Vec::new();
    while let Some(chain) = queue.pop_descriptor_chain(memory) {
        let head = chain.head_index();
        let (mut pieces, mut whole, mut written) = (Vec::new(), false, false);
        for desc in chain {
            pieces.push((desc.addr().0, desc.len()));
            written |= desc.is_write_only();
            whole = !desc.has_next() && !desc.refers_to_indirect_table();
        }
        out.push((head, pieces, whole, written));
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// Any descriptors at all: what we deliver is what they deliver; what we refuse they could not follow either, or
    /// it leads out of memory, or has no bytes to it.
    #[test]
    fn chains_are_the_same(
        ring in proptest::collection::vec(descriptor(), SIZE as usize),
        tables in proptest::collection::vec(descriptor(), 32),
        heads in proptest::collection::vec(prop_oneof![20 => 0..SIZE, 1 => any::<u16>()], 1..SIZE as usize),
    ) {
        let (theirs, ours) = shared();
        let layout = RingLayout::contiguous(0, SIZE, false);
        for (i, d) in ring.iter().enumerate() {
            poke_desc(&ours, false, 16 * i as u64, d.0, d.1, d.2, d.3);
        }
        for (i, d) in tables.iter().enumerate() {
            poke_desc(&ours, false, BUFFERS + 16 * i as u64, d.0, d.1, d.2 & !DESC_INDIRECT, d.3 % 4);
        }
        for (i, head) in heads.iter().enumerate() {
            poke(&ours, layout.driver + 4 + 2 * i as u64, &head.to_le_bytes());
        }
        poke(&ours, layout.driver + 2, &(heads.len() as u16).to_le_bytes());
        let expect = their_chains(&mut oracle(&layout), &theirs);
        let queue = device(&layout, &ours);
        let mut guard = queue.lock();
        let mut chains = Box::new(Chains::default());
        let popped = guard.started().unwrap().ring.pop(&ours, &mut chains, 64);
        for (chain, (_, pieces, whole, written)) in chains.list.iter().zip(&expect) {
            if chain.is_bad() {
                prop_assert!(*written || pieces.iter().map(|p| u64::from(p.1)).sum::<u64>() > u64::from(u32::MAX));
                continue;
            }
            prop_assert!(*whole && !*written, "{pieces:?}");
            let lens: Vec<_> = chains.pieces(chain).iter().map(|p| p.len() as u32).collect();
            let wanted: Vec<_> = pieces.iter().filter(|p| p.1 > 0).collect();
            prop_assert_eq!(&lens, &wanted.iter().map(|p| p.1).collect::<Vec<_>>());
            let bytes = read(&chains.pieces(chain));
            prop_assert_eq!(bytes, wanted.iter().flat_map(|p| peek(&ours, p.0, p.1 as usize)).collect::<Vec<_>>());
        }
        if popped.is_ok() {
            prop_assert_eq!(chains.list.len(), heads.len());
        } else {
            // The one we stopped at.
            let at = chains.list.len();
            let Some((_, pieces, whole, _)) = expect.get(at) else { return Ok(()) };
            let outside = |p: &Piece| p.0 >= BYTES || p.0 + u64::from(p.1) > BYTES;
            let empty_table = ring.iter().any(|d| d.2 & DESC_INDIRECT != 0);
            prop_assert!(!whole || pieces.iter().any(outside) || empty_table, "{popped:?} {pieces:?}");
        }
    }

    /// Completing chains writes the same used ring, and asks for the same interrupts.
    #[test]
    fn used_rings_are_the_same(
        lens in proptest::collection::vec(0u32..5, 1..200),
        event_idx: bool,
        events in proptest::collection::vec(0u16..200, 200),
    ) {
        let mut layout = RingLayout::contiguous(0, SIZE, false);
        layout.event_idx = event_idx;
        let ((theirs, their_view), (_, ours)) = (shared(), shared());
        let mut drivers =
            [&their_view, &ours].map(|m| DriverRing::new(layout, m.clone()).unwrap());
        let (mut oracle, queue) = (oracle(&layout), device(&layout, &ours));
        let used = layout.device..RingLayout::bytes(SIZE, false);
        for (i, &len) in lens.iter().enumerate() {
            for driver in &mut drivers {
                driver.add(&[], &[(BUFFERS, 8)], i as u32).unwrap();
                driver.publish();
                driver.poll_used().unwrap();
            }
            // The driver's wish, whatever it is: an event index or a flag.
            for memory in [&their_view, &ours] {
                poke(memory, layout.driver + 4 + 2 * u64::from(SIZE), &events[i].to_le_bytes());
                poke(memory, layout.driver, &(if event_idx { 0 } else { events[i] & 1 }).to_le_bytes());
            }
            let chain = oracle.pop_descriptor_chain(&theirs).unwrap();
            oracle.add_used(&theirs, chain.head_index(), len).unwrap();
            let wanted = oracle.needs_notification(&theirs).unwrap();
            let mut guard = queue.lock();
            let ring = &mut guard.started().unwrap().ring;
            let mut chains = Box::new(Chains::default());
            ring.reserve(&ours, &mut chains, 0, false).unwrap();
            ring.stage_used(&chains.list[0], len);
            let got = ring.publish();
            // Without EVENT_IDX they always interrupt.
            prop_assert_eq!(got, if event_idx { wanted } else { events[i] & 1 == 0 });
            let bytes = (used.end - used.start) as usize;
            prop_assert_eq!(peek(&their_view, used.start + 2, bytes - 2), peek(&ours, used.start + 2, bytes - 2));
        }
    }

    /// Our driver against their device.
    #[test]
    fn our_driver_serves_their_device(
        ops in proptest::collection::vec((1usize..5, 0u32..100, 0usize..20), 1..300),
        event_idx: bool,
        indirect: bool,
    ) {
        let (theirs, ours) = shared();
        let mut layout = RingLayout::contiguous(0, SIZE, false);
        layout.event_idx = event_idx;
        if indirect {
            layout.indirect = Some(lasthop_virtqueue::driver::IndirectTables { addr: 0x4000, entries: 4 });
        }
        let mut driver = DriverRing::new(layout, ours.clone()).unwrap();
        let mut device = oracle(&layout);
        let (mut sent, mut done) = (VecDeque::new(), VecDeque::new());
        for (token, &(pieces, len, serve)) in ops.iter().enumerate() {
            let pieces: Vec<Piece> = (0..pieces).map(|i| (BUFFERS + 128 * i as u64, len + i as u32)).collect();
            let (readable, writable) = pieces.split_at(pieces.len() / 2);
            if driver.add(readable, writable, token as u32).is_ok() {
                sent.push_back((token as u32, pieces.clone()));
            }
            driver.publish();
            for _ in 0..serve {
                let Some(chain) = device.pop_descriptor_chain(&theirs) else { break };
                let head = chain.head_index();
                let got: Vec<Piece> = chain.map(|d| (d.addr().0, d.len())).collect();
                let (token, pieces) = sent.pop_front().unwrap();
                prop_assert_eq!(got, pieces);
                device.add_used(&theirs, head, 0).unwrap();
                done.push_back(token);
            }
            while let Some((token, _)) = driver.poll_used().unwrap() {
                prop_assert_eq!(Some(token), done.pop_front());
            }
            prop_assert!(done.is_empty());
        }
    }
}
