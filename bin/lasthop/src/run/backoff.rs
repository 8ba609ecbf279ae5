//! How long to wait before the next attempt.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Waits of 0, `first`, twice that and so on up to `most`.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
}
