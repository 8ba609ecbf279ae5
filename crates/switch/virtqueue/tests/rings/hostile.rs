//! Drivers and devices that break the rules. A driver's error stops the ring with a reason that names it; nothing
//! panics, and a new start makes everything good. (G: a guest's rings; D: a driver domain's device.)

use crate::Reserve as _;
use crate::rig::*;
use lasthop_guestmem::AccessError;
use lasthop_virtqueue::driver::{DriverError, DriverRing, RingLayout};
use lasthop_virtqueue::{
    Chains, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, MAX_PIECES, Queue, QueueError, QueueSetup, Reserved,
};

const SIZE: u16 = 16;
const BOTH: [bool; 2] = [false, true];

/// A rig whose driver makes hand-written descriptors available.
struct Raw {
    rig: Rig,
    packed: bool,
}

impl Raw {
    fn new(packed: bool) -> Self {
        Self::with(Kind { size: SIZE, packed, event_idx: false, in_order: false, indirect: true })
    }

    fn with(kind: Kind) -> Self {
        Self { rig: Rig::new(kind), packed: kind.packed }
    }

    /// Descriptor `i` of the ring. `x`: split's next, packed's id. Packed ones are available in the first lap.
    fn desc(&self, i: u16, addr: u64, len: u32, flags: u16, x: u16) {
        let flags = if self.packed { flags | 1 << 7 } else { flags };
        let at = self.rig.layout.desc + 16 * u64::from(i);
        poke_desc(&self.rig.memory, self.packed, at, addr, len, flags, x);
    }

    /// Descriptor `i` of the table at `area(0)`.
    fn table(&self, i: u16, addr: u64, len: u32, flags: u16, x: u16) {
        poke_desc(&self.rig.memory, self.packed, area(0) + 16 * u64::from(i), addr, len, flags, x);
    }

    /// Makes split heads available.
    fn heads(&self, heads: &[u16]) {
        if self.packed {
            return;
        }
        for (i, head) in heads.iter().enumerate() {
            poke(&self.rig.memory, self.rig.layout.driver + 4 + 2 * i as u64, &head.to_le_bytes());
        }
        self.avail_index(heads.len() as u16);
    }

    fn avail_index(&self, index: u16) {
        poke(&self.rig.memory, self.rig.layout.driver + 2, &index.to_le_bytes());
    }

    /// What popping gives: the lengths of the chains before the error, and the error.
    fn pop(&self) -> (Vec<u32>, Result<(), QueueError>) {
        let mut device = self.rig.device();
        let (memory, mut chains) = (device.memory, Box::new(Chains::default()));
        let result = device.ring().pop(memory, &mut chains, 64);
        (chains.list.iter().map(|c| c.len()).collect(), result)
    }

    /// The one chain there is breaks the ring, and after a new start the ring works.
    fn breaks(mut self, wanted: QueueError) {
        assert_eq!(self.pop(), (vec![], Err(wanted)));
        assert_eq!(self.pop(), (vec![], Err(wanted)), "an error does not go away by itself");
        self.rig.queue.lock().fail(wanted);
        assert_eq!(self.rig.queue.status().error, Some(wanted));
        assert!(!self.rig.queue.is_ready());
        let layout = self.rig.layout;
        self.rig.driver = DriverRing::new(layout, self.rig.memory.clone()).unwrap();
        self.rig.queue.start(&layout.setup(self.rig.driver.base(), 0), self.rig.memory.clone()).unwrap();
        assert_eq!(self.rig.queue.status().error, None);
        self.rig.driver.add(&[(area(1), 3)], &[], 77).unwrap();
        self.rig.driver.publish();
        assert_eq!(self.rig.device().serve().unwrap().len(), 1);
        assert_eq!(self.rig.driver.poll_used(), Ok(Some((77, 0))));
    }
}

fn outside(addr: u64, len: u64) -> QueueError {
    QueueError::Buffer(AccessError { addr, len, asked: None })
}

