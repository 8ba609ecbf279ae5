//! How long to wait before the next attempt, and how often to write about it.

use std::time::{Duration, Instant};

/// Waits of 0, `first`, twice that and so on up to `most`.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// The next wait is 0.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: Duration::ZERO }
    }

    /// How long to wait before the attempt that comes now; the one after waits longer.
    pub fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).clamp(self.first, self.most);
        wait
    }

    /// The next wait is 0 again.
    pub fn reset(&mut self) {
        self.next = Duration::ZERO;
    }
}

/// Lets a few lines a second through and counts the others, so that a peer who comes and goes cannot fill the log.
#[derive(Clone, Debug, Default)]
pub struct LogLimit {
    window: Option<Instant>,
    written: u32,
    held_back: u32,
}

/// Lines a second.
const LINES: u32 = 5;

impl LogLimit {
    /// Whether to write a line now: `Some` with the number of lines held back since the last one.
    pub fn pass(&mut self, now: Instant) -> Option<u32> {
        if self.window.is_none_or(|start| now.saturating_duration_since(start) >= Duration::from_secs(1)) {
            (self.window, self.written) = (Some(now), 0);
        }
        if self.written >= LINES {
            self.held_back += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_start_again() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(5), ms(500));
        let waits: Vec<_> = std::iter::repeat_with(|| backoff.wait()).take(11).map(|w| w.as_millis()).collect();
        assert_eq!(waits, [0, 5, 10, 20, 40, 80, 160, 320, 500, 500, 500]);
        backoff.reset();
        assert_eq!((backoff.wait(), backoff.wait()), (ms(0), ms(5)));
    }

    #[test]
    fn a_storm_writes_five_lines_a_second() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let passed = (0..1000).filter(|_| limit.pass(start).is_some()).count();
        assert_eq!(passed, 5);
        assert_eq!(limit.pass(start + Duration::from_secs(1)), Some(995));
        assert_eq!(limit.pass(start + Duration::from_secs(1)), Some(0));
    }
}
