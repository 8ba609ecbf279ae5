//! A page that is taken away while the switch moves packets: once the session process has found the ring at rest, the switch neither reads
//! the page nor writes to it any more.

use crate::idle::is_idle;
use crate::{check, spawn};
use lasthop_guestmem::translations::Translations;
use lasthop_guestmem::{GuestMemory, Weak, weaken};
use lasthop_virtqueue::Queue;
use lasthop_virtqueue::driver::{DriverRing, RingLayout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the page lies.
const PAGE: u64 = 256;
/// What the switch writes there.
const RECEIVED: u16 = 1;
/// What its new owner writes there.
const SECRET: u16 = 2;

/// The switch takes the ring's lock for so many bursts, each of which reads the entry and uses the page if it stands there. The session
/// process takes the entry away, and looks at the ring so often. Returns whether it has found it at rest in some order, and at work in some.
pub fn pages_are_let_go(bursts: usize, looks: u32, weak: Option<Weak>, preemptions: usize) -> (bool, bool) {
    weaken(weak);
    let found = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
    let said = found.clone();
    check(preemptions, move || {
        let table = Arc::new(Translations::new().expect("the table lies in memory"));
        let memory = Arc::new(GuestMemory::new(64, 512).translated_by(Some(table.clone())));
        let layout = RingLayout::contiguous(0, 2, false);
        let _driver = DriverRing::new(layout, memory.clone()).expect("the ring lies in memory");
        let device = Queue::new(1);
        device.start(&layout.setup(0, 0), memory.clone()).expect("the ring lies in memory");
        table.set_entry(1);
        let (entries, guest) = (table.clone(), memory.clone());
        let moves = spawn(move || {
            for _ in 0..bursts {
                let guard = device.lock();
                if entries.entry() != 0 {
                    let page = guest.slice(PAGE, 2).expect("in memory");
                    assert_ne!(page.load_u16(0), SECRET, "what comes into a page that was taken away must not be read");
                    page.store_u16(0, RECEIVED);
                }
                drop(guard);
            }
        });
        table.set_entry(0);
        let found_idle = is_idle(table.words(), 2, looks);
        let page = memory.slice(PAGE, 2).expect("in memory");
        if found_idle {
            page.store_u16(0, SECRET);
        }
        moves.join().expect("it ends");
        if found_idle {
            assert_eq!(page.load_u16(0), SECRET, "a page that was taken away must not be written to");
        }
        let (idle, at_work) = &*said;
        // Relaxed: loom runs all on one thread.
        if found_idle { idle } else { at_work }.store(true, Ordering::Relaxed);
    });
    // As above.
    (found.0.load(Ordering::Relaxed), found.1.load(Ordering::Relaxed))
}
