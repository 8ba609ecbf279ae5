//! Copies by the engine: content, counts, what is left to the processor, and memory that goes or is truncated meanwhile.

use lasthop_guestmem::dma::{self, Account, Half, Tally, layout::PAGE_FAULT};
use lasthop_guestmem::{GuestMemory, RegionSpec, install_fault_handler};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A copy of so many bytes ends after a third of them; one of so many takes until it is let on, in either half.
const FAILS: u32 = 3000;
const RESTS: [u32; 2] = [7000, 7001];
static GOES_ON: AtomicBool = AtomicBool::new(true);
static RESTING: AtomicBool = AtomicBool::new(false);

static IS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

struct Sum(Mutex<Option<Tally>>);

static SUM: Sum = Sum(Mutex::new(None));

impl Account for Sum {
    fn settled(&self, tally: &Tally) {
        let mut sum = self.0.lock().unwrap();
        let sum = sum.get_or_insert_default();
        sum.copies += tally.copies;
        sum.bytes += tally.bytes;
        sum.errors += tally.errors;
        sum.full += tally.full;
        sum.summed += tally.summed;
    }

    fn given_up(&self) {
        IS_GIVEN_UP.store(true, Ordering::Release);
    }
}

/// A copy of so many bytes has this process stopped, all of it, for longer than an engine may hang.
const STOPS: u32 = 7500;
static STOPPER: Mutex<Option<Child>> = Mutex::new(None);

