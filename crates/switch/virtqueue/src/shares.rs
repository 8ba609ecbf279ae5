//! What several senders get of a receiver that has too few buffers for all of them: shares by their ports' weights, by start-time fair
//! queueing, as of a thread that looks after the rings of several (the schedule crate's `policy::Turns`).
//!
//! Without shares a receiver that is slower than what comes for it would be had by whoever locks its ring next after it has made buffers
//! available: by a sender that looks oftener, or has more of the processor. So the receiver's ring keeps a count of each sender that it had no buffers
//! for, of the bytes it got divided by its weight. A sender that is ahead of another one that waits finds no buffers until that one has caught
//! up. Nothing is counted while nobody finds too few.
//!
//! A sender whose thread does not get to run holds others up for a moment only. What it misses meanwhile it makes up for, up to a bound, if its
//! packets have waited all the time; what a sender missed while it had none is nobody's debt.

use arrayvec::ArrayVec;
use lasthop_types::{DEFAULT_WEIGHT, PortId};
use std::cmp::Reverse;

/// How far a sender may be ahead of the one that is behind all others, in bytes at the default weight: four bursts of the shortest frames, so
/// that those of equals go round after round, and no buffer waits for one of them alone.
pub const AHEAD: u64 = 16 << 10;
/// What a packet counts at least.
const LEAST_BYTES: u64 = 64;
/// How much a sender makes up for, in bytes at the default weight: what a receiver may take at once after it has been full. Others wait for as
/// long as the sender was away, and no longer than that takes: 1 ms at 10 Gbit/s.
const BEHIND: u64 = 1 << 20;
/// The same in its own bytes: those of a port with a priority count little.
const BYTES_BEHIND: u64 = 16 << 20;
/// Senders that are told apart: those that waited last.
const MOST: usize = 64;

/// What so much costs a sender of this weight, in bytes at the default weight.
#[inline]
pub fn cost(packets: u64, bytes: u64, weight: u32) -> u64 {
    (bytes.max(packets * LEAST_BYTES) * u64::from(DEFAULT_WEIGHT)).div_ceil(u64::from(weight.max(1)))
}

/// What senders have got of a receiver's ring while it was short of buffers. Used with that ring's lock held. Times are in any unit that all
/// calls share.
#[derive(Debug, Default)]
pub struct Shares {
    senders: ArrayVec<Sender, MOST>,
    /// The latest [`Sender::until`].
    until: u64,
}

#[derive(Debug)]
struct Sender {
    port: PortId,
    count: u64,
    /// Until then others that are ahead of it find nothing. It looks again before, if it gets to run.
    until: u64,
    /// Until then it is owed what it misses while it is not waited for.
    owed_until: u64,
}

impl Shares {
    /// Some sender is waited for.
    #[inline]
    pub fn are_counted(&self, now: u64) -> bool {
        self.until > now
    }

    /// Whether this sender may take buffers: it is not ahead of the one that is waited for and is behind all others.
    #[inline]
    pub fn has_turn(&self, port: PortId, now: u64) -> bool {
        let count = |of: &Sender| self.least(now).is_none_or(|least| of.count <= least.saturating_add(AHEAD));
        !self.are_counted(now) || self.senders.iter().find(|sender| sender.port == port).is_none_or(count)
    }

    /// The least count of a sender that is waited for.
    fn least(&self, now: u64) -> Option<u64> {
        self.senders.iter().filter(|sender| sender.until > now).map(|sender| sender.count).min()
    }

