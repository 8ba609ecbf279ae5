//! How long packets wait in their sender's ring for a receiver that has no buffers: plain arithmetic, with the time handed in.
//!
//! Both sides remember something, each under its own ring's lock. A receiver's [`Shortage`] knows at what pace it takes packets
//! while it is short of buffers. Only a receiver that takes a burst's worth within the patience is waited for: it is the queue
//! that it is slow at, and its senders' rings hold what it will take. One that takes less, or takes a packet now and then so as to
//! look alive, is not. That alone would let a receiver that is just quick enough set the pace of its senders.
//!
//! A sender's [`SenderPatience`] knows two things. One is how long packets for others have stood behind those that wait, where nobody
//! looks at them: a burst that has looked at a whole window of its ring and had to leave some of it blocks the ring until the next
//! burst. That time is charged to a bucket, which leaks one part in [`SHARE`] of all time. When it holds more than the patience with
//! others, nothing of that ring waits until half of that has leaked: waiting costs what a sender has for others one part in
//! [`SHARE`] of its time, whatever its receivers do and however many they are. A sender whose ring holds nothing for others has
//! nothing to lose; what it waited, a second at most, is charged when it turns out to have something. Times are in any unit that
//! all calls share. It must be much finer than a receiver's pauses: with milliseconds one whose pauses begin and end between two ticks
//! was charged nothing at all. The switch's are nanoseconds, of a clock that is read anyway.
//!
//! The other is since when each of its packets waits. Fewer than a window block nobody; but chains are completed in order, so what
//! was done behind them is not given back to the driver. The first that waits too long ends the patience of its sender too.

use crate::{BURST, Shares, bit};
use lasthop_types::PortId;

/// What a receiver that is short of buffers has to take within the patience, to be waited for: packets, and KiB beside.
const PACE: u64 = BURST as u64;
/// Waiting may cost a sender's other traffic one part in so many.
const SHARE: u64 = 40;
/// Senders that wait for the same receiver are not served by turns. One that is unlucky waits for so many times the patience.
const UNLUCKY: u64 = 5;
/// Packets for a receiver whose buffers are being translated wait for so many times the patience, at most one part in [`SHARE`] of all time as
/// well: who translates them may have to do so for all of them, and is not the guest.
const TRANSLATED: u64 = 10;

/// Chains at the head of a ring that were taken before and put back, because one of them had to wait: bit `n` stands for
/// the `n`th chain that will be taken next. Completion stays in order whatever was done first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Delivered or dropped: only to be completed.
    pub done: u64,
    /// Classified by an earlier burst: the counters of the flow and of mirrors have it already.
    pub looked_at: u64,
}

/// How long packets wait for buffers, in the unit of all times here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// In what time a receiver that is short of buffers must take a burst's worth of packets, to be waited for. With 0 no packet waits.
    pub pace: u64,
    /// How long a packet waits that others of its sender have overtaken, and for how long packets of a sender that nobody has looked
    /// at stand behind those that wait.
    pub overtaken: u64,
    /// What a sender waited while it had nothing for others is remembered up to so much, or one wait if that is longer: charged [`SHARE`] times, it makes
    /// a ring impatient for so long at most.
    pub remembered: u64,
}

/// What is known of a receiver that had too few buffers.
#[derive(Debug, Default)]
pub struct Shortage {
    /// Since when its pace is looked at, and what it had taken before; nothing while it was never short.
    window: Option<(u64, u64)>,
    /// When it was last found to be short.
    last: u64,
    slow: bool,
    /// Until when its chains are not walked, which held nothing, and whether the next one waits for a translation.
    in_vain: Option<(u64, bool)>,
    /// What its senders have got of it meanwhile.
    pub shares: Shares,
}

impl Shortage {
    /// Chains of the receiver's were walked as far as may be, or up to one that waits for a translation, which was `asked` for, and none of them
    /// had a buffer. To look again with each burst, before this time, would cost its senders more than it is worth.
    pub fn found_nothing(&mut self, until: u64, asked: bool) {
        self.in_vain = Some((until, asked));
    }

    /// It is not to be looked at now, and whether that is because a translation was asked for.
    #[inline]
    pub fn has_nothing(&self, now: u64) -> Option<bool> {
        self.in_vain.filter(|(until, _)| now < *until).map(|(_, asked)| asked)
    }

