//! How much a port may send, get and flood: one limit each, which all threads share.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};

/// Times of a unit are kept in 2^-20 ns, so that 400 Gb/s are told from 401.
const SHIFT: u32 = 20;

/// A limit: so many bytes, or packets, a second, and so long that nothing was used may be made up for at once. The virtual scheduling
/// algorithm of ITU-T I.371 §A.1, but for what is charged behind the deed: whatever was begun is done, and paid for by waiting. So
/// averages are exact, however long a burst was.
///
/// Relaxed: each word says something by itself; two threads that are at the same moment below the limit may both begin a burst. Only
/// [`RateLimiter::set`] ends with Release, and a charge is Acquire: one that comes behind it finds the new rate.
#[derive(Debug, Default)]
pub struct RateLimiter {
    /// Time for each byte; 0: no limit of bytes.
    byte: AtomicU64,
    packet: AtomicU64,
    burst_ns: AtomicU64,
    /// When all that was done so far would have been done at the limit's rate.
    paid_ns: AtomicU64,
}

impl RateLimiter {
    /// Bytes and packets a second (0: any number), and in nanoseconds what may be made up for. Holds from the next burst on. Where the rate is the
    /// one that it was, what was done stays paid for, and there is no further burst.
    pub fn set(&self, bytes: u64, packets: u64, burst_ns: u64) {
        let costs = [bytes, packets].map(|rate| (1_000_000_000u64 << SHIFT).checked_div(rate).unwrap_or(0));
        self.burst_ns.store(burst_ns, Relaxed);
        if self.costs() != costs {
            self.byte.store(costs[0], Relaxed);
            self.packet.store(costs[1], Relaxed);
            self.paid_ns.store(0, Release);
        }
    }

    /// Time for each byte, and for each packet; zeros if there is no limit.
    #[inline]
    fn costs(&self) -> [u64; 2] {
        [self.byte.load(Relaxed), self.packet.load(Relaxed)]
    }

    /// Until when nothing more may be done, if that is not over.
    #[inline]
    pub(crate) fn until(&self, now_ns: u64) -> Option<u64> {
        let until_ns = self.paid_ns.load(Relaxed).saturating_sub(self.burst_ns.load(Relaxed));
        Some(until_ns).filter(|until_ns| *until_ns > now_ns && self.costs() != [0; 2])
    }

    /// So much was done.
    #[inline]
    pub(crate) fn charge(&self, packets: u64, bytes: u64, now_ns: u64) {
        let costs = self.costs();
        if costs != [0; 2] {
            let bytes = costs[0].saturating_mul(bytes);
            let cost = bytes.saturating_add(costs[1].saturating_mul(packets)) >> SHIFT;
            self.paid_ns.fetch_max(now_ns, Relaxed);
            self.paid_ns.fetch_add(cost, AcqRel);
            // Set anew meanwhile: what this cost before is not owed now.
            if self.costs() != costs {
                self.paid_ns.store(0, Relaxed);
            }
        }
    }

    /// Does one packet of so many bytes if that may be.
    pub(crate) fn admit(&self, bytes: usize, now_ns: u64) -> bool {
        let admitted = self.until(now_ns).is_none();
        if admitted {
            self.charge(1, bytes as u64, now_ns);
        }
        admitted
    }
}

/// A limit that flows name, and what has met it since it was set.
#[derive(Debug, Default)]
pub struct Meter {
    limit: RateLimiter,
    /// Packets and their bytes. Relaxed: each is a sum by itself.
    passed: [AtomicU64; 2],
    dropped: [AtomicU64; 2],
}

impl Meter {
    /// One with these rates, as [`RateLimiter::set`] has them.
    pub(crate) fn new([bytes, packets, burst_ns]: [u64; 3]) -> Self {
        let meter = Self::default();
        meter.limit.set(bytes, packets, burst_ns);
        meter
    }

    /// As [`RateLimiter::admit`], and counts the packet.
    pub(crate) fn admit(&self, bytes: usize, now_ns: u64) -> bool {
        let admitted = self.limit.admit(bytes, now_ns);
        let [packets, sum] = if admitted { &self.passed } else { &self.dropped };
        packets.fetch_add(1, Relaxed);
        sum.fetch_add(bytes as u64, Relaxed);
        admitted
    }

