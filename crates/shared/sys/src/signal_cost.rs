//! How long it takes to signal a port's events.
//!
//! `eventfd_signal` wakes whoever waits for the counter, one after the other, with interrupts off: a peer that watches its own
//! eventfd from 100 000 places makes one signal take 25 ms, for whoever signals it and all who wait for that one's locks. A look at a
//! coarse clock, before and after, costs next to nothing and sees a signal in which it ticked. That may be by chance, or because the
//! thread lost its core: then the next ones are measured by the thread's own time, which costs more, until what slow ones took has
//! leaked from a bucket. A port with several of them by then is signalled by the thread that lets go of its things, which takes its
//! time. Quick signals in between change nothing: a port has dozens of eventfds, and only some need be slow.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Own time that a signal takes at most; 2 µs are usual.
const LONG: Duration = Duration::from_micros(200);
/// So many slow ones, before what they took has leaked, are no chance.
const SURE: u32 = 3;
/// Of all time one part in so many leaks: less than that is no harm.
const SHARE: u64 = 40;
/// For how many seconds a port counts as slow after its last slow signal: the first time, and at most. Twice as long each time.
const FIRST_S: u64 = 10;
const MOST_S: u64 = 640;

const SLOW: u32 = u32::MAX;

/// What is known of one port's signals. Any thread may use it; what two find at once may count as one.
#[derive(Debug, Default)]
pub(crate) struct SignalCost {
    /// 0: nothing suspicious. `n` + 1: `n` that were measured were slow. Or [`SLOW`].
    state: AtomicU32,
    /// What slow ones took, in microseconds, less what has leaked until `leaked_ms` of the coarse clock.
    spent_us: AtomicU64,
    leaked_ms: AtomicU64,
    /// Until when it is, in seconds of the coarse clock, and for how long it was last.
    until_s: AtomicU64,
    for_s: AtomicU64,
}

impl SignalCost {
    /// Signals are to be left to somebody who has time.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        self.state.load(Relaxed) == SLOW
    }

    /// Signals, and notes how long it took.
    #[inline]
    pub(crate) fn signal(&self, signal: impl FnOnce()) {
        if self.state.load(Relaxed) != 0 {
            return self.note(measure(signal), coarse_ms());
        }
        let before = coarse();
        signal();
        if coarse() != before {
            let _ = self.state.compare_exchange(0, 1, Relaxed, Relaxed);
        }
    }

    /// The same for whoever has time; returns what the signal took.
    pub(crate) fn signal_aside(&self, signal: impl FnOnce()) -> Duration {
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
    fn note(&self, took: Duration, now_ms: u64) {
        let state = self.state.load(Relaxed);
        if state == SLOW || state == 0 {
            return;
        }
        let leaked_us = now_ms.saturating_sub(self.leaked_ms.swap(now_ms, Relaxed)).saturating_mul(1000) / SHARE;
        let spent_us = self.spent_us.load(Relaxed).saturating_sub(leaked_us);
        let is_slow = took > LONG;
        let took_us = if is_slow { took.as_micros() as u64 } else { 0 };
        self.spent_us.store(spent_us.saturating_add(took_us), Relaxed);
        let next = match (is_slow, spent_us) {
            // What was slow before was so long ago that this is the first again.
            (true, 0) => 2,
            (true, _) => state + 1,
            (false, 0) => 0,
            (false, _) => state,
        };
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

fn coarse_ms() -> u64 {
    let Timespec { tv_sec, tv_nsec } = coarse();
    tv_sec as u64 * 1000 + tv_nsec as u64 / 1_000_000
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

    /// `signals` at the times in milliseconds; is the port slow then?
    fn after(cost: &SignalCost, signals: impl IntoIterator<Item = (u64, Duration)>) -> bool {
        cost.state.store(1, Relaxed);
        signals.into_iter().for_each(|(at_ms, took)| cost.note(took, at_ms));
        cost.is_slow()
    }

    const DEAR: Duration = Duration::from_millis(25);
    const QUICK: Duration = Duration::from_micros(2);

    #[test]
    fn several_slow_signals_are_slow_and_one_now_and_then_is_chance() {
        let slow = LONG + Duration::from_micros(1);
        assert!(after(&SignalCost::default(), [(1000, slow); SURE as usize]));
        // A second leaks 25 ms.
        assert!(!after(&SignalCost::default(), (1..100).map(|n| (n * 1000, slow))));
        assert!(after(&SignalCost::default(), (1..100).map(|n| (n * 900, DEAR))), "three per cent of all time");
        assert!(!after(&SignalCost::default(), (1..100).map(|n| (n, LONG))));
    }

    /// A port whose front-end watches one of its eventfds from 100 000 places and others not.
    #[test]
    fn quick_signals_in_between_change_nothing() {
        for quick in [1, 10, 1000] {
            let turns = (0..10).flat_map(|n| {
                [(1000 + 30 * n, DEAR)].into_iter().chain((0..quick).map(move |_| (1030 + 30 * n, QUICK)))
            });
            assert!(after(&SignalCost::default(), turns), "{quick} quick ones after each");
        }
        let cost = SignalCost::default();
        assert!(!after(&cost, [(1000, DEAR), (1001, QUICK), (2100, QUICK)]));
        assert_eq!(cost.state.load(Relaxed), 0, "not even suspected any more");
    }

    #[test]
    fn a_slow_port_stays_slow_for_longer_each_time() {
        let cost = SignalCost::default();
        let slow = || assert!(after(&cost, [(1000, DEAR); SURE as usize]));
        slow();
        assert_eq!(cost.for_s.load(Relaxed), FIRST_S);
        cost.signal_aside(|| {});
        assert!(cost.is_slow(), "for a while");
        cost.until_s.store(0, Relaxed);
        cost.signal_aside(|| {});
        assert!(!cost.is_slow());
        (0..20).for_each(|_| slow());
        assert_eq!(cost.for_s.load(Relaxed), MOST_S);
    }
}
