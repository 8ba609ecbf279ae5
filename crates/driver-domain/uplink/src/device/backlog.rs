//! How much of what a packet socket was given may wait in the kernel: what its device takes in a few milliseconds.
//!
//! A socket takes 8 MiB ([`SEND_BUFFER`]), and when it is full nothing before half of that has left. At 100 Mbit/s that is 0.15 s of nothing,
//! and then some 2000 frames at once, more than senders have in their rings: who has the larger share runs dry in the middle, and what is left
//! goes to others, whatever the switch's shares are. And all of it goes before the next frame of anybody. So an uplink stops before, by the pace that it
//! has seen, as the kernel's dynamic queue limits do for a driver's ring (lib/dynamic_queue_limits.c). Where that is as much as the
//! socket takes, on a fast network, nothing is different and nothing is asked.
//!
//! Plain code over times and amounts that are handed in. Amounts are the kernel's, with what each frame costs it in memory
//! (`SIOCOUTQ` of a packet socket): about twice its bytes.

use crate::room::SEND_BUFFER;
use std::time::{Duration, Instant};

/// What may wait: as much as leaves in this time. Half of it is left when more is sent: a thread that wakes up on a busy CPU may be late.
const HOLD: Duration = Duration::from_millis(8);
/// What may always wait: some packets of 64 KiB.
const LEAST: usize = 256 << 10;
/// From here on it is the kernel who says when the socket is full: half of what it takes.
const MOST: usize = SEND_BUFFER / 2;
/// A device that takes less than half of what may wait in so long takes nothing, as it seems: then the socket is filled, so that the kernel knows, for the
/// supervisor asks it.
const STUCK: Duration = Duration::from_secs(2);
/// How long until the next look, while nothing is sent: shortest and longest.
const AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// Of one socket.
#[derive(Debug)]
pub(super) struct Backlog {
    /// What may wait; [`MOST`]: what the kernel lets.
    most: usize,
    /// Bytes sent since the last look.
    sent: usize,
    /// Nothing is sent since then, when so much waited.
    held: Option<(Instant, usize)>,
    /// By the kernel.
    full: bool,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self { most: MOST, sent: 0, held: None, full: false }
    }

    /// Whether to ask the kernel what waits, for [`Backlog::may_send`].
    pub(super) fn is_to_look(&self) -> bool {
        self.held.is_some() || self.most < MOST && self.sent >= self.most / 8
    }

    /// Whether more may be sent, with so much waiting.
    pub(super) fn may_send(&mut self, waiting: usize, now: Instant) -> bool {
        self.sent = 0;
        let Some((since, before)) = self.held else {
            let full = self.most < MOST && waiting >= self.most;
            self.held = full.then_some((now, waiting));
            return !full;
        };
        let (took, left) = (now.saturating_duration_since(since), before.saturating_sub(waiting));
        // The kernel says that there is room when half of what a socket takes has left.
        let room = if self.full { MOST } else { self.most / 2 };
        if waiting > room {
            if self.full || took < STUCK {
                return false;
            }
            self.most = MOST;
        } else if before > room {
            let pace = left as u128 * HOLD.as_nanos() / took.as_nanos().max(1);
            // The device ran dry: it might have taken more.
            let most = if waiting == 0 { self.most.saturating_mul(2) } else { pace.try_into().unwrap_or(MOST) };
            self.most = most.clamp(LEAST, MOST);
        }
        (self.held, self.full) = (None, false);
        true
    }

    /// So many bytes were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// The kernel takes no more, with so much waiting: it tells when it does.
    pub(super) fn is_full(&mut self, waiting: usize, now: Instant) {
        self.held.get_or_insert((now, waiting));
        self.full = true;
    }

    /// When to look again, if it is not the kernel who tells.
    pub(super) fn again(&self, now: Instant) -> Option<Duration> {
        let [shortest, longest] = AGAIN;
        let held = self.held.filter(|_| !self.full);
        held.map(|(since, _)| (now.saturating_duration_since(since) / 4).clamp(shortest, longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 2304;

    /// A device that takes so many bytes a second, and its socket; the uplink always has frames, and looks when it is to.
    struct Played {
        backlog: Backlog,
        now: Instant,
        waiting: f64,
        pace: f64,
        most: f64,
        dry: Duration,
        sent: usize,
    }

    impl Played {
        fn new(pace: f64) -> Self {
            let (backlog, now) = (Backlog::new(), Instant::now());
            Self { backlog, now, waiting: 0.0, pace, most: 0.0, dry: Duration::ZERO, sent: 0 }
        }

        fn pass(&mut self, time: Duration) {
            let left = self.waiting - self.pace * time.as_secs_f64();
            if left < 0.0 {
                self.dry += Duration::from_secs_f64(-left / self.pace.max(1.0));
            }
            self.waiting = left.max(0.0);
            self.now += time;
        }

        /// Until the next look, or the kernel says that half has left, if it ever does.
        fn wait(&mut self, end: Instant, late: Duration) {
            match self.backlog.again(self.now) {
                Some(again) => self.pass(again + late),
                None => {
                    while self.waiting >= (SEND_BUFFER / 2) as f64 && self.now < end {
                        self.pass(Duration::from_millis(1));
                    }
                }
            }
        }

        /// As the engine does for so long; a look comes `late`.
        fn play(&mut self, time: Duration, late: Duration) {
            let end = self.now + time;
            (self.most, self.dry) = (0.0, Duration::ZERO);
            while self.now < end {
                let waiting = self.waiting as usize;
                if self.backlog.is_to_look() && !self.backlog.may_send(waiting, self.now) {
                    self.wait(end, late);
                } else if waiting + FRAME > SEND_BUFFER {
                    self.backlog.is_full(waiting, self.now);
                    self.wait(end, late);
                } else {
                    self.backlog.sent(FRAME / 2);
                    self.waiting += FRAME as f64;
                    self.sent += 1;
                    self.most = self.most.max(self.waiting);
                    self.pass(Duration::from_nanos(500));
                }
            }
        }
    }

    #[test]
    fn what_waits_is_what_the_device_takes_in_a_moment_and_it_never_runs_dry() {
        for (pace, most) in [(28e6, LEAST as f64), (280e6, 280e6 * 0.012), (100e6, 100e6 * 0.012)] {
            let mut played = Played::new(pace);
            played.play(Duration::from_secs(1), Duration::ZERO);
            played.play(Duration::from_secs(1), Duration::from_micros(500));
            assert!(played.most < most * 1.3, "{pace}: {} waited", played.most);
            assert_eq!(played.dry, Duration::ZERO, "{pace}");
        }
    }

    #[test]
    fn a_fast_network_is_left_to_the_kernel() {
        let mut played = Played::new(3e9);
        played.play(Duration::from_secs(1), Duration::ZERO);
        assert!(played.backlog.most == MOST && !played.backlog.is_to_look(), "{:?}", played.backlog);
        // It becomes slow, and fast again.
        played.pace = 28e6;
        played.play(Duration::from_secs(1), Duration::ZERO);
        assert_eq!(played.backlog.most, LEAST);
        played.pace = 3e9;
        played.play(Duration::from_secs(1), Duration::ZERO);
        assert_eq!(played.backlog.most, MOST);
    }

    #[test]
    fn of_a_device_that_takes_nothing_the_kernel_is_to_hear() {
        let mut played = Played::new(28e6);
        played.play(Duration::from_secs(1), Duration::ZERO);
        played.pace = 0.0;
        played.play(Duration::from_millis(1800), Duration::ZERO);
        assert!(!played.backlog.full && played.waiting < 350e3);
        played.play(Duration::from_millis(1800), Duration::ZERO);
        assert!(played.backlog.full && played.waiting > 8e6, "{:?}", played.backlog);
        played.pace = 28e6;
        played.play(Duration::from_secs(1), Duration::ZERO);
        assert_eq!(played.backlog.most, LEAST);
    }

    #[test]
    fn a_thread_that_is_late_has_more_wait_until_the_device_does_not_run_dry() {
        let mut played = Played::new(28e6);
        played.play(Duration::from_secs(2), Duration::from_millis(20));
        played.play(Duration::from_secs(2), Duration::from_millis(20));
        let dry = played.dry.as_secs_f64() / 2.0;
        assert!(dry < 0.5, "dry for {dry} of the time");
    }
}