    /// Packets and bytes that have passed, and those that were dropped.
    pub fn counts(&self) -> [[u64; 2]; 2] {
        [&self.passed, &self.dropped].map(|counts| counts.each_ref().map(|count| count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Packets of so many bytes that pass in so long where one comes each microsecond.
    fn passed(limit: &RateLimiter, bytes: usize, start_ns: u64, ns: u64) -> u64 {
        (0..ns / 1000).filter(|n| limit.admit(bytes, start_ns + n * 1000)).count() as u64
    }

    #[test]
    fn averages_are_exact_and_bursts_bounded() {
        let limit = RateLimiter::default();
        assert_eq!(passed(&limit, 1500, SECOND, SECOND / 1000), 1000, "no limit");
        // 12.5 MB/s and 10 ms.
        limit.set(12_500_000, 0, 10_000_000);
        let first = passed(&limit, 1500, SECOND, 1_000_000);
        assert!((83..=93).contains(&first), "{first} in the first millisecond: what may be made up for");
        let more = passed(&limit, 1500, SECOND + 1_000_000, SECOND);
        assert!((8325..=8340).contains(&more), "{more} of 8333 in a second");
        // What was not used for long is made up for by no more than the burst.
        let first = passed(&limit, 1500, 10 * SECOND, 1_000_000);
        assert!((83..=93).contains(&first), "{first} after a rest");
        limit.set(0, 1000, 5_000_000);
        let packets = passed(&limit, 60, 20 * SECOND, SECOND);
        assert!((1004..=1006).contains(&packets), "{packets} packets");
        limit.set(0, 0, 0);
        assert_eq!(passed(&limit, 1500, 30 * SECOND, 1_000_000), 1000);
    }

    #[test]
    fn a_large_packet_is_paid_for_by_waiting() {
        let limit = RateLimiter::default();
        limit.set(1_000_000, 0, 1_000_000);
        assert!(limit.admit(65_536, SECOND));
        assert_eq!(limit.until(SECOND), Some(SECOND + 64_536_000));
        assert!(!limit.admit(1, SECOND + 64_535_000) && limit.admit(1, SECOND + 64_536_000));
    }

    #[test]
    fn what_was_owed_is_not_owed_any_more_when_the_limit_is_taken_back() {
        let limit = RateLimiter::default();
        limit.set(1, 0, 1);
        limit.charge(1, 1500, SECOND);
        assert!(limit.until(SECOND).is_some());
        limit.set(0, 0, 0);
        assert_eq!(limit.until(SECOND), None);
        // Left behind by a burst that charged while it was taken back.
        limit.paid_ns.store(2 * SECOND, Relaxed);
        assert_eq!(limit.until(SECOND), None, "there is no limit");
    }

    /// Nobody is to pay at the new rate what a burst has charged at the old one while that was changed.
    #[test]
    fn a_charge_at_the_old_rate_is_not_owed_at_the_new_one() {
        let (limit, charges) = (RateLimiter::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while charges.fetch_add(1, Relaxed) < u64::MAX / 2 {
                    limit.charge(1, 1500, SECOND);
                }
            });
            let mut most_owed = 0;
            for _ in 0..200 {
                limit.set(1, 0, 1);
                limit.set(1_000_000_000_000, 0, 1);
                // The charge that was under way is over.
                let before = charges.load(Relaxed);
                while charges.load(Relaxed) < before + 2 {
                    std::thread::yield_now();
                }
                most_owed = most_owed.max(limit.paid_ns.load(Relaxed));
            }
            charges.store(u64::MAX / 2, Relaxed);
            assert!(most_owed < 100 * SECOND, "{} s", most_owed / SECOND);
        });
    }

    /// As when the shares of ports are told anew.
    #[test]
    fn who_is_told_the_same_rate_again_gets_no_further_burst() {
        let limit = RateLimiter::default();
        limit.set(12_500_000, 0, 10_000_000);
        assert!(passed(&limit, 1500, SECOND, 1_000_000) >= 83, "what may be made up for");
        limit.set(12_500_000, 0, 10_000_000);
        let more = passed(&limit, 1500, SECOND + 1_000_000, 1_000_000);
        assert!((8..=9).contains(&more), "{more} of 8.3 in the next millisecond");
        // Less may be made up for from now on, and what was is not forgotten.
        limit.set(12_500_000, 0, 1_000_000);
        assert_eq!(passed(&limit, 1500, SECOND + 2_000_000, 1_000_000), 0);
        limit.set(25_000_000, 0, 1_000_000);
        let first = passed(&limit, 1500, SECOND + 3_000_000, 1_000_000);
        assert!((32..=35).contains(&first), "{first}: another rate begins anew");
    }

    #[test]
    fn nothing_overflows() {
        let limit = RateLimiter::default();
        limit.set(1, 1, u64::MAX);
        limit.charge(u64::MAX, u64::MAX, u64::MAX - 1);
        assert!(limit.until(0).is_none());
    }
}
