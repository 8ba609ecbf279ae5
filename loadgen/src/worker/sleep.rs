//! What a guest with nothing to do does, if it does not look again.

use super::super::Outcome;
use super::super::pace::Pacer;
use super::{Worker, now};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// A sleeping guest looks up this often for what it may have been told.
const LOOK_UP_NS: u64 = 10_000_000;

impl Worker {
    /// Asks for interrupts and sleeps until one comes or something is due.
    pub(super) fn sleep(&mut self) -> Outcome<()> {
        let sending = self.phase.sends();
        let (start, mut news) = (now(), false);
        let mut until = start + LOOK_UP_NS;
        for card in &mut self.cards {
            news |= card.port.rx.iter_mut().fold(false, |n, r| r.ring.enable_calls() | n);
            let full = card.spare.iter().any(Vec::is_empty);
            match card.sender.as_ref().filter(|_| sending) {
                // Who sends as fast as he can sleeps only for want of room.
                Some(s) if full => {
                    news |= card.port.tx.iter_mut().fold(false, |n, r| r.ring.enable_calls() | n);
                    until = until.min(s.pacer.as_ref().map_or(until, |p| p.next().max(start + 100_000)));
                }
                Some(s) => until = until.min(s.pacer.as_ref().map_or(until, Pacer::next)),
                None => {}
            }
        }
        if !news && until > start {
            self.findings.sleeps += 1;
            let calls: Vec<_> =
                self.cards.iter().flat_map(|c| c.port.rx.iter().chain(&c.port.tx)).map(|r| &r.call).collect();
            let mut fds: Vec<_> = calls.iter().map(|c| PollFd::new(*c, PollFlags::IN)).collect();
            let left = until - start;
            let limit = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
            let _ = poll(&mut fds, Some(&limit));
            let woken: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
            calls.iter().zip(woken).filter(|(_, woken)| *woken).for_each(|(c, _)| {
                c.drain();
            });
        }
        for card in &mut self.cards {
            card.port.rx.iter_mut().chain(&mut card.port.tx).for_each(|r| r.ring.disable_calls());
        }
        Ok(())
    }
}
