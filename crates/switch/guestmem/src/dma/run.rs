//! The engine: a thread that makes copies of all queues, a copy of each in turn. Without work it looks for some a little longer, and sleeps.

use super::doorbell::Doorbell;
use super::layout::{Descriptor, MOST, SUCCESS};
use super::queue::{Maker, Queue};
use super::{IS_LOST, copy, queues};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long it looks for work before it sleeps, giving way to others each time.
const LINGERS: Duration = Duration::from_micros(50);

static DOORBELL: Doorbell = Doorbell { sleeps: AtomicBool::new(false) };
/// How many queues there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The halves of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The source is read.
    Fetch,
    /// The destination is written to.
    Write,
}

/// What comes before each half of a copy: for tests. It may take its time; and before the first it may say with which status the copy ends and after how
/// many bytes.
pub type Before = fn(&Descriptor, Half) -> Option<(u8, u32)>;

/// It has to be woken for work.
#[inline]
pub(super) fn sleeps() -> bool {
    DOORBELL.is_to_be_rung()
}

/// There is one more.
pub(super) fn note_queues() {
    COUNT.fetch_add(1, Ordering::Release);
}

/// Serves until it is given up.
pub(super) fn serve(before: Before) {
    let (mut all, mut idle): (Vec<&'static Queue>, Option<Instant>) = (Vec::new(), None);
    let mut through = Through::new(before, MOST as usize);
    // Relaxed: there is no hurry.
    while !IS_LOST.load(Ordering::Relaxed) {
        if all.len() != COUNT.load(Ordering::Acquire) {
            all.clone_from(&queues());
        }
        let mut worked = false;
        for queue in &all {
            worked |= queue.serve(shortest, &mut through);
        }
        if worked {
            idle = None;
        } else if idle.get_or_insert_with(Instant::now).elapsed() < LINGERS {
            std::thread::yield_now();
        } else {
            let has_work = || all.len() != COUNT.load(Ordering::Acquire) || all.iter().any(|queue| queue.has_work());
            DOORBELL.sleep_unless(has_work, std::thread::park);
            idle = None;
        }
    }
}

/// The first of the shortest.
fn shortest(sizes: &[u32]) -> usize {
    sizes.iter().enumerate().min_by_key(|(_, size)| **size).map_or(0, |(at, _)| at)
}

/// Makes copies through memory of its own. A front-end can make a read of its guest's memory last (it punches a hole there); while it
/// does, nothing of another guest is written to yet. What has come here is written without waiting for whoever sent it.
pub(super) struct Through {
    bytes: Box<[u8]>,
    before: Before,
}

impl Through {
    /// For copies of so many bytes at most.
    pub(super) fn new(before: Before, most: usize) -> Self {
        Self { bytes: vec![0; most].into_boxed_slice(), before }
    }
}

impl Maker for Through {
    fn fetch(&mut self, descriptor: &Descriptor) -> (u8, u32) {
        if let Err(status) = descriptor.check() {
            return (status, 0);
        }
        let (status, bytes) = (self.before)(descriptor, Half::Fetch).unwrap_or((SUCCESS, descriptor.size));
        let len = self.bytes.len().min(bytes.min(descriptor.size) as usize);
        // SAFETY: whoever asked for it vouched for the source (`dma::copy`), which stays mapped until the state says that it is read
        // (`dma::let_go`); so many bytes are here.
        unsafe { copy::copy(descriptor.source as *const u8, self.bytes.as_mut_ptr(), len) };
        (status, len as u32)
    }

    fn write(&mut self, descriptor: &Descriptor, bytes: u32) {
        (self.before)(descriptor, Half::Write);
        let len = self.bytes.len().min(bytes.min(descriptor.size) as usize);
        // SAFETY: as above, of the destination.
        unsafe { copy::copy(self.bytes.as_ptr(), descriptor.destination as *mut u8, len) };
    }
}