    /// The receiver has just been found without buffers, and has `taken` so many packets, and KiB beside, since it was started.
    /// True if it takes them too slowly to be waited for. Neither one packet taken nor a pause of its senders changes that; a
    /// burst's worth within [`Patience::pace`] does, or buffers for all that came for as long.
    pub fn is_slow(&mut self, now: u64, taken: u64, pace: u64) -> bool {
        let (since, before) = *self.window.get_or_insert((now, taken));
        let took = taken.saturating_sub(before);
        let had_buffers = took > 0 && now.saturating_sub(self.last) > pace;
        let keeps_pace = had_buffers || took >= PACE;
        if keeps_pace || now.saturating_sub(since) > pace {
            self.slow = !keeps_pace;
            self.window = Some((now, taken));
        }
        self.last = now;
        self.slow
    }
}

/// What is known of the packets of a ring that had to wait, and were put back.
#[derive(Debug)]
pub struct SenderPatience {
    /// Since when the `n`th of the chains that will be taken next waits, where it was looked at before and is not done.
    since: [u64; BURST],
    /// Until then packets of this ring do not wait for buffers.
    impatient_until: u64,
    /// Since when packets that nobody has looked at stand behind those that wait.
    blocked_since: Option<u64>,
    /// For how long that was so, times [`SHARE`], less what has leaked until `leaked`.
    bucket: u64,
    leaked: u64,
    /// For how long that was so while there was nothing for another receiver than this one, times [`SHARE`], less what had leaked until `counted`.
    alone: u64,
    counted: u64,
    alone_with: PortId,
    /// The receiver's buffers are being translated.
    pub translated: bool,
    /// Its port's weight, when it last began.
    weight: u32,
}

impl Default for SenderPatience {
    fn default() -> Self {
        Self {
            since: [0; BURST],
            impatient_until: 0,
            blocked_since: None,
            bucket: 0,
            leaked: 0,
            alone: 0,
            counted: 0,
            alone_with: PortId(0),
            translated: false,
            weight: 0,
        }
    }
}

impl SenderPatience {
    /// A burst begins with what is left of the one before. True if packets that find no buffers may wait. `weight`: its port's. When that is another than
    /// before, what it waited for its part is held against it no longer: it is to have another part at once.
    #[inline]
    pub fn begin(&mut self, ahead: Ahead, now: u64, patience: Patience, weight: u32) -> bool {
        if weight != self.weight {
            (self.weight, self.impatient_until, self.bucket, self.alone) = (weight, 0, 0, 0);
            (self.since, self.blocked_since) = ([now; BURST], None);
        }
        if ahead.looked_at != 0 {
            self.go_on(ahead, now, patience);
        }
        now >= self.impatient_until
    }

    fn go_on(&mut self, ahead: Ahead, now: u64, patience: Patience) {
        // No wait counts for more: a host that was suspended says nothing about its guests.
        let most = self.times(patience.pace).saturating_mul(UNLUCKY);
        let blocked = self.blocked_since.take().map_or(0, |since| now.saturating_sub(since));
        // Many waits: what seldom comes for others is held up for little more than one part of all time. And less than that of all time is forgotten.
        self.leak(now);
        self.alone = (self.alone + blocked.min(most) * SHARE).min(most.max(patience.remembered) * SHARE);
        if ahead.done != 0 {
            self.charge(now, patience);
        }
        let waited = now.saturating_sub(self.since[0]);
        let limit = if ahead.done == 0 { most } else { self.times(patience.overtaken) };
        if waited > limit {
            let until = now.saturating_add(waited.min(most + 1).saturating_mul(SHARE));
            self.impatient_until = self.impatient_until.max(until);
        }
    }

    /// A time of the patience, as long as the receiver is given.
    fn times(&self, time: u64) -> u64 {
        time.saturating_mul(if self.translated { TRANSLATED } else { 1 })
    }

    /// Packets were delivered: those that went elsewhere may have stood behind those that waited.
    #[inline]
    pub fn delivered(&mut self, to: PortId, now: u64, patience: Patience) {
        if self.alone != 0 && to != self.alone_with {
            self.charge(now, patience);
        }
    }

    fn leak(&mut self, now: u64) {
        self.alone = self.alone.saturating_sub(now.saturating_sub(std::mem::replace(&mut self.counted, now)));
    }

    fn charge(&mut self, now: u64, patience: Patience) {
        self.leak(now);
        let leaked = now.saturating_sub(self.leaked);
        self.bucket = self.bucket.saturating_sub(leaked) + std::mem::take(&mut self.alone);
        self.leaked = now;
        let limit = self.times(patience.overtaken).saturating_mul(SHARE);
        if self.bucket > limit {
            // Nothing waits until then, so nothing is added.
            self.impatient_until = self.impatient_until.max(now.saturating_add(self.bucket - limit / 2));
        }
    }

