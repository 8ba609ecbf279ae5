//! When the stations behind an uplink that took over are announced: more than once, since such frames get lost, and bridges
//! may not be ready for the first. No I/O; time is handed in.

use std::time::{Duration, Instant};

const ROUNDS: u32 = 3;
const GAP: Duration = Duration::from_millis(500);

/// Rounds that are to come.
#[derive(Debug, Default)]
pub struct Rounds {
    left: u32,
    at: Option<Instant>,
}

impl Rounds {
    /// From now on, as soon as it can be.
    pub fn start(&mut self) {
        *self = Self { left: ROUNDS, at: None };
    }

    /// No more.
    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// Whether it is time for one, which is taken to be done then. To be asked whenever something has happened. `can`: whether
    /// it can be done now.
    pub fn is_due(&mut self, can: bool, now: Instant) -> bool {
        if !can {
            self.at = None;
        }
        if !can || self.left == 0 || self.at.is_some_and(|at| at > now) {
            return false;
        }
        self.left -= 1;
        self.at = (self.left > 0).then_some(now + GAP);
        true
    }

    /// When the next is due, if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_three_once_there_can_be() {
        let mut rounds = Rounds::default();
        let now = Instant::now();
        assert!(!rounds.is_due(true, now), "nobody wants any");
        rounds.start();
        assert!(!rounds.is_due(false, now));
        assert_eq!(rounds.deadline(), None, "only an event makes it possible");
        assert!(rounds.is_due(true, now) && !rounds.is_due(true, now));
        assert_eq!(rounds.deadline(), Some(now + GAP));
        assert!(!rounds.is_due(false, now + GAP));
        assert_eq!(rounds.deadline(), None);
        assert!(rounds.is_due(true, now + 2 * GAP));
        assert!(rounds.is_due(true, now + 3 * GAP));
        assert_eq!(rounds.deadline(), None);
        assert!(!rounds.is_due(true, now + 9 * GAP), "a fourth");
        rounds.start();
        rounds.stop();
        assert!(!rounds.is_due(true, now + 9 * GAP));
    }
}
