//! An engine that hangs while it reads what is to be copied, as a sender's front-end can make it. A program of its own: it never comes back.

mod given_up;

use given_up::{COUNTS, bytes};
use lasthop_guestmem::dma::{self, Half};
use lasthop_guestmem::{GuestMemory, RegionSpec, install_fault_handler};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::sync::atomic::{AtomicBool, Ordering};

/// It hangs with one of so many bytes, until it is let on.
const HANGS: u32 = 5000;
const SIZE: u64 = 1 << 16;
static GOES_ON: AtomicBool = AtomicBool::new(false);

/// Its memory, and the same as the guest has it.
fn guest(with: u8) -> [GuestMemory; 2] {
    let fd = memfd_create("engine-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, SIZE).unwrap();
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: SIZE, mmap_offset: 0 };
    let map = || GuestMemory::empty().with_region(spec, &fd).unwrap();
    let memory = [map(), map()];
    memory[0].slice(0, SIZE as usize).unwrap().write(0, &vec![with; SIZE as usize]);
    memory
}

#[test]
fn a_receiver_loses_nothing_when_the_engine_sleeps_in_its_senders_memory() {
    install_fault_handler();
    dma::start_with(128, &COUNTS, |descriptor, half| {
        while (descriptor.size, half) == (HANGS, Half::Fetch) && !GOES_ON.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        None
    })
    .unwrap();
    let [[sender, senders], [receiver, receivers], [other, _]] = [1, 2, 3].map(guest);
    for (at, len) in [(10, HANGS as usize), (20_000, 300)] {
        sender.slice(at, len).unwrap().copy_to(&receiver.slice(at, len).unwrap());
    }
    assert!(dma::settle(&receiver), "all of it is there");
    assert!(!receiver.faulted() && !sender.faulted(), "both ports go on");
    assert_eq!(bytes(&receivers, 0, 5011), [&[2; 10][..], &[1; 5000], &[2]].concat());
    assert_eq!(bytes(&receivers, 20_000, 301), [&[1; 300][..], &[2]].concat());
    let [lost, taken_back, given_up] = COUNTS.read();
    assert!(lost == 0 && (1..=2).contains(&taken_back) && given_up == 1, "{lost} {taken_back} {given_up}");
    // The sender uses its buffer anew, and so does the receiver; its memory goes at once, and the engine is still there.
    senders.slice(0, SIZE as usize).unwrap().write(0, &[9; SIZE as usize]);
    receivers.slice(0, SIZE as usize).unwrap().write(0, &[8; SIZE as usize]);
    let began = std::time::Instant::now();
    drop(receiver);
    assert!(began.elapsed() < dma::LIMIT, "nothing is written there any more");
    // The sender's goes as well, and what the engine still reads of it stays mapped.
    drop(sender);
    GOES_ON.store(true, Ordering::Release);
    // Its bytes follow; nothing tells when they are written to nowhere.
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(bytes(&receivers, 0, SIZE as usize), vec![8; SIZE as usize], "no byte came late");
    // From now on copies are the processor's, at once.
    senders.slice(0, 30_000).unwrap().copy_to(&other.slice(0, 30_000).unwrap());
    assert_eq!(bytes(&other, 0, 30_000), [9; 30_000]);
}