    /// A burst ends, `taken` of its chains are done and the others are put back. `looked_at`: those that had been looked at
    /// before it, [`Ahead::looked_at`] as it was. `blocked`: those that wait for this receiver, or for it and others, are what is left of
    /// a whole window ([`StartedQueue::is_window`](crate::StartedQueue::is_window)).
    pub fn end(&mut self, taken: usize, looked_at: u64, now: u64, blocked: Option<PortId>) {
        for (n, since) in self.since.iter_mut().enumerate() {
            if looked_at & bit(n) == 0 {
                *since = now;
            }
        }
        self.since.copy_within(taken.min(BURST).., 0);
        self.blocked_since = blocked.map(|_| now);
        self.alone_with = blocked.unwrap_or(self.alone_with);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE_MS: Patience = Patience { pace: 10, overtaken: 2, remembered: 1000 };

    /// Whether a receiver that takes `a_ms(n)` in millisecond `n`, and is found without buffers in each, is slow in the last.
    fn slow(milliseconds: u64, a_ms: impl Fn(u64) -> u64) -> bool {
        let (mut shortage, mut taken, mut slow) = (Shortage::default(), 1_000_000, false);
        for n in 0..milliseconds {
            slow = shortage.is_slow(5000 + n, taken, 10);
            taken += a_ms(n);
        }
        slow
    }

    #[test]
    fn a_receiver_is_slow_by_its_pace() {
        assert!(!slow(11, |_| 0) && slow(12, |_| 0), "patience has an end");
        assert!((12..500).all(|ms| slow(ms, |_| 1)), "a trickle does not prolong it");
        assert!((1..500).all(|ms| !slow(ms, |_| 7)), "a pace");
        assert!((1..500).all(|ms| !slow(ms, |n| if n % 10 == 9 { 64 } else { 0 })), "taken in one go");
        assert!(!slow(100, |n| if n < 50 { 1 } else { 64 }), "it has come back");
        assert!(slow(100, |n| if n < 50 { 64 } else { 1 }), "it has gone");
    }

    #[test]
    fn buffers_for_a_while_end_a_shortage_and_mere_silence_does_not() {
        let mut shortage = Shortage::default();
        assert!(!shortage.is_slow(0, 0, 10) && shortage.is_slow(11, 0, 10));
        assert!(shortage.is_slow(1000, 0, 10), "nothing was sent to it, nothing taken");
        assert!(!shortage.is_slow(2000, 1, 10), "it had a buffer for what came");
        assert!(!shortage.is_slow(2010, 1, 10) && shortage.is_slow(2011, 1, 10), "and then it waits anew");
    }

    fn ahead(done: u64, looked_at: usize) -> Ahead {
        Ahead { done, looked_at: u64::MAX >> (64 - looked_at) }
    }

    #[test]
    fn a_senders_patience_is_its_oldest_packets() {
        let mut sender = SenderPatience::default();
        assert!(sender.begin(Ahead::default(), 100, PATIENCE_MS, 100));
        // Four are put back; later the first three go, and others come.
        sender.end(60, 0, 100, None);
        assert!(sender.begin(ahead(0b1010, 4), 101, PATIENCE_MS, 100));
        sender.end(2, ahead(0, 4).looked_at, 101, None);
        assert!(sender.begin(ahead(0b10, 30), 102, PATIENCE_MS, 100), "2 ms");
        sender.end(2, ahead(0, 2).looked_at, 102, None);
        assert!(sender.begin(ahead(0b10, 28), 103, PATIENCE_MS, 100), "those in front now came at 102");
        sender.end(0, ahead(0, 28).looked_at, 103, None);
        assert!(sender.begin(ahead(0b10, 28), 104, PATIENCE_MS, 100));
        sender.end(0, ahead(0, 28).looked_at, 104, None);
        assert!(!sender.begin(ahead(0b10, 28), 105, PATIENCE_MS, 100), "3 ms is too long");
        assert!(!sender.begin(Ahead::default(), 105 + 3 * SHARE - 1, PATIENCE_MS, 100));
        assert!(sender.begin(Ahead::default(), 105 + 3 * SHARE, PATIENCE_MS, 100));
    }

    /// What it waited for a part that it no longer has is forgotten, and it is as patient as any that begins.
    #[test]
    fn another_weight_ends_what_waiting_has_cost() {
        let mut sender = SenderPatience::default();
        // It has waited for what one receiver gave it, and then had something for another.
        for ms in 0..50 {
            assert!(sender.begin(if ms == 0 { Ahead::default() } else { ahead(0, 64) }, ms, PATIENCE_MS, 100));
            sender.end(0, if ms == 0 { 0 } else { u64::MAX }, ms, Some(PortId(1)));
        }
        sender.delivered(PortId(2), 50, PATIENCE_MS);
        assert!(!sender.begin(Ahead::default(), 51, PATIENCE_MS, 100));
        assert!(sender.begin(Ahead::default(), 52, PATIENCE_MS, 1500));
        sender.delivered(PortId(2), 52, PATIENCE_MS);
        assert!(sender.begin(Ahead::default(), 53, PATIENCE_MS, 1500));
        // What waits at that moment has waited since then.
        sender.end(60, 0, 53, Some(PortId(1)));
        assert!(sender.begin(ahead(0, 4), 104, PATIENCE_MS, 100));
        sender.end(0, ahead(0, 4).looked_at, 104, Some(PortId(1)));
        assert!(sender.begin(ahead(0, 4), 154, PATIENCE_MS, 100));
        sender.end(0, ahead(0, 4).looked_at, 154, Some(PortId(1)));
        assert!(!sender.begin(ahead(0, 4), 155, PATIENCE_MS, 100), "and no longer than any");
    }

    #[test]
    fn a_sender_that_has_nothing_for_others_is_more_patient() {
        let mut sender = SenderPatience::default();
        sender.end(0, 0, 100, None);
        assert!((100..=150).all(|now| sender.begin(ahead(0, 5), now, PATIENCE_MS, 100)));
        assert!(!sender.begin(ahead(0, 5), 151, PATIENCE_MS, 100));
    }

    #[test]
    fn buffers_that_are_being_translated_are_waited_for_longer_and_for_no_larger_part_of_the_time() {
        let mut sender = SenderPatience { translated: true, ..SenderPatience::default() };
        sender.end(0, 0, 100, None);
        assert!((100..=600).all(|now| sender.begin(ahead(0, 5), now, PATIENCE_MS, 100)));
        assert!(!sender.begin(ahead(0, 5), 601, PATIENCE_MS, 100));
        assert!(!sender.begin(Ahead::default(), 601 + 501 * SHARE - 1, PATIENCE_MS, 100));
        assert!(sender.begin(Ahead::default(), 601 + 501 * SHARE, PATIENCE_MS, 100));
    }

    #[test]
    fn time_in_which_packets_for_others_are_not_looked_at_is_one_part_in_forty() {
        // Windows that are held for a millisecond and gone in the next, so no packet waits for long.
        let cases = [(1, false), (2, false), (7, false), (1, true), (3, true)];
        for ((step, alone), translated) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
            let (mut sender, mut blocked_ms) = (SenderPatience { translated, ..SenderPatience::default() }, 0);
            let at = |ms: u64| {
                if alone { Ahead { looked_at: u64::MAX, done: 0 } } else { ahead(u64::MAX - 1, 64 - (ms & 1) as usize) }
            };
            for ms in (1000..101_000).step_by(step) {
                if sender.begin(Ahead::default(), ms, PATIENCE_MS, 100) {
                    sender.end(0, 0, ms, Some(PortId(2)));
                    sender.begin(at(ms), ms + 1, PATIENCE_MS, 100);
                    blocked_ms += 1;
                }
                sender.delivered(PortId(3), ms + 1, PATIENCE_MS);
            }
            let what = format!("{blocked_ms} of 100 000 ms, every {step}, alone {alone}, translated {translated}");
            assert!((2300..=2520).contains(&blocked_ms), "{what}");
        }
    }

