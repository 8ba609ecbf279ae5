//! How long it takes to signal a port's events.
//!
//! `eventfd_signal` wakes whoever waits for the counter, one after the other, with interrupts off: a peer that watches its own
//! eventfd from 100 000 places makes one signal take 25 ms, for whoever signals it and all who wait for that one's locks. A look at a
//! coarse clock, before and after, costs next to nothing and sees a signal in which it ticked. That may be by chance, or because the
//! thread lost its core: then the next ones are measured by the thread's own time, which costs more. A port whose signals are slow
//! is signalled by the thread that lets go of its things, which takes its time.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Own time that a signal takes at most; 2 µs are usual.
const LONG: Duration = Duration::from_micros(200);
/// So many slow ones in a row are no chance.
const SURE: u32 = 3;
/// For how many seconds a port counts as slow after its last slow signal: the first time, and at most. Twice as long each time.
const FIRST_S: u64 = 10;
const MOST_S: u64 = 640;

const SLOW: u32 = u32::MAX;

/// What is known of one port's signals. Any thread may use it; what two find at once may count as one.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// 0: nothing suspicious. `n` + 1: the last `n` that were measured were slow. Or [`SLOW`].
    state: AtomicU32,
    /// Until when it is, in seconds of the coarse clock, and for how long it was last.
    until_s: AtomicU64,
    for_s: AtomicU64,
}

impl Pace {
    /// Signals are to be left to somebody who has time.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        self.state.load(Relaxed) == SLOW
    }

    /// Signals, and notes how long it took.
    #[inline]
    pub(crate) fn watch(&self, signal: impl FnOnce()) {
        if self.state.load(Relaxed) != 0 {
            return self.note(measure(signal));
        }
        let before = coarse();
        signal();
        if coarse() != before {
            let _ = self.state.compare_exchange(0, 1, Relaxed, Relaxed);
        }
    }

    /// The same for whoever has time; returns what the signal took.
    pub(crate) fn watch_slow(&self, signal: impl FnOnce()) -> Duration {
        let took = measure(signal);
        let now_s = coarse().tv_sec as u64;
        if took > LONG {
            self.until_s.fetch_max(now_s + self.for_s.load(Relaxed), Relaxed);
        } else if now_s >= self.until_s.load(Relaxed) {
            self.state.store(0, Relaxed);
        }
        took
    }

    #[cold]
    fn note(&self, took: Duration) {
        let state = self.state.load(Relaxed);
        if state == SLOW || state == 0 {
            return;
        }
        let next = if took > LONG { state + 1 } else { 0 };
        if self.state.compare_exchange(state, next, Relaxed, Relaxed).is_ok() && next > SURE {
            let for_s = (self.for_s.load(Relaxed) * 2).clamp(FIRST_S, MOST_S);
            self.for_s.store(for_s, Relaxed);
            self.until_s.store(coarse().tv_sec as u64 + for_s, Relaxed);
            self.state.store(SLOW, Relaxed);
        }
    }
}

fn coarse() -> Timespec {
    clock_gettime(ClockId::MonotonicCoarse)
}

fn measure(signal: impl FnOnce()) -> Duration {
    let own = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let before = own();
    signal();
    own().saturating_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_slow_signals_in_a_row_are_slow_and_one_is_chance() {
        let pace = Pace::default();
        let slow = LONG + Duration::from_micros(1);
        for _ in 0..10 {
            pace.state.store(1, Relaxed);
            pace.note(slow);
            pace.note(slow);
            pace.note(LONG);
            assert_eq!(pace.state.load(Relaxed), 0);
        }
        let suspect = || {
            pace.state.store(1, Relaxed);
            (0..SURE).for_each(|_| pace.note(slow));
        };
        suspect();
        assert!(pace.is_slow());
        assert_eq!(pace.for_s.load(Relaxed), FIRST_S);
        pace.watch_slow(|| {});
        assert!(pace.is_slow(), "for a while");
        pace.until_s.store(0, Relaxed);
        pace.watch_slow(|| {});
        assert!(!pace.is_slow());
        (0..20).for_each(|_| suspect());
        assert_eq!(pace.for_s.load(Relaxed), MOST_S);
    }
}
