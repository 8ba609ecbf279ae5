//! VM-state-aware batching (PhD §4.3.3, figures 4.3 and 4.4).

use super::Vm;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How packets are gathered before somebody is woken for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// How long, in nanoseconds; 0: not at all.
    pub period_ns: u64,
    /// As many as this do not wait any longer.
    pub packets: u16,
}

impl Batch {
    /// So many microseconds or packets, whatever comes first.
    pub fn new(us: u32, packets: u16) -> Self {
        Self { period_ns: u64::from(us) * 1000, packets }
    }

    /// As a port has it ([`batches`](lasthop_forward::Port::batches)).
    pub(crate) fn of(word: &AtomicU64) -> Self {
        let word = word.load(Relaxed);
        Self::new((word >> 16) as u32, word as u16)
    }

    fn is_off(&self) -> bool {
        self.period_ns == 0 || self.packets == 0
    }
}

/// What to ask of a guest whose ring has just been emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kicks {
    /// A kick for the next packet.
    Next,
    /// A kick for the packet that completes a batch of so many; and at this time the ring is to be looked at without one.
    #[allow(missing_docs)]
    Batch { packets: u16, due_ns: u64 },
}

/// The transmit timer of a ring (figure 4.3).
///
/// Other than in the figure the first packet after silence does not start it: it costs a stream one kick more, and a lone
/// packet no timer. And each time it runs out with a single packet, which waited for nobody, it is left off for twice as
/// many lookings, up to [`TransmitTimer::ALONE`], until it gathers more again: questions and answers do not wait. [As drawn](TransmitTimer::new)
/// there, neither holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransmitTimer {
    drawn: bool,
    /// When the ring is to be looked at.
    pub due_ns: Option<u64>,
    /// When packets were last found.
    found_ns: u64,
    /// Lookings without it still to come, and how many they were at first.
    left_off: u32,
    alone: u32,
}

impl TransmitTimer {
    const ALONE: u32 = 256;

    /// One that is not running. `drawn`: it is started as in the figure.
    pub fn new(drawn: bool) -> Self {
        Self { drawn, ..Self::default() }
    }

    /// The ring of this VM has been emptied at `now_ns` of `packets` packets. Ring and guest stay as this says until they
    /// kick or the time is there. A VM that sleeps gathers nothing, but as drawn.
    pub fn emptied(&mut self, batch: &Batch, packets: usize, vm: Vm, now_ns: u64) -> Kicks {
        let expired = self.due_ns.is_some_and(|due| now_ns >= due);
        let silent = now_ns.saturating_sub(self.found_ns) > batch.period_ns;
        if packets > 0 {
            self.found_ns = now_ns;
        }
        self.left_off = self.left_off.saturating_sub(1);
        if expired && packets == 1 {
            self.alone = (self.alone * 2).clamp(1, Self::ALONE);
            self.left_off = self.alone;
        } else if packets > 1 && self.due_ns.is_some() {
            self.alone = 0;
        }
        // Expiry does not start it again: perhaps there is not much going on. A kick does, when there is: either a batch
        // is full or the timer was off.
        let spared = vm == Vm::Blocked || silent || self.left_off > 0;
        let gathers = packets > 0 && !(batch.is_off() || expired || spared && !self.drawn);
        self.due_ns = gathers.then(|| now_ns + batch.period_ns);
        self.due_ns.map_or(Kicks::Next, |due_ns| Kicks::Batch { packets: batch.packets, due_ns })
    }
}

/// Whether a guest that wants an interrupt gets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// At once.
    Now,
    /// At this time, unless it blocks or a batch is full before: somebody has to look then.
    At(u64),
    /// Nothing waits for one.
    Not,
}

/// The receive timer of a ring (figure 4.4).
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveTimer {
    /// Until when further packets wait: a period from the last interrupt.
    until_ns: u64,
    /// Packets that wait for an interrupt.
    pub owed: u32,
}

impl ReceiveTimer {
    /// `packets` packets have been put into the ring of a guest that wants to be interrupted for them, or for some before them. It is, at once,
    /// if it is blocked (or might be, for all we know), if a batch is full, or if it has not been for a period.
    pub fn delivered(&mut self, batch: &Batch, packets: u32, vm: Vm, now_ns: u64) -> Interrupt {
        self.owed = self.owed.saturating_add(packets);
        self.due(batch, vm, now_ns)
    }

