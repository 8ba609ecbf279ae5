//! What a start of a ring may cost: it is done by a thread that serves everybody.

use lasthop_guestmem::{GuestMemory, PinnedSlice};
use lasthop_virtqueue::driver::RingLayout;
use lasthop_virtqueue::{DESC_INDIRECT, JOURNAL_BYTES, Journal, Queue, QueueSetup};
use std::sync::Arc;

/// A front-end starts a ring again and again, one place further on each time; each descriptor names the same long table. What is looked at
/// to find out what was shown is bounded, for the thread that does it serves everybody.
#[test]
fn starting_a_ring_is_no_long_walk() {
    const SIZE: u16 = 4096;
    const AVAIL: u16 = 1 << 7;
    const TABLE: u64 = 0x2_0000;
    let bytes = 0x4_0000;
    let memory = Arc::new(GuestMemory::anonymous(bytes).unwrap());
    let layout = RingLayout::contiguous(0, SIZE, true);
    let whole = memory.slice(0, bytes as usize).unwrap();
    for i in 0..1024 {
        let at = TABLE as usize + 16 * i;
        whole.store_u64(at, 0x8000);
        whole.store_u64(at + 8, 1 | 2 << 48);
    }
    for i in 0..usize::from(SIZE) {
        whole.store_u64(16 * i, TABLE);
        let flags = u64::from(AVAIL | DESC_INDIRECT);
        whole.store_u64(16 * i + 8, (1024 * 16) | (flags << 48));
    }
    let queue = Queue::new(0);
    let journal = PinnedSlice::new(&memory, bytes - 64, JOURNAL_BYTES).unwrap();
    queue.set_journal(Journal::new(journal));
    for base in [0x8000, 0x8001, 0x8002] {
        let before = lasthop_guestmem::meter::looked_up();
        let setup = QueueSetup { indirect: true, ..layout.setup(base, 0) };
        queue.start(&setup, memory.clone()).unwrap();
        let looked_up = lasthop_guestmem::meter::looked_up() - before;
        assert!(looked_up < 100_000, "{looked_up} descriptors to start at {base:#x}");
        queue.stop();
    }
}
