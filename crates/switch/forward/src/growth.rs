//! Larger flow caches for threads that have more flows in use than theirs holds.
//!
//! A thread counts what goes out of its cache for want of room. As many as it has entries within a tenth of a second: then it asks for twice as many, up to a
//! bound, and goes on. The main thread makes the larger cache and frees the one before, so that whoever moves packets asks the allocator for
//! nothing. The new one begins empty: to fill it costs what the packets' lookups cost before, and nothing is moved in one go.

use lasthop_flow::ExactCache;
use lasthop_lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Within so long as many flows have to go as there are entries.
const PERIOD_NS: u64 = 100_000_000;

/// What a thread and the main thread hand to each other.
#[derive(Debug, Default)]
pub(crate) struct Hand {
    /// So many entries are asked for, if not 0. Acquired and released with what it says of the cache below.
    wanted: AtomicUsize,
    /// The thread has taken the larger cache, and left the one before.
    is_left: AtomicBool,
    cache: Lock<Option<ExactCache>>,
    /// Entries of the thread's cache, and what went out of its caches for want of room: for people, so Relaxed.
    pub(crate) entries: AtomicUsize,
    pub(crate) evicted: AtomicU64,
}

/// A thread's side of it.
#[derive(Debug)]
pub(crate) struct Growth {
    hand: Arc<Hand>,
    most: usize,
    /// At so many evictions there have been as many as there are entries.
    pub(crate) next: u64,
    since_ns: u64,
    asked: bool,
}

impl Growth {
    /// For a cache that may have up to `most` entries.
    pub(crate) fn new(hand: Arc<Hand>, cache: &ExactCache, most: usize) -> Self {
        hand.entries.store(cache.entries(), Relaxed);
        Self { hand, most, next: cache.entries() as u64, since_ns: 0, asked: false }
    }

    /// As many more have gone as there are entries: true if a larger cache is to be asked for.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_asked(&mut self, cache: &ExactCache, now_ns: u64) -> bool {
        self.hand.evicted.fetch_add(cache.entries() as u64, Relaxed);
        self.next = cache.evicted() + cache.entries() as u64;
        let took_ns = now_ns.saturating_sub(std::mem::replace(&mut self.since_ns, now_ns));
        let asks = took_ns < PERIOD_NS && cache.entries() < self.most && !self.asked;
        if asks {
            self.asked = true;
            self.hand.wanted.store((2 * cache.entries()).min(self.most), Relaxed);
        }
        asks
    }

    /// Takes the larger cache, if it is there, and leaves the one before: then true.
    pub(crate) fn take(&mut self, cache: &mut ExactCache) -> bool {
        let Some(mut offered) = self.hand.cache.try_lock() else { return false };
        let Some(larger) = offered.as_mut().filter(|larger| larger.entries() > cache.entries()) else { return false };
        std::mem::swap(larger, cache);
        (self.asked, self.next) = (false, cache.entries() as u64);
        self.hand.entries.store(cache.entries(), Relaxed);
        self.hand.is_left.store(true, Relaxed);
        true
    }
}

impl Hand {
    /// Makes a larger cache, if the thread has asked for it, and frees the one before. True if there is one to be taken.
    pub(crate) fn serve(&self) -> bool {
        if self.is_left.swap(false, AcqRel) {
            drop(self.cache.lock().take());
        }
        // Without memory the thread keeps what it has.
        let larger = Some(self.wanted.swap(0, Acquire)).filter(|wanted| *wanted > 0).and_then(ExactCache::try_new);
        let is_made = larger.is_some();
        if is_made {
            let before = std::mem::replace(&mut *self.cache.lock(), larger);
            drop(before);
        }
        is_made
    }
}
