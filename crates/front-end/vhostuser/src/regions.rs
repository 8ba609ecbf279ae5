//! The memory regions that the front-end has named and the switch has mapped: what its addresses mean to the guest.

use lasthop_guestmem::RegionSpec;

/// By guest address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions(Vec<RegionSpec>);

impl Regions {
    pub(crate) fn new(mut regions: Vec<RegionSpec>) -> Self {
        regions.sort_by_key(|region| region.guest_addr);
        Self(regions)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The guest address behind the last of them.
    pub(crate) fn end(&self) -> u64 {
        self.0.iter().map(|region| region.guest_addr.saturating_add(region.size)).max().unwrap_or(0)
    }

    pub(crate) fn contains(&self, region: &RegionSpec) -> bool {
        self.0.contains(region)
    }

    pub(crate) fn with(&self, region: RegionSpec) -> Self {
        Self::new(self.0.iter().copied().chain([region]).collect())
    }

    /// Without the one of which that holds; `None` if there is none.
    pub(crate) fn without(&self, is_gone: impl Fn(&RegionSpec) -> bool) -> Option<Self> {
        let at = self.0.iter().position(is_gone)?;
        let mut rest = self.0.clone();
        rest.remove(at);
        Some(Self(rest))
    }

    /// Guest physical address of these bytes in the front-end's own address space, if they all lie in one region.
    pub(crate) fn range_to_guest(&self, user_addr: u64, size: u64) -> Option<u64> {
        self.0.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user_addr)?;
            let left = region.size.checked_sub(offset)?;
            if size <= left { region.guest_addr.checked_add(offset) } else { None }
        })
    }

    /// Guest physical address of an address in the front-end's own address space.
    pub(crate) fn user_to_guest(&self, user_addr: u64) -> Option<u64> {
        self.0.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user_addr)?;
            // The switch, which judges the regions, refuses one that wraps.
            (offset < region.size).then_some(region.guest_addr.wrapping_add(offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_front_end_are_the_guest_s() {
        let region = |n: u64| RegionSpec { guest_addr: n << 12, user_addr: (9 - n) << 20, size: 4096, mmap_offset: 0 };
        let regions = Regions::new(vec![region(2), region(1)]).with(region(0));
        assert_eq!(regions.user_to_guest((7 << 20) + 4095), Some(0x2fff));
        assert_eq!(regions.user_to_guest((7 << 20) + 4096), None);
        let fewer = regions.without(|r| *r == region(2)).unwrap();
        assert_eq!((fewer.user_to_guest(7 << 20), fewer.user_to_guest(9 << 20)), (None, Some(0)));
        assert!(fewer.without(|r| *r == region(2)).is_none());
        // What the switch will refuse is no reason to end.
        assert_eq!(
            regions.with(RegionSpec { guest_addr: u64::MAX, ..region(4) }).user_to_guest((5 << 20) + 1),
            Some(0)
        );
    }
}
