//! Chance that repeats: the same seed, the same numbers, on every machine.

/// SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*, 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that belong to `seed` and, for a stream of its own, to `stream`.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(seed ^ hash(stream.wrapping_add(1)))
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// 0 to `end`, without it.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// Above 0, up to 1.
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }

    /// Pareto with this mean and a heavy tail (shape 1.5: the variance is infinite), cut at a thousand means.
    pub fn heavy(&mut self, mean: f64) -> f64 {
        const SHAPE: f64 = 1.5;
        let least = mean * (SHAPE - 1.0) / SHAPE;
        (least / self.unit().powf(1.0 / SHAPE)).min(mean * 1000.0)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A hash of a small number.
pub fn hash(n: u64) -> u64 {
    mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_means_are_right_and_the_numbers_repeat() {
        let mut random = Random::new(1, 0);
        let n = 200_000;
        let mean = (0..n).map(|_| random.exponential(10.0)).sum::<f64>() / f64::from(n);
        assert!((9.9..10.1).contains(&mean), "{mean}");
        let heavy = (0..n).map(|_| random.heavy(10.0)).sum::<f64>() / f64::from(n);
        assert!((8.0..12.0).contains(&heavy), "{heavy}");
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert_eq!(Random::new(7, 3).bits(), Random::new(7, 3).bits());
        assert_ne!(Random::new(7, 3).bits(), Random::new(7, 4).bits());
    }
}
