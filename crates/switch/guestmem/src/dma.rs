//! Copies by an engine of the host that runs beside the processors: "the sNICh architecture takes advantage of the DMA engines to perform
//! asynchronous packet copies from the source to the destination VM" (Ram, PhD thesis, 5.2.3; 4.6.1 has the same for the Hyper-Switch).
//!
//! For devices alone: `lasthop-switch` does not turn this feature on. Each thread that copies has a *work queue* ([`queue`]) of descriptors in
//! the layout of Intel's Data Streaming Accelerator ([`layout`]). [`copy`] puts a copy there and returns; the engine, which is a thread
//! ([`run`]), does them in an order of its own and writes a completion record for each; [`settle`] waits for all of the calling thread's. A
//! receiver's ring is settled once for each time that it is filled, before its driver is shown anything, and so before senders have their buffers back.
//!
//! **What makes it sound.** A copy may be under way when the slices that it was asked for are gone. Its bytes stay mapped all the same: a
//! region that goes has the copies that touch it made by whoever lets it go, and waits for one that the engine is at ([`let_go`]).
//!
//! **An engine that hangs.** After [`LIMIT`] nothing is given to it any more. What it has not begun is taken back and made by the
//! processor. A copy begins with the first byte at its destination. Before that the engine has read all of the source into memory of its own, because a sender's front-end
//! can make whoever reads its memory sleep in the kernel (`docs/limits.md`): in such a sleep nothing is begun, and no receiver loses anything for it. A copy that it has begun cannot be taken back, and must not write to a guest that has its buffer back by then: dummy pages take
//! the places of those that it writes (the thesis's revocation, 3.4.3), and the receiver's memory is marked as that of a file that was truncated
//! is (`fault.rs`), so that its rings break. The sender loses a packet: what the engine may still read of its memory goes to nobody.

mod completion;
mod doorbell;
pub mod layout;
mod queue;
mod run;
mod sync;
#[cfg(test)]
mod tests;

use crate::copy;
use crate::fault;
use crate::memory::GuestMemory;
use crate::region::Region;
use crate::slice::GuestSlice;
use queue::{Queue, Taken};
use run::Through;
pub use run::{Before, Half};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a copy may take, in time in which the engine can run, before the engine counts as one that hangs. Below the limit of hanging threads, which wait for it.
pub const LIMIT: Duration = Duration::from_millis(500);

/// The most that one step of a wait counts.
const STEP: Duration = Duration::from_millis(5);

/// How long the engine was waited for while it could run. Steps of a wait are short; one that took long is one in which all of this process was stopped, or got no
/// processor: the engine as well.
#[derive(Default)]
struct Waited(Duration);

impl Waited {
    fn step(&mut self, sleep: impl FnOnce()) {
        let began = Instant::now();
        sleep();
        self.0 += began.elapsed().min(STEP);
    }

    fn is_over(&self, limit: Duration) -> bool {
        self.0 >= limit
    }
}

/// What one thread's copies have come to since they were last settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Copies that the engine has completed.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Completions that say that not all was copied: the rest was copied by the processor.
    pub errors: u64,
    /// How many copies asked for before it a copy has overtaken, at most.
    pub overtaken: u64,
    /// Copies for which there was no place in the queue: made by the processor.
    pub full: u64,
    /// Copies that the engine was given and that were taken back.
    pub taken_back: u64,
    /// Copies that it had begun when it was given up.
    pub lost: u64,
    /// Copies that were summed as well, which is the processor's.
    pub summed: u64,
}

/// Whoever counts. Called by any thread that copies, once for all that it has settled.
pub trait Account: Sync {
    /// This has been settled.
    fn settled(&self, tally: &Tally);
    /// The engine is given up, for good.
    fn given_up(&self);
}

const _: () = assert!(size_of::<completion::Completion>() == layout::COMPLETION);