/// Waits for a line, and stops whoever has started it; says so a little later, so that those who wait look meanwhile.
fn stopper() -> Child {
    let script = "read line; kill -STOP $PPID; sleep 1; kill -CONT $PPID; sleep 0.05; echo";
    Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Returns when it has been stopped.
fn be_stopped() {
    let mut child = STOPPER.lock().unwrap().take().unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    child.wait().unwrap();
}

/// One test at a time, with the engine started and nothing counted.
fn begin() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    install_fault_handler();
    dma::start_with(128, &SUM, |descriptor, half| {
        if descriptor.size == RESTS[usize::from(half == Half::Write)] {
            RESTING.store(true, Ordering::Release);
            while !GOES_ON.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        if (descriptor.size, half) == (STOPS, Half::Write) {
            be_stopped();
        }
        (descriptor.size == FAILS).then_some((PAGE_FAULT, FAILS / 3))
    })
    .unwrap();
    assert!(!IS_GIVEN_UP.load(Ordering::Acquire), "it does not hang");
    *SUM.0.lock().unwrap() = None;
    guard
}

fn counted() -> Tally {
    SUM.0.lock().unwrap().unwrap_or_default()
}

fn memfd(size: u64) -> OwnedFd {
    let fd = memfd_create("engine-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

fn map(fd: &OwnedFd, size: u64) -> GuestMemory {
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, size, mmap_offset: 0 };
    GuestMemory::empty().with_region(spec, fd).unwrap()
}

fn filled(size: u64) -> GuestMemory {
    let memory = GuestMemory::anonymous(size).unwrap();
    let bytes: Vec<u8> = (0..size).map(|n| (n * 7 / 3) as u8).collect();
    memory.slice(0, size as usize).unwrap().write(0, &bytes);
    memory
}

fn bytes(memory: &GuestMemory, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    memory.slice(at, len).unwrap().read(0, &mut out);
    out
}

fn copy(from: &GuestMemory, to: &GuestMemory, at: u64, len: usize) {
    assert_eq!(from.slice(at, len).unwrap().copy_to(&to.slice(at, len).unwrap()), len);
}

#[test]
fn long_copies_are_the_engines_and_short_ones_are_not() {
    let _one = begin();
    let (from, to) = (filled(1 << 20), GuestMemory::anonymous(1 << 20).unwrap());
    let mut at = 0;
    for len in [1, 128, 129, 1500, 65_000, 200, 4096] {
        copy(&from, &to, at, len);
        at += len as u64;
    }
    assert!(dma::settle(&to));
    assert_eq!(bytes(&to, 0, at as usize), bytes(&from, 0, at as usize));
    assert_eq!(bytes(&to, at, 64), [0; 64], "not one byte more");
    let Tally { copies, bytes, errors, .. } = counted();
    assert_eq!((copies, bytes, errors), (5, 129 + 1500 + 65_000 + 200 + 4096, 0));
}

#[test]
fn what_finds_no_place_and_what_is_summed_is_the_processors() {
    let _one = begin();
    let (from, to) = (filled(1 << 20), GuestMemory::anonymous(1 << 20).unwrap());
    for n in 0..300 {
        copy(&from, &to, n * 1000, 1000);
    }
    let part = from.slice(400_000, 1000).unwrap();
    part.copy_to_with_sum(&to.slice(400_000, 1000).unwrap());
    assert_eq!(bytes(&to, 400_000, 1000), bytes(&from, 400_000, 1000), "at once");
    dma::settle(&to);
    assert_eq!(bytes(&to, 0, 300_000), bytes(&from, 0, 300_000));
    let Tally { copies, full, summed, .. } = counted();
    assert_eq!((copies + full, copies, summed), (300, 128, 1));
}

/// The completion record says how far it came: the processor copies the rest.
#[test]
fn a_copy_that_fails_on_its_way_is_finished() {
    let _one = begin();
    let (from, to) = (filled(8192), GuestMemory::anonymous(8192).unwrap());
    copy(&from, &to, 5, FAILS as usize);
    assert!(dma::settle(&to));
    assert_eq!(bytes(&to, 5, FAILS as usize), bytes(&from, 5, FAILS as usize));
    let Tally { copies, bytes, errors, .. } = counted();
    assert_eq!((copies, bytes, errors), (1, u64::from(FAILS / 3), 1));
}

/// Memory that goes in the middle of a copy stays until the copy is over, and what is not begun is made by whoever lets it go.
#[test]
fn memory_does_not_go_under_a_copy() {
    let _one = begin();
    RESTS.into_iter().for_each(goes_under);
}

fn goes_under(rests: u32) {
    let (fd, from) = (memfd(1 << 16), filled(1 << 16));
    let (to, seen) = (map(&fd, 1 << 16), map(&fd, 1 << 16));
    GOES_ON.store(false, Ordering::Release);
    RESTING.store(false, Ordering::Release);
    copy(&from, &to, 0, rests as usize);
    while !RESTING.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    copy(&from, &to, 8000, 1000);
    let goes = std::thread::spawn(move || drop(to));
    while bytes(&seen, 8000, 1000) != bytes(&from, 8000, 1000) {
        std::thread::yield_now();
    }
    assert!(!goes.is_finished(), "the other one is under way");
    assert_eq!(bytes(&seen, 0, 1000), [0; 1000]);
    GOES_ON.store(true, Ordering::Release);
    goes.join().unwrap();
    assert_eq!(bytes(&seen, 0, rests as usize), bytes(&from, 0, rests as usize));
    assert!(dma::settle(&from));
}

/// All of the process is stopped for a second in the middle of a copy, by a signal, as a control group's freezer or a pause of the host's machine
/// does. Nobody has run, so nobody hangs.
#[test]
fn a_stop_of_the_whole_process_is_no_hang() {
    let _one = begin();
    let (from, to) = (filled(1 << 16), GuestMemory::anonymous(1 << 16).unwrap());
    for round in 0..2 {
        *STOPPER.lock().unwrap() = Some(stopper());
        let began = Instant::now();
        copy(&from, &to, round * 8000, STOPS as usize);
        assert!(dma::settle(&to), "it is made");
        assert!(began.elapsed() > dma::LIMIT, "it was stopped");
        assert_eq!(bytes(&to, round * 8000, STOPS as usize), bytes(&from, round * 8000, STOPS as usize));
    }
    // And while memory goes, which waits for the copy.
    let to = map(&memfd(1 << 16), 1 << 16);
    *STOPPER.lock().unwrap() = Some(stopper());
    copy(&from, &to, 0, STOPS as usize);
    while STOPPER.lock().unwrap().is_some() {
        std::thread::yield_now();
    }
    drop(to);
    assert!(dma::settle(&from) && !IS_GIVEN_UP.load(Ordering::Acquire));
    assert_eq!(counted().copies, 3);
}

/// SIGBUS comes to the engine's thread.
#[test]
fn a_file_that_is_truncated_under_the_engine_reads_as_zeros() {
    let _one = begin();
    let (fd, to) = (memfd(1 << 16), filled(1 << 16));
    let from = map(&fd, 1 << 16);
    from.slice(0, 1 << 16).unwrap().write(0, &[7; 1 << 16]);
    ftruncate(&fd, 4096).unwrap();
    copy(&from, &to, 0, 60_000);
    assert!(dma::settle(&to), "the receiver has lost nothing");
    assert!(from.faulted() && !to.faulted());
    assert_eq!((bytes(&to, 0, 4096), bytes(&to, 4096, 50_000)), (vec![7; 4096], vec![0; 50_000]));
}

/// The bits of a log are set once more when the bytes are there: they may have been taken when they were only asked for.
#[test]
fn what_was_copied_is_in_the_log_afterwards() {
    let _one = begin();
    let (from, fd) = (filled(1 << 16), memfd(4096));
    let place = RegionSpec { guest_addr: 0, user_addr: 0, size: 4096, mmap_offset: 0 };
    let to = GuestMemory::anonymous(1 << 16).unwrap().with_log(Some((place, &fd))).unwrap();
    let log = map(&fd, 4096);
    copy(&from, &to, 3 * 4096 + 1, 4096);
    assert!(dma::settle(&to));
    assert_eq!(bytes(&log, 0, 2), [0b0001_1000, 0]);
}

/// Threads copy on and on while memory comes and goes.
#[test]
fn many_threads_copy_at_once() {
    let _one = begin();
    let len = |t: u64, round: u64, n: u64| 200 + ((n * 997 + round * 31 + t) % 2800) as usize;
    std::thread::scope(|threads| {
        for t in 0..4u64 {
            threads.spawn(move || {
                for round in 0..50u64 {
                    let (from, to) = (filled(1 << 16), GuestMemory::anonymous(1 << 16).unwrap());
                    (0..20).for_each(|n| copy(&from, &to, n * 3000, len(t, round, n)));
                    if round % 3 == 0 {
                        continue;
                    }
                    assert!(dma::settle(&to));
                    for n in 0..20 {
                        let len = len(t, round, n);
                        assert_eq!(bytes(&to, n * 3000, len), bytes(&from, n * 3000, len));
                    }
                }
            });
        }
    });
    let Tally { copies, errors, .. } = counted();
    assert!(copies > 0 && errors == 0);
}
