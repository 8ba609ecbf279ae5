//! When packets are due at a fixed rate.

/// An open-loop schedule: packet `n` is due `n` intervals after the start, whatever became of those before. A sender that
/// was held up sends what is overdue with the times at which it was due, so that waiting is measured, not hidden
/// (coordinated omission).
#[derive(Clone, Debug)]
pub struct Pacer {
    start: u64,
    interval: f64,
    taken: u64,
}

impl Pacer {
    /// `rate` packets a second from `start` (nanoseconds) on. A rate of 0 never sends.
    pub fn new(start: u64, rate: f64) -> Self {
        Self { start, interval: if rate > 0.0 { 1e9 / rate } else { f64::INFINITY }, taken: 0 }
    }

    /// When the next packet is due.
    #[inline]
    pub fn next(&self) -> u64 {
        // The start is left out of the product, which so stays exact for years.
        self.start.saturating_add((self.taken as f64 * self.interval) as u64)
    }

    /// Takes the next packet if it is due at `now`; its time.
    #[inline]
    pub fn take(&mut self, now: u64) -> Option<u64> {
        let due = self.next();
        (due <= now && self.interval.is_finite()).then(|| {
            self.taken += 1;
            due
        })
    }

    /// Packets that were due before `now` and have not been taken.
    pub fn overdue(&self, now: u64) -> u64 {
        if !self.interval.is_finite() || now < self.start {
            return 0;
        }
        let due = ((now - self.start) as f64 / self.interval) as u64 + 1;
        due.saturating_sub(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_at_even_distances() {
        let mut pacer = Pacer::new(1000, 1e7);
        assert_eq!(pacer.take(999), None);
        assert_eq!(pacer.take(1000), Some(1000));
        assert_eq!(pacer.take(1099), None);
        assert_eq!(pacer.take(1100), Some(1100));
    }

    #[test]
    fn who_was_held_up_sends_with_the_times_that_were_meant() {
        let mut pacer = Pacer::new(0, 1e6);
        let stamps: Vec<u64> = std::iter::from_fn(|| pacer.take(5_500)).collect();
        assert_eq!(stamps, [0, 1000, 2000, 3000, 4000, 5000]);
        assert_eq!(pacer.overdue(5_500), 0);
        assert_eq!(pacer.overdue(9_000), 4);
        assert_eq!(pacer.next(), 6000);
    }

    #[test]
    fn the_rate_holds_over_hours() {
        let mut pacer = Pacer::new(7, 3.0);
        let hour = 3_600_000_000_000;
        pacer.taken = 3 * 3600;
        assert_eq!(pacer.take(7 + hour), Some(7 + hour));
        assert_eq!(pacer.take(7 + hour + 333_333_332), None);
        assert_eq!(Pacer::new(0, 0.0).take(u64::MAX), None);
        assert_eq!(Pacer::new(0, 0.0).overdue(u64::MAX), 0);
    }
}
