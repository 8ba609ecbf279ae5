//! When the stations behind an uplink that took over are announced: more than once, since such frames get lost, and bridges
//! may not be ready for the first. No I/O; time is handed in.

use std::time::{Duration, Instant};

const TIMES: u32 = 3;
const GAP: Duration = Duration::from_millis(500);

/// Announcements that are to come.
#[derive(Debug, Default)]
pub struct Announcements {
    left: u32,
    at: Option<Instant>,
}

impl Announcements {
    /// From now on, as soon as it can be.
    pub fn start(&mut self) {
        *self = Self { left: TIMES, at: None };
    }

    /// How many are to come, and when the next is due.
    pub fn to_come(&self) -> (u32, Option<Instant>) {
        (self.left, self.at)
    }

    /// So many are to come.
    pub fn that_come(left: u32, at: Option<Instant>) -> Self {
        Self { left, at }
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
        let mut announcements = Announcements::default();
        let now = Instant::now();
        assert!(!announcements.is_due(true, now), "nobody wants any");
        announcements.start();
        assert!(!announcements.is_due(false, now));
        assert_eq!(announcements.deadline(), None, "only an event makes it possible");
        assert!(announcements.is_due(true, now) && !announcements.is_due(true, now));
        assert_eq!(announcements.deadline(), Some(now + GAP));
        assert!(!announcements.is_due(false, now + GAP));
        assert_eq!(announcements.deadline(), None);
        assert!(announcements.is_due(true, now + 2 * GAP));
        assert!(announcements.is_due(true, now + 3 * GAP));
        assert_eq!(announcements.deadline(), None);
        assert!(!announcements.is_due(true, now + 9 * GAP), "a fourth");
        announcements.start();
        announcements.stop();
        assert!(!announcements.is_due(true, now + 9 * GAP));
    }
}
