//! The handshakes between the two sides of a ring: what is published is seen whole, and whoever sleeps is woken.

use crate::{check, spawn};
use lasthop_guestmem::{GuestMemory, Weak, weaken};
use lasthop_virtqueue::driver::{DriverRing, RingLayout};
use lasthop_virtqueue::{Chains, Queue, ReceiveBuffers, Reserved};
use loom::sync::Notify;
use std::sync::Arc;

const SIZE: u16 = 2;
/// Two-byte buffers behind the ring.
const BUFFERS: u64 = 256;

/// What a model runs with.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Packed rings.
    pub packed: bool,
    /// VIRTIO_F_RING_EVENT_IDX.
    pub event_idx: bool,
    /// Without this order.
    pub weak: Option<Weak>,
    /// Buffers that pass; more than the ring has entries, and it comes round.
    pub buffers: u16,
    /// How often a thread may be interrupted.
    pub preemptions: usize,
}

struct Rig {
    memory: Arc<GuestMemory>,
    driver: DriverRing,
    device: Queue,
    /// An eventfd in epoll: it is readable once it has been signalled, and who reads it sees what came before.
    event: Arc<Notify>,
}

fn rig(case: Case) -> Rig {
    let memory = Arc::new(GuestMemory::new(64, 512));
    let mut layout = RingLayout::contiguous(0, SIZE, case.packed);
    layout.event_idx = case.event_idx;
    let driver = DriverRing::new(layout, memory.clone()).expect("the ring lies in memory");
    let device = Queue::new(1);
    let base = if case.packed { 0x8000_8000 } else { 0 };
    device.start(&layout.setup(base, 0), memory.clone()).expect("the ring lies in memory");
    device.set_enabled(true);
    Rig { memory, driver, device, event: Arc::new(Notify::new()) }
}

fn buffer(n: u16) -> u64 {
    BUFFERS + 2 * u64::from(n)
}

/// A driver sends and sleeps; the device sleeps until it is kicked. Every buffer comes, in order and with what the driver wrote.
pub fn kicks(case: Case) {
    weaken(case.weak);
    check(case.preemptions, move || {
        let Rig { memory, mut driver, device, event } = rig(case);
        let (kick, guest) = (event.clone(), memory.clone());
        let sends = spawn(move || {
            for n in 0..case.buffers {
                guest.slice(buffer(n), 2).expect("in memory").store_u16(0, n + 7);
                while driver.add(&[(buffer(n), 2)], &[], u32::from(n)).is_err() {
                    while driver.poll_used().expect("the device keeps the rules").is_some() {}
                    loom::thread::yield_now();
                }
                if driver.publish() {
                    kick.notify();
                }
            }
        });
        let receive = move || {
            let mut expected = 0;
            loop {
                let mut guard = device.lock();
                let started = guard.started().expect("the driver keeps the rules");
                let memory = started.memory.clone();
                let mut chains = Chains::default();
                started.ring.pop(&memory, &mut chains, 2).expect("the driver keeps the rules");
                for chain in &chains.list {
                    assert_eq!(
                        (chain.len(), chain.is_bad()),
                        (2, false),
                        "a descriptor was read before it was written"
                    );
                    let piece = chain.single().expect("one piece");
                    assert_eq!(piece.load_u16(0), expected + 7, "a buffer was read before it was written");
                    expected += 1;
                }
                started.ring.stage_read(&chains.list);
                started.ring.publish();
                if expected == case.buffers {
                    return;
                }
                if chains.list.is_empty() && !started.ring.enable_kicks(0).expect("the driver keeps the rules") {
                    drop(guard);
                    event.wait();
                    device.lock().started().expect("as before").ring.disable_kicks();
                }
            }
        };
        receive();
        sends.join().expect("it ends");
    });
}

/// The device fills buffers and interrupts; the driver sleeps until then. Every buffer comes back, in order and with what the
/// device wrote.
pub fn calls(case: Case) {
    weaken(case.weak);
    check(case.preemptions, move || {
        let Rig { memory, mut driver, device, event } = rig(case);
        for n in 0..SIZE {
            driver.add(&[], &[(buffer(n), 2)], u32::from(n)).expect("an empty ring has room");
        }
        driver.publish();
        let call = event.clone();
        let fills = spawn(move || {
            for n in 0..case.buffers {
                let mut guard = device.lock();
                let started = guard.started().expect("the driver keeps the rules");
                let memory = started.memory.clone();
                let mut room = ReceiveBuffers::new();
                while room.reserve(&mut started.ring, &memory, 2, false, 1).expect("the driver keeps the rules")
                    != Reserved::Enough
                {
                    loom::thread::yield_now();
                }
                room.pieces()[0].store_u16(0, n + 7);
                started.ring.stage_used(&room.chains()[0], 2);
                room.give_back(&mut started.ring);
                if started.ring.publish() {
                    call.notify();
                }
            }
        });
        let mut take = move || {
            let mut expected = 0;
            while expected < case.buffers {
                driver.disable_calls();
                while let Some((token, len)) = driver.poll_used().expect("the device keeps the rules") {
                    assert_eq!((token, len), (u32::from(expected), 2), "a used entry was read before it was written");
                    let written = memory.slice(buffer(expected), 2).expect("in memory").load_u16(0);
                    assert_eq!(written, expected + 7, "a buffer was read before it was written");
                    expected += 1;
                    let next = expected + SIZE - 1;
                    if next < case.buffers {
                        driver.add(&[], &[(buffer(next), 2)], u32::from(next)).expect("one has come back");
                        driver.publish();
                    }
                }
                if expected < case.buffers && !driver.enable_calls() {
                    event.wait();
                }
            }
        };
        take();
        fills.join().expect("it ends");
    });
}
