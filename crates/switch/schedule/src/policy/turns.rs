//! Turns of the rings that one thread looks after, in bytes and by weight: the self-virtualized NIC's scheduling of virtual interfaces
//! (Raj, Schwan, §2.2, which has round robin), by start-time fair queueing (Goyal, Vin, Cheng 1996).

use lasthop_virtqueue::{AHEAD, cost};

/// Of one thread. What is counted is bytes sent, divided by weight. Among rings that always have packets those counts differ by [`AHEAD`] and
/// what a burst may hold, however long it goes on.
#[derive(Debug, Default)]
pub struct Turns {
    /// The least count of a ring that had packets when it was last looked at.
    now: u64,
    /// The same for the next round, as far as this one has come; 0: of none yet.
    next: u64,
}

/// What a burst has moved for a port of this weight, in bytes: with all copies of packets with several receivers.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Chains that its ring gave back.
    pub packets: usize,
    /// Of frames, whichever were sent.
    pub bytes: u64,
    /// The port's.
    pub weight: u32,
}

/// Of a ring: its count.
#[derive(Debug, Default)]
pub struct Turn(u64);

impl Turns {
    /// A new round: each ring is asked for once.
    #[inline]
    pub fn begin(&mut self) {
        self.now = self.now.max(std::mem::take(&mut self.next));
    }

    /// Whether it is this ring's turn. If not, there are packets of others to be looked at before.
    #[inline]
    pub fn has_turn(&mut self, turn: &Turn) -> bool {
        let due = turn.0 <= self.now.saturating_add(AHEAD);
        if !due {
            self.goes_on(turn);
        }
        due
    }

    /// Whether it has had packets of late: what had none is behind those that have.
    pub fn is_ahead(&self, turn: &Turn) -> bool {
        turn.0 >= self.now
    }

    /// A burst was taken from a ring that shares its port's weight with others, `rings` in all. What it did not use while it had nothing is not
    /// made up for.
    #[inline]
    pub fn took(&mut self, turn: &mut Turn, moved: Moved, rings: usize) {
        let Moved { packets, bytes, weight } = moved;
        let counted = cost(packets as u64, bytes, weight) * rings as u64;
        turn.0 = turn.0.max(self.now).saturating_add(counted);
        self.goes_on(turn);
    }

    fn goes_on(&mut self, turn: &Turn) {
        self.next = if self.next == 0 { turn.0 } else { self.next.min(turn.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of a sender that has `ready` bursts of these packets, and no more than those.
    struct Ring {
        turn: Turn,
        weight: u32,
        packets: usize,
        bytes: u64,
        ready: u64,
        sent: u64,
    }

    fn ring(weight: u32, packets: usize, bytes: u64) -> Ring {
        Ring { turn: Turn::default(), weight, packets, bytes, ready: u64::MAX, sent: 0 }
    }

    fn round(turns: &mut Turns, rings: &mut [Ring]) -> usize {
        turns.begin();
        let mut moved = 0;
        for ring in rings {
            if turns.has_turn(&ring.turn) && ring.ready > 0 {
                ring.ready -= 1;
                ring.sent += ring.bytes;
                moved += 1;
                let moved = Moved { packets: ring.packets, bytes: ring.bytes, weight: ring.weight };
                turns.took(&mut ring.turn, moved, 1);
            }
        }
        moved
    }

    #[test]
    fn bytes_are_shared_by_weight_however_large_packets_are() {
        for weights in [[100, 100, 100], [1, 2, 3], [300, 100, 50], [1000, 500, 10]] {
            let [a, b, c] = weights;
            let mut rings = [ring(a, 5, 320 << 10), ring(b, 64, 64 * 64), ring(c, 64, 64 * 1514)];
            let mut turns = Turns::default();
            while rings.iter().any(|ring| ring.sent < 100 << 20) {
                assert!(round(&mut turns, &mut rings) > 0, "some ring always has its turn");
            }
            let share = |n: usize| rings[n].sent as f64 / f64::from(weights[n]);
            for n in [1, 2] {
                assert!((share(n) / share(0) - 1.0).abs() < 0.01, "{weights:?}: {} and {}", share(n), share(0));
            }
        }
    }

    #[test]
    fn equals_go_round_after_round_and_one_alone_never_waits() {
        let mut turns = Turns::default();
        let mut rings = [0; 8].map(|_| ring(100, 64, 64 * 64));
        assert!((0..1000).all(|_| round(&mut turns, &mut rings) == 8));
        let mut alone = [ring(1, 5, 320 << 10), ring(100, 64, 4096)];
        alone[1].ready = 0;
        assert!((0..1000).all(|_| round(&mut turns, &mut alone) == 1));
    }

    #[test]
    fn who_comes_late_has_its_turn_at_once_and_makes_up_for_nothing() {
        let mut turns = Turns::default();
        let mut rings = [ring(100, 5, 320 << 10), ring(100, 64, 4096)];
        rings[1].ready = 0;
        for _ in 0..1000 {
            round(&mut turns, &mut rings);
        }
        let before = rings[0].sent;
        rings[1].ready = u64::MAX;
        round(&mut turns, &mut rings);
        assert_eq!(rings[1].sent, 4096, "its first burst is in the next round");
        while rings[0].sent < before + (10 << 20) {
            round(&mut turns, &mut rings);
        }
        let (early, late) = (rings[0].sent - before, rings[1].sent);
        assert!(early.abs_diff(late) <= (320 << 10) + (2 * AHEAD), "{early} and {late}");
    }

    #[test]
    fn what_one_owed_is_forgotten_once_nobody_else_has_packets() {
        let mut turns = Turns::default();
        let mut rings = [ring(1, 5, 320 << 10), ring(100, 64, 4096)];
        for _ in 0..10 {
            round(&mut turns, &mut rings);
        }
        rings[1].ready = 0;
        // A round for the other to be found empty.
        round(&mut turns, &mut rings);
        assert!((0..100).all(|_| round(&mut turns, &mut rings) == 1));
    }

    #[test]
    fn a_count_that_has_come_to_its_end_stops_nobody() {
        let mut turns = Turns { now: u64::MAX - 5, next: 0 };
        let mut rings = [ring(1, 5, 320 << 10), ring(1000, 64, 4096)];
        assert!((0..100).all(|_| round(&mut turns, &mut rings) > 0));
    }
}
