//! What a start of a ring may cost: it is done by a thread that serves everybody.

use lasthop_guestmem::{GuestMemory, PinnedSlice};
use lasthop_virtqueue::driver::RingLayout;
use lasthop_virtqueue::{DESC_INDIRECT, JOURNAL_BYTES, Journal, Queue, feature};
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
        let setup = layout.setup(base, feature::INDIRECT);
        queue.start(&setup, memory.clone()).unwrap();
        let looked_up = lasthop_guestmem::meter::looked_up() - before;
        assert!(looked_up < 100_000, "{looked_up} descriptors to start at {base:#x}");
        queue.stop();
    }
}

/// A guest whose addresses are translated shows buffers of many pages each, of which all are known but the last. What is looked at for one
/// packet that somebody sends it, with its ring's lock held, and on the main thread when its ring is looked up anew, is bounded.
#[test]
fn buffers_that_wait_for_their_last_page_are_no_long_walk() {
    use lasthop_guestmem::RegionSpec;
    use lasthop_guestmem::translations::{TABLE_BYTES, Translations, set_of};
    use lasthop_sys::{EventFd, Foreign, PeerEvent, memfd};
    use lasthop_virtqueue::{DESC_WRITE, ReceiveBuffers};
    use std::os::fd::OwnedFd;

    const SIZE: u16 = 64;
    const LONG: u64 = 1 << 32;
    const PAGES: u64 = 2048;
    let file = memfd("table", TABLE_BYTES).unwrap();
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: TABLE_BYTES, mmap_offset: 0 };
    let words = GuestMemory::empty().with_region(spec, &file).unwrap();
    let words = words.slice(0, TABLE_BYTES as usize).unwrap();
    let tell = |page: u64, guest: u64| {
        let (set, tag) = set_of(page);
        let free =
            (0..8).map(|way| set as usize + 8 * way).find(|at| words.load_u64(*at) == 0).expect("room in its set");
        words.store_u64(free, tag << 38 | guest << 2 | 3);
    };
    let bytes = 0x1_0000;
    let physical = GuestMemory::anonymous(bytes).unwrap();
    let layout = RingLayout::contiguous(0, SIZE, false);
    (0..bytes / 4096).for_each(|page| tell(page, page));
    (0..PAGES - 1).for_each(|n| tell(LONG / 4096 + n, 15));
    let whole = physical.slice(0, bytes as usize).unwrap();
    for i in 0..33 {
        let (addr, len) = if i == 0 { (0x8000, 2048) } else { (LONG, PAGES * 4096) };
        whole.store_u64(layout.desc as usize + 16 * i, addr);
        whole.store_u64(layout.desc as usize + 16 * i + 8, len | u64::from(DESC_WRITE) << 32);
        whole.store_u16(layout.driver as usize + 4 + 2 * i, i as u16);
    }
    whole.store_u16(layout.driver as usize + 2, 33);
    let doorbell: OwnedFd = EventFd::new().unwrap().into();
    let table = Translations::map(&file, PeerEvent::new(Foreign::from(doorbell)).unwrap()).unwrap();
    let memory = Arc::new(physical.translated_by(Some(Arc::new(table))));
    let queue = Queue::new(0);
    let looked_up = |what: &str, f: &mut dyn FnMut()| {
        let (before, began) = (lasthop_guestmem::meter::looked_up(), std::time::Instant::now());
        f();
        let n = lasthop_guestmem::meter::looked_up() - before;
        eprintln!("{what}: {n} look-ups, {:?}", began.elapsed());
        n
    };
    queue.set_enabled(true);
    let start = looked_up("start", &mut || queue.start(&layout.setup(0, 0), memory.clone()).unwrap());
    let moved = looked_up("looked up anew", &mut || queue.set_memory(memory.clone()).unwrap());
    let take = |chains: usize, put_back: bool| {
        let mut guard = queue.lock();
        let started = guard.started().unwrap();
        let mut buffers = ReceiveBuffers::new();
        (0..chains).for_each(|_| _ = buffers.reserve(&mut started.ring, &memory, 60, false, 1).unwrap());
        let taken = (buffers.taken().wasted(), buffers.taken().asked);
        if !put_back {
            started.ring.stage_used(&buffers.chains()[0], 0);
        }
        buffers.give_back(&mut started.ring);
        taken
    };
    let packet =
        looked_up("a packet", &mut || assert!(take(1, false).0 + 1 >= PAGES as usize, "what it took is known"));
    assert!(start.max(moved).max(packet) < 20_000, "{start}, {moved}, {packet} addresses looked up");
    // The next chain waits. What is behind it is looked at once, and not again before there is an answer.
    let waits = looked_up("waits", &mut || assert!(take(1, true).1));
    let again = looked_up("waits on", &mut || assert!(take(1, true).1));
    assert!(waits < 20_000 && again <= 2 * PAGES, "{waits}, {again} addresses looked up");
}