#[test]
fn g2_chains_shorter_than_a_header_are_delivered_as_they_are() {
    for kind in every_kind(SIZE) {
        let mut rig = Rig::new(kind);
        for len in 0..=12 {
            rig.driver.add(&[(area(0), len)], &[], len).unwrap();
        }
        rig.driver.publish();
        let lens: Vec<_> = rig.device().serve().unwrap().iter().map(Vec::len).collect();
        assert_eq!(lens, (0..=12).collect::<Vec<_>>());
    }
}

#[test]
fn g3_a_header_in_one_byte_pieces() {
    for kind in every_kind(64) {
        let mut rig = Rig::new(kind);
        let pieces: Vec<_> = (0..61).map(|i| (area(0) + 3 * i, 1)).collect();
        for (i, piece) in pieces.iter().enumerate() {
            poke(&rig.memory, piece.0, &[i as u8]);
        }
        rig.driver.add(&pieces, &[], 1).unwrap();
        rig.driver.publish();
        assert_eq!(rig.device().serve().unwrap(), [(0..61).collect::<Vec<u8>>()]);
        assert_eq!(rig.driver.poll_used(), Ok(Some((1, 0))));
    }
}

/// The longest table a driver may build, each byte of it over the seam of two regions: more pieces than are kept.
#[test]
fn g3_more_pieces_than_anybody_keeps_go_back_unread() {
    for packed in BOTH {
        let raw = Raw::new(packed);
        let entries = 1024u16;
        for i in 0..entries {
            let flags = if i + 1 < entries { DESC_NEXT } else { 0 };
            raw.table(i, SEAM - 1, 2, flags, i + 1);
        }
        raw.desc(0, area(0), 16 * u32::from(entries), DESC_INDIRECT, 0);
        raw.heads(&[0]);
        let mut device = raw.rig.device();
        let (memory, mut chains) = (device.memory, Box::new(Chains::default()));
        device.ring().pop(memory, &mut chains, 64).unwrap();
        assert_eq!(chains.list.len(), 1);
        assert_eq!(2 * usize::from(entries) > MAX_PIECES, chains.list[0].is_bad());
        assert!(chains.list.iter().map(|chain| chains.pieces(chain).len()).sum::<usize>() <= MAX_PIECES);
    }
}

#[test]
fn g5_buffers_outside_of_memory_break_the_ring() {
    // Address, length, and what is found to be outside.
    let cases = [
        (u64::MAX - 3, 16, (u64::MAX - 3, 16)),
        (u64::MAX, 1, (u64::MAX, 1)),
        (END, 1, (END, 1)),
        (END - 10, 11, (END, 1)),
        (END - 1, u32::MAX, (END, u64::from(u32::MAX) - 1)),
        (END, 0, (END, 0)),
        (u64::MAX, 0, (u64::MAX, 0)),
        (1 << 63, 0, (1 << 63, 0)),
    ];
    for packed in BOTH {
        for (addr, len, (bad_addr, bad_len)) in cases {
            let raw = Raw::new(packed);
            raw.desc(0, addr, len, 0, 0);
            raw.heads(&[0]);
            raw.breaks(outside(bad_addr, bad_len));
            let raw = Raw::new(packed);
            raw.desc(0, area(0), 32, DESC_INDIRECT, 0);
            raw.table(0, area(1), 0, DESC_NEXT, 1);
            raw.table(1, addr, len, 0, 0);
            raw.heads(&[0]);
            raw.breaks(outside(bad_addr, bad_len));
        }
    }
}

#[test]
fn g5_what_came_before_a_broken_chain_is_still_delivered() {
    for packed in BOTH {
        let raw = Raw::new(packed);
        raw.desc(0, area(0), 10, 0, 0);
        raw.desc(1, area(1), 20, 0, 1);
        raw.desc(2, END, 30, 0, 2);
        raw.desc(3, area(3), 40, 0, 3);
        raw.heads(&[0, 1, 2, 3]);
        assert_eq!(raw.pop(), (vec![10, 20], Err(outside(END, 30))));
    }
}

