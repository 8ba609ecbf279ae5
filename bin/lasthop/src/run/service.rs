//! What a service manager is told (sd_notify(3)): that we are ready, and where it wants that (`WatchdogSec=`), that we go on. A round of the
//! event loop that takes too long shows in the log: of who hangs for good, the service manager's own line says so.

use super::supervisor::Supervisor;
use sd_notify::NotifyState;
use std::time::{Duration, Instant};
use tracing::warn;

/// So many times within its limit it hears of us.
const OFTEN: u32 = 3;

/// The service manager's watchdog.
#[derive(Debug)]
pub struct Heart {
    /// Within which it is to hear of us.
    limit: Duration,
    /// When it is told next.
    beat_at: Instant,
}

impl Heart {
    /// None where nobody watches us.
    pub fn watched(now: Instant) -> Option<Self> {
        Self::new(sd_notify::watchdog_enabled()?, now)
    }

    fn new(limit: Duration, now: Instant) -> Option<Self> {
        (!limit.is_zero()).then_some(Self { limit, beat_at: now })
    }

    /// When it is to be told.
    pub fn deadline(&self) -> Instant {
        self.beat_at
    }

    /// Whether to tell it now, and for how long it has not been told when it should have been.
    fn beat(&mut self, now: Instant) -> Option<Duration> {
        let late = now.checked_duration_since(self.beat_at)?;
        self.beat_at = now + self.limit / OFTEN;
        Some(late)
    }
}

impl Supervisor {
    /// Every port's socket works, and control serves.
    pub(super) fn tell_ready() {
        // A service manager that waits for it. It may have gone, or be none.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
    }

    /// Tells the service manager that the event loop goes round, if that is due.
    pub(super) fn step_heart(&mut self, now: Instant) {
        let Some(heart) = &mut self.heart else { return };
        let Some(late) = heart.beat(now) else { return };
        if late > heart.limit / OFTEN {
            warn!(
                "this process did nothing for {} ms: stopped, starved of the processor, or busy with one thing; the service manager ends it \
                 after {} ms without a sign (WatchdogSec)",
                late.as_millis(),
                heart.limit.as_millis()
            );
        }
        let _ = sd_notify::notify(&[NotifyState::Watchdog]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_beats_in_time_and_knows_when_it_did_not() {
        let (limit, start) = (Duration::from_secs(3), Instant::now());
        assert!(Heart::new(Duration::ZERO, start).is_none());
        let mut heart = Heart::new(limit, start).unwrap();
        assert_eq!(heart.beat(start), Some(Duration::ZERO));
        assert_eq!(heart.beat(start + Duration::from_millis(999)), None, "it has been told");
        assert_eq!(heart.deadline(), start + Duration::from_secs(1));
        let late = start + Duration::from_millis(3500);
        assert_eq!(heart.beat(late), Some(Duration::from_millis(2500)));
        assert_eq!(heart.deadline(), late + Duration::from_secs(1), "what was missed is not made up for");
    }
}
