//! Times of something that is done many times, in cycles of the processor's counter.

use lasthop_sys::cycles;
use std::fmt;
use std::time::Instant;

/// What has been measured. The price of reading the counter is taken off each time.
pub struct Cycles {
    price: u64,
    /// Packets at a time.
    packets: usize,
    times: Vec<u64>,
    /// When and where the counter stood at first.
    begun: (Instant, u64),
}

impl Cycles {
    /// For something done to so many packets at a time.
    pub fn new(packets: usize) -> Self {
        let mut new = Self { price: 0, packets, times: Vec::new(), begun: (Instant::now(), cycles()) };
        // What nothing takes.
        (0..1000).for_each(|_| new.measure(|| ()));
        new.price = new.times.drain(..).min().unwrap_or_default();
        new
    }

    /// Measures what is done once.
    #[inline]
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begun = cycles();
        let done = work();
        self.times.push(cycles().saturating_sub(begun).saturating_sub(self.price));
        done
    }

    /// Cycles a packet that `percent` of all measurements stayed below.
    pub fn percentile(&self, percent: usize) -> f64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        times.get(at).map_or(0.0, |time| *time as f64 / self.packets as f64)
    }
}

/// Cycles a packet at the 5th, 25th, 50th and 95th percentile, and the 50th in nanoseconds.
impl fmt::Display for Cycles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (since, stood) = self.begun;
        let per_ns = (cycles() - stood) as f64 / since.elapsed().as_nanos().max(1) as f64;
        let [p5, p25, p50, p95] = [5, 25, 50, 95].map(|percent| self.percentile(percent));
        let ns = p50 / per_ns;
        write!(f, "cycles a packet: {p5:6.1} p5 {p25:6.1} p25 {p50:6.1} p50 {p95:6.1} p95  ({ns:.1} ns at p50)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_a_packet_and_without_the_price() {
        let mut measured = Cycles { times: (1..=100).map(|n| n * 10).collect(), ..Cycles::new(10) };
        assert_eq!([0, 5, 50, 100].map(|p| measured.percentile(p)), [1.0, 6.0, 51.0, 100.0]);
        assert!(measured.to_string().starts_with("cycles a packet:    6.0 p5"), "{measured}");
        measured.times.clear();
        assert_eq!(measured.percentile(50), 0.0);
        (0..1000).for_each(|_| measured.measure(|| ()));
        assert!(measured.percentile(5) < 10.0, "nothing takes no time: {measured}");
    }
}