    /// Pauses that begin at any phase of a millisecond and end in any, once in each: all are charged for as long as they are.
    #[test]
    fn pauses_in_step_with_any_clock_are_charged() {
        const MS: u64 = 1_000_000;
        for (phase, pause) in (0..10).flat_map(|phase| (1..10).map(move |pause| (phase * MS / 10, pause * MS / 10))) {
            let (mut sender, mut blocked) = (SenderPatience::default(), 0);
            let patience = Patience { pace: 10 * MS, overtaken: 2 * MS, remembered: 1000 * MS };
            for ms in 1000..41_000 {
                let now = ms * MS + phase;
                if sender.begin(Ahead::default(), now, patience, 100) {
                    sender.end(0, 0, now, Some(PortId(2)));
                    sender.begin(ahead(u64::MAX - 1, 63), now + pause, patience, 100);
                    blocked += pause;
                }
            }
            let most = 40_000 * MS / SHARE + 3 * MS;
            assert!(blocked <= most, "{blocked} ns in 40 s, {pause} from {phase} on");
        }
    }

    /// A receiver takes a burst each so many ms, and the ring is full for it; each so many ms something is for another. The time in which nothing of the ring
    /// moves, in parts of a thousand.
    #[test]
    fn one_wait_counts_once_and_many_count_all() {
        for (every_ms, between_ms, most) in [(10, 160, 25), (40, 600, 26), (10, 1500, 40), (40, 6000, 150)] {
            let (mut sender, mut still, mut patient_for) = (SenderPatience::default(), 0, 0u64);
            for ms in (0..600_000).step_by(every_ms as usize) {
                let held_up = if patient_for == 0 { Ahead::default() } else { ahead(0, 64) };
                if sender.begin(held_up, ms, PATIENCE_MS, 100) {
                    (still, patient_for) = (still + every_ms, patient_for + every_ms);
                    sender.end(64, 0, ms, Some(PortId(2)));
                }
                if patient_for >= between_ms {
                    patient_for = 0;
                    sender.begin(ahead(0, 64), ms + every_ms, PATIENCE_MS, 100);
                    sender.delivered(PortId(3), ms + every_ms, PATIENCE_MS);
                }
            }
            assert!(still / 600 <= most, "{still} of 600 000 ms, {every_ms} ms, {between_ms} ms");
        }
    }