#[test]
fn g6_split_chains_that_lead_nowhere() {
    let raw = Raw::new(false);
    raw.heads(&[SIZE]);
    raw.breaks(QueueError::DescriptorIndex { index: 16, entries: 16 });
    let raw = Raw::new(false);
    raw.heads(&[u16::MAX]);
    raw.breaks(QueueError::DescriptorIndex { index: 65535, entries: 16 });
    let raw = Raw::new(false);
    raw.desc(0, area(0), 1, DESC_NEXT, SIZE);
    raw.heads(&[0]);
    raw.breaks(QueueError::DescriptorIndex { index: 16, entries: 16 });
    // Loops: to itself, and through all.
    let raw = Raw::new(false);
    raw.desc(0, area(0), 1, DESC_NEXT, 0);
    raw.heads(&[0]);
    raw.breaks(QueueError::ChainTooLong);
    let raw = Raw::new(false);
    for i in 0..SIZE {
        raw.desc(i, area(0), 1, DESC_NEXT, (i + 1) % SIZE);
    }
    raw.heads(&[0]);
    raw.breaks(QueueError::ChainTooLong);
}

#[test]
fn g6_indirect_tables() {
    for packed in BOTH {
        // Odd lengths, none, and one that is too long to be followed.
        for len in [0, 1, 15, 17, 16 * 1024 + 8, u32::MAX] {
            let raw = Raw::new(packed);
            raw.desc(0, area(0), len, DESC_INDIRECT, 0);
            raw.heads(&[0]);
            raw.breaks(QueueError::Indirect(len));
        }
        // A table over the seam of two regions: each half is in memory, the whole is not contiguous for us.
        let raw = Raw::new(packed);
        raw.desc(0, SEAM - 16, 32, DESC_INDIRECT, 0);
        raw.heads(&[0]);
        raw.breaks(outside(SEAM - 16, 32));
        let raw = Raw::new(packed);
        raw.desc(0, END - 16, 32, DESC_INDIRECT, 0);
        raw.heads(&[0]);
        raw.breaks(outside(END - 16, 32));
        // Nested.
        let raw = Raw::new(packed);
        raw.desc(0, area(0), 16, DESC_INDIRECT, 0);
        raw.table(0, area(0), 16, DESC_INDIRECT, 0);
        raw.heads(&[0]);
        raw.breaks(QueueError::Indirect(16));
        // Indirect and next at once, and indirect after a direct one (§2.8.7 allows neither; §2.7.5.3 the second).
        let raw = Raw::new(packed);
        raw.desc(0, area(0), 16, DESC_INDIRECT | DESC_NEXT, 1);
        raw.heads(&[0]);
        raw.breaks(QueueError::Indirect(16));
        // Not negotiated.
        let raw = Raw::with(Kind { size: SIZE, packed, event_idx: false, in_order: false, indirect: false });
        raw.desc(0, area(0), 16, DESC_INDIRECT, 0);
        raw.heads(&[0]);
        raw.breaks(QueueError::Indirect(16));
    }
    // A table with a loop, and one whose next leads out of it.
    let raw = Raw::new(false);
    raw.desc(0, area(0), 32, DESC_INDIRECT, 0);
    raw.table(0, area(1), 1, DESC_NEXT, 1);
    raw.table(1, area(1), 1, DESC_NEXT, 0);
    raw.heads(&[0]);
    raw.breaks(QueueError::ChainTooLong);
    let raw = Raw::new(false);
    raw.desc(0, area(0), 32, DESC_INDIRECT, 0);
    raw.table(0, area(1), 1, DESC_NEXT, 2);
    raw.heads(&[0]);
    raw.breaks(QueueError::DescriptorIndex { index: 2, entries: 2 });
    let raw = Raw::new(true);
    raw.desc(0, area(0), 16 * 1025, DESC_INDIRECT, 0);
    raw.heads(&[0]);
    raw.breaks(QueueError::ChainTooLong);
    let raw = Raw::new(true);
    raw.desc(0, area(0), 1, DESC_NEXT, 0);
    raw.desc(1, area(0), 16, DESC_INDIRECT, 0);
    raw.breaks(QueueError::Indirect(16));
}