    /// Somebody looks after what waits, because the time may be over or the guest may have blocked.
    pub fn due(&mut self, batch: &Batch, vm: Vm, now_ns: u64) -> Interrupt {
        if self.owed == 0 {
            return Interrupt::Not;
        }
        let gathers = matches!(vm, Vm::Running(_)) && !batch.is_off() && self.owed < u32::from(batch.packets);
        if gathers && now_ns < self.until_ns {
            return Interrupt::At(self.until_ns);
        }
        (self.owed, self.until_ns) = (0, now_ns + batch.period_ns);
        Interrupt::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Batch = Batch { period_ns: 100, packets: 8 };
    const VM: Vm = Vm::Running(0);

    #[test]
    fn a_lone_packet_starts_no_transmit_timer() {
        let mut timer = TransmitTimer::default();
        for now in [1000, 2000, 2101] {
            assert_eq!(timer.emptied(&BATCH, 1, VM, now), Kicks::Next);
        }
        assert_eq!(timer.due_ns, None);
    }

    #[test]
    fn a_stream_is_taken_in_batches() {
        let mut timer = TransmitTimer::default();
        assert_eq!(timer.emptied(&BATCH, 1, VM, 1000), Kicks::Next);
        assert_eq!(timer.emptied(&BATCH, 1, VM, 1010), Kicks::Batch { packets: 8, due_ns: 1110 });
        // A full batch comes first: the timer starts anew.
        assert_eq!(timer.emptied(&BATCH, 8, VM, 1050), Kicks::Batch { packets: 8, due_ns: 1150 });
        // The time is over first: it does not.
        assert_eq!(timer.emptied(&BATCH, 3, VM, 1150), Kicks::Next);
        assert_eq!(timer.due_ns, None);
        // The next kick starts it again.
        assert_eq!(timer.emptied(&BATCH, 1, VM, 1160), Kicks::Batch { packets: 8, due_ns: 1260 });
        assert_eq!(timer.emptied(&BATCH, 0, VM, 1260), Kicks::Next);
    }

    /// Figure 4.3, box by box.
    #[test]
    fn as_drawn_it_starts_with_the_first_packet_and_is_never_left_off() {
        let mut timer = TransmitTimer::new(true);
        for now in [1000, 5000, 9000] {
            // "Is the timer on?" No: it is started, and the packet is switched at once.
            assert_eq!(timer.emptied(&BATCH, 1, VM, now), Kicks::Batch { packets: 8, due_ns: now + 100 });
            // The threshold is reached: it starts anew.
            assert_eq!(timer.emptied(&BATCH, 8, VM, now + 10), Kicks::Batch { packets: 8, due_ns: now + 110 });
            // It goes off first: not until the next packet. Whether it was alone, and whether the guest sleeps, makes no difference.
            assert_eq!(timer.emptied(&BATCH, 1, VM, now + 110), Kicks::Next);
            let kicks = timer.emptied(&BATCH, 1, Vm::Blocked, now + 120);
            assert_eq!(kicks, Kicks::Batch { packets: 8, due_ns: now + 220 });
            assert_eq!(timer.emptied(&BATCH, 0, VM, now + 220), Kicks::Next);
        }
        assert_eq!(timer.due_ns, None);
    }

    #[test]
    fn nothing_is_gathered_from_a_guest_that_sleeps() {
        let mut timer = TransmitTimer::default();
        assert_eq!(timer.emptied(&BATCH, 1, Vm::Unknown, 1000), Kicks::Next);
        assert_eq!(timer.emptied(&BATCH, 3, Vm::Blocked, 1010), Kicks::Next);
        assert_eq!(timer.emptied(&BATCH, 3, Vm::Unknown, 1020), Kicks::Batch { packets: 8, due_ns: 1120 });
    }

    #[test]
    fn questions_and_answers_do_not_wait_for_long() {
        let mut timer = TransmitTimer::default();
        let mut waits = 0;
        let mut now = 1000;
        for _ in 0..2000 {
            now += 40;
            if let Kicks::Batch { due_ns, .. } = timer.emptied(&BATCH, 1, VM, now) {
                (waits, now) = (waits + 1, due_ns);
                assert_eq!(timer.emptied(&BATCH, 1, VM, now), Kicks::Next);
            }
        }
        assert!((1..=16).contains(&waits), "{waits}");
    }

    #[test]
    fn batching_switched_off() {
        let mut timer = TransmitTimer::default();
        let mut receive = ReceiveTimer::default();
        for now in [1000, 1001, 1002] {
            assert_eq!(timer.emptied(&Batch::new(0, 0), 1, VM, now), Kicks::Next);
            assert_eq!(receive.delivered(&Batch::new(0, 0), 1, Vm::Running(0), now), Interrupt::Now);
        }
    }

    #[test]
    fn a_running_guest_is_interrupted_once_a_period() {
        let mut timer = ReceiveTimer::default();
        let vm = Vm::Running(3);
        assert_eq!(timer.delivered(&BATCH, 1, vm, 1000), Interrupt::Now);
        assert_eq!(timer.delivered(&BATCH, 1, vm, 1010), Interrupt::At(1100));
        assert_eq!(timer.delivered(&BATCH, 1, vm, 1020), Interrupt::At(1100));
        assert_eq!(timer.due(&BATCH, vm, 1099), Interrupt::At(1100), "looked at too early");
        assert_eq!(timer.due(&BATCH, vm, 1100), Interrupt::Now);
        // Not back to back.
        assert_eq!(timer.delivered(&BATCH, 1, vm, 1101), Interrupt::At(1200));
        assert_eq!(timer.due(&BATCH, vm, 1200), Interrupt::Now);
        assert_eq!(timer.due(&BATCH, vm, 1300), Interrupt::Not);
        assert_eq!(timer.delivered(&BATCH, 1, vm, 1301), Interrupt::Now);
    }

    #[test]
    fn a_full_batch_and_a_blocked_guest_do_not_wait() {
        let mut timer = ReceiveTimer::default();
        assert_eq!(timer.delivered(&BATCH, 1, Vm::Running(0), 1000), Interrupt::Now);
        assert_eq!(timer.delivered(&BATCH, 5, Vm::Running(0), 1001), Interrupt::At(1100));
        assert_eq!(timer.delivered(&BATCH, 3, Vm::Running(0), 1002), Interrupt::Now);
        assert_eq!(timer.delivered(&BATCH, 1, Vm::Running(0), 1003), Interrupt::At(1102));
        assert_eq!(timer.delivered(&BATCH, 1, Vm::Blocked, 1004), Interrupt::Now);
        assert_eq!(timer.due(&BATCH, VM, 1102), Interrupt::Not, "it has had its interrupt");
        assert_eq!(timer.delivered(&BATCH, 1, Vm::Unknown, 1103), Interrupt::Now);
        assert_eq!(timer.delivered(&BATCH, 1, VM, 1104), Interrupt::At(1203));
        assert_eq!(timer.due(&BATCH, Vm::Blocked, 1105), Interrupt::Now, "it blocks before the time is over");
    }
}
