//! Kicks that bring nothing.

use std::time::Duration;

/// So many in a row may come from a guest that does no harm: one whose packets were found before its kick was.
const MOST: u32 = 16;
/// Those that come later than this after the one before are not in a row.
const ROW_NS: u64 = 5_000_000;
/// How long the next one has to wait, and twice as long each time.
const PAUSE: Duration = Duration::from_micros(50);
const DOUBLED: u32 = 4;

/// How often a port's thread was woken up in vain. A guest may kick as often as it likes, whatever it was asked for, and each time its port's
/// thread would take the core from others: seven such guests made an eighth's packets on the same core late by milliseconds.
#[derive(Debug, Default)]
pub struct Vain {
    kicks: u32,
    last_ns: u64,
}

impl Vain {
    /// The guest has kicked, at `now_ns`: how long to leave it alone before its rings are looked at.
    pub fn kicked(&mut self, now_ns: u64) -> Option<Duration> {
        let in_a_row = now_ns.saturating_sub(self.last_ns) < ROW_NS;
        self.kicks = if in_a_row { self.kicks.saturating_add(1) } else { 1 };
        self.last_ns = now_ns;
        Some(PAUSE * (1 << self.kicks.checked_sub(MOST + 1)?.min(DOUBLED)))
    }

    /// There were so many packets: as many kicks were right, and as many more are let pass. One among many kicks for nothing makes up for no more.
    pub fn moved(&mut self, packets: usize) {
        self.kicks = self.kicks.saturating_sub(u32::try_from(2 * packets).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(vain: &mut Vain, kicks: u64, gap_ns: u64) -> Vec<u64> {
        (0..kicks).map(|n| vain.kicked(100_000_000 + n * gap_ns).map_or(0, |pause| pause.as_micros() as u64)).collect()
    }

    #[test]
    fn a_storm_is_left_alone_for_longer_and_longer() {
        let pauses = pauses(&mut Vain::default(), 24, 1000);
        assert!(pauses[..16].iter().all(|pause| *pause == 0), "{pauses:?}");
        assert_eq!(pauses[16..], [50, 100, 200, 400, 800, 800, 800, 800]);
    }

    #[test]
    fn packets_and_silence_end_it() {
        let mut vain = Vain::default();
        for _ in 0..3 {
            assert!(pauses(&mut vain, 16, 1000).iter().all(|pause| *pause == 0));
            vain.moved(8);
        }
        assert!(pauses(&mut vain, 1000, ROW_NS).iter().all(|pause| *pause == 0));
    }

    #[test]
    fn a_packet_now_and_then_hides_no_storm() {
        let mut vain = Vain::default();
        let rounds: Vec<_> = (0..4).map(|_| (pauses(&mut vain, 15, 1000), vain.moved(1)).0).collect();
        assert!(rounds[0].iter().all(|pause| *pause == 0) && rounds[3].iter().all(|pause| *pause > 0), "{rounds:?}");
        let mut honest = Vain::default();
        assert!((0..1000).all(|_| (pauses(&mut honest, 1, 1000), honest.moved(1)).0 == [0]));
    }
}