#[test]
fn g7_available_index_jumps() {
    for index in [SIZE + 1, 0x7fff, 0x8000, u16::MAX] {
        let raw = Raw::new(false);
        raw.avail_index(index);
        raw.breaks(QueueError::AvailableJump { driver: index, device: 0, size: SIZE });
    }
    let raw = Raw::new(false);
    raw.avail_index(SIZE);
    assert_eq!(raw.pop().0.len(), usize::from(SIZE), "a whole ring at once is allowed");
    raw.avail_index(SIZE - 1);
    let backwards = QueueError::AvailableJump { driver: SIZE - 1, device: SIZE, size: SIZE };
    assert_eq!(raw.pop(), (vec![], Err(backwards)));
}

#[test]
fn g9_a_receiver_without_buffers_keeps_what_it_has() {
    for kind in every_kind(4) {
        let mut rig = Rig::new(kind);
        let memory = rig.memory.clone();
        let mut chains = Box::new(Chains::default());
        rig.driver.add(&[], &[(area(0), 100)], 0).unwrap();
        rig.driver.publish();
        for _ in 0..100_000 {
            let got = rig.device().ring().reserve(&memory, &mut chains, 101, true).unwrap();
            assert_eq!((got, chains.list.len()), (Reserved::NoBuffers, 0));
        }
        assert_eq!(rig.device().ring().reserve(&memory, &mut chains, 101, false).unwrap(), Reserved::TooSmall);
        rig.driver.add(&[], &[(area(1), 1)], 1).unwrap();
        rig.driver.publish();
        let mut device = rig.device();
        assert_eq!(device.ring().reserve(&memory, &mut chains, 101, true).unwrap(), Reserved::Enough);
        for (chain, len) in chains.list.iter().zip([100, 1]) {
            device.ring().stage_used(chain, len);
        }
        device.ring().publish();
        drop(device);
        assert_eq!(rig.driver.poll_used(), Ok(Some((0, 100))));
        assert_eq!(rig.driver.poll_used(), Ok(Some((1, 1))));
        assert_eq!(rig.driver.poll_used(), Ok(None));
    }
}

#[test]
fn g10_mergeable_buffers_of_nothing() {
    for len in [0, 1] {
        for kind in every_kind(1024) {
            let mut rig = Rig::new(kind);
            let memory = rig.memory.clone();
            for i in 0..1024 {
                rig.driver.add(&[], &[(area(0), len)], i).unwrap();
            }
            rig.driver.publish();
            let mut chains = Box::new(Chains::default());
            let got = rig.device().ring().reserve(&memory, &mut chains, 2000, true).unwrap();
            assert_eq!((got, chains.list.len()), (Reserved::TooSmall, 0));
            // What they can hold they still get.
            let got = rig.device().ring().reserve(&memory, &mut chains, 12 * len as usize, true).unwrap();
            assert_eq!((got, chains.list.len()), (Reserved::Enough, if len == 0 { 1 } else { 12 }));
        }
    }
}

