//! The virtual clock: what happens next, and when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events in the order of their times; among equal times first come, first served, so that runs repeat exactly.
pub struct Clock<E> {
    now_ns: u64,
    count: u64,
    events: BinaryHeap<Reverse<Entry<E>>>,
}

struct Entry<E> {
    at_ns: u64,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for Clock<E> {
    fn default() -> Self {
        Self { now_ns: 0, count: 0, events: BinaryHeap::new() }
    }
}

impl<E> Clock<E> {
    /// Nanoseconds since the beginning.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Lets `event` happen at `at_ns`, or now if that is past: time never goes back.
    pub fn at(&mut self, at_ns: u64, event: E) {
        self.count += 1;
        self.events.push(Reverse(Entry { at_ns: at_ns.max(self.now_ns), number: self.count, event }));
    }

    /// The next event, unless it is later than `end_ns`. The clock then shows its time.
    pub fn next(&mut self, end_ns: u64) -> Option<E> {
        if self.events.peek()?.0.at_ns > end_ns {
            return None;
        }
        let Reverse(entry) = self.events.pop()?;
        self.now_ns = entry.at_ns;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back() {
        let mut clock = Clock::default();
        for at in [50, 10, 30, 10, 20] {
            clock.at(at, at);
        }
        let (mut last, mut seen) = (0, Vec::new());
        while let Some(event) = clock.next(40) {
            assert!(clock.now_ns() >= last);
            last = clock.now_ns();
            seen.push(event);
            if event == 20 {
                clock.at(5, 5); // Asked for too late: it happens at once.
            }
        }
        assert_eq!(seen, [10, 10, 20, 5, 30]);
        assert_eq!(clock.now_ns(), 30, "what is later than the end stays");
    }

    #[test]
    fn equal_times_keep_their_order() {
        let mut clock = Clock::default();
        (0..100).for_each(|n| clock.at(7, n));
        let seen: Vec<i32> = std::iter::from_fn(|| clock.next(7)).collect();
        assert!(seen.is_sorted());
    }
}
