//! An engine that hangs while it writes a copy. A program of its own: it never comes back.

mod given_up;

use given_up::{COUNTS, bytes};
use lasthop_guestmem::dma::{self, Half};
use lasthop_guestmem::{GuestMemory, RegionSpec, install_fault_handler};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// It hangs in one of so many bytes, until it is let on.
const HANGS: u32 = 5000;
const SIZE: u64 = 1 << 16;
static GOES_ON: AtomicBool = AtomicBool::new(false);
static HANGING: AtomicBool = AtomicBool::new(false);
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn copy(from: &GuestMemory, to: &GuestMemory, at: u64, len: usize) {
    from.slice(at, len).unwrap().copy_to(&to.slice(at, len).unwrap());
}

fn file(size: u64) -> OwnedFd {
    let fd = memfd_create("engine-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

fn region(size: u64) -> RegionSpec {
    RegionSpec { guest_addr: 0, user_addr: 0, size, mmap_offset: 0 }
}

/// Its memory, and the same as the guest has it.
fn guest(with: u8) -> [GuestMemory; 2] {
    let fd = file(SIZE);
    let map = || GuestMemory::empty().with_region(region(SIZE), &fd).unwrap();
    let memory = [map(), map()];
    memory[0].slice(0, SIZE as usize).unwrap().write(0, &vec![with; SIZE as usize]);
    memory
}

#[test]
fn a_copy_that_hangs_writes_to_nobody_when_it_goes_on_and_all_others_are_made() {
    install_fault_handler();
    dma::start_with(128, &COUNTS, |descriptor, half| {
        let hangs = (descriptor.size, half) == (HANGS, Half::Write);
        HANGING.fetch_or(hangs, Ordering::Release);
        while hangs && !GOES_ON.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        IS_OVER.store(hangs, Ordering::Release);
        None
    })
    .unwrap();
    let [[sender, senders], [receiver, receivers], [other, others], [more, _]] = [1, 2, 3, 4].map(guest);
    // Of another thread, and not begun, for the engine hangs before: nothing is lost of it, as the processor makes it.
    copy(&sender, &receiver, 4096 + 10, HANGS as usize);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !HANGING.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            copy(&more, &other, 0, 20_000);
            assert!(dma::settle(&other), "another receiver's memory is whole");
        });
    });
    assert!(!dma::settle(&receiver) && receiver.faulted());
    assert!(![&sender, &other, &more].into_iter().any(|memory| memory.faulted()));
    assert_eq!(bytes(&others, 0, 20_001), [&[4; 20_000][..], &[3]].concat());
    assert_eq!(COUNTS.read(), [1, 1, 1]);
    // What was lost is told once: no later visit to a receiver has the old batch in its log.
    let (spec, fd) = (region(4096), file(4096));
    let log = GuestMemory::empty().with_region(spec, &fd).unwrap();
    assert!(dma::settle(&receiver.with_log(Some((spec, &fd))).unwrap()));
    assert_eq!(bytes(&log, 0, 8), [0; 8]);
    // The receiver has its buffer back, and the sender its own, and memory goes, which does not wait for the engine for ever.
    senders.slice(0, SIZE as usize).unwrap().write(0, &[9; SIZE as usize]);
    drop((receiver, sender));
    GOES_ON.store(true, Ordering::Release);
    while !IS_OVER.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    // The bytes follow what comes before them; nothing tells when they are written to nowhere.
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(bytes(&receivers, 0, SIZE as usize), vec![2; SIZE as usize], "no byte came late");
    // From now on copies are the processor's, at once.
    copy(&more, &other, 0, 30_000);
    assert_eq!(bytes(&others, 0, 30_000), [4; 30_000]);
}
