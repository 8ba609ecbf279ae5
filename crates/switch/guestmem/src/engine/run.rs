//! The engine: a thread that makes copies of all queues, a copy of each in turn. Without work it looks for some a little longer, and sleeps.

use super::layout::{Descriptor, SUCCESS};
use super::queue::Queue;
use super::{IS_LOST, copy, queues};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

/// How long it looks for work before it sleeps, giving way to others each time.
const LINGERS: Duration = Duration::from_micros(50);

static SLEEPS: AtomicBool = AtomicBool::new(false);
/// How many queues there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What comes before a copy: for tests. It may take its time, or say with which status the copy ends and after how many bytes.
pub type Before = fn(&Descriptor) -> Option<(u8, u32)>;

/// It has to be woken for work.
#[inline]
pub(super) fn sleeps() -> bool {
    SLEEPS.load(Ordering::Relaxed) && SLEEPS.swap(false, Ordering::Relaxed)
}

/// There is one more.
pub(super) fn note_queues() {
    COUNT.fetch_add(1, Ordering::Release);
}

/// Serves until it is given up.
pub(super) fn serve(before: Before) {
    let (mut all, mut idle): (Vec<&'static Queue>, Option<Instant>) = (Vec::new(), None);
    // Relaxed: there is no hurry.
    while !IS_LOST.load(Ordering::Relaxed) {
        if all.len() != COUNT.load(Ordering::Acquire) {
            all.clone_from(&queues());
        }
        let mut worked = false;
        for queue in &all {
            worked |= queue.serve(shortest, |descriptor| carry(descriptor, before));
        }
        if worked {
            idle = None;
        } else if idle.get_or_insert_with(Instant::now).elapsed() < LINGERS {
            std::thread::yield_now();
        } else {
            SLEEPS.store(true, Ordering::Relaxed);
            // Who asks for a copy does that first, and then looks whether we sleep; we do it the other way round.
            fence(Ordering::SeqCst);
            if all.len() == COUNT.load(Ordering::Acquire) && !all.iter().any(|queue| queue.has_work()) {
                std::thread::park();
            }
            SLEEPS.store(false, Ordering::Relaxed);
            idle = None;
        }
    }
}

/// The first of the shortest.
fn shortest(sizes: &[u32]) -> usize {
    sizes.iter().enumerate().min_by_key(|(_, size)| **size).map_or(0, |(at, _)| at)
}

/// Carries a copy out.
fn carry(descriptor: &Descriptor, before: Before) -> (u8, u32) {
    if let Err(status) = descriptor.check() {
        return (status, 0);
    }
    let (status, bytes) = before(descriptor).unwrap_or((SUCCESS, descriptor.size));
    let len = bytes.min(descriptor.size) as usize;
    // SAFETY: whoever asked for it vouched for the ranges (`engine::copy`), and they stay mapped until it is over (`engine::let_go`).
    unsafe { copy::copy(descriptor.source as *const u8, descriptor.destination as *mut u8, len) };
    (status, bytes)
}
