//! The machine: which cores share a last-level cache, which share execution units.

/// A host whose cores are numbered so that those which share something are neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Cores that the operating system sees.
    pub cores: usize,
    /// As many neighbours share execution units: threads of one core, or a module.
    pub per_unit: usize,
    /// As many neighbours share a last-level cache.
    pub per_cache: usize,
}

impl Host {
    /// The papers' server: two Opteron 6274, that is four nodes of four modules of two cores (PhD fig. 4.8).
    pub const PAPER: Self = Self { cores: 32, per_unit: 2, per_cache: 8 };
    /// Two sockets of 32 cores, two threads each; eight cores share a last-level cache.
    pub const CORES_128: Self = Self { cores: 128, per_unit: 2, per_cache: 16 };
    /// Four sockets of 128 cores, two threads each.
    pub const CORES_1024: Self = Self { cores: 1024, per_unit: 2, per_cache: 16 };

    /// The last-level cache of a core.
    pub fn cache(&self, core: usize) -> u16 {
        (core / self.per_cache) as u16
    }

    /// The cores of the same execution units, this one included.
    pub fn unit(&self, core: usize) -> std::ops::Range<usize> {
        let first = core / self.per_unit * self.per_unit;
        first..(first + self.per_unit).min(self.cores)
    }

    /// The cores of the same last-level cache, this one included.
    pub fn near(&self, core: usize) -> std::ops::Range<usize> {
        let first = core / self.per_cache * self.per_cache;
        first..(first + self.per_cache).min(self.cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_server() {
        assert_eq!(Host::PAPER.unit(31), 30..32);
        assert_eq!(Host::PAPER.near(25), 24..32);
        assert_eq!((Host::PAPER.cache(7), Host::PAPER.cache(8)), (0, 1));
    }
}
