//! How much a port may send, get and flood: one limit each, which all threads share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Times of a unit are kept in 2^-20 ns, so that 400 Gb/s are told from 401.
const SHIFT: u32 = 20;

/// A limit: so many bytes, or packets, a second, and so long that nothing was used may be made up for at once. The virtual scheduling
/// algorithm of ITU-T I.371 §A.1, but for what is charged behind the deed: whatever was begun is done, and paid for by waiting. So
/// averages are exact, however long a burst was.
///
/// All Relaxed: each word says something by itself; two threads that are at the same moment below the limit may both begin a burst.
#[derive(Debug, Default)]
pub struct Limit {
    /// Time for each byte; 0: no limit of bytes.
    byte: AtomicU64,
    packet: AtomicU64,
    burst_ns: AtomicU64,
    /// When all that was done so far would have been done at the limit's rate.
    paid_ns: AtomicU64,
}

impl Limit {
    /// Bytes and packets a second (0: any number), and in nanoseconds what may be made up for. Holds from the next burst on.
    pub fn set(&self, bytes: u64, packets: u64, burst_ns: u64) {
        let each = |rate: u64| (1_000_000_000u64 << SHIFT).checked_div(rate).unwrap_or(0);
        self.byte.store(each(bytes), Relaxed);
        self.packet.store(each(packets), Relaxed);
        self.burst_ns.store(burst_ns, Relaxed);
        self.paid_ns.store(0, Relaxed);
    }

    /// There is one.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.byte.load(Relaxed) | self.packet.load(Relaxed) != 0
    }

    /// Until when nothing more may be done, if that is not over.
    #[inline]
    pub(crate) fn until(&self, now_ns: u64) -> Option<u64> {
        let until_ns = self.paid_ns.load(Relaxed).saturating_sub(self.burst_ns.load(Relaxed));
        Some(until_ns).filter(|until_ns| *until_ns > now_ns)
    }

    /// So much was done.
    #[inline]
    pub(crate) fn charge(&self, packets: u64, bytes: u64, now_ns: u64) {
        if self.is_set() {
            let bytes = self.byte.load(Relaxed).saturating_mul(bytes);
            let cost = bytes.saturating_add(self.packet.load(Relaxed).saturating_mul(packets)) >> SHIFT;
            self.paid_ns.fetch_max(now_ns, Relaxed);
            self.paid_ns.fetch_add(cost, Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Packets of so many bytes that pass in so long where one comes each microsecond.
    fn passed(limit: &Limit, bytes: usize, start_ns: u64, ns: u64) -> u64 {
        (0..ns / 1000).filter(|n| limit.admit(bytes, start_ns + n * 1000)).count() as u64
    }

    #[test]
    fn averages_are_exact_and_bursts_bounded() {
        let limit = Limit::default();
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
        let limit = Limit::default();
        limit.set(1_000_000, 0, 1_000_000);
        assert!(limit.admit(65_536, SECOND));
        assert_eq!(limit.until(SECOND), Some(SECOND + 64_536_000));
        assert!(!limit.admit(1, SECOND + 64_535_000) && limit.admit(1, SECOND + 64_536_000));
    }

    #[test]
    fn nothing_overflows() {
        let limit = Limit::default();
        limit.set(1, 1, u64::MAX);
        limit.charge(u64::MAX, u64::MAX, u64::MAX - 1);
        assert!(limit.until(0).is_none());
    }
}