/// Buffers that point the wrong way go back unread and unwritten, in their turn.
#[test]
fn wrong_direction_goes_back() {
    for kind in every_kind(SIZE) {
        let mut rig = Rig::new(kind);
        let memory = rig.memory.clone();
        let mut chains = Box::new(Chains::default());
        rig.driver.add(&[], &[(area(0), 5)], 0).unwrap();
        rig.driver.add(&[(area(1), 5)], &[(area(2), 5)], 1).unwrap();
        rig.driver.add(&[(area(3), 5)], &[], 2).unwrap();
        rig.driver.publish();
        rig.device().ring().pop(&memory, &mut chains, 64).unwrap();
        // In a packed ring's table the mark for writing is overlooked where the device reads: DPDK's driver sets it.
        let overlooked = kind.packed && kind.indirect;
        assert_eq!(chains.list.iter().map(|c| c.is_bad()).collect::<Vec<_>>(), [true, !overlooked, false], "{kind:?}");
        assert!(chains.pieces(&chains.list[0]).is_empty());
        assert!(overlooked || chains.pieces(&chains.list[1]).is_empty());
        rig.device().ring().unpop(&chains.list);
        // The other way round the first is right, the next two are wrong and the last is right again.
        rig.driver.add(&[], &[(area(4), 6)], 3).unwrap();
        rig.driver.publish();
        let mut device = rig.device();
        for (need, len) in [(5, 5), (6, 6)] {
            assert_eq!(device.ring().reserve(&memory, &mut chains, need, false).unwrap(), Reserved::Enough);
            device.ring().stage_used(&chains.list[0], len);
        }
        device.ring().publish();
        drop(device);
        for expect in [(0, 5), (1, 0), (2, 0), (3, 6)] {
            assert_eq!(rig.driver.poll_used(), Ok(Some(expect)));
        }
    }
}

/// A receiver that makes nothing but unfit buffers available does not keep the worker for ever.
#[test]
fn unfit_buffers_are_given_back_in_bounded_steps() {
    for kind in every_kind(1024) {
        let mut rig = Rig::new(kind);
        let memory = rig.memory.clone();
        for i in 0..1024 {
            rig.driver.add(&[(area(0), 5)], &[], i).unwrap();
        }
        rig.driver.publish();
        let mut chains = Box::new(Chains::default());
        let mut device = rig.device();
        assert_eq!(device.ring().reserve(&memory, &mut chains, 1, true).unwrap(), Reserved::TooSmall);
        device.ring().publish();
        drop(device);
        let mut back = 0;
        while let Some((token, len)) = rig.driver.poll_used().unwrap() {
            assert_eq!((token, len), (back, 0));
            back += 1;
        }
        assert!(back > 0 && back <= 64, "{back} in one call");
    }
}

#[test]
fn g14_packed_rings_that_lie() {
    // Every descriptor goes on: the chain would chase its own tail.
    let raw = Raw::new(true);
    for i in 0..SIZE {
        raw.desc(i, area(0), 1, DESC_NEXT, i);
    }
    raw.breaks(QueueError::ChainTooLong);
    // The whole ring is available in this lap; marking it again does not make more of it.
    let raw = Raw::new(true);
    for i in 0..SIZE {
        raw.desc(i, area(0), 1, 0, i);
    }
    assert_eq!(raw.pop().0.len(), usize::from(SIZE));
    for lap in [1u16 << 7, 1 << 15] {
        for i in 0..SIZE {
            poke_desc(&raw.rig.memory, true, 16 * u64::from(i), area(0), 1, lap, i);
        }
        assert_eq!(raw.pop(), (vec![], Ok(())));
    }
    // The wrong lap, or marked used: not available.
    for flags in [0, 1 << 15, 1 << 7 | 1 << 15] {
        let raw = Raw::new(true);
        poke_desc(&raw.rig.memory, true, 0, END, 1, flags, 0);
        assert_eq!(raw.pop(), (vec![], Ok(())));
    }
    // An id is the driver's own affair: it gets back what it wrote.
    let raw = Raw::new(true);
    raw.desc(0, area(0), 1, 0, 0xfffe);
    assert_eq!(raw.rig.device().serve().unwrap().len(), 1);
    assert_eq!(peek(&raw.rig.memory, 12, 2), [0xfe, 0xff]);
}

#[test]
fn g14_a_chain_over_the_wrap_is_fine() {
    for kind in every_kind(5).filter(|k| k.packed && !k.indirect) {
        let mut rig = Rig::new(kind);
        for lap in 0..20u32 {
            let lens = [1 + lap % 7, 3, 2];
            let pieces: Vec<_> = lens.iter().zip(0..).map(|(&len, i)| (area(i), len)).collect();
            rig.driver.add(&pieces, &[], lap).unwrap();
            rig.driver.publish();
            assert_eq!(rig.device().serve().unwrap()[0].len() as u32, lens.iter().sum::<u32>());
            assert_eq!(rig.driver.poll_used(), Ok(Some((lap, 0))));
        }
    }
}

