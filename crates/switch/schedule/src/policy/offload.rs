//! Which idle core takes work (PhD §4.3.4 "CPU Cache Awareness" and §4.5.2).

/// A core with a helper, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Core {
    /// Nobody else wants it; `None` if that is not known.
    pub idle: Option<bool>,
    /// Something runs on a core that shares its execution units.
    pub sibling_busy: bool,
    /// Which last-level cache it uses.
    pub cache: u16,
    /// It was taken away lately.
    pub backs_off: bool,
}

impl Core {
    fn is_candidate(&self) -> bool {
        self.idle != Some(false) && !self.sibling_busy && !self.backs_off
    }
}

/// The core that takes work of a ring: idle, or at least not known to be busy, with no busy sibling; one that uses
/// the receiver's cache before any other; among equals `hash` decides, so that rings spread. `None` if there is no such
/// core, and then nothing is handed over.
pub fn choose_core(
    cores: impl Iterator<Item = Core> + Clone,
    receivers_cache: Option<u16>,
    hash: u64,
) -> Option<usize> {
    let near = |core: &Core| Some(core.cache) == receivers_cache;
    let candidates = cores.enumerate().filter(|(_, core)| core.is_candidate());
    let pick = |only_near: bool| {
        let fit = candidates.clone().filter(move |(_, core)| !only_near || near(core));
        fit.clone().map(|(n, _)| n).nth(lasthop_types::fall_to(hash, fit.count()))
    };
    pick(true).or_else(|| pick(false))
}

/// How long a core is left alone that was taken away while it helped: twice as long each time, until it has helped for
/// a while undisturbed.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackOff {
    length_ns: u64,
    until_ns: u64,
}

impl BackOff {
    const FIRST_NS: u64 = 2_000_000;
    const LAST_NS: u64 = 32_000_000;
    /// Undisturbed for so long, it is as good as any.
    const PROBATION_NS: u64 = 20_000_000;

    /// The core was wanted by somebody else at `now_ns`, and is found to be by a ring that it was to work for since `since_ns`. Each ring finds it so, but
    /// it was lost once.
    pub fn taken_away(&mut self, since_ns: u64, now_ns: u64) {
        if self.length_ns != 0 && since_ns <= self.until_ns - self.length_ns {
            return;
        }
        self.length_ns = match self.length_ns {
            _ if now_ns > self.until_ns.saturating_add(Self::PROBATION_NS).saturating_add(self.length_ns) => {
                Self::FIRST_NS
            }
            length => (length * 2).clamp(Self::FIRST_NS, Self::LAST_NS),
        };
        self.until_ns = now_ns + self.length_ns;
    }

    /// It cannot help at all.
    pub fn for_ever(&mut self) {
        (self.until_ns, self.length_ns) = (u64::MAX, 1);
    }

    /// Whether it is to be left alone.
    pub fn holds(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Core = Core { idle: Some(true), sibling_busy: false, cache: 0, backs_off: false };

    fn choose(cores: &[Core], cache: Option<u16>, hash: u64) -> Option<usize> {
        choose_core(cores.iter().copied(), cache, hash)
    }

    #[test]
    fn idle_cores_only_and_none_if_there_is_none() {
        let busy = Core { idle: Some(false), ..IDLE };
        assert_eq!(choose(&[], None, 0), None);
        assert_eq!(choose(&[busy, busy], Some(0), 0), None);
        assert_eq!(choose(&[busy, IDLE, busy], Some(0), u64::MAX), Some(1));
        assert_eq!(choose(&[Core { sibling_busy: true, ..IDLE }, Core { backs_off: true, ..IDLE }], None, 0), None);
        assert_eq!(choose(&[busy, Core { idle: None, ..IDLE }], None, 0), Some(1), "one may try");
    }

    #[test]
    fn the_receivers_cache_first() {
        let far = Core { cache: 1, ..IDLE };
        assert_eq!(choose(&[far, far, IDLE, far], Some(0), u64::MAX), Some(2));
        assert_eq!(choose(&[far, far], Some(0), u64::MAX), Some(1), "then any");
        assert_eq!(choose(&[far, IDLE], None, 0), Some(0));
    }

    #[test]
    fn rings_spread() {
        let cores = [IDLE; 8];
        let mut hit = [0; 8];
        for hash in 0..800u64 {
            hit[choose(&cores, Some(0), hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap()] += 1;
        }
        assert!(hit.iter().all(|n| *n > 50), "{hit:?}");
    }

    #[test]
    fn a_core_that_is_wanted_again_and_again_is_asked_less_often() {
        let mut back_off = BackOff::default();
        assert!(!back_off.holds(0));
        let mut now = 1_000_000_000;
        for length in [2, 4, 8, 16, 32, 32, 32] {
            back_off.taken_away(now, now);
            assert!(back_off.holds(now + length * 1_000_000 - 1));
            assert!(!back_off.holds(now + length * 1_000_000));
            now += length * 1_000_000;
        }
        now += 3_000_000_000;
        back_off.taken_away(now, now);
        assert!(!back_off.holds(now + 2_000_000), "a second chance");
    }

    #[test]
    fn a_core_that_is_lost_with_many_rings_is_lost_once() {
        let (mut back_off, now) = (BackOff::default(), 1_000_000_000);
        (0..32).for_each(|ring| back_off.taken_away(now - 500_000 + ring * 10_000, now + ring * 30_000));
        assert!(back_off.holds(now + 1_999_999) && !back_off.holds(now + 2_000_000));
        back_off.taken_away(now + 2_000_000, now + 3_000_000);
        assert!(back_off.holds(now + 6_999_999) && !back_off.holds(now + 7_000_000), "offered anew, and lost again");
        back_off.for_ever();
        back_off.taken_away(now, now + 5_000_000_000);
        assert!(back_off.holds(u64::MAX - 1), "it cannot help at all");
    }
}