/// A copy of more bytes than these is the engine's. No copy is while there is no engine.
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
/// It has been given up.
static IS_LOST: AtomicBool = AtomicBool::new(false);
static ACCOUNT: OnceLock<&'static dyn Account> = OnceLock::new();
static ENGINE: OnceLock<Thread> = OnceLock::new();
/// All that there ever were: those of threads that have ended are used again.
static QUEUES: Mutex<Vec<&'static Queue>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: Mine = const { Mine { queue: Cell::new(None), tally: Cell::new(Tally {
        copies: 0, bytes: 0, errors: 0, overtaken: 0, full: 0, taken_back: 0, lost: 0, summed: 0,
    }) } };
}

/// A thread's own.
struct Mine {
    queue: Cell<Option<&'static Queue>>,
    tally: Cell<Tally>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            wait_for(queue, &mut Tally::default());
            queue.give_back();
        }
    }
}

/// Starts the engine, a thread, which makes all copies of more than `threshold` bytes from now on. Once for each process; copies are
/// counted by `account`.
pub fn start(threshold: usize, account: &'static dyn Account) -> std::io::Result<()> {
    start_with(threshold, account, |_, _| None)
}

/// As [`start`], and something comes before each half of a copy: for tests.
pub fn start_with(threshold: usize, account: &'static dyn Account, before: Before) -> std::io::Result<()> {
    if ACCOUNT.set(account).is_ok() {
        let thread = std::thread::Builder::new().name("dma".into()).spawn(move || run::serve(before))?;
        let _ = ENGINE.set(thread.thread().clone());
        THRESHOLD.store(threshold, Ordering::Release);
    }
    Ok(())
}

fn queues() -> MutexGuard<'static, Vec<&'static Queue>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`copy::copy`] between two slices of guest memory, or to be done until [`settle`].
///
/// # Safety
/// As [`copy::copy`], and both ranges lie in a region each, or in one, so that [`let_go`] is called before they are unmapped.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // Relaxed: a thread that does not see it yet copies by itself.
    if len > THRESHOLD.load(Ordering::Relaxed) && submit(from, to, len) {
        return;
    }
    // SAFETY: the caller vouches for the ranges.
    unsafe { copy::copy(from, to, len) };
}

/// Puts a copy into the queue of this thread. False: there is no place, or it is not to.
#[inline(never)]
fn submit(from: *const u8, to: *mut u8, len: usize) -> bool {
    let submitted = MINE.try_with(|mine| {
        let queue = mine.queue.get().unwrap_or_else(|| {
            let queue = Queue::of_this_thread(&mut queues());
            mine.queue.set(Some(queue));
            queue
        });
        let has_place = queue.submit(from as u64, to as u64, len);
        if has_place {
            ring_doorbell();
        } else {
            let mut tally = mine.tally.get();
            tally.full += 1;
            mine.tally.set(tally);
        }
        has_place
    });
    submitted.unwrap_or(false)
}

#[inline]
fn ring_doorbell() {
    if run::sleeps()
        && let Some(engine) = ENGINE.get()
    {
        engine.unpark();
    }
}

/// A copy that is summed as well is made by the processor, and counted.
pub(crate) fn summed() {
    if THRESHOLD.load(Ordering::Relaxed) != usize::MAX {
        let _ = MINE.try_with(|mine| mine.tally.set(Tally { summed: mine.tally.get().summed + 1, ..mine.tally.get() }));
    }
}

/// Waits until all copies of this thread are made, which all go to `memory`; what was written there is in its log, if it has one. False: one was
/// not made, and never will be.
#[inline]
pub fn settle(memory: &GuestMemory) -> bool {
    if THRESHOLD.load(Ordering::Relaxed) == usize::MAX && !IS_LOST.load(Ordering::Relaxed) {
        return true;
    }
    settle_mine(memory)
}