#[test]
fn rings_that_cannot_be_started() {
    let memory = two_regions();
    let start = |change: &dyn Fn(&mut QueueSetup)| {
        let mut results = Vec::new();
        for packed in BOTH {
            let mut setup = RingLayout::contiguous(0, 16, packed).setup(if packed { 0x8000_8000 } else { 0 }, 0);
            change(&mut setup);
            let queue = Queue::new(0);
            queue.set_enabled(true);
            let result = queue.start(&setup, memory.clone());
            assert_eq!(queue.is_ready(), result.is_ok());
            assert_eq!(queue.status().error, result.err());
            results.push(result);
        }
        [results[0], results[1]]
    };
    assert_eq!(start(&|_| {}), [Ok(()), Ok(())]);
    for size in [0, 32769, u16::MAX] {
        assert_eq!(start(&|s| s.size = size), [Err(QueueError::Size(size)); 2]);
    }
    assert_eq!(start(&|s| s.size = 7), [Err(QueueError::Size(7)), Ok(())]);
    type Part = fn(&mut QueueSetup) -> &mut u64;
    let parts: [Part; 3] = [|s| &mut s.desc, |s| &mut s.driver, |s| &mut s.device];
    for change in parts {
        assert!(start(&|s| *change(s) += 1).iter().all(|r| matches!(r, Err(QueueError::Alignment(_)))));
        for addr in [END, u64::MAX - 15, !0xff] {
            assert!(
                start(&|s| *change(s) = addr).iter().all(|r| matches!(r, Err(QueueError::RingMemory(_)))),
                "{addr:#x}"
            );
        }
        // Into the next region or out of memory; the four bytes of packed event suppression just fit.
        for addr in [SEAM - 16, END - 16] {
            assert!(matches!(start(&|s| *change(s) = addr)[0], Err(QueueError::RingMemory(_))), "{addr:#x}");
        }
    }
    assert_eq!(start(&|s| s.base = 0x8010)[1], Err(QueueError::Base(0x8010)));
}

/// A device that lies to our driver side is found out, and the ring stays closed.
mod device {
    use super::*;

    /// A ring with two readable buffers (0, 1) and a writable one of 100 bytes (2) with the device, and one (3) that
    /// it has not been shown.
    fn rig(packed: bool, in_order: bool) -> Rig {
        let mut rig = Rig::new(Kind { size: 8, packed, event_idx: false, in_order, indirect: false });
        rig.driver.add(&[(area(0), 10), (area(0), 10)], &[], 0).unwrap();
        rig.driver.add(&[(area(1), 10)], &[], 1).unwrap();
        rig.driver.add(&[], &[(area(2), 100)], 2).unwrap();
        rig.driver.publish();
        rig.driver.add(&[(area(3), 10)], &[], 3).unwrap();
        rig
    }

    /// The id under which the driver made each of them available.
    fn id(packed: bool, token: u32) -> u32 {
        if packed { token } else { [0, 2, 3, 4][token as usize] }
    }

    /// Writes a used entry: `slot` of the used ring or the packed ring.
    fn used(rig: &Rig, slot: u16, id: u32, len: u32) {
        if rig.layout.packed {
            let flags = 1 << 7 | 1 << 15 | if len > 0 { DESC_WRITE } else { 0 };
            poke_desc(&rig.memory, true, 16 * u64::from(slot), 0, len, flags, id as u16);
        } else {
            let at = rig.layout.device + 4 + 8 * u64::from(slot);
            poke(&rig.memory, at, &(u64::from(id) | u64::from(len) << 32).to_le_bytes());
            poke(&rig.memory, rig.layout.device + 2, &(slot + 1).to_le_bytes());
        }
    }

