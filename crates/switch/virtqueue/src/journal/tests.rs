//! A device that was killed at every point where it matters: between noting a burst and closing the note, and between
//! any two of the stores that show the driver what was used. The next device finds the ring's memory and the journal.

use super::{JOURNAL_BYTES, Journal, OpenBurst};
use crate::driver::{DriverRing, Piece, RingLayout};
use crate::position::Position;
use crate::{Chain, Chains, MAX_CHAINS, Queue};
use lasthop_guestmem::{GuestMemory, PinnedSlice};
use std::sync::Arc;

const BYTES: u64 = 0x1_0000;
const BUFFERS: u64 = 0x8000;
/// Where the journal lies: nowhere near the ring or a buffer.
const JOURNAL: u64 = BYTES - 64;
/// Bytes of a buffer that are written.
const WRITTEN: u32 = 20;
const FROM_GUEST: u16 = 1;
const TO_GUEST: u16 = 0;

struct Crash {
    memory: Arc<GuestMemory>,
    layout: RingLayout,
    driver: DriverRing,
    queue: Queue,
    base: u32,
    next: u32,
}

impl Crash {
    fn new(packed: bool, size: u16, index: u16, warm_up: u16) -> Self {
        let memory = Arc::new(GuestMemory::anonymous(BYTES).unwrap());
        let layout = RingLayout::contiguous(0, size, packed);
        let driver = DriverRing::new(layout, memory.clone()).unwrap();
        let base = driver.base();
        let mut crash = Self { memory, layout, driver, queue: Queue::new(index), base, next: 0 };
        crash.restart();
        crash.exchange(warm_up.into());
        crash
    }

    /// A new device. It is told the base that the first one was told: nobody knows better.
    fn restart(&mut self) {
        self.queue = Queue::new(self.queue.index());
        self.queue.set_journal(Journal::new(PinnedSlice::new(&self.memory, JOURNAL, JOURNAL_BYTES).unwrap()));
        self.queue.start(&self.layout.setup(self.base, 0), self.memory.clone()).unwrap();
        self.queue.set_enabled(true);
    }

    fn reads(&self) -> bool {
        self.queue.index() == FROM_GUEST
    }

    /// What the driver is told was written to a buffer.
    fn len(&self) -> u32 {
        if self.reads() { 0 } else { WRITTEN }
    }

    /// Adds a buffer of so many pieces; returns its token.
    fn add(&mut self, pieces: u32) -> u32 {
        let token = self.next;
        self.next += 1;
        let list: Vec<Piece> = (0..pieces).map(|i| (BUFFERS + 100 * u64::from(i), 100)).collect();
        let (readable, writable): (&[Piece], &[Piece]) = if self.reads() { (&list, &[]) } else { (&[], &list) };
        self.driver.add(readable, writable, token).unwrap();
        token
    }

    /// Takes all that is there.
    fn take<'m>(&self, memory: &'m GuestMemory) -> Vec<Chain<'m>> {
        let mut guard = self.queue.lock();
        let started = guard.started().unwrap();
        let mut list = Vec::new();
        loop {
            let mut chains = Chains::default();
            if self.reads() {
                started.ring.pop(memory, &mut chains, 64).unwrap();
            } else {
                started.ring.pop_writable(memory, &mut chains, 64).unwrap();
            }
            if chains.list.is_empty() {
                return list;
            }
            list.extend(chains.list);
        }
    }

    /// Buffers go through, one at a time: the ring works.
    fn exchange(&mut self, count: u32) {
        for i in 0..count {
            let pieces = 1 + i % 2;
            let token = self.add(if pieces <= self.driver.free().into() { pieces } else { 1 });
            self.driver.publish();
            let memory = self.memory.clone();
            let chains = self.take(&memory);
            assert_eq!(chains.len(), 1, "exchange {i}");
            let mut guard = self.queue.lock();
            let started = guard.started().unwrap();
            if self.reads() {
                started.note_burst(&chains);
            }
            started.ring.stage_used(&chains[0], self.len());
            started.complete();
            drop(guard);
            assert_eq!(self.driver.poll_used(), Ok(Some((token, self.len()))), "exchange {i}");
        }
    }

    fn ring_bytes(&self) -> usize {
        RingLayout::bytes(self.layout.size, self.layout.packed) as usize
    }

    fn image(&self) -> Vec<u8> {
        let mut image = vec![0; self.ring_bytes()];
        self.memory.slice(0, image.len()).unwrap().read(0, &mut image);
        image
    }

    fn restore(&self, image: &[u8]) {
        self.memory.slice(0, image.len()).unwrap().write(0, image);
    }
}