#[inline(never)]
fn settle_mine(memory: &GuestMemory) -> bool {
    let all_made = MINE.try_with(|mine| {
        let mut tally = mine.tally.take();
        // A batch that stays was told of when it was given up: its bytes went to another memory than this one, maybe.
        if let Some(queue) = mine.queue.get().filter(|queue| !queue.stays()) {
            wait_for(queue, &mut tally);
            if memory.is_logged() {
                // Their bits were set when they were asked for, and may have been taken since.
                queue.last().for_each(|(to, len)| log(memory, to, len));
            }
            queue.forget_last();
        }
        if tally != Tally::default()
            && let Some(account) = ACCOUNT.get()
        {
            account.settled(&tally);
        }
        tally.lost == 0
    });
    all_made.unwrap_or(true)
}

fn log(memory: &GuestMemory, to: u64, len: usize) {
    // SAFETY: nothing is read or written there, but noted that something was. All copies of a batch go to the memory that it is settled for, and this
    // one is settled for the first time.
    memory.log_written(&[unsafe { GuestSlice::new(to as *mut u8, len) }], len);
}

/// Waits for all that is in a queue, up to the limit; then takes back what is left.
fn wait_for(queue: &'static Queue, tally: &mut Tally) {
    if queue.is_settled() {
        return;
    }
    if !queue.wait(LIMIT) {
        give_up();
        for taken in queue.take_back() {
            match taken {
                Taken::NotBegun(descriptor) => {
                    tally.taken_back += 1;
                    by_processor(&descriptor, 0);
                }
                Taken::Begun(descriptor) => {
                    tally.lost += 1;
                    revoke(descriptor.destination, descriptor.size());
                }
            }
        }
    }
    let mut failed = queue.collect(tally);
    while let Some((descriptor, done)) = failed.pop() {
        by_processor(&descriptor, done);
    }
}

/// The engine hangs: it is given nothing any more.
fn give_up() {
    THRESHOLD.store(usize::MAX, Ordering::Release);
    if !IS_LOST.swap(true, Ordering::AcqRel)
        && let Some(account) = ACCOUNT.get()
    {
        account.given_up();
    }
}

/// Makes a copy, or what is left of it behind so many bytes.
fn by_processor(descriptor: &layout::Descriptor, done: usize) {
    let (from, to) = (descriptor.source as *const u8, descriptor.destination as *mut u8);
    let left = descriptor.size().saturating_sub(done);
    // SAFETY: whoever asked for it vouched for the ranges. Who settles holds the receiver's ring, and with it both memories: `let_go` does not wait for
    // copies that were taken back.
    unsafe { copy::copy(from.wrapping_add(done), to.wrapping_add(done), left) };
}

/// Puts dummy pages over so many bytes, and marks the memory as gone. Without memory for them this process ends: a guest's buffer might be written
/// to after it was given back.
fn revoke(at: u64, len: usize) {
    let end = at as usize + len;
    let mut from = at as usize;
    // It lies in one mapping, and is looked up page by page only where that has gone meanwhile.
    while from < end {
        let Some((slot, mapping)) = fault::find(from) else { return };
        let first = from - (from - mapping.start) % mapping.page;
        let behind = end.min(mapping.start + mapping.len);
        let pages = (behind - first).next_multiple_of(mapping.page).min(mapping.start + mapping.len - first);
        if !fault::put_zeros(first, pages) {
            std::process::abort();
        }
        slot.faulted.store(true, Ordering::Release);
        from = behind;
    }
}

/// A region goes: its memory stays mapped while a copy may touch it. What is only asked for is made here; for one that somebody is at it is waited. What
/// the engine will never end has dummy pages there, which stay.
pub(crate) fn let_go(region: &mut Region) {
    let base = region.base as u64;
    let range = base..base + region.mapped as u64;
    let mut waited = Waited::default();
    let all: Vec<&'static Queue> = queues().clone();
    if all.is_empty() {
        return;
    }
    let mut through = Through::new(|_, _| None, layout::MOST as usize);
    for queue in all {
        while queue.touches(&range, &mut through) {
            if waited.is_over(LIMIT) {
                give_up();
                if !fault::put_zeros(region.base as usize, region.mapped) {
                    std::process::abort();
                }
                region.mapped = 0;
                return;
            }
            waited.step(|| std::thread::sleep(Duration::from_micros(50)));
        }
    }
}