    fn refused(rig: &mut Rig, wanted: DriverError) {
        assert_eq!(rig.driver.poll_used(), Err(wanted));
        assert_eq!(rig.driver.poll_used(), Err(wanted));
    }

    #[test]
    fn d1_ids() {
        for (packed, in_order) in [(false, false), (true, false), (false, true), (true, true)] {
            for id in [8, 0xffff] {
                let mut rig = rig(packed, in_order);
                used(&rig, 0, id, 0);
                refused(&mut rig, DriverError::Id(id));
            }
            // Free, and not yet shown.
            for id in [5, id(packed, 3)] {
                let mut rig = rig(packed, in_order);
                used(&rig, 0, id, 0);
                refused(&mut rig, DriverError::NotOutstanding(id));
            }
            // Twice. In order, the second is found in the first's place.
            let mut rig = rig(packed, in_order);
            used(&rig, 0, 0, 0);
            assert_eq!(rig.driver.poll_used(), Ok(Some((0, 0))));
            used(&rig, if packed { 2 } else { 1 }, 0, 0);
            refused(&mut rig, DriverError::NotOutstanding(0));
        }
        // In the middle of a split chain.
        let mut rig = rig(false, false);
        used(&rig, 0, 1, 0);
        refused(&mut rig, DriverError::NotOutstanding(1));
    }

    #[test]
    fn d1_lengths() {
        for (packed, in_order) in [(false, false), (true, false)] {
            for len in [101, u32::MAX] {
                let mut rig = rig(packed, in_order);
                used(&rig, 0, id(packed, 2), len);
                refused(&mut rig, DriverError::Length { written: len, room: 100 });
            }
            let mut rig = rig(packed, in_order);
            used(&rig, 0, 0, 1);
            refused(&mut rig, DriverError::Length { written: 1, room: 0 });
            let mut rig = super::device::rig(packed, in_order);
            used(&rig, 0, id(packed, 2), 100);
            assert_eq!(rig.driver.poll_used(), Ok(Some((2, 100))));
        }
    }

    #[test]
    fn d1_indices() {
        for index in [4, 8, 9, 0x8000, u16::MAX] {
            let mut rig = rig(false, false);
            poke(&rig.memory, rig.layout.device + 2, &u16::to_le_bytes(index));
            refused(&mut rig, DriverError::UsedJump { device: index, driver: 0 });
        }
    }

    /// Out of order is fine unless IN_ORDER was negotiated; then skipped ones are used as well, but only as many as
    /// the index says.
    #[test]
    fn order() {
        for packed in BOTH {
            let mut rig = rig(packed, false);
            used(&rig, 0, id(packed, 2), 7);
            assert_eq!(rig.driver.poll_used(), Ok(Some((2, 7))));
            used(&rig, 1, id(packed, 0), 0);
            assert_eq!(rig.driver.poll_used(), Ok(Some((0, 0))));
            used(&rig, if packed { 3 } else { 2 }, id(packed, 1), 0);
            assert_eq!(rig.driver.poll_used(), Ok(Some((1, 0))));
            assert_eq!(rig.driver.poll_used(), Ok(None));
            assert_eq!(rig.driver.free(), 7);

            let mut rig = super::device::rig(packed, true);
            used(&rig, 0, id(packed, 2), 7);
            if !packed {
                poke(&rig.memory, rig.layout.device + 2, &3u16.to_le_bytes());
            }
            for expect in [(0, 0), (1, 0), (2, 7)] {
                assert_eq!(rig.driver.poll_used(), Ok(Some(expect)));
            }
            assert_eq!(rig.driver.poll_used(), Ok(None));
            rig.driver.publish();
            used(&rig, if packed { 4 } else { 3 }, id(packed, 3), 0);
            assert_eq!(rig.driver.poll_used(), Ok(Some((3, 0))));
            assert_eq!((rig.driver.free(), rig.driver.outstanding()), (8, 0));
        }
        let mut rig = rig(false, true);
        used(&rig, 0, id(false, 2), 7);
        refused(&mut rig, DriverError::Order(3));
    }
}