/// A burst of chains with these many pieces, killed when the last `shown` of them were marked used (all of them: when
/// the driver could see them, but the note still stood).
fn killed(packed: bool, size: u16, index: u16, warm_up: u16, pieces: &[u32], shown: usize) {
    let what = format!("packed {packed} size {size} queue {index} warm-up {warm_up} chains {pieces:?} shown {shown}");
    let mut crash = Crash::new(packed, size, index, warm_up);
    let memory = crash.memory.clone();
    let tokens: Vec<u32> = pieces.iter().map(|n| crash.add(*n)).collect();
    crash.driver.publish();
    let chains = crash.take(&memory);
    assert_eq!(chains.len(), pieces.len(), "{what}");
    let before = crash.image();
    let mut guard = crash.queue.lock();
    let started = guard.started().unwrap();
    let mut head = Position::from_bits(started.ring.position() as u16);
    if index == FROM_GUEST {
        started.note_burst(&chains);
    }
    chains.iter().for_each(|chain| started.ring.stage_used(chain, if index == FROM_GUEST { 0 } else { WRITTEN }));
    started.note_staged();
    let staged = crash.image();
    started.ring.publish();
    drop(guard);
    let after = crash.image();
    if packed {
        assert!(staged == before, "{what}: written before it is shown");
        let mut image = before;
        for (i, chain) in chains.iter().enumerate() {
            let at = usize::from(head.index) * 16;
            if i + shown >= chains.len() {
                image[at..at + 16].copy_from_slice(&after[at..at + 16]);
            }
            head.advance(chain.slots(), size);
        }
        crash.restore(&image);
    } else if shown < chains.len() {
        crash.restore(&staged);
    }
    crash.restart();
    let untouched = index == TO_GUEST && shown == 0;
    if untouched || (!packed && index == TO_GUEST && shown < chains.len()) {
        // Nothing of it was shown: the buffers serve again.
        assert_eq!(crash.driver.poll_used(), Ok(None), "{what}");
        let again = crash.take(&memory);
        assert_eq!(again.len(), chains.len(), "{what}");
        let mut guard = crash.queue.lock();
        let started = guard.started().unwrap();
        again.iter().for_each(|chain| started.ring.stage_used(chain, WRITTEN));
        started.complete();
        drop(guard);
        tokens.iter().for_each(|t| assert_eq!(crash.driver.poll_used(), Ok(Some((*t, WRITTEN))), "{what}"));
    } else {
        // All come back, once and in order. How much was written to those not shown is not known.
        for (i, token) in tokens.iter().enumerate() {
            let known = index == TO_GUEST && i + shown >= tokens.len();
            let len = if known { WRITTEN } else { 0 };
            assert_eq!(crash.driver.poll_used(), Ok(Some((*token, len))), "{what}");
        }
    }
    assert_eq!(crash.driver.poll_used(), Ok(None), "{what}");
    assert_eq!(crash.driver.free(), size, "{what}");
    crash.exchange(4 * u32::from(size) + 1);
}

/// No burst has more than [`MAX_CHAINS`]: a note that says so does not have the whole ring walked, and what it skips comes back.
#[test]
fn a_note_of_more_than_a_burst_skips_a_burst() {
    let mut crash = Crash::new(false, 1024, FROM_GUEST, 0);
    for _ in 0..600 {
        crash.add(1);
    }
    crash.driver.publish();
    let begin = crash.queue.lock().started().unwrap().ring.position() as u16;
    let journal = Journal::new(PinnedSlice::new(&crash.memory, JOURNAL, JOURNAL_BYTES).unwrap());
    journal.open(OpenBurst { begin, chains: u16::MAX, shown: 0, slots: 0 });
    crash.restart();
    let mut skipped = 0;
    while crash.driver.poll_used().unwrap().is_some() {
        skipped += 1;
    }
    assert_eq!(skipped, MAX_CHAINS);
    let memory = crash.memory.clone();
    assert_eq!(crash.take(&memory).len(), 600 - MAX_CHAINS, "the others are to be carried");
}