    /// A sender of this weight took what [costs](cost) it so much. It has more packets, and is waited for until then, if that is later than now; and they
    /// lie in its ring until it looks again, so that it makes up for what it misses, if it looks before `owed_until`.
    pub fn took(&mut self, port: PortId, cost: u64, until: u64, owed_until: u64, now: u64, weight: u32) {
        let least = self.least(now).unwrap_or_else(|| {
            // Nobody else is owed anything: whatever they got before, they have missed nothing since. Who comes anew has not, either.
            self.senders.retain(|sender| sender.owed_until > now);
            self.senders.iter().map(|sender| sender.count).max().unwrap_or(0)
        });
        let n = self.senders.iter().position(|sender| sender.port == port).unwrap_or_else(|| {
            if self.senders.is_full() {
                self.senders.sort_unstable_by_key(|sender| Reverse(sender.until));
                self.senders.pop();
            }
            let _ = self.senders.try_push(Sender { port, count: least, until: 0, owed_until: 0 });
            self.senders.len() - 1
        });
        let Some(sender) = self.senders.get_mut(n) else { return };
        let makes_up_for = match sender.until > now {
            true => u64::MAX,
            false if sender.owed_until > now => BEHIND.min(self::cost(0, BYTES_BEHIND, weight)),
            false => 0,
        };
        let from = sender.count.max(least.saturating_sub(makes_up_for));
        *sender = Sender { port, count: from.saturating_add(cost), until, owed_until };
        self.until = self.until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortId = PortId(1);
    const B: PortId = PortId(2);

    /// Two senders that wait, until 1 and until `until`; then the first gets so many bytes, 1000 at a time.
    fn alone(until: u64, owed_until: u64, bytes: u64) -> Shares {
        let mut shares = Shares::default();
        shares.took(B, 0, 1, owed_until, 0, 100);
        shares.took(A, 0, until, u64::MAX, 0, 100);
        for _ in 0..bytes / 1000 {
            assert!(shares.has_turn(A, 2), "nobody is waited for beside it");
            shares.took(A, 1000, until, u64::MAX, 2, 100);
        }
        shares
    }

    /// What the second gets before the first one has its turn again.
    fn makes_up_for(mut shares: Shares) -> u64 {
        let mut got = 0;
        // It has its turn whenever it comes.
        for bytes in std::iter::once(0).chain(std::iter::repeat(1000)) {
            assert!(shares.has_turn(B, 3));
            shares.took(B, bytes, 10, u64::MAX, 3, 100);
            got += bytes;
            if shares.has_turn(A, 3) {
                return got;
            }
        }
        unreachable!("the first has its turn by and by")
    }

    #[test]
    fn what_waits_makes_up_for_what_its_thread_missed_up_to_a_bound() {
        for (missed, made_up) in [(0, 0), (AHEAD, 0), (60_000, 60_000 - AHEAD), (100 << 20, BEHIND - AHEAD)] {
            let got = makes_up_for(alone(10, u64::MAX, missed));
            assert!(got.abs_diff(made_up) <= 1000, "{got} of {made_up} for {missed} missed");
        }
        assert_eq!(makes_up_for(alone(10, 4, 60_000)), makes_up_for(alone(10, u64::MAX, 60_000)), "it is back in time");
        assert_eq!(makes_up_for(alone(10, 3, 60_000)), 0, "it had nothing that waited");
    }

    /// Its bytes count little, so it would make up for hundreds of them.
    #[test]
    fn a_sender_of_great_weight_makes_up_for_a_bounded_number_of_bytes() {
        let mut shares = alone(10, u64::MAX, 100 << 20);
        let weight = 100 * 1000;
        shares.took(B, 0, 10, u64::MAX, 3, weight);
        let mut got = 0;
        while !shares.has_turn(A, 3) {
            shares.took(B, cost(0, 1 << 20, weight), 10, u64::MAX, 3, weight);
            got += 1 << 20;
        }
        assert!(got <= BYTES_BEHIND + (1 << 20), "{got}");
    }

    #[test]
    fn who_is_ahead_has_its_turn_when_nobody_is_waited_for() {
        let mut shares = Shares::default();
        shares.took(A, 100 << 20, 5, 8, 0, 100);
        shares.took(B, 0, 5, 8, 1, 100);
        assert!(shares.has_turn(A, 1), "who comes later has missed nothing");
        shares.took(A, 1 << 20, 5, 8, 1, 100);
        assert!(!shares.has_turn(A, 1) && shares.has_turn(B, 1) && shares.has_turn(PortId(3), 1));
        assert!(shares.has_turn(A, 5));
        // A new shortage: what was before is forgotten.
        shares.took(B, 0, 20, u64::MAX, 10, 100);
        shares.took(A, 1000, 20, u64::MAX, 10, 100);
        assert!(shares.has_turn(A, 11) && shares.has_turn(B, 11));
    }

    #[test]
    fn what_is_owed_is_not_forgotten_while_nobody_gets_to_run() {
        for (now, owed) in [(7, true), (9, false)] {
            let mut shares = Shares::default();
            shares.took(B, 0, 5, 8, 0, 100);
            shares.took(A, 60_000, 5, 8, 0, 100);
            // Neither was waited for any more; the third comes anew, and is owed nothing.
            shares.took(A, 0, 20, 30, now, 100);
            shares.took(B, 0, 20, 30, now, 100);
            shares.took(PortId(3), 0, 20, 30, now, 100);
            assert_eq!(shares.has_turn(A, now), !owed, "at {now}");
            assert!(shares.has_turn(B, now));
        }
    }

    #[test]
    fn of_too_many_senders_those_that_waited_last_are_told_apart() {
        let mut shares = Shares::default();
        for n in 0..1000 {
            shares.took(PortId(n), 100_000, 5000 + u64::from(n), u64::MAX, u64::from(n), 100);
        }
        assert_eq!(shares.senders.len(), MOST);
        assert!(shares.senders.iter().all(|sender| sender.port.0 as usize >= 1000 - MOST), "{shares:?}");
    }
}
