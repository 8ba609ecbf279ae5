//! The dirty log of a guest that is being moved to another host: a bit for each of its pages, set once something has been written there
//! (vhost-user, "Migration").
//!
//! What is written to a guest goes through slices, whose writes know nothing of a log: of most guests there is none, and nothing is paid
//! for it. So it is noted by whoever tells the guest that something was written: the ring, which every buffer goes back to. A bit must not
//! come before what it stands for. It may come late, but not after the ring has stopped, and that of a buffer not after the guest is shown
//! the buffer: a successor would not know of it, should this process be killed in between.

use crate::memory::{GuestMemory, MemoryLimits, Place};
use crate::{GuestSlice, MapError, RegionSpec};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most bytes of a log that are mapped: of a guest with addresses up to 64 TiB.
pub const MAX_LOG: u64 = 2 << 30;
/// A bit's page has so many bytes, whatever the guest's have.
const PAGE: u64 = 4096;

impl GuestMemory {
    /// This set, with the log that lies in a file, or without one. The log is mapped like memory, but not counted with it: to unmap one
    /// takes no time, for of its pages we have touched few. Its guest address is 0.
    pub fn with_log(&self, log: Option<(RegionSpec, impl AsFd)>) -> Result<Self, MapError> {
        let none = Self::within(MemoryLimits { bytes: MAX_LOG, regions: 1 }, &Arc::default());
        let mut set = self.physical().clone();
        set.log = log.map(|(place, fd)| none.with_region(place, fd)).transpose()?.map(Arc::new);
        Ok(set.translated_by(self.table()))
    }

    /// Whether there is a log.
    pub fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// `len` bytes have been written to slices of this memory, one after the other: so says its log from now on, if it has one.
    pub fn log_written(&self, slices: &[GuestSlice<'_>], len: usize) {
        let (Some(log), mut left) = (&self.log, len) else { return };
        let (physical, mut last) = (self.physical(), Place::default());
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            if left == 0 {
                break;
            }
            let here = left.min(slice.len());
            left -= here;
            // Most lie where the one before did; of places there may be hundreds.
            let offset = |place: &Place| (slice.as_ptr() as u64).wrapping_sub(place.host as u64);
            let mut places = std::iter::once(&last).chain(&physical.places).chain(&physical.more);
            let Some(place) = places.find(|place| offset(place) < place.size).copied() else { continue };
            let guest = place.guest + offset(&place);
            last = place;
            let (mut page, end) = (guest / PAGE, (guest + here as u64).div_ceil(PAGE));
            while page < end {
                // As many as have their bits in one word.
                let next = end.min((page / 64 + 1) * 64);
                set_bits(log, page / 64, u64::MAX >> (64 - (next - page)) << (page % 64));
                page = next;
            }
        }
    }
}

/// Sets bits in the `n`th word of a log; none beyond its end, which the session process has compared with the guest's memory.
fn set_bits(log: &GuestMemory, n: u64, bits: u64) {
    let word = log.slice(8 * n, 8).unwrap_or(GuestSlice::EMPTY);
    if let Some(at) = word.at::<u64>(0) {
        // SAFETY: mapped and aligned; the front-end's own accesses are atomic, too. Release: whoever takes the bit and then reads the
        // page finds what was written. Not left out where the bit is there already: it may be taken just now.
        unsafe { AtomicU64::from_ptr(at) }.fetch_or(bits.to_le(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