/// QEMU (7.2) drops what it finds where it believes a packed ring to stand: at the base it last had from us. `behind`
/// chains are waiting when the device is killed, the last `dropped` of them from that base on.
fn dropped_out_of_turn(size: u16, warm_up: u16, behind: u16, dropped: u16) {
    let what = format!("size {size} warm-up {warm_up} waiting {behind} dropped {dropped}");
    let mut crash = Crash::new(true, size, FROM_GUEST, 0);
    // Single pieces, up to just before the base comes round again.
    for _ in 0..2 * size - (behind - dropped) + warm_up * 2 * size {
        let token = crash.add(1);
        crash.driver.publish();
        let memory = crash.memory.clone();
        let chains = crash.take(&memory);
        let mut guard = crash.queue.lock();
        let started = guard.started().unwrap();
        started.note_burst(&chains);
        started.ring.stage_used(&chains[0], 0);
        started.complete();
        drop(guard);
        assert_eq!(crash.driver.poll_used(), Ok(Some((token, 0))), "{what}");
    }
    let tokens: Vec<u32> = (0..behind).map(|_| crash.add(1)).collect();
    crash.driver.publish();
    for i in 0..dropped {
        let flags = usize::from(i) * 16 + 14;
        let used = crate::position::AVAIL | crate::position::USED;
        crash.memory.slice(0, crash.ring_bytes()).unwrap().store_u16(flags, used);
    }
    let mut base = Position::from_bits(crash.base as u16);
    base.advance(dropped, size);
    crash.base = base.bits().into();
    crash.restart();
    for token in tokens {
        assert_eq!(crash.driver.poll_used(), Ok(Some((token, 0))), "{what}");
    }
    assert_eq!((crash.driver.poll_used(), crash.driver.free()), (Ok(None), size), "{what}");
    crash.exchange(4 * u32::from(size) + 1);
    // It is known where the ring stands, whatever base is given again.
    crash.restart();
    crash.exchange(4 * u32::from(size) + 1);
}

#[test]
fn packets_that_a_front_end_dropped_out_of_turn() {
    for size in [5, 8] {
        for warm_up in 0..2 {
            for behind in 1..=size {
                for dropped in 1..=behind {
                    dropped_out_of_turn(size, warm_up, behind, dropped);
                }
            }
        }
    }
}

/// The guest's driver made a smaller ring after the switch was killed in the middle of a burst: the note of that burst says nothing of it.
#[test]
fn a_note_of_a_larger_ring_is_not_followed() {
    for (index, warm_up) in [FROM_GUEST, TO_GUEST].into_iter().flat_map(|index| (0..16).map(move |n| (index, n))) {
        let mut crash = Crash::new(true, 8, index, warm_up);
        for _ in 0..5 {
            crash.add(1);
        }
        crash.driver.publish();
        let memory = crash.memory.clone();
        let chains = crash.take(&memory);
        crash.queue.lock().started().unwrap().note_burst(&chains);
        crash.restore(&vec![0; crash.ring_bytes()]);
        crash.layout = RingLayout::contiguous(0, 4, true);
        crash.driver = DriverRing::new(crash.layout, memory.clone()).unwrap();
        crash.base = crash.driver.base();
        crash.restart();
        crash.exchange(17);
    }
}

#[test]
fn killed_anywhere() {
    for packed in [false, true] {
        for size in if packed { [5, 8] } else { [4, 8] } {
            for index in [FROM_GUEST, TO_GUEST] {
                for warm_up in 0..=2 * size + 1 {
                    for pieces in [&[1][..], &[1, 1], &[2, 1], &[1, 2, 1], &[1, 1, 1, 1], &[3], &[2, 2]] {
                        for shown in 0..=pieces.len() {
                            killed(packed, size, index, warm_up, pieces, shown);
                        }
                    }
                }
            }
        }
    }
}
