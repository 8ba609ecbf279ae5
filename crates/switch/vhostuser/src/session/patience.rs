//! A front-end that changes its memory faster than the kernel unmaps what was there has to wait.
//!
//! What it lets go of is unmapped aside, and stays mapped until then: it could have any number of such tables. So nothing is read
//! from a front-end while its port has more mapped than one table may have. A message may bring another table; so it is two at most.
//! A front-end that behaves changes its memory now and then, and does not notice.

use super::*;

/// How often it is looked at whether enough is unmapped.
const LOOK: Duration = Duration::from_millis(1);
/// Who waits for so long is told of.
const LONG: Duration = Duration::from_millis(100);

/// Nothing is read from the front-end.
#[derive(Debug)]
pub(super) struct Wait {
    since: Instant,
    /// When to look again.
    pub(super) next: Instant,
    told: bool,
}

impl Session {
    /// Nothing is read from the front-end before more of its memory is unmapped: do not watch its socket level-triggered, but call
    /// [`Session::ready`] at [`Session::deadline`].
    pub fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Whether the next message has to wait.
    pub(super) fn must_wait(&mut self, now: Instant, events: &mut Vec<SessionEvent>) -> Result<bool, SessionError> {
        let (limits, mapped) = (self.memory.limits(), self.memory.mapped());
        // What is there for rings in flight is not guest memory.
        let inflight = self.inflight.as_ref().map_or(0, Inflight::bytes);
        let bytes = mapped.bytes().saturating_sub(inflight);
        let regions = mapped.regions().saturating_sub(usize::from(self.inflight.is_some()));
        if bytes <= limits.bytes && regions <= limits.regions {
            if self.wait.take().is_some() {
                self.transport.resume(now);
            }
            return Ok(false);
        }
        if self.transport.aside().is_stuck() {
            return Err(SessionError::Unclosed);
        }
        let wait = self.wait.get_or_insert(Wait { since: now, next: now, told: false });
        wait.next = now + LOOK;
        if now.saturating_duration_since(wait.since) >= LONG && !std::mem::replace(&mut wait.told, true) {
            events.push(SessionEvent::Waits { bytes, regions });
        }
        Ok(true)
    }
}