    /// However patient the switch was told to be, and whether or not buffers are translated: a second, or one wait if that is longer.
    #[test]
    fn what_is_charged_at_most_does_not_grow_with_patience() {
        for (pace, translated, most) in [(10, false, 1000), (10, true, 1000), (1000, false, 5000), (100, true, 5000)] {
            let (patience, mut sender) = (Patience { pace, ..PATIENCE_MS }, SenderPatience::default());
            sender.translated = translated;
            for ms in 0..100_000 {
                sender.begin(if ms == 0 { Ahead::default() } else { ahead(0, 64) }, ms, patience, 100);
                sender.end(64, 0, ms, Some(PortId(2)));
            }
            sender.delivered(PortId(3), 100_000, patience);
            assert!(
                !sender.begin(Ahead::default(), 100_000 + (most - 20) * SHARE, patience, 100),
                "{pace}, {translated}"
            );
            assert!(sender.begin(Ahead::default(), 100_000 + most * SHARE, patience, 100), "{pace}, {translated}");
        }
    }

    /// Of a second less than its fortieth part, for as long as one likes; then something is for another.
    #[test]
    fn what_is_less_than_one_part_in_forty_is_not_remembered() {
        let mut sender = SenderPatience::default();
        for ms in (0..1_000_000).step_by(1000) {
            sender.begin(Ahead::default(), ms, PATIENCE_MS, 100);
            sender.end(64, 0, ms, Some(PortId(2)));
            sender.begin(ahead(0, 64), ms + 1, PATIENCE_MS, 100);
            sender.end(64, 0, ms + 1, None);
        }
        sender.delivered(PortId(3), 1_000_000, PATIENCE_MS);
        assert!(sender.begin(Ahead::default(), 1_000_001, PATIENCE_MS, 100));
    }

    #[test]
    fn a_sender_that_has_nothing_for_others_is_charged_when_it_has() {
        let mut sender = SenderPatience::default();
        for ms in 0..100_000 {
            assert!(sender.begin(if ms == 0 { Ahead::default() } else { ahead(0, 64) }, ms, PATIENCE_MS, 100), "{ms}");
            sender.end(64, 0, ms, Some(PortId(2)));
            sender.delivered(PortId(2), ms, PATIENCE_MS);
        }
        sender.delivered(PortId(3), 100_000, PATIENCE_MS);
        // Of the last millisecond one part has leaked.
        assert!(!sender.begin(Ahead::default(), 100_000 + 999 * SHARE - 2, PATIENCE_MS, 100), "no more than a second");
        assert!(
            sender.begin(Ahead::default(), 100_000 + 999 * SHARE, PATIENCE_MS, 100),
            "but for the half that may stay"
        );
    }
}
