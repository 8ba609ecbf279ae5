//! How long an idle core goes on looking for packets (PhD §4.3.4, "Hysteresis Period").

/// How long a helper polls in vain before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    /// At least, in nanoseconds.
    pub base_ns: u64,
    /// At most: while the next packet is expected, on average, within that time.
    pub limit_ns: u64,
}

impl Hysteresis {
    /// How long to poll for the next packet of a ring, `all_silent_ns` after any ring of the same helper had one. While it is
    /// awake for others anyway, to look at one more costs next to nothing, and the guest is spared its kicks.
    pub fn patience_ns(&self, arrivals: &Arrivals, all_silent_ns: u64) -> u64 {
        match self.limit_ns.max(self.base_ns) {
            _ if !arrivals.expects_more(self) => self.base_ns,
            limit_ns if all_silent_ns > limit_ns => limit_ns,
            limit_ns => limit_ns.max(Arrivals::SILENCE_NS),
        }
    }
}

/// How often packets come from a ring: the mean gap between them, the latest counting most.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    gap_ns: u64,
    last_ns: u64,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { gap_ns: Self::SILENCE_NS, last_ns: 0 }
    }
}

impl Arrivals {
    /// A gap of this length is as good as any longer one, and ends a stream.
    const SILENCE_NS: u64 = 500_000;

    /// `packets` packets have been found.
    #[inline]
    pub fn found(&mut self, packets: usize, now_ns: u64) {
        let gap = now_ns.saturating_sub(self.last_ns).min(Self::SILENCE_NS) / (packets as u64).max(1);
        // A burst counts for as many gaps as it has packets, up to what one would weigh alone.
        let weight = (packets as u64).min(4);
        self.gap_ns = (self.gap_ns * (8 - weight) + gap * weight) / 8;
        self.last_ns = now_ns;
    }

    /// One part of so many of a stream.
    pub fn part_of(self, parts: usize) -> Self {
        Self { gap_ns: self.gap_ns.saturating_mul(parts as u64), ..self }
    }

    /// The mean gap.
    pub fn gap_ns(&self) -> u64 {
        self.gap_ns
    }

    /// Whether the next packet is expected soon enough for an idle core to wait for it.
    pub fn expects_more(&self, hysteresis: &Hysteresis) -> bool {
        self.gap_ns <= hysteresis.limit_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(gap_ns: u64, packets: usize) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for n in 1..200 {
            arrivals.found(packets, n * gap_ns);
        }
        arrivals
    }

    #[test]
    fn a_helper_waits_for_those_who_come_often() {
        let hysteresis = Hysteresis::default();
        for (gap_ns, packets, patience) in [
            (10_000, 1, 50_000),
            (45_000, 1, 50_000),
            (60_000, 1, 5_000),
            (100_000, 1, 5_000),
            (100_000, 16, 50_000),
            (10_000_000, 1, 5_000),
        ] {
            assert_eq!(
                hysteresis.patience_ns(&after(gap_ns, packets), u64::MAX),
                patience,
                "{packets} each {gap_ns} ns"
            );
        }
    }

    #[test]
    fn a_helper_that_is_awake_waits_for_longer() {
        let hysteresis = Hysteresis::default();
        let (stream, rare) = (after(100_000, 64), after(100_000, 1));
        for (arrivals, all_silent_ns, patience_ns) in
            [(&stream, 0, 500_000), (&stream, 50_000, 500_000), (&stream, 51_000, 50_000), (&rare, 0, 5_000)]
        {
            assert_eq!(hysteresis.patience_ns(arrivals, all_silent_ns), patience_ns, "{all_silent_ns}");
        }
        let long = Hysteresis { base_ns: 5_000, limit_ns: 900_000 };
        assert_eq!(long.patience_ns(&stream, 0), 900_000);
    }

    #[test]
    fn one_packet_is_no_stream_and_silence_ends_one() {
        let hysteresis = Hysteresis::default();
        let mut arrivals = Arrivals::default();
        arrivals.found(1, 5_000_000);
        assert!(!arrivals.expects_more(&hysteresis));
        let mut arrivals = after(1_000, 1);
        assert!(arrivals.expects_more(&hysteresis));
        arrivals.found(1, arrivals.last_ns + 3_600_000_000_000);
        assert!(!arrivals.expects_more(&hysteresis));
    }

    #[test]
    fn a_part_of_a_stream_comes_more_seldom() {
        let (hysteresis, stream) = (Hysteresis::default(), after(10_000, 1));
        assert!(stream.part_of(4).expects_more(&hysteresis) && !stream.part_of(8).expects_more(&hysteresis));
    }

    #[test]
    fn a_fixed_period() {
        let fixed = Hysteresis { base_ns: 5_000, limit_ns: 0 };
        assert_eq!(fixed.patience_ns(&after(100, 1), 0), 5_000);
    }
}
